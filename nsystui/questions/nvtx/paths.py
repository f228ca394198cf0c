"""The ranges grouped by path: every chain of names from the outermost range inwards becomes one node."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nsystui.questions.nvtx.chains import Chains, Totals, rows_by_level
from nsystui.questions.nvtx.loading import Ints, SmallInts
from nsystui.questions.nvtx.ranges import NvtxRanges, RangeThread
from nsystui.questions.queries.time_window import report_at

FEWEST_VARIANTS = 3
"""The minimum number of different names that are folded as numbered: ``fp16`` and ``fp32`` are two things."""

_MOST_APART = 256
"""Numbered names that recur in every range around them are apart up to so many: layers, not training steps."""


class Folding(Enum):
    """Which numbered names under one parent are one row.

    With ``STEPS`` those whose numbers go on from one parent range to the next, as of steps; names that recur in every
    parent range, as of layers, are apart.
    """

    STEPS = "steps"
    ALL = "all"
    NONE = "none"


_NUMBER = re.compile(r"0[xX][0-9a-fA-F]+|[0-9]+")


def template(name: str) -> str:
    """Put ``*`` in place of each number: ``layer_7`` becomes ``layer_*``, ``at 0x7f3a`` becomes ``at *``."""
    return _NUMBER.sub("*", name)


def numbered(names: Collection[str]) -> frozenset[str]:
    """Return the templates that `FEWEST_VARIANTS` or more of the names share: those are one numbered name."""
    counts = Counter(template(name) for name in set(names))
    return frozenset(text for text, count in counts.items() if count >= FEWEST_VARIANTS)


@dataclass(frozen=True, eq=False)
class Templates:
    """``texts`` are the templates of k names that hold a number; ``of_name``, shape ``(k,)``, has their index or -1."""

    texts: tuple[str, ...]
    of_name: NDArray[np.int64]

    @classmethod
    def of(cls, names: Sequence[str]) -> Templates:
        """Find the templates of names."""
        texts: dict[str, int] = {}
        numbers = [texts.setdefault(template(name), len(texts)) if _NUMBER.search(name) else -1 for name in names]
        return cls(tuple(texts), np.array(numbers, np.int64))


class NodeKind(Enum):
    """The kind of a node of the tree."""

    RANK = "rank"
    THREAD = "thread"
    PATH = "path"  # all ranges of one path
    RANGES = "ranges"  # the single ranges of a path that has paths inside, as one row to open
    RANGE = "range"  # a single range


class TreeGrouping(Enum):
    """Which ranges stay apart in the tree: those of every thread, those of every rank, or none."""

    THREAD = "rank-thread"
    RANK = "rank"
    ALL = "all"


@dataclass(frozen=True)
class PathGroup:
    """A rank or thread that stands above paths. ``parent`` is the place of the rank above a thread, or -1."""

    kind: NodeKind
    name: str
    parent: int
    lane: RangeThread


@dataclass(frozen=True, eq=False)
class Grouping:
    """``groups``, ranks before threads; ``of_chain``, shape ``(c,)``: the place of each chain's group, -1 for none.

    ``one_rank``, ``one_thread``: whether the ranges of a path are always of one rank, of one thread.
    """

    groups: tuple[PathGroup, ...]
    of_chain: Ints
    one_rank: bool
    one_thread: bool


def group_ranges(ranges: NvtxRanges, by: TreeGrouping) -> Grouping:
    """Group ``ranges``: by ranks where they are of several processes, threads where a rank has several."""
    processes = _lanes_by_process(ranges)
    groups: list[PathGroup] = []
    of_lane = np.full(len(ranges.lanes), -1, np.int64)
    if by is not TreeGrouping.ALL and len(processes) > 1:
        for lanes in processes:
            of_lane[lanes] = len(groups)
            first = ranges.lanes[lanes[0]]
            name = f"rank {first.rank}"
            if first.rank is None:
                name = f"process {first.pid} of {report_at(ranges.session, first.report).name}"
            groups.append(PathGroup(NodeKind.RANK, name, -1, first))
    if by is TreeGrouping.THREAD:
        for number in (number for lanes in processes if len(lanes) > 1 for number in lanes):
            lane = ranges.lanes[number]
            name = f"thread {lane.tid} {lane.name}".rstrip()
            groups.append(PathGroup(NodeKind.THREAD, name, int(of_lane[number]), lane))
            of_lane[number] = len(groups) - 1
    one_rank = by is not TreeGrouping.ALL or len(processes) <= 1
    one_thread = by is TreeGrouping.THREAD or (one_rank and all(len(lanes) == 1 for lanes in processes))
    return Grouping(tuple(groups), of_lane[ranges.columns.chains.lane], one_rank, one_thread)


def _lanes_by_process(ranges: NvtxRanges) -> list[list[int]]:
    """The numbers of the lanes that have ranges, a list for each process, by rank; those without a rank are last."""
    found: dict[tuple[int, int], list[int]] = {}
    for number in np.unique(ranges.columns.chains.lane).tolist():
        lane = ranges.lanes[number]
        found.setdefault((lane.report, lane.process), []).append(number)

    def place(lanes: list[int]) -> tuple[bool, int]:
        rank = ranges.lanes[lanes[0]].rank
        return (rank is None, rank or 0)

    return sorted(found.values(), key=place)


NO_NODE = -1


@dataclass(frozen=True, eq=False)
class Paths:
    """m nodes, parents before children and the children of a node side by side; arrays have the shape ``(m,)``.

    The first ``groups`` nodes are the groups (ranks, threads) that stand above the paths. ``parent``: -1 for a root.
    ``depth``: the number of nodes above. ``label``: index into ``labels``, -1 for a group. ``variants``: how many
    numbered names are folded into the node, 0 for a plain name. ``of_chain``, shape ``(c,)``: the node of each chain.
    """

    groups: int
    labels: tuple[str, ...]
    parent: SmallInts
    depth: SmallInts
    label: SmallInts
    variants: SmallInts
    of_chain: SmallInts

    def __len__(self) -> int:
        return len(self.parent)

    @cached_property
    def children(self) -> tuple[SmallInts, SmallInts]:
        """For node i at ``i + 1``, and for the roots at 0: the first child, and how many there are."""
        first, count = np.zeros(len(self) + 1, np.int32), np.zeros(len(self) + 1, np.int32)
        parents, places, numbers = np.unique(self.parent, return_index=True, return_counts=True)
        first[parents + 1], count[parents + 1] = places, numbers
        return first, count

    def children_of(self, node: int) -> NDArray[np.int64]:
        """Return the nodes right below ``node``, or the roots for ``NO_NODE``."""
        first, count = self.children
        return np.arange(first[node + 1], first[node + 1] + count[node + 1], dtype=np.int64)


def group_by_path(
    names: Sequence[str], chains: Chains, group_parents: Sequence[int], group: Ints, *, fold: Folding
) -> Paths:
    """Groups chains, whose names are indices into ``names``, by path. ``group``, shape ``(c,)``: that of each, or -1.

    ``group_parents``: the group above each group or -1. Names under one parent that differ in their numbers only are
    one node, if they are three or more, as ``fold`` says. One step for each level of nesting: O(c log c), and
    thousands of levels cost milliseconds.
    """
    templates = Templates.of(names) if fold is not Folding.NONE else Templates((), np.full(len(names), -1, np.int64))
    of_chain = np.empty(len(chains), np.int32)
    above_groups, none = np.array(group_parents, np.int64), np.zeros(len(group_parents), np.int64)
    levels = [_Level(above_groups, none - 1, none, np.empty(0, np.int64))]
    made = len(group_parents)
    ranges = chains.totals.count
    held = np.zeros(made, np.int64)  # the ranges of each node of a path
    for depth, rows in enumerate(rows_by_level(chains.level)):
        above = of_chain[chains.parent[rows]].astype(np.int64) if depth else group[rows]
        around = np.append(held, 0)[above] if fold is Folding.STEPS else None  # 0 where no path is above
        level = _one_level(above, chains.name[rows], templates, ranges[rows], around)
        of_chain[rows] = level.node + made
        made += len(level.parent)
        held = np.concatenate([held, np.bincount(level.node, ranges[rows], len(level.parent)).astype(np.int64)])
        levels.append(level)
    parent, label, variants = (
        np.concatenate([getattr(level, key) for level in levels]).astype(np.int32)
        for key in ("parent", "label", "variants")
    )
    depths = _depths(parent, [len(level.parent) for level in levels])
    return Paths(len(group_parents), (*names, *templates.texts), parent, depths, label, variants, of_chain)


@dataclass(frozen=True, eq=False)
class _Level:
    """The nodes of one level, by parent, and (``node``) which of them each of its chains belongs to."""

    parent: Ints
    label: Ints
    variants: Ints
    node: Ints


def _depths(parent: SmallInts, sizes: Sequence[int]) -> SmallInts:
    """The number of nodes above each, level by level (the groups, first of all, may be ranks and threads)."""
    depth = np.zeros(len(parent), np.int32)
    start = 0
    for number, size in enumerate(sizes):
        here = slice(start, start + size)
        for _ in range(2 if number == 0 else 1):
            above = parent[here]
            depth[here] = np.where(above >= 0, depth[above] + 1, 0)
        start += size
    return depth


def _one_level(above: Ints, name: Ints, templates: Templates, ranges: Ints, around: Ints | None) -> _Level:
    """Make the nodes of chains of ``ranges``; ``around``: the ranges of the path above each, ``None`` to fold all."""
    names, templated = len(templates.of_name), len(templates.texts)
    pairs, pair_of_row = np.unique((above + 1) * names + name, return_inverse=True)
    parent, name = pairs // names - 1, pairs % names
    # Pairs of parent and name are distinct, so those that share a parent and a template are its variants.
    template = templates.of_name[name]
    alike = (parent + 1) * (templated + 1) + template + 1
    _, group, size = np.unique(alike, return_inverse=True, return_counts=True)
    is_folded = (template >= 0) & (size[group] >= FEWEST_VARIANTS)
    if around is not None:
        # A name that recurs in half of the ranges around it, or twice on a thread, is a part of each and no step.
        whole = np.zeros(len(pairs), np.int64)
        whole[pair_of_row] = around
        count, threads = (np.bincount(group, np.bincount(pair_of_row, of, len(pairs)))[group] for of in (ranges, None))
        recurs = np.where(whole > 0, (whole > 1) & (2 * count >= whole * size[group]), count >= 2 * threads)
        is_folded &= ~recurs | (size[group] > _MOST_APART)
    label = np.where(is_folded, names + template, name)
    _, first, node = np.unique((parent + 1) * (names + templated) + label, return_index=True, return_inverse=True)
    variants = np.where(is_folded, size[group], 0)[first]
    return _Level(parent[first], label[first], variants, node[pair_of_row])


@dataclass(frozen=True, eq=False)
class NodeChains:
    """The chains of each node: ``order[first[i]:first[i + 1]]`` are those of node i, in their own order."""

    order: Ints
    first: Ints

    @classmethod
    def of(cls, paths: Paths) -> NodeChains:
        """Sort the chains by their nodes."""
        order = np.argsort(paths.of_chain, kind="stable")
        return cls(order, np.searchsorted(paths.of_chain[order], np.arange(len(paths) + 1)))

    def __getitem__(self, node: int) -> Ints:
        return self.order[self.first[node] : self.first[node + 1]]


def add_up(chains: Chains, paths: Paths, members: NodeChains) -> Totals:
    """Add up the totals of every path, from those of its chains, then of every group. Exact: all in int64."""
    below = np.flatnonzero((paths.parent >= 0) & (paths.parent < paths.groups))
    levels = (below[below >= paths.groups], below[below < paths.groups])  # threads last: paths fill them

    def of_nodes(operation: np.ufunc, values: Ints, nothing: int) -> Ints:
        result = np.full(len(paths), nothing, np.int64)
        if len(members.order):
            # Every path has a chain, so no slice is empty.
            result[paths.groups :] = operation.reduceat(values[members.order], members.first[paths.groups : -1])
        for children in levels:
            operation.at(result, paths.parent[children], result[children])
        return result

    return chains.totals.added(of_nodes)
