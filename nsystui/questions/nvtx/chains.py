"""Chains: ranges of a thread with the same name and the same names around them, as one row.

A million ranges have a few thousand chains, so trees are built from chains: see `paths`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from nsystui.base.types import Array, Ints
from nsystui.questions.nvtx.loading import SmallInts, joined

UNKNOWN = -1
"""In ``op_count``: the number of launched operations is unknown."""

PUSH_POP, OPEN, WHOLE = 1, 2, 4
"""Bits of ``flags``: a push/pop range, a range never closed, a range that ended on the thread it began on."""

_MAX_TIME, _MIN_TIME = np.iinfo(np.int64).max, np.iinfo(np.int64).min


@dataclass(frozen=True, eq=False)
class Totals:
    """Sums over the ranges of m nodes or chains; shape ``(m,)``, times in ns.

    ``nested``: push/pop ranges, the only ranges with a self time. ``known``: ranges with a known number of launched
    operations; ``projected``: ranges that launched any. ``gpu_total``: the sum of the projected durations,
    ``gpu_first`` and ``gpu_last`` their first start and last end. ``replayed``: see `columns`.
    """

    count: Ints
    total: Ints
    nested: Ints
    self_total: Ints
    open_count: Ints
    first: Ints
    last: Ints
    known: Ints
    projected: Ints
    gpu_total: Ints
    gpu_ops: Ints
    gpu_first: Ints
    gpu_last: Ints
    replayed: Ints

    def added(self, add: Callable[[np.ufunc, Ints, int], Ints]) -> Totals:
        """Add up larger groups; ``add`` takes an operation, the values and the result for an empty group."""
        sums = {}
        for item in fields(self):
            operation, initial = _OPERATIONS.get(item.name, (np.add, 0))
            sums[item.name] = add(operation, getattr(self, item.name), initial)
        return Totals(**sums)


_OPERATIONS: dict[str, tuple[np.ufunc, int]] = {
    "first": (np.minimum, _MAX_TIME),
    "gpu_first": (np.minimum, _MAX_TIME),
    "last": (np.maximum, _MIN_TIME),
    "gpu_last": (np.maximum, _MIN_TIME),
}


@dataclass(frozen=True, eq=False)
class Chains:
    """c chains of n ranges, parents before children. Arrays have the shape ``(c,)``.

    ``lane``, ``name``, ``level``: equal for all its ranges. ``parent``: the chain around it, or -1. ``sample``: its
    first range.
    """

    lane: Ints
    name: Ints
    level: Ints
    parent: Ints
    sample: Ints
    totals: Totals

    @classmethod
    def joined(cls, parts: Sequence[Chains]) -> Chains:
        """Join the chains of all parts, part by part."""
        arrays = {key: np.concatenate([getattr(part, key) for part in parts]) for key in CHAIN_COLUMNS}
        return cls(**arrays, totals=joined([part.totals for part in parts]))

    def __len__(self) -> int:
        return len(self.lane)

    @cached_property
    def edges(self) -> Ints:
        """Bounds of the chains if ranges are in the order of chains: chain i has ``edges[i]:edges[i + 1]``."""
        return np.concatenate(([0], np.cumsum(self.totals.count)))

    def range_positions(self, chains: Ints) -> Ints:
        """Return the positions of chains' ranges in the order of `edges`."""
        counts = self.totals.count[chains]
        skipped = np.cumsum(counts) - counts
        positions: Ints = np.arange(int(counts.sum())) + np.repeat(self.edges[chains] - skipped, counts)
        return positions


CHAIN_COLUMNS = ("lane", "name", "level", "parent", "sample")


