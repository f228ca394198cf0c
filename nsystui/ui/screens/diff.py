"""Two sides of a comparison: what changed, then table after table. Over the screens of a job, or of two jobs alone."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from textual import events, on
from textual.widget import Widget

from nsystui.base.answer import Answer, Row, Value
from nsystui.base.selection import NameFilter, Selection
from nsystui.base.text import shorten, width_of
from nsystui.questions.compare import TABLES, Options, Side, worded
from nsystui.questions.kernels import Names
from nsystui.ui import keys
from nsystui.ui.log_views import filtered
from nsystui.ui.screens.exporting import checker
from nsystui.ui.screens.going import show_table
from nsystui.ui.screens.table_pane import TablePane
from nsystui.ui.widgets.choice_line import ChoiceLine
from nsystui.ui.widgets.crumbs import SelectionLine
from nsystui.ui.widgets.prompt import LinePrompt

if TYPE_CHECKING:
    from nsystui.base.answer import TableAnswer
    from nsystui.questions.job import Job

_SUMMARY = "summary"
_FILTER = "rows with"
_FRAME = 5
"""The lines around the table: title, sides, tables, headings, keys."""
_LEAST_NOTES = 4
_SCREENS = {"kernels": "kernels", "nvtx": "nvtx", "nccl": "nccl", "memory": "memory_ops"}
"""What shows the names of a table: a mode, or for memory operations a table of one."""


class DiffScreen(TablePane):
    """The tables of a comparison, one at a time; ``e`` exports the one that is shown.

    Without ``sides`` they are those of the application, once it has them (`nsystui.ui.diff_app.DiffApp`).
    """

    PLACES = ("diff", "table", "everywhere")
    BINDINGS = keys.bindings("diff", "table", "everywhere")

    def __init__(self, sides: tuple[Side, Side] | None = None, options: Options | None = None) -> None:
        super().__init__("Comparison")
        self._sides = sides
        self._is_swapped = False
        self.options = options
        self.name_of_table = _SUMMARY
        self.words: NameFilter | None = None
        self._current = _SUMMARY
        self._whole: TableAnswer | None = None

    def body(self) -> Iterable[Widget]:
        yield ChoiceLine(id="choice")
        yield from super().body()

    def places(self) -> tuple[str, ...]:
        return self.PLACES if self._is_of_open_job else ("diff alone", *self.PLACES)

    # -- the sides ------------------------------------------------------------------------------------------------

    @property
    def sides(self) -> tuple[Side, Side] | None:
        """A and B as they are shown; ``None`` until they are read."""
        found: tuple[Side, Side] | None = self._sides or getattr(self.explorer, "sides", None)
        return found and (found[::-1] if self._is_swapped else found)

    @property
    def job(self) -> Job | None:
        return self.sides[0].job if self.sides is not None else None

    @property
    def _is_of_open_job(self) -> bool:
        """Whether there are other screens, of the job that both sides are of."""
        return self._sides is not None and all(side.job is self.explorer.job for side in self._sides)

    def show_selection(self) -> None:
        """What A and B are, in place of the selection."""
        line = self.query_one("#selection", SelectionLine)
        if self.sides is None:
            line.update("")
            return
        words = [f'filter "{self.words.text}"'] if self.words is not None else []
        room = self.app.size.width - sum(width_of(text) + 2 for text in words)
        a, b = (shorten(side.label, max(10, room // 2 - 6)) for side in self.sides)
        line.update("  ".join([f"A = {a}   B = {b}", *words]))

    # -- the question ---------------------------------------------------------------------------------------------

    def _options(self) -> Options:
        return self.options or getattr(self.explorer, "options", None) or Options()

    def parameters(self) -> tuple[Hashable, ...]:
        assert self.sides is not None
        return (self.name_of_table, self._is_swapped, self._options(), self.sides[1].job.session.version)

    def ask(self, job: Job, selection: Selection) -> tuple[str, TableAnswer]:
        name, sides = self.name_of_table, self.sides
        assert sides is not None
        return name, TABLES[name].make(*sides, self._options())

    def job_changed(self) -> None:
        super().job_changed()
        self._show_choice()
        if self._whole is None and self.job is not None:
            self.table.empty_text = "comparing A with B…"
            self.table.refresh_rows()

    def show(self, result: Any, same_place: bool) -> None:
        self._current, self._whole = result
        self._show_rows(same_place)

    def _show_rows(self, same_place: bool) -> None:
        if self._whole is None:
            return
        answer = worded(self._whole) if self._current == _SUMMARY else self._whole
        super().show(filtered(answer, self.words), same_place)
        self._share_room()

    def on_resize(self, event: events.Resize) -> None:
        self.show_selection()
        self._share_room()

    def _share_room(self) -> None:
        """The notes get the lines that the rows leave."""
        self.notes.allow(max(_LEAST_NOTES, self.app.size.height - _FRAME - self.table.row_count))

    def show_waiting(self) -> None:
        super().show_waiting()
        self.show_title(right="reading")
        self.table.empty_text = "reading: A and B are compared when all of both is read"
        self._show_choice()

    def _show_choice(self) -> None:
        self.query_one("#choice", ChoiceLine).show_names(list(TABLES), self.name_of_table)

    def natural_order(self) -> tuple[str | None, bool]:
        return (None, True) if self._current in (_SUMMARY, "steps") else ("difference", True)

    def empty_text(self, answer: Answer) -> str:
        if answer.total and self.words is not None:
            return f'none of the {answer.total:,} rows has the words "{self.words.text}": Esc takes the filter away'
        return "\n".join(answer.notes) or "neither A nor B has any"

    def show_count(self) -> None:
        self.crumbs = ("Comparison", TABLES[self.name_of_table].title)
        super().show_count()

    def counted(self) -> str:
        return "measures" if self._current in (_SUMMARY, "steps") else "names"

    def row_category(self, row: Row) -> str | None:
        name = row[-1] if row else None
        if self.name_of_table == "kernels" and isinstance(name, str):
            return "nccl" if name.lower().removeprefix("void ").startswith("nccl") else None
        return {"nccl": "nccl", "memory": "memory"}.get(self.name_of_table)

    # -- keys -----------------------------------------------------------------------------------------------------

    def action_other_table(self, step: int) -> None:
        names = list(TABLES)
        self._show_table(names[(names.index(self.name_of_table) + step) % len(names)])

    def _show_table(self, name: str) -> None:
        self.name_of_table = name
        self.words = self._sort = None
        if self.job is None:
            self._show_choice()
        else:
            self.job_changed()

    def action_swap(self) -> None:
        self._is_swapped = not self._is_swapped
        if self.job is not None:
            self.say("A and B are swapped")
            self.job_changed()

    def action_names(self) -> None:
        order, options = list(Names), self._options()
        following = order[(order.index(options.names) + 1) % len(order)]
        self.options = replace(options, names=following)
        self.say(f"{following.value} names")
        self._ask_again("kernels")

    def action_fold(self) -> None:
        options = self._options()
        self.options = replace(options, fold_numbers=not options.fold_numbers)
        self.say("numbered names one by one" if options.fold_numbers else "numbered names as one")
        self._ask_again("nvtx")

    def _ask_again(self, table: str) -> None:
        """Shows the table that the change is about; it is another one, or its rows are."""
        if self.name_of_table != table:
            self._show_table(table)
        elif self.job is not None:
            self.job_changed()

    def action_selection(self) -> None:
        self.say("A and B are chosen: the other screens select ranks and times, x on two ranks compares them")

    def action_filter(self) -> None:
        self.prompt.open(_FILTER, _FILTER, self.words.text if self.words else "", checker(_filter_of))

    @on(LinePrompt.Submitted)
    def _words_given(self, message: LinePrompt.Submitted) -> None:
        if message.purpose == _FILTER:
            message.stop()
            self._look_for(_filter_of(message.value))

    def _look_for(self, words: NameFilter | None) -> None:
        self.words = words
        self.show_selection()
        self._show_rows(same_place=False)

    def action_back(self) -> None:
        if self.words is not None:
            self._look_for(None)
        else:
            super().action_back()

    async def action_mode(self, name: str) -> None:
        if self._is_of_open_job:
            await super().action_mode(name)
        else:
            self.say("only the comparison is open here: `nsystui FILE…` shows a job")

    # -- going on -------------------------------------------------------------------------------------------------

    def open_row(self) -> None:
        """From the summary to a table, from a table to the screen of its names."""
        values = self.values()
        if self._current == _SUMMARY:
            table = values.get("table")
            if isinstance(table, str):
                self._show_table(table)
            elif values:
                self.say("no table tells more of this; o goes through them")
        elif values:
            self.call_later(self._open_name, values)

    async def _open_name(self, values: dict[str, Value]) -> None:
        name = values.get("collective" if self._current == "nccl" else "name")
        if self._current not in _SCREENS or not isinstance(name, str):
            self.say("there is no screen of this row alone")
            return
        if not self._is_of_open_job:
            self.say("only the comparison is open here: `nsystui FILE…` shows a job, f filters by name there")
            return
        assert self._sides is not None
        tasks = [side.selection.tasks for side in self._sides]
        windows = {side.selection.window for side in self._sides}
        own = Selection(
            window=windows.pop() if len(windows) == 1 else None,
            tasks=None if None in tasks else frozenset().union(*filter(None, tasks)),
            name=_exactly(name),
        )
        names, table = self._options().names, self._current
        self.explorer.select(own)
        await self._go_to(table, names)

    async def _go_to(self, table: str, names: Names) -> None:
        if table == "memory":
            await show_table(self.app, _SCREENS[table])
            return
        await super().action_mode(_SCREENS[table])
        from nsystui.ui.screens.kernels import KernelsScreen

        if table == "kernels" and isinstance(self.app.screen, KernelsScreen):
            self.app.screen.names, self.app.screen.what = names, "kernels"
            self.app.screen.job_changed()

    def answer_to_export(self) -> Answer | None:
        """As on the screen; of the summary the plain values, with their units beside them."""
        if self._whole is not None and self._current == _SUMMARY:
            return filtered(self._whole, self.words)
        return self.table.answer

    def proposed_name(self, answer: Answer) -> str | None:
        from nsystui.output.files import propose_name

        if self.sides is None:
            return None
        labels = [side.label for side in self.sides]
        return propose_name([f"{labels[0]}-{labels[1]}"], answer.name, self.words.text if self.words else None, ".csv")


def _filter_of(text: str) -> NameFilter | None:
    return NameFilter(text) if text else None


def _exactly(name: str) -> NameFilter:
    """The filter for this name and no other; a numbered name has any number at its ``*``."""
    pattern = re.escape(name).replace(r"\*", "(?:[0-9]+|0[xX][0-9a-fA-F]+|[*])")
    return NameFilter(f"re:^{pattern}$")
