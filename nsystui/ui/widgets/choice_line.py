"""The tables that a screen can show, by their names on one line, the one that it shows in brackets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from nsystui.base.text import safe_text, width_of
from nsystui.ui.widgets.crumbs import Part, TextLine

_GAP = "  "


class ChoiceLine(TextLine):
    """``ops  [sizes]  calls``. What does not fit is left out from the far end, never the chosen name."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"choice-line--chosen", "choice-line--other"}

    DEFAULT_CSS = """
    ChoiceLine > .choice-line--chosen { text-style: bold; }
    ChoiceLine > .choice-line--other { color: $foreground 75%; }
    """

    def show_names(self, names: Sequence[str], chosen: str, remark: str = "") -> None:
        """Shows these names, and at the right a ``remark``, if there is room for all of it."""
        parts: list[Part] = []
        for name in names:
            style = "choice-line--chosen" if name == chosen else "choice-line--other"
            text = f"[{safe_text(name)}]" if name == chosen else f" {safe_text(name)} "
            parts.append((text, style))
        self.show_parts(parts, [(safe_text(remark), "choice-line--other")] if remark else [])

    def parts_for(self, width: int) -> tuple[Sequence[Part], Sequence[Part]]:
        taken = sum(width_of(text) for text, _ in (*self._left, *self._right)) + len(_GAP)
        return (self._left, self._right) if taken <= width else (self._left, ())
