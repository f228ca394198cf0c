"""Maps of busy time: GPUs by category of work, ranks by MPI, UCX and kernels (docs/recipes.md#maps)."""

from collections.abc import Callable

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import DEVICE, RANK
from nsystui.base.selection import Selection, Task, Window
from nsystui.base.text import counted
from nsystui.base.types import Floats
from nsystui.base.units import numbered
from nsystui.questions.algebra.intervals import EMPTY, Intervals, covered_per_bin, intersect, merge
from nsystui.questions.efficiency.host import HostCalls, host_calls
from nsystui.questions.gpu.device_time import DeviceIntervals
from nsystui.questions.gpu.utilisation import recording_notes
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.tasks import selected_ranks
from nsystui.questions.queries.time_window import recorded
from nsystui.questions.recipes.recipe import Draw, Figure, MapLine, RecipeMap, RecipeOptions, clock_notes, percent
from nsystui.store import tables

_BUSY = (
    percent("busy_percent", "Busy", "busy"),
    percent("all_percent", "All Kernels", "all kernels", "compute"),
    percent("memory_percent", "Memory", "memory", "memory"),
    percent("graph_percent", "Graph", "graph", "graph"),
)
_NCCL = (
    percent("all_percent", "All Kernels", "all kernels"),
    percent("nccl_percent", "NCCL", "NCCL", "nccl"),
    percent("compute_percent", "Compute", "compute", "compute"),
)
# The parts (`DeviceIntervals.share`) whose shares add up to each figure.
_LANES = {
    "busy_percent": ("busy",),
    "memory_percent": ("memory",),
    "graph_percent": ("graph",),
    "all_percent": ("kernels", "exposed_nccl"),
    "nccl_percent": ("nccl",),
    "compute_percent": ("kernels",),
}


def _gpu_map(name: str, figures: tuple[Figure, ...]) -> Draw:
    def draw(job: OpenJob, selection: Selection, options: RecipeOptions) -> RecipeMap:
        busy, window = job.busy(selection), job.extent(selection)
        lines = []
        for item in busy.devices:
            device = item.device
            label = f"rank {device.task.rank}" + f" {numbered('d', device.device)}" * (len(device.task.devices) > 1)
            values = np.stack([_share(item, figure, window, options.bins) for figure in figures])
            lines.append(MapLine((device.task.rank, device.device), label, values))
        recording = recording_notes(busy, window) if busy.shares_clock else ()
        notes = (*busy.notes, *clock_notes(job, selection), *recording)
        return RecipeMap(name, window, options.bins, (RANK, DEVICE), figures, tuple(lines), notes)

    return draw


def _share(item: DeviceIntervals, figure: Figure, window: Window, bins: int) -> Floats:
    lanes = [item.share(lane, window, bins) for lane in _LANES[figure.column.key]]
    shares: Floats = 100.0 * np.minimum(np.sum(lanes, axis=0), 1.0)
    return shares


_NAME_NOTE = "the name filter does not apply here: it is about all calls and kernels"


def _host_map(title: str, table: sa.Table, calls_of: Callable[[HostCalls], Intervals | None]) -> Draw:
    key_word = title.lower()
    figures = (
        percent("all_percent", "All Kernels", "all kernels", "compute"),
        percent(f"{key_word}_percent", title, title, "nccl"),
        percent("overlap_percent", "Overlap", "both"),
    )

    def draw(job: OpenJob, selection: Selection, options: RecipeOptions) -> RecipeMap:
        window = job.extent(selection)
        calls = {host.task.task: calls_of(host) for host in host_calls(job.session, selection, job.ranks)}
        parts_of: dict[Task, list[Intervals]] = {}
        for device in job.busy(selection).devices:
            parts_of.setdefault(device.device.task.task, []).extend((device.parts.kernels, device.parts.exposed_nccl))
        kernels = {task: merge(*parts) for task, parts in parts_of.items()}
        reports = {report.index: report for report in job.session.reports}
        lines = []
        for item in selected_ranks(job.ranks, selection):
            rank_calls = calls.get(item.task)
            if rank_calls is None:
                continue
            sets = (kernels.get(item.task, EMPTY), rank_calls)
            shares = [_shares(intervals, window, options.bins) for intervals in (*sets, intersect(*sets))]
            # Bins entirely outside the report's session have no values.
            session_window = recorded(reports[item.task.report])
            edges = window.start + np.arange(options.bins + 1) * ((window.end - window.start) / options.bins)
            is_recorded = (edges[1:] > session_window.start) & (edges[:-1] < session_window.end)
            lines.append(MapLine((item.rank,), f"rank {item.rank}", np.where(is_recorded, np.stack(shares), np.nan)))
        name_notes = (_NAME_NOTE,) if selection.name is not None else ()
        missing = _missing(len(lines), len(selected_ranks(job.ranks, selection)), title, job.session.count(table))
        notes = (*missing, *name_notes, *clock_notes(job, selection))
        return RecipeMap(f"{key_word}-gpu-time", window, options.bins, (RANK,), figures, tuple(lines), notes)

    return draw


def _missing(lines: int, ranks: int, title: str, calls: int) -> tuple[str, ...]:
    """Return the note on ranks without such calls; another note covers a job without any calls."""
    if not lines:
        return (f"no selected rank with GPU work made any of {counted(calls, f'{title} call')}",) if calls else ()
    return (f"{counted(ranks - lines, 'rank', 'have', ranks)} no {title} calls",) if lines < ranks else ()


def _shares(part: Intervals, window: Window, bins: int) -> Floats:
    covered = covered_per_bin(part, window.start, window.end, bins)
    return np.minimum(100.0 * covered * bins / max(window.end - window.start, 1), 100.0)


MAPS: dict[str, Draw] = {
    "cuda_gpu_time_util_map": _gpu_map("gpu-time", _BUSY),
    "nccl_gpu_time_util_map": _gpu_map("nccl-gpu-time", _NCCL),
    "mpi_gpu_time_util_map": _host_map("MPI", tables.mpi_calls, lambda calls: calls.mpi),
    "ucx_gpu_time_util_map": _host_map("UCX", tables.ucx_calls, lambda calls: calls.ucx),
}
