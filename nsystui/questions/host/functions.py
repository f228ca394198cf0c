"""CPU samples: when each was taken, on which thread, with which stack; and functions by the samples that they are in.

See docs/numbers.md#cpu-samples. Self samples have a function at the end of their stack, total ones anywhere, and count
once for it however often the function calls itself. Samples without a recorded stack are a row of their own, so that
self adds up to all samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import FILES_ONLY, RANK, TID, Column, Row, TableAnswer, Unit
from nsystui.base.kernel_names import function_name
from nsystui.base.selection import Selection, Window
from nsystui.base.text import whole_number
from nsystui.questions.algebra.intervals import EMPTY
from nsystui.questions.host.naming import HostThread, named_threads
from nsystui.questions.host.segments import RUNNING, Segments, Thread, by_thread, one_after_the_other
from nsystui.questions.host.stacks import PYTHON, SAMPLE, Function, Numbers, Stacks, StackTree, stacks_of
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.conditions import where
from nsystui.questions.queries.data_notes import missing_note
from nsystui.questions.queries.recording import option_advice
from nsystui.questions.queries.time_window import selected_reports
from nsystui.store import tables
from nsystui.store.session import Session


@dataclass(frozen=True, eq=False)
class ThreadSamples:
    """The samples of one thread: job time, ns, in order, and the node of each in the tree of its report."""

    times: Numbers
    nodes: Numbers


@dataclass(frozen=True, eq=False)
class CpuSamples:
    """The samples by thread, and the stacks of each report that has any; ``of_python``: reports whose are Python's."""

    threads: Mapping[Thread, ThreadSamples]
    stacks: Mapping[int, Stacks]
    of_python: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return sum(len(one.times) for one in self.threads.values())

    def within(self, windows: Mapping[int, Window]) -> CpuSamples:
        """Return the samples of the reports in ``windows`` (by index), each in its own window."""
        threads = {}
        for thread, one in self.threads.items():
            if (window := windows.get(thread[0])) is not None:
                first, last = np.searchsorted(one.times, [window.start, window.end])
                threads[thread] = ThreadSamples(one.times[first:last], one.nodes[first:last])
        return CpuSamples(threads, self.stacks)

    @cached_property
    def period(self) -> int | None:
        """The usual time from one sample of a thread to the next, ns; ``None`` of too few samples."""
        steps = [np.diff(one.times) for one in self.threads.values() if len(one.times) > 1]
        return int(np.median(np.concatenate(steps))) if steps else None

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be said of the stacks."""
        damaged = sum(one.damaged for one in self.stacks.values())
        found = ["no CPU samples were recorded: the samples of Python are shown"] if self.of_python else []
        if damaged:
            found.append(
                f"{damaged:,} call chains are damaged (frames are missing or repeated): lost frames are not shown"
            )
        return tuple(found)


def samples_of_job(job: OpenJob, selection: Selection) -> CpuSamples:
    """Read the samples of a selection, whatever its name filter; they are kept with the job."""
    wide = selection.with_name(None)
    return job.once(("host samples", wide), lambda: samples_of(job.session, wide))


def samples_of(session: Session, selection: Selection, kind: str = "") -> CpuSamples:
    """Read the samples of the selected threads in the window; of Python in reports without samples of the CPU.

    With `PYTHON` as ``kind`` those of Python alone, also of threads that did not run.
    """
    table, columns = tables.host_samples, tables.host_samples.c
    if not session.count(table):
        return CpuSamples({}, {})
    time = (columns.time + columns.clock_offset).label("time")
    query = sa.select(columns.report, columns.thread, time, columns.chain, columns.is_python)
    # Stacks that were taken for another reason, where the thread left its CPU, count no cycles.
    is_sample = columns.is_python == 1 if kind == PYTHON else sa.or_(columns.weight.is_(None), columns.weight > 0)
    query = query.where(is_sample, *where(table, selection.with_name(None)))
    found = session.arrays(query.order_by(time, columns.row))
    of_python = found["is_python"] == 1
    if of_python.any() and not kind:
        with_cpu = [
            report for (report,) in session.rows(sa.select(columns.report).where(columns.is_python == 0).distinct())
        ]
        chosen = of_python != np.isin(found["report"], with_cpu)
        found, of_python = {name: values[chosen] for name, values in found.items()}, of_python[chosen]
    reports = [report for report in selected_reports(session, selection) if report.count(table)]
    stacks = stacks_of(session, reports)
    threads = {}
    for thread, rows in by_thread(found).items():
        nodes = stacks[thread[0]].nodes(PYTHON if of_python[rows[0]] else SAMPLE, found["chain"][rows])
        threads[thread] = ThreadSamples(found["time"][rows].astype(np.int64), nodes)
    return CpuSamples(threads, stacks, frozenset(found["report"][of_python].tolist()))


def sampling_notes(session: Session, samples: CpuSamples, with_count: bool = True) -> tuple[str, ...]:
    """Say what to record where there are no samples, or no stacks of them, and `samples_words` unless told not to."""
    lacking = missing_note(session, tables.host_samples)
    if lacking:
        return (lacking,)
    notes = list(samples.notes)
    if not session.count(tables.call_chains):
        notes.append(f"the samples have no call stacks: {option_advice(session.reports, '--backtrace=dwarf')}")
    if with_count and (counted := samples_words(samples)):
        notes.append(counted)
    return tuple(notes)


def samples_words(samples: CpuSamples) -> str:
    """Say how many there are, and how often a thread that runs has one; empty where too few tell."""
    period = samples.period
    if period is None:
        return ""
    return f"{len(samples):,} samples; a running thread has one about every {period / 1e6:.2f} ms"


NO_FUNCTION = Function("[no call stack]", "", False, False)
"""What samples without a recorded stack are counted under."""
BY = ("all", "rank", "thread")


@dataclass(frozen=True, eq=False)
class SampleGroup:
    """Samples that are counted together: ``own`` is how many each node of the tree of a report has."""

    threads: tuple[HostThread, ...]
    own: Mapping[int, Numbers]

    @property
    def samples(self) -> int:
        """How many there are."""
        return sum(int(own.sum()) for own in self.own.values())


def chosen_threads(job: OpenJob, samples: CpuSamples, wanted: str | None) -> list[HostThread]:
    """Return the sampled threads, or those with the number or with ``wanted`` in their name."""
    found = named_threads(job, samples.threads)
    if not wanted:
        return found
    number = whole_number(wanted)
    is_wanted: Callable[[HostThread], bool] = (
        (lambda one: one.tid == number) if number is not None else (lambda one: wanted.lower() in one.name.lower())
    )
    return [one for one in found if is_wanted(one)]


def grouped(samples: CpuSamples, threads: Sequence[HostThread], by: str) -> list[SampleGroup]:
    """Group the samples of ``threads`` by thread, by rank (processes that are no rank by process), or together."""
    groups: dict[object, list[HostThread]] = {}
    for one in threads:
        rank = one.task if one.rank is None else one.rank
        groups.setdefault({"thread": one.thread, "rank": rank}.get(by), []).append(one)
    found = []
    for group in groups.values():
        own: dict[int, Numbers] = {}
        for report, stacks in samples.stacks.items():
            nodes = [samples.threads[one.thread].nodes for one in group if one.thread[0] == report]
            if nodes:
                own[report] = np.bincount(np.concatenate(nodes), minlength=len(stacks.tree))
        found.append(SampleGroup(tuple(group), own))
    return found


def counts(tree: StackTree, own: Numbers) -> tuple[Numbers, Numbers]:
    """Count the samples of each function at the end of a stack, and anywhere in one; shapes ``(functions,)``."""
    functions = len(tree.functions)
    at_end = np.bincount(tree.function[1:], own[1:], functions).astype(np.int64)
    chosen = tree.is_outermost
    anywhere = np.bincount(tree.function[chosen], tree.totals(own)[chosen], functions).astype(np.int64)
    return at_end, anywhere


def function_counts(samples: CpuSamples, group: SampleGroup) -> dict[Function, tuple[int, int]]:
    """Count self and total samples of each function that has any, over all reports; `NO_FUNCTION` among them."""
    found: dict[Function, tuple[int, int]] = {}
    for report, own in group.own.items():
        tree = samples.stacks[report].tree
        at_end, anywhere = counts(tree, own)
        numbers = np.flatnonzero(anywhere)
        rows = zip(numbers.tolist(), at_end[numbers].tolist(), anywhere[numbers].tolist(), strict=True)
        for number, own_samples, total in rows:
            before = found.get(tree.functions[number], (0, 0))
            found[tree.functions[number]] = before[0] + own_samples, before[1] + total
        if own[0]:
            before = found.get(NO_FUNCTION, (0, 0))
            found[NO_FUNCTION] = before[0] + int(own[0]), before[1] + int(own[0])
    return found


def top_function(samples: CpuSamples, group: SampleGroup) -> Function | None:
    """Return the function at the end of most stacks; ``None`` without samples."""
    found = function_counts(samples, group)
    return max(found, key=lambda one: (found[one][0], one.name), default=None)


def function_words(function: Function) -> str:
    """Name a function with its module: ``native::copy_ (libtorch_cpu.so)``."""
    name = function_name(function.name)
    return name if function.is_folded or not function.library else f"{name} ({function.library})"


MODULE = Column("module", header="Module", label="module", importance=1)
KERNEL_MODE = Column("mode", header="Mode", label="mode", importance=2)
FULL_NAME = Column("full_name", header="Full Name", label="full name", importance=FILES_ONLY)
PATH = Column("module_path", header="Module Path", label="module path", importance=FILES_ONLY)
THREAD = Column("thread", header="Thread", label="thread")
COLUMNS = (
    Column("own", header="Self Samples", label="self", unit=Unit.COUNT),
    Column("own_percent", header="Self (%)", label="self %", unit=Unit.PERCENT, decimals=2, has_bar=True),
    Column("total", header="Total Samples", label="total", unit=Unit.COUNT),
    Column("total_percent", header="Total (%)", label="total %", unit=Unit.PERCENT, decimals=2, importance=1),
    Column("function", header="Function", label="function"),
    MODULE,
    KERNEL_MODE,
    FULL_NAME,
    PATH,
)
_PLACE = {"all": (), "rank": (RANK,), "thread": (RANK, THREAD, TID)}


def place_of(group: SampleGroup, by: str) -> tuple[int | str | None, ...]:
    """Return the values of the columns that say whose samples a group has."""
    one = group.threads[0]
    return {"all": (), "rank": (one.rank,), "thread": (one.rank, one.name, one.tid)}[by]


def mode_of(function: Function) -> str:
    """Return ``kernel``, or nothing in user mode."""
    return "kernel" if function.is_kernel else ""


def functions_table(job: OpenJob, selection: Selection, by: str = "all", thread: str | None = None) -> TableAnswer:
    """Tabulate the functions of each group, those with the most samples at their end first."""
    samples = samples_of_job(job, selection)
    rows: list[Row] = []
    for group in grouped(samples, chosen_threads(job, samples, thread), by):
        whole, place = group.samples, place_of(group, by)
        for function, (own, total) in function_counts(samples, group).items():
            share = [value for count in (own, total) for value in (count, 100.0 * count / whole)]
            name = function_name(function.name)
            rows.append((*place, *share, name, function.library, mode_of(function), function.name, function.module))
    columns = (*_PLACE[by], *COLUMNS)
    keys = [column.key for column in columns]
    own, total, full = keys.index("own"), keys.index("total"), keys.index("full_name")
    rows.sort(key=lambda row: (*(-int(row[place] or 0) for place in (own, total)), str(row[full]), str(row[:own])))
    found = len(rows)
    if selection.name is not None:
        rows = [row for row in rows if selection.name.matches(str(row[full]))]
    return TableAnswer("functions", columns, rows, found, sampling_notes(job.session, samples))


def running_stretches(sampled: ThreadSamples | None, period: int | None, states: Segments | None) -> Segments:
    """Find when a thread runs, labelled by the node of the nearest sample; 0 where there is none near enough.

    A sample tells of the time that is nearer to it than to the next one, while the thread stays on the CPU; without
    ``states``, of a period before and after it.
    """
    running = EMPTY if states is None else states.labelled(RUNNING)
    unsampled = Segments(running.starts, running.ends, np.zeros(len(running), np.int64))
    if sampled is None or period is None:
        return unsampled
    times, nodes = sampled.times, sampled.nodes
    if states is None:
        low, high = times - period, times + period
    else:
        stretch = np.searchsorted(running.starts, times, side="right") - 1
        inside = (stretch >= 0) & (times < running.ends[np.maximum(stretch, 0)]) if len(running) else times < 0
        times, nodes, stretch = times[inside], nodes[inside], stretch[inside]
        low, high = running.starts[stretch], running.ends[stretch]
    middle = (times[1:] + times[:-1]) // 2
    starts = np.concatenate((low[:1], np.maximum(low[1:], middle)))
    ends = np.concatenate((np.minimum(high[:-1], middle), high[-1:]))
    kept = ends > starts
    return one_after_the_other(Segments(starts[kept], ends[kept], nodes[kept]), unsampled)
