"""Host causes of the idle time of GPUs: all of it, in sum by cause or by NVTX range, or span by span.

See docs/numbers.md#gaps. The parts are those of the budget: start-up before the steady state, the tail after the last
operation, gaps in between. `before_launch` says in words what the thread that launched an operation did before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import DEVICE, RANK, START, Column, Record, Row, TableAnswer, Unit
from nsystui.base.selection import Selection, Task, Window
from nsystui.base.units import format_value
from nsystui.questions.algebra.intervals import EMPTY, Intervals, intersect
from nsystui.questions.host.causes import (
    ALLOCATING,
    COPYING,
    IN_MPI,
    IN_OS,
    LAUNCHING,
    NOTHING,
    OTHER_CALLS,
    RUNNING_CODE,
    SYNCHRONISING,
    WAITING,
    Attribution,
    Cause,
    IdleSpan,
    attribute,
    folded,
    over_ranks,
    shown_times,
)
from nsystui.questions.host.functions import SampleGroup, function_counts, function_words, samples_of_job, top_function
from nsystui.questions.host.host_work import CpuSpan, host_work
from nsystui.questions.host.naming import named_threads, workers_by_rank
from nsystui.questions.host.time_budget import LONG_GAP, device_budgets
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.conditions import given, job_end, job_start
from nsystui.questions.queries.data_notes import missing_note
from nsystui.questions.queries.tasks import GPU_TABLES
from nsystui.questions.queries.time_window import extents, report_at
from nsystui.questions.ranks.steps import step_times
from nsystui.store import tables

PARTS = STARTUP, GAP, TAIL = ("start-up", "gap", "tail")
BY = ("all", "rank", "range", "length", "pair")
_LENGTHS = (0, 1_000, 5_000, 10_000, 50_000, 100_000, 500_000, 1_000_000, 5_000_000, 10_000_000)
"""The shortest idle span in each row of the histogram, ns: those of NVIDIA's guide to TensorRT-LLM, and 10 ms."""
_WITH_RANGE = 100
"""Of so many of the longest spans the NVTX range is looked for."""


@dataclass(frozen=True, eq=False)
class IdleTime:
    """All idle time of the selected GPUs: spans with their parts, by cause. They add up to ``idle`` (ns) exactly."""

    attribution: Attribution
    parts: Sequence[str]
    idle: int


def idle_time(
    job: OpenJob,
    selection: Selection,
    step_name: str | None = None,
    with_ranges: bool = False,
    wanted: Sequence[str] = PARTS,
    least: int = 0,
) -> IdleTime:
    """Find the idle time of each selected GPU that worked at all, in the selection's window.

    Only of the ``wanted`` parts, and in spans of at least ``least`` ns.
    """
    chosen = selection.with_name(None)
    whole = extents(job.session, chosen.with_window(None))
    steady = {(one.device.task.task, one.device.device): one for one in device_budgets(job, chosen, step_name)}
    spans: list[IdleSpan] = []
    parts: list[str] = []
    total = 0
    for one in job.gpus(chosen):
        task, device = one.device.task.task, one.device.device
        worked, budget = one.worked(whole[task.report]), steady.get((task, device))
        if worked is None or budget is None:
            continue
        window = budget.window
        begin = min(max(budget.steady, window.start), window.end)
        last = min(max(worked.end, begin), window.end)
        idle = one.idle(window)
        edges = ((STARTUP, window.start, begin), (GAP, begin, last), (TAIL, last, window.end))
        for part, low, high in edges:
            if part not in wanted:
                continue
            here = idle.clip(low, high)
            is_long = here.ends - here.starts >= least
            here = Intervals(here.starts[is_long], here.ends[is_long])
            total += here.length
            for start, end in zip(here.starts.tolist(), here.ends.tolist(), strict=True):
                spans.append(IdleSpan(task, device, start, end))
                parts.append(part)
    return IdleTime(attribute(job, spans, with_ranges), parts, total)


