"""The NCCL table: GPU kernels and CPU calls by collective, message size and other groupings, with its notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import COUNT, Column, TableAnswer, Unit, for_files
from nsystui.base.kernel_families import COPIES_BACKEND, NCCL_BACKEND
from nsystui.base.selection import Selection, Task
from nsystui.base.text import counted, few, ranks_named
from nsystui.base.types import DataSeries, Floats, Ints
from nsystui.exports import canonical
from nsystui.questions.nccl.bandwidth import rate, sizes_and_times
from nsystui.questions.nccl.grouping import (
    COLUMNS,
    SIZES,
    USUAL,
    NcclProperty,
    group_numbers,
    selected,
    shared_values,
    values_of,
)
from nsystui.questions.nccl.pairing import NcclPairing, pairing_line
from nsystui.questions.nccl.roles import communicator_roles
from nsystui.questions.nccl.units import first_of_each
from nsystui.questions.nccl.verdict import VERDICT, Together, verdict
from nsystui.questions.queries.conditions import duration, where
from nsystui.questions.queries.derived import rows_by_report
from nsystui.questions.queries.recording import recording_advice, sizes_advice
from nsystui.questions.queries.time_window import report_at
from nsystui.store import tables
from nsystui.store.session import Session

if TYPE_CHECKING:
    import pandas as pd

    from nsystui.questions.job.job import OpenJob


_JUDGED = ("start", "end", "transfer", "last")
_SOURCES = {
    "payload": "NVTX payload",
    "instrumented": "the text of instrumented calls",
    "copies": "the bytes copied",
    "log": "NCCL's debug log",
    "inspector": "NCCL Inspector",
}


def nccl_notes(job: OpenJob, selection: Selection, pairing: NcclPairing) -> tuple[str, ...]:
    """Return notes on missing data: for which ranks, and how to record or export it.

    The note on the pairing covers the selected rows, notes on missing data the selected tasks at any time.
    """
    of_tasks = Selection(tasks=selection.tasks)
    kernels, calls = selected(pairing.kernels, of_tasks), selected(pairing.calls, of_tasks)
    kernels = kernels[kernels["backend"].isin((NCCL_BACKEND, COPIES_BACKEND))]
    communication = calls[calls["collective"].notna()]
    notes = list(_missing(job, kernels, communication, has_log=bool(pairing.notes)))
    if copied := int((kernels["backend"] == COPIES_BACKEND).sum()):
        why = "their verdict is unknown, because copies begin once all ranks are ready, so that no wait is recorded"
        copies = "copies between GPUs without a kernel"
        notes.append(f"{counted(copied, 'NCCL operation', 'are')} {copies} (backend `{COPIES_BACKEND}`): {why}")
    if graphs := job.session.count(tables.graph_launches):
        why = "NCCL kernels in them were not traced one by one (record with --cuda-graph-trace=node)"
        notes.append(f"{counted(graphs, 'whole CUDA graph launch', 'are')} not in this table: {why}")
    line = pairing_line(selected(pairing.kernels, selection), selected(pairing.calls, selection))
    sources = [
        _SOURCES[source] for source in sorted(communication["size_source"].dropna().unique()) if source in _SOURCES
    ]
    if line and sources:
        line += f" · sizes from {' and '.join(sources)}"
    return (*notes, *pairing.notes, *([line] if line else []))


def _missing(job: OpenJob, kernels: pd.DataFrame, communication: pd.DataFrame, has_log: bool) -> Iterator[str]:
    session = job.session
    with_kernels, with_calls = _tasks(kernels), _tasks(communication)
    with_sizes = _tasks(communication[communication["message_size"].notna()])
    all_tasks = with_kernels | with_calls
    record = recording_advice(session, session.reports, canonical.NCCL_CALLS)
    if not all_tasks:
        which = "this export" if len(session.reports) == 1 else "these exports"
        yield f"no NCCL kernels and no NCCL calls in {which}: {record}"
    if silent := with_kernels - with_calls:
        yield (
            f"NCCL kernels but no NCCL NVTX ranges{_of(job, silent, all_tasks)}: "
            f"message sizes are unknown, and collectives are known from kernel names only; {record}"
        )
    if idle := with_calls - with_kernels:
        advice = recording_advice(session, session.reports, canonical.KERNELS)
        yield f"NCCL calls but no NCCL kernels{_of(job, idle, all_tasks)}: {advice}"
    if without := with_calls - with_sizes:
        advice = sizes_advice((report_at(session, task.report) for task in without), has_log)
        yield f"no message sizes{_of(job, without, all_tasks)}: {advice}"


def _tasks(frame: pd.DataFrame) -> set[Task]:
    keys = frame[["report", "process"]].drop_duplicates().dropna()
    return {Task(int(report), int(process)) for report, process in keys.itertuples(index=False)}


def _of(job: OpenJob, tasks: set[Task], all_tasks: set[Task]) -> str:
    """Return `` of rank 3`` for ``tasks``, or nothing for all tasks that use NCCL."""
    if tasks == all_tasks:
        return ""
    numbers = sorted(item.rank for item in job.ranks if item.task in tasks)
    if len(numbers) == len(tasks):
        return f" of {ranks_named(numbers)}"
    reports = {task.report for task in tasks}
    return f" in {few([report.name for report in job.session.reports if report.index in reports])}"


What = Literal["kernel", "call"]
KERNEL: Final = "kernel"
CALL: Final = "call"

_WHAT = Column("what", header="What", label="what")
RANKS = Column("ranks", header="Ranks", label="ranks", unit=Unit.NUMBER, importance=4)
ALGORITHM_BANDWIDTH = Column("algbw", header="AlgBW (B/s)", label="algbw", unit=Unit.RATE, decimals=1, importance=4)
BUS_BANDWIDTH = Column("busbw", header="BusBW (B/s)", label="busbw", unit=Unit.RATE, decimals=1, importance=1)
WITHOUT_WAIT = Column(
    "busbw_without_wait", header="BusBW w/o Wait (B/s)", label="busbw, no waiting", unit=Unit.RATE, decimals=1
).with_importance(2)
EXPOSED = Column("exposed", header="Exposed Time (ns)", label="exposed", unit=Unit.DURATION, importance=1)
OVERLAPPED = Column("overlapped", header="Overlapped (%)", label="overlap", unit=Unit.PERCENT, decimals=1, importance=2)
FASTEST = Column("fastest", header="Fastest (ns)", label="fastest", unit=Unit.DURATION, decimals=1, importance=3)
_ROLES = (
    Column("members", header="Members", label="members", importance=1),
    Column("role", header="Role", label="role", importance=1),
)
_SHARED = (
    COLUMNS[NcclProperty.COLLECTIVE],
    COLUMNS[NcclProperty.COMMUNICATOR],
    RANKS,
    COLUMNS[NcclProperty.DATATYPE],
    COLUMNS[NcclProperty.REDUCTION],
    COLUMNS[NcclProperty.BACKEND],
)
_COSTS = (
    COUNT.with_importance(1),
    Column("bytes", header="Total Bytes", label="bytes", unit=Unit.BYTES, importance=2),
    Column("share", header="Time (%)", label="time %", unit=Unit.PERCENT, decimals=1, importance=2, has_bar=True),
    Column("total", header="Total Time (ns)", label="total", unit=Unit.DURATION),
    Column("avg", header="Avg (ns)", label="avg", unit=Unit.DURATION, decimals=1, importance=5),
    Column("median", header="Med (ns)", label="median", unit=Unit.DURATION, decimals=1, importance=3),
    Column("min", header="Min (ns)", label="min", unit=Unit.DURATION, importance=6),
    Column("max", header="Max (ns)", label="max", unit=Unit.DURATION, importance=4),
    Column("stddev", header="StdDev (ns)", label="stddev", unit=Unit.DURATION, decimals=1, importance=7),
    ALGORITHM_BANDWIDTH,
    BUS_BANDWIDTH.with_importance(0),
    WITHOUT_WAIT,
    EXPOSED,
    OVERLAPPED,
    FASTEST,
    VERDICT,
)


def nccl_summary(
    job: OpenJob,
    selection: Selection,
    pairing: NcclPairing,
    by: Sequence[NcclProperty] = USUAL,
    what: What | None = None,
) -> TableAnswer:
    """Return one row for each combination of ``by``: first of the GPU kernels, then of the CPU calls, by total time.

    ``pairing`` is from `measured` (``Job.pairing``); steps need `in_steps`. Properties are `SEVERAL` or missing if the
    rows of a group differ. Figures are of whole kernels and calls (docs/nccl.md#bandwidth):

    * ``share``: the share of a kernel row in the time of all selected kernels and copies of NCCL, whatever the filter
    * ``fastest``, ns: the mean, over the kernels, of the job's shortest kernel of the same collective, size and number
      of ranks, if the size of each is known

    ``what`` selects kernels or calls, and removes the column ``what``.
    """
    import pandas as pd

    blocks, total = [], 0
    for kind, frame in ((KERNEL, pairing.kernels), (CALL, pairing.calls)):
        if what in (None, kind):
            blocks.append(block(kind, selected(frame, selection), by, pairing.together))
            total += len(np.unique(group_numbers(frame, by)))
    if what != CALL:
        copies = selected(pairing.kernels, selection.with_name(None))
        copies = copies[copies["backend"] == COPIES_BACKEND]
        time = _kernel_time(job.session, selection) + int((copies["end"] - copies["start"]).sum())
        blocks[0]["share"] = 100.0 * blocks[0]["total"].astype("float64") / (time or np.nan)
    group_columns = tuple(replace(COLUMNS[grouping], importance=0) for grouping in by)
    keys = {column.key for column in group_columns}
    shared = (column for column in _SHARED if column.key not in keys)
    columns = (*((_WHAT,) if what is None else ()), *group_columns, *shared, *_COSTS)
    frame = pd.concat(blocks, ignore_index=True)
    if NcclProperty.BACKEND not in by and (frame["backend"] == NCCL_BACKEND).all():
        columns = for_files(columns, {"backend"})
    if NcclProperty.COMMUNICATOR in by:
        roles = communicator_roles(pairing.kernels)
        row_roles = [roles.get(str(name), (None, None)) for name in frame["communicator"]]
        frame = frame.assign(**{item.key: [role[n] for role in row_roles] for n, item in enumerate(_ROLES)})
        columns += _ROLES
    notes = nccl_notes(job, selection, pairing)
    return TableAnswer.of_arrays("nccl", without_empty(columns, frame), frame, total, notes)


def without_empty(columns: Sequence[Column], frame: pd.DataFrame) -> tuple[Column, ...]:
    """Return the columns; optional columns, sizes and rates without a value in ``frame`` are for files only."""
    sizes = {COLUMNS[grouping].key for grouping in SIZES}
    optional = (item.key for item in columns if item.importance or item.unit is Unit.RATE or item.key in sizes)
    return for_files(columns, [key for key in optional if frame[key].isna().all()])


def block(what: str, frame: pd.DataFrame, by: Sequence[NcclProperty], together: Together) -> pd.DataFrame:
    """Return the rows of kernels or calls, largest total first; equal totals in the order of ``by``."""
    import pandas as pd

    group = group_numbers(frame, by)
    count = int(group.max(initial=-1)) + 1
    firsts = frame.iloc[first_of_each(group, count)]
    keys = {COLUMNS[grouping].key: values_of(firsts, grouping).reset_index(drop=True) for grouping in by}
    shared = {
        column.key: shared_values(_values(frame, column), group, count) for column in _SHARED if column.key not in keys
    }
    rows = pd.DataFrame({"what": what, **keys, **shared, **_costs(frame, group, count, together)}, index=range(count))
    return rows.sort_values("total", ascending=False, kind="stable")


def _values(frame: pd.DataFrame, column: Column) -> DataSeries:
    grouping = next((key for key, value in COLUMNS.items() if value is column), None)
    return values_of(frame, grouping) if grouping is not None else frame[column.key].astype("Int64")


def _costs(frame: pd.DataFrame, group: Ints, count: int, together: Together) -> dict[str, Any]:
    import pandas as pd

    durations = (frame["end"] - frame["start"]).astype("Int64").groupby(group)
    costs = {
        "count": durations.size(),
        "bytes": frame["message_size"].astype("Int64").groupby(group).sum(min_count=1),
        "share": pd.Series(np.nan, index=range(count)),
        "total": durations.sum(min_count=1),
        "avg": durations.mean().astype("float64"),
        "median": durations.median().astype("float64"),
        "min": durations.min(),
        "max": durations.max(),
        "stddev": durations.std().astype("float64").mask(durations.count() == 1, 0.0),
        **dict.fromkeys(("algbw", "busbw", "busbw_without_wait", "overlapped", "fastest"), np.nan),
        "exposed": pd.Series(pd.NA, index=range(count), dtype="Int64"),
        "verdict": None,
    }
    if "exposed" not in frame.columns:
        return costs
    rates = {key: _rates(*parts, group, count) for key, parts in sizes_and_times(frame).items()}
    exposed = frame["exposed"].astype("Int64").groupby(group).sum()
    overlapped = 100.0 * (1.0 - exposed.astype("float64") / costs["total"].astype("float64").replace(0.0, np.nan))
    judged = {"fastest": fastest(frame, group), "verdict": verdicts(frame, group, count, together)}
    return {**costs, **rates, "exposed": exposed, "overlapped": overlapped, **judged}


def fastest(kernels: pd.DataFrame, group: Ints) -> DataSeries:
    """Return the mean of each group's fastest kernels, ns; NaN if one is unknown."""
    return kernels["fastest"].reset_index(drop=True).groupby(group).agg(lambda values: values.mean(skipna=False))


def verdicts(kernels: pd.DataFrame, group: Ints, count: int, together: Together) -> list[str | None]:
    """Return the verdict on the kernels of each group; missing with one rank."""
    if "last" not in kernels.columns:
        return [None] * count
    start, end, *more = (kernels[key].to_numpy(np.float64, na_value=np.nan) for key in _JUDGED)
    cells = (start, end - start, *more)
    rows = np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group, minlength=count))[:-1])
    ranks = kernels["ranks"].astype("float64").fillna(kernels["rank"].nunique()).to_numpy()
    return [verdict(int(ranks[local].max(initial=0)), together, *(cell[local] for cell in cells)) for local in rows]


def _rates(size: Floats, time: Floats, group: Ints, count: int) -> Floats:
    """Return the rate of each group over the rows with a size and a time; shape ``(count,)``."""
    is_known = ~np.isnan(size) & ~np.isnan(time)
    sums = [np.bincount(group[is_known], values[is_known], count).astype(np.float64) for values in (size, time)]
    return rate(sums[0], sums[1])


def _kernel_time(session: Session, selection: Selection) -> int:
    table = tables.kernels
    query = sa.select(sa.cast(sa.func.sum(duration(table)), sa.BigInteger)).where(*where(table, selection))
    return sum(time for (time,) in rows_by_report(session, query) if time is not None)
