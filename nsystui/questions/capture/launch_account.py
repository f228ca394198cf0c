"""Accounts of launches: whether launched kernels were recorded, and whether the clocks of GPU and CPU agree.

See docs/numbers.md#launch-account.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from nsystui.base.answer import RANK, UNKNOWN, Column, Row, TableAnswer, Unit
from nsystui.base.selection import Selection, Task
from nsystui.base.text import counted
from nsystui.base.types import Condition, Query
from nsystui.base.units import format_value
from nsystui.exports import canonical
from nsystui.exports.canonical import CanonicalTable
from nsystui.exports.metadata import pid_of
from nsystui.questions.queries.data_notes import LOWER_BOUNDS, UNKNOWN_BY_CLOCK, conditional_notes
from nsystui.questions.queries.derived import rows_of_each_report
from nsystui.questions.queries.tasks import COPYING, GPU_TABLES, MUCH_LOST, rows_of_tasks
from nsystui.store.gpu_clock import CLOCK_NOISE
from nsystui.store.report import Report
from nsystui.store.session import Session

if TYPE_CHECKING:
    import sqlalchemy as sa

    from nsystui.questions.algebra.intervals import Intervals, Times
    from nsystui.questions.job.job import OpenJob

_STREAM = ("device", "context", "stream")
_ALL_STREAMS = -2
_KERNEL_LAUNCH, _GRAPH_LAUNCH, _COPY = 1, 2, 3
_ANY_ID = 1 << 62
_NO_ROWS = {key: np.zeros(0, np.int64) for key in ("correlation_id", "start", "end", "kind", *_STREAM)}
_COLUMNS = (
    RANK,
    Column("pid", header="PID", label="pid", unit=Unit.NUMBER, importance=1),
    Column("launches", header="Kernel Launches", label="launches", unit=Unit.COUNT),
    Column("kernels", header="Kernels", label="kernels", unit=Unit.COUNT),
    Column("lost_kernels", header="Launches without Kernel", label="no kernel", unit=Unit.COUNT),
    Column("lost_work", header="Graphs and Copies without GPU Work", label="no work", unit=Unit.COUNT, importance=1),
    Column("lost_launches", header="Kernels without Launch", label="no launch", unit=Unit.COUNT),
    Column("cut_off", header="Cut Off", label="cut off", unit=Unit.COUNT, importance=1),
    Column("least_delay", header="Least Launch Delay (ns)", label="least delay", unit=Unit.DURATION),
    Column("after_wait", header="End after Wait (ns)", label="end after wait", unit=Unit.DURATION, importance=1),
)


@dataclass(frozen=True)
class LaunchAccount:
    """The kernel launches and kernels of a process, and the offsets of its GPUs' clocks.

    ``lost_work`` of ``work_calls`` (graphs, copies, memsets) lack work; ``cut_off``: work at the edges of the capture,
    which is not lost. ``least_delay``: the least time from a launch to its kernel, ns; negative if the GPU's clock is
    behind. ``after_wait``: the most from a wait's end to its kernels' end, ns; positive if it is ahead.
    """

    launches: int
    kernels: int
    lost_kernels: int
    work_calls: int
    lost_work: int
    lost_launches: int
    cut_off: int
    least_delay: int | None
    after_wait: int | None
    lost_graphs: int = 0
    """The graphs of ``lost_work``."""
    unsure: int = 0
    """Launches and copies without work that may have been captured into graphs, by captures that were not recorded."""

    @property
    def clock_error(self) -> int:
        """The proven lead of the GPU's clock over the CPU's, ns; negative if it is behind, 0 up to `CLOCK_NOISE`."""
        error = min(self.least_delay or 0, 0) or max(self.after_wait or 0, 0)
        return error if abs(error) > CLOCK_NOISE else 0

    @property
    def lacks_much(self) -> tuple[str, ...]:
        """The canonical tables that lack `MUCH_LOST` of the kernels or other work."""
        pairs = ((self.lost_kernels, self.launches), (self.lost_work, self.work_calls))
        kernels, work = (lost > 0 and 100 * lost >= MUCH_LOST * calls for lost, calls in pairs)
        is_lost = kernels, work and self.lost_work > self.lost_graphs, work and self.lost_graphs > 0
        return tuple(table.name for table, lacks in zip(GPU_TABLES, is_lost, strict=True) if lacks)


def losses(accounts: Collection[LaunchAccount]) -> list[str]:
    """Return words for the GPU work that processes launched and that is missing."""
    kernels, launches, work, calls = (
        sum(getattr(item, key) for item in accounts) for key in ("lost_kernels", "launches", "lost_work", "work_calls")
    )
    words = f"{counted(kernels, 'kernel launch', 'have', launches)} no kernel"
    others = f"{counted(work, 'graph launch, copy or memset call', 'have', calls)} no GPU work"
    missing = [*[words] * bool(kernels), *[others] * bool(work)]
    if missing and (unsure := sum(item.unsure for item in accounts)):
        number = f"{unsure:,} of these " if unsure < kernels + work else ""
        missing[-1] += f" ({number}captured into a graph or lost)"
    return missing


@dataclass
class _Counts:
    """Counts of a process; times on its report's clock, ns."""

    calls: Counter[int] = field(default_factory=Counter)
    """The number of calls by kind."""
    kernels: int = 0
    lone_calls: defaultdict[int, list[Times]] = field(default_factory=lambda: defaultdict(list))
    lone_kernels: list[Times] = field(default_factory=list)
    delays: list[int] = field(default_factory=list)
    after_waits: list[int] = field(default_factory=list)
    first_call: int = _ANY_ID
    end: int = -_ANY_ID
    longest: int = 0
    """The longest kernel, ns."""

    def add(self, *portions: Mapping[str, Times]) -> None:
        calls, kernels, waits, *others = portions
        ids = [work["correlation_id"] for work in (kernels, *others)]
        for kind in (_KERNEL_LAUNCH, _GRAPH_LAUNCH, _COPY):
            is_kind = calls["kind"] == kind
            self.calls[kind] += int(is_kind.sum())
            of_kind = np.concatenate(ids[: 1 if kind == _KERNEL_LAUNCH else None])
            is_lone = is_kind & ~np.isin(calls["correlation_id"], of_kind)
            self.lone_calls[kind].append(np.stack([calls["start"], calls["end"]])[:, is_lone])
        is_launch = calls["kind"] == _KERNEL_LAUNCH
        self.kernels += len(kernels["start"])
        self.first_call = min(self.first_call, calls["start"].min(initial=_ANY_ID))
        self.end = max(self.end, *(rows["end"].max(initial=-_ANY_ID) for rows in (calls, kernels)))
        self.longest = max(self.longest, (kernels["end"] - kernels["start"]).max(initial=0))
        has_call = np.isin(kernels["correlation_id"], calls["correlation_id"])
        self.lone_kernels.append(kernels["start"][~has_call])
        order = np.argsort(calls["correlation_id"])
        paired = {key: values[has_call] for key, values in kernels.items()}
        call_indices = order[np.searchsorted(calls["correlation_id"], paired["correlation_id"], sorter=order)]
        delays = (paired["start"] - calls["start"][call_indices])[is_launch[call_indices]]
        self.delays += [int(extreme(delays)) for extreme in (np.min, np.max) if len(delays)]
        call_ends = calls["end"][call_indices]
        for stream in {*zip(*(waits[key].tolist() for key in _STREAM), strict=True)}:
            keys = _STREAM[:2] if stream[2] == _ALL_STREAMS else _STREAM
            is_stream = np.logical_and.reduce([paired[key] == value for key, value in zip(keys, stream, strict=False)])
            is_wait = np.logical_and.reduce([waits[key] == value for key, value in zip(_STREAM, stream, strict=True)])
            end_order = np.argsort(call_ends[is_stream])
            earlier = np.searchsorted(call_ends[is_stream][end_order], waits["start"][is_wait])
            ends = np.maximum.accumulate(paired["end"][is_stream][end_order])
            if lateness := (ends[earlier[earlier > 0] - 1] - waits["end"][is_wait][earlier > 0]).tolist():
                self.after_waits.append(max(lateness))

    def account(self, captures: Intervals, unsure_until: int, left_out: Sequence[int]) -> LaunchAccount:
        """Return the account of all portions; launches during ``captures`` of graphs make nodes, not kernels.

        Launches before ``unsure_until`` may also have made nodes, of captures that were not recorded.
        """
        kernels_left_out, work_left_out, calls_left_out = left_out
        calls = {}
        for kind, parts in self.lone_calls.items():
            starts, ends = np.concatenate(parts, axis=1)
            calls[kind] = starts[(captures.covered(starts, ends + 1) == 0) | (kind == _GRAPH_LAUNCH)]
        max_delay = max(self.delays, default=0)
        lost = {kind: starts + max_delay + self.longest < self.end for kind, starts in calls.items()}
        lost[_COPY] &= 100 * lost[_COPY].sum() >= MUCH_LOST * self.calls[_COPY]
        is_kernel_lost, graphs, copies = lost[_KERNEL_LAUNCH], int(lost[_GRAPH_LAUNCH].sum()), int(lost[_COPY].sum())
        unsure = sum(int((lost[kind] & (calls[kind] < unsure_until)).sum()) for kind in (_KERNEL_LAUNCH, _COPY))
        is_launch_lost = np.concatenate(self.lone_kernels) - max_delay > self.first_call
        return LaunchAccount(
            self.calls[_KERNEL_LAUNCH], self.kernels, max(int(is_kernel_lost.sum()) - kernels_left_out, 0),
            self.calls[_COPY] + self.calls[_GRAPH_LAUNCH], max(graphs + copies - work_left_out, 0),
            max(int(is_launch_lost.sum()) - calls_left_out, 0),
            int((~is_kernel_lost).sum() + (~is_launch_lost).sum()), min(self.delays, default=None),
            max(self.after_waits, default=None), graphs, unsure,
        )  # fmt: skip


