"""The streams of each GPU: operations, NVTX ranges around them, and how long launches queue.

An operation is queued from the start of the API call that launched it to its own start, like HTA's queue length of a
stream (docs/numbers.md#streams). All operations of a CUDA graph's launch in a stream are queued as one, until the first
of them starts.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import DEVICE, RANK, START, STREAM, UNKNOWN, Column, Row, TableAnswer, Unit
from nsystui.base.selection import Selection, Task
from nsystui.base.text import few
from nsystui.base.types import Floats, Ints
from nsystui.base.units import format_value, numbered
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.job.job import OpenJob
from nsystui.questions.nccl.names import is_of_nccl
from nsystui.questions.nvtx.paths import template
from nsystui.questions.nvtx.ranges import NvtxRanges
from nsystui.questions.queries.communication import is_communication_in
from nsystui.questions.queries.conditions import duration, where
from nsystui.questions.queries.tasks import GPU_TABLES, selected_ranks
from nsystui.questions.queries.time_window import edges_of
from nsystui.questions.steps.task_steps import launched_work
from nsystui.store import tables
from nsystui.store.session import Session

_QUEUED = Column("queued", header="Queued Max", label="queued", unit=Unit.COUNT)
_QUEUED_MEAN = Column("queued_mean", header="Queued Mean", label="mean queued", unit=Unit.NUMBER, decimals=1)
COLUMNS = (
    RANK, DEVICE.with_importance(2), STREAM, Column("kind", header="Kind", label="kind"),
    Column("count", header="Operations", label="ops", unit=Unit.COUNT, importance=2),
    Column("launched", header="Launch Known (%)", label="launched", unit=Unit.PERCENT, decimals=1, importance=4),
    Column("compute", header="Compute (ns)", label="compute", unit=Unit.DURATION),
    Column("communication", header="Communication (ns)", label="comm", unit=Unit.DURATION, importance=1),
    Column("copies", header="Copies (ns)", label="copies", unit=Unit.DURATION, importance=1), _QUEUED,
    _QUEUED_MEAN.with_importance(3),
    Column("at_limit", header="Time at Limit (ns)", label="at limit", unit=Unit.DURATION, importance=3),
    Column("delay", header="Med Launch Delay (ns)", label="delay", unit=Unit.DURATION, decimals=0, importance=1),
    Column("delay_p90", header="p90 Launch Delay (ns)", label="p90 delay", unit=Unit.DURATION, decimals=0,
        importance=3), Column("purpose", header="NVTX Range of All", label="NVTX range", importance=1),
)  # fmt: skip
"""``kind``: the kind with 95 % of the time of the stream's operations, else ``mixed``."""

QUEUE_LIMIT = 1024
"""The most launches that wait in a stream, according to HTA; then the launching thread waits, too."""
_MOSTLY = 0.95
_SAMPLED = 1000
"""The number of launches of a stream, evenly spaced, whose ranges are read."""
_KEYS = ("device", "stream", "context")
_CONTEXT = Column("context", header="Context", label="ctx", unit=Unit.NUMBER)
StreamPlace = tuple[Task, int, int, int]
"""Process, CUDA ordinal, stream and context; contexts number their streams from the same start."""


@dataclass
class _Launches:
    """A stream's launches: times of calls and of operations' starts; calls and threads of a sample."""

    called: list[Times] = field(default_factory=list)
    start: list[Times] = field(default_factory=list)
    sampled: list[tuple[Times, Times]] = field(default_factory=list)
    replayed: list[Ints] = field(default_factory=list)
    """Start, launch id, call and thread of operations of CUDA graphs, shapes ``(4, n)``; sampled last."""
    nodes: set[int] = field(default_factory=set)  # the nodes of CUDA graphs that ran
    count: int = 0
    operations: int = 0  # the number of operations that the launches started

    def add(self, called: Times, start: Times, thread: Times, step: int) -> None:
        """Add launches, and sample each ``step``-th of them."""
        self.called.append(called)
        self.start.append(start)
        sample = slice(-self.count % step, None, step)
        self.sampled.append((called[sample], thread[sample]))
        self.count += len(called)

    def times(self) -> tuple[Times, Times]:
        """Return and free the times of calls and of operations' starts, ns; no operation starts before its call."""
        called, start = (np.concatenate(parts) for parts in (self.called, self.start))
        self.called, self.start = [], []
        return called, np.maximum(start, called, out=start)


