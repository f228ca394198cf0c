"""Processes with their names and GPUs, the tasks of the job, and their rank numbers.

See docs/ranks.md#rank-numbers.

A task is a (report, process) that used a GPU, or in a report without any GPU work, a process with other events.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import zip_longest
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from nsystui.base.answer import UNKNOWN, Column
from nsystui.base.errors import UsageError
from nsystui.base.selection import Selection, Task
from nsystui.base.text import whole_number
from nsystui.base.types import Expression, grouped
from nsystui.exports.canonical import BY_NAME, NO_PROCESS, CanonicalTable
from nsystui.exports.discover import NEXT_CAPTURE
from nsystui.exports.metadata import (
    ALLOCATION_VARIABLE,
    LOCAL_RANK_VARIABLES,
    RANK_VARIABLES,
    SIZE_VARIABLES,
    SYSTEM_WIDE,
    pid_of,
)
from nsystui.questions.queries.derived import JsonRow, rows_of_each_report
from nsystui.questions.queries.mpi import has_mpi
from nsystui.questions.queries.time_window import report_at
from nsystui.store.report import Report
from nsystui.store.session import Session

if TYPE_CHECKING:
    import sqlalchemy as sa

    from nsystui.questions.queries.numbering import Numbering


COPYING = ("Memcpy", "Memset")
GPU_TABLES = (BY_NAME["kernels"], BY_NAME["memory_ops"], BY_NAME["graph_launches"])
"""Tables of work that ran on a GPU."""
MUCH_LOST = 1.0
"""A capture is incomplete if it lacks this share of the launched kernels, or of the times of GPU work, %."""


@dataclass(frozen=True)
class UsedDevice:
    """A GPU that a process used; ``device`` is its CUDA ordinal in the process, ``gpu`` its number on the host."""

    task: Task
    device: int
    gpu: int | None
    name: str | None
    uuid: str | None


def used_devices(session: Session) -> list[UsedDevice]:
    """Return all (process, GPU) pairs, by report, process and ordinal."""
    devices = {row[:3]: UsedDevice(Task(*row[:2]), *row[2:]) for row in _process_facts(session, _DEVICE)}
    return list(devices.values())  # a device that captures describe differently is one device


def process_names(session: Session) -> dict[Task, str]:
    """Return the program's path of each process, if recorded."""
    return {Task(report, process): name for report, process, name in _process_facts(session, _NAME)}


def thread_names(session: Session) -> dict[tuple[int, int], str]:
    """Return the names of named threads by (report, thread); nsys writes a thread's last name."""
    import sqlalchemy as sa

    from nsystui.store.tables import threads

    query = sa.select(threads.c.report, threads.c.thread, threads.c.name).where(threads.c.name.is_not(None))
    return {(report, thread): name for report, thread, name in session.rows(query)} if session.reports else {}


def rows_of_tasks(
    session: Session, table: CanonicalTable, reports: Iterable[Report], eager: bool = False
) -> dict[Task, int]:
    """Count the rows of each process in a table; processes without rows are omitted.

    With ``eager``, operations of CUDA graphs that are traced by node do not count.
    """
    row_counts: dict[Task, int] = {}
    untallied = []
    for report in reports:
        tally = None if eager else session.tally(report, table)
        if tally is None:
            untallied.append(report.index)
        else:
            row_counts.update({Task(report.index, process): rows for process, rows in tally.processes.items()})
    if any(report.count(table) for report in session.reports if report.index in untallied):
        import sqlalchemy as sa

        from nsystui.questions.queries.conditions import of_reports
        from nsystui.store import tables

        columns = tables.of(table).c
        process_key = (columns.report, columns.process)
        query = (
            sa.select(*process_key, sa.func.count())
            .where(of_reports(process_key[0], untallied), process_key[1].is_not(None))
            .group_by(*process_key)
        )
        if eager:
            query = query.where(columns.graph_node_id.is_(None))
        row_counts.update({Task(report, process): int(rows) for report, process, rows in session.rows(query)})
    return row_counts


_DEVICE, _NAME = "device", "name"


def _process_facts(session: Session, kind: str) -> list[JsonRow]:
    """Return report, process, ordinal, GPU, name and UUID of devices, or report, process and name; by report."""
    rows = rows_of_each_report(session, session.reports, "processes", _devices_and_names, in_memory=True)
    return sorted(((report, *values) for report, row_kind, *values in rows if row_kind == kind), key=itemgetter(0))


