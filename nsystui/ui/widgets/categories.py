"""One colour for each kind of work, the same in every table, chart and screen.

A widget that draws categories lists ``CATEGORY_CLASSES`` among its ``COMPONENT_CLASSES`` and appends ``category_css``
to its ``DEFAULT_CSS``; ``category_class("nccl")`` is then the component class to ask a style for.
"""

from __future__ import annotations

# Category -> (colour in themes of their own, colour of the terminal's own 16). The first are Textual's legible text
# variants of a theme's colours; the second stay apart from each other, and from black and white, in every palette.
_COLOURS = {
    "compute": ("$text-success", "ansi_green"),
    "nccl": ("$text-warning", "ansi_yellow"),
    "memory": ("$text-primary", "ansi_cyan"),
    "idle": ("$foreground 60%", "ansi_bright_black"),
    "graph": ("$text-secondary", "ansi_magenta"),
    "api": ("$text-accent", "ansi_bright_blue"),
    "nvtx": ("$foreground 85%", "ansi_bright_magenta"),
}

CATEGORIES = tuple(_COLOURS)
"""``compute nccl memory idle graph api nvtx``."""

CATEGORY_CLASSES = {f"category--{name}" for name in CATEGORIES}
"""The component classes, ``category--compute`` and so on."""


def category_class(name: str) -> str:
    """The component class that colours category ``name``."""
    return f"category--{name}"


def category_css(widget: str) -> str:
    """CSS that colours every category inside ``widget`` (a widget's class name)."""
    rules = []
    for name, (themed, ansi) in _COLOURS.items():
        rules.append(f"{widget} > .{category_class(name)} {{ color: {themed}; }}")
        rules.append(f"{widget}:ansi > .{category_class(name)} {{ color: {ansi}; }}")
    return "\n".join(rules)
