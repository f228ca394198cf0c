"""Means of GPU metrics over kernels, launches, NVTX ranges, steps and collectives (docs/numbers.md#gpu-metrics).

A GPU's counters are of all that ran on it: what ran side by side has the same means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import (
    COLLECTIVE,
    DEVICE,
    DURATION,
    NAME,
    RANK,
    START,
    STEP,
    Column,
    Row,
    TableAnswer,
    Unit,
    Value,
)
from nsystui.base.selection import Selection, Task
from nsystui.questions.algebra.intervals import Intervals, Times
from nsystui.questions.counters.metric_tables import (
    Floats,
    Place,
    columns_of,
    metrics_answer,
    plain_values,
    users_of_gpus,
)
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
from nsystui.questions.queries.data_notes import missing_note
from nsystui.questions.queries.tasks import selected_ranks, used_devices
from nsystui.questions.ranks.steps import step_times
from nsystui.store import tables

if TYPE_CHECKING:
    from nsystui.questions.job.job import OpenJob

_BUSIEST = (
    ("tensor", (("tensor active",),)),
    ("SM issue", (("SM issue",),)),
    ("DRAM", (("DRAM read", "DRAM write"),)),
    ("NVLink", (("NVLink TX",), ("NVLink RX",))),
    ("PCIe", (("PCIe TX",), ("PCIe RX",))),
)
"""Units of a GPU: the families that add up to its share of its peak, or the larger of two that do not."""
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
"""The share of its peak, percent, from which on a unit is what bounds the work: that of Nsight Compute's rules."""
_FEW = 10.0
"""The share of SMs active, percent, from which on an occupancy is told: half a percent is 5 % of it."""
_WARPS = "compute warps in flight"
_COUNT = Column("count", header="Instances", label="count", unit=Unit.COUNT, importance=2)
_TOTAL = Column("total", header="Total Time (ns)", label="total", unit=Unit.DURATION)


@dataclass(frozen=True, eq=False)
class WorkIntervals:
    """n intervals of work on a GPU, job time; shapes ``(n,)``. ``rows``: the row of the table that each belongs to."""

    starts: Times
    ends: Times
    rows: Times


@dataclass(frozen=True)
class Subject:
    """What the rows of a table of means are about.

    ``pieces`` gives the intervals on a GPU; what the rows say of themselves is asked for afterwards. ``are_single``: a
    row is one interval, and is left out where fewer than two samples were taken in it.
    """

    columns: tuple[Column, ...]
    pieces: Callable[[Place], Iterable[WorkIntervals]]
    rows: Callable[[], Sequence[Row]]
    are_single: bool = False

    @classmethod
    def of_rows(
        cls, columns: tuple[Column, ...], rows: list[Row], where: Sequence[_Where], are_single: bool
    ) -> Subject:
        """Make a subject of rows that are known, with their intervals."""
        by_place: dict[Place, list[_Where]] = {}
        for one in where:
            by_place.setdefault(one.place, []).append(one)

        def pieces(place: Place) -> Iterable[WorkIntervals]:
            own = by_place.get(place, [])
            numbers = np.array([(one.start, one.end, one.row) for one in own], np.int64).reshape(-1, 3)
            yield WorkIntervals(*numbers.T)

        return cls(columns, pieces, lambda: rows, are_single)


class _Where(NamedTuple):
    place: Place
    start: int
    end: int
    row: int


class _Sums:
    """Sums by row, of which there may be ever more."""

    def __init__(self) -> None:
        self._sums: dict[str, Floats] = {}

    def add(self, key: str, rows: Times, values: Floats | Times) -> None:
        more = np.bincount(rows, weights=values)
        self._sums[key] = self.of(key, max(len(more), len(self._sums.get(key, ()))))
        self._sums[key][: len(more)] += more

    def of(self, key: str, count: int) -> Floats:
        """The sums of so many rows."""
        known = self._sums.get(key, np.zeros(0))
        return np.concatenate((known, np.zeros(count - len(known))))


_COUNTED, _LENGTH, _DESCRIBED, _RESOLVED = "count", "length", "described", "resolved"
_SAMPLES, _ALONE = "samples", "alone"
_OF_KERNELS = ("kernel", "launch", "collective")


