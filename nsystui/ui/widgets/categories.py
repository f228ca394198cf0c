"""One colour for each kind of work, the same in every table, chart and screen.

A widget that draws categories lists ``CATEGORY_CLASSES`` among its ``COMPONENT_CLASSES`` and appends ``category_css``
to its ``DEFAULT_CSS``; ``category_class("nccl")`` is then the component class to ask a style for.
"""

from __future__ import annotations

# Category -> (colour in themes of their own, in light ones, of the terminal's own 16). The first are Textual's legible
# text variants of a theme's colours, the second what of these is too pale on light grey; the third stay apart from each
# other, and from black and white, in every palette.
_COLOURS = {
    "compute": ("$text-success", "#1e6e38", "ansi_green"),
    "nccl": ("$text-warning", "#7d4b00", "ansi_yellow"),
    "memory": ("$text-primary", "$text-primary", "ansi_cyan"),
    "idle": ("$foreground 60%", "$foreground 75%", "ansi_bright_black"),
    "graph": ("$text-secondary", "$text-secondary", "ansi_magenta"),
    "api": ("#c08cff", "#6128a8", "ansi_bright_blue"),
    "os": ("#35b5a2", "#005a52", "ansi_cyan"),
    "better": ("#56c271", "#1a6334", "ansi_green"),
    "worse": ("#ff6b6b", "#a3121f", "ansi_red"),
    "nvtx": ("$foreground 85%", "$foreground 85%", "ansi_bright_magenta"),
}

CATEGORIES = tuple(_COLOURS)
"""``compute nccl memory idle graph api nvtx``."""

CATEGORY_CLASSES = {f"category--{name}" for name in CATEGORIES}
"""The component classes, ``category--compute`` and so on."""


def category_class(name: str) -> str:
    """The component class that colours category ``name``."""
    return f"category--{name}"


def category_css(widget: str, is_text: bool = False) -> str:
    """CSS that colours every category inside ``widget`` (a widget's class name).

    Of the terminal's 16 colours none but its own foreground is readable on dark and on light: ``is_text`` is of words,
    which then keep that.
    """
    rules = []
    for name, (themed, light, ansi) in _COLOURS.items():
        rules.append(f"{widget} > .{category_class(name)} {{ color: {themed}; }}")
        rules.append(f"{widget}:light > .{category_class(name)} {{ color: {light}; }}")
        rules.append(f"{widget}:ansi > .{category_class(name)} {{ color: {'$foreground' if is_text else ansi}; }}")
    return "\n".join(rules)
