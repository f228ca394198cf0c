"""The streams of each GPU: what runs on them, for which NVTX ranges, and how long their launches queue.

An operation is queued from the start of the API call that launched it to its own start, as HTA counts the queue length
of a stream (docs/numbers.md#streams).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.answer import DEVICE, RANK, START, STREAM, UNKNOWN, Column, Row, TableAnswer, Unit
from nsystui.base.selection import Selection, Task
from nsystui.base.text import few
from nsystui.base.units import format_value, numbered
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.job.job import OpenJob
from nsystui.questions.nccl.names import is_of_nccl
from nsystui.questions.nvtx.paths import template
from nsystui.questions.nvtx.ranges import NvtxRanges
from nsystui.questions.queries.conditions import duration, where
from nsystui.questions.queries.kernel_names import communicates, communicating
from nsystui.questions.queries.tasks import GPU_TABLES, selected_ranks
from nsystui.questions.queries.time_window import edges_of
from nsystui.questions.steps.task_steps import launched_work
from nsystui.store import tables
from nsystui.store.session import Session

_QUEUED = Column("queued", header="Queued Max", label="queued", unit=Unit.COUNT)
_QUEUED_MEAN = Column("queued_mean", header="Queued Mean", label="mean queued", unit=Unit.NUMBER, decimals=1)
COLUMNS = (
    RANK,
    DEVICE.with_importance(2),
    STREAM,
    Column("kind", header="Kind", label="kind"),
    Column("count", header="Operations", label="ops", unit=Unit.COUNT, importance=2),
    Column("launched", header="Launch Known (%)", label="launched", unit=Unit.PERCENT, decimals=1, importance=4),
    Column("compute", header="Compute (ns)", label="compute", unit=Unit.DURATION),
    Column("communication", header="Communication (ns)", label="comm", unit=Unit.DURATION, importance=1),
    Column("copies", header="Copies (ns)", label="copies", unit=Unit.DURATION, importance=1),
    _QUEUED,
    _QUEUED_MEAN.with_importance(3),
    Column("at_limit", header="Time at Limit (ns)", label="at limit", unit=Unit.DURATION, importance=3),
    Column("delay", header="Med Launch Delay (ns)", label="delay", unit=Unit.DURATION, decimals=0, importance=1),
    Column(
        "delay_p90", header="p90 Launch Delay (ns)", label="p90 delay", unit=Unit.DURATION, decimals=0, importance=3
    ),
    Column("purpose", header="NVTX Range of All", label="range of all", importance=1),
)
"""``kind``: what takes 95 % of the time of the stream's operations, else ``mixed``."""

QUEUE_LIMIT = 1024
"""So many launches of a stream wait at most, as HTA has it: then the launching thread waits, too."""
_MOSTLY = 0.95
_SAMPLED = 1000
"""Number of launches of a stream, evenly chosen, whose ranges are examined."""
_PLACE = ("device", "stream", "context")
_CONTEXT = Column("context", header="Context", label="ctx", unit=Unit.NUMBER)
StreamPlace = tuple[Task, int, int, int]
"""A process, a CUDA ordinal in it, a stream, and its context: contexts number their streams from the same start."""


@dataclass
class _Launches:
    """The launches of a stream: times of the calls and of the operations' starts; calls and threads of some of them."""

    called: list[Times] = field(default_factory=list)
    start: list[Times] = field(default_factory=list)
    some: list[tuple[Times, Times]] = field(default_factory=list)
    count: int = 0

    def times(self) -> tuple[Times, Times]:
        """Take the times of the calls and of the operations' starts, ns; no operation starts before its call."""
        called, start = (np.concatenate(parts) for parts in (self.called, self.start))
        self.called, self.start = [], []
        return called, np.maximum(start, called, out=start)


@dataclass(frozen=True, eq=False)
class LaunchQueue:
    """The launches of a stream, job time in ns: when each was ``called``, and when operations began; both ascending."""

    called: Times
    start: Times

    @property
    def waiting(self) -> Times:
        """How many launches wait right after each call."""
        return np.arange(1, len(self.called) + 1) - np.searchsorted(self.start, self.called, side="right")

    def mean(self, edges: Times) -> NDArray[np.float64]:
        """Return how many launches wait in the mean over each span between neighbouring ``edges``."""

        def since(times: Times) -> NDArray[np.float64]:
            """The time from each of ``times`` that is before an edge to this edge, in sum."""
            before = np.searchsorted(times, edges, side="right")
            # In floats: ten million launches over some minutes are beyond 64 bits.
            sums = np.insert(np.cumsum(times - edges[0], dtype=np.float64), 0, 0.0)
            passed: NDArray[np.float64] = before.astype(np.float64) * (edges - edges[0]) - sums[before]
            return passed

        waited = np.diff(since(self.called) - since(self.start)).clip(0.0)
        found: NDArray[np.float64] = waited / np.maximum(np.diff(edges), 1)
        return found

    def most(self, edges: Times) -> Times:
        """Return how many launches wait at the most in each span between neighbouring ``edges``."""
        before, began = (np.searchsorted(times, edges, side="right") for times in (self.called, self.start))
        found: Times = (before - began)[:-1]
        inside = np.arange(*np.searchsorted(self.called, edges[[0, -1]]))
        np.maximum.at(found, np.searchsorted(edges, self.called[inside], side="right") - 1, self.waiting[inside])
        return found

    def time_at(self, limit: int) -> int:
        """Return how long ``limit`` launches or more wait, ns."""
        # While n have begun, the limit is reached once that many more were called.
        since, until = self.called[limit - 1 :].copy(), self.start[: max(len(self.start) - limit + 1, 0)]
        np.maximum(since[1:], until[:-1], out=since[1:])
        spent = np.subtract(until, since, out=since)
        return int(np.maximum(spent, 0, out=spent).sum())


