"""Packing a job ahead of time: who is which rank for good, and what every first look at it will ask.

The rank of a report depends on all reports of the job. `RanksAhead` knows it as soon as no other report can change it,
so that a report is in the packed job before the next ones are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from nsystui.base.errors import ExportError, UsageError
from nsystui.base.selection import Selection, Task
from nsystui.exports.canonical import NO_PROCESS
from nsystui.exports.discover import name_of
from nsystui.exports.forms import form_of
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
from nsystui.store.opened import open_export
from nsystui.store.report import Report

if TYPE_CHECKING:
    from nsystui.questions.job.job import OpenJob


@dataclass(frozen=True)
class ReportRanks:
    """The rank of each process of a report, and its source."""

    report: Report
    ranks: Mapping[int, int]
    source: str


Found = tuple[list[ReportRanks], list[ExportError]]
"""The ranks of reports, and why some have none."""


def report_ranks(job: OpenJob) -> Found:
    """The ranks of each report, as they are when all of them are opened.

    Where nothing distinguishes the reports, the numbers of each by itself count: their order alone would number them
    otherwise the next time.
    """
    found, failures = [], []
    for report in job.session.reports:
        tasks = [item for item in job.ranks if item.task.report == report.index]
        ranks = {item.task.process: item.rank for item in tasks}
        source = tasks[0].source if tasks else ""
        if source == BY_ORDER and len(job.session.reports) > 1:
            alone, source = ranks_alone(job.session, [item.task for item in tasks])
            ranks = {task.process: rank for task, rank in alone.items()}
        if ranks:
            found.append(ReportRanks(report, ranks, source))
        else:
            failures.append(_without_tasks(report))
    return found, failures


def _without_tasks(report: Report) -> ExportError:
    return ExportError(str(report.path), "it has no process with recorded events")


@dataclass
class RanksAhead:
    """The ranks that are certain while other reports of the job are still to be packed.

    The first source that numbers all reports gives the ranks. ``source`` is the one that does so according to what is
    known before packing: names of files, and with ``is_whole`` the metadata of every export. ``numbers`` are its ranks
    by the index of the report. MPI and NCCL number a report by itself, but whether they number all is known only in
    the end: a rank is certain where every source that may still be the first gives the same.
    """

    numbers: Mapping[int, int]
    source: str
    is_whole: bool
    _in_communicators: set[int] = field(default_factory=set)
    _is_nccl_out: bool = False
    """Whether NCCL cannot number all reports: one has no rank in a communicator, or two have the same."""

    @classmethod
    def of(cls, paths: Mapping[int, Path]) -> RanksAhead:
        """Looks at the exports of a job, by their index; takes milliseconds for each."""
        names, facts = {}, []
        for index, path in paths.items():
            with suppress(ExportError):  # opening it says what is wrong
                if form_of(path) is None:
                    facts.append(open_export(path).metadata)
                names[index] = name_of(path)
        is_whole = len(facts) == len(names)
        by_source = {FILE_NAME: by_file_name(list(names.values()))}
        if is_whole:
            mpi = [list(one.mpi_ranks.values()) for one in facts]
            told = {MPI: all_different([[ranks[0] if len(ranks) == 1 else None for ranks in mpi]])}
            by_source = told | {ENVIRONMENT: by_environment([one.environment for one in facts])} | by_source
        source = next((source for source, numbers in by_source.items() if numbers), FILE_NAME)
        return cls(dict(zip(names, by_source[source], strict=False)), source, is_whole)

    def ranks(self, job: OpenJob) -> Found:
        """The ranks of those reports of a job, some of all, for which they are certain."""
        found, failures = [], []
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
            # Work without a process is numbered after the processes of all reports.
            if certain is not None and (len(tasks) == 1 or all(task.process != NO_PROCESS for task in tasks)):
                found.append(certain)
        return found, failures

    def _certain(self, job: OpenJob, report: Report, tasks: list[Task]) -> ReportRanks | None:
        said = ranks_of_themselves(job.session, tasks, (MPI,) if self.source == MPI else (MPI, NCCL))
        in_communicator = set(said.get(NCCL, {}).values())
        self._is_nccl_out |= not in_communicator or not self._in_communicators.isdisjoint(in_communicator)
        self._in_communicators |= in_communicator
        if self._is_nccl_out and self.numbers:
            said.pop(NCCL, None)
        if len(tasks) == 1 and not self.is_whole and (own := by_environment([report.metadata.environment])):
            said[ENVIRONMENT] = {tasks[0]: own[0]}
        if len(tasks) == 1 and report.index in self.numbers:
            said[self.source] = {tasks[0]: self.numbers[report.index]}
        if not said or any(one != ranks for one in said.values() for ranks in said.values()):
            return None
        source, ranks = next(iter(said.items()))
        return ReportRanks(report, {task.process: rank for task, rank in ranks.items()}, source)


def check_different(reports: Iterable[ReportRanks]) -> None:
    """Raises UsageError where two of the reports would be one rank."""
    known: dict[int, ReportRanks] = {}
    for one in reports:
        for rank in one.ranks.values():
            other = known.setdefault(rank, one)
            if other is not one:
                names = f"{other.report.name} and {one.report.name}"
                if one.source == other.source == BY_ORDER:
                    raise UsageError(f"the rank numbers of {names} are unknown: give them with --ranks")
                raise UsageError(f"{names} are both rank {rank} ({one.source}): number the files with --ranks")


def compute_first_answers(job: OpenJob) -> None:
    """Makes what the overview, the ranks, triage, the NVTX tree and the event list are made of, so that it is kept.

    Raises ExportError where the memory is too little.
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
    blocking(job)  # which finds the steps of the job, too
    stacks_of(session, session.reports)
    for kind in EventKind:
        spans(session, kind)
    for report in session.reports:
        RangeColumns(session, report).chains()