_CAUSE = Column("cause", header="Cause", label="cause")
_WHAT = Column("what", header="What", label="call or function")
_THREAD = Column("thread", header="Other Thread", label="other thread", importance=1)
_CALLER = Column("caller", header="Caller", label="caller", importance=2)
_FILE = Column("file", header="Files", label="files", importance=2)
"""Only where it is recorded."""
CAUSE_COLUMNS = (_CAUSE, _WHAT, _THREAD, _CALLER, _FILE)
SUM_COLUMNS = (
    Column("time", header="Idle (ns)", label="idle", unit=Unit.DURATION),
    Column("percent", header="Idle (%)", label="of idle", unit=Unit.PERCENT, decimals=2, has_bar=True),
    *CAUSE_COLUMNS,
    Column("spans", header="Spans", label="spans", unit=Unit.COUNT, importance=3),
    Column("startup", header="Start-up (ns)", label="start-up", unit=Unit.DURATION, compared="time", importance=3),
    Column("gaps", header="Gaps (ns)", label="gaps", unit=Unit.DURATION, compared="time", importance=3),
    Column("tail", header="Tail (ns)", label="tail", unit=Unit.DURATION, compared="time", importance=3),
)
_RANGE = Column("range", header="NVTX Range", label="NVTX range")
_SHARE = Column("share", header="Cause (%)", label="for", unit=Unit.PERCENT, decimals=1, importance=1)
_BEFORE_SPANS = 2 + len(CAUSE_COLUMNS)
RANGE_COLUMNS = (_RANGE, *SUM_COLUMNS[:_BEFORE_SPANS], _SHARE, *SUM_COLUMNS[_BEFORE_SPANS:])
LENGTH_COLUMNS = (
    Column("from", header="From (ns)", label="from", unit=Unit.DURATION),
    Column("to", header="To (ns)", label="to", unit=Unit.DURATION),
    *(one.with_importance(0) if one.key == "spans" else one for one in RANGE_COLUMNS[1:]),
)
PAIR_COLUMNS = (
    Column("before", header="Operation Before", label="before"),
    Column("after", header="Operation After", label="after"),
    *LENGTH_COLUMNS[2:],
    Column("mean", header="Mean (ns)", label="mean", unit=Unit.DURATION, decimals=0),
    Column("per_step", header="Spans per Step", label="a step", unit=Unit.NUMBER, decimals=1),
)
LIST_COLUMNS = (
    RANK,
    DEVICE.with_importance(2),
    Column("part", header="Part", label="part", importance=1),
    START,
    Column("duration", header="Duration (ns)", label="idle", unit=Unit.DURATION),
    *CAUSE_COLUMNS,
    _SHARE,
    _RANGE.with_importance(1),
)


@dataclass(eq=False)
class _Sum:
    """The time of some causes in each part, ns, and the spans that they are of."""

    causes: Counter[Cause] = field(default_factory=Counter)
    parts: Counter[str] = field(default_factory=Counter)
    spans: set[int] = field(default_factory=set)

    def row(self, place: Row, idle: int, is_range: bool) -> Row:
        """The cells of the largest cause, with its share where ``place`` is a range that may have others."""
        time = self.causes.total()
        cause = max(self.causes, key=lambda one: (self.causes[one], one.words))
        share = (100.0 * self.causes[cause] / time,) if is_range else ()
        parts = (self.parts[part] for part in PARTS)
        sums = (time, 100.0 * time / idle)
        return (*place, *sums, *cause_cells(cause), *share, len(self.spans), *parts)


def gaps_table(job: OpenJob, selection: Selection, by: str = "all", step_name: str | None = None) -> TableAnswer:
    """Tabulate idle time by cause (of each rank), or by NVTX range with its largest cause, the longest first.

    By length there is a row for the idle spans from one length to another, to the next row, with their largest cause;
    the last has no end. By pair there is one for the spans between two operations (`pairs_around`), with their largest
    cause. The times add up to all idle time.
    """
    is_range, has_largest = by == "range", by in _OF_SPANS
    idle = idle_time(job, selection, step_name, is_range)
    ranks = {item.task: item.rank for item in job.ranks}
    sums: dict[tuple[Row, Cause | None], _Sum] = {}
    pairs = pairs_around(job, idle.attribution.spans) if by == "pair" else ()
    for place, cause, span, time in _times(idle, by, ranks, pairs):
        of_row = sums.setdefault((place, None if has_largest else cause), _Sum())
        of_row.causes[cause] += time
        of_row.parts[idle.parts[span]] += time
        of_row.spans.add(span)
    rows = [of_row.row(place, idle.idle, has_largest) for (place, _), of_row in sums.items()]
    if by == "pair":
        steps = _steps(job, selection, step_name, idle.attribution.spans)
        each = [(of_row.causes.total(), len(of_row.spans)) for of_row in sums.values()]
        rows = [
            (*row, time / spans, spans / steps if steps else None)
            for row, (time, spans) in zip(rows, each, strict=True)
        ]
    by_columns = {"rank": (RANK, *SUM_COLUMNS), "range": RANGE_COLUMNS, "length": LENGTH_COLUMNS, "pair": PAIR_COLUMNS}
    columns = by_columns.get(by, SUM_COLUMNS)
    keys = [column.key for column in columns]
    texts = [place for place, column in enumerate(columns) if column in (_RANGE, *PAIR_COLUMNS[:2], *CAUSE_COLUMNS)]
    rows.sort(key=lambda row: (row[0] if by == "length" else -int(row[keys.index("time")] or 0), str(row)))
    total = len(rows)
    if selection.name is not None:
        matches = selection.name.matches
        rows = [row for row in rows if matches(" ".join(str(row[number]) for number in texts if row[number]))]
    reads = any(cause.reads for of_row in sums.values() for cause in of_row.causes)
    notes = (*_notes(job, selection, is_range), *([missing_note(job.session, tables.file_accesses)] if reads else []))
    return _answer(job, columns, rows, total, [note for note in notes if note])


