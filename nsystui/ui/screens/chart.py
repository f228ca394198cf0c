"""The base of the screens that draw over time, with details below the chart; and of those that can be zoomed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from textual import events, on
from textual.widget import Widget

from nsystui.base.selection import Window
from nsystui.ui.pictures.zoom import panned, zoomed
from nsystui.ui.screens.base import JobScreen, ScreenState
from nsystui.ui.widgets.panels import PartLines
from nsystui.ui.widgets.strip_chart import StripChart
from nsystui.ui.widgets.time_chart import TimeChart
from nsystui.ui.widgets.window_table import WindowTable

if TYPE_CHECKING:
    from nsystui.base.answer import Row
    from nsystui.base.selection import Selection


class ChartScreen(JobScreen):
    """Draws over time, or says why it cannot. A subclass makes the chart, and gives ``#detail`` a height."""

    DEFAULT_CSS = "ChartScreen #empty { display: none; }"

    make_chart: Callable[[], Widget]
    """Make the chart, which takes the keys."""

    def body(self) -> Iterable[Widget]:
        """Compose the chart, its details and the words in place of both."""
        self.chart = self.make_chart()
        self.detail = PartLines(id="detail")
        self.empty = WindowTable(id="empty")
        yield from (self.chart, self.detail, self.empty)

    def show_text(self, text: str) -> None:
        """Show words in place of the chart."""
        self.show_title()
        self.show_empty(text)

    def show_empty(self, text: str) -> None:
        """Words in place of the chart, or the chart again."""
        self.empty.display = bool(text)
        self.chart.display = self.detail.display = not text
        self.empty.empty_text = text
        self.empty.refresh_rows()
        if not text and self.focused is not self.chart and not self.prompt.has_focus_within:
            self.chart.focus()

    def show_detail(self) -> None:
        """Shows the details of the cursor's place."""
        raise NotImplementedError

    def cursor_rests(self) -> None:
        """Show the details of the cursor's place."""
        self.show_detail()

    @on(StripChart.Resized)
    def _chart_resized(self, message: StripChart.Resized) -> None:
        """Computes the details again: a chart that was hidden had no width, and its columns no times."""
        message.stop()
        self.show_detail()

    @on(StripChart.Selected)
    def _chart_selected(self, message: StripChart.Selected) -> None:
        message.stop()
        if self.is_awaiting:
            self.app.simulate_key("enter")
        else:
            self.open_column()

    def open_column(self) -> None:
        """Enter on the chart: select the time under the cursor."""
        self.action_take_window()

    @on(StripChart.CursorMoved)
    def _cursor_moved(self, message: StripChart.CursorMoved) -> None:
        message.stop()
        self.cursor_moved()

    def on_resize(self, event: events.Resize) -> None:
        self.job_changed()


@dataclass(frozen=True)
class Position:
    """The view on a selection (``None``: all of it), the time and the lane under the cursor, and the mark.

    ``event`` is the event that the cursor was put on, until it is moved.
    """

    view: Window | None = None
    time: int | None = None
    lane: Any = None
    mark: int | None = None
    event: Row | None = None


class ZoomableChartScreen(ChartScreen):
    """A chart with a view on the selected time, which is zoomed and moved along it.

    Going back to a selection goes back to the position in it. ``picture`` is what is drawn; its ``base`` is all of the
    selection.
    """

    picture: Any
    chart: Any

    def __init__(self, *crumbs: str) -> None:
        super().__init__(*crumbs)
        self._positions: dict[Selection, Position] = {}

    @property
    def position(self) -> Position:
        """The position in the selection; at first all of it is in view."""
        return self._positions.get(self.selection, Position())

    def move_to(self, **changes: Any) -> None:
        """Changes the position in the selection."""
        self._positions[self.selection] = replace(self.position, **changes)

    def take_position(self, selection: Selection, **changes: Any) -> None:
        """Has another selection begin at the position in this one."""
        self._positions[selection] = replace(self.position, **changes)

    def state(self) -> ScreenState:
        """What going back restores, with the positions in every selection."""
        state = super().state()
        return replace(state, values={**state.values, "_positions": {**self._positions}})

    @property
    def view(self) -> Window | None:
        """The time in view, also while it is being drawn; ``None`` for all of the selection."""
        return self.position.view

    @property
    def base(self) -> Window | None:
        """All of the selection; ``None`` as long as nothing is drawn."""
        return self.picture.base if self.picture is not None else None

    @property
    def time(self) -> int:
        """The time under the cursor, ns."""
        raise NotImplementedError

    @property
    def columns(self) -> int:
        """Of the chart: a column is a nanosecond at least."""
        width: int = self.chart.chart_width
        return width

    def why_empty(self) -> str:
        """Why there is nothing to zoom; empty where there is something."""
        raise NotImplementedError

    def look_at(self, view: Window | None, time: int) -> None:
        """Shows another view, the cursor at ``time``."""
        raise NotImplementedError

    def action_zoom(self, direction: int) -> None:
        """Zoom in (1) or out (-1) around the cursor."""
        base, why = self.base, self.why_empty()
        if base is None or why:
            self.say(why)
            return
        view = self.view or base
        if direction > 0 and view.end - view.start <= self.columns:
            self.say("a column is 1 ns already")
        elif direction < 0 and self.view is None:
            self.say("this is all of the selection: Esc goes back to the previous one")
        else:
            self.look_at(zoomed(view, base, self.time, direction > 0, self.columns), self.time)

    def times_of(self, column: int) -> tuple[int, int]:
        """From and to which ns a column of the chart reaches."""
        raise NotImplementedError

    @on(TimeChart.Wheel)
    def _wheel(self, message: TimeChart.Wheel) -> None:
        """Zooms around the time under the mouse."""
        message.stop()
        if not self.why_empty():
            first, last = self.times_of(message.column)
            self.move_to(time=(first + last) // 2)
            self.action_zoom(message.direction)

    def action_pan(self, direction: int) -> None:
        """Move the view later (1) or earlier (-1)."""
        base, view = self.base, self.view
        if base is None or view is None:
            self.say("all of the selection is in view: + zooms in")
            return
        moved = panned(view, base, direction)
        if moved is None:
            self.say("the selection ends here")
        else:
            self.look_at(moved, self.time + moved.start - view.start)

    def action_whole(self) -> None:
        """Show all of the selection."""
        if self.view is None:
            self.say("all of the selection is in view")
        else:
            self.look_at(None, self.time)
