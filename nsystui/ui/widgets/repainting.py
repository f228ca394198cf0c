"""Screens and widgets that repaint little: changed cells, a picture at a time on a slow line, and no change of focus.

Textual queues up to thirty changes: with a key held down over a modem's 56 kbit/s, the screen kept moving for a dozen
seconds after its release.

If the focus changes, Textual 8.2 repaints the whole widget and, because ``Screen.focused`` repaints, the whole screen:
some 13 KB to open a prompt at 120x36, which changes one line.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from rich.console import Console
from rich.control import Control
from textual import events, on, work
from textual.await_complete import AwaitComplete
from textual.reactive import Reactive
from textual.screen import Screen
from textual.widget import Widget

from nsystui.base import terminal
from nsystui.base.errors import reason_of

_Result = TypeVar("_Result")
Other = TypeVar("Other")
P = ParamSpec("P")


# Textual sends a changed line from its widget's beginning: a cursor moving through a chart's colours would take 2 KB a
# step. No public API sends less. If the compositor is not Textual 8.2's, Textual's larger updates stay.
try:
    from textual._compositor import ChopsUpdate, Compositor
except ImportError:
    _IS_KNOWN = False
else:
    _IS_KNOWN = hasattr(ChopsUpdate, "render_segments") and hasattr(Compositor, "render_partial_update")

if TYPE_CHECKING or _IS_KNOWN:

    class ChangedCells(ChopsUpdate):
        """Changed spans of lines, without the cells before them."""

        def render_segments(self, console: Console) -> str:
            """Render the spans for the terminal; if that fails, let Textual render the update."""
            try:
                written = []
                for y, first, last in self.spans:
                    for end, (start, strip) in zip(self.chop_ends[y], self.chops[y].items(), strict=False):
                        left, right = max(start, first), min(end, last)
                        if strip is not None and left < right:
                            written.append(Control.move_to(left, y).segment.text)
                            written.append(strip.crop(left - start, right - start).render(console))
                return "".join(written)
            except (AttributeError, IndexError, KeyError, TypeError, ValueError):
                return super().render_segments(console)

    class SparingCompositor(Compositor):
        """Textual's compositor, with smaller updates for parts of the screen."""

        def render_partial_update(self) -> ChopsUpdate | None:
            """Render the changes since the last update, or return ``None`` if nothing changed."""
            update = super().render_partial_update()
            try:
                return None if update is None else ChangedCells(update.chops, update.spans, update.chop_ends)
            except (AttributeError, TypeError):
                return update


def paint_sparingly(screen: Screen[Any]) -> bool:
    """Make a new screen repaint changed cells only; return whether it does."""
    if not _IS_KNOWN or type(getattr(screen, "_compositor", None)) is not Compositor:
        return False
    screen._compositor = SparingCompositor()
    return True


class ThrottledScreen(Screen[_Result]):
    """The base of every screen: paints the newest picture once the terminal has taken the previous one."""

    focused: Reactive[Widget | None] = Reactive(None, repaint=False)
    """The focused widget, as in ``Screen``, but without a repaint."""

    def __init__(self, name: str | None = None, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(name, id, classes)
        paint_sparingly(self)

    def on_screen_resume(self, event: events.ScreenResume) -> None:
        """Keep the current styles."""
        # After a change of theme, the application makes them again. Making them here, too, would take a tenth of the
        # time until the first window.
        event.refresh_styles = False

    def _on_timer_update(self) -> None:
        output = sys.__stderr__
        if self.app.is_headless or output is None or not terminal.is_full(output.fileno()):
            super()._on_timer_update()
        # else the timer continues and asks again

    # -- keys pressed faster than screens open ---------------------------------------------------------------------
    #
    # A widget still handles keys that it was sent before it lost the focus. So a key pressed twice would open two
    # screens, or also close the screen below; a mode changed beneath the palette would leave the palette open.

    def lay_over(self, screen: Screen[Other], then: Callable[[Other | None], None] | None = None) -> None:
        """Open a screen over this screen, if it is active; ``then`` is called with the result."""
        if self.is_active:
            self.app.push_screen(screen, then)

    def dismiss(self, result: _Result | None = None) -> AwaitComplete:
        """Close with a result, only once even if the key repeats."""
        return super().dismiss(result) if self.is_active else AwaitComplete()


class OwnFocus(Widget):
    """A widget that draws a change of focus itself, without a full repaint.

    Its CSS must not style parts by ``:focus``, which repaints all of it; choose a component class by ``has_focus``.
    """

    def focus_changed(self) -> None:
        """Repaint the parts that depend on ``has_focus``."""

    @on(events.Focus)
    @on(events.Blur)
    def _take_or_lose_focus(self, event: events.Event) -> None:
        """Take or lose the focus, and repaint the parts that show it."""
        event.prevent_default()  # Textual's handlers do the same, and a full repaint
        self.has_focus = isinstance(event, events.Focus)
        self.focus_changed()
        if isinstance(self.parent, Widget):
            message = events.DescendantFocus if self.has_focus else events.DescendantBlur
            self.parent.post_message(message(self))


def in_own_task(method: Callable[P, object]) -> Callable[P, None]:
    """Let any thread call a method, which runs between two messages of its application or widget."""

    @wraps(method)
    def call_later(*args: P.args, **kwargs: P.kwargs) -> None:
        args[0].call_later(method, *args, **kwargs)  # type: ignore[attr-defined]

    return call_later


def in_background(group: str, *, exclusive: bool = True) -> Callable[[Callable[P, Awaitable[None]]], Callable[P, None]]:
    """Run a coroutine method of a screen or of the application in a worker; it awaits ``to_thread``.

    Its errors are shown on the screen, and the program continues. ``exclusive`` work ends other work of its group.
    """

    def decorate(method: Callable[P, Awaitable[None]]) -> Callable[P, None]:
        @work(group=group, exclusive=exclusive, description=group)  # else Textual describes each argument, in seconds
        @wraps(method)
        async def begin(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                await method(*args, **kwargs)
            except Exception as error:
                args[0].say(reason_of(error))  # type: ignore[attr-defined]

        return begin  # type: ignore[return-value]

    return decorate