def chained(lane: Array, name: Array, parent: Array, level: Array) -> tuple[dict[str, Ints], SmallInts]:
    """Return the chains of n ranges (`CHAIN_COLUMNS` and ``count``), and the ranges' indices chain by chain.

    The ranges of a chain keep their order. Each level takes one step: thousands of levels cost milliseconds.
    """
    from nsystui.questions.algebra.nesting import NO_PARENT

    chain, chain_count = np.empty(len(lane), np.int32), 0
    for depth, rows in enumerate(rows_by_level(level)):
        above = chain[parent[rows]] if depth else lane[rows]
        names, code = _unique_codes(name[rows].astype(np.int64))
        pairs, pair_code = _unique_codes(above.astype(np.int64) * max(len(names), 1) + code)
        chain[rows] = pair_code + chain_count
        chain_count += len(pairs)
    order = np.argsort(chain, kind="stable").astype(np.int32)
    count = np.bincount(chain, minlength=chain_count)
    sample = order[np.cumsum(count) - count].astype(np.int64)
    chains = {key: data[sample].astype(np.int64) for key, data in (("lane", lane), ("name", name), ("level", level))}
    above = parent[sample]
    chains["parent"] = np.where(above >= 0, chain[above], NO_PARENT).astype(np.int64)
    return chains | {"count": count, "sample": sample}, order


def _unique_codes(values: Ints) -> tuple[Ints, Ints]:
    limit = int(values.max(initial=0)) + 1
    if limit > 4 * len(values):
        unique, codes = np.unique(values, return_inverse=True)
        return unique, codes
    occurs = np.zeros(limit, bool)
    occurs[values] = True
    return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[values]


def narrow(values: Array) -> Array:
    """Store signed integers in the fewest bytes; callers must widen them before sums."""
    if values.dtype.kind not in "iu" or not len(values):
        return values
    low, high = int(values.min()), int(values.max())
    kinds = (np.int8, np.int16, np.int32)
    return values.astype(
        next((kind for kind in kinds if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max), np.int64), copy=False
    )


def rows_by_level(level: Array) -> list[Ints]:
    """Return the indices of each level's ranges, outermost first."""
    order = np.argsort(level, kind="stable")
    depth = int(level.max(initial=-1)) + 1
    return np.split(order, np.searchsorted(level[order], np.arange(1, depth))) if depth else []


def added_up(column: Callable[[str], Array], order: SmallInts, count: Ints) -> tuple[Totals, Array]:
    """Return the totals of chains, and the ranges' projected lengths chain by chain, -1 without launches.

    ``column`` returns a column of the ranges by name (see `columns`). Totals are exact, and on the clock of ``start``.
    """
    first = np.cumsum(count) - count

    def reduced(values: Array, operation: np.ufunc = np.add) -> Ints:
        if not len(first):
            return np.empty(0, np.int64)
        result: Ints = operation.reduceat(values[order].astype(np.int64, copy=False), first)
        return result

    def int64(name: str) -> Ints:  # sums of narrow integers would overflow
        return column(name).astype(np.int64)

    flags, ops, start = column("flags"), column("op_count"), int64("start")
    is_projected = ops > 0
    gpu_length = np.where(is_projected, int64("gpu_length"), -1)
    gpu_start = start + int64("gpu_delay")
    sums = {
        "count": count,
        "nested": reduced(flags & PUSH_POP),
        "open_count": reduced((flags & OPEN) > 0),
        "known": reduced(ops != UNKNOWN),
        "projected": reduced(is_projected),
        "gpu_ops": reduced(np.where(is_projected, ops, 0)),
        "gpu_total": reduced(np.where(is_projected, gpu_length, 0)),
        "gpu_first": reduced(np.where(is_projected, gpu_start, _MAX_TIME), np.minimum),
        "gpu_last": reduced(np.where(is_projected, gpu_start + gpu_length, _MIN_TIME), np.maximum),
    }
    del gpu_start
    sums |= {
        "first": reduced(start, np.minimum),
        "last": reduced(start + int64("length"), np.maximum),
        "total": reduced(column("length")),
        "replayed": reduced(column("replayed")),
        "self_total": reduced(column("self_time")),
    }
    return Totals(**sums), gpu_length[order]
