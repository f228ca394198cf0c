"""The steps of one task, their storage, and the GPU work launched in them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import sqlalchemy as sa

from nsystui.base.anchors import NVTX
from nsystui.base.selection import Task
from nsystui.base.types import Flags, Labelled, Query
from nsystui.questions.algebra.intervals import EMPTY, Intervals, Times
from nsystui.questions.algebra.projection import Projection
from nsystui.questions.queries.conditions import is_launched_by, job_end, job_start, of_reports
from nsystui.questions.queries.process_rows import rows_by_task
from nsystui.questions.queries.tasks import GPU_TABLES
from nsystui.store import tables
from nsystui.store.remember import Arrays, json_array, json_of
from nsystui.store.session import Session

NO_STEP = NO_PHASE = -1
FEWEST = 3
"""The minimum number of consecutive steps, unless the user named them."""
LEAST_COVERAGE = 0.5
"""The minimum share of a task's GPU time launched in its steps."""
_REGULAR = 0.7
"""The share of steps at the usual distance of numbers, from which a larger distance means unrecorded steps."""
_TIMES = ("starts", "ends")
_GPU = ("op_count", "op_time", "start", "end")
_FACTS = ("name", "anchor", "agree", "differ", "is_doubtful", "labels")


@dataclass(frozen=True, eq=False)
class TaskSteps:
    """The n steps of a task by start. Times are job time, ns; shapes are ``(n,)``.

    ``name``: of the ranges, with ``*`` for numbers, or of the work that marks the steps. ``numbers``: ascending, from
    the names; 0, 1, … if they repeat (steps counted anew in each epoch) or are missing. ``starts``, ``ends``: on the
    CPU; steps do not overlap. ``gpu``: the GPU operations launched in each step. ``outside``: the total duration of
    operations launched outside of steps.

    ``anchor``: the kind of work that marks the steps. Among names that repeat once per step, ``agree`` give the same
    number of steps and ``differ`` do not. ``is_doubtful``: the steps may be layers.

    ``labels``: the names of the ranges, empty for other anchors. ``on_gpu``: begin and end on the GPU if other ranges
    lie between the steps; see `spans`. ``phases``: codes of `phases.PHASES`.
    """

    task: Task
    name: str
    numbers: Times
    starts: Times
    ends: Times
    gpu: Projection
    outside: int = 0
    anchor: str = NVTX
    agree: int = 0
    differ: int = 0
    is_doubtful: bool = False
    labels: Sequence[str] = ()
    on_gpu: tuple[Times, Times] | None = None
    phases: Times = field(default_factory=lambda: np.zeros(0, np.int64))
    pauses: Intervals = field(default_factory=lambda: EMPTY)
    """Times without any capture, which belong to no step."""

    def __post_init__(self) -> None:
        if len(self.phases) != len(self.starts):
            object.__setattr__(self, "phases", np.full(len(self.starts), NO_PHASE, np.int64))

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def median(self) -> float:
        """A step's median time on the GPU, ns."""
        starts, ends = self.spans()
        return float(np.median(ends - starts))

    def spans(self) -> tuple[Times, Times]:
        """Return begin and end on the GPU of each step that launched something, ns.

        A step begins when its range has begun and earlier steps' work has ended, at the latest with its first
        operation: idle time before an operation belongs to the step whose range contains it. It ends when the next step
        begins; the last step, steps that still run then, and steps before missing numbers end with their last
        operation.
        """
        has_work = self.gpu.op_count > 0
        if self.on_gpu is not None:
            return self._until_pauses(self.on_gpu[0][has_work], self.on_gpu[1][has_work])
        first, last = self.gpu.start[has_work], self.gpu.end[has_work]
        before = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, last[:-1]))[: len(first)]
        begin = np.minimum(first, np.maximum(self.starts[has_work], before))
        until = np.append(np.where(self._lacks_next[has_work][:-1], last[:-1], begin[1:]), last[-1:])
        return self._until_pauses(begin, np.where(until > begin, until, last))

    @property
    def _lacks_next(self) -> Flags:
        """Whether steps after each step were not recorded: its number jumps, although nearly all others do not."""
        jumps = np.diff(self.numbers, append=self.numbers[-1:])
        usual = np.median(jumps[:-1]) if len(jumps) > 1 else 0
        return (jumps > usual) & (np.count_nonzero(jumps == usual) >= _REGULAR * len(jumps))

    def _until_pauses(self, begin: Times, end: Times) -> tuple[Times, Times]:
        """Return the times of steps on the GPU, which end where a capture ends."""
        pause = np.append(self.pauses.starts, np.iinfo(np.int64).max)
        return begin, np.minimum(end, pause[np.searchsorted(self.pauses.starts, begin)])

    def numbers_at(self, times: Times) -> Times:
        """Return the number of the step whose CPU range ``[start, end)`` contains each time, or ``NO_STEP``."""
        index = np.searchsorted(self.starts, times, side="right") - 1
        return np.where((index >= 0) & (times < self.ends[index]), self.numbers[index], NO_STEP)


