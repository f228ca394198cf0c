"""A screen with ranks in its rows: two of them, or two groups, can be compared."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from typing import TYPE_CHECKING

from textual import on

from nsystui.base.errors import UsageError
from nsystui.ui.describe import spans
from nsystui.ui.screens.exporting import checker
from nsystui.ui.screens.pane import Pane
from nsystui.ui.widgets.prompt import LinePrompt

if TYPE_CHECKING:
    from nsystui.base.answer import Value
    from nsystui.base.selection import Selection
    from nsystui.questions.job import Job
    from nsystui.ui.screens.diff import DiffScreen

_GROUPS = "groups"


class ComparingScreen(Pane):
    """Compares ranks in the time that is selected: ``x`` on one and then on another, or groups as they are typed."""

    def __init__(self, *crumbs: str) -> None:
        super().__init__(*crumbs)
        self._marked: int | None = None

    def rank_to_compare(self) -> Value:
        """The rank of the cursor's row, where it has one."""
        raise NotImplementedError

    def action_compare(self) -> None:
        rank = self.rank_to_compare()
        if not self._can_compare():
            return
        if rank is None or not str(rank).isdecimal():
            self.say("ranks can be compared: this row is of none")
        elif self._marked is None:
            self._marked = int(rank)
            self.say(f"A = rank {rank}: x on another rank compares")
        elif self._marked == int(rank):
            self._marked = None
            self.say(f"rank {rank} is not marked any more")
        else:
            self._compare({self._marked}, {int(rank)})

    def action_compare_groups(self) -> None:
        """Asks for two groups of ranks; the selected ones, or the one under the cursor, are proposed as the first."""
        if not self._can_compare():
            return
        rank, chosen = self.rank_to_compare(), self.selection.tasks
        first = [item.rank for item in self.job_ranks if chosen is not None and item.task in chosen]
        if not first and str(rank).isdecimal():
            first = [int(str(rank))]
        words = "ranks A -- B (no B: all others)"
        self.prompt.open(_GROUPS, words, spans(first), checker(self._groups))

    def _can_compare(self) -> bool:
        if self.job is None:
            self.say("nothing is loaded yet")
        elif len(self.job_ranks) < 2:
            self.say("there is one rank only: ctrl+p and diff compares with another job")
        return self.job is not None and len(self.job_ranks) > 1

    def _groups(self, text: str) -> Groups:
        assert self.job is not None
        return groups_of(self.job, text)

    @on(LinePrompt.Submitted)
    def _groups_given(self, message: LinePrompt.Submitted) -> None:
        if message.purpose == _GROUPS:
            message.stop()
            self._compare(*self._groups(message.value))

    def _compare(self, first: Collection[int], second: Collection[int]) -> None:
        assert self.job is not None
        self._marked = None
        self.lay_over(comparison(self.job, self.selection, first, second))


Groups = tuple[frozenset[int], frozenset[int]]


def is_of_ranks(text: str) -> bool:
    """Whether a text is of numbers, as ``0-3 -- 4-7``, and of no file that is there."""
    return bool(re.fullmatch(r"[\d\s,-]+", text)) and not os.path.lexists(text.strip())


def groups_of(job: Job, text: str) -> Groups:
    """``0-3 -- 4-7``, or ``0-3`` against all others; raises UsageError."""
    from nsystui.questions.typed import numbers

    first, dashes, second = (word.strip() for word in text.partition("--"))
    a = numbers(first, "ranks")
    b = numbers(second, "ranks") if dashes else frozenset(item.rank for item in job.ranks) - a
    for group in (a, b):
        job.tasks_of_ranks(group)
    if not b:
        raise UsageError("these are all ranks: there are no others to compare with")
    if a == b:
        raise UsageError("these are the same ranks twice")
    return a, b


def comparison_of_groups(job: Job, selection: Selection, text: str) -> DiffScreen:
    """The screen for two groups of ranks as they are typed; raises UsageError."""
    return comparison(job, selection, *groups_of(job, text))


def comparison(job: Job, selection: Selection, first: Collection[int], second: Collection[int]) -> DiffScreen:
    """The screen for two groups of ranks in the time that is selected."""
    from nsystui.questions.compare import Side
    from nsystui.ui.screens.diff import DiffScreen

    own = selection.with_name(None)
    a, b = (Side(job, own.with_tasks(job.tasks_of_ranks(frozenset(group))), _label(group)) for group in (first, second))
    return DiffScreen((a, b))


def _label(ranks: Collection[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {spans(ranks)}"
