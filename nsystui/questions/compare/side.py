"""One side of a comparison: over how many ranks its numbers are to be read, and the label it has next to the other."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from nsystui.base.answer import TableAnswer
from nsystui.base.kernel_names import smart_names
from nsystui.base.selection import Selection, Window
from nsystui.questions.job.job import OpenJob
from nsystui.questions.nvtx.loading import has_launches
from nsystui.questions.queries.tasks import RankedTask, selected_ranks
from nsystui.questions.queries.time_window import extent, selected_reports, shares_clock
from nsystui.questions.ranks.overview import job_facts
from nsystui.store import tables
from nsystui.store.report import Report

ALWAYS = Window(-(1 << 61), 1 << 61)


@dataclass(frozen=True)
class WholeSteps:
    """The number of the steps of all ranks, and of the ranks that have any.

    ``spans``: by report the time from the start of the first step to the end of the last.
    """

    spans: Mapping[int, Window]
    count: int
    ranks: int


@dataclass(frozen=True, eq=False)
class Side:
    """A part of a job that is compared with another one; ``label`` is what the user calls it."""

    job: OpenJob
    selection: Selection
    label: str

    @property
    def ranks(self) -> tuple[RankedTask, ...]:
        """The selected ranks."""
        return tuple(selected_ranks(self.job.ranks, self.selection))

    @property
    def gpu_ranks(self) -> int:
        """The number of ranks with recorded GPU work; for the others it is unknown, not zero."""
        return sum(bool(item.devices) for item in self.ranks)

    @property
    def nvtx_ranks(self) -> int:
        """The number of ranks with NVTX ranges in their reports."""
        return self._ranks_where(lambda report: bool(report.count(tables.nvtx_ranges)))

    @property
    def projected_ranks(self) -> int:
        """The number of those whose reports also tell which range launched which GPU work."""
        return self._ranks_where(lambda report: bool(report.count(tables.nvtx_ranges)) and has_launches(report))

    @property
    def call_ranks(self) -> int:
        """The number of ranks with NCCL calls in their reports."""
        return self._ranks_where(lambda report: bool(report.count(tables.nccl_calls)))

    @property
    def sampled_ranks(self) -> int:
        """The number of ranks with CPU samples in their reports."""
        return self._ranks_where(lambda report: bool(report.count(tables.host_samples)))

    def whole_steps(self, name: str | None = None) -> WholeSteps:
        """The steps of the selected ranks that are whole in the window; for ``name`` see `Job.steps`."""
        tasks, window = {item.task for item in self.ranks}, self.selection.window or ALWAYS
        spans: dict[int, Window] = {}
        count = ranks = 0
        for task, one in self.job.steps(name).of_task.items():
            chosen = (one.starts >= window.start) & (one.ends <= window.end)
            if task in tasks and chosen.any():
                own = Window(int(one.starts[chosen].min()), int(one.ends[chosen].max()))
                known = spans.get(task.report, own)
                spans[task.report] = Window(min(own.start, known.start), max(own.end, known.end))
                count, ranks = count + int(chosen.sum()), ranks + 1
        return WholeSteps(spans, count, ranks)

    def _ranks_where(self, holds: Callable[[Report], bool]) -> int:
        reports = {report.index for report in self.job.session.reports if holds(report)}
        return sum(item.task.report in reports for item in self.ranks)

    def judged_beside(self, other: Side) -> Selection:
        """The selection in whose window this side's shares of time are to be taken.

        Two sides of one job without windows of their own are judged over one span, from the first event of both to
        their last: a share of another span would not compare.
        """
        mine, theirs = self.selection, other.selection
        if self.job is not other.job or mine.window is not None or theirs.window is not None:
            return mine
        is_all = mine.tasks is None or theirs.tasks is None
        both = Selection(tasks=None if is_all else frozenset((mine.tasks or set()) | (theirs.tasks or set())))
        session = self.job.session
        return mine.with_window(extent(session, both)) if shares_clock(selected_reports(session, both)) else mine


@dataclass(frozen=True)
class Basis:
    """The numbers of ranks, or of steps, that sums of the two sides are over; 0 for a side that recorded none of it.

    Sums are divided by steps, and by ranks where their numbers differ: a side of four ranks would else have twice the
    time of one of two.
    """

    a: int
    b: int
    by_step: bool = False

    @property
    def each(self) -> str:
        """What sums are divided by: ``step``, ``rank``, or nothing (empty)."""
        if not self.a or not self.b:
            return ""
        return "step" if self.by_step else "rank" if self.a != self.b else ""

    @property
    def divisors(self) -> tuple[int, int]:
        return (self.a, self.b) if self.each else (1, 1)

    def note(self, what: str = "ranks") -> tuple[str, ...]:
        """A sentence on it, where sums are divided by ranks."""
        if self.each != "rank":
            return ()
        return (f"times and counts are per rank: A has {self.a:,} {what}, B {self.b:,}",)


def both(a: Sequence[str], b: Sequence[str]) -> tuple[str, ...]:
    """The notes of both sides, each with the side that it is of; without it where both say the same."""
    of_a = (f"A: {note}" for note in a if note not in b)
    of_b = (f"B: {note}" for note in b if note not in a)
    return (*(note for note in a if note in b), *of_a, *of_b)


def smart_names_of(a: Side, b: Side) -> Mapping[str, str]:
    """Smart names of the kernels by full name, unique among those of both jobs."""
    if a.job is b.job:
        return a.job.smart_names()
    return smart_names(chain(a.job.smart_names(), b.job.smart_names()))


def with_smart_names(answer: TableAnswer, a: Side, b: Side) -> TableAnswer:
    """A comparison of kernels by full name, whose last column has it, with smart names."""
    names = smart_names_of(a, b)
    return replace(answer, rows=[(*row[:-1], names.get(str(row[-1]), row[-1])) for row in answer.rows])


def job_labels(jobs: Sequence[OpenJob], files: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The title that the overview has for each job; where these are alike, where its ``files`` are."""
    titles = [job_facts(job.session, job.ranks).title for job in jobs]
    if len(set(titles)) == len(titles) and all(titles):
        return tuple(titles)
    return tuple(_place(own) for own in files)


def _place(files: Sequence[str]) -> str:
    """The only name, or the folder of several."""
    if len(files) == 1:
        return files[0]
    return os.path.commonpath([os.path.abspath(name) for name in files]) if files else ""
