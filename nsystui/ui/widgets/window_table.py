"""The program's table: a window on an answer of one row or ten million.

It reads only the pages that it draws, formats only visible rows, and repaints only changes: two lines for a step of the
cursor. It draws plain segments, so that data is never read as markup; ``safe_text`` (in ``table_layout``) removes
escape sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events, on
from textual.binding import Binding, BindingType
from textual.geometry import Region
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.timer import Timer

from nsystui.base.answer import Answer, Record, Row, TableAnswer, Value, record
from nsystui.base.text import shorten, width_of
from nsystui.ui.page import CategoryWidget
from nsystui.ui.widgets.pages import PageCache, RowWindow, same_row
from nsystui.ui.widgets.repainting import OwnFocus
from nsystui.ui.widgets.table_layout import PieceKind, TableLayout, message_lines

_LETTER_STYLE = Style(reverse=True)
"""The style of a letter that can be pressed."""


@dataclass
class TableMessage(Message, namespace="window_table"):
    """A message from ``table``."""

    table: WindowTable


@dataclass
class RowHighlighted(TableMessage, namespace="window_table"):
    """Posted when the cursor is on ``row``, after ``set_answer``, and when its page has arrived."""

    row: int

    def can_replace(self, message: Message) -> bool:
        """Keep only the newest message of a held key in the queue."""
        return isinstance(message, RowHighlighted) and message.table is self.table


@dataclass
class RowSelected(TableMessage, namespace="window_table"):
    """Posted for Enter on ``row``, or a click on the row with the cursor."""

    row: int


@dataclass
class SortRequested(TableMessage, namespace="window_table"):
    """Posted when the user wants another order. The screen sorts, then calls ``set_answer`` and ``mark_sorted``."""

    key: str
    descending: bool


@dataclass
class PageFailed(TableMessage, namespace="window_table"):
    """Posted if a page could not be read; the table shows ``error`` until the next ``set_answer``."""

    error: Exception


MARKER = "▸ "
"""The mark before the cursor's row in the focused table, for screen readers and terminals without colour."""

PATIENCE = 0.15
"""Seconds that ``background`` waits for rows before it draws ``…`` instead."""