@dataclass(frozen=True, eq=False)
class LaunchQueue:
    """A stream's launches: times of calls and of operations' starts, job time, ns, ascending."""

    called: Times
    start: Times

    @property
    def waiting(self) -> Times:
        """The number of waiting launches right after each call."""
        return np.arange(1, len(self.called) + 1) - np.searchsorted(self.start, self.called, side="right")

    def mean(self, edges: Times) -> Floats:
        """Return the mean number of waiting launches in each span between neighbouring ``edges``."""

        def since(times: Times) -> Floats:
            """Return the sum, for each edge, of the time passed since each of ``times`` before it."""
            before = np.searchsorted(times, edges, side="right")
            # Floats, because ten million launches over some minutes exceed 64 bits.
            sums = np.insert(np.cumsum(times - edges[0], dtype=np.float64), 0, 0.0)
            passed: Floats = before.astype(np.float64) * (edges - edges[0]) - sums[before]
            return passed

        waited = np.diff(since(self.called) - since(self.start)).clip(0.0)
        means: Floats = waited / np.maximum(np.diff(edges), 1)
        return means

    def most(self, edges: Times) -> Times:
        """Return the largest number of waiting launches in each span between neighbouring ``edges``."""
        before, began = (np.searchsorted(times, edges, side="right") for times in (self.called, self.start))
        largest: Times = (before - began)[:-1]
        inside = np.arange(*np.searchsorted(self.called, edges[[0, -1]]))
        np.maximum.at(largest, np.searchsorted(edges, self.called[inside], side="right") - 1, self.waiting[inside])
        return largest


def stream_table(job: OpenJob, selection: Selection) -> TableAnswer:
    """Tabulate the selected streams by rank, device and compute time; queues and ranges ignore the window.

    ``launched``: the share of operations with a recorded API call, missing if a window is selected. ``queued``: the
    most waiting launches, ``queued_mean``: their mean from the first launch to the last start, ``at_limit``: how long
    `QUEUE_LIMIT` or more waited. ``purpose``: the innermost NVTX range name around all sampled launches, unless all
    other streams have it, too.
    """
    unfiltered = selection.with_name(None)
    ranks = {rank.task: rank.rank for rank in selected_ranks(job.ranks, selection)}
    operations = {key: times for key, times in stream_times(job.session, unfiltered).items() if key[0] in ranks}
    launches = _launches(job.session, {key: count for key, (count, *_) in operations.items()})
    ranges = job.nvtx_ranges(Selection(tasks=selection.tasks))
    names = {key: _ranges_of_all(ranges, key[0], queued) for key, queued in launches.items()}
    ranges.forget()
    shared = frozenset.intersection(*map(frozenset, names.values())) if len(names) > 1 else frozenset()
    rows: list[Row] = []
    shared_streams = []
    for key, (count, *times) in sorted(operations.items(), key=lambda pair: (ranks[pair[0][0]], pair[0])):
        task, device, stream, context = key
        queued = launches.get(key)
        purpose = next((name for name in names.get(key, ()) if name not in shared), None)
        queue: Sequence[object] = _queue(queued) if queued is not None else (None,) * 5
        known = queued.operations if queued is not None else 0
        launched = 100.0 * known / count if selection.window is None else None
        cells = (_kind(times), count, launched, *times, *queue, purpose)
        rows.append((ranks[task], device, stream, context, *cells))  # type: ignore[arg-type]
        if min(times[:2]) and times[1] < _MOSTLY * sum(times):
            shared_streams.append(
                f"{format_value(Unit.DURATION, times[1])} on {numbered('stream', stream)} of rank {ranks[task]}"
            )
    notes = [f"communication on streams that also compute: {few(shared_streams)}"] if shared_streams else []
    return _with_contexts(TableAnswer("streams", COLUMNS, rows, len(rows), tuple(notes)), operations)


