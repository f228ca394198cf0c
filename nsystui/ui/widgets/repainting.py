"""Screens and widgets that repaint little: one picture at a time on a slow line, and none for a change of focus.

Textual hands every change to a thread that writes, up to thirty behind the line: with a key held down over a modem's
56 kbit/s the screen ran on for a dozen seconds after it was let go.

Textual 8.2 repaints a whole widget when it gets or loses the focus, and the whole screen besides, because the screen's
``focused`` is an attribute that repaints: some 13 KB for opening a prompt at 120x36. What changes to the eye is a line.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from textual import events, work
from textual.await_complete import AwaitComplete
from textual.reactive import Reactive
from textual.screen import Screen
from textual.widget import Widget

from nsystui.base import terminal
from nsystui.base.errors import reason_of
from nsystui.ui.widgets.compositor import paint_sparingly

Result = TypeVar("Result")
Other = TypeVar("Other")
P = ParamSpec("P")


class ThrottledScreen(Screen[Result]):
    """The base of every screen: paints the newest picture once the terminal has taken the one before.

    Moving the focus does not repaint it.
    """

    focused: Reactive[Widget | None] = Reactive(None, repaint=False)
    """The focused widget or ``None``, as in ``Screen``."""

    def __init__(self, name: str | None = None, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(name, id, classes)
        paint_sparingly(self)

    def on_screen_resume(self, event: events.ScreenResume) -> None:
        """Keep the styles that were made when it was mounted."""
        # The styles were made when it was mounted, and again where another theme was chosen meanwhile: the application
        # sees to that. Making them once more is a tenth of the time until the first window.
        event.refresh_styles = False

    def _on_timer_update(self) -> None:
        drawn_on = sys.__stderr__
        if self.app.is_headless or drawn_on is None or not terminal.is_full(drawn_on.fileno()):
            super()._on_timer_update()
        # else its timer goes on, and asks again

    # -- keys pressed faster than screens open ---------------------------------------------------------------------
    #
    # What the focused widget was sent before it lost the focus it still handles. A key pressed twice would lay two
    # screens over each other, or take away the one below; a mode changed beneath the palette would leave it there.

    def lay_over(self, screen: Screen[Other], then: Callable[[Other | None], None] | None = None) -> None:
        """Opens a screen over this one, if this is the one that is shown; ``then`` hears what it is dismissed with."""
        if self.is_active:
            self.app.push_screen(screen, then)

    def leave(self) -> None:
        """Goes back to the screen below, if this is the one that is shown and lies over one."""
        if self.is_active and len(self.app.screen_stack) > 1:
            self.app.pop_screen()

    def dismiss(self, result: Result | None = None) -> AwaitComplete:
        """Close with a result, once, however often the key comes."""
        return super().dismiss(result) if self.is_active else AwaitComplete()


class OwnFocus(Widget):
    """A widget that draws a change of focus itself, without a full repaint.

    Its CSS must not style parts of it by ``:focus`` (that repaints all of it); it draws with another component class
    instead, asking ``has_focus``.
    """

    def focus_changed(self) -> None:
        """``has_focus`` changed: repaint what shows it."""

    def on_focus(self, event: events.Focus) -> None:
        """Take the focus, and repaint what shows it."""
        event.prevent_default()  # Textual's own handler: the same as here, and a full repaint
        self.has_focus = True
        self.focus_changed()
        if isinstance(self.parent, Widget):
            self.parent.post_message(events.DescendantFocus(self))

    def on_blur(self, event: events.Blur) -> None:
        """Give the focus up, and repaint what showed it."""
        event.prevent_default()
        self.has_focus = False
        self.focus_changed()
        if isinstance(self.parent, Widget):
            self.parent.post_message(events.DescendantBlur(self))


def in_own_task(method: Callable[P, object]) -> Callable[P, None]:
    """Make a method that any thread may call: it runs between two messages of its application or widget."""

    @wraps(method)
    def call_later(*words: P.args, **options: P.kwargs) -> None:
        words[0].call_later(method, *words, **options)  # type: ignore[attr-defined]

    return call_later


def in_background(group: str, *, exclusive: bool = True) -> Callable[[Callable[P, Awaitable[None]]], Callable[P, None]]:
    """Make a coroutine method of a screen, or of the application, a worker of its own, which awaits ``to_thread``.

    Any error of a query, a file or a disk is shown on the screen, and the program continues. ``exclusive`` work ends
    other work of its group.
    """

    def decorate(method: Callable[P, Awaitable[None]]) -> Callable[P, None]:
        @work(group=group, exclusive=exclusive, description=group)  # else Textual describes every argument: seconds
        @wraps(method)
        async def begin(*words: P.args, **options: P.kwargs) -> None:
            try:
                await method(*words, **options)
            except Exception as error:
                words[0].say(reason_of(error))  # type: ignore[attr-defined]

        return begin  # type: ignore[return-value]

    return decorate