class WindowTable(CategoryWidget, OwnFocus, can_focus=True):
    """A scrolling table of an ``Answer``.

    Args:
        elastic: See `TableLayout`.
        row_style: Returns a row's category (of `base.drawing.CATEGORIES`) or ``None`` from its values by column. The
            category colours the name and the bar; a severity colours its letter, not the name.
        bar_category: The category of bars in rows without a category.
        background: Read slow pages in a thread, and draw ``…`` until they arrive.
        free_keys: Keys of ``BINDINGS`` left to the screen, by Textual's names, such as ``{"g", "less_than_sign"}``.
    """

    ALLOW_SELECT = False  # selection would need bytes on every line: an offset in each cell's style

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "step(-1)", show=False),
        Binding("down,j", "step(1)", show=False),
        Binding("pageup,ctrl+b", "page(-1)", show=False),
        Binding("pagedown,ctrl+f", "page(1)", show=False),
        Binding("home,g", "edge(0)", show=False),
        Binding("end,G", "edge(1)", show=False),
        Binding("left,less_than_sign", "pan(-1)", show=False),
        Binding("right,greater_than_sign", "pan(1)", show=False),
        Binding("enter", "select", "open", show=False),
    ]

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        *("window-table--header", "window-table--cursor", "window-table--empty"),
        *("window-table--bar", "window-table--title"),
    }

    cursor_row: reactive[int] = reactive(0, repaint=False, init=False)
    """The row under the cursor, from 0, clamped; 0 also in an empty table."""

    empty_text = ""
    """Sentences for an empty table: why it is empty, and what to record."""
    prefix: Callable[[int], str] | None = None
    """Returns the text before a row's first text column in a tree (indentation and ``▶``/``▼``)."""
    title: tuple[str, str] = ("", "")
    """A line above the headings: a name for the rows, shown with their number, and further words."""
    sorted_by: tuple[str, bool] | None = None
    """The column key last marked as sorted, and whether descending."""
    is_placed = False
    """Whether the cursor was moved from the top."""
    _requested_order: tuple[str, bool] | None = None  # perhaps not sorted yet
    _draw_timer: Timer | None = None
    _room = (0, 0)  # width and rows of the last layout

    def __init__(
        self,
        *,
        elastic: str | None = None,
        row_style: Callable[[Record], str | None] | None = None,
        bar_category: str | None = None,
        background: bool = False,
        free_keys: Collection[str] = (),
        id: str | None = None,  # noqa: A002
    ) -> None:
        super().__init__(id=id)
        self.elastic, self.bar_category, self.row_style = elastic, bar_category, row_style
        self.cell_styles: Callable[[Record], Mapping[str, str]] | None = None
        """Returns categories of single columns, by key, from the values of a row."""
        self.background = background
        for key in free_keys:
            self._bindings.key_to_bindings.pop(key, None)
        self.answer: Answer | None = None
        """The answer that is shown."""
        self._table, self._window = TableLayout(()), RowWindow()
        self._formatted: dict[int, list[str]] = {}  # the visible rows
        self.names: Mapping[str, str] = {}
        """Texts to show for values of the next answer: the smart names of kernels."""
        self._is_worded, self._window_changed = False, True  # units are chosen; since the last measurement
        self._is_selecting = False  # whether Enter waits for its row to be read
        self._cache: PageCache | None = None
        self._letters: Mapping[str, str] = {}  # column keys by letter, while an order is picked

    def set_answer(self, answer: Answer, keep_cursor: bool = False) -> None:
        """Show ``answer``, with the cursor on the same row if the user moved it there.

        If that row is not in ``answer`` or not in memory, the cursor is on the first row, or on the same row number
        with ``keep_cursor``.
        """
        is_first = self.answer is None
        same_columns = self.answer is not None and self.answer.columns == answer.columns
        row = same_row(self.answer, self.cursor_row, answer) if self.is_placed else None
        self.is_placed = self.is_placed and (keep_cursor or row is not None)
        top = self._window.top if keep_cursor else 0
        cursor = row if row is not None else self.cursor_row if keep_cursor else 0
        self.answer = answer
        self._cache = PageCache(answer)
        if not same_columns:
            self._table = TableLayout(answer.columns, self.elastic)
        self._is_worded = isinstance(answer, TableAnswer)
        self._table.names = self.names
        if isinstance(answer, TableAnswer):
            self._table.word(answer.rows)
        self._window = RowWindow(len(self._cache), self._window.height, top)
        self.set_reactive(WindowTable.cursor_row, self._window.clamp(cursor))
        self._window.reveal(self.cursor_row)
        self.refresh_rows()
        self._is_selecting = self._is_selecting and self.row_count > 0 and (is_first or same_columns)
        self._announce()

    @property
    def row_count(self) -> int:
        return self._window.count

    @property
    def awaits_row(self) -> bool:
        """Whether the row under the cursor is being read."""
        return self.background and self._cache is not None and bool(self._cache.missing(self.cursor_row, 1))

    @property
    def current_row(self) -> Row | None:
        """The row under the cursor, see ``row_at``."""
        return self.row_at(self.cursor_row)

    @property
    def current_values(self) -> dict[str, Value]:
        """The values of the row under the cursor by column key; empty without a row."""
        row = self.current_row
        return {} if row is None or self.answer is None else record(self.answer.columns, row)

    @property
    def name_key(self) -> str | None:
        """The key of the column that names a row: the elastic column."""
        elastic = self._table.elastic
        return None if elastic is None or self.answer is None else self.answer.columns[elastic].key

    @property
    def hidden_facts(self) -> dict[str, str]:
        """The values of the cursor's row in hidden columns, as ``label value``, by column key."""
        return {} if self.current_row is None else self._table.hidden_facts(self.current_row)

    def refresh_rows(self) -> None:
        """Draw all rows again, after a change of ``prefix``, ``row_style`` or ``empty_text``."""
        self._formatted.clear()
        self._redraw()

    def entitle(self, name: str, about: str = "") -> None:
        """Put a title above the headings."""
        if (name, about) != self.title:
            self.title = (name, about)
            self.refresh_rows()

    @property
    def _above(self) -> int:
        return int(bool(self.title[0]))

    @property
    def _has_scrollbar(self) -> bool:
        return self._window.count > self._window.height

    def mark_sorted(self, key: str | None, descending: bool = True) -> None:
        """Mark the heading of the sorted column (``None``: no column)."""
        self.sorted_by = self._requested_order = None if key is None else (key, descending)
        self.refresh_rows()

    def pick_order(self) -> bool:
        """Mark a letter in each heading: the next key sorts by its column, or reverses the order of a sorted column.

        ``s`` sorts by the next column, and other keys cancel. Return whether there is anything to sort.
        """
        self._show_letters(self._table.sort_letters() if self.row_count else {})
        return bool(self._letters)

    def _show_letters(self, letters: Mapping[str, str]) -> None:
        self._letters = letters
        self.refresh(Region(0, self._above, self.size.width, 1))

    def on_key(self, event: events.Key) -> None:
        """Handle the letter of a column while an order is picked."""
        if not self._letters:
            return
        event.stop()
        event.prevent_default()
        letters = self._letters
        self._show_letters({})
        if event.key == "s":
            if key := self._table.key_after(self._requested_order[0] if self._requested_order else None):
                self.sort_by(key)
        elif event.key in letters:
            self._sort_or_reverse(letters[event.key])

    def _sort_or_reverse(self, key: str) -> None:
        if self._requested_order is not None and self._requested_order[0] == key:
            self._request_order(key, not self._requested_order[1])
        else:
            self.sort_by(key)

    def sort_by(self, key: str) -> None:
        """Request the order of column ``key``: names and times ascending, amounts descending."""
        self._request_order(key, self._table.descends(key))

    def _request_order(self, key: str, descending: bool) -> None:
        self._requested_order = (key, descending)
        self.post_message(SortRequested(self, key, descending))

    def row_at(self, index: int) -> Row | None:
        """Return a row, or ``None`` if missing or (``background``) its page has not arrived."""
        if self._cache is None or not 0 <= index < len(self._cache):
            return None
        if not self.background:
            self._read(self._cache, self._cache.missing(index, 1))
        return self._cache.row(index)

    def _read(self, cache: PageCache, numbers: Sequence[int]) -> None:
        cache.read(numbers)
        if numbers and cache.failure is not None:
            self._post_failure(cache.failure)

    def _missing(self) -> list[int]:
        return self._cache.missing(self._window.top, self._window.height) if self._cache is not None else []

    def _pages_arrived(self, cache: PageCache, pages: Collection[int]) -> None:
        if cache is self._cache:
            if cache.failure is not None:
                self._post_failure(cache.failure)
            if self.cursor_row // cache.page_rows in pages:
                self._announce()
        self._redraw()

    def _post_failure(self, error: Exception) -> None:
        # Not immediately: during a repaint, Textual takes the screen for the sender and does not notify it.
        self.call_next(lambda: self.post_message(PageFailed(self, error)))

    def validate_cursor_row(self, row: int) -> int:
        return self._window.clamp(row)

    def watch_cursor_row(self, old: int, new: int) -> None:
        """Redraw the two rows, or scroll."""
        self.is_placed = True
        if self._window.reveal(new):
            self._redraw()
        elif self._draw_timer is None:  # a running timer will draw the whole window
            self._redraw_row(old)
            self._redraw_row(new)
        self._announce()

    def focus_changed(self) -> None:
        """Redraw the cursor's row, and stop picking an order."""
        if self._letters:
            self._show_letters({})
        self._redraw_row(self.cursor_row)

    def _redraw_row(self, row: int) -> None:
        if self._window.shows(row):
            self.refresh(Region(0, self._above + 1 + row - self._window.top, self.size.width, 1))

    def _scroll(self, rows: int) -> None:
        """Move the window and the cursor, so that the eye stays on the same line."""
        offset = self._window.scroll(rows)
        if offset:
            self._redraw()
        self.cursor_row += offset or rows  # at an end, only the cursor moves

    def _redraw(self) -> None:
        """Draw the window after its rows or room changed, or in the background when rows arrive.

        Until then, but at most for ``PATIENCE``, the old picture stays: most pages arrive earlier, and placeholders
        would double the bytes.
        """
        self._window_changed = True
        missing = self._missing() if self.background and self.is_attached else []
        if not missing or self._cache is None:
            self._draw_now()
            return
        self._cache.read_in_thread(self, missing, self._pages_arrived)
        if self._draw_timer is None:
            self._draw_timer = self.set_timer(PATIENCE, self._draw_now)

    def _draw_now(self) -> None:
        if self._draw_timer is not None:
            self._draw_timer.stop()
            self._draw_timer = None
        self.refresh()

    def _announce(self) -> None:
        if self.row_count and self.is_attached:
            self.post_message(RowHighlighted(self, self.cursor_row))
            self._select()

    def _select(self) -> None:
        if self._is_selecting and self.current_row is not None:
            self._is_selecting = False
            self.post_message(RowSelected(self, self.cursor_row))

    def action_step(self, rows: int) -> None:
        self.cursor_row += rows

    def action_page(self, direction: int) -> None:
        self._scroll(direction * self._window.height)

    def action_edge(self, end: int) -> None:
        """Go to the first row (0) or the last."""
        self.cursor_row = self.row_count - 1 if end else 0

    def action_pan(self, direction: int) -> None:
        if self._table.pan_by(direction):
            self.refresh()

    def action_select(self) -> None:
        """Select the row, as soon as it is read."""
        self._is_selecting = self.answer is None or self.row_count > 0
        self._select()

    def on_click(self, event: events.Click) -> None:
        """Sort by a heading; put the cursor on a row, or select the row with the cursor."""
        line = event.y - self._above
        row = self._window.top + line - 1
        if line < 0:
            return
        if line == 0:
            if (key := self._table.column_at(event.x - len(MARKER))) is not None:
                self._sort_or_reverse(key)
        elif row < self.row_count:
            if row == self.cursor_row:
                self.action_select()
            self.cursor_row = row

    @on(events.MouseScrollUp)
    @on(events.MouseScrollDown)
    def _wheel(self, event: events.MouseEvent) -> None:
        event.stop()
        self._scroll(-3 if isinstance(event, events.MouseScrollUp) else 3)

    def render_lines(self, crop: Region) -> list[Strip]:
        """Read and measure the visible rows, once a repaint.

        Not on each key: a held PgDn would read windows that are never painted. Not on resize: the event follows the
        repaint of the new size.
        """
        room = (self.size.width, max(1, self.size.height - 1 - self._above))
        if room != self._room:
            self._room, self._window.height = room, room[1]
            self._window.reveal(self.cursor_row)
            self._window_changed = True
        if self._window_changed:
            self._window_changed = False
            self._measure_window()
        return super().render_lines(crop)

    def _measure_window(self) -> None:
        cache = self._cache
        if cache is None:
            return
        missing = self._missing()
        if not self.background:
            self._read(cache, missing)
        elif missing:
            cache.read_in_thread(self, missing, self._pages_arrived)
        rows = {index: row for index in self._window.rows() if (row := cache.row(index)) is not None}
        if rows and not self._is_worded:
            self._is_worded = True
            self._table.word(list(rows.values()), of_all=False)
            self._formatted.clear()
        before, self._formatted = self._formatted, {}
        for index, row in rows.items():
            self._formatted[index] = before.get(index) or self._table.format(row, self._prefix_of(index))
        placed = {column.index for column in self._table.placed}
        sorted_key = self.sorted_by[0] if self.sorted_by else None
        self._table.place(self._row_width - len(MARKER), sorted_key, self._formatted.values())
        if placed != {column.index for column in self._table.placed}:
            self.call_next(self._announce)  # the details list the hidden columns

    @property
    def _row_width(self) -> int:
        """The cells without the scrollbar."""
        return max(0, self.size.width - (2 if self._has_scrollbar else 0))

    def _prefix_of(self, index: int) -> str:
        return self.prefix(index) if self.prefix is not None else ""

    def render_line(self, y: int) -> Strip:
        """Draw the heading, a row, or words if there are no rows."""
        width, y = self.size.width, y - self._above
        if y < 0:
            return self._title_line(width)
        if not self._cache or self._cache.failure is not None:
            failure = self._cache.failure if self._cache is not None else None
            words = f"These rows could not be read: {failure}" if failure else self.empty_text
            lines = [" " * width, *message_lines(words, width)]
            text = lines[y] if y < len(lines) else " " * width
            return Strip([Segment(text, self.get_component_rich_style("window-table--empty"))], width)
        if y == 0:
            style = self.get_component_rich_style("window-table--header")
            pieces = self._table.heading_pieces(width - len(MARKER), self.sorted_by, self._letters)
            segments = [Segment(" " * len(MARKER), style)]
            segments.extend(Segment(text, style + _LETTER_STYLE if is_letter else style) for text, is_letter in pieces)
            return Strip(list(Segment.simplify(segment for segment in segments if segment.text)), width)
        index = self._window.top + y - 1
        if index >= len(self._cache):
            return Strip.blank(width, self.rich_style)
        segments = self._row_segments(index, self._row_width)
        if self._has_scrollbar:
            thumb = self._window.thumb()
            segments.append(Segment(f" {'▐' if y - 1 in thumb else '│'}"[: width - self._row_width], self.rich_style))
        return Strip(list(Segment.simplify(segments)), width)

    def _title_line(self, width: int) -> Strip:
        name, about = self.title
        count = f"{self._window.count:,}"
        row_words = f"{self._window.height:,} of {count}" if self._has_scrollbar else count
        description = ", ".join(filter(None, (row_words if self.row_count else "", about)))
        text = shorten(description, max(0, width - width_of(name) - 2))
        segments = [
            Segment(f"{name}  ", self.get_component_rich_style("window-table--title")),
            Segment(text, self.rich_style),
        ]
        return Strip(segments).adjust_cell_length(width, self.rich_style)

    def _row_segments(self, index: int, width: int) -> list[Segment]:
        """Draw a row in few segments: each change of style costs some 25 bytes."""
        at_cursor = index == self.cursor_row and self.has_focus
        gutter = MARKER if at_cursor else " " * len(MARKER)
        style = self.get_component_rich_style("window-table--cursor") if at_cursor else self.rich_style
        shown = self._formatted.get(index)
        if shown is None:
            return [Segment((gutter + "…").ljust(width), style)]
        row = self._cache.row(index) if self._cache else None
        pieces = self._table.row_line(shown, row or (), width - len(gutter), self._prefix_of(index), self.app.no_color)
        # The cursor's row has one colour, except for the parts of its stacked bar.
        styles, cells = (dict.fromkeys(PieceKind, style), {}) if at_cursor else self._styles_of(row)
        segments = [
            Segment(gutter, style),
            *(
                Segment(text, self.fill_style(category) if category else cells.get(key) or styles[kind])
                for text, kind, key, category in pieces
            ),
        ]
        return list(Segment.simplify(segment for segment in segments if segment.text))

    def _styles_of(self, row: Row | None) -> tuple[dict[PieceKind, Style], dict[str, Style]]:
        values = record(self.answer.columns, row) if row is not None and self.answer is not None else None
        category = self.row_style(values) if values is not None and self.row_style is not None else None
        categories = self.cell_styles(values) if values is not None and self.cell_styles is not None else {}
        bar_category = category or self.bar_category
        name = self.words_style(category) if category and category not in ("error", "warning") else self.rich_style
        bar = self.fill_style(bar_category) if bar_category else self.get_component_rich_style("window-table--bar")
        pieces = {PieceKind.NAME: name, PieceKind.BAR: bar, PieceKind.OTHER: self.rich_style}
        return pieces, {key: self.words_style(category_name) for key, category_name in categories.items()}
