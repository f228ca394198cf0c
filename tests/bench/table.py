"""The setting of every topic of the measurements, and the tables that it makes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

Row = Sequence[str]
LARGE = 5_000_000
"""Kernels from which on a run varies little and takes long."""


@dataclass(frozen=True)
class Setting:
    """The measurements to make: where the exports are, their sizes in kernels, how often, how many ranks.

    ``nsys_ai`` is the executable of PyPI's nsys-ai, ``None`` where there is none; ``older`` is the Python of an older
    version of this program.
    """

    directory: Path
    sizes: tuple[int, ...]
    stats_sizes: tuple[int, ...]
    repeats: int
    ranks: int
    nsys_ai: str | None
    older: str | None = None

    def runs(self, kernels: int) -> int:
        """How often a figure of an export of that size is measured: large ones once, as each takes a minute."""
        return 1 if kernels >= LARGE else self.repeats

    @property
    def biggest(self) -> int:
        return max(self.sizes)


@dataclass(frozen=True)
class Table:
    """A table of RESULTS.md. ``rows`` may be measured as they are asked for; ``text`` stands above the table."""

    title: str
    headings: Row
    rows: Iterable[Row]
    text: str = ""

    def markdown(self, rows: Iterable[Row]) -> str:
        lines = [self.headings, ["---"] * len(self.headings), *rows]
        text = f"{self.text}\n\n" if self.text else ""
        return f"## {self.title}\n\n{text}" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


@dataclass(frozen=True)
class Target:
    """The maximum of a figure (or the minimum, with ``at_least``), and how the table words it."""

    text: str
    limit: float
    at_least: bool = False

    def verdict(self, value: float) -> str:
        """``yes``, or by which factor not."""
        if value >= self.limit if self.at_least else value <= self.limit:
            return "yes"
        off = self.limit / value if self.at_least else value / self.limit if self.limit else float("inf")
        return f"no, by {off:.2f} times" if off != float("inf") else "no"


def judged(*figures: tuple[Target, float]) -> Row:
    """The cells ``target`` and ``reached``; empty where there is no target."""
    verdicts = (target.verdict(value) for target, value in figures)
    return "; ".join(target.text for target, _ in figures), "; ".join(verdicts)


def ratio(value: float, ours: float) -> str:
    """``12 x``, with two figures: how many times ``ours``."""
    return f"{value / ours:.2g} x" if value < 10 * ours else f"{value / ours:,.0f} x"


def short(count: int) -> str:
    """``100 thousand``, ``5 million``."""
    return f"{count // 10**6} million" if count >= 10**6 else f"{count // 1000} thousand"
