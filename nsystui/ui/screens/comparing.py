"""A screen with ranks in its rows, two of which can be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsystui.ui.screens.pane import Pane

if TYPE_CHECKING:
    from nsystui.analysis.answer import Value
    from nsystui.analysis.job import Job


class ComparingScreen(Pane):
    """``x`` marks the rank under the cursor, and on another one compares the two in the time that is selected."""

    def __init__(self, *crumbs: str) -> None:
        super().__init__(*crumbs)
        self._marked: int | None = None

    def rank_to_compare(self) -> Value:
        """The rank of the cursor's row, where it has one."""
        raise NotImplementedError

    def action_compare(self) -> None:
        rank = self.rank_to_compare()
        if self.job is None or rank is None or not str(rank).isdecimal():
            self.say("ranks can be compared: this row is of none" if self.job is not None else "nothing is loaded yet")
        elif len(self.job_ranks) < 2:
            self.say("there is one rank only: `nsystui diff A… -- B…` compares two jobs")
        elif self._marked is None:
            self._marked = int(rank)
            self.say(f"A = rank {rank}: x on another rank compares")
        elif self._marked == int(rank):
            self._marked = None
            self.say(f"rank {rank} is not marked any more")
        else:
            self._compare(self.job, self._marked, int(rank))

    def _compare(self, job: Job, first: int, second: int) -> None:
        from nsystui.analysis.comparison import Side
        from nsystui.ui.screens.diff import DiffScreen

        self._marked = None
        tasks = {item.rank: item.task for item in self.job_ranks}
        own = self.selection.with_name(None)
        a, b = (Side(job, own.with_tasks(frozenset({tasks[rank]})), f"rank {rank}") for rank in (first, second))
        self.app.push_screen(DiffScreen((a, b)))
