"""Steps from NVTX ranges that repeat and launch most of a task's GPU work (docs/ranks.md#steps).

Numbers in names are ignored: ``step 0``, ``step 1`` … have one name. A name on a thread is a candidate if at least
three of its ranges follow one another. Layers repeat, too: see `_Candidate.is_sure`.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.selection import NameFilter, Task
from nsystui.base.text import whole_number
from nsystui.base.types import Flags, Query
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.algebra.projection import Projection
from nsystui.questions.nvtx.loading import FOLDED_LABEL
from nsystui.questions.queries.conditions import job_end, job_start, matches, of_reports
from nsystui.questions.queries.statistics import places_by
from nsystui.questions.steps.anchors import KEYS, MARKS_OPTIMIZER, MARKS_STEP, OperationNames
from nsystui.questions.steps.phases import PHASE_WORD
from nsystui.questions.steps.task_steps import (
    FEWEST,
    LEAST_COVERAGE,
    TaskSteps,
    launched_work,
    to_arrays,
    without_holes,
)
from nsystui.store import tables
from nsystui.store.remember import Arrays
from nsystui.store.report import Report
from nsystui.store.session import Session

_MOST, _NEARLY_ALL = 0.8, 0.9
"""The least share of the work between the first and the last range; the least share of ranges with a mark."""
_MAX_OVERLAP = 0.05
"""The largest overlap of ranges that follow one another, in medians of their length."""
_MAX_NAMES, _MAX_RANGES = 8, 1 << 16
"""The number of names to examine of each process, with and without a word of `_WORDS`; ranges of a name without."""
_PHASE = "<phase>"
"""Replaces the phase in names: ``forward_extend`` and ``forward_decode`` are steps of one kind."""
_WORDS = tuple(
    re.compile(word, re.IGNORECASE)
    for word in (_PHASE, "ProfilerStep", "step", "iter", "batch", "epoch", "execute", "model_runner", "frame", "token")
)
_PART = re.compile(
    r"(layer|block|chunk|expert|head|norm|mixer|thunk|fusion|micro[-_ ]?batch|(?<![a-z])(req|request|h|mb)|"
    r"(request|req|op|unique|program)[-_ ]?id|(?<!step )(?<!iteration )(?<!batch )(?<![a-z_])id)(e?s)?[ ._:=#(\[-]*\*",
    re.IGNORECASE,
)
"""Words that number parts of a step, or requests."""
_AMOUNT = re.compile(
    r"(?<![a-z])(bs|\w*(size|len|length|tokens)|seq\w*|rank|[tpdec]p|gpu|device|stream|worker)[ ._:=#(\[-]*[0-9*]+"
    r"|(?<![a-z])(?!\w*(step|iter|batch|epoch|frame|idx|index|id)=)[a-z]\w+=[0-9.*]+"
    r"|[0-9*]+[ _-]?((ctx|gen|new|running|prompt) )?(tokens?|req\w*|seq\w*|samples?|images?|[kmgt]i?b|bytes)"
    r"(?!\w|[ ._:=#(\[-]*[0-9*])",
    re.IGNORECASE,
)
"""Numbers of names that count no steps, even if they rise: ``bs=8``, ``loss=0.7``, ``8 tokens``."""
_REQUESTS = re.compile(r"_(context|generation|new|cached)_[0-9]+(\([0-9]+\))?")
"""Requests and tokens in the names of vLLM's steps: ``execute_context_1(512)_generation_8(8)``."""
_NUMBER = re.compile("[0-9]+")
_MAX_NUMBER = 2**32 - 1
"""Larger numbers are ids."""
_FIELDS = ":#"
"""Precedes the fields of XLA's names, whose numbers are ids: ``XlaModule:#hlo_module=jit_step_1,program_id=7#``."""
_OPERATION = "hlo_op="
"""The field of an operation, a part of a program."""


