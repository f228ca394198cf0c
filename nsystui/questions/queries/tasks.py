"""Processes, tasks and ranks: the names and GPUs of processes, the tasks of the job, and their rank numbers.

See docs/ranks.md#rank-numbers.

A task is a (report, process) that used a GPU; in a report without any GPU work it is a process with events of another
kind. A rank number is taken from the first source that gives every task a number of its own; screens show the source.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from nsystui.base.answer import UNKNOWN
from nsystui.base.errors import UsageError
from nsystui.base.selection import Selection, Task
from nsystui.base.text import whole_number
from nsystui.exports.canonical import BY_NAME, NO_PROCESS, CanonicalTable
from nsystui.exports.metadata import ALLOCATION_VARIABLE, LOCAL_RANK_VARIABLES, RANK_VARIABLES, SIZE_VARIABLES, pid_of
from nsystui.questions.queries.derived import of_each_report
from nsystui.questions.queries.mpi import has_mpi
from nsystui.questions.queries.numbering import SOURCE as GIVEN
from nsystui.questions.queries.numbering import Numbering
from nsystui.questions.queries.time_window import report_at
from nsystui.store.report import Report
from nsystui.store.results import json_array, json_of
from nsystui.store.session import Session

if TYPE_CHECKING:
    import sqlalchemy as sa

    from nsystui.store.results import Arrays


GPU_TABLES = (BY_NAME["kernels"], BY_NAME["memory_ops"], BY_NAME["graph_launches"])
"""The tables of work that ran on a GPU."""


@dataclass(frozen=True)
class UsedDevice:
    """A GPU that a process used. ``device`` is its CUDA ordinal there, ``gpu`` the machine's number."""

    task: Task
    device: int
    gpu: int | None
    name: str | None
    uuid: str | None


def used_devices(session: Session) -> list[UsedDevice]:
    """Every (process, GPU) of the open reports, by report, process and ordinal."""
    return [
        UsedDevice(Task(report, process), device, gpu, name, uuid)
        for report, arrays in sorted(_process_facts(session).items())
        for process, device, gpu, name, uuid in json_of(arrays["devices"])
    ]


def process_names(session: Session) -> dict[Task, str]:
    """The path of the program of each process that has one."""
    return {
        Task(report, process): name
        for report, arrays in _process_facts(session).items()
        for process, name in json_of(arrays["names"])
    }


def rows_of_tasks(session: Session, table: CanonicalTable, reports: Iterable[Report]) -> dict[Task, int]:
    """The rows of each process in a table of these reports; a process without any is left out."""
    found: dict[Task, int] = {}
    packed = []
    for report in reports:
        tally = session.tally(report, table)
        if tally is None:
            packed.append(report.index)
        else:
            found.update({Task(report.index, process): rows for process, rows in tally.processes.items()})
    if any(report.count(table) for report in session.reports if report.index in packed):
        import sqlalchemy as sa

        from nsystui.questions.queries.conditions import of_reports
        from nsystui.store import tables

        columns = tables.of(table).c
        place = (columns.report, columns.process)
        query = (
            sa.select(*place, sa.func.count())
            .where(of_reports(place[0], packed), place[1].is_not(None))
            .group_by(*place)
        )
        found.update({Task(report, process): int(rows) for report, process, rows in session.rows(query)})
    return found


def _process_facts(session: Session) -> Mapping[int, Arrays]:
    def compute(part: Session, reports: list[Report]) -> dict[int, Arrays]:
        devices, names = _rows(part, reports)
        return {
            report.index: {"devices": json_array(devices[report.index]), "names": json_array(names[report.index])}
            for report in reports
        }

    return of_each_report(session, session.reports, "processes", compute, in_memory=True)


_Rows = dict[int, list[tuple[Any, ...]]]


def _rows(session: Session, reports: list[Report]) -> tuple[_Rows, _Rows]:
    """By report, (process, device, gpu, name, uuid) of its devices, and (process, name) of its processes."""
    import sqlalchemy as sa

    from nsystui.questions.queries.conditions import of_reports
    from nsystui.store import tables

    indices = [report.index for report in reports]
    used, known = tables.devices.c, tables.processes.c
    devices = (
        sa.select(used.report, used.process, used.device, used.gpu, used.name, used.uuid)
        .where(of_reports(used.report, indices), used.process.is_not(None))
        .order_by(used.report, used.process, used.device)
    )
    names = sa.select(known.report, known.process, known.name).where(
        of_reports(known.report, indices), known.name.is_not(None)
    )
    return _by_report(session, devices, indices), _by_report(session, names, indices)


