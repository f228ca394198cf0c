"""Drawings as data: stacked bars, lanes over time, curves. Questions make them; files and pages draw them.

A drawing knows no colours and no sizes: parts name their category, values are those of the tables.
"""

from __future__ import annotations

from dataclasses import dataclass

from nsystui.base.columns import Unit


@dataclass(frozen=True)
class Part:
    """A part of a stack. ``category``: of `nsystui.base.colours`; ``strength``: of its colour, from 0 to 1."""

    name: str
    category: str
    strength: float = 1.0


@dataclass(frozen=True)
class Bar:
    """A value for each part, in the unit of the bars; ``words`` stand behind the bar."""

    label: str
    values: tuple[float, ...]
    words: str = ""


@dataclass(frozen=True)
class Bars:
    """Bars of parts that have nothing in common; ``whole`` is the length of a full bar, in ``unit``."""

    title: str
    parts: tuple[Part, ...]
    bars: tuple[Bar, ...]
    unit: Unit
    whole: float


@dataclass(frozen=True)
class Name:
    """The name of an event on a lane, and the columns from ``first`` to ``last`` that it may take."""

    first: int
    last: int
    text: str


@dataclass(frozen=True)
class Lane:
    """For each part the values of all columns, 0 to 1; NaN where nothing was recorded. ``words`` stand behind it."""

    label: str
    values: tuple[tuple[float, ...], ...]
    words: str = ""
    names: tuple[Name, ...] = ()


@dataclass(frozen=True)
class Lanes:
    """Lanes over the time from ``start`` to ``end`` (ns, job time); parts stand on top of each other.

    ``more``: lanes that there are besides, but are not drawn. With ``numbers`` the columns are steps of these numbers
    in place of spans of time.
    """

    title: str
    start: int
    end: int
    parts: tuple[Part, ...]
    lanes: tuple[Lane, ...]
    more: int = 0
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Series:
    """The points (x, y) of a curve, by x."""

    name: str
    category: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Curves:
    """Curves of y over x, whose axis is logarithmic; ``level``: a line across with what it is, where there is one."""

    title: str
    x: Unit
    y: Unit
    series: tuple[Series, ...]
    level: tuple[str, float] | None = None


Drawing = Bars | Lanes | Curves