def _devices_and_names(session: Session, reports: list[Report]) -> Iterator[JsonRow]:
    import sqlalchemy as sa

    from nsystui.questions.queries.conditions import of_reports
    from nsystui.store import tables

    indices = [report.index for report in reports]
    device, process = tables.devices.c, tables.processes.c
    devices = (
        sa.select(device.report, device.process, device.device, device.gpu, device.name, device.uuid)
        .where(of_reports(device.report, indices), device.process.is_not(None))
        .order_by(device.report, device.process, device.device)
    )
    names = sa.select(process.report, process.process, process.name).where(
        of_reports(process.report, indices), process.name.is_not(None)
    )
    for kind, query in ((_DEVICE, devices), (_NAME, names)):
        yield from ((report, kind, *values) for report, *values in session.rows(query))


ROLE = Column("role", header="Role", label="role")
_MAX_RANK = 999_999
MPI, NCCL, ENVIRONMENT, FILE_NAME = "MPI", "NCCL communicator", "captured environment", "file name"
PROCESS_NAME = "process name"
"""Sources of rank numbers; numbers of MPI and NCCL do not depend on the other open reports."""
BY_ORDER = "order of files and devices"
"""The source if nothing records rank numbers."""
Ranks = dict[Task, int]

_NUMBERS = re.compile(r"(?:[-_.:]?(?:[A-Z]{2,3}|rank)?[0-9]+)*(?:_[A-Z]{1,2}P)?$")  # Linux cuts names: Worker_TP
_PARALLEL = re.compile(r"_(DP|PP|TP)([0-9]{1,4})(?![0-9])")
_FILE_PATTERNS = (r"rank[_-]?(\d+)", r"_N\d+_(\d+)", r"_(\d+)$")


@dataclass(frozen=True)
class RankedTask:
    """A task and its rank in the job. ``local_rank`` and ``pid`` are ``None`` if they are not recorded."""

    task: Task
    rank: int
    source: str
    local_rank: int | None
    host: str
    pid: int | None
    process_name: str
    report_name: str
    devices: tuple[int, ...]
    gpu_names: tuple[str, ...]

    @property
    def role(self) -> str | None:
        """The process's name without a package and numbers: ``Worker`` of ``VLLM::Worker_TP3``; ``None`` if unknown."""
        return _role(self.process_name)

    @property
    def gpu(self) -> str:
        """The models of its GPUs; equal models are shown once, with their number."""
        names, count = list(dict.fromkeys(self.gpu_names)), sum(device != UNKNOWN for device in self.devices)
        return f"{count}× {names[0]}" if count > 1 and len(names) == 1 else " + ".join(names)


def _role(process_name: str) -> str | None:
    name = process_name.rpartition("::")[2]
    return _NUMBERS.sub("", name) or name or None


def with_roles(columns: Sequence[Column], ranks: Iterable[RankedTask]) -> tuple[Column, ...]:
    """Return columns that begin with the rank, with the role after it if the ranks have several."""
    return (*columns[:1], *[ROLE.with_importance(1)] * (len({item.role for item in ranks}) > 1), *columns[1:])


def roles_by_task(session: Session, ranks: Iterable[RankedTask]) -> dict[Task, str | None]:
    """Return the role of each process, also without GPU work."""
    roles = {task: _role(name.rpartition("/")[2]) for task, name in process_names(session).items()}
    return roles | {item.task: item.role for item in ranks}


def ranked_tasks(session: Session, given: Numbering | None = None) -> tuple[RankedTask, ...]:
    """Return all tasks of the open reports, by rank.

    ``given`` holds the user's rank numbers. Raises UsageError if they do not match the reports.
    """
    devices = _devices(session)
    tasks = _tasks(session, devices)
    ranks, source = _numbered(session, tasks, devices, given)
    names, single_tasks = process_names(session), _single_tasks(tasks)
    ranked = []
    for task in tasks:
        report = report_at(session, task.report)
        used = devices.get(task, ())
        variables = report.metadata.environment
        local_ranks = (_number(variables.get(variable, "")) for variable in LOCAL_RANK_VARIABLES)
        program = names.get(task, "").rpartition("/")[2]
        ranked.append(
            RankedTask(
                task, ranks[task], source,
                next((rank for rank in local_ranks if rank is not None), None) if task in single_tasks else None,
                report.metadata.host, None if task.process == NO_PROCESS else pid_of(task.process),
                report.metadata.command.rpartition("/")[2] if program == _LAUNCHER else program, report.name,
                tuple(device for device, _ in used), tuple(name for _, name in used if name),
            )
        )  # fmt: skip
    return tuple(sorted(ranked, key=lambda item: (item.rank, item.task)))


