"""How values are spread: a histogram with round logarithmic edges, and percentiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

_MOST_BARS = 12
# Steps within a decade: the coarsest that still give enough bars are taken.
_STEPS = ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0))


@dataclass(frozen=True)
class Distribution:
    """Counts between ``edges`` (one more than counts; each bar includes its lower edge), and key figures, ns."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    count: int
    minimum: float
    median: float
    p95: float
    maximum: float


def distribution(values: Any) -> Distribution:
    """The distribution of an array of numbers; all zero where it is empty."""
    data = np.asarray(values, dtype=np.float64)
    if not len(data):
        return Distribution((), (), 0, 0.0, 0.0, 0.0, 0.0)
    low, high = float(data.min()), float(data.max())
    edges = _edges(low, high)
    counts, _ = np.histogram(data, bins=np.asarray(edges))
    return Distribution(
        tuple(edges),
        tuple(int(number) for number in counts),
        len(data),
        low,
        float(np.median(data)),
        float(np.percentile(data, 95)),
        high,
    )


def _edges(low: float, high: float) -> list[float]:
    """Round edges around [low, high]: at most about a dozen bars, as fine as that allows."""
    if low < 0:  # clocks that disagree: one bar holds them all
        return [low, *_edges(0.0, max(high, 0.0))]
    best: list[float] = []
    for steps in _STEPS:
        edges = _decade_edges(max(low, 1.0), max(high, 1.0), steps)
        if low < 1.0:
            edges = [0.0, *edges]
        if not best or len(edges) - 1 <= _MOST_BARS:
            best = edges
    if len(best) - 1 < 4 and high > low:
        return [float(edge) for edge in np.unique(np.linspace(low, high, 9))]
    return best


def _decade_edges(low: float, high: float, steps: tuple[float, ...]) -> list[float]:
    # One decade more on either side: the logarithm of 999 999 999 999 999 is 15.
    first, last = int(np.floor(np.log10(low))) - 1, int(np.ceil(np.log10(high))) + 1
    grid = [step * 10.0**decade for decade in range(first, last + 1) for step in steps]
    start = max((number for number, edge in enumerate(grid) if edge <= low), default=0)
    end = next((number for number, edge in enumerate(grid) if edge > high), len(grid) - 1)
    return grid[start : end + 1]
