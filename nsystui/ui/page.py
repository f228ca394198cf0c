"""Themes, and widgets in their colours; the page behind all text, unless chosen the terminal's own; ASCII."""

from dataclasses import replace
from functools import lru_cache
from typing import Any

from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual._ansi_theme import MONOKAI
from textual.app import App
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import BUILTIN_THEMES
from textual.widget import Widget

from nsystui.base.drawing import COLOURS
from nsystui.base.text import ascii_glyphs

_GREY = "#8a8b8c"
"""Text and page if the page may be dark or light: any mixture of the two is the same grey."""
_THEMES = {
    "textual-dark": ("dark", "#e0e0e0", "#121212"),
    "textual-light": ("light", "#000000", "#ffffff"),
    "textual-unknown": ("either", _GREY, _GREY),
    **dict.fromkeys(("ansi-dark", "ansi-light", "ansi-unknown"), ("ansi", "ansi_default", "ansi_default")),
}
"""The colour set for categories, the text colour, and the page colour, only for mixing."""
_UNKNOWN = {
    **dict.fromkeys(("surface", "panel", "panel-darken-1", "boost", "text", "text-muted", "text-disabled"), _GREY),
    "text-error": COLOURS["error"].either,
    "block-cursor-foreground": "#ffffff",
}

# Behind a dialog, Textual paints the terminal's default colours as MONOKAI's.
_TEXTS = frozenset({Color.parse(_GREY).rich_color, RichColor.from_triplet(MONOKAI.foreground_color)})
_PAGES = frozenset(
    {RichColor.from_triplet(MONOKAI.background_color), *(Color.parse(page).rich_color for *_, page in _THEMES.values())}
)
_DEFAULT_PAGE, _DEFAULT_TEXT = Style(bgcolor=RichColor.default()), Style(color=RichColor.default())


_COLOURED_WORDS = {"either": {"error", "warning", "worse"}, "ansi": {"error", "worse"}}
"""Categories with coloured words, by colour set: others would be hard to read on some pages."""


def register_themes(app: App[Any]) -> None:
    """Register the themes that `category_style` supports."""
    for name, (_, text, page) in _THEMES.items():
        theme = BUILTIN_THEMES[name.replace("unknown", "dark")]
        warning = {"text-warning": text} if text == page else {}
        variables = {**theme.variables, **warning, **(_UNKNOWN if page == _GREY else {})}
        app.register_theme(replace(theme, name=name, foreground=text, background=page, variables=variables))


@lru_cache(maxsize=1024)
def category_style(theme: str, category: str, is_fill: bool) -> Style:
    """Return the style of a category's blocks or words.

    Words of errors and worse values are bold, because a terminal's red may be hard to read.
    """
    colours, text, page = _THEMES[theme]
    value: str | int = getattr(COLOURS[category], colours)
    if not is_fill and category not in _COLOURED_WORDS.get(colours, COLOURS):
        value = text
    blend = Color.parse(value) if isinstance(value, str) else Color.parse(page).blend(Color.parse(text), value / 100)
    return Style(color=blend.rich_color, bold=(not is_fill and category in _COLOURED_WORDS["ansi"]) or None)


class CategoryWidget(Widget):
    """A widget that draws categories."""

    def words_style(self, category: str) -> Style:
        """Return the style of words about a category."""
        return self.rich_style + category_style(self.app.theme, category, is_fill=False)

    def fill_style(self, category: str) -> Style:
        """Return the style of blocks of a category, or of two, one before the other: ``compute/nccl``."""
        front, *behind = (category_style(self.app.theme, name, is_fill=True) for name in category.split("/"))
        return self.rich_style + front + (Style(bgcolor=behind[0].color) if behind else Style())


class OwnPage(LineFilter):
    """Leaves the page unpainted, and the text if the page is unknown."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [Segment(text, style and _unpainted(style), control) for text, style, control in segments]


@lru_cache(maxsize=1024)
def _unpainted(style: Style) -> Style:
    style = style + _DEFAULT_PAGE if style.bgcolor in _PAGES else style
    return style + _DEFAULT_TEXT if style.color in _TEXTS else style


def draws_in_ascii(app: App[Any]) -> bool:
    """Return whether an application draws in ASCII."""
    return any(isinstance(line_filter, AsciiFilter) for line_filter in app._filters)


def key_name(shown: str, app: App[Any]) -> str:
    """Return how to show a key: in ASCII, ``⏎`` would become ``>``, which is another key."""
    return "enter" if draws_in_ascii(app) and shown == "⏎" else shown


class AsciiFilter(LineFilter):
    """Replaces each glyph by ASCII text of the same width, for terminals and locales without UTF-8."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment if segment.text.isascii() else Segment(ascii_glyphs(segment.text), segment.style, segment.control)
            for segment in segments
        ]
