"""Idle time of GPUs and its causes on the host (docs/numbers.md#gaps).

Its parts are start-up before the steady state, gaps between operations, gaps inside CUDA graphs, and the tail after the
last operation.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.answer import DEVICE, RANK, START, Column, Record, Row, TableAnswer, Unit
from nsystui.base.resources import give_back
from nsystui.base.selection import Selection, Task, Window
from nsystui.base.types import Array, Expression, Ints
from nsystui.base.units import format_value
from nsystui.questions.algebra.groups import distinct
from nsystui.questions.algebra.intervals import EMPTY, Intervals, Times, subtract
from nsystui.questions.capture.launch_account import lost_work_notes
from nsystui.questions.gpu.graph_gaps import unseen_host_functions
from nsystui.questions.host import causes
from nsystui.questions.host.attribution import attribute
from nsystui.questions.host.causes import CAUSE_COLUMNS, FILE, Cause, folded, shown_times
from nsystui.questions.host.host_work import host_work
from nsystui.questions.host.idle_spans import (
    GAP,
    IN_GRAPH,
    PARTS,
    STARTUP,
    TAIL,
    Attribution,
    IdleSpan,
    IdleSpans,
    over_ranks,
)
from nsystui.questions.host.naming import workers_by_rank
from nsystui.questions.host.time_budget import LONG_GAP, device_budgets, with_graphs
from nsystui.questions.job.job import OpenJob
from nsystui.questions.nvtx.chains import narrow
from nsystui.questions.queries.conditions import given, job_end, job_start, where
from nsystui.questions.queries.data_notes import missing_notes
from nsystui.questions.queries.tasks import GPU_TABLES, ROLE
from nsystui.questions.queries.time_window import report_at
from nsystui.questions.ranks.steps import step_times
from nsystui.store import tables
from nsystui.store.remember import Arrays, as_arrays, json_array, json_of, remember, version_of
from nsystui.store.session import Session

_LENGTHS = (0, 1_000, 5_000, 10_000, 50_000, 100_000, 500_000, 1_000_000, 5_000_000, 10_000_000)
"""Lower bounds of the rows by length, ns: NVIDIA's guide to TensorRT-LLM, and 10 ms."""
_MAX_WITH_RANGE = 100
"""NVTX ranges are found for this many of the longest spans."""


@dataclass(frozen=True, eq=False)
class _IdleTime:
    """All idle time of the selected GPUs by cause; ``idle`` is the exact sum, ns.

    ``parts``: the index in `PARTS` of each span, shape (spans,).
    """

    attribution: Attribution
    parts: Ints
    idle: int


def idle_time(
    job: OpenJob, selection: Selection, step_name: str | None = None, with_ranges: bool = False,
    parts: Sequence[str] = PARTS, min_length: int = 0,
) -> _IdleTime:  # fmt: skip
    """Find some ``parts`` of each working GPU's idle time in the window, in spans of ``min_length`` ns or more."""
    spans, part_indices = _spans(job, selection.with_name(None), step_name, parts, min_length)
    give_back()
    if selection == Selection(tasks=selection.tasks, name=selection.name) and parts == PARTS and not min_length:
        attribution = attribute_once(job, spans, with_ranges)
    else:  # too many windows are possible to cache the causes of each
        attribution = attribute(job, spans, with_ranges, selection=selection)
    return _IdleTime(attribution, part_indices, int(attribution.time.sum()))


_STORED_COLUMNS = ("launcher", "span", "cause", "range", "time")