def _left_out(reports: Collection[Report]) -> dict[int, list[int]]:
    """Return the numbers of kernels, other GPU work and calls that cannot be used, of reports with whole calls."""

    def unused(report: Report, *names: str) -> int:
        rows = (left_out.rows for name in names if (left_out := report.packed.left_out.get(name)))
        return sum(rows) + _ANY_ID * any(name in report.damaged for name in names)

    kernels, memory, graphs, calls = (table.name for table in (*GPU_TABLES, canonical.API_CALLS))
    return {
        report.index: [unused(report, kernels), unused(report, memory, graphs), unused(report, calls)]
        for report in reports
        if report.count(canonical.API_CALLS) and not report.damaged.keys() & {kernels, calls}
    }


def with_lost_work(job: OpenJob, selection: Selection, answer: TableAnswer, kept: bool = False) -> TableAnswer:
    """Add notes on missing kernels; reads calls only if counts show a lack, and none with ``kept`` accounts."""
    notes, reports = conditional_notes(job.session), list(job.session.reports)
    if not kept:
        from nsystui.questions.queries.recording import may_lack_work

        reports = [report for report in reports if may_lack_work(job.session, report)]
    if reports:
        notes = lost_work_notes(job.session, selection, reports, kept)
    return replace(answer, notes=tuple(dict.fromkeys((*notes, *answer.notes))))