_LAUNCHER = "nsys-launcher"
"""nsys's starter of the profiled program; in some exports, the process keeps this name."""


def selected_ranks(ranks: Sequence[RankedTask], selection: Selection) -> list[RankedTask]:
    """Return the selected ranks, in their order."""
    return [item for item in ranks if selection.tasks is None or item.task in selection.tasks]


def ranks_alone(session: Session, tasks: list[Task]) -> tuple[Ranks, str]:
    """Return the tasks' ranks as if no other tasks were open, and their source."""
    return _numbered(session, tasks, _devices(session), None)


def ranks_of_themselves(session: Session, tasks: list[Task], sources: Collection[str]) -> dict[str, Ranks]:
    """Return the tasks' ranks by each of ``sources`` (MPI and NCCL) that gives each task a different number."""
    results = {name: read(session, tasks) for name, read in ((MPI, _from_mpi), (NCCL, _from_nccl)) if name in sources}
    return {name: ranks for name, ranks in results.items() if len(set(ranks.values())) == len(tasks)}


def world_size(session: Session) -> int | None:
    """Return the job's number of ranks, if all reports that record it agree.

    An allocation's size counts only if something else shows several processes: ``-n 8`` may start one program.
    """
    recorded_sizes, allocation_sizes = set(), set()
    for report in session.reports:
        environment = report.metadata.environment
        sizes = {size for name in SIZE_VARIABLES if (size := _number(environment.get(name, "")))}
        recorded_sizes |= sizes
        if not sizes and (size := _number(environment.get(ALLOCATION_VARIABLE, ""))):
            allocation_sizes.add(size)
    if allocation_sizes and (recorded_sizes or _has_ranks(session)):
        recorded_sizes |= allocation_sizes
    return recorded_sizes.pop() if len(recorded_sizes) == 1 else None


def _has_ranks(session: Session) -> bool:
    if len(session.reports) > 1 or session.count(BY_NAME["nccl_calls"]) or has_mpi(session):
        return True
    if any(_number(report.metadata.environment.get(name, "")) for report in session.reports for name in RANK_VARIABLES):
        return True  # a rank above 0
    if not session.count(BY_NAME["kernels"]):
        return False
    import sqlalchemy as sa

    from nsystui.store import tables

    kernels = tables.kernels.c
    return bool(session.rows(sa.select(kernels.row).where(sa.cast(kernels.is_nccl, sa.Boolean)).limit(1)))


def _numbered(
    session: Session, tasks: Sequence[Task], devices: Mapping[Task, Any], given: Numbering | None
) -> tuple[Ranks, str]:
    """Return each task's rank, and the source; GPU work without a process is numbered last."""
    reports_with_processes = {task.report for task in tasks if task.process != NO_PROCESS}
    numbered = [task for task in tasks if task.process != NO_PROCESS or task.report not in reports_with_processes]
    if given is None:
        ranks, source = _ranks(session, numbered, devices)
    else:
        ranks, source = _given(session, _main(numbered, devices), given), "--ranks"
    last = [task for task in tasks if task not in ranks]
    return ranks | {task: number for number, task in enumerate(last, max(ranks.values(), default=-1) + 1)}, source


def _main(tasks: Sequence[Task], devices: Collection[Task]) -> list[Task]:
    """Return the tasks with GPU work, and all tasks of reports without any."""
    with_gpu = {task.report for task in devices}
    return [task for task in tasks if task in devices or task.report not in with_gpu]


def _given(session: Session, tasks: list[Task], given: Numbering) -> Ranks:
    reports = {task.report: report_at(session, task.report) for task in tasks}
    for report in reports.values():
        count = sum(task.report == report.index for task in tasks)
        if count > 1:
            raise UsageError(f"--ranks {given.text!r}: {report.name} holds {count} ranks, which a name cannot number")
    return dict(zip(tasks, given.numbers([reports[task.report].name for task in tasks]), strict=True))


