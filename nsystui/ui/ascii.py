"""A filter that turns painted glyphs into ASCII, for terminals and locales without UTF-8."""

from __future__ import annotations

from typing import Any

from rich.segment import Segment
from textual.app import App
from textual.color import Color
from textual.filter import LineFilter

from nsystui.base.text import ascii_glyphs


def draws_in_ascii(app: App[Any]) -> bool:
    """Return whether an application draws in ASCII."""
    return any(isinstance(line_filter, AsciiFilter) for line_filter in app._filters)


def key_name(shown: str, app: App[Any]) -> str:
    """Return how to show a key: in ASCII, ``⏎`` would become ``>``, which is another key."""
    return "enter" if draws_in_ascii(app) and shown == "⏎" else shown


class AsciiFilter(LineFilter):
    """Replaces each glyph by ASCII text of the same width."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Replace the glyphs that ASCII lacks."""
        return [
            segment if segment.text.isascii() else Segment(ascii_glyphs(segment.text), segment.style, segment.control)
            for segment in segments
        ]