def _with_contexts(answer: TableAnswer, places: Iterable[StreamPlace]) -> TableAnswer:
    """Show each stream's context, the fourth value of the rows, if contexts share stream numbers."""
    keys = list(places)
    if len({key[:3] for key in keys}) < len(keys):
        return replace(answer, columns=(*answer.columns[:3], _CONTEXT, *answer.columns[3:]))
    return replace(answer, rows=[(*row[:3], *row[4:]) for row in answer.rows])


def _kind(times: Sequence[int]) -> str:
    words = ("compute", "communication", "copies")
    return next((word for word, time in zip(words, times, strict=True) if time >= _MOSTLY * sum(times)), "mixed")


def stream_times(session: Session, selection: Selection) -> dict[StreamPlace, list[int]]:
    """Count the operations of each stream, and sum their compute, communication and copy times, ns."""
    sums_by_stream: dict[StreamPlace, list[int]] = {}
    for table in (tables.kernels, tables.graph_launches, tables.memory_ops):
        if not session.count(table):
            continue
        columns = table.c
        context = sa.func.coalesce(columns.context, UNKNOWN)
        keys = (columns.report, columns.process, columns.device, columns.stream, context)
        comm_time = sa.case((is_communication_in(session, table), duration(table)), else_=0)
        sums = (sa.cast(sa.func.sum(value), sa.BigInteger) for value in (duration(table), comm_time))
        query = sa.select(*keys, sa.func.count(), *sums).where(*where(table, selection), columns.end.is_not(None))
        for report, process, *key, count, time, communication in session.rows(query.group_by(*keys)):
            stream_sums = sums_by_stream.setdefault((Task(report, process), *key), [0, 0, 0, 0])
            stream_sums[0] += count
            stream_sums[3 if table is tables.memory_ops else 1] += time - communication
            stream_sums[2] += communication
    return sums_by_stream


