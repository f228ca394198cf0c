"""CPU samples by thread, and the functions in their stacks (docs/numbers.md#cpu-samples).

Self samples have the function at the end of their stack, total samples anywhere, counted once even if it calls itself.
Samples without a recorded stack have a separate row, so that self samples add up to all samples.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import FILES_ONLY, RANK, TID, Column, Row, TableAnswer, Unit
from nsystui.base.selection import Selection
from nsystui.base.text import counted, whole_number
from nsystui.base.types import Ints
from nsystui.questions.algebra.intervals import EMPTY
from nsystui.questions.host.naming import HostThread, named_threads
from nsystui.questions.host.segments import RUNNING, Segments, Thread, by_thread, one_after_the_other
from nsystui.questions.host.stacks import PYTHON, SAMPLE, Function, Stacks, StackTree, stacks_of
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.conditions import where
from nsystui.questions.queries.data_notes import missing_notes
from nsystui.questions.queries.recording import option_advice
from nsystui.questions.queries.tasks import ROLE
from nsystui.questions.queries.time_window import selected_reports
from nsystui.store import tables
from nsystui.store.session import Session


@dataclass(frozen=True, eq=False)
class ThreadSamples:
    """The samples of one thread: ascending times (job time, ns), and nodes in the report's tree."""

    times: Ints
    nodes: Ints