@dataclass(eq=False)
class _Candidate:
    """Consecutive ranges of one thread and name; ``total`` is the GPU time of ``task``, ns.

    ``is_foreign``: the ranges are of a process without GPU work. Ranges that are not ``is_chosen`` by the user only end
    the previous step. ``within``: the GPU time launched between the first and the last range, ns. ``marks``: the
    highest of `OperationNames.marks` launched from the start of each range to the next.
    """

    task: Task
    name: str
    numbers: Times
    starts: Times
    ends: Times
    labels: Sequence[str]
    is_chosen: Flags
    is_foreign: bool = False
    gpu: Projection = field(init=False)
    marks: NDArray[np.int8] = field(init=False)
    total: int = 0
    within: int = 0

    def __post_init__(self) -> None:
        count = len(self.starts)
        first, last = np.full(count, np.iinfo(np.int64).max), np.full(count, np.iinfo(np.int64).min)
        self.gpu = Projection(np.zeros(count, np.int64), first, last, np.zeros(count, np.int64))
        self.marks = np.zeros(count, np.int8)

    @property
    def is_ascending(self) -> bool:
        return bool((np.diff(self.numbers[self.is_chosen]) > 0).all())

    @cached_property
    def word(self) -> int:
        """The index of the first of `_WORDS` in the name."""
        name = _AMOUNT.sub("", self.name)
        return next((index for index, word in enumerate(_WORDS) if word.search(name)), len(_WORDS))

    @cached_property
    def is_named(self) -> bool:
        """Whether the names contain a word for steps, and a number that differs."""
        names = {_AMOUNT.sub("", label) for label in set(self.labels)}
        return self.word < len(_WORDS) and len(names) >= FEWEST and _FIELDS not in self.name

    @property
    def share(self) -> float | None:
        """The share of the task's GPU time launched in the ranges; ``None`` without GPU time."""
        return int(self.gpu.op_time[self.is_chosen].sum()) / self.total if self.total else None

    @property
    def is_sure(self) -> bool:
        """Whether the ranges are steps, and not parts of steps such as layers or micro-batches.

        Ranges without a word and a number launch nearly all work between the first and the last. If optimizers run,
        then in nearly every range. Otherwise the name contains a word, or ascending numbers and work that marks steps.
        """
        if self.share is None or self.share < LEAST_COVERAGE or self.is_named:
            return self.is_named and (self.share is None or self.share >= LEAST_COVERAGE)
        if int(self.gpu.op_time.sum()) < _MOST * self.within:
            return False
        trains = self.marks == MARKS_OPTIMIZER
        if trains.any():
            return bool(trains.mean() >= _NEARLY_ALL)
        marks_steps = (self.marks >= MARKS_STEP).mean() >= _NEARLY_ALL
        return self.word < len(_WORDS) or (self.is_ascending and bool(marks_steps))

    @property
    def rank(self) -> tuple[Any, ...]:
        """The key that sorts a task's candidates, best first: the outermost range has the largest share or time."""
        time = int((self.ends - self.starts)[self.is_chosen].sum())
        return not self.is_sure, self.is_foreign, not self.is_named, self.word, -(self.share or 0.0), -time

    def add(self, launch: Times, start: Times, end: Times, marks: NDArray[np.int8] | None) -> None:
        self.total += int((end - start).sum())
        index = np.searchsorted(self.starts, launch, side="right") - 1
        is_after = index >= 0
        self.within += int((end - start)[is_after & (launch < self.ends[-1])].sum())
        if marks is not None:
            np.maximum.at(self.marks, index[is_after], marks[is_after])
        is_inside = is_after & (launch < self.ends[index])
        index, start, end = index[is_inside], start[is_inside], end[is_inside]
        np.add.at(self.gpu.op_count, index, 1)
        np.add.at(self.gpu.op_time, index, end - start)
        np.minimum.at(self.gpu.start, index, start)
        np.maximum.at(self.gpu.end, index, end)

    def steps(self) -> TaskSteps:
        chosen, gpu = self.is_chosen, without_holes(self.gpu)
        all_ranges = TaskSteps(self.task, self.name, self.numbers, self.starts, self.ends, gpu)
        on_gpu = np.zeros((2, len(all_ranges)), np.int64)
        on_gpu[:, gpu.op_count > 0] = all_ranges.spans()
        chosen_gpu = Projection(*(column[chosen] for column in (gpu.op_count, gpu.start, gpu.end, gpu.op_time)))
        numbers = self.numbers[chosen] if self.is_ascending else np.arange(int(chosen.sum()))
        starts, ends, outside = self.starts[chosen], self.ends[chosen], self.total - int(chosen_gpu.op_time.sum())
        steps = TaskSteps(self.task, self.name, numbers, starts, ends, chosen_gpu, outside)
        labels = [label for label, is_step in zip(self.labels, chosen.tolist(), strict=True) if is_step]
        return replace(steps, labels=labels, on_gpu=None if chosen.all() else (on_gpu[0, chosen], on_gpu[1, chosen]))


