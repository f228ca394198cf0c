"""GPU metrics as tables: by metric and GPU, over time, and their means over kernels, ranges, steps and collectives.

See docs/numbers.md#gpu-metrics. A GPU's counters are of all that ran on it: what ran side by side has the same means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

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
from nsystui.base.selection import Selection, Task, Window
from nsystui.base.text import safe_text
from nsystui.questions.algebra.intervals import Intervals, Times
from nsystui.questions.gpu.metrics import (
    MetricSamples,
    MetricSource,
    attributed,
    metric_lanes,
    metric_sources,
    samples_in,
    samples_of,
)
from nsystui.questions.gpu.utilisation import selected_devices
from nsystui.questions.nccl.grouping import selected
from nsystui.questions.nvtx.loading import Texts
from nsystui.questions.queries.conditions import job_end, job_start, where
from nsystui.questions.queries.data_notes import missing_note
from nsystui.questions.queries.derived import in_runs, rows_by_report
from nsystui.questions.queries.tasks import selected_ranks, used_devices
from nsystui.questions.queries.time_window import edges_of
from nsystui.questions.ranks.steps import step_times
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.session import Session

if TYPE_CHECKING:
    from nsystui.questions.job.job import OpenJob

Floats = NDArray[np.float64]

_GPU = Column("gpu", header="GPU", label="gpu", unit=Unit.NUMBER, importance=3)
_METRIC = Column("metric", header="Metric", label="metric")
_UNIT = Column("unit", header="Unit", label="unit")


def _number(key: str, header: str, importance: int) -> Column:
    return Column(key, header=header, label=header.lower(), unit=Unit.COUNT, decimals=3, importance=importance)


COLUMNS = (
    RANK,
    DEVICE.with_importance(1),
    _GPU,
    _METRIC,
    _UNIT,
    Column("samples", header="Samples", label="samples", unit=Unit.COUNT, importance=4),
    _number("mean", "Mean", 0),
    _number("min", "Min", 5),
    _number("median", "Med", 1),
    _number("p95", "P95", 2),
    _number("max", "Max", 1),
    Column("implausible", header="Implausible", label="implausible", unit=Unit.COUNT, importance=6),
    Column("period", header="Period (ns)", label="period", unit=Unit.DURATION, importance=6),
)
TIME_COLUMNS = (RANK, DEVICE, _GPU, START, _METRIC, _UNIT, _number("value", "Value", 0))

_BUSIEST = (
    ("tensor", (("tensor active",),)),
    ("SM issue", (("SM issue",),)),
    ("DRAM", (("DRAM read", "DRAM write"),)),
    ("NVLink", (("NVLink TX",), ("NVLink RX",))),
    ("PCIe", (("PCIe TX",), ("PCIe RX",))),
)
"""Units of a GPU: the families that add up to its share of its peak, or the larger of two that do not."""
_DERIVED = (
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
_TELLING = ("SM active", "tensor active", "DRAM read", "DRAM write", "SM issue")
"""The families whose columns stay longest on a narrow screen."""
_COUNT = Column("count", header="Instances", label="count", unit=Unit.COUNT, importance=2)
_TOTAL = Column("total", header="Total Time (ns)", label="total", unit=Unit.DURATION)

Place = tuple[int, int]
"""A report and the machine's number of a GPU."""


def metric_statistics(job: OpenJob, selection: Selection) -> TableAnswer:
    """Tabulate each metric of each GPU: statistics of the samples of the selected time.

    ``mean`` is weighted by how much of a sample's period lies in the time, the others count samples.
    """
    users = _users(job, selection)
    rows: list[Row] = []
    sampled = [report for report in job.session.reports if report.count(tables.gpu_metrics)]
    for every in in_runs(job.session, sampled, partial(_of_gpus, selection), tables.gpu_metrics, "metrics"):
        for source, of_metrics in every:
            rows += [(*user, *row) for user in _of(users, source) for row in of_metrics]
    rows.sort(key=lambda row: (row[0] is None, row[0] or 0, row[1] or 0))
    return _answer(job, "metrics", COLUMNS, rows)


