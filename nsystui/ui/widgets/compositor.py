"""Repaints of changed cells alone: the one place that reaches into Textual's compositor.

Textual sends a line that changed from the beginning of its widget, so that a cell at the end costs all before it: a
cursor through the colours of a chart would take 2 KB for a step. No public way of Textual's sends less. Where its
insides look different from those of Textual 8.2, its own way stays: the same screen, and more bytes.
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
        """Changed spans of lines, and nothing beside them."""

        def render_segments(self, console: Console) -> str:
            """Render the spans for the terminal; as Textual does where that fails."""
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
        """Textual's compositor, but for the update of a part of the screen."""

        def render_partial_update(self) -> ChopsUpdate | None:
            """Render what changed since the last update; ``None`` where nothing did."""
            update = super().render_partial_update()
            try:
                return None if update is None else ChangedCells(update.chops, update.spans, update.chop_ends)
            except (AttributeError, TypeError):
                return update


def paint_sparingly(screen: Screen[Any]) -> bool:
    """Have a new screen repaint changed cells alone; ``False`` where Textual's own way stays."""
    if not _IS_KNOWN or type(getattr(screen, "_compositor", None)) is not Compositor:
        return False
    screen._compositor = SparingCompositor()
    return True