def _devices(session: Session) -> dict[Task, tuple[tuple[int, str], ...]]:
    devices = grouped((used.task, (used.device, used.name or "")) for used in used_devices(session))
    return {task: tuple(used) for task, used in devices.items()}


def _tasks(session: Session, devices: Mapping[Task, Any]) -> list[Task]:
    """Return the tasks of each report: processes with GPU work, or whose launched work was not recorded.

    Without any, processes with CUDA or MPI calls or NVTX ranges, or else the process with the most OS runtime calls.
    """
    tasks = {*devices, *silent_processes(session, devices)}
    with_gpu = {task.report for task in devices}
    for report in (report for report in session.reports if report.index not in with_gpu):
        working = (BY_NAME[name] for name in ("api_calls", "mpi_calls", "nvtx_ranges"))
        table = next((table for table in working if report.count(table)), None)
        calls = rows_of_tasks(session, table or BY_NAME["os_calls"], [report])
        tasks.update(sorted(calls, key=lambda task: (-calls[task], task))[: 1 if table is None else None])
    for report in (report for report in session.reports if SYSTEM_WIDE in report.metadata.asked):
        tasks -= _of_other_programs(session, report, {task for task in tasks if task.report == report.index})
    return sorted(tasks)


def _of_other_programs(session: Session, report: Report, tasks: set[Task]) -> set[Task]:
    """Return the tasks that only system-wide tracing of CUDA added: nsys records no other calls and ranges of them.

    Tasks with the role of a profiled task are profiled, too; without such records, all.
    """
    tables = (BY_NAME[name] for name in ("nvtx_ranges", "os_calls", "mpi_calls", "library_calls"))
    profiled = {task for table in tables for task in rows_of_tasks(session, table, [report])} & tasks
    roles = roles_by_task(session, ())
    profiled_roles = {roles.get(task) for task in profiled} - {None}
    return {task for task in tasks if profiled and task not in profiled and roles.get(task) not in profiled_roles}


def silent_processes(session: Session, working: Collection[Task]) -> dict[Task, Counter[str]]:
    """Count the calls, by name, of processes that launched work without a record next to ``working`` processes.

    Reads calls only if a process has a CUDA context, but no work, or if contexts are not recorded.
    """

    def read(part: Session, reports: list[Report]) -> list[JsonRow]:
        return [(*astuple(task), calls) for task, calls in launches_without_work(part, reports).items()]

    reports = []
    for report in session.reports if working else ():
        facts = report.metadata
        contexts = facts.blocking_streams_by_pid.keys() | {device.pid for device in facts.cuda_devices}
        pids = {pid_of(task.process) for task in working if task.report == report.index}
        if contexts - pids or (pids and not contexts):
            reports.append(report)
    rows = rows_of_each_report(session, reports, "launching-processes", read, in_memory=True)
    return {Task(index, process): Counter(calls) for index, process, calls in rows}


def launches_without_work(session: Session, reports: Iterable[Report]) -> dict[Task, dict[str, int]]:
    """Count by name the successful calls that launch, copy or set memory, of processes without any GPU work.

    Leaves out reports that lost GPU work, or have work of unknown processes.
    """
    complete = [
        report
        for report in reports
        if not any(table.name in report.damaged or report.packed.left_out.get(table.name) for table in GPU_TABLES)
    ]
    working = {task for table in GPU_TABLES for task in rows_of_tasks(session, table, complete)}
    indices = [report.index for report in complete if Task(report.index, NO_PROCESS) not in working]
    counts: dict[Task, dict[str, int]] = {}
    for task, name, count in work_calls(session, indices, ("Launch", *COPYING)):
        if task not in working and task.process is not None:
            counts.setdefault(task, {})[name] = count
    return counts