def metric_means(job: OpenJob, selection: Selection, by: str) -> TableAnswer:
    """Tabulate the means of every metric over what ``by`` says (a key of ``SUBJECTS``), the largest time first.

    ``samples`` were taken in this time, and ``alone`` are those of them before which, since the last one, a single
    kernel ran (missing of ranges and steps). ``described`` is the share of the time that samples describe, ``resolved``
    that in intervals in which two samples or more were taken: where it is small, the means are those of what ran
    before and after, too.
    """
    sources = metric_sources(job.session, selection, every=True)
    if not sources:
        return metrics_answer(job, f"{by}-metrics", (*SUBJECT_COLUMNS[by], *DERIVED), [])
    subject, sums = SUBJECTS[by](job, selection), _Sums()
    for place in dict.fromkeys([*users_of_gpus(job, selection), *((one.report, one.gpu) for one in sources)]):
        own = [one for one in sources if (one.report, one.gpu) == place]
        samples = next(samples_of(job.session, own), [])
        most = max(samples, key=lambda one: len(one.ends), default=None)
        is_alone = _alone(job, place, most) if most is not None and by in _OF_KERNELS else None
        for pieces in subject.pieces(place):
            _add_up(sums, samples, pieces)
            if most is not None:
                sums.add(_SAMPLES, pieces.rows, samples_in(most, pieces.starts, pieces.ends))
            if is_alone is not None:
                sums.add(_ALONE, pieces.rows, samples_in(is_alone, pieces.starts, pieces.ends))
    rows = subject.rows()
    metrics, count = tuple(dict.fromkeys(one.metric for one in sources)), len(rows)
    means = np.full((len(metrics), count), np.nan)
    for number, metric in enumerate(metrics):
        time = sums.of(f"{metric} time", count)
        np.divide(sums.of(f"{metric} value", count), time, out=means[number], where=time > 0)
    length = sums.of(_LENGTH, count)
    shares = np.full((2, count), np.nan)
    for number, key in enumerate((_DESCRIBED, _RESOLVED)):
        np.divide(100.0 * sums.of(key, count), length, out=shares[number], where=length > 0)
    taken = sums.of(_SAMPLES, count).astype(int).tolist()
    alone = sums.of(_ALONE, count).astype(int).tolist() if by in _OF_KERNELS else [None] * count
    families = _by_family(sources, metrics, means)
    busiest, occupancy = _busiest(families, count), _occupancy(families, count)
    counts = sums.of(_COUNTED, count)
    columns = subject.columns if subject.are_single else (*subject.columns, _COUNT, _TOTAL)
    found: list[Row] = []
    for row in np.argsort(-length, kind="stable").tolist():
        if counts[row] and (not subject.are_single or sums.of(_RESOLVED, count)[row]):
            totals = () if subject.are_single else (int(counts[row]), int(length[row]))
            derived = (*plain_values(shares[:, row]), taken[row], alone[row], *busiest[row], occupancy[row])
            found.append((*rows[row], *totals, *derived, *plain_values(means[:, row])))
    is_long = sums.of(_RESOLVED, count).sum() >= _MOSTLY * length.sum()
    notes = () if found and is_long else _means_notes(job, by, bool(found))
    return metrics_answer(job, f"{by}-metrics", (*columns, *DERIVED, *columns_of(sources)), found, notes)


def _means_notes(job: OpenJob, by: str, has_rows: bool) -> Iterator[str]:
    """Why there are no rows, or what to think of them."""
    if has_rows:
        yield (
            "most of this time is in spans too short for two samples: their means include what ran just before and "
            "after them"
        )
    elif lacking := missing_note(job.session, tables.nvtx_ranges if by in ("range", "step") else tables.kernels):
        yield lacking
    elif by == "step":
        yield from job.steps().notes
    elif by == "launch":
        yield "no launch is long enough for two samples: record with a higher --gpu-metrics-frequency"


_MOSTLY = 0.5


def _add_up(sums: _Sums, samples: Sequence[MetricSamples], pieces: WorkIntervals) -> None:
    lengths = pieces.ends - pieces.starts
    sums.add(_COUNTED, pieces.rows, np.ones(len(lengths)))
    sums.add(_LENGTH, pieces.rows, lengths)
    for one, (time, value) in zip(samples, attributed(samples, pieces.starts, pieces.ends), strict=True):
        sums.add(f"{one.source.metric} time", pieces.rows, time)
        sums.add(f"{one.source.metric} value", pieces.rows, value)
    if samples:
        most = max(samples, key=lambda one: len(one.ends))
        sums.add(_DESCRIBED, pieces.rows, next(attributed([most], pieces.starts, pieces.ends))[0])
        is_long = samples_in(most, pieces.starts, pieces.ends) >= _FEWEST_SAMPLES
        sums.add(_RESOLVED, pieces.rows, np.where(is_long, lengths, 0))


_FEWEST_SAMPLES = 2


