"""The tree of NVTX ranges: ranks, threads, paths, single ranges; rows are made when a node is opened.

Everything is kept in numpy arrays over paths and ranges, so a path of a million ranges, or one that is thousands of
levels deep, opens as fast as any other. Nothing here recurses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsystui.base.selection import NameFilter
from nsystui.questions.nvtx.making import NodeMaker
from nsystui.questions.nvtx.node import Node, NodeKind, Order
from nsystui.questions.nvtx.paths import NO_NODE, Members, add_up, group_by_path
from nsystui.questions.nvtx.ranges import NvtxRanges, with_ancestors
from nsystui.questions.nvtx.scopes import By, group_ranges

PAGE = 500


@dataclass(frozen=True, eq=False)
class NvtxTree:
    """The tree over ``ranges``; ``build`` makes it. Orders can be given as `Order` or as its value."""

    ranges: NvtxRanges
    by: By
    maker: NodeMaker

    @classmethod
    def build(cls, ranges: NvtxRanges, by: By | str = By.THREAD, *, fold_numbers: bool = True) -> NvtxTree:
        """Groups ``ranges`` by ``by`` and path. Raises ``ValueError`` for an unknown ``by``.

        With ``fold_numbers`` the names under one parent that differ in their numbers only become one path with ``*``
        for the numbers, if they are three or more.
        """
        by = By(by)
        grouping = group_ranges(ranges, by)
        above = [group.parent for group in grouping.groups]
        paths = group_by_path(ranges, above, grouping.of_range, fold_numbers=fold_numbers)
        members = Members.of(paths)
        return cls(ranges, by, NodeMaker(ranges, grouping, paths, members, add_up(ranges, paths, members)))

    def __len__(self) -> int:
        """The number of ranks, threads and paths; single ranges do not count."""
        return len(self.maker.paths)

    def roots(self, order: Order | str = Order.TOTAL) -> list[Node]:
        """The outermost nodes: ranks if there are several, else threads if there are several, else paths."""
        return [self.maker.path_node(path) for path in self.maker.sorted_paths(NO_NODE, Order(order)).tolist()]

    def node(self, number: int) -> Node:
        """The node of an id. Raises ``IndexError`` where this tree has none."""
        size = len(self)
        if not 0 <= number < 2 * size + len(self.ranges):
            raise IndexError(f"this tree has no node {number}")
        if number < size:
            return self.maker.path_node(number)
        if number < 2 * size:
            return self.maker.list_node(number - size)
        index = number - 2 * size
        return self.maker.range_nodes([index], len(self._ids_above(number)))[0]

    def child_count(self, node: Node) -> int:
        """How many rows opening ``node`` shows."""
        return node.child_count

    def children(self, node: Node, offset: int = 0, limit: int = PAGE, order: Order | str = Order.TOTAL) -> list[Node]:
        """The rows inside ``node`` from ``offset`` on, at most ``limit``.

        A rank has its threads or its paths; a path has the paths inside it and then one row that opens its single
        ranges; a path with nothing inside has its single ranges. A path of one range is that range. Ranks always
        come by number.
        """
        order, offset, stop = Order(order), max(offset, 0), min(offset + limit, node.child_count)
        if node.kind is NodeKind.RANGE or stop <= offset:
            return []
        path = node.id - len(self) if node.kind is NodeKind.RANGES else node.id
        inside = self.maker.inside(path)
        if node.kind is NodeKind.RANGES or not inside:
            shown = self.maker.sorted_ranges(path, order)[offset:stop]
            return self.maker.range_nodes(shown.tolist(), node.depth + 1)
        shown = self.maker.sorted_paths(path, order)[offset:stop]
        nodes = [self.maker.path_node(number) for number in shown.tolist()]
        return [*nodes, self.maker.list_node(path)] if stop > inside else nodes

    def parent(self, node: Node) -> Node | None:
        """The node that shows ``node`` when opened; ``None`` for a root."""
        above = self._id_above(node.id)
        return None if above is None else self.node(above)

    def ancestors(self, node: Node) -> tuple[int, ...]:
        """The ids from the root down to the parent of ``node``: what to open so that it shows."""
        return tuple(reversed(self._ids_above(node.id)))

    def rows_around(self, shown: Mapping[int, int], numbers: Iterable[int]) -> list[int]:
        """The row of each node, or of the innermost one around it that is ``shown`` (id to row); 0 without any.

        Goes through every node around them once, however many of them share it.
        """
        rows, found = dict(shown), []
        for number in numbers:
            way, above = [], number
            while above not in rows and (further := self._id_above(above)) is not None:
                way.append(above)
                above = further
            row = rows.setdefault(above, 0)
            rows.update(dict.fromkeys(way, row))
            found.append(row)
        return found

    def path(self, node: Node) -> tuple[str, ...]:
        """The names from the root down to ``node``."""
        names = [self.maker.name(number) for number in self.ancestors(node) if number < len(self)]
        return (*names, node.name)

    def find_all(self, before: NvtxTree, numbers: Iterable[int]) -> set[int]:
        """The ranks, threads and paths with the names of some of another tree (their ids), where this tree has them.

        Looks for every node around them once, however many of them share it.
        """
        again: dict[int, int | None] = {NO_NODE: NO_NODE}
        paths = [number for number in numbers if number < len(before)]
        for number in paths:
            way = []
            while number not in again:
                way.append(number)
                number = int(before.maker.paths.parent[number])
            place = again[number]
            for inside in reversed(way):
                place = None if place is None else self._named(place, before.maker.name(inside))
                again[inside] = place
        return {place for place in map(again.get, paths) if place is not None}

    def _named(self, place: int, name: str) -> int | None:
        children: list[int] = self.maker.paths.children_of(place).tolist()
        return next((number for number in children if self.maker.name(number) == name), None)

    def search(self, wanted: NameFilter, order: Order | str = Order.TOTAL) -> Iterator[int]:
        """The ids of the matching nodes, from top to bottom as ``order`` shows them; `ancestors` lead to each.

        A path matches by its own name or by any of those folded into it: ``step 17`` finds ``step *``. Names are
        without PyTorch's suffix.
        """
        is_match = self._matches(wanted)
        leads = with_ancestors(is_match, self.maker.paths.parent)
        order = Order(order)
        open_nodes = [iter(self._leading(NO_NODE, leads, order))]
        while open_nodes:
            number = next(open_nodes[-1], None)
            if number is None:
                open_nodes.pop()
                continue
            if is_match[number]:
                yield number
            open_nodes.append(iter(self._leading(number, leads, order)))

    def _matches(self, wanted: NameFilter) -> NDArray[np.bool_]:
        """Which ranks, threads and paths have a matching name, or a range that has."""
        paths = self.maker.paths
        names = [self.maker.name(number) for number in range(paths.groups)]
        found = np.zeros(len(paths), bool)
        found[: paths.groups] = [wanted.matches(name) for name in names]
        labels = np.array([wanted.matches(label) for label in paths.labels], bool)
        if len(labels):
            found[paths.groups :] |= labels[paths.label[paths.groups :]]
            found[paths.of_range[labels[self.ranges.name]]] = True
        return found

    def _leading(self, number: int, leads: NDArray[np.bool_], order: Order) -> list[int]:
        """The children of a node that match or have a match inside, in order."""
        if not leads[self.maker.paths.children_of(number)].any():
            return []
        shown = self.maker.sorted_paths(number, order)
        found: list[int] = shown[leads[shown]].tolist()
        return found

    def _ids_above(self, number: int) -> list[int]:
        """The ids of the nodes around a node, innermost first."""
        found = []
        above = self._id_above(number)
        while above is not None:
            found.append(above)
            above = self._id_above(above)
        return found

    def _id_above(self, number: int) -> int | None:
        size, paths = len(self), self.maker.paths
        if number >= 2 * size:
            path = int(paths.of_range[number - 2 * size])
            return path + size if self.maker.inside(path) and not self.maker.is_single(path) else path
        if number >= size:
            return number - size
        above = int(paths.parent[number])
        return None if above == NO_NODE else above
