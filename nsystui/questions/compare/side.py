"""A side of a comparison: its selection, label, and the ranks or steps that divide its sums."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import sqlalchemy as sa

from nsystui.base.answer import TableAnswer
from nsystui.base.kernel_names import smart_names
from nsystui.base.selection import Selection, Task, Window
from nsystui.base.text import counted, ranks_named
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.recording import unrecorded_work
from nsystui.questions.queries.tasks import RankedTask, selected_ranks
from nsystui.questions.queries.time_window import extent, selected_reports, shares_clock
from nsystui.questions.ranks.overview import job_facts
from nsystui.store.report import Report

ALWAYS = Window(-(1 << 61), 1 << 61)


@dataclass(frozen=True)
class WholeSteps:
    """The number of all ranks' steps that are whole in the window, and of ranks with such steps.

    ``spans``: by report, the time from the first step's start to the last's end.
    """

    spans: Mapping[int, Window]
    count: int
    ranks: int


@dataclass(frozen=True, eq=False)
class Side:
    """A part of a job to be compared; ``label`` is its name for the user."""

    job: OpenJob
    selection: Selection
    label: str

    @property
    def ranks(self) -> tuple[RankedTask, ...]:
        return tuple(selected_ranks(self.job.ranks, self.selection))

    @property
    def tasks(self) -> frozenset[Task]:
        return frozenset(item.task for item in self.ranks)

    @property
    def named_ranks(self) -> str:
        return ranks_named(item.rank for item in self.ranks)

    def gpu_ranks(self, table: str = "") -> int:
        """Return the number of ranks with GPU work; 0 if all of it, or of ``table``, is unknown."""
        used = [item.task for item in self.ranks if item.devices]
        lost = unrecorded_work(self.job.session, self.job.session.reports)
        return 0 if all(lost[task][table] for task in used) else len(used)

    def ranks_with(self, table: sa.Table, accepts: Callable[[Report], bool] = bool) -> int:
        """Return the number of ranks whose reports have rows of ``table`` and are accepted."""
        reports = {report.index for report in self.job.session.reports if report.count(table) and accepts(report)}
        return sum(item.task.report in reports for item in self.ranks)

    def whole_steps(self, name: str | None = None) -> WholeSteps:
        """Return the steps of the selected ranks that are whole in the window; for ``name`` see `Job.steps`."""
        tasks, window = self.tasks, self.selection.window or ALWAYS
        spans: dict[int, Window] = {}
        count = ranks = 0
        for task, steps in self.job.steps(name).of_task.items():
            is_whole = (steps.starts >= window.start) & (steps.ends <= window.end)
            if task in tasks and is_whole.any():
                span = Window(int(steps.starts[is_whole].min()), int(steps.ends[is_whole].max()))
                report_span = spans.get(task.report, span)
                spans[task.report] = Window(min(span.start, report_span.start), max(span.end, report_span.end))
                count, ranks = count + int(is_whole.sum()), ranks + 1
        return WholeSteps(spans, count, ranks)

    def selection_for_shares(self, other: Side) -> Selection:
        """Return the selection whose window this side's shares of time refer to.

        Two sides of one job without windows share a span, from first event to last: shares of different spans are not
        comparable.
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
    """The numbers of ranks or steps that divide sums; 0 if a side recorded nothing.

    Sums are per step, or per rank if the numbers of ranks differ: else four ranks would take twice the time of two.
    """

    a: int
    b: int
    by_step: bool = False

    @property
    def each(self) -> str:
        """The divisor of the sums: ``step``, ``rank``, or empty for none."""
        if not self.a or not self.b:
            return ""
        return "step" if self.by_step else "rank" if self.a != self.b else ""

    @property
    def divisors(self) -> tuple[int, int]:
        return (self.a, self.b) if self.each else (1, 1)

    def note(self, which: str = "") -> tuple[str, ...]:
        """Return a note if sums are per rank."""
        if self.each != "rank":
            return ()
        return (f"times and counts are per rank: A has {counted(self.a, 'rank')}{which}, B {self.b:,}",)


def gpu_basis(a: Side, b: Side, table: str = "") -> Basis:
    return Basis(a.gpu_ranks(table), b.gpu_ranks(table))


def both(a: Sequence[str], b: Sequence[str]) -> tuple[str, ...]:
    """Return the notes of both sides, marked with their side unless both have them."""
    only_a = (f"A: {note}" for note in a if note not in b)
    only_b = (f"B: {note}" for note in b if note not in a)
    return (*(note for note in a if note in b), *only_a, *only_b)


def smart_names_of(a: Side, b: Side) -> Mapping[str, str]:
    """Return smart names by full name, unique among the kernels of both jobs."""
    if a.job is b.job:
        return a.job.smart_names()
    return smart_names(chain(a.job.smart_names(), b.job.smart_names()))


def with_smart_names(answer: TableAnswer, a: Side, b: Side) -> TableAnswer:
    """Return a comparison of kernels with smart names in its last column, which has full names."""
    names = smart_names_of(a, b)
    return replace(answer, rows=[(*row[:-1], names.get(str(row[-1]), row[-1])) for row in answer.rows])


def job_labels(jobs: Sequence[OpenJob], files: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the overview title of each job, or the locations of ``files`` if titles are missing or equal."""
    titles = [job_facts(job.session, job.ranks).title for job in jobs]
    if len(set(titles)) == len(titles) and all(titles):
        return tuple(titles)
    return tuple(_location(job_files) for job_files in files)


def _location(files: Sequence[str]) -> str:
    if len(files) == 1:
        return files[0]
    return os.path.commonpath([os.path.abspath(name) for name in files]) if files else ""
