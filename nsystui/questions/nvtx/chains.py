"""Chains: the ranges of a thread with the same names around them, by the same path, as one row.

A million ranges have a few thousand chains, so that trees of them are made of these: see `paths`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsystui.questions.algebra.nesting import NO_PARENT
from nsystui.questions.nvtx.loading import Ints, SmallInts, joined

UNKNOWN = -1
"""In ``op_count``: nothing can tell what the range launched."""

PUSH_POP, OPEN, WHOLE = 1, 2, 4
"""The bits of ``flags``: a push/pop range, one that was never closed, one that ended on the thread it began on."""

_LATEST, _EARLIEST = np.iinfo(np.int64).max, np.iinfo(np.int64).min


@dataclass(frozen=True, eq=False)
class Totals:
    """The sums of the ranges of m nodes or chains; shape ``(m,)``, times in ns.

    ``nested``: push/pop ranges, which alone have a self time (``self_total``).
    ``known``: ranges of which it is known what they launched; ``projected``: those that launched something.
    ``gpu_total``: the sum of their projected durations, ``gpu_first`` and ``gpu_last`` how far these reach.
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

    def added(self, add: Callable[[np.ufunc, Ints, int], Ints]) -> Totals:
        """Add up larger groups. ``add`` is given an operation, the values and the result where there are none."""
        found = {}
        for item in fields(self):
            operation, nothing = _OPERATIONS.get(item.name, (np.add, 0))
            found[item.name] = add(operation, getattr(self, item.name), nothing)
        return Totals(**found)


_OPERATIONS: dict[str, tuple[np.ufunc, int]] = {
    "first": (np.minimum, _LATEST),
    "gpu_first": (np.minimum, _LATEST),
    "last": (np.maximum, _EARLIEST),
    "gpu_last": (np.maximum, _EARLIEST),
}


@dataclass(frozen=True, eq=False)
class Chains:
    """c chains of n ranges, those around others before these. Arrays have the shape ``(c,)``.

    ``lane``, ``name``, ``level``: those of its ranges. ``parent``: the chain around it, or -1. ``sample``: the first of
    its ranges.
    """

    lane: Ints
    name: Ints
    level: Ints
    parent: Ints
    sample: Ints
    totals: Totals

    @classmethod
    def joined(cls, parts: Sequence[Chains]) -> Chains:
        """Join the chains of each part after those of the parts before it."""
        arrays = {key: np.concatenate([getattr(part, key) for part in parts]) for key in CHAIN_COLUMNS}
        return cls(**arrays, totals=joined([part.totals for part in parts]))

    def __len__(self) -> int:
        return len(self.lane)

    @cached_property
    def edges(self) -> Ints:
        """The ranges of chain i have the places ``edges[i]`` to ``edges[i + 1]`` among all, chain by chain."""
        return np.concatenate(([0], np.cumsum(self.totals.count)))

    def places(self, chains: Ints) -> Ints:
        """Return the places of the ranges of some chains."""
        counts = self.totals.count[chains]
        skipped = np.cumsum(counts) - counts
        places: Ints = np.arange(int(counts.sum())) + np.repeat(self.edges[chains] - skipped, counts)
        return places


CHAIN_COLUMNS = ("lane", "name", "level", "parent", "sample")


def chained(
    lane: NDArray[Any], name: NDArray[Any], parent: NDArray[Any], level: NDArray[Any]
) -> tuple[dict[str, Ints], SmallInts]:
    """Make the chains of n ranges (`CHAIN_COLUMNS` and ``count``), and the ranges chain by chain.

    The ranges of a chain stay in their order. One step for each level: thousands of them cost milliseconds.
    """
    chain, made = np.empty(len(lane), np.int32), 0
    for number, rows in enumerate(rows_by_level(level)):
        above = chain[parent[rows]] if number else lane[rows]
        names, code = _numbered(name[rows].astype(np.int64))
        pairs, own = _numbered(above.astype(np.int64) * max(len(names), 1) + code)
        chain[rows] = own + made
        made += len(pairs)
    order = np.argsort(chain, kind="stable").astype(np.int32)
    count = np.bincount(chain, minlength=made)
    sample = order[np.cumsum(count) - count].astype(np.int64)
    chains = {key: of[sample].astype(np.int64) for key, of in (("lane", lane), ("name", name), ("level", level))}
    above = parent[sample]
    chains["parent"] = np.where(above >= 0, chain[above], NO_PARENT).astype(np.int64)
    return chains | {"count": count, "sample": sample}, order


def _numbered(values: Ints) -> tuple[Ints, Ints]:
    """The different values, none of which is negative, ascending, and the place of each there."""
    most = int(values.max(initial=0)) + 1
    if most > 4 * len(values):
        different, places = np.unique(values, return_inverse=True)
        return different, places
    is_there = np.zeros(most, bool)
    is_there[values] = True
    return np.flatnonzero(is_there), (np.cumsum(is_there) - 1)[values]


def narrow(values: NDArray[Any]) -> NDArray[Any]:
    """Store signed integers in as few bytes as hold them all; whoever adds them up must make them wide."""
    if values.dtype.kind not in "iu" or not len(values):
        return values
    low, high = int(values.min()), int(values.max())
    kinds = (np.int8, np.int16, np.int32)
    return values.astype(
        next((kind for kind in kinds if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max), np.int64), copy=False
    )


def rows_by_level(level: NDArray[Any]) -> list[NDArray[np.int64]]:
    """Return the indices of the ranges of each level, outermost first."""
    order = np.argsort(level, kind="stable")
    depth = int(level.max(initial=-1)) + 1
    edges = np.searchsorted(level[order], np.arange(1, depth))
    return np.split(order, edges) if depth else []


def added_up(column: Callable[[str], NDArray[Any]], order: SmallInts, count: Ints) -> tuple[Totals, NDArray[Any]]:
    """Add up chains; with the lengths of the projected ranges chain by chain, -1 where nothing was launched.

    ``column``: those of the ranges by name (see `columns`), whose times begin with the report. Exact: all in int64.
    """
    first = np.cumsum(count) - count

    def reduced(values: NDArray[Any], operation: np.ufunc = np.add) -> Ints:
        if not len(first):
            return np.empty(0, np.int64)
        result: Ints = operation.reduceat(values[order].astype(np.int64, copy=False), first)
        return result

    def wide(name: str) -> Ints:  # as they are, what is added up would not fit
        return column(name).astype(np.int64)

    flags, ops, start = column("flags"), column("op_count"), wide("start")
    is_projected = ops > 0
    gpu_length = np.where(is_projected, wide("gpu_length"), -1)
    gpu_start = start + wide("gpu_delay")
    found = {
        "count": count,
        "nested": reduced(flags & PUSH_POP),
        "open_count": reduced((flags & OPEN) > 0),
        "known": reduced(ops != UNKNOWN),
        "projected": reduced(is_projected),
        "gpu_ops": reduced(np.where(is_projected, ops, 0)),
        "gpu_total": reduced(np.where(is_projected, gpu_length, 0)),
        "gpu_first": reduced(np.where(is_projected, gpu_start, _LATEST), np.minimum),
        "gpu_last": reduced(np.where(is_projected, gpu_start + gpu_length, _EARLIEST), np.maximum),
    }
    del gpu_start
    found |= {
        "first": reduced(start, np.minimum),
        "last": reduced(start + wide("length"), np.maximum),
        "total": reduced(column("length")),
        "self_total": reduced(column("self_time")),
    }
    return Totals(**found), gpu_length[order]
