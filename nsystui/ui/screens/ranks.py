"""7 Ranks: the ranks beside each other, their steps, and the collectives that they have in common."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nsystui.base.answer import Answer, Value
from nsystui.base.selection import Selection, Window
from nsystui.questions.collectives.waiting import collective_kinds, collective_operations
from nsystui.questions.job import Job
from nsystui.questions.ranks.steps import every_step, steps_across_ranks, steps_by_rank
from nsystui.questions.ranks.table import rank_table
from nsystui.questions.steps import Steps
from nsystui.questions.tasks import RankedTask, selected_ranks
from nsystui.ui import keys
from nsystui.ui.screens.rank_comparison import RankComparison
from nsystui.ui.screens.table import TableScreen


@dataclass(frozen=True)
class _Table:
    """One of the tables: its crumb, what its rows are, and the question."""

    crumb: str
    counted: str
    ask: Callable[[Job, Selection], Answer]


def _ranks(job: Job, selection: Selection) -> Answer:
    return rank_table(job.session, selection, job.ranks, job.rank_facts(selection))


def _steps(table: Callable[[Sequence[RankedTask], Steps, Window | None], Answer]) -> Callable[[Job, Selection], Answer]:
    """The question for one of the tables of steps."""

    def ask(job: Job, selection: Selection) -> Answer:
        chosen = selected_ranks(job.ranks, selection)
        return table(chosen, job.steps(), selection.window)

    return ask


def _kinds(job: Job, selection: Selection) -> Answer:
    return collective_kinds(selection, job.ranks, job.collectives())


def _operations(job: Job, selection: Selection) -> Answer:
    return collective_operations(selection, job.ranks, job.collectives())


_TABLES: Mapping[str, _Table] = {
    "ranks": _Table("", "ranks", _ranks),
    "steps": _Table("steps", "rows", _steps(steps_by_rank)),
    "steps-across": _Table("steps across ranks", "steps", _steps(steps_across_ranks)),
    "every-step": _Table("every step", "steps", _steps(every_step)),
    "collective-kinds": _Table("collectives", "kinds", _kinds),
    "collectives": _Table("every collective", "collectives", _operations),
}
_ORDERS = {"collective-kinds": ("waiting", True), "collectives": ("start", False), "steps-across": ("step", False)}
"""The column by which a table comes sorted, and whether it descends."""


class RanksScreen(TableScreen):
    """One table after the other; Enter on a row selects what it is about."""

    MODE_KEY = "7"
    PLACES = ("ranks", "table", "everywhere")
    BINDINGS = keys.bindings("ranks", "table", "everywhere")

    def __init__(self) -> None:
        super().__init__("7 Ranks")
        self.comparison = RankComparison(self)
        self.what = "ranks"

    def parameters(self) -> tuple[Hashable, ...]:
        alignment = self.explorer.job.alignment if self.explorer.job is not None else None
        return (self.what, alignment.mode if alignment is not None else None)

    def ask(self, job: Job, selection: Selection) -> Answer:
        return _TABLES[self.what].ask(job, selection)

    def show(self, result: Any, same_place: bool) -> None:
        crumb = _TABLES[self.what].crumb
        self.table.elastic = "collective" if self.what.startswith("collective") else "odd"
        self.crumbs = ("7 Ranks", crumb) if crumb else ("7 Ranks",)
        super().show(result, same_place)

    def counted(self) -> str:
        return _TABLES[self.what].counted

    def natural_order(self) -> tuple[str | None, bool]:
        return _ORDERS.get(self.what, (None, True))

    def action_other_table(self) -> None:
        names = list(_TABLES)
        self.what = names[(names.index(self.what) + 1) % len(names)]
        self.say(_TABLES[self.what].crumb or "the ranks")
        self.job_changed()

    def action_map(self) -> None:
        from nsystui.ui.screens.rank_map import RankMapScreen

        self.lay_over(RankMapScreen())

    def action_efficiency(self) -> None:
        from nsystui.ui.screens.efficiency import RanksEfficiencyScreen

        self.lay_over(RanksEfficiencyScreen())

    def action_clock(self) -> None:
        """Another clock: refined by collectives, UTC alone, none."""
        job = self.job
        if job is None or len(job.session.reports) < 2:
            self.say("one report has one clock")
        elif self.explorer.loading_now:
            self.say("the clocks are made one when everything is loaded")
        else:
            self.say("clock: " + self.explorer.next_clock().value + "…")

    def action_compare(self) -> None:
        self.comparison.mark(self._rank())

    def action_compare_groups(self) -> None:
        self.comparison.ask_for_groups(self._rank())

    def _rank(self) -> Value:
        return self.values().get("rank", self.values().get("slowest"))

    # -- a row ----------------------------------------------------------------------------------------------------

    def row_window(self) -> Window | None:
        values = self.values()
        start = values.get("start")
        length = values.get("max") if self.what == "steps-across" else values.get("duration")
        if not isinstance(start, int) or not isinstance(length, int | float):
            return None
        return Window(start, start + max(int(length), 1))

    def open_row(self) -> None:
        """Selects the rank, the step or the moment, and shows its GPU time."""
        values = self.values()
        selection = self.selection
        window = self.row_window()
        if window is not None:
            selection = selection.with_window(window)
        ranks = self._ranks_of(values.get("rank", values.get("slowest")))
        if ranks:
            selection = selection.with_tasks(frozenset(item.task for item in ranks))
        elif window is None:
            if self.what == "collective-kinds":
                self._show_table("collectives")
            elif values:
                self.say("this row is over all ranks: open one of them")
            return
        self.explorer.select(selection)
        self.call_later(self.action_mode, "events" if self.what == "collectives" else "gpu")

    def _show_table(self, what: str) -> None:
        self.what = what
        self.job_changed()

    def _ranks_of(self, number: object) -> Sequence[RankedTask]:
        return [item for item in self.job_ranks if str(item.rank) == str(number)]