def to_arrays(task_steps: Sequence[TaskSteps], clock_offset: int) -> Arrays:
    """Concatenate the steps of a report's tasks, on the report's clock."""

    def joined(sources: Iterable[Any], name: str, offset: int = 0) -> Times:
        return np.concatenate([np.zeros(0, np.int64), *(getattr(source, name) for source in sources)]) - offset

    gpu = [steps.gpu for steps in task_steps]
    return {
        "process": np.array([steps.task.process for steps in task_steps], np.int64),
        "count": np.array([len(steps) for steps in task_steps], np.int64),
        "outside": np.array([steps.outside for steps in task_steps], np.int64),
        "found": json_array([{name: getattr(steps, name) for name in _FACTS} for steps in task_steps]),
        "numbers": joined(task_steps, "numbers"),
        **{name: joined(task_steps, name, clock_offset) for name in _TIMES},
        **{f"gpu_{name}": joined(gpu, name) for name in _GPU[:2]},
        **{f"gpu_{name}": joined(gpu, name, clock_offset) for name in _GPU[2:]},
    }


def of_arrays(report: int, arrays: Arrays, clock_offset: int) -> Iterator[TaskSteps]:
    """Restore a report's steps, by index, from the result of `to_arrays`."""
    first = 0
    single = (arrays[key].tolist() for key in ("process", "count", "outside"))
    for process, count, outside, facts in zip(*single, json_of(arrays["found"]), strict=True):
        keys = ("numbers", *_TIMES, *(f"gpu_{key}" for key in _GPU))
        columns = {key: arrays[key][first : first + count] for key in keys}
        first += count
        starts, ends = (columns[key] + clock_offset for key in _TIMES)
        gpu_start, gpu_end = columns["gpu_start"] + clock_offset, columns["gpu_end"] + clock_offset
        gpu = without_holes(Projection(columns["gpu_op_count"], gpu_start, gpu_end, columns["gpu_op_time"]))
        task, numbers = Task(report, process), columns["numbers"]
        yield TaskSteps(task, numbers=numbers, starts=starts, ends=ends, gpu=gpu, outside=outside, **facts)


def without_holes(gpu: Projection) -> Projection:
    """Return the projection with times of 0 for steps that launched nothing."""
    is_empty = gpu.op_count == 0
    return replace(gpu, start=np.where(is_empty, 0, gpu.start), end=np.where(is_empty, 0, gpu.end))


_CALLS_AT_ONCE = 1 << 20
"""The approximate number of API calls to join at once."""


def launched_work(
    session: Session, reports: Iterable[int], more: Mapping[str, Sequence[Labelled]] = MappingProxyType({})
) -> Iterator[tuple[Task, dict[str, Any]]]:
    """Yield each task's GPU operations in portions: ``launch``, ``start`` and ``end`` in job time.

    ``more``: additional columns by table name. Ids, and so portions, ascend roughly with time.
    """
    indices = sorted(set(reports))
    work = [tables.of(table) for table in GPU_TABLES if session.count(table)]
    for ids in launch_id_spans(session, indices) if work else ():
        for table in work:
            query = _launches_query(table, indices, ids).add_columns(*more.get(table.name, ()))
            for batch in session.array_batches(query):
                yield from rows_by_task(batch)


def launch_id_spans(session: Session, reports: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and last correlation ids of portions of the calls: one join would hold all calls in memory.

    Ids ascend, so that each portion is in a few row groups.
    """
    calls = tables.api_calls
    if not session.count(calls):
        return
    ids = calls.c.correlation_id
    query = sa.select(sa.func.count(ids), sa.func.min(ids), sa.func.max(ids)).where(of_reports(calls.c.report, reports))
    ((count, first, last),) = session.rows(query)
    if count:
        width = (last - first + 1) * _CALLS_AT_ONCE // count + 1
        for start in range(first, last + 1, width):
            yield start, min(start + width - 1, last)


def _launches_query(table: sa.Table, reports: Sequence[int], ids: tuple[int, int]) -> Query:
    """Select a table's operations with correlation ids in ``ids``, and their launch times; job time."""
    calls, columns = tables.api_calls, table.c
    times = job_start(calls).label("launch"), job_start(table).label("start"), job_end(table).label("end")
    query = sa.select(columns.report, columns.process, *times).join_from(table, calls, is_launched_by(table, calls))
    have_ids = (joined_table.c.correlation_id.between(*ids) for joined_table in (calls, table))
    return query.where(of_reports(columns.report, reports), columns.end.is_not(None), *have_ids)