def stream_table(job: OpenJob, selection: Selection) -> TableAnswer:
    """Tabulate the selected streams by rank, device and compute time; queues and ranges are those of all of the time.

    ``launched``: the share of operations whose API call was recorded, missing of a part of the time. ``queued``: the
    most launches that waited at a time, ``queued_mean``: the mean over the time from the first launch to the last
    start, ``at_limit``: how long `QUEUE_LIMIT` or more waited. ``purpose``: the innermost NVTX range name around every
    launch that was looked at, unless it is around those of all other streams, too.
    """
    chosen = selection.with_name(None)
    ranks = {item.task: item.rank for item in selected_ranks(job.ranks, selection)}
    spent = {place: times for place, times in _spent(job.session, chosen).items() if place[0] in ranks}
    launches = _launches(job.session, {place: count for place, (count, *_) in spent.items()})
    ranges = job.nvtx_ranges(Selection(tasks=selection.tasks))
    names = {place: _ranges_of_all(ranges, place[0].report, own) for place, own in launches.items()}
    ranges.forget()
    shared = frozenset.intersection(*map(frozenset, names.values())) if len(names) > 1 else frozenset()
    rows: list[Row] = []
    beside = []
    for place, (count, *times) in sorted(spent.items(), key=lambda one: (ranks[one[0][0]], one[0])):
        task, device, stream, context = place
        own = launches.get(place)
        purpose = next((name for name in names.get(place, ()) if name not in shared), None)
        queue: Sequence[object] = _queue(own) if own is not None else (None,) * 5
        launched = 100.0 * (own.count if own is not None else 0) / count if selection.window is None else None
        rest = (_kind(times), count, launched, *times, *queue, purpose)
        rows.append((ranks[task], device, stream, context, *rest))  # type: ignore[arg-type]
        if min(times[:2]) and times[1] < _MOSTLY * sum(times):
            beside.append(
                f"{format_value(Unit.DURATION, times[1])} on {numbered('stream', stream)} of rank {ranks[task]}"
            )
    notes = [f"communication on streams that also compute: {few(beside)}"] if beside else []
    return _with_contexts(TableAnswer("streams", COLUMNS, rows, len(rows), tuple(notes)), spent)


def _with_contexts(answer: TableAnswer, places: Iterable[StreamPlace]) -> TableAnswer:
    """Show the context of each stream, the fourth value of the rows, if contexts share stream numbers."""
    known = list(places)
    if len({place[:3] for place in known}) < len(known):
        return replace(answer, columns=(*answer.columns[:3], _CONTEXT, *answer.columns[3:]))
    return replace(answer, rows=[(*row[:3], *row[4:]) for row in answer.rows])


def _kind(times: Sequence[int]) -> str:
    words = ("compute", "communication", "copies")
    return next((word for word, one in zip(words, times, strict=True) if one >= _MOSTLY * sum(times)), "mixed")


def _spent(session: Session, selection: Selection) -> dict[StreamPlace, list[int]]:
    """The operations of each stream, and the durations of what computes, communicates and copies, ns."""
    found: dict[StreamPlace, list[int]] = {}
    others = communicating(session)
    for table in (tables.kernels, tables.graph_launches, tables.memory_ops):
        if not session.count(table):
            continue
        columns = table.c
        context = sa.func.coalesce(columns.context, UNKNOWN)
        keys = (columns.report, columns.process, columns.device, columns.stream, context)
        is_kernel = table is tables.kernels
        own_time = sa.case((communicates(others), duration(table)), else_=0) if is_kernel else sa.literal_column("0")
        sums = (sa.cast(sa.func.sum(value), sa.BigInteger) for value in (duration(table), own_time))
        query = sa.select(*keys, sa.func.count(), *sums).where(*where(table, selection), columns.end.is_not(None))
        for report, process, *place, count, time, communication in session.rows(query.group_by(*keys)):
            own = found.setdefault((Task(report, process), *place), [0, 0, 0, 0])
            own[0] += count
            own[3 if table is tables.memory_ops else 1] += time - communication
            own[2] += communication
    return found


