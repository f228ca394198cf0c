"""Comparisons from a screen of ranks: two ranks in the selected time."""

from __future__ import annotations

from asyncio import to_thread
from typing import TYPE_CHECKING

from nsystui.base.selection import Selection
from nsystui.ui.screens.base import JobScreen
from nsystui.ui.widgets.repainting import in_background

if TYPE_CHECKING:
    from nsystui.base.answer import Value


@in_background("straggler")
async def compare_straggler(screen: JobScreen) -> None:
    """Compare the rank with median compute, A, with the rank that causes most waiting, B."""
    from nsystui.questions.collectives.waiting import mainly_late
    from nsystui.ui.screens.diff import comparison_of_ranks

    job, selection = screen.job, screen.selection
    if job is None:
        return

    def straggler_and_median() -> tuple[int | None, int | None]:
        task = mainly_late(job.lateness(selection))
        late = next((item.rank for item in job.ranks if item.task == task), None)
        return late, job.busy(Selection()).median_rank(job.extent(Selection()), late)

    late, median = await to_thread(straggler_and_median)
    if late is None or median is None:
        screen.say("no rank causes most of the waiting: x on two ranks compares them")
    else:
        screen.lay_over(comparison_of_ranks(job, selection, {median}, {late}))


class ComparableRanksScreen(JobScreen):
    """A screen that compares two ranks, by ``x`` on each, or the straggler."""

    _marked_rank: int | None = None

    def compare_rank(self, rank: Value) -> None:
        """Mark a rank, or compare it with the marked rank."""
        marked = self._marked_rank
        if not self.has_job() or self.job is None:
            return
        if len(self.job_ranks) < 2:
            self.say("only one rank is open: ctrl+p compares two jobs")
        elif rank is None or not str(rank).isdecimal():
            compare_straggler(self)
        elif marked is None:
            self._marked_rank = int(rank)
            self.say(f"A = rank {rank}: x on another rank compares")
        elif marked == int(rank):
            self._marked_rank = None
            self.say(f"mark cleared: rank {rank}")
        else:
            from nsystui.ui.screens.diff import comparison_of_ranks

            self._marked_rank = None
            self.lay_over(comparison_of_ranks(self.job, self.selection, {marked}, {int(rank)}))
