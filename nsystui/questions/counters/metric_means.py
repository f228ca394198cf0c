"""Means of GPU metrics over kernels, NVTX ranges, steps and collectives (docs/numbers.md#gpu-metrics).

A GPU's counters include all its work: concurrent work has the same means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import COLLECTIVE, DURATION, NAME, RANK, START, STEP, Column, Row, TableAnswer, Unit, Value
from nsystui.base.selection import Selection, Task
from nsystui.base.types import Floats
from nsystui.questions.algebra.intervals import Intervals, Times
from nsystui.questions.counters.metric_tables import GpuKey, columns_of, metrics_answer, plain_values, users_of_gpus
from nsystui.questions.gpu.metrics import (
    MetricSamples,
    MetricSource,
    attributed,
    metric_sources,
    samples_in,
    samples_of,
)
from nsystui.questions.gpu.utilisation import selected_devices
from nsystui.questions.nccl.grouping import selected
from nsystui.questions.nvtx.loading import Texts
from nsystui.questions.queries.conditions import job_end, job_start, where
from nsystui.questions.queries.data_notes import missing_notes
from nsystui.questions.queries.tasks import selected_ranks, used_devices
from nsystui.questions.ranks.steps import step_times
from nsystui.store import tables

if TYPE_CHECKING:
    from nsystui.questions.job.job import OpenJob

_GPU_UNITS = (
    ("tensor", (("tensor active",),)),
    ("SM issue", (("SM issue",),)),
    ("DRAM", (("DRAM read", "DRAM write"),)),
    ("NVLink", (("NVLink TX",), ("NVLink RX",))),
    ("PCIe", (("PCIe TX",), ("PCIe RX",))),
)
"""Units of a GPU, with families that add up to a share of the peak; the larger of two sums counts."""
DERIVED = (
    Column("described", header="Described (%)", label="described", unit=Unit.PERCENT, decimals=1, importance=5),
    Column(
        "resolved", header="In Launches of 2 Samples (%)", label="resolved", unit=Unit.PERCENT, decimals=1
    ).with_importance(4),
    Column("samples", header="Samples", label="samples", unit=Unit.COUNT, importance=5),
    Column("alone", header="Samples Alone", label="alone", unit=Unit.COUNT, importance=4),
    Column("busiest", header="Busiest Unit", label="busiest", importance=1),
    Column("of_peak", header="Of Its Peak (%)", label="of peak", unit=Unit.PERCENT, decimals=1, has_bar=True),
    Column("bound", header="Bound By", label="bound by", importance=2),
    Column(
        "occupancy", header="Achieved Occupancy (%)", label="occupancy", unit=Unit.PERCENT, decimals=1
    ).with_importance(3),
)
_BOUND = 60.0
"""The share of its peak, percent, from which a unit bounds the work, as in Nsight Compute's rules."""
_MIN_ACTIVE = 10.0
"""The share of active SMs, percent, from which an occupancy is shown: a rounding of 0.5 % is 5 % of it."""
_WARPS = "compute warps in flight"
_COUNT = Column("count", header="Instances", label="count", unit=Unit.COUNT, importance=2)
_TOTAL = Column("total", header="Total Time (ns)", label="total", unit=Unit.DURATION)


@dataclass(frozen=True, eq=False)
class WorkIntervals:
    """n intervals of work on a GPU, job time; ``rows`` are their rows in the table; shapes ``(n,)``."""

    starts: Times
    ends: Times
    rows: Times


Subject = tuple[Callable[[GpuKey], Iterable[WorkIntervals]], Callable[[], Sequence[Row]]]
"""The intervals of the table's rows on a GPU; and the rows, known once all intervals were read."""


class _Sums:
    """Sums by row; the number of rows may grow."""

    def __init__(self) -> None:
        self._sums: dict[str, Floats] = {}

    def add(self, key: str, rows: Times, values: Floats | Times) -> None:
        new_sums = np.bincount(rows, weights=values)
        self._sums[key] = self.of(key, max(len(new_sums), len(self._sums.get(key, ()))))
        self._sums[key][: len(new_sums)] += new_sums

    def of(self, key: str, count: int) -> Floats:
        sums = self._sums.get(key, np.zeros(0))
        return np.concatenate((sums, np.zeros(count - len(sums))))


_COUNTED, _LENGTH, _DESCRIBED, _RESOLVED = "count", "length", "described", "resolved"
_SAMPLES, _ALONE = "samples", "alone"
_BY_KERNELS = ("kernel", "collective")