def _by_report(session: Session, query: sa.Select[Any], indices: list[int]) -> _Rows:
    found: _Rows = {index: [] for index in indices}
    for report, *rest in session.rows(query):
        found[report].append(tuple(rest))
    return found


_HIGHEST = 999_999
MPI, NCCL, ENVIRONMENT, FILE_NAME = "MPI", "NCCL communicator", "captured environment", "file name"
"""Sources of rank numbers: the first two number the tasks of a report whatever other reports there are."""
BY_ORDER = "order of files and devices"
"""The source where nothing records rank numbers."""
Ranks = dict[Task, int]

_FILE_PATTERNS = (r"rank[_-]?(\d+)", r"_N\d+_(\d+)", r"_(\d+)$")


@dataclass(frozen=True)
class RankedTask:
    """One task with its place in the job. ``local_rank`` and ``pid`` are ``None`` where they are not recorded."""

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
    def gpu(self) -> str:
        """The model of its GPUs, once if they are alike."""
        names = list(dict.fromkeys(self.gpu_names))
        count = len([device for device in self.devices if device != UNKNOWN])
        text = " + ".join(names)
        return f"{count}× {text}" if count > 1 and len(names) == 1 else text


def ranked_tasks(session: Session, given: Numbering | None = None) -> tuple[RankedTask, ...]:
    """Every task of the open reports, by rank.

    ``given`` is what the user says of it; raises UsageError where that does not fit.
    """
    devices = _devices(session)
    tasks = _tasks(session, devices)
    ranks, source = _numbered(session, tasks, devices, given)
    names = process_names(session)
    alone = _alone(tasks)
    found = []
    for task in tasks:
        report = report_at(session, task.report)
        used = devices.get(task, ())
        variables = report.metadata.environment
        local_ranks = (_number(variables.get(variable, "")) for variable in LOCAL_RANK_VARIABLES)
        program = names.get(task, "").rpartition("/")[2]
        found.append(
            RankedTask(
                task,
                ranks[task],
                source,
                next((rank for rank in local_ranks if rank is not None), None) if task in alone else None,
                report.metadata.host,
                None if task.process == NO_PROCESS else pid_of(task.process),
                report.metadata.command.rpartition("/")[2] if program == _LAUNCHER else program,
                report.name,
                tuple(device for device, _ in used),
                tuple(name for _, name in used if name),
            )
        )
    return tuple(sorted(found, key=lambda item: (item.rank, item.task)))


_LAUNCHER = "nsys-launcher"
"""The program of nsys that starts the profiled one, and whose name the process keeps in some exports."""


def selected_ranks(ranks: Sequence[RankedTask], selection: Selection) -> list[RankedTask]:
    """The selected ranks, in their order."""
    return [item for item in ranks if selection.tasks is None or item.task in selection.tasks]


def ranks_alone(session: Session, tasks: list[Task]) -> tuple[Ranks, str]:
    """The ranks of these tasks if no others are open, and their source."""
    return _numbered(session, tasks, _devices(session), None)


def ranks_of_themselves(session: Session, tasks: list[Task], sources: Collection[str]) -> dict[str, Ranks]:
    """The ranks of these tasks by each of ``sources``, MPI and NCCL, that gives every one a number of its own."""
    found = {name: read(session, tasks) for name, read in ((MPI, _from_mpi), (NCCL, _from_nccl)) if name in sources}
    return {name: ranks for name, ranks in found.items() if len(set(ranks.values())) == len(tasks)}


def world_size(session: Session) -> int | None:
    """The number of ranks of the job, where all reports that record it agree.

    What an allocation was made for is the size of the job only where something else shows several processes: a batch
    script of ``-n 8`` that starts one program gives it ``SLURM_NTASKS=8``, too.
    """
    told = set()
    allocated = set()
    for report in session.reports:
        environment = report.metadata.environment
        sizes = {size for name in SIZE_VARIABLES if (size := _number(environment.get(name, "")))}
        told |= sizes
        if not sizes and (size := _number(environment.get(ALLOCATION_VARIABLE, ""))):
            allocated.add(size)
    if allocated and (told or _has_ranks(session)):
        told |= allocated
    return told.pop() if len(told) == 1 else None