@dataclass(frozen=True, eq=False)
class CpuSamples:
    """Samples by thread, and stacks by report; ``of_python``: reports whose samples are Python's."""

    threads: Mapping[Thread, ThreadSamples]
    stacks: Mapping[int, Stacks]
    of_python: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return sum(len(samples.times) for samples in self.threads.values())

    @cached_property
    def period(self) -> int | None:
        """The usual time between a thread's samples, ns; ``None`` if too few."""
        steps = [np.diff(samples.times) for samples in self.threads.values() if len(samples.times) > 1]
        return int(np.median(np.concatenate(steps))) if steps else None

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on stacks and Python samples."""
        damaged = sum(stacks.damaged for stacks in self.stacks.values())
        notes = ["no CPU samples were recorded; Python samples are shown instead"] if self.of_python else []
        if damaged:
            chains = counted(damaged, "call chain", "are")
            notes.append(f"{chains} damaged (frames are missing or repeated): lost frames are hidden")
        return tuple(notes)


def samples_of_job(job: OpenJob, selection: Selection) -> CpuSamples:
    """Read the selected samples, ignoring the name filter; cached in the job."""
    unfiltered = selection.with_name(None)
    return job.once(("host samples", unfiltered), lambda: samples_of(job.session, unfiltered))


def samples_of(session: Session, selection: Selection, kind: str = "") -> CpuSamples:
    """Read the samples of the selected threads in the window: Python's for reports without CPU samples.

    If ``kind`` is `PYTHON`, read only Python's, also of threads that did not run.
    """
    table, columns = tables.host_samples, tables.host_samples.c
    if not session.count(table):
        return CpuSamples({}, {})
    time = (columns.time + columns.clock_offset).label("time")
    query = sa.select(columns.report, columns.thread, time, columns.chain, columns.is_python)
    # Stacks recorded because the thread left its CPU have no weight.
    is_sample = columns.is_python == 1 if kind == PYTHON else sa.or_(columns.weight.is_(None), columns.weight > 0)
    query = query.where(is_sample, *where(table, selection.with_name(None)))
    arrays = session.arrays(query.order_by(time, columns.row))
    of_python = arrays["is_python"] == 1
    if of_python.any() and not kind:
        cpu_query = sa.select(columns.report).where(columns.is_python == 0).distinct()
        with_cpu = [report for (report,) in session.rows(cpu_query)]
        is_read = of_python != np.isin(arrays["report"], with_cpu)
        arrays, of_python = {name: column[is_read] for name, column in arrays.items()}, of_python[is_read]
    stacks = stacks_of(session, [report for report in selected_reports(session, selection) if report.count(table)])
    threads = {}
    for thread, rows in by_thread(arrays).items():
        nodes = stacks[thread[0]].nodes(PYTHON if of_python[rows[0]] else SAMPLE, arrays["chain"][rows])
        threads[thread] = ThreadSamples(arrays["time"][rows].astype(np.int64), nodes)
    return CpuSamples(threads, stacks, frozenset(arrays["report"][of_python].tolist()))


def sampling_notes(session: Session, samples: CpuSamples) -> tuple[str, ...]:
    """Return notes on unrecorded samples or stacks, and on their number and usual interval."""
    if missing := missing_notes(session, tables.host_samples):
        return missing
    notes = list(samples.notes)
    if not session.count(tables.call_chains):
        notes.append(f"the samples have no call stacks: {option_advice(session.reports, '--backtrace=dwarf')}")
    if samples.period is not None:
        every = f"a running thread has one about every {samples.period / 1e6:.2f} ms"
        notes.append(f"{counted(len(samples), 'sample')}; {every}")
    return tuple(notes)


NO_FUNCTION = Function("[no call stack]", "", False, False)
"""The function of samples without a recorded stack."""


@dataclass(frozen=True, eq=False)
class SampleGroup:
    """Samples counted together; ``node_counts``: samples of each tree node, by report."""

    threads: tuple[HostThread, ...]
    node_counts: Mapping[int, Ints]

    @property
    def samples(self) -> int:
        """The number of samples."""
        return sum(int(samples.sum()) for samples in self.node_counts.values())


def chosen_threads(job: OpenJob, samples: CpuSamples, wanted: str | None) -> list[HostThread]:
    """Return the sampled threads, only with ``wanted`` as their number or in their name if given."""
    threads = named_threads(job, samples.threads)
    if not wanted:
        return threads
    number = whole_number(wanted)
    matches: Callable[[HostThread], bool] = (
        (lambda item: item.tid == number) if number is not None else (lambda item: wanted.lower() in item.name.lower())
    )
    return [thread for thread in threads if matches(thread)]


def grouped(samples: CpuSamples, threads: Sequence[HostThread], by: str) -> list[SampleGroup]:
    """Group samples by thread, by rank (or process, if it is no rank), by role, or all together."""
    groups: dict[object, list[HostThread]] = {}
    for thread in threads:
        rank = thread.task if thread.rank is None else thread.rank
        groups.setdefault({"thread": thread.thread, "rank": rank, "role": thread.role}.get(by), []).append(thread)
    sample_groups = []
    for group in groups.values():
        node_counts: dict[int, Ints] = {}
        for report, stacks in samples.stacks.items():
            nodes = [samples.threads[thread.thread].nodes for thread in group if thread.thread[0] == report]
            if nodes:
                node_counts[report] = np.bincount(np.concatenate(nodes), minlength=len(stacks.tree))
        sample_groups.append(SampleGroup(tuple(group), node_counts))
    return sample_groups


def counts(tree: StackTree, node_counts: Ints) -> tuple[Ints, Ints]:
    """Count the samples of each function at the end of a stack, and anywhere; shapes ``(functions,)``."""
    size = len(tree.functions)
    at_end = np.bincount(tree.function[1:], node_counts[1:], size).astype(np.int64)
    is_outermost = tree.is_outermost
    anywhere = np.bincount(tree.function[is_outermost], tree.totals(node_counts)[is_outermost], size).astype(np.int64)
    return at_end, anywhere


def function_counts(samples: CpuSamples, group: SampleGroup) -> dict[Function, tuple[int, int]]:
    """Count self and total samples of each function, including `NO_FUNCTION`, over all reports."""
    counts_by_function: dict[Function, tuple[int, int]] = {}
    for report, node_counts in group.node_counts.items():
        tree = samples.stacks[report].tree
        at_end, anywhere = counts(tree, node_counts)
        indices = np.flatnonzero(anywhere)
        rows = zip(indices.tolist(), at_end[indices].tolist(), anywhere[indices].tolist(), strict=True)
        for index, self_samples, total in rows:
            before = counts_by_function.get(tree.functions[index], (0, 0))
            counts_by_function[tree.functions[index]] = before[0] + self_samples, before[1] + total
        if node_counts[0]:
            before = counts_by_function.get(NO_FUNCTION, (0, 0))
            counts_by_function[NO_FUNCTION] = before[0] + int(node_counts[0]), before[1] + int(node_counts[0])
    return counts_by_function


def top_function(samples: CpuSamples, group: SampleGroup) -> Function | None:
    """Return the function at the end of most stacks; ``None`` without samples."""
    sums = function_counts(samples, group)
    return max(sums, key=lambda function: (sums[function][0], function.name), default=None)


def function_words(function: Function) -> str:
    """Name a function with its module: ``native::copy_ (libtorch_cpu.so)``."""
    from nsystui.base.kernel_names import function_name

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
    Column("function", header="Function", label="function"), MODULE, KERNEL_MODE, FULL_NAME, PATH,
)  # fmt: skip
_PLACE = {"all": (), "rank": (RANK,), "role": (ROLE,), "thread": (RANK, THREAD, TID)}


def place_of(group: SampleGroup, by: str) -> tuple[int | str | None, ...]:
    """Return the cells that identify a group."""
    thread = group.threads[0]
    cells = {"rank": (thread.rank,), "role": (thread.role,), "thread": (thread.rank, thread.name, thread.tid)}
    return cells.get(by, ())


def mode_of(function: Function) -> str:
    """Return ``kernel``, or nothing in user mode."""
    return "kernel" if function.is_kernel else ""


def functions_table(job: OpenJob, selection: Selection, by: str = "all", thread: str | None = None) -> TableAnswer:
    """Tabulate the functions of each group, most self samples first."""
    from nsystui.base.kernel_names import function_name

    samples = samples_of_job(job, selection)
    rows: list[Row] = []
    for group in grouped(samples, chosen_threads(job, samples, thread), by):
        group_total, cells = group.samples, place_of(group, by)
        for function, (ends, total) in function_counts(samples, group).items():
            share = [value for count in (ends, total) for value in (count, 100.0 * count / group_total)]
            name = function_name(function.name)
            rows.append((*cells, *share, name, function.library, mode_of(function), function.name, function.module))
    columns = (*_PLACE[by], *COLUMNS)
    keys = [column.key for column in columns]
    ends, total, full = keys.index("own"), keys.index("total"), keys.index("full_name")
    rows.sort(key=lambda row: (*(-int(row[index] or 0) for index in (ends, total)), str(row[full]), str(row[:ends])))
    total_rows = len(rows)
    if selection.name is not None:
        rows = [row for row in rows if selection.name.matches(str(row[full]))]
    return TableAnswer("functions", columns, rows, total_rows, sampling_notes(job.session, samples))


def running_stretches(sampled: ThreadSamples | None, period: int | None, states: Segments | None) -> Segments:
    """Return when a thread runs, labelled by the node of the nearest sample, or 0 if it is too far.

    A sample labels the time that is nearer to it than to other samples, while the thread stays on the CPU; without
    ``states``, at most a period before and after it.
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
    lasts = ends > starts
    return one_after_the_other(Segments(starts[lasts], ends[lasts], nodes[lasts]), unsampled)
