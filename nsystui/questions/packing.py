"""Packing a job ahead of time: who is which rank for good, and what every first look at it will ask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsystui.base.errors import ExportError, UsageError
from nsystui.base.selection import Selection
from nsystui.questions.tasks import BY_ORDER, ranks_alone
from nsystui.store.report import Report

if TYPE_CHECKING:
    from nsystui.questions.job import Job


@dataclass(frozen=True)
class ReportRanks:
    """The rank of each process of a report, and its source."""

    report: Report
    ranks: Mapping[int, int]
    source: str


def report_ranks(job: Job) -> tuple[list[ReportRanks], list[ExportError]]:
    """The ranks of each report, as they are when all of them are opened; why some have none.

    Where nothing distinguishes the reports, the numbers of each by itself count: their order alone would number them
    otherwise the next time. Raises UsageError where two of them would be one rank.
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
            failures.append(ExportError(str(report.path), "no process in it did anything that was recorded"))
    _check_different(found)
    return found, failures


def _check_different(reports: list[ReportRanks]) -> None:
    known: dict[int, ReportRanks] = {}
    for one in reports:
        for rank in one.ranks.values():
            other = known.setdefault(rank, one)
            if other is not one:
                names = f"{other.report.name} and {one.report.name}"
                if one.source == other.source == BY_ORDER:
                    raise UsageError(f"nothing tells which ranks {names} are: say it with --ranks")
                raise UsageError(f"{names} are both rank {rank} ({one.source}): say who is which with --ranks")


def compute_first_answers(job: Job) -> None:
    """Makes what the overview, the ranks, triage, the NVTX tree and the event list are made of, so that it is kept.

    Raises ExportError where the memory is too little.
    """
    from nsystui.questions.collectives.matching import stream_sequences
    from nsystui.questions.events.index import spans
    from nsystui.questions.events.kinds import EventKind
    from nsystui.questions.host.stacks import stacks_of
    from nsystui.questions.nvtx.columns import RangeColumns
    from nsystui.questions.overview import task_table

    everything, session = Selection(), job.session
    task_table(session, everything, job.ranks, job.busy(everything))
    stream_sequences(session, session.reports)
    job.collectives()
    job.steps()
    stacks_of(session, session.reports)
    for kind in EventKind:
        spans(session, kind)
    for report in session.reports:
        RangeColumns(session, report).chains()