def _has_ranks(session: Session) -> bool:
    """Whether anything but the size of the allocation shows that the job has several processes."""
    if len(session.reports) > 1 or session.count(BY_NAME["nccl_calls"]) or has_mpi(session):
        return True
    environments = [report.metadata.environment for report in session.reports]
    if any(_number(one.get(name, "")) for one in environments for name in RANK_VARIABLES):
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
    """The number of each task. GPU work without a process is numbered after that of processes."""
    known = {task.report for task in tasks if task.process != NO_PROCESS}
    apart = [task for task in tasks if task.process == NO_PROCESS and task.report in known]
    told = [task for task in tasks if task.process != NO_PROCESS or task.report not in known]
    ranks, source = _ranks(session, told, devices) if given is None else (_given(session, told, given), GIVEN)
    first = max(ranks.values(), default=-1) + 1
    return ranks | {task: number for number, task in enumerate(apart, first)}, source


def _given(session: Session, tasks: list[Task], given: Numbering) -> Ranks:
    reports = {task.report: report_at(session, task.report) for task in tasks}
    for report in reports.values():
        several = sum(task.report == report.index for task in tasks)
        if several > 1:
            raise UsageError(f"--ranks {given.text!r}: {report.name} holds {several} ranks, which a name cannot number")
    numbers = given.numbers([report_at(session, task.report).name for task in tasks])
    return dict(zip(tasks, numbers, strict=True))


def _devices(session: Session) -> dict[Task, tuple[tuple[int, str], ...]]:
    """The (CUDA ordinal, GPU model) pairs that each process used."""
    found: dict[Task, list[tuple[int, str]]] = {}
    for used in used_devices(session):
        found.setdefault(used.task, []).append((used.device, used.name or ""))
    return {task: tuple(used) for task, used in found.items()}


def _tasks(session: Session, devices: Mapping[Task, Any]) -> list[Task]:
    """The tasks of each report: its processes with GPU work.

    Else the processes that called CUDA or MPI, or had NVTX ranges; else the one with the most OS runtime calls.
    """
    found = set(devices)
    with_gpu = {task.report for task in devices}
    for report in session.reports:
        if report.index in with_gpu:
            continue
        working = (BY_NAME[name] for name in ("api_calls", "mpi_calls", "nvtx_ranges"))
        table = next((table for table in working if report.count(table)), None)
        calls = rows_of_tasks(session, table or BY_NAME["os_calls"], [report])
        found.update(sorted(calls, key=lambda task: (-calls[task], task))[: 1 if table is None else None])
    return sorted(found)


def _ranks(session: Session, tasks: list[Task], devices: Mapping[Task, Any]) -> tuple[Ranks, str]:
    """The first source that gives every task a number of its own, in the order of docs/ranks.md#rank-numbers."""
    alone = [report_at(session, task.report) for task in tasks] if len(_alone(tasks)) == len(tasks) else []

    def numbered(numbers: Sequence[int]) -> Ranks:
        return dict(zip(tasks, numbers, strict=False))

    packed = {task: report_at(session, task.report).ranks.get(task.process) for task in tasks}
    sources: tuple[tuple[str, Callable[[], Ranks]], ...] = (
        ("packed job", lambda: {task: rank for task, rank in packed.items() if rank is not None}),
        (MPI, lambda: _from_mpi(session, tasks)),
        (NCCL, lambda: _from_nccl(session, tasks)),
        (ENVIRONMENT, lambda: numbered(by_environment([report.metadata.environment for report in alone]))),
        (FILE_NAME, lambda: numbered(by_file_name([report.name for report in alone]))),
    )
    for name, read in sources:
        ranks = read()
        if len(ranks) == len(tasks) and len(set(ranks.values())) == len(tasks) and tasks:
            return ranks, name
    ordered = sorted(tasks, key=lambda task: (task.report, devices.get(task, ((0, ""),))[0][0], task.process))
    return {task: number for number, task in enumerate(ordered)}, BY_ORDER


def _from_mpi(session: Session, tasks: list[Task]) -> Ranks:
    found = {}
    for task in tasks:
        rank = report_at(session, task.report).metadata.mpi_ranks.get(task.process)
        if rank is not None:
            found[task] = rank
    return found


