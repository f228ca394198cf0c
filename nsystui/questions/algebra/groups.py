"""Statistics of groups of millions of values, by numpy: sums, quartiles, deviation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Groups:
    """n values by the numbers of their groups. Shapes ``(n,)``, and ``(groups,)`` for what there is of each.

    ``number``: the numbers, ascending. ``order``: the places of the values, group by group and ascending in each.
    ``first``, ``count``: where each group begins in that order, and how many values it has.
    """

    value: NDArray[np.int64]
    number: NDArray[np.int64]
    order: NDArray[np.int64]
    first: NDArray[np.int64]
    count: NDArray[np.int64]

    @classmethod
    def of(cls, group: NDArray[Any], value: NDArray[np.int64]) -> Groups:
        order = np.lexsort((value, group))
        ordered = group[order]
        first = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))
        return cls(value, ordered[first], order, first, np.diff(first, append=len(order)))

    def summed(self, values: NDArray[Any]) -> NDArray[Any]:
        """The sum for each group of other values of the same rows."""
        return self._added(values[self.order])

    def _added(self, ordered: NDArray[Any]) -> NDArray[Any]:
        sums: NDArray[Any] = np.add.reduceat(ordered, self.first) if len(self.first) else ordered[:0]
        return sums

    def measures(self) -> dict[str, NDArray[Any]]:
        """``total``, ``count``, ``avg``, ``median``, ``min``, ``max``, ``stddev``, and the quartiles ``q1``, ``q3``.

        As `statistics` has them.
        """
        values = self.value[self.order]
        total = self._added(values)
        average = total / self.count
        squares = self._added((values - np.repeat(average, self.count)) ** 2)
        return {
            "total": total,
            "count": self.count,
            "avg": average,
            "median": self._middle(values, 1, 2),
            "min": values[self.first],
            "max": values[self.first + self.count - 1],
            "stddev": np.sqrt(squares / np.maximum(self.count - 1, 1)),
            "q1": self._middle(values, 1, 4),
            "q3": self._middle(values, 3, 4),
        }

    def _middle(self, values: NDArray[np.int64], share: int, whole: int) -> NDArray[np.float64]:
        """The mean of the two of the ordered values between which a share of all lies, or the one that it lies in."""
        below = self.first + np.maximum(-(-share * self.count // whole), 1) - 1
        above = self.first + np.minimum(share * self.count // whole, self.count - 1)
        middle: NDArray[np.float64] = (values[below] + values[above]) / 2.0
        return middle


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """Return the different values, ascending, by sorting: of millions of times np.unique's hash table takes minutes."""
    ordered = np.sort(values)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def measures_of(group: NDArray[Any], value: NDArray[Any], at_once: int) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
    """Return the numbers of the groups, ascending, and `Groups.measures`; about ``at_once`` values at a time."""
    edges = np.unique(np.sort(group)[::at_once])
    numbers, parts = [], []
    for place in range(max(len(edges), 1)):
        is_own = np.ones(len(group), np.bool_) if place == 0 else group >= edges[place]
        if place + 1 < len(edges):
            is_own &= group < edges[place + 1]
        found = Groups.of(group[is_own], value[is_own].astype(np.int64))
        numbers.append(found.number)
        parts.append(found.measures())
    return np.concatenate(numbers), {key: np.concatenate([part.pop(key) for part in parts]) for key in list(parts[0])}
