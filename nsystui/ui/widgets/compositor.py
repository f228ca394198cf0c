"""Repaints of changed cells only: the only module that uses Textual's private compositor.

Textual sends a changed line from its widget's beginning: a cursor moving through a chart's colours would take 2 KB per
step. No public API sends less. If the compositor is not Textual 8.2's, Textual's larger updates stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.control import Control

if TYPE_CHECKING:
    from rich.console import Console
    from textual.screen import Screen

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