def work_calls(session: Session, reports: Sequence[int], names: Sequence[str]) -> Iterator[tuple[Task, str, int]]:
    """Yield the number of successful calls outside of captures whose names contain a word, by process and name."""
    import sqlalchemy as sa

    from nsystui.questions.queries.conditions import of_reports
    from nsystui.store import tables

    if not reports or not names or not session.count(BY_NAME["api_calls"]):
        return
    calls = tables.api_calls.c
    begins, ends = (calls.name.contains(f"Stream{edge}Capture") for edge in ("Begin", "End"))
    is_launch = sa.or_(*(calls.name.contains(word) for word in names))
    is_launch &= ~calls.name.contains("Node") & ~calls.name.contains("HostFunc")
    columns = calls.report, calls.process, calls.name
    succeeded = of_reports(calls.report, reports), calls.return_value.is_(None) | (calls.return_value == 0)
    rows = session.rows(sa.select(*columns, sa.func.count()).where(*succeeded, is_launch | begins).group_by(*columns))
    if any("BeginCapture" in name for _, _, name, _ in rows):  # orders all calls: slow for millions
        opened = sa.func.sum(sa.case((begins, 1), (ends, -1), else_=0))
        open_captures = opened.over(partition_by=columns[:2], order_by=calls.start).label("captures")
        query = sa.select(*columns, is_launch.label("launches"), open_captures)
        call = query.where(*succeeded, is_launch | begins | ends).subquery().c
        counted = sa.select(*list(call)[:3], sa.func.count()).where(call.launches, call.captures <= 0)
        rows = session.rows(counted.group_by(*list(call)[:3]))
    for *task, name, count in rows:
        yield Task(*task), name, count


def _ranks(session: Session, tasks: list[Task], devices: Mapping[Task, Any]) -> tuple[Ranks, str]:
    """Return the ranks of the first source that numbers each task differently (docs/ranks.md#rank-numbers).

    Tasks whose launched work was not recorded may lack a number.
    """
    main = _main(tasks, devices)
    alone = [report_at(session, task.report) for task in main] if len(_single_tasks(main)) == len(main) else []

    def numbered(numbers: Sequence[int]) -> Ranks:
        return dict(zip(main, numbers, strict=False))

    packed = {task: report_at(session, task.report).ranks.get(task.process) for task in tasks}
    sources: tuple[tuple[str, Callable[[], Ranks]], ...] = (
        ("packed job", lambda: {task: rank % NEXT_CAPTURE for task, rank in packed.items() if rank is not None}),
        (MPI, lambda: _from_mpi(session, tasks)),
        (NCCL, lambda: _from_nccl(session, tasks)),
        (ENVIRONMENT, lambda: numbered(by_environment([report.metadata.environment for report in alone]))),
        (PROCESS_NAME, lambda: _from_process_names(session, tasks)),
        (FILE_NAME, lambda: numbered(by_file_name([report.name for report in alone]))),
    )
    for name, read in sources:
        ranks = read()
        if ranks.keys() >= set(main) and len(set(ranks.values())) == len(ranks) and tasks:
            return ranks, name
    ordered = sorted(main, key=lambda task: (task.report, devices.get(task, ((0, ""),))[0][0], task.process))
    for task in sorted(set(tasks) - set(main)):
        ordered.insert(next((index for index, other in enumerate(ordered) if other > task), len(ordered)), task)
    return {task: number for number, task in enumerate(ordered)}, BY_ORDER


def _from_process_names(session: Session, tasks: list[Task]) -> Ranks:
    """Return ranks from names such as ``Worker_DP0_PP1_TP3``: the last part counts fastest."""
    names = process_names(session)
    parts = {task: part for task in tasks if (part := dict(_PARALLEL.findall(names.get(task, ""))))}
    ranks = dict.fromkeys(parts, 0)
    for kind in ("DP", "PP", "TP"):
        numbers = {task: int(part.get(kind, 0)) for task, part in parts.items()}
        size = 1 + max(numbers.values(), default=0)
        ranks = {task: rank * size + numbers[task] for task, rank in ranks.items()}
    return ranks


def _from_mpi(session: Session, tasks: list[Task]) -> Ranks:
    ranks = {task: report_at(session, task.report).metadata.mpi_ranks.get(task.process) for task in tasks}
    return {task: rank for task, rank in ranks.items() if rank is not None}


def _from_nccl(session: Session, tasks: list[Task]) -> Ranks:
    """Return each process's rank in the largest communicator that it made."""
    rows = rows_of_each_report(session, session.reports, "nccl-ranks", _nccl_ranks, in_memory=True)
    rank_by_task = {Task(report, process): rank for report, process, rank in rows}
    return {task: rank_by_task[task] for task in tasks if task in rank_by_task}


