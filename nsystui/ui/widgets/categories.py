"""One colour for each meaning, the same in every table, chart and screen.

A widget that draws categories is a ``CategoryWidget``; ``category_class("nccl")`` is then a component class to ask a
style for. Red and yellow are for severities alone, and for what became worse.
"""

from __future__ import annotations

from typing import NamedTuple

from textual.css.styles import RenderStyles
from textual.dom import DOMNode
from textual.widget import Widget


class _Colour(NamedTuple):
    """A colour on dark, on light, of the terminal's own 16 as a fill and as words.

    Of the 16 only the foreground, and bold red, are readable on dark and on light: words keep these.
    """

    dark: str
    light: str
    ansi: str
    ansi_words: str = "$foreground"


_COLOURS = {
    "compute": _Colour("#56c271", "#1a6334", "ansi_green"),
    "nccl": _Colour("#f28c38", "#8a3c00", "ansi_yellow"),  # brown or orange on most terminals
    "memory": _Colour("#62a8ff", "#0b4a99", "ansi_bright_blue"),
    "graph": _Colour("#aacb86", "#4a5a12", "ansi_bright_green"),
    "idle": _Colour("$foreground 60%", "$foreground 75%", "ansi_bright_black"),
    "api": _Colour("#c08cff", "#6128a8", "ansi_magenta"),
    "os": _Colour("#35b5a2", "#005a52", "ansi_cyan"),
    "cpu": _Colour("#e58fb5", "#8a2358", "ansi_bright_magenta"),
    "metric": _Colour("#5cd9ea", "#00566e", "ansi_bright_cyan"),
    "nvtx": _Colour("$foreground 85%", "$foreground 85%", "$foreground"),
    "error": _Colour("#ff6b6b", "#a3121f", "ansi_red", "ansi_red"),
    "warning": _Colour("#e8cc4a", "#634f00", "ansi_bright_yellow"),
    "better": _Colour("#56c271", "#1a6334", "ansi_green"),
    "worse": _Colour("#ff6b6b", "#a3121f", "ansi_red", "ansi_red"),
}
_BOLD = frozenset({"error", "worse"})
"""Bold, so that the terminal's own red is readable on dark and on light."""

CATEGORIES = tuple(_COLOURS)
"""``compute nccl memory graph idle api os cpu metric nvtx``, and ``error warning better worse``."""

SEVERITIES = frozenset({"error", "warning"})

SHADES = {"compute": "█", "nccl": "╱", "memory": "▒", "graph": "░"}
"""What fills a cell in place of a colour where there are no colours."""


def category_class(name: str) -> str:
    """The component class that colours the words of category ``name``."""
    return f"category--{name}"


def fill_class(name: str) -> str:
    """The component class that colours the bars and swatches of category ``name``."""
    return f"fill--{name}"


def _css() -> str:
    """CSS that colours every category inside a `CategoryWidget`."""
    rules = []
    for name, colour in _COLOURS.items():
        weight = " text-style: bold;" if name in _BOLD else ""
        for kind, ansi in (
            (category_class(name) + " {" + weight, colour.ansi_words),
            (fill_class(name) + " {", colour.ansi),
        ):
            rules.append(f"CategoryWidget > .{kind} color: {colour.dark}; }}")
            rules.append(f"CategoryWidget:light > .{kind} color: {colour.light}; }}")
            rules.append(f"CategoryWidget:ansi > .{kind} color: {ansi}; }}")
    return "\n".join(rules)


_CLASSES = frozenset(kind(name) for name in CATEGORIES for kind in (category_class, fill_class))


class CategoryWidget(Widget):
    """A widget that draws categories.

    Textual makes the styles of all ``COMPONENT_CLASSES`` whenever those of the widget change; of categories a widget
    draws few, and theirs are made when they are asked for.
    """

    DEFAULT_CSS = _css()

    def get_component_styles(self, *names: str) -> RenderStyles:
        for name in _CLASSES.intersection(names).difference(self._component_styles):
            part = DOMNode(classes=name)
            part._attach(self)
            self.app.stylesheet.apply(part)
            self._component_styles[name] = part.styles
        return super().get_component_styles(*names)
