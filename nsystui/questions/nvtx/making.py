"""Makes the nodes of the tree from its arrays: a path's totals become a row when somebody looks at it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from nsystui.base.selection import Window
from nsystui.questions.nvtx.loading import Ints
from nsystui.questions.nvtx.node import Node, NodeKind, Order
from nsystui.questions.nvtx.paths import Members, Paths, Totals
from nsystui.questions.nvtx.ranges import UNKNOWN, NvtxRanges
from nsystui.questions.nvtx.scopes import Grouping

_ORDERS_KEPT = 4  # of single ranges; a path of a million takes 8 MB and a tenth of a second


@dataclass(frozen=True, eq=False)
class NodeMaker:
    """The arrays of a tree of m paths and n ranges, and the nodes made from them.

    Ids: a path's is its place, the list of its single ranges has m more, a single range has 2 m and its place.
    """

    ranges: NvtxRanges
    grouping: Grouping
    paths: Paths
    members: Members
    totals: Totals
    _medians: dict[int, float] = field(default_factory=dict, repr=False)
    _orders: dict[tuple[int, Order], Ints] = field(default_factory=dict, repr=False)

    def name(self, path: int) -> str:
        """The name of a rank, thread or path."""
        if path < self.paths.groups:
            return self.grouping.groups[path].name
        return self.paths.labels[int(self.paths.label[path])]

    def is_single(self, path: int) -> bool:
        """Whether a path has exactly one range, so that its node is that range."""
        return path >= self.paths.groups and bool(self.totals.count[path] == 1)

    def _is_rank(self, path: int) -> bool:
        return path < self.paths.groups and self.grouping.groups[path].kind is NodeKind.RANK

    def inside(self, path: int) -> int:
        """How many threads or paths are right below a rank, thread or path."""
        return int(self.paths.children[1][path + 1])

    def path_node(self, path: int) -> Node:
        """The node of a rank, thread or path."""
        totals, is_group, is_single = self.totals, path < self.paths.groups, self.is_single(path)
        launched = bool(totals.projected[path])
        inside, count = self.inside(path), int(totals.count[path])
        rank, thread = self._owner(path)
        return Node(
            id=path,
            kind=self.grouping.groups[path].kind if is_group else NodeKind.PATH,
            name=self.name(path),
            depth=int(self.paths.depth[path]),
            count=count,
            total=int(totals.total[path]),
            self_total=None if is_group or not totals.nested[path] else int(totals.self_total[path]),
            gpu_total=int(totals.gpu_total[path]) if launched else None,
            gpu_median=self.median(path) if launched and not is_group else None,
            gpu_ops=int(totals.gpu_ops[path]) if totals.known[path] else None,
            window=Window.of_event(int(totals.first[path]), int(totals.last[path])),
            gpu_window=Window.of_event(int(totals.gpu_first[path]), int(totals.gpu_last[path])) if launched else None,
            child_count=inside if is_group or is_single else inside + 1 if inside else count,
            variants=int(self.paths.variants[path]),
            open_count=int(totals.open_count[path]),
            rank=rank,
            thread=thread,
            index=int(self.members[path][0]) if is_single else None,
        )

    def list_node(self, path: int) -> Node:
        """The row that opens the single ranges of a path that has paths inside."""
        node = self.path_node(path)
        number, name, depth = len(self.paths) + path, f"{node.count:,} single ranges", node.depth + 1
        return replace(
            node, id=number, kind=NodeKind.RANGES, name=name, depth=depth, child_count=node.count, variants=0
        )

    def range_nodes(self, indices: Sequence[int], depth: int) -> list[Node]:
        """The nodes of single ranges, with the names as recorded."""
        names = self.ranges.full_names(indices)
        return [self._range_node(index, name, depth) for index, name in zip(indices, names, strict=True)]

    def _range_node(self, index: int, name: str, depth: int) -> Node:
        ranges, lane, ops = self.ranges, self.ranges.lane_of(index), int(self.ranges.op_count[index])
        window = Window.of_event(int(ranges.start[index]), int(ranges.end[index]))
        gpu = Window.of_event(int(ranges.gpu_start[index]), int(ranges.gpu_end[index])) if ops > 0 else None
        return Node(
            id=2 * len(self.paths) + index,
            kind=NodeKind.RANGE,
            name=name,
            depth=depth,
            count=1,
            total=window.end - window.start,
            self_total=int(ranges.self_time[index]) if ranges.is_push_pop[index] else None,
            gpu_total=gpu.end - gpu.start if gpu else None,
            gpu_median=float(gpu.end - gpu.start) if gpu else None,
            gpu_ops=None if ops == UNKNOWN else ops,
            window=window,
            gpu_window=gpu,
            open_count=int(ranges.is_open[index]),
            rank=lane.rank,
            thread=lane.thread,
            index=index,
        )

    def median(self, path: int) -> float:
        """The median projected duration of a path's ranges, ns; not a number where none launched anything."""
        if path not in self._medians:
            chosen = self.members[path]
            chosen = chosen[self.ranges.op_count[chosen] > 0]
            durations = self.ranges.gpu_end[chosen] - self.ranges.gpu_start[chosen]
            self._medians[path] = float(np.median(durations)) if len(durations) else np.nan
        return self._medians[path]

    def sorted_paths(self, above: int, order: Order) -> NDArray[np.int64]:
        """What is right below ``above`` (-1: the roots) in an order; ranks always by number."""
        paths = self.paths.children_of(above)
        if not len(paths) or self._is_rank(int(paths[0])):
            return paths
        if order is Order.NAME:
            return np.array(sorted(paths.tolist(), key=self.name), np.int64)
        return paths[np.argsort(self._path_keys(paths, order), kind="stable")]

    def _path_keys(self, paths: Ints, order: Order) -> NDArray[np.int64] | NDArray[np.float64]:
        totals = self.totals
        if order is Order.TIME:
            return totals.first[paths]
        if order is Order.GPU_MEDIAN:
            return -np.array([self.median(path) for path in paths.tolist()])  # NaN sorts last
        if order is Order.AVERAGE:
            return -(totals.total[paths] / totals.count[paths])
        if order is Order.GPU:
            return -np.where(totals.projected[paths] > 0, totals.gpu_total[paths], -1)
        if order is Order.OPS:
            return -np.where(totals.known[paths] > 0, totals.gpu_ops[paths], -1)
        if order is Order.SELF:
            return -np.where(totals.nested[paths] > 0, totals.self_total[paths], -1)
        return -(totals.count if order is Order.COUNT else totals.total)[paths]

    def sorted_ranges(self, path: int, order: Order) -> Ints:
        """The single ranges of a path in an order; by start where the order says nothing about single ranges."""
        key = (path, order)
        if key not in self._orders:
            while len(self._orders) >= _ORDERS_KEPT:
                self._orders.pop(next(iter(self._orders)), None)
            chosen = self.members[path]
            keys = self._range_keys(chosen, order)
            self._orders[key] = chosen[np.lexsort((self.ranges.start[chosen], keys))]
        return self._orders[key]

    def _range_keys(self, chosen: Ints, order: Order) -> Ints:
        ranges = self.ranges
        if order in (Order.TOTAL, Order.AVERAGE):
            return ranges.start[chosen] - ranges.end[chosen]
        if order is Order.SELF:
            return -np.where(ranges.is_push_pop[chosen], ranges.self_time[chosen], -1)
        if order is Order.OPS:
            return -ranges.op_count[chosen].astype(np.int64)
        if order in (Order.GPU, Order.GPU_MEDIAN):
            lengths = ranges.gpu_start[chosen] - ranges.gpu_end[chosen]
            return np.where(ranges.op_count[chosen] > 0, lengths, 1)
        return ranges.start[chosen]

    def _owner(self, path: int) -> tuple[int | None, int | None]:
        """The rank and the thread that a node belongs to, if it is one."""
        if path < self.paths.groups:
            group = self.grouping.groups[path]
            return group.lane.rank, group.lane.thread if group.kind is NodeKind.THREAD else None
        lane = self.ranges.lane_of(int(self.members[path][0]))
        return lane.rank if self.grouping.one_rank else None, lane.thread if self.grouping.one_thread else None