def _alone(job: OpenJob, place: Place, samples: MetricSamples) -> MetricSamples:
    """The samples that describe time in which one kernel ran on the GPU, and no other."""
    kernels = list(_launches(job, Selection(), place, Texts()))
    starts, ends = (
        np.concatenate([np.zeros(0, np.int64), *(getattr(one, name) for one in kernels)]) for name in ("starts", "ends")
    )
    moments = np.concatenate([starts, ends])
    order = np.argsort(moments, kind="stable")
    running = np.cumsum(np.repeat([1, -1], len(starts))[order])
    edges = moments[order]
    single = Intervals(edges[:-1][running[:-1] == 1], edges[1:][running[:-1] == 1])
    within = np.searchsorted(single.starts, samples.starts, side="right") - 1
    chosen = (within >= 0) & (samples.ends <= np.append(single.ends, 0)[within])
    return replace(samples, starts=samples.starts[chosen], ends=samples.ends[chosen], values=samples.values[chosen])


def _by_family(sources: Sequence[MetricSource], metrics: Sequence[str], means: Floats) -> dict[str, Floats]:
    """The means of each family of percentages; of a metric without one under its label."""
    family = {one.metric: one.family for one in sources if one.is_percent}
    shares: dict[str, Floats] = {}
    for number, metric in enumerate(metrics):
        if metric in family:
            known = shares.get(family[metric], means[number])
            shares[family[metric]] = np.where(np.isnan(known), means[number], known)
    return shares


def _occupancy(shares: dict[str, Floats], count: int) -> list[Value]:
    """Of each row the compute warps in flight by the warp slots of the SMs that were active, percent.

    Counters are whole percents, of which few make no quotient: missing where SMs were active for less than ``_FEW``.
    """
    warps = next((values for label, values in shares.items() if label.lower() == _WARPS), None)
    active = shares.get("SM active")
    found = np.full(count, np.nan)
    if warps is not None and active is not None:
        np.divide(100.0 * warps, active, out=found, where=active >= _FEW)
    return plain_values(np.where(found <= 100.0, found, np.nan))


def _busiest(shares: dict[str, Floats], count: int) -> list[tuple[Value, Value, Value]]:
    """Of each row the unit that is nearest to its peak, its share of that, percent, and the unit if that is much."""
    units = {}
    for unit, choices in _BUSIEST:
        sums = [np.sum([shares[one] for one in parts], axis=0) for parts in choices if set(parts) <= shares.keys()]
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


def _launches(
    job: OpenJob, selection: Selection, place: Place, names: Texts, least: int = 0
) -> Iterator[WorkIntervals]:
    """The launches on a GPU that last ``least`` ns or more, some at a time; ``rows`` are the numbers of their names."""
    kernels = tables.kernels
    used = [one for one in used_devices(job.session) if (one.task.report, one.gpu) == place]
    conditions = [sa.and_(kernels.c.process == one.task.process, kernels.c.device == one.device) for one in used]
    start, end = job_start(kernels), job_end(kernels)
    query = sa.select(start.label("start"), end.label("end"), sa.func.coalesce(kernels.c.name, "").label("name")).where(
        kernels.c.report == place[0],
        kernels.c.end - kernels.c.start >= least,
        sa.or_(sa.false(), *conditions),
        *where(kernels, selection, kernels.c.name),
    )
    for batch in job.session.part([place[0]]).array_batches(query):
        rows = names.coded(batch["name"]).astype(np.int64)
        yield WorkIntervals(batch["start"].astype(np.int64), batch["end"].astype(np.int64), rows)


def _by_kernel(job: OpenJob, selection: Selection) -> Subject:
    names, smart = Texts(), job.smart_names()
    return Subject(
        SUBJECT_COLUMNS["kernel"],
        lambda place: _launches(job, selection, place, names),
        lambda: [(smart.get(text, text),) for text in names.texts],
    )


