"""A screen that is a chart with lines of detail below it, or words in its place where there is nothing to draw."""

from __future__ import annotations

from collections.abc import Iterable

from textual import events
from textual.timer import Timer
from textual.widget import Widget

from nsystui.ui.screens.asking import DETAIL_DELAY
from nsystui.ui.screens.pane import Pane
from nsystui.ui.widgets.part_lines import PartLines
from nsystui.ui.widgets.window_table import WindowTable


class ChartPane(Pane):
    """Base of the screens that draw over time. A subclass makes the chart, and sets the height of ``#detail``."""

    DEFAULT_CSS = """
    ChartPane #empty { display: none; }
    """

    def __init__(self, *crumbs: str) -> None:
        super().__init__(*crumbs)
        self._detail_timer: Timer | None = None

    def make_chart(self) -> Widget:
        """The chart, which takes the keys."""
        raise NotImplementedError

    def body(self) -> Iterable[Widget]:
        self.chart = self.make_chart()
        self.detail = PartLines(id="detail")
        self.empty = WindowTable(id="empty")
        yield from (self.chart, self.detail, self.empty)

    def show_waiting(self) -> None:
        self.show_title()
        self.show_empty("opening…")

    def show_asking(self) -> None:
        self.show_title()
        self.show_empty("computing…")

    def show_empty(self, text: str) -> None:
        """Words in place of the chart, or the chart again."""
        self.empty.display = bool(text)
        self.chart.display = self.detail.display = not text
        self.empty.empty_text = text
        self.empty.refresh_rows()
        if not text and self.focused is not self.chart and not self.prompt.has_focus_within:
            self.chart.focus()

    def show_detail(self) -> None:
        """Shows what belongs to the place of the cursor."""
        raise NotImplementedError

    def show_detail_later(self) -> None:
        """When the cursor rests: a held key must not drag values over a slow line."""
        if self._detail_timer is not None:
            self._detail_timer.stop()
        self._detail_timer = self.set_timer(DETAIL_DELAY, self._rested)

    def cursor_rests(self) -> None:
        """What waited for the cursor to rest."""
        self.show_detail()

    def _rested(self) -> None:
        self._detail_timer = None
        self.cursor_rests()

    def on_resize(self, event: events.Resize) -> None:
        self.job_changed()
