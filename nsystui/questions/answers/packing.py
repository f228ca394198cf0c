"""Preparation of a packed job: final rank numbers, and answers to the first questions about it.

A report's rank depends on all reports of the job. `RanksAhead` determines it once no other report can change it, so
that the report can move to the packed job before the next reports are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nsystui.base.errors import ExportError, UsageError
from nsystui.base.selection import Selection, Task
from nsystui.exports.canonical import NO_PROCESS
from nsystui.exports.discover import NEXT_CAPTURE, form_of, names_of
from nsystui.exports.metadata import open_export
from nsystui.questions.queries.tasks import (
    BY_ORDER,
    ENVIRONMENT,
    FILE_NAME,
    MPI,
    NCCL,
    all_different,
    by_environment,
    by_file_name,
    ranks_alone,
    ranks_of_themselves,
)
from nsystui.store.captures import with_joined_captures
from nsystui.store.report import Report

if TYPE_CHECKING:
    from nsystui.questions.job.job import OpenJob


@dataclass(frozen=True)
class ReportRanks:
    """The rank of each process of a report, and the source of the ranks."""

    report: Report
    ranks: Mapping[int, int]
    source: str


RanksAndErrors = tuple[list[ReportRanks], list[ExportError]]
"""The ranks of reports, and errors of reports without ranks."""


def report_ranks(job: OpenJob) -> RanksAndErrors:
    """Return each report's ranks when all reports of the job are open.

    If nothing distinguishes reports of different runs, each is numbered alone.
    """
    numbered, failures, by_order = [], [], dict[tuple[int, int], int]()
    runs = {part.index: run.index for run in with_joined_captures(job.session.reports) for part in run.sources}
    for item in job.ranks:  # the captures of a process have one rank
        by_order.setdefault((runs[item.task.report], item.task.process), len(by_order))
    for report in job.session.reports:
        tasks = [item for item in job.ranks if item.task.report == report.index]
        ranks = {item.task.process: item.rank for item in tasks}
        source = tasks[0].source if tasks else ""
        if source == BY_ORDER and job.shares_clock:
            ranks = {process: by_order[runs[report.index], process] for process in ranks}
        elif source == BY_ORDER:
            alone, source = ranks_alone(job.session, [item.task for item in tasks])
            ranks = {task.process: rank for task, rank in alone.items()}
        if ranks:
            numbered.append(ReportRanks(report, ranks, source))
        else:
            failures.append(_without_tasks(report))
    return numbered, failures


def _without_tasks(report: Report) -> ExportError:
    return ExportError(str(report.path), "it has no process with recorded events")


@dataclass
class RanksAhead:
    """The ranks that are certain before all reports of the job are packed.

    The first source that numbers all reports determines the ranks. ``source`` is the first such source before packing,
    judged by file names and, if ``has_all_metadata``, by the metadata of every export. ``numbers`` are its ranks by
    report index. MPI and NCCL number each report alone, but only at the end is it known whether they number all. A
    rank is certain if ``source`` gives it, and all sources that may still be the first agree.
    """

    numbers: Mapping[int, int]
    source: str
    has_all_metadata: bool
    _communicator_ranks: set[int] = field(default_factory=set)
    _is_nccl_excluded: bool = False
    """Whether NCCL cannot number all reports: a report has no rank in a communicator, or two share a rank."""

    @classmethod
    def of(cls, paths: Mapping[int, Path]) -> RanksAhead:
        """Inspect the exports of a job, by index, in milliseconds per export."""
        names, metadata, by_path = {}, [], names_of([*paths.values()])
        for index, path in paths.items():
            with suppress(ExportError):  # reported when the export is opened
                if form_of(path) is None:
                    metadata.append(open_export(path).metadata)
                names[index] = by_path[path]
        has_all_metadata = len(metadata) == len(names)
        by_source = {FILE_NAME: by_file_name(list(names.values()))}
        if has_all_metadata:
            mpi = [list(item.mpi_ranks.values()) for item in metadata]
            from_mpi = {MPI: all_different([[ranks[0] if len(ranks) == 1 else None for ranks in mpi]])}
            by_source = from_mpi | {ENVIRONMENT: by_environment([item.environment for item in metadata])} | by_source
        source = next((source for source, numbers in by_source.items() if numbers), FILE_NAME)
        return cls(dict(zip(names, by_source[source], strict=False)), source, has_all_metadata)

    def ranks(self, job: OpenJob) -> RanksAndErrors:
        """Return the certain ranks among these reports of a job."""
        numbered, failures = [], []
        for report in job.session.reports:
            items = [item for item in job.ranks if item.task.report == report.index]
            tasks = [item.task for item in items]
            certain = None
            if not items:
                failures.append(_without_tasks(report))
            elif job.numbering is not None:
                certain = ReportRanks(report, {item.task.process: item.rank for item in items}, items[0].source)
            else:
                certain = self._certain(job, report, tasks)
            # Work without a process is numbered last in the job.
            if certain is not None and (len(tasks) == 1 or all(task.process != NO_PROCESS for task in tasks)):
                numbered.append(certain)
        return numbered, failures

    def _certain(self, job: OpenJob, report: Report, tasks: list[Task]) -> ReportRanks | None:
        by_source = ranks_of_themselves(job.session, tasks, (MPI,) if self.source == MPI else (MPI, NCCL))
        communicator_ranks = set(by_source.get(NCCL, {}).values())
        self._is_nccl_excluded |= not communicator_ranks or not self._communicator_ranks.isdisjoint(communicator_ranks)
        self._communicator_ranks |= communicator_ranks
        if self._is_nccl_excluded:
            by_source.pop(NCCL, None)
        if len(tasks) == 1 and not self.has_all_metadata and (numbers := by_environment([report.metadata.environment])):
            by_source[ENVIRONMENT] = {tasks[0]: numbers[0]}
        if len(tasks) == 1 and report.index in self.numbers:
            by_source[self.source] = {tasks[0]: self.numbers[report.index]}
        if self.source not in by_source or any(ranks != by_source[self.source] for ranks in by_source.values()):
            return None
        source, ranks = next(iter(by_source.items()))
        return ReportRanks(report, {task.process: rank for task, rank in ranks.items()}, source)


def all_numbered(reports: Sequence[ReportRanks]) -> list[ReportRanks]:
    """Return the reports with different numbers: a later capture of a process gets its rank plus `NEXT_CAPTURE`.

    Raises UsageError if reports of different processes have the same rank.
    """
    runs = with_joined_captures(item.report for item in reports)
    run_of_report = {source.index: run.index for run in runs for source in run.sources}
    reports_by_rank: dict[int, ReportRanks] = {}
    for report in reports:
        ranks = report.ranks
        while shared := sorted({*ranks.values()} & reports_by_rank.keys()):
            other = reports_by_rank[shared[0]]
            names = f"{other.report.name} and {report.report.name}"
            if run_of_report[other.report.index] == run_of_report[report.report.index]:
                ranks = {process: rank + NEXT_CAPTURE for process, rank in ranks.items()}
            elif report.source == other.source == BY_ORDER:
                raise UsageError(f"the rank numbers of {names} are unknown: give them with --ranks")
            else:
                raise UsageError(f"{names} are both rank {shared[0]} ({report.source}): number the files with --ranks")
        reports_by_rank |= dict.fromkeys(ranks.values(), replace(report, ranks=ranks))
    return list({id(report): report for report in reports_by_rank.values()}.values())


def compute_first_answers(job: OpenJob) -> None:
    """Compute and cache the basis of the overview, ranks, triage, NVTX tree and event list.

    Raises ExportError if there is too little memory.
    """
    from nsystui.questions.blocking.parts import blocking
    from nsystui.questions.collectives.matching import stream_sequences
    from nsystui.questions.events.index import spans
    from nsystui.questions.events.kinds import EventKind
    from nsystui.questions.host.stacks import stacks_of
    from nsystui.questions.nvtx.columns import RangeColumns
    from nsystui.questions.ranks.overview import task_table

    everything, session = Selection(), job.session
    task_table(session, everything, job.ranks, job.busy(everything))
    stream_sequences(session, session.reports)
    job.collectives()
    blocking(job)  # also finds the steps of the job
    stacks_of(session, session.reports)
    for kind in EventKind:
        spans(session, kind)
    for report in session.reports:
        RangeColumns(session, report).chains()
