"""The intervals of a lane of the timeline by category, and the category that fills each column.

A column is dominated by the category that covers most of it, each category by itself: U(X) as in
``nsystui.questions.device_time``. How busy the column is, is the union of them all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsystui.base.selection import Window
from nsystui.questions.algebra.interval_blocks import IntervalBlocks
from nsystui.questions.device_time import BusyParts

CATEGORIES = ("idle", "compute", "nccl", "memory", "graph", "nvtx")
"""The categories that may dominate a column, by their numbers in ``Columns.category``."""

IDLE = CATEGORIES.index("idle")
UNSEEN = -1
"""The number of a column in which the report was not recording."""

_PARTS = (("compute", "kernels"), ("nccl", "nccl"), ("memory", "memory"), ("graph", "graph"))
_DISJOINT = ("kernels", "exposed_nccl", "memory_only", "graph_only")


@dataclass(frozen=True, eq=False)
class LaneWork:
    """The busy times of a lane (job time). ``parts`` by category may overlap; ``apart`` are these without overlaps."""

    parts: tuple[tuple[str, IntervalBlocks], ...]
    apart: tuple[IntervalBlocks, ...]
    recorded: Window

    @classmethod
    def of_device(cls, parts: BusyParts, recorded: Window) -> LaneWork:
        """The work of a GPU or of a stream."""
        named = [(category, getattr(parts, name)) for category, name in _PARTS]
        apart = [getattr(parts, name) for name in _DISJOINT]
        return cls(
            tuple((category, blocks) for category, blocks in named if len(blocks)),
            tuple(blocks for blocks in apart if len(blocks)),
            recorded,
        )

    @property
    def length(self) -> int:
        """The time in which it was busy, ns."""
        return sum(blocks.length for blocks in self.apart)

    def busy_within(self, window: Window) -> int:
        """The part of ``window`` in which it was busy, ns."""
        return sum(blocks.length_within(window.start, window.end) for blocks in self.apart)


@dataclass(frozen=True, eq=False)
class Columns:
    """The contents of n equal spans of a window; arrays of the shape ``(n,)``.

    ``category``: the number in ``CATEGORIES`` of what covers most of it, ``IDLE`` where nothing ran, ``UNSEEN`` outside
    the recording. ``busy``: the share of it in which anything ran, 0 to 1, NaN where unseen. ``shares``: the same
    for each category that the lane has, which may sum up to more.
    """

    window: Window
    category: NDArray[np.int8]
    busy: NDArray[np.float64]
    shares: dict[str, NDArray[np.float64]]


def columns(work: LaneWork, window: Window, count: int) -> Columns:
    """The category that dominates each of ``count`` columns of ``window``. Raises ``ValueError`` where ``count < 1``.

    Costs milliseconds however long the lane is: see ``interval_blocks``.
    """
    lo, hi = window.start, window.end
    width = max(hi - lo, 1) / count
    known: dict[int, NDArray[np.float64]] = {}

    def share(blocks: IntervalBlocks) -> NDArray[np.float64]:
        if id(blocks) not in known:
            known[id(blocks)] = blocks.covered_per_bin(lo, hi, count) / width
        return known[id(blocks)]

    shares = {category: share(blocks) for category, blocks in work.parts}
    busy = np.minimum(sum((share(blocks) for blocks in work.apart), np.zeros(count)), 1.0)
    category = np.full(count, IDLE, np.int8)
    most = np.zeros(count)
    for name, covered in shares.items():  # the first of equals stays
        more = covered > most
        category[more] = CATEGORIES.index(name)
        most = np.maximum(most, covered)
    edges = lo + np.arange(count + 1) * (hi - lo) / count
    unseen = (edges[1:] <= work.recorded.start) | (edges[:-1] >= work.recorded.end)
    category[unseen & (category == IDLE)] = UNSEEN
    busy[unseen & (busy == 0)] = np.nan
    return Columns(window, category, busy, shares)