def _of_gpus(selection: Selection, session: Session, _: list[Report]) -> list[tuple[MetricSource, list[Row]]]:
    """The statistics of every metric of each GPU, with its first metric."""
    return [
        (found[0].source, [_statistics(one, selection.window) for one in found])
        for found in samples_of(session, metric_sources(session, selection, every=True))
    ]


def _statistics(samples: MetricSamples, window: Window | None) -> Row:
    low, high = (window.start, window.end) if window is not None else (None, None)
    starts, ends = np.clip(samples.starts, low, high), np.clip(samples.ends, low, high)
    overlap = ends - starts
    values, weights = samples.values[overlap > 0], overlap[overlap > 0]
    source = samples.source
    figures: list[Value] = [None] * 5
    if len(values):
        middle, p95 = np.percentile(values, (50, 95)).tolist()
        mean = float(np.average(values, weights=weights))
        figures = [mean, float(values.min()), middle, p95, float(values.max())]
    period = int(np.median(samples.ends - samples.starts)) if len(samples.ends) else None
    return (source.gpu, source.metric, source.unit, len(values), *figures, samples.implausible, period)


def metrics_over_time(job: OpenJob, selection: Selection, bins: int) -> TableAnswer:
    """Tabulate each metric of each GPU over time: the mean of the samples of each span, as the lanes have it."""
    users, window = _users(job, selection), job.extent(selection)
    sources = metric_sources(job.session, selection, every=True)
    starts = edges_of(window, bins)[:-1]
    rows: list[Row] = []
    for lane in metric_lanes(job.session, selection, window, bins, sources):
        source = lane.source
        for user in _of(users, source):
            values = zip(starts, _plain(lane.values), strict=True)
            rows += [(*user, source.gpu, start, source.metric, source.unit, value) for start, value in values]
    return _answer(job, "metrics-time", TIME_COLUMNS, rows)


def with_metrics(answer: TableAnswer, job: OpenJob, selection: Selection, bins: int) -> TableAnswer:
    """Add the kernels in flight and each metric as columns to a table with a row for each rank, device and span."""
    users, window = _users(job, selection), job.extent(selection)
    sources = metric_sources(job.session, selection, every=True)
    metrics = _columns_of(sources)
    place = {column.key: number for number, column in enumerate(metrics, 1)}
    nothing: list[Value] = [None] * bins
    values = {
        user: [_plain(own), *(nothing for _ in metrics)]
        for user, own in _in_flight(job, selection, window, bins).items()
    }
    for lane in metric_lanes(job.session, selection, window, bins, sources):
        for user in users.get((lane.source.report, lane.source.gpu), ()):
            values[user][place[lane.source.metric]] = _plain(lane.values)
    rows = []
    busy = [column.key for column in answer.columns].index("busy_percent")
    for number, row in enumerate(answer.rows):
        own = [column[number % bins] for column in values[row[0], row[1]]]
        # Where the session had not begun, or was over, nothing is known of kernels.
        rows.append((*row, *([None, *own[1:]] if row[busy] is None else own)))
    return TableAnswer(answer.name, (*answer.columns, _IN_FLIGHT, *metrics), rows, answer.total, answer.notes)


_IN_FLIGHT = Column(
    "in_flight", header="Kernels in Flight", label="in flight", unit=Unit.COUNT, decimals=3, importance=2
)


def _in_flight(job: OpenJob, selection: Selection, window: Window, bins: int) -> dict[tuple[Value, Value], Floats]:
    """By rank and device the mean number of kernels that ran at once in each span.

    Each is the time of all kernels in the span by its length. Of the kernels that began (and ended) in each span only
    number and times are read.
    """
    kernels, width = tables.kernels, window.end - window.start
    users: dict[tuple[Task, int], tuple[Value, Value]] = {
        (item.task.task, item.device): (item.task.rank, item.device)
        for item in selected_devices(job.session, selection, job.ranks)
    }
    found = {user: np.zeros(bins) for user in users.values()}
    if not width:
        return {user: np.full(bins, np.nan) for user in found}
    edges = np.arange(bins + 1) * (width / bins)
    for sign, time in ((1, job_start(kernels)), (-1, job_end(kernels))):
        since = sa.func.greatest(sa.func.least(time - window.start, width), 0)
        place = (kernels.c.report, kernels.c.process, kernels.c.device)
        number = (since * bins).op("//")(width).label("number")
        query = sa.select(*place, number, sa.func.count(), sa.func.sum(since)).group_by(*place, number)
        query = query.where(*where(kernels, selection.with_name(None)), kernels.c.end.is_not(None))
        counts: dict[tuple[Value, Value], NDArray[np.float64]] = {}
        for report, process, device, span, count, total in rows_by_report(job.session, query):
            if (Task(report, process), device) in users:
                own = counts.setdefault(users[Task(report, process), device], np.zeros((2, bins + 2)))
                own[:, span + 1] += (count, total)
        for user, own in counts.items():
            before = own.cumsum(axis=1)[:, : bins + 1]
            found[user] += sign * np.diff(edges * before[0] - before[1]) * bins / width
    return found