def _from_nccl(session: Session, tasks: list[Task]) -> Ranks:
    """The rank that a process has in the largest communicator it made."""
    stored = of_each_report(session, session.reports, "nccl-ranks", _nccl_ranks, in_memory=True)
    found = {
        Task(report, process): rank
        for report, arrays in stored.items()
        for process, rank in zip(arrays["process"].tolist(), arrays["rank"].tolist(), strict=True)
    }
    return {task: found[task] for task in tasks if task in found}


def _nccl_ranks(session: Session, reports: Sequence[Report]) -> dict[int, Arrays]:
    """The processes of each report and their ranks."""
    import sqlalchemy as sa

    from nsystui.questions.queries.conditions import of_reports
    from nsystui.store import tables

    found: dict[int, dict[int, int]] = {report.index: {} for report in reports}
    table = tables.nccl_calls
    query = (
        sa.select(table.c.report, table.c.process, sa.func.arg_max(table.c.rank, table.c.ranks))
        .where(of_reports(table.c.report, found), table.c.rank.is_not(None), table.c.ranks.is_not(None))
        .where(table.c.process.is_not(None))
        .group_by(table.c.report, table.c.process)
    )
    for report, process, rank in session.rows(query) if any(report.has(table) for report in reports) else ():
        found[report][process] = rank
    return {
        report: {"process": np.array(list(ranks.keys()), np.int64), "rank": np.array(list(ranks.values()), np.int64)}
        for report, ranks in found.items()
    }


def _alone(tasks: Sequence[Task]) -> set[Task]:
    """The tasks that are alone in their report: only of them the environment and the file name speak."""
    number = Counter(task.report for task in tasks)
    return {task for task in tasks if number[task.report] == 1}


def by_environment(environments: Sequence[Mapping[str, str]]) -> Sequence[int]:
    """The first variable that every report has and that differs in each (one rank of many says nothing by itself)."""
    return all_different([_number(one.get(variable, "")) for one in environments] for variable in RANK_VARIABLES)


def by_file_name(names: Sequence[str]) -> Sequence[int]:
    """The same for the numbers in the names of reports."""
    return all_different(
        [_number(match[1]) if (match := re.search(pattern, name, re.IGNORECASE)) else None for name in names]
        for pattern in _FILE_PATTERNS
    )


def all_different(every: Iterable[Sequence[int | None]]) -> Sequence[int]:
    """The first of ``every`` in which no number is missing or repeated; empty where there is none."""
    for numbers in every:
        known = [number for number in numbers if number is not None]
        if len(set(known)) == len(numbers):
            return known
    return ()


def _number(text: str) -> int | None:
    """A rank as a launcher or a file name writes it; what is longer is a date or a job's number."""
    return whole_number(text, _HIGHEST)


_MOST_BRANCHES = 64


def rank_of(table: sa.FromClause, ranks: Sequence[RankedTask]) -> sa.ColumnElement[Any]:
    """The rank number of a row's task; NULL for a process that is no task of the job."""
    import sqlalchemy as sa

    from nsystui.questions.queries.conditions import by_report

    numbers = [(item.task.report, item.task.process, item.rank) for item in ranks]
    if len(numbers) > _MOST_BRANCHES * len({report for report, *_ in numbers}):
        literals = (sa.literal(list(values), sa.ARRAY(sa.BigInteger)) for values in zip(*numbers, strict=True))
        columns = (sa.func.unnest(values, type_=sa.BigInteger) for values in literals)
        named = zip(("report", "process", "rank"), columns, strict=True)
        own = sa.select(*(column.label(name) for name, column in named)).subquery().c
        return sa.select(own.rank).where(own.report == table.c.report, own.process == table.c.process).scalar_subquery()
    of_report: dict[int, list[RankedTask]] = {}
    for item in ranks:
        of_report.setdefault(item.task.report, []).append(item)
    whens = []
    # A branch for the first task of every report, one for the second and so on: a branch for each task of hundreds of
    # ranks would take longer to compile than the query runs.
    for tasks in zip_longest(*of_report.values()):
        there = {item.task.report: item for item in tasks if item is not None}
        process = by_report(table, {report: item.task.process for report, item in there.items()})
        rank = by_report(table, {report: item.rank for report, item in there.items()})
        whens.append((table.c.process == process, rank))
    return sa.case(*whens, else_=sa.null()) if whens else sa.cast(sa.null(), sa.BigInteger)
