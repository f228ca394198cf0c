"""The sentences that belong to NCCL's numbers: what is missing, of whom, and how to record or export it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from nsystui.base.selection import Selection, Task
from nsystui.base.text import few
from nsystui.questions.nccl.pairing import NcclPairing, PairingQuality
from nsystui.questions.nccl.selected import selected
from nsystui.questions.tasks import RankedTask
from nsystui.store import tables
from nsystui.store.session import Session

if TYPE_CHECKING:
    import pandas as pd

EXPORT_COMMAND = "nsys export -t sqlite --include-json=true --include-blobs=true report.nsys-rep"
"""What writes the payload of NVTX ranges, and so NCCL's message sizes, into an export.

See docs/exports.md#nvtx-payloads.
"""
_RECORD = "record with `nsys profile -t cuda,nvtx` and do not set NCCL_NVTX_DISABLE"
_SOURCES = {"payload": "NVTX payload", "instrumented": "the text of instrumented calls", "log": "NCCL's debug log"}


def nccl_notes(
    session: Session, selection: Selection, ranks: Sequence[RankedTask], pairing: NcclPairing
) -> tuple[str, ...]:
    """What an answer about NCCL has to say of itself.

    The line on the pairing is about the selected rows; what is missing, about the selected tasks at any time.
    """
    of_tasks = Selection(tasks=selection.tasks)
    kernels, calls = selected(pairing.kernels, of_tasks), selected(pairing.calls, of_tasks)
    speaking = calls[calls["collective"].notna()]
    notes = list(_missing(session, ranks, kernels, speaking))
    graphs = session.count(tables.graph_launches)
    if graphs:
        notes.append(
            f"{graphs:,} whole CUDA graph launches are not in this table: NCCL kernels in them were not traced one by "
            "one (record with --cuda-graph-trace=node)"
        )
    line = PairingQuality.of(selected(pairing.kernels, selection), selected(pairing.calls, selection)).line
    sources = [_SOURCES[source] for source in sorted(speaking["size_source"].dropna().unique()) if source in _SOURCES]
    if line and sources:
        line += f" · sizes from {' and '.join(sources)}"
    return (*notes, *pairing.notes, *([line] if line else []))


def _missing(
    session: Session, ranks: Sequence[RankedTask], kernels: pd.DataFrame, speaking: pd.DataFrame
) -> Iterator[str]:
    with_kernels, with_calls = _tasks(kernels), _tasks(speaking)
    with_sizes = _tasks(speaking[speaking["message_size"].notna()])
    all_tasks = with_kernels | with_calls
    if not all_tasks:
        which = "this export" if len(session.reports) == 1 else "these exports"
        yield f"no NCCL kernels and no NCCL calls in {which}: record a program that uses NCCL with -t cuda,nvtx"
    if silent := with_kernels - with_calls:
        yield (
            f"NCCL kernels but no NCCL NVTX ranges{_of(session, ranks, silent, all_tasks)}: "
            f"no message sizes, and collectives by the names of kernels only; {_RECORD}"
        )
    if idle := with_calls - with_kernels:
        whose = _of(session, ranks, idle, all_tasks)
        yield f"NCCL calls but no NCCL kernels{whose}: record with `nsys profile -t cuda,nvtx`"
    if without := with_calls - with_sizes:
        yield (
            f"no message sizes{_of(session, ranks, without, all_tasks)}: they are not in the export, "
            f"but `{EXPORT_COMMAND}` writes them (NCCL 2.16.2 or later)"
        )


def _tasks(frame: pd.DataFrame) -> set[Task]:
    places = frame[["report", "process"]].drop_duplicates().dropna()
    return {Task(int(report), int(process)) for report, process in places.itertuples(index=False)}


def _of(session: Session, ranks: Sequence[RankedTask], tasks: set[Task], everyone: set[Task]) -> str:
    """`` of rank 3``, or nothing where it concerns all that use NCCL."""
    if tasks == everyone:
        return ""
    numbers = sorted(item.rank for item in ranks if item.task in tasks)
    if len(numbers) == len(tasks):
        return f" of rank{'s' if len(numbers) > 1 else ''} {few(numbers)}"
    reports = {task.report for task in tasks}
    return f" in {few([report.name for report in session.reports if report.index in reports])}"