def _steps(job: OpenJob, selection: Selection, step_name: str | None, spans: Sequence[IdleSpan]) -> int:
    """How many steps of the selected time the GPUs with idle spans have, all together."""
    times = step_times(job.steps(step_name), selection.window)
    return sum(len(times.get(task, ())) for task, _ in {(span.task, span.device) for span in spans})


_OF_SPANS = ("range", "length", "pair")
"""What idle time is grouped by without its cause."""


def _place(by: str, rank: int | None, name: str | None, length: int, pair: Row = ()) -> Row:
    """The cells before the times."""
    place = bisect_right(_LENGTHS, length)
    to = _LENGTHS[place] if place < len(_LENGTHS) else None
    return {"rank": (rank,), "range": (name,), "length": (_LENGTHS[place - 1], to), "pair": pair}.get(by, ())


def pairs_around(job: OpenJob, spans: Sequence[IdleSpan]) -> list[Row]:
    """Name the operations of the GPU that ended where each span begins, and that began where it ends.

    Of several at once the first by name; ``None`` where there is none, at the edge of a window.
    """
    edges = [
        (number, span.task.report, span.task.process, span.device, span.start, span.end)
        for number, span in enumerate(spans)
    ]
    keys = ("number", "report", "process", "device", "start", "end")
    told = given({key: [edge[place] for edge in edges] for place, key in enumerate(keys)}).subquery("spans").c
    found: tuple[list[str | None], ...] = ([None] * len(spans), [None] * len(spans))
    names = {
        tables.kernels: tables.kernels.c.short_name,
        tables.memory_ops: tables.memory_ops.c.operation,
        tables.graph_launches: sa.literal("CUDA graph"),
    }
    for table, name in names.items():
        for side, meets in zip(found, (told.start == job_end(table), told.end == job_start(table)), strict=True):
            same = [table.c[key] == told[key] for key in ("report", "process", "device")]
            query = sa.select(told.number, sa.func.min(name)).where(meets, *same).group_by(told.number)
            for number, text in job.session.rows(query) if spans and job.session.count(table) else ():
                side[number] = min(text or "", side[number] or text or "")
    return list(zip(*found, strict=True))


def _times(
    found: IdleTime, by: str, ranks: Mapping[Task, int], pairs: Sequence[Row] = ()
) -> list[tuple[Row, Cause, int, int]]:
    """The time of each cause in each span (its number), as the rows of a place show it."""
    one = found.attribution if by == "rank" else over_ranks(found.attribution)
    rows = []
    whole: dict[Row, Counter[Cause]] = {}
    numbers = (part.tolist() for part in (one.span, one.cause, one.range, one.time))
    for span, number, name, time in zip(*numbers, strict=True):
        idle = one.spans[span]
        pair = pairs[span] if pairs else ()
        place = _place(by, ranks.get(idle.task), one.ranges[name], idle.end - idle.start, pair)
        cause = one.causes[number]
        whole.setdefault(place, Counter())[cause] += time
        rows.append((place, cause, span, time))
    shown = {place: folded(times) for place, times in whole.items()}
    return [(place, shown[place][cause], span, time) for place, cause, span, time in rows]


