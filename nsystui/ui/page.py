"""The page that everything is painted on: the terminal's own, in place of a theme's background."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual.app import App
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import BUILTIN_THEMES

_PAGES = {"textual-dark": "#121212", "textual-light": "#ffffff"}
"""What the terminal's own page is taken for where colours are mixed with it."""

_COLOURS = frozenset(Color.parse(page).rich_color for page in _PAGES.values())
_OWN = Style(bgcolor=RichColor.default())


def use_pages(app: App[Any], is_own: bool) -> None:
    """Give the themes of an application their pages; ``is_own``: the terminal's own shows through."""
    for name, page in _PAGES.items():
        app.register_theme(replace(BUILTIN_THEMES[name], background=page))
    if is_own:
        app._filters.append(_OwnPage())


class _OwnPage(LineFilter):
    """Leaves the page unpainted."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Take the background away from what has that of the page."""
        return [Segment(text, style and _unpainted(style), control) for text, style, control in segments]


@lru_cache(maxsize=1024)
def _unpainted(style: Style) -> Style:
    return style + _OWN if style.bgcolor in _COLOURS else style
