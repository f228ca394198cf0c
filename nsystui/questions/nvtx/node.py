"""One row of the tree of NVTX ranges."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from nsystui.base.selection import Window


class NodeKind(Enum):
    """What a node stands for."""

    RANK = "rank"
    THREAD = "thread"
    PATH = "path"  # all ranges of one path
    RANGES = "ranges"  # the single ranges of a path that has paths inside, as one row to open
    RANGE = "range"  # a single range


class Order(Enum):
    """How siblings are ordered: by time and by name ascending, by everything else descending, unknown last."""

    TOTAL = "total"
    TIME = "time"
    COUNT = "count"
    AVERAGE = "average"
    SELF = "self"
    GPU = "gpu"
    GPU_MEDIAN = "gpu-median"
    OPS = "ops"
    NAME = "name"


@dataclass(frozen=True)
class Node:
    """A node of the tree; times in ns of job time, ``None`` is "not known" or "there is none".

    ``id`` is stable for one tree. ``name`` is the range's name, with ``*`` for the numbers of folded names, of which
    there are ``variants``. ``count``: ranges (of a rank or thread: its outermost ones); ``open_count``: those that were
    never closed. ``total``: the sum of their durations. ``self_total``: the time in which no range inside runs;
    ``None`` for ranks, threads and start/end ranges, which stand beside the tree. ``gpu_total``: the sum of the
    projected durations of the single ranges (``Total Proj Time`` of ``nvtx_gpu_proj_sum``) and ``gpu_median`` their
    median, ``None`` where nothing was launched. ``gpu_ops``: GPU operations launched, one for each correlation id;
    ``None`` where the export cannot say. ``window``: from the first start to the last end; ``gpu_window``: the same of
    the projected ranges. ``child_count``: the rows that opening shows. ``rank`` and ``thread`` (NVIDIA's
    ``globalTid``): ``None`` where ranges of several are merged. ``index``: the place in ``NvtxRanges`` if the node is
    exactly one range.
    """

    id: int
    kind: NodeKind
    name: str
    depth: int
    count: int
    total: int
    self_total: int | None
    gpu_total: int | None
    gpu_median: float | None
    gpu_ops: int | None
    window: Window
    gpu_window: Window | None
    child_count: int = 0
    variants: int = 0
    open_count: int = 0
    rank: int | None = None
    thread: int | None = None
    index: int | None = None

    @property
    def label(self) -> str:
        """The name, and how many names are folded into it: ``layer_* (32)``."""
        return f"{self.name} ({self.variants:,})" if self.variants else self.name

    @property
    def average(self) -> float:
        """Mean duration, ns."""
        return self.total / self.count

    @property
    def has_children(self) -> bool:
        return self.child_count > 0

    @property
    def selection_window(self) -> Window:
        """What the time window should be to look at this: the ranges on the CPU and all that they did on the GPU."""
        start, end = self.window.start, self.window.end
        if self.gpu_window is not None:
            start, end = min(start, self.gpu_window.start), max(end, self.gpu_window.end)
        return Window(start, max(end, start + 1))  # an empty window would select nothing
