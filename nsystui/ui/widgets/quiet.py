"""Focus that moves without repainting the screen.

Textual 8.2 repaints a whole widget when it gets or loses the focus, and the whole screen besides, because the screen's
``focused`` is an attribute that repaints: some 13 KB for opening a prompt at 120x36. What changes to the eye is a line.
"""

from __future__ import annotations

from typing import TypeVar

from textual import events
from textual.reactive import Reactive
from textual.screen import Screen
from textual.widget import Widget

Result = TypeVar("Result")


class QuietScreen(Screen[Result]):
    """The screen to build every screen on: moving the focus does not repaint it."""

    focused: Reactive[Widget | None] = Reactive(None, repaint=False)
    """The focused widget or ``None``, as in ``Screen``."""


class QuietFocus(Widget):
    """A widget that says itself what a change of focus looks like.

    Its CSS must not style parts of it by ``:focus`` (that repaints all of it); it draws with another component class
    instead, asking ``has_focus``.
    """

    def focus_changed(self) -> None:
        """``has_focus`` changed: repaint what shows it."""

    def on_focus(self, event: events.Focus) -> None:
        event.prevent_default()  # Textual's own handler: the same as here, and a full repaint
        self.has_focus = True
        self.focus_changed()
        if isinstance(self.parent, Widget):
            self.parent.post_message(events.DescendantFocus(self))

    def on_blur(self, event: events.Blur) -> None:
        event.prevent_default()
        self.has_focus = False
        self.focus_changed()
        if isinstance(self.parent, Widget):
            self.parent.post_message(events.DescendantBlur(self))