def attribute_once(job: OpenJob, spans: IdleSpans, with_ranges: bool) -> Attribution:
    """Find the causes like `attribute`, computed once for the same spans.

    They are saved with the results of the first report that has idle time.
    """
    if not len(spans):
        return attribute(job, spans, with_ranges)
    session = job.session
    workers = workers_by_rank(job, {task for task, _ in spans.gpus})
    # Names of NVTX ranges are folded over all reports, including reports without idle time.
    reports = [session.results(report).reports for report in session.reports]
    digest = hashlib.sha256(repr((with_ranges, spans.gpus, sorted(workers.items()), reports)).encode())
    for values in (narrow(spans.gpu), spans.starts, spans.ends):
        digest.update(np.ascontiguousarray(values).data)
    question, version = f"causes-{digest.hexdigest()[:16]}", version_of()
    results = session.results(report_at(session, min(task.report for task, _ in spans.gpus)))

    def compute() -> Arrays:
        result = attribute(job, spans, with_ranges)
        texts = [list(map(astuple, result.causes)), result.ranges, result.launchers]
        return {**{key: getattr(result, key) for key in _STORED_COLUMNS}, "words": json_array(texts)}

    arrays = remember(results, question, compute, version, as_arrays)
    causes, ranges, launchers = json_of(arrays["words"])
    known = [Cause(*cause) for cause in causes]
    threads = [thread and (thread[0], thread[1]) for thread in launchers]
    columns = {key: arrays[key] for key in _STORED_COLUMNS}
    return Attribution(spans=spans, launchers=threads, causes=known, ranges=ranges, **columns)


def _spans(
    job: OpenJob, selection: Selection, step_name: str | None, part_names: Sequence[str], min_length: int
) -> tuple[IdleSpans, Ints]:
    budgets = {item.device.key: item for item in device_budgets(job, selection, step_name)}
    gpus: list[tuple[Task, int]] = []
    spans: list[Intervals] = []
    runs: list[tuple[int, int, int]] = []
    for gpu in job.gpus(selection):
        task, device = gpu.device.task.task, gpu.device.device
        if (budget := budgets.get((task, device))) is None:
            continue
        window, steady_start, last = budget.window, budget.working.start, budget.working.end
        edges = {STARTUP: (window.start, steady_start), GAP: (steady_start, last), TAIL: (last, window.end)}
        idle, previous = subtract(gpu.idle(window), budget.in_graphs), len(spans)
        for index, part in enumerate(PARTS):
            inside = budget.in_graphs if part == IN_GRAPH else idle.clip(*edges[part])
            if min_length:
                inside = inside.chosen(inside.lengths >= min_length)
            if part in part_names and len(inside):
                spans.append(inside)
                runs.append((len(gpus), index, len(inside)))
        if len(spans) > previous:
            gpus.append((task, device))
    gpu_indices, parts, counts = np.array(runs, np.int64).reshape(-1, 3).T
    starts = np.concatenate([EMPTY.starts, *(item.starts for item in spans)])
    ends = np.concatenate([EMPTY.ends, *(item.ends for item in spans)])
    return IdleSpans(gpus, np.repeat(narrow(gpu_indices), counts), starts, ends), np.repeat(narrow(parts), counts)