# -- means over intervals ---------------------------------------------------------------------------------------------


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
        return _answer(job, f"{by}-metrics", (*SUBJECT_COLUMNS[by], *_DERIVED), [])
    subject, sums = SUBJECTS[by](job, selection), _Sums()
    for place in dict.fromkeys([*_users(job, selection), *((one.report, one.gpu) for one in sources)]):
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
            derived = (*_plain(shares[:, row]), taken[row], alone[row], *busiest[row], occupancy[row])
            found.append((*rows[row], *totals, *derived, *_plain(means[:, row])))
    is_long = sums.of(_RESOLVED, count).sum() >= _MOSTLY * length.sum()
    notes = () if found and is_long else _means_notes(job, by, bool(found))
    return _answer(job, f"{by}-metrics", (*columns, *_DERIVED, *_columns_of(sources)), found, notes)


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
    return _plain(np.where(found <= 100.0, found, np.nan))


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
    names, smart, users = Texts(), job.smart_names(), _users(job, selection)
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


def _users(job: OpenJob, selection: Selection) -> dict[Place, list[tuple[Value, Value]]]:
    """Rank and device of every selected process that used a GPU."""
    found: dict[Place, list[tuple[Value, Value]]] = {}
    for item in selected_devices(job.session, selection, job.ranks):
        if item.gpu is not None:
            found.setdefault((item.task.task.report, item.gpu), []).append((item.task.rank, item.device))
    return found


def _of(users: dict[Place, list[tuple[Value, Value]]], source: MetricSource) -> list[tuple[Value, Value]]:
    """Those who used the GPU of a metric; nobody where no work on it was recorded."""
    return users.get((source.report, source.gpu)) or [(None, None)]


def _places_of_tasks(job: OpenJob, selection: Selection) -> dict[Task, list[Place]]:
    """The GPUs of each selected task."""
    found: dict[Task, list[Place]] = {}
    for item in selected_devices(job.session, selection, job.ranks):
        if item.gpu is not None:
            found.setdefault(item.task.task, []).append((item.task.task.report, item.gpu))
    return found


def _columns_of(sources: Sequence[MetricSource]) -> tuple[Column, ...]:
    """A column for each metric, under the name that was recorded; those that tell most stay longest."""
    found = {one.metric: one for one in sources}
    return tuple(
        Column(
            metric,
            header=safe_text(metric if " [" in metric or not one.unit else f"{metric} ({one.unit})"),
            label=safe_text(one.family if one.is_percent or one.unit == "Hz" else f"{one.label} {one.unit}".rstrip()),
            unit=Unit.PERCENT if one.is_percent else Unit.FREQUENCY if one.unit == "Hz" else Unit.COUNT,
            decimals=3,
            importance=1 + _TELLING.index(one.family) if one.family in _TELLING else 7,
        )
        for metric, one in found.items()
    )


def _plain(values: Floats) -> list[Value]:
    return [None if np.isnan(value) else value for value in values.tolist()]


def _answer(
    job: OpenJob, name: str, columns: tuple[Column, ...], rows: Sequence[Row], more: Iterable[str] = ()
) -> TableAnswer:
    lacking = missing_note(job.session, tables.gpu_metrics)
    return TableAnswer(name, columns, rows, len(rows), (lacking,) if lacking else tuple(more))