def metric_means(job: OpenJob, selection: Selection, group_by: str) -> TableAnswer:
    """Tabulate the means of every metric by ``group_by``, a key of ``SUBJECTS``, the largest time first.

    ``samples`` were taken in this time, and ``alone`` of them while a single kernel ran since the previous sample.
    ``described`` is the share of time that samples describe, ``resolved`` the share in intervals with two samples.
    """
    sources = metric_sources(job.session, selection, every=True)
    subject, subject_columns = SUBJECTS[group_by]
    if not sources:
        return metrics_answer(job, f"{group_by}-metrics", (*subject_columns, *DERIVED), [])
    (pieces_on, rows_of), sums = subject(job, selection), _Sums()
    for gpu in dict.fromkeys([*users_of_gpus(job, selection), *((source.report, source.gpu) for source in sources)]):
        gpu_sources = [source for source in sources if (source.report, source.gpu) == gpu]
        _add_gpu(sums, job, gpu, gpu_sources, pieces_on(gpu), group_by in _BY_KERNELS)
    rows = rows_of()
    metrics, count = tuple(dict.fromkeys(source.metric for source in sources)), len(rows)
    means = np.stack([_quotient(sums.of(f"{key} value", count), sums.of(f"{key} time", count)) for key in metrics])
    length = sums.of(_LENGTH, count)
    shares = np.stack([_quotient(100.0 * sums.of(key, count), length) for key in (_DESCRIBED, _RESOLVED)])
    sample_counts = sums.of(_SAMPLES, count).astype(int).tolist()
    alone = sums.of(_ALONE, count).astype(int).tolist() if group_by in _BY_KERNELS else [None] * count
    families = _by_family(sources, metrics, means)
    busiest, occupancy = _busiest(families, count), _occupancy(families, count)
    counts = sums.of(_COUNTED, count)
    are_single = group_by == "step"  # a row is one interval, left out if it has fewer than two samples
    columns = (*subject_columns, *(() if are_single else (_COUNT, _TOTAL)))
    table_rows: list[Row] = []
    resolved, order = sums.of(_RESOLVED, count), np.argsort(-length, kind="stable")
    is_shown = (counts > 0) & (resolved > 0) if are_single else counts > 0
    for row in order[is_shown[order]].tolist():
        totals = () if are_single else (int(counts[row]), int(length[row]))
        derived = (*plain_values(shares[:, row]), sample_counts[row], alone[row], *busiest[row], occupancy[row])
        table_rows.append((*rows[row], *totals, *derived, *plain_values(means[:, row])))
    is_long = resolved.sum() >= _MOSTLY * length.sum()
    notes = () if table_rows and is_long else _means_notes(job, group_by, bool(table_rows))
    return metrics_answer(job, f"{group_by}-metrics", (*columns, *DERIVED, *columns_of(sources)), table_rows, notes)


def _quotient(dividends: Floats, divisors: Floats) -> Floats:
    """Return quotients; NaN without a positive divisor."""
    quotients: Floats = np.divide(dividends, divisors, out=np.full(len(divisors), np.nan), where=divisors > 0)
    return quotients


def _add_gpu(
    sums: _Sums,
    job: OpenJob,
    gpu: GpuKey,
    sources: Sequence[MetricSource],
    pieces_on_gpu: Iterable[WorkIntervals],
    are_kernels: bool,
) -> None:
    samples = next(samples_of(job.session, sources), [])
    densest = max(samples, key=lambda metric: len(metric.ends), default=None)
    is_alone = _alone(job, gpu, densest) if densest is not None and are_kernels else None
    for pieces in pieces_on_gpu:
        starts, ends, rows = pieces.starts, pieces.ends, pieces.rows
        sums.add(_COUNTED, rows, np.ones(len(rows)))
        sums.add(_LENGTH, rows, ends - starts)
        for metric_samples, (time, value) in zip(samples, attributed(samples, starts, ends), strict=True):
            sums.add(f"{metric_samples.source.metric} time", rows, time)
            sums.add(f"{metric_samples.source.metric} value", rows, value)
        if densest is not None:
            number = samples_in(densest, starts, ends)
            sums.add(_SAMPLES, rows, number)
            sums.add(_DESCRIBED, rows, next(attributed([densest], starts, ends))[0])
            sums.add(_RESOLVED, rows, np.where(number >= _FEWEST_SAMPLES, ends - starts, 0))
        if is_alone is not None:
            sums.add(_ALONE, rows, samples_in(is_alone, starts, ends))


