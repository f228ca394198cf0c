"""A chart over time with a view on it: nearer, further, along it, all of it again."""

from __future__ import annotations

from nsystui.base.selection import Window
from nsystui.ui.screens.chart_pane import ChartPane
from nsystui.ui.zooming import panned, zoomed


class ZoomingPane(ChartPane):
    """Base of the charts that can be zoomed. A subclass knows its view, and how to look elsewhere."""

    @property
    def view(self) -> Window | None:
        """What is in view, or is about to be; ``None`` for all of the selection."""
        raise NotImplementedError

    @property
    def base(self) -> Window | None:
        """All of the selection; ``None`` as long as nothing is drawn."""
        raise NotImplementedError

    @property
    def time(self) -> int:
        """The time under the cursor, ns."""
        raise NotImplementedError

    @property
    def columns(self) -> int:
        """Of the chart: a column is a nanosecond at least."""
        raise NotImplementedError

    def why_empty(self) -> str:
        """Why there is nothing to zoom; empty where there is something."""
        raise NotImplementedError

    def look_at(self, view: Window | None, time: int) -> None:
        """Shows another view, the cursor at ``time``."""
        raise NotImplementedError

    def action_zoom(self, direction: int) -> None:
        base, why = self.base, self.why_empty()
        if base is None or why:
            self.say(why)
            return
        view = self.view or base
        if direction > 0 and view.end - view.start <= self.columns:
            self.say("a column is 1 ns already")
        elif direction < 0 and self.view is None:
            self.say("this is all of the selection: Esc goes back to the one before")
        else:
            self.look_at(zoomed(view, base, self.time, direction > 0, self.columns), self.time)

    def action_pan(self, direction: int) -> None:
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
        if self.view is None:
            self.say("all of the selection is in view")
        else:
            self.look_at(None, self.time)
