"""The tree of NVTX ranges: ranks, threads, paths, single ranges; opening a parent makes its nodes.

Data are numpy arrays, so a path of a million ranges or thousands of levels opens as fast as any other. Nothing
recurses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property, partial
from typing import Any

import numpy as np

from nsystui.base.selection import NameFilter, Window
from nsystui.base.types import Flags, Floats, Ints
from nsystui.questions.nvtx.chains import PUSH_POP, Chains, Totals, added_up
from nsystui.questions.nvtx.loading import SmallInts
from nsystui.questions.nvtx.paths import (
    NO_NODE,
    Folding,
    Grouping,
    NodeKind,
    Paths,
    TreeGrouping,
    add_up,
    group_by_path,
    group_ranges,
)
from nsystui.questions.nvtx.ranges import NvtxRanges, with_ancestors


class Order(Enum):
    """The order of siblings: time and name ascending, other keys descending, unknown values last."""

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
    """A node of the tree; times in ns of job time, ``None`` if unknown or missing.

    ``id`` is stable within a tree. ``name`` is the range's name, with ``*`` for the numbers of ``variants`` folded
    names. ``count``: ranges (for a rank or thread, its outermost ranges); ``open_count``: ranges that never ended,
    which have no duration. ``total``: the sum of durations. ``self_total``: the time in which no range inside runs;
    ``None`` for ranks, threads and start/end ranges. ``gpu_total``: the sum of the projected durations of the single
    ranges (``Total Proj Time`` of ``nvtx_gpu_proj_sum``), ``gpu_median`` their median, ``None`` without launches.
    ``gpu_ops``: GPU operations launched, one for each correlation id. ``replayed``: the time of the operations of CUDA
    graphs that were captured in the ranges, ``None`` without any. ``window``: from the first start to the last end;
    ``gpu_window``: the same for the projected ranges. ``child_count``: the rows that opening shows. ``rank``, ``role``
    and ``thread`` (NVIDIA's ``globalTid``): ``None`` if several are merged. ``index``: the index in ``NvtxRanges`` if
    the node is exactly one range.
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
    replayed: int | None
    window: Window
    gpu_window: Window | None
    child_count: int = 0
    variants: int = 0
    open_count: int = 0
    rank: int | None = None
    role: str | None = None
    thread: int | None = None
    index: int | None = None

    @property
    def label(self) -> str:
        """The name with the number of names folded into it: ``layer_* (32)``."""
        return f"{self.name} ({self.variants:,})" if self.variants else self.name

    @property
    def average(self) -> float:
        """Mean duration of the ranges that ended, ns."""
        return self.total / max(self.ended, 1)

    @property
    def ended(self) -> int:
        """The number of ranges that ended."""
        return self.count - self.open_count

    @property
    def selection_window(self) -> Window:
        """The time window of its ranges on the CPU and all of their GPU work."""
        start, end = self.window.start, self.window.end
        if self.gpu_window is not None:
            start, end = min(start, self.gpu_window.start), max(end, self.gpu_window.end)
        return Window(start, max(end, start + 1))  # an empty window would select nothing


_Facts = dict[str, Any]


def _node(totals: Totals, row: int, facts: _Facts) -> Node:
    """Make a node of the ranges in a row of ``totals``; ``facts`` are its other fields, or replace sums."""
    sums = {name: int(values[row]) for name, values in vars(totals).items()}
    launched = sums["projected"] > 0
    fields: _Facts = {
        **{name: sums[name] for name in ("count", "total", "open_count")},
        "self_total": sums["self_total"] if sums["nested"] else None,
        "gpu_total": sums["gpu_total"] if launched else None,
        "gpu_median": float(sums["gpu_total"]) if launched else None,  # of a single range
        "gpu_ops": sums["gpu_ops"] if sums["known"] else None,
        "replayed": sums["replayed"] or None,
        "window": Window.of_event(sums["first"], sums["last"]),
        "gpu_window": Window.of_event(sums["gpu_first"], sums["gpu_last"]) if launched else None,
    }
    return Node(**(fields | facts))


_MAX_ORDERS = 4  # cached orders of single ranges; a path of a million takes 8 MB and a tenth of a second


@dataclass(frozen=True, eq=False)
class NodeMaker:
    """The arrays of a tree of m paths and n ranges, and the nodes made from them.

    Ids: i for path i, m + i for the list of its single ranges, 2 m + j for single range j.
    """

    ranges: NvtxRanges
    grouping: Grouping
    paths: Paths
    totals: Totals
    _medians: dict[int, float] = field(default_factory=dict, repr=False)
    _orders: dict[tuple[int, Order], Ints] = field(default_factory=dict, repr=False)

    @property
    def chains(self) -> Chains:
        """The chains of the ranges."""
        return self.ranges.columns.chains

    def ranges_of(self, path: int) -> Ints:
        """Return the single ranges of a path, in their own order."""
        indices = self.ranges.columns["by_chain"][self.chains.range_positions(self.paths.chains_of(path))]
        return np.sort(indices).astype(np.int64)

    @cached_property
    def _chain_of_range(self) -> SmallInts:
        chains = np.empty(len(self.ranges), np.int32)
        chains[self.ranges.columns["by_chain"]] = np.repeat(np.arange(len(self.chains)), self.chains.totals.count)
        return chains

    def path_of_range(self, index: int) -> int:
        """Return the path of a single range."""
        return int(self.paths.of_chain[self._chain_of_range[index]])

    def name(self, path: int) -> str:
        """Return the name of a rank, thread or path."""
        if path < self.paths.groups:
            return self.grouping.groups[path].name
        return self.paths.labels[int(self.paths.label[path])]

    def is_single(self, path: int) -> bool:
        """Return whether a path has exactly one range; both are then one node."""
        return path >= self.paths.groups and bool(self.totals.count[path] == 1)

    def inner_count(self, path: int) -> int:
        """Count the children (threads or paths) of a rank, thread or path."""
        return int(self.paths.children[1][path + 1])

    def path_node(self, path: int) -> Node:
        """Make the node of a rank, thread or path."""
        inner_count, count = self.inner_count(path), int(self.totals.count[path])
        depth, variants = int(self.paths.depth[path]), int(self.paths.variants[path])
        facts: _Facts = {"id": path, "name": self.name(path), "depth": depth, "variants": variants}
        facts |= {"kind": NodeKind.PATH, "child_count": inner_count}
        facts |= zip(("rank", "role", "thread"), self._owner(path), strict=True)
        if path < self.paths.groups:
            facts |= {"kind": self.grouping.groups[path].kind, "self_total": None, "gpu_median": None}
        elif self.is_single(path):
            facts["index"] = int(self.chains.sample[self.paths.chains_of(path)[0]])
        else:
            facts["child_count"] = inner_count + 1 if inner_count else count
            facts["gpu_median"] = self.median(path) if self.totals.projected[path] else None
        return _node(self.totals, path, facts)

    def list_node(self, path: int) -> Node:
        """Make the row that opens the single ranges of a path with inner paths."""
        node = self.path_node(path)
        number, name, depth = len(self.paths) + path, f"{node.count:,} single ranges", node.depth + 1
        return replace(
            node, id=number, kind=NodeKind.RANGES, name=name, depth=depth, child_count=node.count, variants=0
        )

    def range_nodes(self, indices: Sequence[int], depth: int) -> list[Node]:
        """Make the nodes of single ranges, with their recorded names."""
        rows, columns = np.array(indices, np.int64), self.ranges.columns
        order, counts = np.arange(len(rows), dtype=np.int32), np.ones(len(rows), np.int64)
        totals, _ = added_up(lambda name: columns[name][rows], order, counts)
        nodes = []
        for row, (index, name) in enumerate(zip(indices, self.ranges.full_names(indices), strict=True)):
            lane = self.ranges.lane_of(index)
            facts: _Facts = {"id": 2 * len(self.paths) + index, "kind": NodeKind.RANGE, "name": name, "depth": depth}
            facts |= {"rank": lane.rank, "role": lane.role, "thread": lane.thread, "index": index}
            nodes.append(_node(totals, row, facts))
        return nodes

    def median(self, path: int) -> float:
        """Return the median projected duration of a path's ranges, ns; NaN without launches."""
        if path not in self._medians:
            durations = self.ranges.columns["gpu_by_chain"][self.chains.range_positions(self.paths.chains_of(path))]
            durations = durations[durations >= 0]
            self._medians[path] = float(np.median(durations)) if len(durations) else np.nan
        return self._medians[path]

    def sorted_paths(self, above: int, order: Order) -> Ints:
        """Return the children of ``above`` (-1: the roots) in order; ranks are always by number."""
        paths = self.paths.children_of(above)
        rank_count = sum(group.kind is not NodeKind.THREAD for group in self.grouping.groups)  # they are first
        if not len(paths) or paths[0] < rank_count:
            return paths
        if order is Order.NAME:
            return np.array(sorted(paths.tolist(), key=self.name), np.int64)
        return paths[np.argsort(self._path_keys(paths, order), kind="stable")]

    def _path_keys(self, paths: Ints, order: Order) -> Ints | Floats:
        totals = self.totals
        if order is Order.TIME:
            return totals.first[paths]
        if order is Order.GPU_MEDIAN:
            return -np.array([self.median(path) for path in paths.tolist()])  # NaN sorts last
        if order is Order.AVERAGE:
            ended: Ints = np.maximum(totals.count[paths] - totals.open_count[paths], 1)
            return -(totals.total[paths] / ended.astype(np.float64))
        if order is Order.GPU:
            time = totals.gpu_total[paths] + totals.replayed[paths]
            return -np.where((totals.projected[paths] > 0) | (totals.replayed[paths] > 0), time, -1)
        if order is Order.OPS:
            return -np.where(totals.known[paths] > 0, totals.gpu_ops[paths], -1)
        if order is Order.SELF:
            return -np.where(totals.nested[paths] > 0, totals.self_total[paths], -1)
        return -(totals.count if order is Order.COUNT else totals.total)[paths]

    def sorted_ranges(self, path: int, order: Order) -> Ints:
        """Return a path's single ranges in order, by start if ``order`` does not apply to them."""
        key = (path, order)
        if key not in self._orders:
            while len(self._orders) >= _MAX_ORDERS:
                self._orders.pop(next(iter(self._orders)), None)
            ranges = self.ranges_of(path)
            keys = self._range_keys(ranges, order)
            self._orders[key] = ranges[np.lexsort((self.ranges.values("start", ranges), keys))]
        return self._orders[key]

    def _range_keys(self, ranges: Ints, order: Order) -> Ints:
        values = partial(self.ranges.values, rows=ranges)
        if order in (Order.TOTAL, Order.AVERAGE):
            return -values("length")
        if order is Order.SELF:
            return -np.where(values("flags") & PUSH_POP, values("self_time"), -1)
        if order is Order.OPS:
            return -values("op_count")
        if order in (Order.GPU, Order.GPU_MEDIAN):
            time = values("gpu_length") + values("replayed")
            return np.where((values("op_count") > 0) | (values("replayed") > 0), -time, 1)
        return values("start")

    def _owner(self, path: int) -> tuple[int | None, str | None, int | None]:
        grouping = self.grouping
        group = grouping.groups[path] if path < self.paths.groups else None
        lane = group.lane if group else self.ranges.lanes[int(self.chains.lane[self.paths.chains_of(path)[0]])]
        one_thread = group.kind is NodeKind.THREAD if group else grouping.one_thread
        rank, role = lane.rank if grouping.one_rank else None, lane.role if grouping.one_role else None
        return rank, role, lane.thread if one_thread else None


PAGE = 500


@dataclass(frozen=True, eq=False)
class NvtxTree:
    """The tree of ``ranges``; ``build`` makes it. An order is an `Order` or its value."""

    ranges: NvtxRanges
    by: TreeGrouping
    maker: NodeMaker

    @classmethod
    def build(
        cls, ranges: NvtxRanges, by: TreeGrouping | str = TreeGrouping.THREAD, *, fold: Folding | str = Folding.STEPS
    ) -> NvtxTree:
        """Group ``ranges`` by ``by`` and path. Raises ``ValueError`` if ``by`` or ``fold`` is unknown.

        Three or more names under one parent that differ only in numbers become one path with ``*``, as ``fold``
        decides.
        """
        by = TreeGrouping(by)
        grouping = group_ranges(ranges, by)
        group_parents = [group.parent for group in grouping.groups]
        chains = ranges.columns.chains
        paths = group_by_path(ranges.names, chains, group_parents, grouping.of_chain, fold=Folding(fold))
        return cls(ranges, by, NodeMaker(ranges, grouping, paths, add_up(chains, paths)))

    def __len__(self) -> int:
        return len(self.maker.paths)

    @property
    def has_open(self) -> bool:
        """Whether a range never ended."""
        return bool(self.maker.totals.open_count.any())

    @property
    def natural_order(self) -> Order:
        """GPU time if any range launched or captured GPU work, else CPU time."""
        return Order.GPU if self.maker.totals.projected.any() or self.has_replays else Order.TOTAL

    @property
    def has_replays(self) -> bool:
        """Whether operations of CUDA graphs were captured in a range."""
        return bool(self.maker.totals.replayed.any())

    def roots(self, order: Order | str = Order.TOTAL) -> list[Node]:
        """Return the outermost nodes: ranks if several, else threads if several, else paths."""
        return [self.maker.path_node(path) for path in self.maker.sorted_paths(NO_NODE, Order(order)).tolist()]

    def node(self, number: int) -> Node:
        """Return the node with an id. Raises ``IndexError`` if it is unknown."""
        size = len(self)
        if not 0 <= number < 2 * size + len(self.ranges):
            raise IndexError(f"this tree has no node {number}")
        if number < size:
            return self.maker.path_node(number)
        if number < 2 * size:
            return self.maker.list_node(number - size)
        index = number - 2 * size
        return self.maker.range_nodes([index], len(self._ids_above(number)))[0]

    def children(self, node: Node, offset: int = 0, limit: int = PAGE, order: Order | str = Order.TOTAL) -> list[Node]:
        """Return at most ``limit`` rows inside ``node`` from row ``offset`` on.

        A rank contains threads or paths; a path contains its inner paths, then one row that opens its single ranges. A
        path without inner paths contains its single ranges. A path of one range is that range. Ranks are always by
        number.
        """
        order, offset, stop = Order(order), max(offset, 0), min(offset + limit, node.child_count)
        if node.kind is NodeKind.RANGE or stop <= offset:
            return []
        path = node.id - len(self) if node.kind is NodeKind.RANGES else node.id
        inner_count = self.maker.inner_count(path)
        if node.kind is NodeKind.RANGES or not inner_count:
            shown = self.maker.sorted_ranges(path, order)[offset:stop]
            return self.maker.range_nodes(shown.tolist(), node.depth + 1)
        shown = self.maker.sorted_paths(path, order)[offset:stop]
        nodes = [self.maker.path_node(number) for number in shown.tolist()]
        return [*nodes, self.maker.list_node(path)] if stop > inner_count else nodes

    def ancestors(self, node: Node) -> tuple[int, ...]:
        """Return the ids from the root down to the parent of ``node``, which must be open to show it."""
        return tuple(reversed(self._ids_above(node.id)))

    def rows_around(self, shown: Mapping[int, int], numbers: Iterable[int]) -> list[int]:
        """Return each node's row, or its innermost ``shown`` ancestor's row (id to row); 0 without any.

        Visits each ancestor once, even if many nodes share it.
        """
        rows, results = dict(shown), []
        for number in numbers:
            passed, above = [], number
            while above not in rows and (parent := self._id_above(above)) is not None:
                passed.append(above)
                above = parent
            row = rows.setdefault(above, 0)
            rows.update(dict.fromkeys(passed, row))
            results.append(row)
        return results

    def path(self, node: Node) -> tuple[str, ...]:
        """Return the names from the root down to ``node``."""
        return (*[self.maker.name(number) for number in self.ancestors(node) if number < len(self)], node.name)

    def durations(self, node: Node) -> tuple[str, Ints, bool]:
        """Return the path's name, its ranges' durations by start, ns, and whether they are projected durations.

        They are if any range launched GPU work: only such ranges count then. A rank or thread has no durations.
        """
        size = len(self)
        path = node.id % size if node.id < 2 * size else self.maker.path_of_range(node.id - 2 * size)
        ranges = self.maker.ranges_of(path) if path >= self.maker.paths.groups else np.empty(0, np.int64)
        launched = ranges[self.ranges.values("op_count", ranges) > 0]
        counted = launched if len(launched) else ranges
        counted = counted[np.argsort(self.ranges.values("start", counted), kind="stable")]
        durations = self.ranges.values("gpu_length" if len(launched) else "length", counted)
        return self.maker.name(path), durations, len(launched) > 0

    def find_all(self, before: NvtxTree, numbers: Iterable[int]) -> set[int]:
        """Return the ids of nodes shared with ``before``: paths by names, ranges by rows.

        Visits each ancestor once, even if many nodes share it.
        """
        matches: dict[int, int | None] = {NO_NODE: NO_NODE}
        size, old_ids, new_ids = len(before), list(numbers), set()
        for number in (node % size for node in old_ids if node < 2 * size):
            passed = []
            while number not in matches:
                passed.append(number)
                number = int(before.maker.paths.parent[number])
            match = matches[number]
            for inner in reversed(passed):
                if match is not None:
                    name, children = before.maker.name(inner), self.maker.paths.children_of(match).tolist()
                    match = next((child for child in children if self.maker.name(child) == name), None)
                matches[inner] = match
        for number in old_ids:
            if number < 2 * size:
                path = matches[number % size]
                match = None if path is None else path + number // size * len(self)
            else:
                ranges, index = before.ranges, number - 2 * size
                match = self.number_of(ranges.lane_of(index).report, ranges.value("row", index))
            if match is not None:
                new_ids.add(match)
        return new_ids

    def number_of(self, report: int, row: int) -> int | None:
        """Return the id of a single range by its row of ``nvtx_ranges``; ``None`` if the tree lacks it."""
        ranges = self.ranges
        rows = np.flatnonzero(ranges.columns["row"] == row).tolist()
        index = next((index for index in rows if ranges.lane_of(index).report == report), None)
        if index is None:
            return None
        path = self.maker.path_of_range(index)
        return path if self.maker.is_single(path) else 2 * len(self) + index

    def sibling_index(self, number: int, order: Order) -> int:
        """Return the index of a node among its siblings in ``order``."""
        size, above = len(self), self._id_above(number)
        if number >= 2 * size and above is not None:
            path = above - size if above >= size else above
            return int(np.flatnonzero(self.maker.sorted_ranges(path, order) == number - 2 * size)[0])
        if number >= size and above is not None:
            return self.maker.inner_count(above)
        shown = self.maker.sorted_paths(NO_NODE if above is None else above, order)
        return int(np.flatnonzero(shown == number)[0])

    def search(self, name_filter: NameFilter, order: Order | str = Order.TOTAL) -> Iterator[int]:
        """Yield the ids of matching nodes from top to bottom in ``order``; `ancestors` lead to each.

        A path matches by its name or by any name folded into it: ``step 17`` finds ``step *``. Names lack PyTorch's
        suffix.
        """
        is_match = self._matches(name_filter)
        leads_to_match = with_ancestors(is_match, self.maker.paths.parent)
        order = Order(order)
        open_nodes = [iter(self._leading(NO_NODE, leads_to_match, order))]
        while open_nodes:
            number = next(open_nodes[-1], None)
            if number is None:
                open_nodes.pop()
                continue
            if is_match[number]:
                yield number
            open_nodes.append(iter(self._leading(number, leads_to_match, order)))

    def _matches(self, name_filter: NameFilter) -> Flags:
        """Return whether each rank, thread or path, or a range in it, has a matching name."""
        paths = self.maker.paths
        is_match = np.zeros(len(paths), bool)
        is_match[: paths.groups] = [name_filter.matches(self.maker.name(number)) for number in range(paths.groups)]
        labels = np.array([name_filter.matches(label) for label in paths.labels], bool)
        if len(labels):
            is_match[paths.groups :] |= labels[paths.label[paths.groups :]]
            is_match[paths.of_chain[labels[self.maker.chains.name]]] = True
        return is_match

    def _leading(self, number: int, leads_to_match: Flags, order: Order) -> list[int]:
        """Return a node's children that match or contain a match, in order."""
        if not leads_to_match[self.maker.paths.children_of(number)].any():
            return []
        shown = self.maker.sorted_paths(number, order)
        children: list[int] = shown[leads_to_match[shown]].tolist()
        return children

    def _ids_above(self, number: int) -> list[int]:
        ids, above = [], self._id_above(number)
        while above is not None:
            ids.append(above)
            above = self._id_above(above)
        return ids

    def _id_above(self, number: int) -> int | None:
        size, paths = len(self), self.maker.paths
        if number >= 2 * size:
            path = self.maker.path_of_range(number - 2 * size)
            return path + size if self.maker.inner_count(path) and not self.maker.is_single(path) else path
        if number >= size:
            return number - size
        above = int(paths.parent[number])
        return None if above == NO_NODE else above