SUM_COLUMNS = (
    Column("time", header="Idle (ns)", label="idle", unit=Unit.DURATION),
    Column("percent", header="Idle (%)", label="of idle", unit=Unit.PERCENT, decimals=2, has_bar=True),
    *CAUSE_COLUMNS,
    Column("spans", header="Spans", label="spans", unit=Unit.COUNT, importance=3),
    Column("startup", header="Start-up (ns)", label="start-up", unit=Unit.DURATION, compared="time", importance=3),
    Column("gaps", header="Gaps (ns)", label="gaps", unit=Unit.DURATION, compared="time", importance=3),
    Column("in_graphs", header="In Graphs (ns)", label="in graphs", unit=Unit.DURATION, compared="time", importance=3),
    Column("tail", header="Tail (ns)", label="tail", unit=Unit.DURATION, compared="time", importance=3),
)
_RANGE = Column("range", header="NVTX Range", label="NVTX range")
_SHARE = Column("share", header="Cause (%)", label="for", unit=Unit.PERCENT, decimals=1, importance=1)
_BEFORE_SPANS = 2 + len(CAUSE_COLUMNS)
RANGE_COLUMNS = (_RANGE, *SUM_COLUMNS[:_BEFORE_SPANS], _SHARE, *SUM_COLUMNS[_BEFORE_SPANS:])
LENGTH_COLUMNS = (
    Column("from", header="From (ns)", label="from", unit=Unit.DURATION),
    Column("to", header="To (ns)", label="to", unit=Unit.DURATION),
    *(column.with_importance(0) if column.key == "spans" else column for column in RANGE_COLUMNS[1:]),
)
PAIR_COLUMNS = (
    Column("before", header="Operation Before", label="before"),
    Column("after", header="Operation After", label="after"),
    *LENGTH_COLUMNS[2:],
    Column("mean", header="Mean (ns)", label="mean", unit=Unit.DURATION, decimals=0),
    Column("per_step", header="Spans per Step", label="n/step", unit=Unit.NUMBER, decimals=1),
)
_COLUMNS = {
    **{column.key: (column, *SUM_COLUMNS) for column in (RANK, ROLE)}, "range": RANGE_COLUMNS, "length": LENGTH_COLUMNS,
    "pair": PAIR_COLUMNS,
}  # fmt: skip
LIST_COLUMNS = (
    RANK, DEVICE.with_importance(2), Column("part", header="Part", label="part", importance=1), START,
    Column("duration", header="Duration (ns)", label="idle", unit=Unit.DURATION), *CAUSE_COLUMNS, _SHARE,
    _RANGE.with_importance(1),
)  # fmt: skip


def gaps_table(job: OpenJob, selection: Selection, by: str = "all", step_name: str | None = None) -> TableAnswer:
    """Tabulate idle time, longest first; the times add up to all idle time.

    By "all", "rank" or "role", each cause has a row. By "range", "length" or "pair" (`pairs_around`), each group has a
    row with its largest cause. The last length has no upper bound.
    """
    is_range, merges_causes = by == "range", by in _MERGED_CAUSES
    notes = _notes(job, selection, is_range)
    idle = idle_time(job, selection, step_name, is_range)
    ranks = {item.task: item.role if by == "role" else item.rank for item in job.ranks}
    pairs = pairs_around(job, idle.attribution.spans) if by == "pair" else ([], np.zeros(0, np.int64))
    steps_of = step_times(job.steps(step_name), selection.window) if by == "pair" else {}
    steps = sum(len(steps_of.get(task, ())) for task, _ in idle.attribution.spans.gpus)
    shown, cause_indices = _shown(idle, by, ranks, pairs)
    row_indices = {key: index for index, key in enumerate(dict.fromkeys(_row_key(key, merges_causes) for key in shown))}
    row_of_cause = np.array([row_indices[_row_key(key, merges_causes)] for key in shown], np.int64)
    times, span_counts = _sums(idle, cause_indices, row_of_cause, len(row_indices))
    rows: list[Row] = []
    for key, index in row_indices.items():
        members = np.flatnonzero(row_of_cause == index)
        cause_times = times[members].sum(axis=1).tolist()
        timed = zip(cause_times, (shown[index][1] for index in members), strict=True)
        largest, cause = max(timed, key=lambda pair: (pair[0], pair[1].words))
        time = sum(cause_times)
        share = (100.0 * time / idle.idle, *cause.cells, *((100.0 * largest / time,) if merges_causes else ()))
        spans = int(span_counts[index])
        means = (time / spans, spans / steps if steps else None) if by == "pair" else ()
        rows.append((*key[0], time, *share, spans, *times[members].sum(axis=0).tolist(), *means))
    columns = _COLUMNS.get(by, SUM_COLUMNS)
    keys = [column.key for column in columns]
    searched = [index for index, column in enumerate(columns) if column in (_RANGE, *PAIR_COLUMNS[:2], *CAUSE_COLUMNS)]
    rows.sort(key=lambda row: (row[0] if by == "length" else -int(row[keys.index("time")] or 0), str(row)))
    total_rows = len(rows)
    if selection.name is not None:
        matches = selection.name.matches
        rows = [row for row in rows if matches(" ".join(str(row[index]) for index in searched if row[index]))]
    if any(cause.reads for _, cause in shown):
        notes += missing_notes(job.session, tables.file_accesses)
    return _answer(job, columns, rows, total_rows, notes)


