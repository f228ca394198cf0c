"""A screen that is one table: sorting, the time window of a row, "N of M", and an optional panel beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from textual import on
from textual.containers import Horizontal
from textual.widget import Widget

from nsystui.ui.screens.pane import Pane
from nsystui.ui.widgets.note_lines import NoteLines
from nsystui.ui.widgets.side_panel import SidePanel
from nsystui.ui.widgets.table_messages import PageFailed, RowHighlighted, RowSelected, SortRequested
from nsystui.ui.widgets.window_table import WindowTable

if TYPE_CHECKING:
    from nsystui.base.answer import Answer, Row, Value
    from nsystui.base.columns import Column
    from nsystui.base.selection import Window


class TablePane(Pane):
    """Base of the screens that show one answer in one table.

    ``ask`` gives an ``Answer``; a screen with a panel fills it when the cursor moves or the answer comes.
    """

    PLACES: ClassVar[tuple[str, ...]] = ("table", "everywhere")
    HAS_PANEL = False
    BACKGROUND = False
    PANEL_BORDER = "│ "
    ELASTIC: ClassVar[str | None] = None
    """The text column that takes the room to spare; else the last one."""

    DEFAULT_CSS = """
    TablePane #body { height: 1fr; }
    TablePane #body WindowTable { width: 1fr; }
    TablePane SidePanel { width: 44; display: none; }
    TablePane.-wide SidePanel { display: block; }
    TablePane.-wide SidePanel.-empty { display: none; }
    """
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]

    def __init__(self, *crumbs: str) -> None:
        super().__init__(*crumbs)
        self._sort: tuple[str, bool] | None = None

    def body(self) -> Iterable[Widget]:
        self.table = WindowTable(
            id="table",
            elastic=self.ELASTIC,
            row_style=self.row_category,
            background=self.BACKGROUND,
            free_keys=self.free_keys(),
        )
        self.notes = NoteLines(id="notes")
        if self.HAS_PANEL:
            self.panel = SidePanel(border=self.PANEL_BORDER, id="panel")
            yield Horizontal(self.table, self.panel, id="body")
        else:
            yield self.table
        yield self.notes

    def free_keys(self) -> frozenset[str]:
        """Keys of the table that this screen takes for itself."""
        return frozenset()

    def row_category(self, row: Row) -> str | None:
        """The category that colours a row's name."""
        return None

    def show(self, result: Any, same_place: bool) -> None:
        answer: Answer = result
        if self._sort is not None and any(column.key == self._sort[0] for column in answer.columns):
            answer = answer.sorted_by(*self._sort)
        else:
            self._sort = None
        self.table.empty_text = self.empty_text(answer)
        self.table.set_answer(answer, keep_cursor=same_place)
        self.table.mark_sorted(*(self._sort or self.natural_order()))
        self.notes.show_notes(answer.notes if len(answer) else ())
        self.show_count()

    def natural_order(self) -> tuple[str | None, bool]:
        """The column and direction that the answer comes in."""
        return None, True

    def empty_text(self, answer: Answer) -> str:
        """Why there are no rows."""
        if answer.total:
            return f"none of the {answer.total:,} rows is in the selection: Esc goes back"
        return "\n".join(answer.notes) or "nothing in the selection"

    def show_waiting(self) -> None:
        self.show_title()
        self.table.empty_text = "opening…"
        self.table.refresh_rows()

    def show_asking(self) -> None:
        self.show_title()
        self.table.empty_text = "computing…"
        self.table.refresh_rows()

    def show_count(self) -> None:
        """ "N of M" on the first line."""
        answer = self.table.answer
        if answer is not None:
            total = answer.total if answer.total is not None else len(answer)
            self.show_title(right=f"{len(answer):,} of {total:,} {self.counted()}")

    def counted(self) -> str:
        """What the rows are, for "N of M …"."""
        return "rows"

    # -- the row under the cursor ---------------------------------------------------------------------------------

    def values(self, row: Row | None = None) -> dict[str, Value]:
        """The values of a row (the cursor's, if none is given) by column key; empty where there is no row."""
        row = self.table.current_row if row is None else row
        answer = self.table.answer
        if row is None or answer is None:
            return {}
        return dict(zip((column.key for column in answer.columns), row, strict=True))

    def row_window(self) -> Window | None:
        """The time span of the cursor's row, where rows have one."""
        from nsystui.base.selection import Window

        values = self.values()
        start, duration = values.get("start"), values.get("duration")
        if not isinstance(start, int) or not isinstance(duration, int):
            return None
        return Window(start, start + max(duration, 1))

    def answer_to_export(self) -> Answer | None:
        return self.table.answer

    def row_to_copy(self) -> Row | None:
        return self.table.current_row

    def columns_to_copy(self) -> Sequence[Column]:
        return self.table.answer.columns if self.table.answer is not None else ()

    def action_take_window(self) -> None:
        window = self.row_window()
        if window is None:
            self.say("these rows are sums over time: open one to get a single event with a time window")
        else:
            self.select_window(window)

    # -- sorting --------------------------------------------------------------------------------------------------

    def action_sort(self) -> None:
        self.table.sort_next_column()

    def action_sort_reverse(self) -> None:
        if self.table.sorted_by is None:
            self.say("s sorts first")
        self.table.reverse_sort()

    @on(SortRequested)
    def _sort_requested(self, message: SortRequested) -> None:
        message.stop()
        self.sort_rows(message.key, message.descending)

    def sort_rows(self, key: str, descending: bool) -> None:
        """Shows the answer in another order."""
        answer = self.table.answer
        if answer is None:
            return
        self._sort = (key, descending)
        self.table.set_answer(answer.sorted_by(key, descending))
        self.table.mark_sorted(key, descending)

    @on(RowSelected)
    def _row_selected(self, message: RowSelected) -> None:
        message.stop()
        if self.is_of_before:
            self.say("these rows are of before: the new ones are not there yet")
        else:
            self.open_row()

    def open_row(self) -> None:
        """Enter."""

    @on(RowHighlighted)
    def _row_highlighted(self, message: RowHighlighted) -> None:
        message.stop()
        if not self.is_of_before:
            self.row_changed()

    def row_changed(self) -> None:
        """The cursor stands on another row."""

    @on(PageFailed)
    def _page_failed(self, message: PageFailed) -> None:
        message.stop()
        self.say(f"rows could not be read: {str(message.error).splitlines()[0]}")


def without_name(selection: Any) -> Any:
    """The selection of a drilled list: the name filter chose the row that was opened, not what is inside."""
    return replace(selection, name=None)