def stored_steps(tasks: Collection[Task], session: Session, reports: list[Report]) -> dict[int, Arrays]:
    """Find the steps of each report without a user's name, to store with its columns."""
    steps = [steps for group in _candidates(session, tasks, None, reports) for steps in _chosen(group)]
    return {
        report.index: to_arrays([item for item in steps if item.task.report == report.index], report.clock_offset)
        for report in reports
    }


def named_steps(
    tasks: Collection[Task], name_filter: NameFilter, session: Session, reports: list[Report]
) -> dict[Task, TaskSteps]:
    """Return the steps of tasks that a user named, in reports whose launches and GPU work can be joined at once."""
    groups = _candidates(session, tasks, name_filter, reports)
    best = (min(group, key=lambda item: (item.is_foreign, item.rank[-2:])) for group in groups)
    return {candidate.task: candidate.steps() for candidate in best}


def _chosen(group: Iterable[_Candidate]) -> Iterator[TaskSteps]:
    """Yield the steps of a task's sure candidates, best first; without any, doubtful steps of the likeliest."""
    ordered = sorted(group, key=lambda item: item.rank)
    sure: dict[str, _Candidate] = {}
    for candidate in ordered:
        if candidate.is_sure:
            sure.setdefault(candidate.name, candidate)
    yield from (candidate.steps() for candidate in sure.values())
    likely = (candidate for candidate in ordered if not sure and (candidate.share or 0.0) >= LEAST_COVERAGE)
    yield from (replace(candidate.steps(), is_doubtful=True) for candidate in islice(likely, 1))


def _candidates(
    session: Session, tasks: Collection[Task], name_filter: NameFilter | None, reports: Sequence[Report]
) -> list[list[_Candidate]]:
    """Return each task's candidates with their work: the longest names on each thread, or the user's."""
    indices = {report.index for report in reports}
    tasks = [task for task in tasks if task.report in indices]
    if not tasks or not session.count(tables.nvtx_ranges):
        return []
    ranges = _with_kinds(_closed_ranges(tasks))
    columns = [ranges.c[name] for name in ("report", "process", "thread", "start", "end", "name")]
    named, others = defaultdict[Task, list[_Candidate]](list), defaultdict[Task, list[_Candidate]](list)
    if name_filter is not None:
        is_named = matches(ranges.c.name, name_filter)
        names = sa.select(ranges.c.template).where(is_named).distinct()
        # Ranges whose names differ only in numbers also end a step.
        query = sa.select(*columns, sa.literal(name_filter.pattern).label("template"), is_named.label("is_chosen"))
        query = query.where(ranges.c.template.in_(names)).order_by("start", sa.desc("end"))
        for candidate in _read(session, tasks, query, name_filter):
            named[candidate.task].append(candidate)
        _add_work(session, named, needs_marks=False)
        return [named[task] for task in sorted(named)]
    kinds = {template for *_, template in session.rows(_kinds_query(tasks)) if not _PART.search(template)}
    has_word = {kind for kind in kinds if any(word.search(kind) for word in _WORDS)}
    numbered = {kind for kind in has_word if "*" in kind or _PHASE in kind}
    for chosen in (numbered, kinds - numbered):
        # DuckDB computes the kind once per value in short lists.
        values = sa.values(sa.column("kind", sa.Text), name="kinds").data([(template,) for template in sorted(chosen)])
        query = sa.select(*columns, ranges.c.kind.label("template"), sa.true().label("is_chosen"))
        query = query.where(ranges.c.kind.in_(sa.select(values))).order_by("start", sa.desc("end"))
        for candidate in _read(session, tasks, query, None) if chosen else ():
            (named if candidate.is_named else others)[candidate.task].append(candidate)
        if chosen is numbered:
            _add_work(session, named, needs_marks=False)
        judged = tasks if chosen is numbered else {*named, *others}
        if all(any(item.is_sure and not item.is_foreign for item in named.get(task, ())) for task in judged):
            return [named[task] for task in sorted(named)]  # other candidates cost more, and would not be chosen
    _add_work(session, others, needs_marks=True)
    return [named[task] + others[task] for task in sorted({*named, *others})]


