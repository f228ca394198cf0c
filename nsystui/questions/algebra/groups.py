"""Statistics of groups of millions of values in numpy: sums, quartiles, deviation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nsystui.base.types import Array, Floats, Ints


@dataclass(frozen=True, eq=False)
class Groups:
    """n values and the numbers of their groups. Shapes: ``(n,)``, or ``(groups,)`` per group.

    ``number``: the group numbers, ascending. ``order``: the values' indices by group, ascending in each. ``first``,
    ``count``: each group's start in that order, and its number of values.
    """

    value: Ints
    number: Ints
    order: Ints
    first: Ints
    count: Ints

    @classmethod
    def of(cls, group: Array, value: Ints) -> Groups:
        order = np.lexsort((value, group))
        ordered = group[order]
        first = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))
        return cls(value, ordered[first], order, first, np.diff(first, append=len(order)))

    def summed(self, values: Array) -> Array:
        """Return each group's sum of other values."""
        return self._group_sums(values[self.order])

    def _group_sums(self, ordered: Array) -> Array:
        sums: Array = np.add.reduceat(ordered, self.first) if len(self.first) else ordered[:0]
        return sums

    def measures(self) -> dict[str, Array]:
        """Return ``total count avg median min max stddev q1 q3`` by name, as defined in `queries.statistics`."""
        values = self.value[self.order]
        total = self._group_sums(values)
        average = total / self.count
        squares = self._group_sums((values - np.repeat(average, self.count)) ** 2)
        return {
            "total": total,
            "count": self.count,
            "avg": average,
            "median": self._quantile(values, 1, 2),
            "min": values[self.first],
            "max": values[self.first + self.count - 1],
            "stddev": np.sqrt(squares / np.maximum(self.count - 1, 1)),
            "q1": self._quantile(values, 1, 4),
            "q3": self._quantile(values, 3, 4),
        }

    def _quantile(self, values: Ints, part: int, parts: int) -> Floats:
        """Return the quantile ``part / parts`` of each group: a value, or the mean of two values."""
        below = self.first + np.maximum(-(-part * self.count // parts), 1) - 1
        above = self.first + np.minimum(part * self.count // parts, self.count - 1)
        quantile: Floats = (values[below] + values[above]) / 2.0
        return quantile


def distinct(values: Array) -> Array:
    """Return the distinct values, ascending. For millions of times, np.unique's hash table takes minutes."""
    ordered = np.sort(values)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def measures_of(group: Array, value: Array, at_once: int) -> tuple[Array, dict[str, Array]]:
    """Return the group numbers, ascending, and `Groups.measures`, computing about ``at_once`` values at a time."""
    edges = np.unique(np.sort(group)[::at_once])
    numbers, parts = [], []
    for index in range(max(len(edges), 1)):
        is_in_part = np.ones(len(group), np.bool_) if index == 0 else group >= edges[index]
        if index + 1 < len(edges):
            is_in_part &= group < edges[index + 1]
        groups = Groups.of(group[is_in_part], value[is_in_part].astype(np.int64))
        numbers.append(groups.number)
        parts.append(groups.measures())
    return np.concatenate(numbers), {key: np.concatenate([part.pop(key) for part in parts]) for key in list(parts[0])}


def one_key(*parts: Ints) -> Ints:
    """Return a number from 0 for each distinct combination of ``parts``, in their order; arrays of one shape."""
    key, span = np.zeros(len(parts[0]), np.int64), 1
    for part in parts:
        low = int(part.min(initial=0))
        width = int(part.max(initial=0)) - low + 1
        if span * width > _KEY_LIMIT:
            key, part, low = _renumbered(key, span), _renumbered(part - low, width), 0
            span, width = int(key.max(initial=0)) + 1, int(part.max(initial=0)) + 1
        key, span = key * width + (part - low), span * width
    return _renumbered(key, span)


_KEY_LIMIT = 1 << 62


def _renumbered(key: Ints, span: int) -> Ints:
    """Return ``key``, with values in ``[0, span)``, without gaps and in the same order."""
    if span > 8 * len(key) + 1024:
        return np.unique(key, return_inverse=True)[1].astype(np.int64)
    is_used = np.zeros(span, bool)
    is_used[key] = True
    return (np.cumsum(is_used) - 1)[key]
