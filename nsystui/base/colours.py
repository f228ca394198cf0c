"""One colour for each meaning, the same in every table, chart and screen, and in every drawing that leaves the program.

Red and yellow are for severities alone, and for what became worse.
"""

from __future__ import annotations

from typing import NamedTuple


class Colour(NamedTuple):
    """A colour on dark and on light; a number is the colour of text with so many percent of its strength.

    ``ansi`` and ``ansi_words``: of the terminal's own 16 as a fill and as words. Of these only the foreground, and
    bold red, are readable on dark and on light: words keep them.
    """

    dark: str | int
    light: str | int
    ansi: str
    ansi_words: str = "$foreground"


COLOURS = {
    "compute": Colour("#56c271", "#1a6334", "ansi_green"),
    "nccl": Colour("#f28c38", "#8a3c00", "ansi_yellow"),  # brown or orange on most terminals
    "memory": Colour("#62a8ff", "#0b4a99", "ansi_bright_blue"),
    "graph": Colour("#aacb86", "#4a5a12", "ansi_bright_green"),
    "idle": Colour(60, 75, "ansi_bright_black"),
    "api": Colour("#c08cff", "#6128a8", "ansi_magenta"),
    "os": Colour("#35b5a2", "#005a52", "ansi_cyan"),
    "cpu": Colour("#e58fb5", "#8a2358", "ansi_bright_magenta"),
    "metric": Colour("#5cd9ea", "#00566e", "ansi_bright_cyan"),
    "nvtx": Colour(85, 85, "$foreground"),
    "error": Colour("#ff6b6b", "#a3121f", "ansi_red", "ansi_red"),
    "warning": Colour("#e8cc4a", "#634f00", "ansi_bright_yellow"),
    "better": Colour("#56c271", "#1a6334", "ansi_green"),
    "worse": Colour("#ff6b6b", "#a3121f", "ansi_red", "ansi_red"),
}
CATEGORIES = tuple(COLOURS)
"""``compute nccl memory graph idle api os cpu metric nvtx``, and ``error warning better worse``."""

SHADES = {"compute": "█", "nccl": "╱", "memory": "▒", "graph": "░"}
"""What fills a cell in place of a colour where there are no colours."""