def _read(session: Session, tasks: Sequence[Task], query: Query, pattern: NameFilter | None) -> Iterator[_Candidate]:
    ranges = session.arrays(query)
    keys = (ranges[key] for key in ("report", "process", "thread", "template"))
    for (report, process, _, template), rows in places_by(keys).items():
        local, columns = Task(report, process), (ranges[key][rows] for key in ("start", "end", "name", "is_chosen"))
        starts, ends, names, is_chosen = columns
        # A process without GPU work, such as a scheduler, may have the steps of its report's tasks.
        for task in [local] if local in tasks else [task for task in tasks if task.report == report]:
            named = task, template, starts, ends, names.tolist()
            candidate = _matching(pattern, is_chosen.astype(bool), *named) if pattern else _candidate(*named)
            if candidate is not None:
                candidate.is_foreign = task != local
                yield candidate


def _add_work(session: Session, by_task: Mapping[Task, Sequence[_Candidate]], needs_marks: bool) -> None:
    """Add each task's work to its candidates, with marks of operations if needed."""
    reports = {task.report for task, group in by_task.items() if group}
    names = OperationNames.load(session, reports) if needs_marks else None
    for task, batch in launched_work(session, reports, KEYS if names else {}) if reports else ():
        marks = names.marks_of(task, names.codes(batch.pop("key")), batch["launch"]) if names else None
        for candidate in by_task.get(task, ()):
            candidate.add(**batch, marks=marks)


def _closed_ranges(tasks: Iterable[Task]) -> sa.Subquery:
    """Select the reports' NVTX ranges that ended on the thread that began them."""
    columns = tables.nvtx_ranges.c
    times = (job_start(tables.nvtx_ranges).label("start"), job_end(tables.nvtx_ranges).label("end"))
    named = sa.select(columns.report, columns.process, columns.thread, *times, FOLDED_LABEL.label("name")).where(
        of_reports(columns.report, {task.report for task in tasks}),
        columns.end > columns.start,
        sa.func.coalesce(columns.end_thread, columns.thread) == columns.thread,
    )
    return named.subquery("named")


def _with_kinds(named: sa.Subquery) -> sa.Subquery:
    """Add the template (``step *`` of ``step 7``) and the kind, which lacks fields, of each name."""
    template = sa.func.regexp_replace(named.c.name, "[0-9]+", "*", "g", type_=sa.Text)
    kind = sa.func.regexp_replace(template, f"{_FIELDS}.*", _FIELDS, type_=sa.Text)
    kind = sa.func.regexp_replace(kind, PHASE_WORD, rf"\1{_PHASE}\3", "gi", type_=sa.Text)
    return sa.select(named, template.label("template"), kind.label("kind")).subquery("ranges")


def _kinds_query(tasks: Iterable[Task]) -> Query:
    """Select the longest kinds of ranges (report, process, thread, kind) of each process.

    Ranges have a separate query, so that not all are in memory.
    """
    ranges = _closed_ranges(tasks).c
    name = (ranges.report, ranges.process, ranges.thread, ranges.name)
    sums = sa.func.count().label("count"), sa.func.sum(ranges.end - ranges.start).label("time")
    # Patterns are slow, and many ranges share a name.
    names = _with_kinds(sa.select(*name, *sums).group_by(*name).subquery("names")).c
    kind = (names.report, names.process, names.thread, names.kind)
    count, time = sa.func.sum(names["count"]), sa.func.sum(names.time)
    words = "|".join(word.pattern for word in _WORDS)
    has_word = sa.func.regexp_matches(names.kind, words, "i", type_=sa.Boolean)
    position = sa.func.row_number().over(partition_by=(*kind[:2], has_word), order_by=time.desc())
    kinds = (
        sa.select(*kind, position.label("place"))
        .group_by(*kind)
        .having(count >= FEWEST, sa.or_(has_word, count <= _MAX_RANGES))
        .subquery("kinds")
    )
    return sa.select(*(kinds.c[column.name] for column in kind)).where(kinds.c.place <= _MAX_NAMES)


def _candidate(task: Task, name: str, starts: Times, ends: Times, names: Sequence[str]) -> _Candidate | None:
    """Return the ranges of one name, by start, as a candidate, or ``None`` if they cannot be steps."""
    outermost = ends > np.append(np.iinfo(np.int64).min, np.maximum.accumulate(ends)[:-1])
    starts, ends = starts[outermost], ends[outermost]
    names = [name for name, is_outer in zip(names, outermost.tolist(), strict=True) if is_outer]
    if len(starts) < FEWEST or (ends[:-1] - starts[1:]).max() > _MAX_OVERLAP * np.median(ends - starts):
        return None
    ends = np.append(np.minimum(ends[:-1], starts[1:]), ends[-1])
    if name.endswith(_FIELDS):
        return _rounds(task, starts, ends, names)
    candidate = _Candidate(task, name, _numbers(names), starts, ends, names, np.ones(len(starts), bool))
    is_numbered = "*" in _AMOUNT.sub("", name)
    return candidate if candidate.word < len(_WORDS) or candidate.is_ascending or not is_numbered else None


