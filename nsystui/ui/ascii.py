"""A filter that turns every glyph of a painted line into ASCII, for terminals and locales without UTF-8."""

from __future__ import annotations

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from nsystui.text import ascii_glyphs


class AsciiFilter(LineFilter):
    """Translates glyph by glyph, so that nothing moves."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment if segment.text.isascii() else Segment(ascii_glyphs(segment.text), segment.style, segment.control)
            for segment in segments
        ]
