"""Base classes for screens with a chart over time and details below it, with and without zoom."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from textual import events, on
from textual.widget import Widget

from nsystui.base.answer import Row
from nsystui.base.selection import Selection, Window
from nsystui.ui.pictures.selection import panned, zoomed
from nsystui.ui.screens.base import JobScreen
from nsystui.ui.widgets.panels import PartLines
from nsystui.ui.widgets.strip_chart import StripChart
from nsystui.ui.widgets.time_chart import TimeChart
from nsystui.ui.widgets.window_table import WindowTable


class ChartScreen(JobScreen):
    """A chart, or the reason why nothing is drawn. A subclass makes the chart, and sets the height of ``#detail``."""

    make_chart: Callable[[], Widget]
    """Make the chart, which takes the keys."""
    show_detail: Callable[[], None]
    """Show the details under the cursor."""

    def body(self) -> Iterable[Widget]:
        self.chart = self.make_chart()
        self.detail = PartLines(id="detail")
        self.empty = WindowTable(id="empty")
        yield from (self.chart, self.detail, self.empty)

    def show_text(self, text: str) -> None:
        """Show a text instead of the chart, and update the title."""
        self.show_title()
        self.show_empty(text)

    def show_empty(self, text: str) -> None:
        """Show a text instead of the chart, or the chart if it is empty."""
        self.empty.display = bool(text)
        self.chart.display = self.detail.display = not text
        self.empty.empty_text = text
        self.empty.refresh_rows()
        if not text and self.focused is not self.chart and not self.prompt.has_focus_within:
            self.chart.focus()

    def cursor_rests(self) -> None:
        self.show_detail()

    @on(StripChart.Resized)
    def _chart_resized(self) -> None:
        """Compute the details again: a hidden chart has no width, and its columns no times."""
        self.show_detail()

    @on(StripChart.Selected)
    def _chart_selected(self) -> None:
        if self.is_awaiting:
            self.app.simulate_key("enter")
        else:
            self.open_column()

    def open_column(self) -> None:
        """Handle Enter on the chart: select the time under the cursor."""
        self.action_take_window()

    @on(StripChart.CursorMoved)
    def _cursor_moved(self) -> None:
        self.cursor_moved()

    def on_resize(self, event: events.Resize) -> None:
        self.job_changed()


@dataclass(frozen=True)
class Position:
    """The view on a selection (``None``: all of it), the time and the lane under the cursor, and the mark.

    ``event`` is the event that the cursor was moved to, until the cursor moves again.
    """

    view: Window | None = None
    time: int | None = None
    lane: Any = None
    mark: int | None = None
    event: Row | None = None


class ZoomableChartScreen(ChartScreen):
    """A chart with a view on the selected time that can be zoomed and moved.

    Going back to a selection restores the position in it. ``picture`` is the drawn picture; its ``base`` is the whole
    selection.
    """

    picture: Any
    chart: Any
    why_empty: Callable[[], str]
    """Return why the chart cannot be zoomed, or an empty text if it can."""
    look_at: Callable[[Window | None, int], None]
    """Show another view, with the cursor at a time."""
    times_of: Callable[[int], tuple[int, int]]
    """Return the start and the end of a column, ns."""

    STATE = ("_positions",)
    _positions: Mapping[Selection, Position] = {}

    @property
    def position(self) -> Position:
        """The position in the current selection; at first, all of the selection is in view."""
        return self._positions.get(self.selection, Position())

    def move_to(self, selection: Selection | None = None, **changes: Any) -> None:
        """Change the position in the current selection, or use the changed position in another selection."""
        self._positions = {**self._positions, selection or self.selection: replace(self.position, **changes)}

    @property
    def view(self) -> Window | None:
        """The time in view, also while it is being drawn; ``None`` for all of the selection."""
        return self.position.view

    @property
    def time(self) -> int:
        """The time under the cursor, ns."""
        raise NotImplementedError

    def action_zoom(self, direction: int) -> None:
        """Zoom in (1) or out (-1) around the cursor."""
        reason = self.why_empty()
        if self.picture is None or reason:
            self.say(reason)
            return
        base = self.picture.base
        view, columns = self.view or base, self.chart.chart_width  # a column is at least 1 ns
        if direction > 0 and view.end - view.start <= columns:
            self.say("a column is 1 ns already")
        elif direction < 0 and self.view is None:
            self.say("this is all of the selection: Esc goes back to the previous one")
        else:
            self.look_at(zoomed(view, base, self.time, direction > 0, columns), self.time)

    @on(TimeChart.Wheel)
    def _wheel(self, message: TimeChart.Wheel) -> None:
        if not self.why_empty():
            first, last = self.times_of(message.column)
            self.move_to(time=(first + last) // 2)
            self.action_zoom(message.direction)

    def action_pan(self, direction: int) -> None:
        """Move the view later (1) or earlier (-1)."""
        picture, view = self.picture, self.view
        if picture is None or view is None:
            self.say("all of the selection is in view: + zooms in")
            return
        moved = panned(view, picture.base, direction)
        if moved is None:
            self.say("the selection ends here")
        else:
            self.look_at(moved, self.time + moved.start - view.start)

    def action_whole(self) -> None:
        if self.view is None:
            self.say("all of the selection is in view")
        else:
            self.look_at(None, self.time)