def launch_accounts(
    session: Session, reports: Collection[Report], of_all: bool = False, kept: bool = False
) -> dict[Task, LaunchAccount]:
    """Return the account of each process with launches, of reports that were read whole; with ``kept``, if stored.

    A process without recorded GPU work counts only if it shares its GPU, or with ``of_all``.
    """
    calls = canonical.API_CALLS
    stored = rows_of_each_report(session, reports, "launch-accounts", _accounts, table=calls, in_memory=True, kept=kept)
    if not (rows := list(stored)):
        return {}
    from nsystui.questions.gpu.utilisation import silent_work

    silent = {task for tasks in silent_work(session).values() for task in tasks}
    return {
        Task(index, process): LaunchAccount(*values)
        for index, process, has_work, *values in rows
        if of_all or has_work or Task(index, process) in silent
    }


def _accounts(session: Session, reports: list[Report]) -> Iterator[tuple[int | None, ...]]:
    from nsystui.questions.algebra.intervals import EMPTY
    from nsystui.questions.steps.task_steps import launch_id_spans

    counts: defaultdict[Task, _Counts] = defaultdict(_Counts)
    left_out = _left_out(reports)
    report_indices = list(left_out)
    spans = [list(span) for span in launch_id_spans(session, report_indices)] if report_indices else []
    if spans:  # kernels may have ids that no call has
        spans[0][0], spans[-1][1] = -_ANY_ID, _ANY_ID
    for first, last in spans:
        portions = [_by_task(session, query) for query in _queries(report_indices, first, last)]
        for task in set().union(*portions):
            counts[task].add(*(portion.get(task, _NO_ROWS) for portion in portions))
    captures = _graph_captures(session, report_indices) if counts else {}
    worked = set[Task]().union(*(rows_of_tasks(session, table, reports) for table in GPU_TABLES))
    for task, count in counts.items():
        if count.calls[_KERNEL_LAUNCH] and task.process != canonical.NO_PROCESS:
            account = count.account(*captures.get(task, (EMPTY, 0)), left_out[task.report])
            yield *astuple(task), task in worked, *astuple(account)