def _means_notes(job: OpenJob, group_by: str, has_rows: bool) -> Iterator[str]:
    if has_rows:
        yield (
            "most of this time is in spans too short for two samples: their means include what ran just before and "
            "after them"
        )
    elif lacking := missing_notes(job.session, tables.nvtx_ranges if group_by in ("range", "step") else tables.kernels):
        yield from lacking
    elif group_by == "step":
        yield from job.steps().notes


_MOSTLY = 0.5


_FEWEST_SAMPLES = 2


def _alone(job: OpenJob, gpu: GpuKey, samples: MetricSamples) -> MetricSamples:
    """Keep samples of the time in which exactly one kernel ran on the GPU."""
    kernels = list(_launches(job, Selection(), Texts(), gpu))
    starts, ends = (
        np.concatenate([np.zeros(0, np.int64), *(getattr(run, name) for run in kernels)]) for name in ("starts", "ends")
    )
    moments = np.concatenate([starts, ends])
    order = np.argsort(moments, kind="stable")
    running = np.cumsum(np.repeat([1, -1], len(starts))[order])
    edges = moments[order]
    single = Intervals(edges[:-1][running[:-1] == 1], edges[1:][running[:-1] == 1])
    index = np.searchsorted(single.starts, samples.starts, side="right") - 1
    alone = (index >= 0) & (samples.ends <= np.append(single.ends, 0)[index])
    return replace(samples, starts=samples.starts[alone], ends=samples.ends[alone], values=samples.values[alone])


def _by_family(sources: Sequence[MetricSource], metrics: Sequence[str], means: Floats) -> dict[str, Floats]:
    """Return the means of each family of percentages; a metric without a family has its label."""
    families = {source.metric: source.family for source in sources if source.is_percent}
    shares: dict[str, Floats] = {}
    for number, metric in enumerate(metrics):
        if metric in families:
            values = shares.get(families[metric], means[number])
            shares[families[metric]] = np.where(np.isnan(values), means[number], values)
    return shares


def _occupancy(shares: dict[str, Floats], count: int) -> list[Value]:
    """Return each row's compute warps in flight as a share of the warp slots of active SMs, percent.

    Counters are whole percents, too coarse for a quotient of small values: missing below `_MIN_ACTIVE`.
    """
    warps = next((values for label, values in shares.items() if label.lower() == _WARPS), None)
    active = shares.get("SM active")
    if warps is None or active is None:
        return [None] * count
    occupancy = _quotient(100.0 * warps, np.where(active >= _MIN_ACTIVE, active, 0.0))
    return plain_values(np.where(occupancy <= 100.0, occupancy, np.nan))


def _busiest(shares: dict[str, Floats], count: int) -> list[tuple[Value, Value, Value]]:
    """Return each row's unit nearest to its peak, its share of that, percent, and the unit if it bounds the work."""
    units = {}
    for unit, choices in _GPU_UNITS:
        sums = [np.sum([shares[key] for key in parts], axis=0) for parts in choices if set(parts) <= shares.keys()]
        if sums:
            units[unit] = np.fmax.reduce(sums)
    if not units:
        return [(None, None, None)] * count
    names, values = list(units), np.stack(list(units.values()))
    filled = np.where(np.isnan(values), -1.0, values)
    best = zip(np.argmax(filled, axis=0).tolist(), filled.max(axis=0).tolist(), strict=True)
    return [
        (names[unit], share, names[unit] if share >= _BOUND else None) if share >= 0 else (None, None, None)
        for unit, share in best
    ]


def _launches(job: OpenJob, selection: Selection, names: Texts, gpu: GpuKey) -> Iterator[WorkIntervals]:
    """Yield launches in batches; ``rows`` are numbers of names."""
    kernels = tables.kernels
    devices = [used for used in used_devices(job.session) if (used.task.report, used.gpu) == gpu]
    conditions = [sa.and_(kernels.c.process == used.task.process, kernels.c.device == used.device) for used in devices]
    start, end = job_start(kernels), job_end(kernels)
    query = sa.select(start.label("start"), end.label("end"), sa.func.coalesce(kernels.c.name, "").label("name")).where(
        kernels.c.report == gpu[0],
        kernels.c.end.is_not(None),
        sa.or_(sa.false(), *conditions),
        *where(kernels, selection, kernels.c.name),
    )
    for batch in job.session.part([gpu[0]]).array_batches(query):
        rows = names.coded(batch["name"]).astype(np.int64)
        yield WorkIntervals(batch["start"].astype(np.int64), batch["end"].astype(np.int64), rows)


