"""When each rank was in MPI or UCX, in kernels, and in both at once (docs/recipes.md#maps)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.selection import Selection, Task, Window
from nsystui.questions.algebra.interval_blocks import NO_BLOCKS, BlockBuilder, IntervalBlocks, slices
from nsystui.questions.algebra.intervals import intersect, merge
from nsystui.questions.efficiency.host import HostCalls, host_calls
from nsystui.questions.job import Job
from nsystui.questions.recipes.asking import RANK, Draw, Options, chosen_ranks
from nsystui.questions.recipes.maps import MapLine, RecipeMap, clock_notes, percent, window_of
from nsystui.questions.time_window import recorded
from nsystui.store import tables
from nsystui.store.report import Report

_NAME_NOTE = "the name filter is left out here: it is about all calls and kernels"


def _map(title: str, table: sa.Table, calls_of: Callable[[HostCalls], IntervalBlocks | None]) -> Draw:
    word = title.lower()
    figures = (
        percent("all_percent", "All Kernels", "all kernels", "compute"),
        percent(f"{word}_percent", title, title, "nccl"),
        percent("overlap_percent", "Overlap", "both"),
    )

    def drawn(job: Job, selection: Selection, options: Options) -> RecipeMap:
        window = window_of(job, selection)
        calls = {one.task.task: calls_of(one) for one in host_calls(job.session, selection, job.ranks)}
        kernels = _kernels(job, selection)
        reports = {report.index: report for report in job.session.reports}
        lines = []
        for item in chosen_ranks(job, selection):
            own = calls.get(item.task)
            if own is None:
                continue
            sets = (kernels.get(item.task, NO_BLOCKS), own)
            seen = _seen(reports[item.task.report], window, options.bins)
            parts = [_shares(one, window, options.bins, seen) for one in (*sets, _both(*sets))]
            lines.append(MapLine((item.rank,), f"rank {item.rank}", np.stack(parts)))
        named = (_NAME_NOTE,) if selection.name is not None else ()
        missing = _missing(len(lines), len(chosen_ranks(job, selection)), title, job.session.count(table))
        notes = (*missing, *named, *clock_notes(job, selection))
        return RecipeMap(f"{word}-gpu-time", window, options.bins, (RANK,), figures, tuple(lines), notes)

    return drawn


def _missing(lines: int, ranks: int, title: str, calls: int) -> tuple[str, ...]:
    """What is said of ranks without such calls; that there are none at all is said elsewhere."""
    if not lines:
        return (f"none of the {calls:,} {title} calls is one of a selected rank with GPU work",) if calls else ()
    return (f"{ranks - lines} of {ranks} ranks have no {title} calls",) if lines < ranks else ()


def _kernels(job: Job, selection: Selection) -> dict[Task, IntervalBlocks]:
    """U(K ∪ C) of each task, over its devices."""
    found: dict[Task, list[IntervalBlocks]] = {}
    for item in job.busy(selection).devices:
        found.setdefault(item.device.task.task, []).extend((item.parts.kernels, item.parts.exposed_nccl))
    return {task: _together(parts) for task, parts in found.items()}


def _together(parts: list[IntervalBlocks]) -> IntervalBlocks:
    builder = BlockBuilder()
    for pieces in slices(parts):
        builder.append(merge(*pieces))
    return builder.blocks()


def _both(one: IntervalBlocks, other: IntervalBlocks) -> IntervalBlocks:
    builder = BlockBuilder()
    for a, b in slices([one, other]):
        builder.append(intersect(a, b))
    return builder.blocks()


def _seen(report: Report, window: Window, bins: int) -> NDArray[np.bool_]:
    """Which bins lie in the session of a report, if only with a part."""
    session, width = recorded(report), window.end - window.start
    edges = window.start + np.arange(bins + 1) * (width / bins)
    seen: NDArray[np.bool_] = (edges[1:] > session.start) & (edges[:-1] < session.end)
    return seen


def _shares(part: IntervalBlocks, window: Window, bins: int, seen: NDArray[np.bool_]) -> NDArray[np.float64]:
    covered = part.covered_per_bin(window.start, window.end, bins)
    shares = np.minimum(100.0 * covered * bins / max(window.end - window.start, 1), 100.0)
    found: NDArray[np.float64] = np.where(seen, shares, np.nan)
    return found


MAPS: dict[str, Draw] = {
    "mpi_gpu_time_util_map": _map("MPI", tables.mpi_calls, lambda one: one.mpi),
    "ucx_gpu_time_util_map": _map("UCX", tables.ucx_calls, lambda one: one.ucx),
}