def untimed_work(report: Report) -> Iterator[tuple[CanonicalTable, int, int]]:
    """Yield tables of GPU work that lack much because of impossible times, rows left out, and all rows."""
    for table in GPU_TABLES:
        left_out = rows.rows if (rows := report.packed.left_out.get(table.name)) else 0
        if left_out and 100 * left_out >= MUCH_LOST * (left_out + report.count(table)):
            yield table, left_out, left_out + report.count(table)


def lost_work(session: Session) -> dict[tuple[Task, int], set[str]]:
    """Return the names of the tables that lack much of the GPU work of any process, by used GPU."""
    from nsystui.questions.gpu.utilisation import gpu_keys, silent_work
    from nsystui.questions.queries.recording import unrecorded_work

    accounts, unrecorded = launch_accounts(session, session.reports), unrecorded_work(session, session.reports)
    reports = {report.index: report for report in session.reports}
    keys, silent = gpu_keys(session), silent_work(session)
    lost_on: defaultdict[Hashable, set[str]] = defaultdict(set)
    for key, gpu in keys.items():
        for task in (key[0], *silent[key]):
            report, account = reports[task.report], accounts.get(task)
            lost_on[gpu].update(unrecorded[task], account.lacks_much if account else ())
            lost_on[gpu].update(table.name for table, *_ in untimed_work(report))
            lost_on[gpu].update(table.name for table in GPU_TABLES if table.name in report.damaged)
    return {key: lost_on[gpu] for key, gpu in keys.items() if lost_on[gpu]}


def lost_work_notes(
    session: Session, selection: Selection, reports: Sequence[Report] = (), kept: bool = False
) -> list[str]:
    """Return notes on launched kernels that are missing, and on clocks that differ; by default of all reports."""
    accounts = launch_accounts(session, reports or session.reports, kept=kept)
    if selection.tasks:
        from nsystui.questions.gpu.utilisation import gpu_users

        chosen = gpu_users(session, selection.tasks)
        accounts = {task: item for task, item in accounts.items() if task in chosen}
    lost = losses([item for item in accounts.values() if item.lost_kernels + item.lost_work])
    error = max((abs(item.clock_error) for item in accounts.values()), default=0)
    apart = f"the clocks of GPU and CPU differ by {format_value(Unit.DURATION, error)} or more: {UNKNOWN_BY_CLOCK}"
    missing = f"{' and '.join(lost)}; {LOWER_BOUNDS}"
    return [*[missing] * bool(lost), *[apart] * bool(error), *conditional_notes(session)]


def _queries(reports: Sequence[int], first: int, last: int) -> Iterator[Query]:
    """Yield queries of successful calls, kernels, waits and other work with ids from ``first`` to ``last``."""
    import sqlalchemy as sa

    from nsystui.questions.queries.conditions import is_launched_by, of_reports
    from nsystui.store import tables

    api, kernels, syncs = tables.api_calls, tables.kernels, tables.syncs
    is_launch = api.c.name.contains("Launch") & ~api.c.name.contains("HostFunc")
    is_copy = sa.or_(*(api.c.name.contains(word) for word in COPYING)) & ~api.c.name.contains("Graph")
    is_graph = api.c.name.contains("GraphLaunch")
    kind = sa.case((is_graph, _GRAPH_LAUNCH), (is_launch, _KERNEL_LAUNCH), (is_copy, _COPY), else_=0)
    # Some versions of nsys also call cudaStreamWaitEvent a "Stream sync".
    is_wait = api.c.name.contains("Synchronize") & ~api.c.name.contains("Event")
    stream = sa.case((api.c.name.contains("Stream"), syncs.c.stream), else_=_ALL_STREAMS).label("stream")
    of_kernel, of_wait = (
        (table.c.device, sa.func.coalesce(table.c.context, UNKNOWN).label("context")) for table in (kernels, syncs)
    )
    for table, source, condition, *values in (
        (api, api, _succeeded(api), kind.label("kind")),
        (kernels, kernels, sa.true(), *of_kernel, kernels.c.stream),
        (api, syncs.join(api, is_launched_by(syncs, api)), is_wait & _succeeded(api), *of_wait, stream),
        (tables.memory_ops, tables.memory_ops, sa.true()),
        (tables.graph_launches, tables.graph_launches, sa.true()),
    ):
        columns = table.c
        query = sa.select(columns.report, columns.process, columns.correlation_id, columns.start, columns.end, *values)
        are_known = (column.is_not(None) for column in (columns.process, columns.start, columns.end))
        query = query.where(of_reports(columns.report, reports), *are_known, condition)
        yield query.select_from(source).where(columns.correlation_id.between(first, last))


