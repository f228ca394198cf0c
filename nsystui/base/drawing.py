"""Drawings as data (stacked bars, lanes over time, curves), and the colours of categories, the same everywhere.

Red and yellow mark only severities and worse values. Drawings have categories instead of colours, and values of
the tables instead of sizes.
"""

from dataclasses import dataclass
from typing import NamedTuple

from nsystui.base.answer import Unit


class Colour(NamedTuple):
    """A colour on a dark page, on a light page, and on a page that may be either.

    A number is a percentage of the text's strength. ``ansi`` is one of the terminal's 16 colours, as a fill.
    """

    dark: str | int
    light: str | int
    either: str
    ansi: str


COLOURS = {
    "compute": Colour("#56c271", "#1d7a40", "#1f8446", "ansi_green"),
    "nccl": Colour("#f28c38", "#b84e00", "#d96a10", "ansi_yellow"),  # brown or orange on most terminals
    "memory": Colour("#62a8ff", "#0b4a99", "#1672e6", "ansi_bright_blue"),
    "graph": Colour("#aacb86", "#4a5a12", "#697e1d", "ansi_bright_green"),
    "idle": Colour(60, 75, "#808080", "ansi_bright_black"),
    "api": Colour("#c08cff", "#6128a8", "#9843ff", "ansi_magenta"),
    "os": Colour("#35b5a2", "#005a52", "#008479", "ansi_cyan"),
    "cpu": Colour("#e58fb5", "#8a2358", "#cf3986", "ansi_bright_magenta"),
    "metric": Colour("#5cd9ea", "#00566e", "#0080a2", "ansi_bright_cyan"),
    "nvtx": Colour(85, 85, "#707070", "ansi_default"),
    "error": Colour("#ff6b6b", "#a3121f", "#e61e30", "ansi_red"),
    "warning": Colour("#e8cc4a", "#8a6a00", "#937100", "ansi_bright_yellow"),
    "better": Colour("#56c271", "#1a6334", "#268649", "ansi_green"),
    "worse": Colour("#ff6b6b", "#a3121f", "#e61e30", "ansi_red"),
}

SHADES = {
    **dict.fromkeys(("memory", "api", "warning"), "▒"),
    **dict.fromkeys(("graph", "idle"), "░"),
    **dict.fromkeys(("nccl", "os"), "╱"),
    "metric": "╲",
}
"""The fill of a cell without colours; "█" for every other category."""


@dataclass(frozen=True)
class Part:
    """A part of a stack. ``category`` is a key of `COLOURS`; ``strength``, 0 to 1, scales its colour."""

    name: str
    category: str
    strength: float = 1.0


@dataclass(frozen=True)
class Bar:
    """A value for each part, in the unit of the bars; ``words`` follow the bar."""

    label: str
    values: tuple[float, ...]
    words: str = ""


@dataclass(frozen=True)
class Bars:
    """Bars of disjoint parts; ``whole`` is the length of a full bar, in ``unit``."""

    title: str
    parts: tuple[Part, ...]
    bars: tuple[Bar, ...]
    unit: Unit
    whole: float


@dataclass(frozen=True)
class LaneName:
    """The name of an event on a lane, and the columns that it may take: ``first`` to ``last``."""

    first: int
    last: int
    text: str


@dataclass(frozen=True)
class DrawnLane:
    """A row of values for each part, 0 to 1 for each column, NaN if nothing was recorded; ``words`` follow it."""

    label: str
    values: tuple[tuple[float, ...], ...]
    words: str = ""
    names: tuple[LaneName, ...] = ()


@dataclass(frozen=True)
class DrawnLanes:
    """Lanes from ``start`` to ``end`` (ns, job time), whose parts are stacked.

    ``more`` counts the lanes that are not drawn. With ``numbers``, the columns are steps with these numbers instead of
    spans.
    """

    title: str
    start: int
    end: int
    parts: tuple[Part, ...]
    lanes: tuple[DrawnLane, ...]
    more: int = 0
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Series:
    """The points (x, y) of a curve, sorted by x."""

    name: str
    category: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Curves:
    """Curves of y over a logarithmic x; ``level`` is an optional horizontal line: its label and its y."""

    title: str
    x: Unit
    y: Unit
    series: tuple[Series, ...]
    level: tuple[str, float] | None = None


Drawing = Bars | DrawnLanes | Curves