def _sums(idle: _IdleTime, cause_indices: Array, row_of_cause: Ints, row_count: int) -> tuple[Ints, Ints]:
    """Return the time of each shown cause by part, ns, shape (causes, parts), and the number of each row's spans."""
    attribution, span_count = idle.attribution, len(idle.attribution.spans)
    times = np.zeros((len(row_of_cause), len(PARTS)), np.int64)
    counts = np.zeros(row_count, np.int64)
    for part in attribution.portions():
        np.add.at(times, (cause_indices[part], idle.parts[attribution.span[part]]), attribution.time[part])
        row_spans = distinct(row_of_cause[cause_indices[part]] * span_count + attribution.span[part])
        counts += np.bincount(row_spans // span_count, minlength=row_count)
    return times, counts


_BY_TASK = ("rank", "role")
_ByTask = Mapping[Task, int | str | None]
_MERGED_CAUSES = ("range", "length", "pair")
"""Groupings whose rows show only their largest cause."""


def _group_cells(by: str, index: int, attribution: Attribution, ranks: _ByTask, pairs: Sequence[Row]) -> Row:
    if by in _BY_TASK:
        return (ranks.get(attribution.spans.gpus[index][0]),)
    if by == "range":
        return (attribution.ranges[index],)
    if by == "pair":
        return pairs[index]
    return (_LENGTHS[index], (*_LENGTHS[1:], None)[index]) if by == "length" else ()


_Shown = tuple[Row, Cause]
"""A group's cells, and a cause as shown there."""


def _row_key(key: _Shown, merges_causes: bool) -> tuple[Row, Cause | None]:
    return key[0], None if merges_causes else key[1]


_Pairs = tuple[Sequence[Row], Array]
_PAIR_BYTES = 4000
"""Memory per span for finding the operations around it."""


def pairs_around(job: OpenJob, spans: IdleSpans) -> _Pairs:
    """Name the GPU's operations before and after the idle time of each span.

    Returns the distinct pairs, and the index of each span's pair. Touching spans are one idle time. If several
    operations match, the first by name counts; ``None`` is the edge of a window.
    """
    begins, ends = spans.starts.copy(), spans.ends.copy()
    touching = np.flatnonzero((spans.gpu[:-1] == spans.gpu[1:]) & (ends[:-1] == begins[1:]))
    begins[touching + 1], ends[touching] = spans.starts[touching], spans.ends[touching + 1]
    kernels, memory, graphs, session = tables.kernels, tables.memory_ops, tables.graph_launches, job.session
    name_columns = {kernels: kernels.c.short_name, memory: memory.c.operation, graphs: sa.literal("CUDA graph")}
    users = {gpu.device.key: gpu.devices for gpu in job.gpus(Selection())}
    names = {
        text or "" for table, name in name_columns.items() if session.count(table)
        for (text,) in session.rows(sa.select(name).select_from(table).distinct())
    }  # fmt: skip
    texts = [*sorted(names), None]
    coded_names = given({"text": texts[:-1], "code": range(len(names))}).subquery("names")
    numbers: dict[int, int] = {}
    indices = np.empty(len(spans), np.int32)
    at_once = session.limits.rows_at_once(_PAIR_BYTES)
    for rows in session.slices(len(spans), at_once, "operations around idle time", "gaps"):
        part = spans.at(rows)
        codes = np.full((2, len(part)), len(names))
        hull = Window(int(begins[rows].min()) - 1, int(ends[rows].max()) + 1)
        near = Selection(hull, frozenset(user.task.task for gpu in part.gpus for user in users[gpu]))
        for operations in _operations(session, near, name_columns, coded_names):
            for number, gpu in enumerate(part.gpus):
                on_gpu = np.zeros(len(operations["code"]), bool)
                for user in users[gpu]:
                    values = zip(_GPU, (user.task.task.report, user.task.task.process, user.device), strict=True)
                    on_gpu |= np.logical_and.reduce([operations[key] == value for key, value in values])
                idle = np.flatnonzero(part.gpu == number)
                for side, key, moments in ((0, "end", begins[rows]), (1, "start", ends[rows])):
                    matches = _first_at(moments[idle], operations[key][on_gpu], operations["code"][on_gpu], len(names))
                    codes[side, idle] = np.minimum(codes[side, idle], matches)
        pairs, inverse = np.unique(codes[0] * len(texts) + codes[1], return_inverse=True)
        indices[rows] = np.array([numbers.setdefault(pair, len(numbers)) for pair in pairs.tolist()], np.int32)[inverse]
    return [(texts[pair // len(texts)], texts[pair % len(texts)]) for pair in numbers], indices


_GPU = ("report", "process", "device")


def _operations(
    session: Session, near: Selection, names: Mapping[sa.Table, Expression], coded_names: sa.Subquery
) -> Iterator[Mapping[str, Array]]:
    """Yield GPU, start, end (job time, ns) and code of the name of the operations of each table."""
    for table, name in ((table, name) for table, name in names.items() if session.count(table)):
        times = job_start(table).label("start"), job_end(table).label("end")
        is_whole = [table.c[key].is_not(None) for key in ("device", "start", "end")]
        is_named = sa.func.coalesce(name, "") == coded_names.c.text
        query = sa.select(*(table.c[key] for key in _GPU), *times, coded_names.c.code)
        yield session.arrays(query.join_from(table, coded_names, is_named).where(*is_whole, *where(table, near)))


def _first_at(moments: Times, times: Times, codes: Ints, no_code: int) -> Ints:
    """Return the lowest code with a time equal to each moment, or ``no_code``; shape (moments,)."""
    order = np.lexsort((codes, times))
    index = np.searchsorted(times[order], moments)
    is_match = np.append(times[order], np.iinfo(np.int64).min)[index] == moments
    return np.where(is_match, np.append(codes[order], no_code)[index], no_code)


def _shown(idle: _IdleTime, by: str, ranks: _ByTask, pairs: _Pairs) -> tuple[list[_Shown], NDArray[np.int32]]:
    table = over_ranks(idle.attribution, ranks if by in _BY_TASK else {})
    code_of_key: dict[int, int] = {}
    indices = np.empty(len(table.time), np.int32)
    for part in table.portions():
        group: Any = np.int64(0)
        if by == "length":
            group = np.searchsorted(_LENGTHS, (table.spans.ends - table.spans.starts)[table.span[part]], "right") - 1
        elif by == "pair":
            group = pairs[1][table.span[part]]
        elif by in (*_BY_TASK, "range"):
            group = table.range[part] if by == "range" else table.spans.gpu[table.span[part]]
        keys, inverse = np.unique(group * np.int64(len(table.causes)) + table.cause[part], return_inverse=True)
        coded = np.array([code_of_key.setdefault(key, len(code_of_key)) for key in keys.tolist()], np.int32)
        indices[part] = coded[inverse.reshape(-1)]
    times = np.zeros(len(code_of_key), np.int64)
    for part in table.portions():
        np.add.at(times, indices[part], table.time[part])
    times_by_group: dict[Row, Counter[Cause]] = {}
    unfolded: list[_Shown] = []
    for key, time in zip(code_of_key, times.tolist(), strict=True):
        index, cause = divmod(key, len(table.causes))
        cells = _group_cells(by, index, table, ranks, pairs[0])
        unfolded.append((cells, table.causes[cause]))
        times_by_group.setdefault(cells, Counter())[table.causes[cause]] += time
    folded_causes = {cells: folded(times) for cells, times in times_by_group.items()}
    shown = [(cells, folded_causes[cells][cause]) for cells, cause in unfolded]
    index_of = {key: index for index, key in enumerate(dict.fromkeys(shown))}
    new_indices = np.array([index_of[key] for key in shown], np.int32)
    for part in table.portions():
        indices[part] = new_indices[indices[part]]
    return list(index_of), indices


def parts_of_row(job: OpenJob, selection: Selection, values: Record) -> str:
    """Name the longest NVTX ranges of a row of `gaps_table`, or the causes of a row that shows only the largest."""
    idle = job.once(("idle time by range", selection), lambda: idle_time(job, selection, with_ranges=True))
    ranks = {item.task: item.role if "role" in values else item.rank for item in job.ranks}
    attribution, wanted_cells = idle.attribution, {key: value for key, value in values.items() if key in _CAUSE_KEYS}
    keys = {"length": ("from", "to"), "pair": ("before", "after")} | {key: (key,) for key in ("range", *_BY_TASK)}
    by = next((by for by, group_keys in keys.items() if group_keys[0] in values), "all")
    row_cells, merges_causes = tuple(values.get(key) for key in keys.get(by, ())), by in _MERGED_CAUSES
    pairs = pairs_around(job, attribution.spans) if by == "pair" else ([], np.zeros(0, np.int64))
    times: Counter[str] = Counter()
    shown_causes, indices = _shown(idle, by, ranks, pairs)
    for index, (cells, cause) in enumerate(shown_causes):
        if cells != row_cells or not (
            merges_causes or dict(zip(_CAUSE_KEYS, cause.cells, strict=True)).items() >= wanted_cells.items()
        ):
            continue
        rows = indices == index
        if merges_causes:
            times[cause.words or cause.kind] += int(attribution.time[rows].sum())
        else:
            range_indices, inverse = np.unique(attribution.range[rows], return_inverse=True)
            sums = np.zeros(len(range_indices), np.int64)
            np.add.at(sums, inverse.reshape(-1), attribution.time[rows])
            for range_index, time in zip(range_indices.tolist(), sums.tolist(), strict=True):
                times[attribution.ranges[range_index]] += time
    longest = sorted(times, key=lambda name: (-times[name], name))[:_MAX_NAMES]
    largest = [(name, 100.0 * times[name] / times.total()) for name in longest if times[name]]
    text = ", ".join(f"{name} {format_value(Unit.PERCENT, share)}" for name, share in largest)
    return f"{'causes' if merges_causes else 'NVTX ranges'}: {text}" if text else ""


_CAUSE_KEYS = tuple(column.key for column in CAUSE_COLUMNS)
_MAX_NAMES = 3


def gaps_list(job: OpenJob, selection: Selection, least: int = LONG_GAP, step_name: str | None = None) -> TableAnswer:
    """List the idle spans of at least ``least`` ns with their largest cause, longest first."""
    notes = _notes(job, selection)
    idle = idle_time(job, selection, step_name)
    attribution = idle.attribution
    lengths, starts = attribution.spans.ends - attribution.spans.starts, attribution.spans.starts
    order = np.lexsort((starts, -lengths))
    indices = order[lengths[order] >= least].tolist()
    longest = [attribution.spans[index] for index in indices[:_MAX_WITH_RANGE]]
    works = host_work(job, longest)
    ranks = {rank.task: rank.rank for rank in job.ranks}
    rows: list[Row] = []
    for position, index in enumerate(indices):
        span, times = attribution.spans[index], shown_times(attribution.of_span(index))
        cause = max(times, key=lambda cause: (times[cause], cause.words))
        location = (ranks.get(span.task), span.device, PARTS[idle.parts[index]], span.start, span.length)
        range_name = works[position].range_name if position < len(works) else None
        rows.append((*location, *cause.cells, 100.0 * times[cause] / span.length, range_name))
    if len(indices) > _MAX_WITH_RANGE:
        notes = (*notes, f"only the {_MAX_WITH_RANGE} longest spans have an NVTX range")
    return _answer(job, LIST_COLUMNS, rows, len(attribution.spans), notes)


def _answer(job: OpenJob, columns: Sequence[Column], rows: list[Row], total: int, notes: Sequence[str]) -> TableAnswer:
    used = [index for index, item in enumerate(columns) if item is not FILE or job.session.count(tables.file_accesses)]
    shown = [tuple(row[index] for index in used) for row in rows]
    return with_graphs(TableAnswer("gaps", tuple(columns[index] for index in used), shown, total, tuple(notes)))


def _notes(job: OpenJob, selection: Selection, with_ranges: bool = False) -> tuple[str, ...]:
    read = (tables.host_samples, tables.sched_events, tables.os_calls, *((tables.nvtx_ranges,) if with_ranges else ()))
    selection = selection.with_name(None)
    notes = (*lost_work_notes(job.session, selection), unseen_host_functions(job.session, selection)[1])
    return (*missing_notes(job.session, *read), *job.busy(selection).notes, *filter(None, notes))


LEAST = 10_000
"""The shortest idle time to examine before an operation, ns; shorter times contain only the launch."""
_MAX_CAUSES = 3
_MIN_SHARE = 0.05
_CALLS = (
    causes.SYNCHRONISING, causes.COPYING, causes.ALLOCATING, causes.LAUNCHING, causes.OTHER_CALLS, causes.IN_OVERHEAD,
    causes.IN_MPI, causes.IN_OS,
)  # fmt: skip


def before_launch(job: OpenJob, task: Task, device: int, start: int) -> str:
    """Describe why a GPU was idle before an operation began at ``start`` (job time, ns); empty if that time is short.

    ``the GPU was idle for 12.30 ms before: 61 % running direct_copy_kernel, 30 % in poll``
    """
    end = _end_before(job, task, device, start)
    if end is None or start - end < LEAST:
        return ""
    length = format_value(Unit.DURATION, start - end)
    return f"the GPU was idle for {length} before: {causes_in(job, task, device, end, start)}"


def causes_in(job: OpenJob, task: Task, device: int, start: int, end: int) -> str:
    """Name the largest causes of a GPU's idle time: ``61 % running direct_copy_kernel, 30 % in poll``."""
    times = shown_times(attribute(job, [IdleSpan(task, device, start, end)]).of_span(0))
    length = end - start
    ordered = sorted(times, key=lambda cause: (-times[cause], cause.words))
    shown = [cause for cause in ordered if times[cause] >= _MIN_SHARE * length][:_MAX_CAUSES]
    return ", ".join(f"{100 * times[cause] / length:.0f} % {_words(cause)}" for cause in shown)


def _words(cause: Cause) -> str:
    if cause.kind == causes.NOTHING:
        return "not recorded"
    if cause.kind == causes.RUNNING_CODE:
        return f"running {cause.words}"
    if cause.kind == causes.WAITING:
        return f"waiting for {cause.words}"
    return f"in {cause.words}" if cause.kind in _CALLS else cause.words


def _end_before(job: OpenJob, task: Task, device: int, start: int) -> int | None:
    """Return the latest end of the GPU's operations that began before ``start``; job time, ns."""
    session = job.session.part([task.report])
    local = start - report_at(job.session, task.report).clock_offset
    ends = []
    for columns in (tables.of(table).c for table in GPU_TABLES if session.count(table)):
        is_on_gpu = (columns.report == task.report, columns.process == task.process, columns.device == device)
        end = session.scalar(sa.select(sa.func.max(columns.end)).where(*is_on_gpu, columns.start < local))
        ends += [] if end is None else [int(end)]
    return max(ends) + start - local if ends else None
