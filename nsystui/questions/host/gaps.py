"""Host causes of the idle time of GPUs: all of it, in sum by cause or by NVTX range, or span by span.

See docs/numbers.md#gaps. The parts are those of the budget: start-up before the steady state, the tail after the last
operation, gaps in between. `before_launch` says in words what the thread that launched an operation did before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.answer import DEVICE, RANK, START, Column, Record, Row, TableAnswer, Unit
from nsystui.base.resources import give_back
from nsystui.base.selection import Selection, Task, Window
from nsystui.base.units import format_value
from nsystui.questions.algebra.groups import distinct
from nsystui.questions.algebra.intervals import EMPTY, Intervals, Times, intersect
from nsystui.questions.host.attribution import Attribution, attribute, over_ranks
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
    Cause,
    folded,
    shown_times,
)
from nsystui.questions.host.functions import SampleGroup, function_counts, function_words, samples_of_job, top_function
from nsystui.questions.host.host_work import CpuSpan, host_work
from nsystui.questions.host.idle_spans import IdleSpan, IdleSpans
from nsystui.questions.host.kept_causes import attribute_once
from nsystui.questions.host.naming import named_threads, workers_by_rank
from nsystui.questions.host.stacks import Numbers
from nsystui.questions.host.time_budget import LONG_GAP, device_budgets
from nsystui.questions.job.job import OpenJob
from nsystui.questions.nvtx.chains import narrow
from nsystui.questions.queries.conditions import given, job_end, job_start, where
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
    """All idle time of the selected GPUs: spans by cause, and the part of each, by its place in `PARTS`.

    They add up to ``idle`` (ns) exactly.
    """

    attribution: Attribution
    parts: Numbers
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
    spans, parts = _spans(job, selection.with_name(None), step_name, wanted, least)
    give_back()
    if selection == Selection(tasks=selection.tasks, name=selection.name) and wanted == PARTS and not least:
        found = attribute_once(job, spans, with_ranges)
    else:  # there are too many windows to keep the causes of each
        found = attribute(job, spans, with_ranges)
    return IdleTime(found, parts, int(found.time.sum()))


def _spans(
    job: OpenJob, chosen: Selection, step_name: str | None, wanted: Sequence[str], least: int
) -> tuple[IdleSpans, Numbers]:
    """The spans of `idle_time`, and the part of each."""
    budgets = {(one.device.task.task, one.device.device): one for one in device_budgets(job, chosen, step_name)}
    gpus: list[tuple[Task, int]] = []
    found: list[Intervals] = []
    runs: list[tuple[int, int, int]] = []
    for one in job.gpus(chosen):
        task, device = one.device.task.task, one.device.device
        if (budget := budgets.get((task, device))) is None:
            continue
        window, begin, last = budget.window, budget.working.start, budget.working.end
        edges = ((STARTUP, window.start, begin), (GAP, begin, last), (TAIL, last, window.end))
        idle, before = one.idle(window), len(found)
        for number, (part, *edge) in enumerate(edges):
            here = idle.clip(*edge)
            if least:
                here = here.chosen(here.lengths >= least)
            if part in wanted and len(here):
                found.append(here)
                runs.append((len(gpus), number, len(here)))
        if len(found) > before:
            gpus.append((task, device))
    numbers, parts, counts = np.array(runs, np.int64).reshape(-1, 3).T
    starts = np.concatenate([EMPTY.starts, *(one.starts for one in found)])
    ends = np.concatenate([EMPTY.ends, *(one.ends for one in found)])
    return IdleSpans(gpus, np.repeat(narrow(numbers), counts), starts, ends), np.repeat(narrow(parts), counts)


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


def gaps_table(job: OpenJob, selection: Selection, by: str = "all", step_name: str | None = None) -> TableAnswer:
    """Tabulate idle time by cause (of each rank), or by NVTX range with its largest cause, the longest first.

    By length there is a row for the idle spans from one length to another, to the next row, with their largest cause;
    the last has no end. By pair there is one for the spans between two operations (`pairs_around`), with their largest
    cause. The times add up to all idle time.
    """
    is_range, has_largest = by == "range", by in _OF_SPANS
    idle = idle_time(job, selection, step_name, is_range)
    ranks = {item.task: item.rank for item in job.ranks}
    pairs = pairs_around(job, idle.attribution.spans) if by == "pair" else ([], np.zeros(0, np.int64))
    steps = _steps(job, selection, step_name, idle.attribution.spans) if by == "pair" else 0
    shown, numbers, one = *_shown(idle, by, ranks, pairs), idle.attribution
    groups = {key: number for number, key in enumerate(dict.fromkeys(_group(key, has_largest) for key in shown))}
    group = np.array([groups[_group(key, has_largest)] for key in shown], np.int64)
    times = np.zeros((len(shown), len(PARTS)), np.int64)
    spans = np.zeros(len(groups), np.int64)
    for part in one.portions():
        np.add.at(times, (numbers[part], idle.parts[one.span[part]]), one.time[part])
        of_group = distinct(group[numbers[part]] * len(one.spans) + one.span[part])
        spans += np.bincount(of_group // len(one.spans), minlength=len(groups))
    rows: list[Row] = []
    for key, number in groups.items():
        own = np.flatnonzero(group == number)
        of_cause = times[own].sum(axis=1).tolist()
        causes = zip(of_cause, (shown[place][1] for place in own), strict=True)
        largest, cause = max(causes, key=lambda one: (one[0], one[1].words))
        time = sum(of_cause)
        share = (100.0 * time / idle.idle, *cause_cells(cause), *((100.0 * largest / time,) if has_largest else ()))
        count = int(spans[number])
        each = (time / count, count / steps if steps else None) if by == "pair" else ()
        rows.append((*key[0], time, *share, count, *times[own].sum(axis=0).tolist(), *each))
    by_columns = {"rank": (RANK, *SUM_COLUMNS), "range": RANGE_COLUMNS, "length": LENGTH_COLUMNS, "pair": PAIR_COLUMNS}
    columns = by_columns.get(by, SUM_COLUMNS)
    keys = [column.key for column in columns]
    texts = [place for place, column in enumerate(columns) if column in (_RANGE, *PAIR_COLUMNS[:2], *CAUSE_COLUMNS)]
    rows.sort(key=lambda row: (row[0] if by == "length" else -int(row[keys.index("time")] or 0), str(row)))
    total = len(rows)
    if selection.name is not None:
        matches = selection.name.matches
        rows = [row for row in rows if matches(" ".join(str(row[number]) for number in texts if row[number]))]
    reads = any(cause.reads for _, cause in shown)
    notes = (*_notes(job, selection, is_range), *([missing_note(job.session, tables.file_accesses)] if reads else []))
    return _answer(job, columns, rows, total, [note for note in notes if note])


def _steps(job: OpenJob, selection: Selection, step_name: str | None, spans: IdleSpans) -> int:
    """How many steps of the selected time the GPUs with idle spans have, all together."""
    times = step_times(job.steps(step_name), selection.window)
    return sum(len(times.get(task, ())) for task, _ in spans.gpus)


_OF_SPANS = ("range", "length", "pair")
"""What idle time is grouped by without its cause."""


def _place(by: str, number: int, one: Attribution, ranks: Mapping[Task, int], pairs: Sequence[Row]) -> Row:
    """The cells before the times, by the number of a GPU, a range, a length or a pair."""
    if by == "rank":
        return (ranks.get(one.spans.gpus[number][0]),)
    if by == "range":
        return (one.ranges[number],)
    if by == "pair":
        return pairs[number]
    return (_LENGTHS[number], (*_LENGTHS[1:], None)[number]) if by == "length" else ()


_Shown = tuple[Row, Cause]
"""A cause as the rows of a place show it."""


def _group(key: _Shown, has_largest: bool) -> tuple[Row, Cause | None]:
    """What has one row."""
    return key[0], None if has_largest else key[1]


Pairs = tuple[Sequence[Row], NDArray[Any]]
_SPAN = 4000
"""Bytes that the lookup of the operations around a span takes."""


def pairs_around(job: OpenJob, spans: IdleSpans) -> Pairs:
    """Name the operations of the GPU before and after the idle time that each span belongs to.

    Returns the different pairs, and for each span the index of its pair. Spans that touch are parts of one idle time.
    If several operations meet at one moment, the first by name counts; ``None`` means the edge of a window.
    """
    begins, ends = spans.starts.copy(), spans.ends.copy()
    touching = np.flatnonzero((spans.gpu[:-1] == spans.gpu[1:]) & (ends[:-1] == begins[1:]))
    begins[touching + 1], ends[touching] = spans.starts[touching], spans.ends[touching + 1]
    names = {
        tables.kernels: tables.kernels.c.short_name,
        tables.memory_ops: tables.memory_ops.c.operation,
        tables.graph_launches: sa.literal("CUDA graph"),
    }
    session, keys = job.session, ("report", "process", "device")
    every = {
        text or "" for table, name in names.items() if session.count(table)
        for (text,) in session.rows(sa.select(name).select_from(table).distinct())
    }  # fmt: skip
    texts = [*sorted(every), None]
    known = given({"text": texts[:-1], "code": range(len(every))}).subquery("names")
    used: dict[int, int] = {}
    places = np.empty(len(spans), np.int32)
    for rows in session.slices(len(spans), _SPAN, "operations around idle time", "gaps"):
        part = spans.at(rows)
        codes = np.full((2, len(part)), len(every))
        hull = Window(int(begins[rows].min()) - 1, int(ends[rows].max()) + 1)
        near = Selection(hull, frozenset(task for task, _ in part.gpus))
        for table, name in names.items():
            columns = (*(table.c[key] for key in keys), job_start(table).label("start"), job_end(table).label("end"))
            is_whole = [table.c[key].is_not(None) for key in ("device", "start", "end")]
            is_named = sa.func.coalesce(name, "") == known.c.text
            query = sa.select(*columns, known.c.code).join_from(table, known, is_named)
            query = query.where(*is_whole, *where(table, near))
            found = session.arrays(query) if session.count(table) else {}
            for number, (task, device) in enumerate(part.gpus) if found else ():
                gpu = zip(keys, (task.report, task.process, device), strict=True)
                own = np.logical_and.reduce([found[key] == value for key, value in gpu])
                idle = np.flatnonzero(part.gpu == number)
                for side, key, moments in ((0, "end", begins[rows]), (1, "start", ends[rows])):
                    met = _first_at(moments[idle], found[key][own], found["code"][own], len(every))
                    codes[side, idle] = np.minimum(codes[side, idle], met)
        pairs, place = np.unique(codes[0] * len(texts) + codes[1], return_inverse=True)
        places[rows] = np.array([used.setdefault(pair, len(used)) for pair in pairs.tolist()], np.int32)[place]
    return [(texts[pair // len(texts)], texts[pair % len(texts)]) for pair in used], places


def _first_at(moments: Times, times: Times, codes: Numbers, none: int) -> Numbers:
    """The least of the codes whose time is the moment, for each moment; ``none`` where there is no such time."""
    order = np.lexsort((codes, times))
    place = np.searchsorted(times[order], moments)
    is_met = np.append(times[order], np.iinfo(np.int64).min)[place] == moments
    return np.where(is_met, np.append(codes[order], none)[place], none)


def _shown(found: IdleTime, by: str, ranks: Mapping[Task, int], pairs: Pairs) -> tuple[list[_Shown], NDArray[np.int32]]:
    """What the times of an attribution are shown as, and the number of that for each of them."""
    one = found.attribution if by == "rank" else over_ranks(found.attribution)
    known: dict[int, int] = {}
    numbers = np.empty(len(one.time), np.int32)
    for part in one.portions():
        place: Any = np.int64(0)
        if by == "length":
            place = np.searchsorted(_LENGTHS, (one.spans.ends - one.spans.starts)[one.span[part]], "right") - 1
        elif by == "pair":
            place = pairs[1][one.span[part]]
        elif by in ("rank", "range"):
            place = one.spans.gpu[one.span[part]] if by == "rank" else one.range[part]
        keys, inverse = np.unique(place * np.int64(len(one.causes)) + one.cause[part], return_inverse=True)
        coded = np.array([known.setdefault(key, len(known)) for key in keys.tolist()], np.int32)
        numbers[part] = coded[inverse.reshape(-1)]
    times = np.zeros(len(known), np.int64)
    for part in one.portions():
        np.add.at(times, numbers[part], one.time[part])
    whole: dict[Row, Counter[Cause]] = {}
    causes_shown: list[_Shown] = []
    for key, time in zip(known, times.tolist(), strict=True):
        number, cause = divmod(key, len(one.causes))
        cells = _place(by, number, one, ranks, pairs[0])
        causes_shown.append((cells, one.causes[cause]))
        whole.setdefault(cells, Counter())[one.causes[cause]] += time
    of_place = {cells: folded(causes) for cells, causes in whole.items()}
    shown = [(cells, of_place[cells][cause]) for cells, cause in causes_shown]
    order = {key: number for number, key in enumerate(dict.fromkeys(shown))}
    places = np.array([order[key] for key in shown], np.int32)
    for part in one.portions():
        numbers[part] = places[numbers[part]]
    return list(order), numbers


def parts_of_row(job: OpenJob, selection: Selection, values: Record) -> str:
    """Name the NVTX ranges of most of the time of a row of `gaps_table`, or the causes of a row by range or length."""
    found = job.once(("idle time by range", selection), lambda: idle_time(job, selection, with_ranges=True))
    ranks = {item.task: item.rank for item in job.ranks}
    one, wanted = found.attribution, {key: value for key, value in values.items() if key in _WORDS}
    keys = {"range": ("range",), "length": ("from", "to"), "pair": ("before", "after"), "rank": ("rank",)}
    by = next((by for by, own_keys in keys.items() if own_keys[0] in values), "all")
    own, has_largest = tuple(values.get(key) for key in keys.get(by, ())), by in _OF_SPANS
    pairs = pairs_around(job, one.spans) if by == "pair" else ([], np.zeros(0, np.int64))
    times: Counter[str] = Counter()
    shown, numbers = _shown(found, by, ranks, pairs)
    for number, (place, cause) in enumerate(shown):
        if place != own or not (
            has_largest or dict(zip(_WORDS, cause_cells(cause), strict=True)).items() >= wanted.items()
        ):
            continue
        rows = numbers == number
        if has_largest:
            times[cause.words or cause.kind] += int(one.time[rows].sum())
        else:
            known, of_range = np.unique(one.range[rows], return_inverse=True)
            spent = np.zeros(len(known), np.int64)
            np.add.at(spent, of_range.reshape(-1), one.time[rows])
            for name, time in zip(known.tolist(), spent.tolist(), strict=True):
                times[one.ranges[name]] += time
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
    lengths, starts = one.spans.ends - one.spans.starts, one.spans.starts
    order = np.lexsort((starts, -lengths))
    numbers = order[lengths[order] >= least].tolist()
    longest = [one.spans[number] for number in numbers[:_WITH_RANGE]]
    works = host_work(job, [CpuSpan(span.task, span.device, Window(span.start, span.end)) for span in longest])
    ranks = {item.task: item.rank for item in job.ranks}
    rows: list[Row] = []
    for place, number in enumerate(numbers):
        span, causes = one.spans[number], shown_times(one.of_span(number))
        cause = max(causes, key=lambda item: (causes[item], item.words))
        length = span.end - span.start
        where = (ranks.get(span.task), span.device, PARTS[found.parts[number]], span.start, length)
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
        idle = one.gaps(windows[task.report])
        long = idle.chosen(idle.lengths >= LONG_GAP)
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
