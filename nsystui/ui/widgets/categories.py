"""The colours of meanings as styles of widgets.

A widget that draws categories is a ``CategoryWidget``; ``category_class("nccl")`` is then a component class to ask a
style for.
"""

from __future__ import annotations

from textual.css.styles import RenderStyles
from textual.dom import DOMNode
from textual.widget import Widget

from nsystui.base.colours import CATEGORIES, COLOURS

_BOLD = frozenset({"error", "worse"})
"""Bold, so that the terminal's own red is readable on dark and on light."""

SEVERITIES = frozenset({"error", "warning"})


def category_class(name: str) -> str:
    """The component class that colours the words of category ``name``."""
    return f"category--{name}"


def fill_class(name: str) -> str:
    """The component class that colours the bars and swatches of category ``name``."""
    return f"fill--{name}"


def _of_theme(colour: str | int) -> str:
    return colour if isinstance(colour, str) else f"$foreground {colour}%"


def _css() -> str:
    """CSS that colours every category inside a `CategoryWidget`."""
    rules = []
    for name, colour in COLOURS.items():
        weight = " text-style: bold;" if name in _BOLD else ""
        for kind, ansi in (
            (category_class(name) + " {" + weight, colour.ansi_words),
            (fill_class(name) + " {", colour.ansi),
        ):
            rules.append(f"CategoryWidget > .{kind} color: {_of_theme(colour.dark)}; }}")
            rules.append(f"CategoryWidget:light > .{kind} color: {_of_theme(colour.light)}; }}")
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