def _launches(session: Session, counts: Mapping[StreamPlace, int]) -> dict[StreamPlace, _Launches]:
    calls = tables.api_calls.c.thread.label("thread")
    more = {
        one.name: (*(sa.func.coalesce(tables.of(one).c[key], UNKNOWN).label(key) for key in _PLACE), calls)
        for one in GPU_TABLES
    }
    found: dict[StreamPlace, _Launches] = {place: _Launches() for place in counts}
    for task, work in launched_work(session, {place[0].report for place in counts}, more):
        numbers = np.stack([work[key] for key in _PLACE], axis=1)
        for device, stream, context in np.unique(numbers, axis=0).tolist():
            if (own := found.get(place := (task, device, stream, context))) is None:
                continue
            rows = np.flatnonzero((numbers == place[1:]).all(axis=1))
            own.called.append(work["launch"][rows])
            own.start.append(work["start"][rows])
            every = max(counts[place] // _SAMPLED, 1)
            chosen = rows[-own.count % every :: every]
            own.some.append((work["launch"][chosen], work["thread"][chosen]))
            own.count += len(rows)
    return {place: own for place, own in found.items() if own.count}


def _queue(own: _Launches) -> tuple[int, float, int, float, float]:
    """The largest and the mean number of queued launches, the time at the limit, and the delay: median and p90, ns."""
    called, start = own.times()
    delay = start - called
    waited, (median, p90) = int(delay.sum()), np.percentile(delay, (50, 90), overwrite_input=True).tolist()
    del delay
    called.sort()
    start.sort()
    queue = LaunchQueue(called, start)
    span = int(max(start[-1], called[-1]) - called[0])
    mean = round(waited / span, 2) if span else 0.0
    return int(queue.waiting.max()), mean, queue.time_at(QUEUE_LIMIT), median, p90


TIME_COLUMNS = (RANK, DEVICE, STREAM, START, _QUEUED, _QUEUED_MEAN)


def queues(job: OpenJob, selection: Selection) -> Mapping[StreamPlace, LaunchQueue]:
    """Find the queue of each selected stream over all of the time, by rank, device and stream; kept with the job."""
    chosen = selection.with_name(None).with_window(None)

    def make() -> dict[StreamPlace, LaunchQueue]:
        ranks = {item.task: item.rank for item in selected_ranks(job.ranks, chosen)}
        counts = {place: count for place, (count, *_) in _spent(job.session, chosen).items() if place[0] in ranks}
        launches = _launches(job.session, counts)
        places = sorted(launches, key=lambda place: (ranks[place[0]], place))
        return {place: LaunchQueue(*(np.sort(times) for times in launches[place].times())) for place in places}

    return job.once(("queues", chosen), make)


def queues_over_time(job: OpenJob, selection: Selection, bins: int) -> TableAnswer:
    """Tabulate how many launches wait in each of ``bins`` equal spans of the selected time, stream by stream."""
    edges = edges_of(job.extent(selection), bins)
    ranks = {item.task: item.rank for item in job.ranks}
    rows: list[Row] = []
    of_places = queues(job, selection)
    for (task, *place), queue in of_places.items():
        found = (own.tolist() for own in (queue.most(np.array(edges)), queue.mean(np.array(edges)).round(2)))
        rows += [(ranks[task], *place, *one) for one in zip(edges[:-1], *found, strict=True)]
    return _with_contexts(TableAnswer("queues", TIME_COLUMNS, rows, len(rows)), of_places)


def _ranges_of_all(ranges: NvtxRanges, report: int, own: _Launches) -> list[str]:
    """The names of the ranges, numbers aside, that are around every launch that is looked at; the innermost first."""
    called, thread = (np.concatenate(parts) for parts in zip(*own.some, strict=True))
    lane_of = {lane.thread: number for number, lane in enumerate(ranges.lanes) if lane.report == report}
    lanes = np.array([lane_of.get(one, -1) for one in thread.tolist()], np.int64)
    innermost = ranges.innermost_at(lanes, called)
    kinds, counts = np.unique(innermost, return_counts=True)
    common: list[str] | None = None
    for index in kinds[np.argsort(-counts)].tolist():
        chain = list(_chain(ranges, index))
        common = chain if common is None else [name for name in common if name in chain]
    return common or []


def _chain(ranges: NvtxRanges, index: int) -> Iterator[str]:
    while index >= 0:
        name = ranges.names[ranges.value("name", index)]
        if not is_of_nccl(name):  # what these tell, the collectives tell, too
            yield template(name)
        index = ranges.value("parent", index)