def _by_kernel(job: OpenJob, selection: Selection) -> Subject:
    names, smart = Texts(), job.smart_names()
    return partial(_launches, job, selection, names), lambda: [(smart.get(text, text),) for text in names.texts]


def _by_range(job: OpenJob, selection: Selection) -> Subject:
    """Return a row per NVTX range name: its projected ranges, on each GPU of its process."""
    ranges = job.nvtx_ranges(selection)
    gpus = _gpus_of_tasks(job, selection)
    gpus_of_lanes = [gpus.get(Task(lane.report, lane.process), []) for lane in ranges.lanes]
    launched = np.flatnonzero(ranges.columns["op_count"] > 0)

    def pieces(gpu: GpuKey) -> Iterator[WorkIntervals]:
        is_on_gpu = np.array([gpu in lane_gpus for lane_gpus in gpus_of_lanes] or [False], bool)
        rows = launched[is_on_gpu[ranges.columns["lane"][launched]]]
        starts, ends = ranges.values("gpu_start")[rows], ranges.values("gpu_end")[rows]
        if (window := selection.window) is not None:
            starts, ends = starts.clip(window.start, window.end), ends.clip(window.start, window.end)
        yield WorkIntervals(starts, ends, ranges.columns["name"][rows].astype(int))

    return pieces, lambda: [(name,) for name in ranges.names]


_Span = tuple[int, int, int]  # start, end, row


def _intervals(spans: Mapping[GpuKey, list[_Span]], gpu: GpuKey) -> Iterator[WorkIntervals]:
    yield WorkIntervals(*np.array(spans.get(gpu, []), np.int64).reshape(-1, 3).T)


def _by_step(job: OpenJob, selection: Selection) -> Subject:
    """Return a row per step and rank, on all GPUs of the rank."""
    gpus = _gpus_of_tasks(job, selection)
    times = step_times(job.steps(), selection.window)
    rows: list[Row] = []
    spans: dict[GpuKey, list[_Span]] = {}
    for rank in selected_ranks(job.ranks, selection):
        steps = times.get(rank.task)
        if steps is None:
            continue
        columns = (column.tolist() for column in (steps.numbers, steps.start, steps.duration))
        for step, start, length in zip(*columns, strict=True):
            for gpu in gpus.get(rank.task, []):
                spans.setdefault(gpu, []).append((start, start + length, len(rows)))
            rows.append((rank.rank, step, start, length))
    return partial(_intervals, spans), lambda: rows


def _by_collective(job: OpenJob, selection: Selection) -> Subject:
    """Return a row per collective and message size, with the kernels that ran it."""
    kernels = selected(job.pairing().kernels, selection)
    kernels = kernels[kernels["end"].notna()]
    gpus = {(used.task.report, used.task.process, used.device): used.gpu for used in used_devices(job.session)}
    numbers: dict[Row, int] = {}
    spans: dict[GpuKey, list[_Span]] = {}
    keys = ("report", "process", "device", "start", "end", "collective", "message_size")
    columns = (kernels[key].astype(object).where(kernels[key].notna(), None).tolist() for key in keys)
    for report, process, device, start, end, collective, size in zip(*columns, strict=True):
        gpu = gpus.get((report, process, device))
        if gpu is not None:
            row = numbers.setdefault((collective, None if size is None else int(size)), len(numbers))
            spans.setdefault((report, gpu), []).append((start, end, row))
    return partial(_intervals, spans), lambda: list(numbers)


_BYTES = Column("message_size", header="Message Size (B)", label="bytes", unit=Unit.BYTES)
SUBJECTS: dict[str, tuple[Callable[[OpenJob, Selection], Subject], tuple[Column, ...]]] = {
    "kernel": (_by_kernel, (NAME,)),
    "range": (_by_range, (Column("name", header="Range", label="range"),)),
    "step": (_by_step, (RANK, STEP, START.with_importance(1), DURATION)),
    "collective": (_by_collective, (COLLECTIVE, _BYTES)),
}
"""What means are grouped by, with columns."""


# -- the GPUs ---------------------------------------------------------------------------------------------------------


def _gpus_of_tasks(job: OpenJob, selection: Selection) -> dict[Task, list[GpuKey]]:
    gpus: dict[Task, list[GpuKey]] = {}
    for device in selected_devices(job.session, selection, job.ranks):
        if device.gpu is not None:
            gpus.setdefault(device.task.task, []).append((device.task.task.report, device.gpu))
    return gpus