def _by_task(session: Session, query: Query) -> dict[Task, dict[str, Times]]:
    from nsystui.questions.queries.process_rows import rows_by_task

    batches: defaultdict[Task, list[dict[str, Times]]] = defaultdict(list)
    for batch in session.array_batches(query):
        for task, rows in rows_by_task(batch):
            batches[task].append(rows)
    return {
        task: {key: np.concatenate([rows[key] for rows in parts]) for key in parts[0]}
        for task, parts in batches.items()
    }


def _succeeded(api: sa.FromClause) -> Condition:
    return api.c.return_value.is_(None) | (api.c.return_value == 0)


def _graph_captures(session: Session, reports: Sequence[int]) -> dict[Task, tuple[Intervals, int]]:
    """Return when each process captured graphs, and until when it may have captured others, ns.

    See docs/numbers.md#launch-account.
    """
    from nsystui.questions.algebra.intervals import union

    captures: defaultdict[Task, list[tuple[int, int]]] = defaultdict(list)
    opened: defaultdict[Task, list[int]] = defaultdict(list)
    lone_end, made = Counter[Task](), Counter[Task]()
    for report, process, start, end, name in session.rows(_graph_events(reports)):
        task = Task(report, process)
        made[task] = start
        if "BeginCapture" in name:
            opened[task].append(start)
        elif name == "node" or ("EndCapture" in name and opened.get(task)):
            captures[task].append((start if name == "node" else opened[task].pop(), end))
        elif "EndCapture" in name:
            lone_end[task] = start
    spans = {task: captures[task] + [(start, _ANY_ID) for start in opened.get(task, ())] or [(0, 0)] for task in made}
    return {task: (union(*np.array(spans[task]).T), (lone_end if task in opened else made)[task]) for task in made}


def _graph_events(reports: Sequence[int]) -> sa.Executable:
    """Return a query of nodes, and of calls that begin or end captures, or make or update graphs."""
    import sqlalchemy as sa

    from nsystui.questions.queries.conditions import of_reports
    from nsystui.store import tables

    api, nodes = tables.api_calls.c, tables.graph_nodes.c
    is_named = sa.or_(*(api.name.contains(word) for word in ("EndCapture", "GraphInstantiate", "GraphExecUpdate")))
    is_named |= api.name.contains("StreamBeginCapture") & _succeeded(tables.api_calls)
    calls = sa.select(
        api.report, api.process, api.start.label("time"), sa.func.coalesce(api.end, api.start), api.name
    ).where(of_reports(api.report, reports), api.process.is_not(None), is_named)
    times = sa.select(nodes.report, nodes.process, nodes.time, nodes.time + 1, sa.literal("node")).where(
        of_reports(nodes.report, reports), nodes.process.is_not(None), nodes.time.is_not(None)
    )
    return sa.union_all(calls, times).order_by("time")


def account_table(job: OpenJob, accounts: Mapping[Task, LaunchAccount] | None = None) -> TableAnswer:
    """Tabulate accounts by rank, by default of all processes with launches."""
    ranks = {item.task: item.rank for item in job.ranks}
    if accounts is None:
        accounts = launch_accounts(job.session, job.session.reports, of_all=True)
    rows: list[Row] = [
        (ranks.get(task), pid_of(task.process), *(getattr(account, column.key) for column in _COLUMNS[2:]))
        for task, account in sorted(accounts.items(), key=lambda item: (ranks.get(item[0], len(ranks)), item[0]))
    ]
    return TableAnswer("launches", _COLUMNS, rows, len(rows))