def _launches(session: Session, counts: Mapping[StreamPlace, int]) -> dict[StreamPlace, _Launches]:
    calls = tables.api_calls.c.thread.label("thread")
    extra_columns = {}
    for table in GPU_TABLES:
        columns = tables.of(table).c
        number = columns.get("graph_node_id", sa.cast(sa.null(), sa.BigInteger))
        graph = sa.case((number.is_not(None), columns.correlation_id), else_=UNKNOWN).label("graph")
        node = sa.func.coalesce(number, UNKNOWN).label("node")
        keys = (sa.func.coalesce(columns[key], UNKNOWN).label(key) for key in _KEYS)
        extra_columns[table.name] = (*keys, calls, graph, node)
    launches_by_stream: dict[StreamPlace, _Launches] = {key: _Launches() for key in counts}
    for task, work in launched_work(session, {key[0].report for key in counts}, extra_columns):
        numbers = np.stack([work[key] for key in _KEYS], axis=1)
        for device, stream, context in np.unique(numbers, axis=0).tolist():
            if (stream_launches := launches_by_stream.get(key := (task, device, stream, context))) is None:
                continue
            is_of_stream, is_node = (numbers == key[1:]).all(axis=1), work["graph"] != UNKNOWN
            launch, start, thread, graph = (work[name] for name in ("launch", "start", "thread", "graph"))
            rows, nodes = (np.flatnonzero(is_of_stream & part) for part in (~is_node, is_node))
            stream_launches.add(launch[rows], start[rows], thread[rows], max(counts[key] // _SAMPLED, 1))
            replayed = np.stack([column[nodes] for column in (start, graph, launch, thread)])
            stream_launches.replayed.append(_first_operations(replayed))
            stream_launches.nodes.update(np.unique(work["node"][nodes]).tolist())
            stream_launches.operations += len(rows) + len(nodes)
    for stream_launches in launches_by_stream.values():
        if stream_launches.operations > stream_launches.count:
            start, _, called, thread = _first_operations(np.concatenate(stream_launches.replayed, axis=1))
            stream_launches.add(called, start, thread, max(len(start) // _SAMPLED, 1))
    return {key: stream_launches for key, stream_launches in launches_by_stream.items() if stream_launches.operations}


def _first_operations(replayed: Ints) -> Ints:
    """Return each launch's first operation: see `_Launches.replayed`."""
    replayed = replayed[:, np.lexsort(replayed[:2])]
    return replayed[:, np.unique(replayed[1], return_index=True)[1]]


def _queue(launches: _Launches) -> tuple[int, float, int, float, float]:
    """Return the queue's maximum and mean, the time at the limit, and the delay's median and 90th percentile, ns."""
    called, start = launches.times()
    delay = start - called
    waited, (median, p90) = int(delay.sum()), np.percentile(delay, (50, 90), overwrite_input=True).tolist()
    del delay
    called.sort()
    start.sort()
    queue = LaunchQueue(called, start)
    span = int(max(start[-1], called[-1]) - called[0])
    mean = round(waited / span, 2) if span else 0.0
    # While n operations have started, the limit is reached after n + limit calls.
    since, until = queue.called[QUEUE_LIMIT - 1 :].copy(), queue.start[: max(len(queue.start) - QUEUE_LIMIT + 1, 0)]
    np.maximum(since[1:], until[:-1], out=since[1:])
    spent = np.subtract(until, since, out=since)
    return int(queue.waiting.max()), mean, int(np.maximum(spent, 0, out=spent).sum()), median, p90


TIME_COLUMNS = (RANK, DEVICE, STREAM, START, _QUEUED, _QUEUED_MEAN)


def queues(job: OpenJob, selection: Selection) -> Mapping[StreamPlace, LaunchQueue]:
    """Return each selected stream's queue over all time, by rank, device and stream; cached in the job."""
    wide = selection.with_name(None).with_window(None)

    def make() -> dict[StreamPlace, LaunchQueue]:
        ranks = {rank.task: rank.rank for rank in selected_ranks(job.ranks, wide)}
        counts = {key: count for key, (count, *_) in stream_times(job.session, wide).items() if key[0] in ranks}
        launches = _launches(job.session, counts)
        keys = sorted(launches, key=lambda key: (ranks[key[0]], key))
        return {key: LaunchQueue(*(np.sort(times) for times in launches[key].times())) for key in keys}

    return job.once(("queues", wide), make)


def queues_over_time(job: OpenJob, selection: Selection, bins: int) -> TableAnswer:
    """Tabulate how many launches wait in each of ``bins`` equal spans of the selection, by stream."""
    edges = edges_of(job.extent(selection), bins)
    ranks = {rank.task: rank.rank for rank in job.ranks}
    rows: list[Row] = []
    queue_by_stream = queues(job, selection)
    for (task, *key), queue in queue_by_stream.items():
        values = (numbers.tolist() for numbers in (queue.most(np.array(edges)), queue.mean(np.array(edges)).round(2)))
        rows += [(ranks[task], *key, *cells) for cells in zip(edges[:-1], *values, strict=True)]
    return _with_contexts(TableAnswer("queues", TIME_COLUMNS, rows, len(rows)), queue_by_stream)


def _ranges_of_all(ranges: NvtxRanges, task: Task, launches: _Launches) -> list[str]:
    """Return the names, without numbers, of the ranges around every sampled launch or capture, innermost first."""
    nodes = np.array(sorted(launches.nodes), np.int64)
    report, process = (np.full(len(nodes), number) for number in (task.report, task.process))
    captured = ranges.around_captures(report, process, nodes)
    captured = captured[captured >= 0]
    called, thread = map(np.concatenate, zip(*launches.sampled[: -1 if len(captured) else None], strict=True))
    lanes = ranges.lanes_of(np.full(len(thread), task.report), thread)
    kinds, counts = np.unique(np.append(ranges.innermost_at(lanes, called), captured), return_counts=True)
    common: list[str] | None = None
    for index in kinds[np.argsort(-counts)].tolist():
        chain = list(_chain(ranges, index))
        common = chain if common is None else [name for name in common if name in chain]
    return common or []


def _chain(ranges: NvtxRanges, index: int) -> Iterator[str]:
    while index >= 0:
        name = ranges.names[ranges.value("name", index)]
        if not is_of_nccl(name):  # the collectives show these, too
            yield template(name)
        index = ranges.value("parent", index)