def _by_launch(job: OpenJob, selection: Selection) -> Subject:
    """Launches that may hold two samples: those as long as a period, or nearly so."""
    names, smart, users = Texts(), job.smart_names(), users_of_gpus(job, selection)
    periods = _periods(job)
    rows: list[Row] = []

    def pieces(place: Place) -> Iterator[WorkIntervals]:
        if place not in periods:
            return
        for batch in _launches(job, selection, place, names, periods[place] // 2):
            texts, first = names.texts, len(rows)
            user = users[place][0]
            for name, start, end in zip(*(one.tolist() for one in (batch.rows, batch.starts, batch.ends)), strict=True):
                rows.append((smart.get(texts[name], texts[name]), *user, start, end - start))
            yield WorkIntervals(batch.starts, batch.ends, np.arange(first, len(rows)))

    return Subject(SUBJECT_COLUMNS["launch"], pieces, lambda: rows, are_single=True)


def _periods(job: OpenJob) -> dict[Place, int]:
    """The mean time between the samples of each GPU, ns."""
    columns = tables.gpu_metrics.c
    query = sa.select(
        columns.report, columns.gpu, sa.func.min(columns.time), sa.func.max(columns.time), sa.func.count()
    )
    query = query.where(columns.time.is_not(None)).group_by(columns.report, columns.gpu, columns.metric)
    found: dict[Place, int] = {}
    for report, gpu, first, last, count in job.session.rows(query):
        if count > 1:
            found[report, gpu] = min(found.get((report, gpu), last - first), (last - first) // (count - 1))
    return found


def _by_range(job: OpenJob, selection: Selection) -> Subject:
    """A row for each NVTX range name: its projected ranges, on each GPU of its process."""
    ranges = job.nvtx_ranges(selection)
    places = _places_of_tasks(job, selection)
    of_lane = [places.get(Task(lane.report, lane.process), []) for lane in ranges.lanes]
    launched = np.flatnonzero(ranges.op_count > 0)

    def pieces(place: Place) -> Iterator[WorkIntervals]:
        own = np.array([place in one for one in of_lane] or [False], bool)
        rows = launched[own[ranges.lane[launched]]]
        starts, ends = ranges.gpu_start[rows], ranges.gpu_end[rows]
        if (window := selection.window) is not None:
            starts, ends = starts.clip(window.start, window.end), ends.clip(window.start, window.end)
        yield WorkIntervals(starts, ends, ranges.name[rows].astype(int))

    return Subject(SUBJECT_COLUMNS["range"], pieces, lambda: [(name,) for name in ranges.names])


def _by_step(job: OpenJob, selection: Selection) -> Subject:
    """A row for each step of each rank, on all GPUs of the rank."""
    places = _places_of_tasks(job, selection)
    times = step_times(job.steps(), selection.window)
    rows: list[Row] = []
    found: list[_Where] = []
    for item in selected_ranks(job.ranks, selection):
        own = times.get(item.task)
        if own is None:
            continue
        for step, start, length in zip(*(one.tolist() for one in (own.numbers, own.start, own.duration)), strict=True):
            found += [_Where(place, start, start + length, len(rows)) for place in places.get(item.task, [])]
            rows.append((item.rank, step, start, length))
    return Subject.of_rows(SUBJECT_COLUMNS["step"], rows, found, are_single=True)


def _by_collective(job: OpenJob, selection: Selection) -> Subject:
    """A row for each collective and message size, by the kernels that ran it."""
    kernels = selected(job.pairing().kernels, selection)
    kernels = kernels[kernels["end"].notna()]
    gpus = {(one.task.report, one.task.process, one.device): one.gpu for one in used_devices(job.session)}
    numbers: dict[Row, int] = {}
    found: list[_Where] = []
    keys = ("report", "process", "device", "start", "end", "collective", "message_size")
    columns = (kernels[key].astype(object).where(kernels[key].notna(), None).tolist() for key in keys)
    for report, process, device, start, end, collective, size in zip(*columns, strict=True):
        gpu = gpus.get((report, process, device))
        if gpu is not None:
            row = numbers.setdefault((collective, None if size is None else int(size)), len(numbers))
            found.append(_Where((report, gpu), start, end, row))
    return Subject.of_rows(SUBJECT_COLUMNS["collective"], list(numbers), found, are_single=False)


SUBJECT_COLUMNS = {
    "kernel": (NAME,),
    "launch": (NAME, RANK, DEVICE.with_importance(2), START.with_importance(1), DURATION),
    "range": (Column("name", header="Range", label="range"),),
    "step": (RANK, STEP, START.with_importance(1), DURATION),
    "collective": (COLLECTIVE, Column("message_size", header="Message Size (B)", label="bytes", unit=Unit.BYTES)),
}
SUBJECTS: dict[str, Callable[[OpenJob, Selection], Subject]] = {
    "kernel": _by_kernel,
    "launch": _by_launch,
    "range": _by_range,
    "step": _by_step,
    "collective": _by_collective,
}
"""What the means may be of, and its columns."""


# -- the GPUs ---------------------------------------------------------------------------------------------------------


def _places_of_tasks(job: OpenJob, selection: Selection) -> dict[Task, list[Place]]:
    """The GPUs of each selected task."""
    found: dict[Task, list[Place]] = {}
    for item in selected_devices(job.session, selection, job.ranks):
        if item.gpu is not None:
            found.setdefault(item.task.task, []).append((item.task.task.report, item.gpu))
    return found