def parts_of_row(job: OpenJob, selection: Selection, values: Record) -> str:
    """Name the NVTX ranges of most of the time of a row of `gaps_table`, or the causes of a row by range or length."""
    found = job.once(("idle time by range", selection), lambda: idle_time(job, selection, with_ranges=True))
    ranks = {item.task: item.rank for item in job.ranks}
    one, wanted = found.attribution, {key: value for key, value in values.items() if key in _WORDS}
    keys = {"range": "range", "length": "from", "pair": "before", "rank": "rank"}
    by = next((by for by, key in keys.items() if key in values), "all")
    has_largest, rank, pair = by in _OF_SPANS, values.get("rank"), (values.get("before"), values.get("after"))
    length = int(values.get("from") or 0)
    own = _place(by, rank if isinstance(rank, int) else None, str(values.get("range")), length, pair)
    pairs = pairs_around(job, one.spans) if by == "pair" else ()
    times: Counter[str] = Counter()
    for (place, cause, _, time), number in zip(_times(found, by, ranks, pairs), one.range.tolist(), strict=True):
        if place == own and has_largest:
            times[cause.words or cause.kind] += time
        elif place == own and dict(zip(_WORDS, cause_cells(cause), strict=True)).items() >= wanted.items():
            times[one.ranges[number]] += time
    longest = sorted(times, key=lambda name: (-times[name], name))[:_TOLD]
    largest = [(name, 100.0 * times[name] / times.total()) for name in longest if times[name]]
    said = ", ".join(f"{name} {format_value(Unit.PERCENT, share)}" for name, share in largest)
    return f"{'causes' if has_largest else 'NVTX ranges'}: {said}" if said else ""


_WORDS = tuple(column.key for column in CAUSE_COLUMNS)
_TOLD = 3


def gaps_list(job: OpenJob, selection: Selection, least: int = LONG_GAP, step_name: str | None = None) -> TableAnswer:
    """List the idle spans of at least ``least`` ns with its largest cause, the longest first."""
    found = idle_time(job, selection, step_name)
    one = found.attribution
    numbers = [number for number, span in enumerate(one.spans) if span.end - span.start >= least]
    numbers.sort(key=lambda number: (one.spans[number].start - one.spans[number].end, one.spans[number].start))
    longest = [one.spans[number] for number in numbers[:_WITH_RANGE]]
    works = host_work(job, [CpuSpan(span.task, span.device, Window(span.start, span.end)) for span in longest])
    ranks = {item.task: item.rank for item in job.ranks}
    rows: list[Row] = []
    for place, number in enumerate(numbers):
        span, causes = one.spans[number], shown_times(one.of_span(number))
        cause = max(causes, key=lambda item: (causes[item], item.words))
        length = span.end - span.start
        where = (ranks.get(span.task), span.device, found.parts[number], span.start, length)
        range_name = works[place].range_name if place < len(works) else None
        rows.append((*where, *cause_cells(cause), 100.0 * causes[cause] / length, range_name))
    notes = _notes(job, selection)
    if len(numbers) > _WITH_RANGE:
        notes = (*notes, f"only the {_WITH_RANGE} longest spans have an NVTX range")
    return _answer(job, LIST_COLUMNS, rows, len(one.spans), notes)


def cause_cells(cause: Cause) -> tuple[str | None, ...]:
    """Return the cells of `CAUSE_COLUMNS`."""
    return tuple(one or None for one in (cause.kind, cause.what, cause.thread, cause.caller, cause.file))


def _answer(
    job: OpenJob, columns: Sequence[Column], rows: Sequence[Row], total: int, notes: Sequence[str]
) -> TableAnswer:
    """The table, with a column of files where they are recorded."""
    kept = [place for place, one in enumerate(columns) if one is not _FILE or job.session.count(tables.file_accesses)]
    shown = [tuple(row[place] for place in kept) for row in rows]
    return TableAnswer("gaps", tuple(columns[place] for place in kept), shown, total, tuple(notes))


def _notes(job: OpenJob, selection: Selection, with_ranges: bool = False) -> tuple[str, ...]:
    read = (tables.host_samples, tables.sched_events, tables.os_calls, *((tables.nvtx_ranges,) if with_ranges else ()))
    notes = [missing_note(job.session, table) for table in read]
    notes += [samples_in_gaps(job, selection), *job.busy(selection.with_name(None)).notes]
    return tuple(note for note in notes if note)


