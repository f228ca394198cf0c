"""Many points as counts on a grid with logarithmic axes: what a scatter plot of any number of points shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class Density:
    """``counts[row][column]`` points, the first row with the largest y; the axes are logarithmic.

    ``x`` and ``y`` are the values at the two ends of the axes.
    """

    counts: Sequence[Sequence[int]]
    x: tuple[float, float]
    y: tuple[float, float]


def log_density(x: ArrayLike, y: ArrayLike, columns: int, rows: int) -> Density | None:
    """The points of which both values are above 0; ``None`` where there are none, or no room for them."""
    xs, ys = np.asarray(x, np.float64), np.asarray(y, np.float64)
    is_shown = (xs > 0) & (ys > 0)  # false for what is missing, too
    xs, ys = xs[is_shown], ys[is_shown]
    if not len(xs) or columns < 1 or rows < 1:
        return None
    x_ends, y_ends = _ends(xs), _ends(ys)
    column = _places(xs, x_ends, columns)
    row = rows - 1 - _places(ys, y_ends, rows)
    counts = np.bincount(row * columns + column, minlength=rows * columns).reshape(rows, columns)
    return Density(counts.tolist(), x_ends, y_ends)


def _ends(values: NDArray[np.float64]) -> tuple[float, float]:
    """The least and the largest value; of one value alone half of it and twice as much."""
    low, high = float(values.min()), float(values.max())
    return (low, high) if high > low else (low / 2 or low, high * 2)


def _places(values: NDArray[np.float64], ends: tuple[float, float], cells: int) -> NDArray[np.int64]:
    low, high = np.log(ends[0]), np.log(ends[1])
    if high <= low:  # neighbours among the numbers that a float can be
        return np.zeros(len(values), np.int64)
    places = ((np.log(values) - low) / (high - low) * cells).astype(np.int64)
    return np.asarray(np.minimum(places, cells - 1), np.int64)