def _matching(
    name_filter: NameFilter, is_chosen: Flags, task: Task, name: str, starts: Times, ends: Times, names: Sequence[str]
) -> _Candidate | None:
    """Return the ranges that a pattern chose as a candidate, with the other ranges between them."""
    pattern = re.compile(name_filter.pattern, re.IGNORECASE if name_filter.ignore_case else 0)
    chosen = np.flatnonzero(is_chosen)
    chosen = chosen[_follows(starts[chosen], ends[chosen])]
    if not len(chosen):
        return None
    # Other ranges end a step only if they lie between steps.
    previous = np.searchsorted(starts[chosen], starts, side="right") - 1
    following = np.append(starts[chosen], np.iinfo(np.int64).max)[previous + 1]
    is_between = ~is_chosen & (previous >= 0) & (starts >= ends[chosen][np.maximum(previous, 0)]) & (ends <= following)
    rows = np.union1d(chosen, np.flatnonzero(is_between))
    rows = rows[_follows(starts[rows], ends[rows])]
    # The number is in the pattern's first group, if any, or in the name.
    matched = ((names[row], pattern.search(names[row])) for row in chosen.tolist())
    numbers = np.zeros(len(starts), np.int64)
    numbers[chosen] = _numbers([(match[1] or "") if match and pattern.groups else name for name, match in matched])
    labels = [names[row] for row in rows.tolist()]
    return _Candidate(task, name, numbers[rows], starts[rows], ends[rows], labels, is_chosen[rows])


def _rounds(task: Task, starts: Times, ends: Times, names: Sequence[str]) -> _Candidate | None:
    """Return the rounds of programs that XLA runs, or ``None`` if the names are not of programs.

    The program with the most time runs once per round and names it. A round begins with the longest pause before any
    program that runs as often.
    """
    texts, codes = np.unique(np.array(names), return_inverse=True)
    counts, main = np.bincount(codes), int(np.bincount(codes, ends - starts).argmax())
    if counts[main] < FEWEST or _OPERATION in names[0]:
        return None
    pauses = np.append(0, starts[1:] - ends[:-1])
    once_per_round = np.flatnonzero(np.abs(counts - counts[main]) <= 1).tolist()
    rows_of_code = (np.flatnonzero(codes == code) for code in once_per_round)
    begins = max(rows_of_code, key=lambda rows: float(np.median(pauses[rows])))
    last = min(begins[-1] + int(np.median(np.diff(begins))), len(codes))
    ends, count = ends[np.append(begins[1:], last) - 1], len(begins)
    more = f" and {len(once_per_round) - 1} more" if len(once_per_round) > 1 else ""
    name, labels = _NUMBER.sub("*", str(texts[main])) + more, [names[index] for index in begins.tolist()]
    return _Candidate(task, name, np.arange(count), starts[begins], ends, labels, np.ones(count, bool))


def _follows(starts: Times, ends: Times) -> Flags:
    return np.concatenate(([True], starts[1:] >= np.maximum.accumulate(ends)[:-1]))


def _numbers(names: Sequence[str]) -> Times:
    """Return from each name the number that ascends from name to name (``epoch 1 step 7``: 7), else the first number.

    If several ascend, those after a word of `_WORDS` count, then the slowest. All are 0 if a name has only amounts.
    """
    names = [_REQUESTS.sub("", _AMOUNT.sub("", name)) for name in names]
    parts = {name: [whole_number(digits, _MAX_NUMBER) or 0 for digits in _NUMBER.findall(name)] for name in set(names)}
    width = min(map(len, parts.values()))
    columns = np.array([parts[name][:width] for name in names], np.int64).reshape(len(names), width)
    if not columns.shape[1]:
        return np.zeros(len(names), np.int64)
    has_word = [any(word.search(text) for word in _WORDS) for text in _NUMBER.split(names[0])]
    ascending = [index for index in range(width) if (np.diff(columns[:, index]) > 0).all()]
    slopes = {index: (not has_word[index], float(np.mean(np.diff(columns[:, index])))) for index in ascending}
    return columns[:, min(slopes, key=lambda index: slopes[index], default=0)]