def samples_in_gaps(job: OpenJob, selection: Selection) -> str:
    """Say in a sentence which thread has most of the CPU samples in the long gaps of the GPUs of its rank."""
    samples = samples_of_job(job, selection)
    if not len(samples):
        return ""
    windows = extents(job.session, selection)
    gaps: dict[Task, Intervals] = {}
    for one in job.gpus(selection):
        task = one.device.task.task
        idle = one.gaps(windows[task.report]).whole()
        is_long = idle.ends - idle.starts >= LONG_GAP
        long = Intervals(idle.starts[is_long], idle.ends[is_long])
        gaps[task] = intersect(gaps[task], long) if task in gaps else long
    workers = workers_by_rank(job, gaps)
    counted = []
    for thread in named_threads(job, samples.threads):
        idle, own = gaps.get(workers.get(thread.task, thread.task), EMPTY), samples.threads[thread.thread]
        place = np.searchsorted(idle.starts, own.times, side="right") - 1
        inside = (place >= 0) & (own.times < idle.ends[np.maximum(place, 0)]) if len(idle) else own.times < 0
        counted.append((int(inside.sum()), thread, own.nodes[inside]))
    total = sum(count for count, _, _ in counted)
    if not total:
        return ""
    count, thread, nodes = max(counted, key=lambda one: (one[0], one[1].thread))
    report = thread.thread[0]
    own_nodes = {report: np.bincount(nodes, minlength=len(samples.stacks[report].tree))}
    group = SampleGroup((thread,), own_nodes)
    function = top_function(samples, group)
    where = ""
    if function is not None:
        share = format_value(Unit.PERCENT, 100.0 * function_counts(samples, group)[function][0] / count)
        where = f", {share} of them in {function_words(function)}"
    of_rank = "" if thread.rank is None or len(job.ranks) < 2 else f" of rank {thread.rank}"
    is_worker = thread.task in workers
    words = thread.words(is_worker) if is_worker else f"thread {thread.words()}"
    return (
        f"{count:,} of the {total:,} CPU samples in gaps of {LONG_GAP // 1_000_000} ms or more are from "
        f"{words}{of_rank}{where}"
    )


LEAST = 10_000
"""The shortest idle time before an operation that is looked into, ns: in less a thread does nothing but launch."""
_MOST = 3
_LEAST_SHARE = 0.05
_CALLS = (SYNCHRONISING, COPYING, ALLOCATING, LAUNCHING, OTHER_CALLS, IN_MPI, IN_OS)


def before_launch(job: OpenJob, task: Task, device: int, start: int) -> str:
    """Say why a GPU was idle before an operation that began at ``start`` (job time, ns); empty where it hardly was.

    ``the GPU was idle for 12.30 ms before: 61 % running direct_copy_kernel, 30 % in poll``
    """
    end = _end_before(job, task, device, start)
    if end is None or start - end < LEAST:
        return ""
    length = format_value(Unit.DURATION, start - end)
    return f"the GPU was idle for {length} before: {causes_in(job, task, device, end, start)}"


def causes_in(job: OpenJob, task: Task, device: int, start: int, end: int) -> str:
    """Name the largest causes of idle time of a GPU: ``61 % running direct_copy_kernel, 30 % in poll``."""
    times = shown_times(attribute(job, [IdleSpan(task, device, start, end)]).of_span(0))
    length = end - start
    ordered = sorted(times, key=lambda cause: (-times[cause], cause.words))
    shown = [cause for cause in ordered if times[cause] >= _LEAST_SHARE * length][:_MOST]
    return ", ".join(f"{100 * times[cause] / length:.0f} % {_words(cause)}" for cause in shown)


def _words(cause: Cause) -> str:
    if cause.kind == NOTHING:
        return "not recorded"
    if cause.kind == RUNNING_CODE:
        return f"running {cause.words}"
    if cause.kind == WAITING:
        return f"waiting for {cause.words}"
    return f"in {cause.words}" if cause.kind in _CALLS else cause.words


def _end_before(job: OpenJob, task: Task, device: int, start: int) -> int | None:
    """When the last of the operations was over that began before ``start``; ``None`` where there is none."""
    session = job.session.part([task.report])
    local = start - report_at(job.session, task.report).clock_offset
    ends = []
    for columns in (tables.of(table).c for table in GPU_TABLES if session.count(table)):
        is_own = (columns.report == task.report, columns.process == task.process, columns.device == device)
        end = session.scalar(sa.select(sa.func.max(columns.end)).where(*is_own, columns.start < local))
        ends += [] if end is None else [int(end)]
    return max(ends) + start - local if ends else None