def _nccl_ranks(session: Session, reports: Sequence[Report]) -> Sequence[JsonRow]:
    import sqlalchemy as sa

    from nsystui.questions.queries.conditions import of_reports
    from nsystui.store import tables

    table, indices = tables.nccl_calls, {report.index for report in reports}
    query = (
        sa.select(table.c.report, table.c.process, sa.func.arg_max(table.c.rank, table.c.ranks))
        .where(of_reports(table.c.report, indices), table.c.rank.is_not(None), table.c.ranks.is_not(None))
        .where(table.c.process.is_not(None))
        .group_by(table.c.report, table.c.process)
    )
    return session.rows(query) if any(report.has(table) for report in reports) else ()


def _single_tasks(tasks: Sequence[Task]) -> set[Task]:
    """Return tasks alone in their report: only these have numbers by environment or file name."""
    task_counts = Counter(task.report for task in tasks)
    return {task for task in tasks if task_counts[task.report] == 1}


def by_environment(environments: Sequence[Mapping[str, str]]) -> Sequence[int]:
    """Return the values of the first rank variable that all reports have and that differs in each report."""
    return all_different([_number(env.get(variable, "")) for env in environments] for variable in RANK_VARIABLES)


def by_file_name(names: Sequence[str]) -> Sequence[int]:
    """Return the numbers of the first pattern that matches all names with different numbers."""
    return all_different(
        [_number(match[1]) if (match := re.search(pattern, name, re.IGNORECASE)) else None for name in names]
        for pattern in _FILE_PATTERNS
    )


def all_different(sources: Iterable[Sequence[int | None]]) -> Sequence[int]:
    """Return the first of ``sources`` in which no number is missing or repeated, if any."""
    for numbers in sources:
        recorded = [number for number in numbers if number is not None]
        if len(set(recorded)) == len(numbers):
            return recorded
    return ()


def _number(text: str) -> int | None:
    """Return a rank as a launcher or a file name writes it; a longer number is a date or a job id."""
    return whole_number(text, _MAX_RANK)


_MAX_BRANCHES = 64


def role_of(table: sa.FromClause, ranks: Sequence[RankedTask]) -> Expression:
    """Select the role of a row's task; NULL if its process is not a task of the job."""
    import sqlalchemy as sa

    rank = rank_of(table, ranks)
    roles = {role: [item.rank for item in ranks if item.role == role] for role in {item.role for item in ranks}}
    branches = [(rank.in_(numbers), sa.literal(role)) for role, numbers in sorted(roles.items(), key=str) if role]
    return sa.case(*branches, else_=sa.null()) if branches else sa.cast(sa.null(), sa.Text)


def rank_of(table: sa.FromClause, ranks: Sequence[RankedTask]) -> Expression:
    """Select the rank number of a row's task; NULL if its process is not a task of the job."""
    import sqlalchemy as sa

    from nsystui.questions.queries.conditions import by_report

    numbers = [(item.task.report, item.task.process, item.rank) for item in ranks]
    if len(numbers) > _MAX_BRANCHES * len({report for report, *_ in numbers}):
        literals = (sa.literal(list(values), sa.ARRAY(sa.BigInteger)) for values in zip(*numbers, strict=True))
        columns = (sa.func.unnest(values, type_=sa.BigInteger) for values in literals)
        named_columns = zip(("report", "process", "rank"), columns, strict=True)
        row = sa.select(*(column.label(name) for name, column in named_columns)).subquery().c
        return sa.select(row.rank).where(row.report == table.c.report, row.process == table.c.process).scalar_subquery()
    tasks_by_report = grouped((item.task.report, item) for item in ranks)
    branches = []
    # A branch for the first tasks of all reports, and so on: with hundreds of ranks, a branch per task would take
    # longer to compile than to run.
    for tasks in zip_longest(*tasks_by_report.values()):
        row_tasks = {item.task.report: item for item in tasks if item is not None}
        process = by_report(table, {report: item.task.process for report, item in row_tasks.items()})
        rank = by_report(table, {report: item.rank for report, item in row_tasks.items()})
        branches.append((table.c.process == process, rank))
    return sa.case(*branches, else_=sa.null()) if branches else sa.cast(sa.null(), sa.BigInteger)
