"""Ranges grouped by path: each chain of names, outermost first, becomes one node."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np

from nsystui.base.types import Ints, grouped
from nsystui.questions.nvtx.chains import Chains, Totals, rows_by_level
from nsystui.questions.nvtx.loading import SmallInts
from nsystui.questions.nvtx.ranges import NvtxRanges, RangeThread
from nsystui.questions.queries.time_window import report_at

FEWEST_VARIANTS = 3
"""The fewest names that fold, different only in numbers: ``fp16`` and ``fp32`` are two things."""

_MAX_APART = 256
"""The most numbered names that stay apart because they recur in every range around them: layers, not steps."""


class Folding(Enum):
    """Which numbered names under one parent share a row.

    With ``STEPS``, names whose numbers continue from one parent range to the next, like steps, share a row; names that
    recur in each parent range, like layers, are apart, and so are modules and operations (``layers.3``, ``fusion.7``).
    """

    STEPS = "steps"
    ALL = "all"
    NONE = "none"


_UUID = r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"
_NUMBERS = rf"{_UUID}|\b[0-9a-z]{{32,}}\b|0[xX][0-9a-fA-F]+|[0-9]+"
"""Pattern of a number, an address, or a hash, such as the key of a ``CompiledFxGraph``."""
_NUMBER = re.compile(_NUMBERS)
_PATH = re.compile(r"((?:[^\s./0-9]+[./])*[^\s./]*[0-9][^\s./]*[./])(\S+)")
"""A path of modules: up to the first part with a number, and the other parts."""
_COUNTED = ("layer", "block", "stage", "expert", "step", "batch", "iter", "epoch", "rank")
_AFTER = "|".join(f"(?<={word}{end})" for word in _COUNTED for end in ("", "_", "s_"))
_INDEX = re.compile(rf"(?:(?<![a-z0-9_])|{_AFTER})(?:{_NUMBERS})", re.IGNORECASE)
"""A number that counts, in the other parts of a path: ``w1`` and ``w2`` are different things."""
_MODULE = re.compile(r"(?<=[a-z_])(?<!step)(?<!iter)(?<!iteration)(?<!batch)(?<!epoch)\.\*", re.IGNORECASE)
"""Templates with a numbered module or operation: ``layers.*.mlp``, ``fusion.*``."""
_BATCH = re.compile(r"execute_context_\*|execute_new_\*|\* ctx reqs?, \*|step\[\w+ bs=\*")
"""Templates whose numbers are requests and tokens of a step (vLLM, TensorRT-LLM, SGLang)."""


def template(name: str) -> str:
    """Replace numbers by ``*``: ``layer_7`` becomes ``layer_*``, ``at 0x7f3a`` ``at *``, ``h.3.fc1`` ``h.*.fc1``."""
    path = _PATH.fullmatch(name)
    return _NUMBER.sub("*", name) if path is None else _NUMBER.sub("*", path[1]) + _INDEX.sub("*", path[2])


def numbered(names: Collection[str]) -> frozenset[str]:
    """Return the templates that `FEWEST_VARIANTS` or more names share, or two modules."""
    counts = Counter(template(name) for name in set(names))
    return frozenset(
        text for text, count in counts.items() if count >= (2 if _MODULE.search(text) else FEWEST_VARIANTS)
    )


@dataclass(frozen=True, eq=False)
class Templates:
    """``texts`` are the templates of k names with a number; ``of_name``, shape ``(k,)``, holds their index or -1."""

    texts: tuple[str, ...]
    of_name: Ints

    @classmethod
    def of(cls, names: Sequence[str]) -> Templates:
        """Find the templates of names."""
        texts: dict[str, int] = {}
        numbers = [texts.setdefault(template(name), len(texts)) if _NUMBER.search(name) else -1 for name in names]
        return cls(tuple(texts), np.array(numbers, np.int64))


class NodeKind(Enum):
    """The kind of a tree's node."""

    RANK = "rank"
    ROLE = "role"
    THREAD = "thread"
    PATH = "path"  # all ranges of one path
    RANGES = "ranges"  # the single ranges of a path that has paths inside, as one row to open
    RANGE = "range"  # a single range


class TreeGrouping(Enum):
    """The ranges that stay apart in the tree: of different threads, ranks or roles, or none."""

    THREAD = "rank-thread"
    RANK = "rank"
    ROLE = "role"
    ALL = "all"


@dataclass(frozen=True)
class PathGroup:
    """A rank, role or thread above paths. ``parent`` is the index of a thread's rank, or -1."""

    kind: NodeKind
    name: str
    parent: int
    lane: RangeThread


@dataclass(frozen=True, eq=False)
class Grouping:
    """``groups``, ranks before threads; ``of_chain``, shape ``(c,)``: the index of each chain's group, or -1.

    ``one_rank``, ``one_role``, ``one_thread``: whether all ranges of a path have the same rank, role or thread.
    """

    groups: tuple[PathGroup, ...]
    of_chain: Ints
    one_rank: bool
    one_role: bool
    one_thread: bool


def group_ranges(ranges: NvtxRanges, by: TreeGrouping) -> Grouping:
    """Group ``ranges`` by rank or role if there are several, and by thread if a rank has several threads."""
    processes = _lanes_by_process(ranges)
    groups: list[PathGroup] = []
    of_lane = np.full(len(ranges.lanes), -1, np.int64)
    above, by_role = processes, by is TreeGrouping.ROLE
    if by_role:
        lanes_by_role = grouped((ranges.lanes[number].role, number) for lanes in processes for number in lanes)
        above = [*lanes_by_role.values()]
    if by is not TreeGrouping.ALL and len(above) > 1:
        for lanes in above:
            of_lane[lanes] = len(groups)
            first = ranges.lanes[lanes[0]]
            name = f"rank {first.rank}"
            if by_role:
                name = first.role or "unknown role"
            elif first.rank is None:
                name = f"process {first.pid} of {report_at(ranges.session, first.report).name}"
            groups.append(PathGroup(NodeKind.ROLE if by_role else NodeKind.RANK, name, -1, first))
    if by is TreeGrouping.THREAD:
        for number in (number for lanes in processes if len(lanes) > 1 for number in lanes):
            lane = ranges.lanes[number]
            name = f"thread {lane.tid} {lane.name}".rstrip()
            groups.append(PathGroup(NodeKind.THREAD, name, int(of_lane[number]), lane))
            of_lane[number] = len(groups) - 1
    one_rank = by in (TreeGrouping.THREAD, TreeGrouping.RANK) or len(processes) <= 1
    one_thread = by is TreeGrouping.THREAD or (one_rank and all(len(lanes) == 1 for lanes in processes))
    return Grouping(tuple(groups), of_lane[ranges.columns.chains.lane], one_rank, by_role or one_rank, one_thread)


def _lanes_by_process(ranges: NvtxRanges) -> list[list[int]]:
    lanes_by_process: dict[tuple[int, int], list[int]] = {}
    for number in np.unique(ranges.columns.chains.lane).tolist():
        lane = ranges.lanes[number]
        lanes_by_process.setdefault((lane.report, lane.process), []).append(number)
    ranks = {first: ranges.lanes[first].rank for first, *_ in lanes_by_process.values()}
    return sorted(lanes_by_process.values(), key=lambda lanes: (ranks[lanes[0]] is None, ranks[lanes[0]] or 0))


NO_NODE = -1


@dataclass(frozen=True, eq=False)
class Paths:
    """m nodes, parents before children and siblings side by side; arrays have the shape ``(m,)``.

    The first ``groups`` nodes are the groups (ranks, threads) above the paths. ``parent``: -1 for a root. ``depth``:
    the number of nodes above. ``label``: index into ``labels``, -1 for a group. ``variants``: the number of numbered
    names that are folded into the node, 0 for a plain name. ``of_chain``, shape ``(c,)``: the node of each chain.
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
        """The first child and the number of children of node i at index ``i + 1``, of the roots at 0."""
        first, count = np.zeros(len(self) + 1, np.int32), np.zeros(len(self) + 1, np.int32)
        parents, firsts, counts = np.unique(self.parent, return_index=True, return_counts=True)
        first[parents + 1], count[parents + 1] = firsts, counts
        return first, count

    def children_of(self, node: int) -> Ints:
        """Return the children of ``node``, or the roots for ``NO_NODE``."""
        first, count = self.children
        return np.arange(first[node + 1], first[node + 1] + count[node + 1], dtype=np.int64)

    @cached_property
    def chains(self) -> tuple[Ints, Ints]:
        """The chains sorted by node, and the index of each node's first, with the number of chains at the end."""
        order = np.argsort(self.of_chain, kind="stable")
        return order, np.searchsorted(self.of_chain[order], np.arange(len(self) + 1))

    def chains_of(self, node: int) -> Ints:
        """Return the chains of a node, in their own order."""
        order, first = self.chains
        return order[first[node] : first[node + 1]]


def group_by_path(
    names: Sequence[str], chains: Chains, group_parents: Sequence[int], group: Ints, *, fold: Folding
) -> Paths:
    """Group chains by path; their names are indices into ``names``. ``group``, shape ``(c,)``: their groups, or -1.

    ``group_parents``: the group above each group or -1. Three or more names (or two modules) under one parent that
    differ only in their numbers are one node, as ``fold`` decides. One step per level: O(c log c), thousands of levels
    cost milliseconds.
    """
    templates = Templates.of(names) if fold is not Folding.NONE else Templates((), np.full(len(names), -1, np.int64))
    of_chain = np.empty(len(chains), np.int32)
    above_groups, zeros = np.array(group_parents, np.int64), np.zeros(len(group_parents), np.int64)
    levels = [_Level(above_groups, zeros - 1, zeros, np.empty(0, np.int64))]
    node_count = len(group_parents)
    ranges = chains.totals.count
    sizes = np.zeros(node_count, np.int64)  # number of ranges, 0 for groups
    for depth, rows in enumerate(rows_by_level(chains.level)):
        above = of_chain[chains.parent[rows]].astype(np.int64) if depth else group[rows]
        around = np.append(sizes, 0)[above] if fold is Folding.STEPS else None  # 0 without a path above
        level = _level_of(above, chains.name[rows], templates, ranges[rows], around)
        of_chain[rows] = level.node + node_count
        node_count += len(level.parent)
        sizes = np.concatenate([sizes, np.bincount(level.node, ranges[rows], len(level.parent)).astype(np.int64)])
        levels.append(level)
    parent, label, variants = (
        np.concatenate([getattr(level, key) for level in levels]).astype(np.int32)
        for key in ("parent", "label", "variants")
    )
    depths = _depths(parent, [len(level.parent) for level in levels])
    return Paths(len(group_parents), (*names, *templates.texts), parent, depths, label, variants, of_chain)


@dataclass(frozen=True, eq=False)
class _Level:
    """The nodes of one level, by parent; ``node`` holds the node of each chain."""

    parent: Ints
    label: Ints
    variants: Ints
    node: Ints


def _depths(parent: SmallInts, sizes: Sequence[int]) -> SmallInts:
    """Return the number of nodes above each node, level by level, groups first."""
    depth = np.zeros(len(parent), np.int32)
    start = 0
    for number, size in enumerate(sizes):
        nodes = slice(start, start + size)
        for _ in range(2 if number == 0 else 1):
            above = parent[nodes]
            depth[nodes] = np.where(above >= 0, depth[above] + 1, 0)
        start += size
    return depth


def _level_of(above: Ints, name: Ints, templates: Templates, ranges: Ints, around: Ints | None) -> _Level:
    """Make chains' nodes; ``ranges``: counts by chain, ``around``: counts of paths above (``None``: fold all)."""
    names, templated = len(templates.of_name), len(templates.texts)
    pairs, pair_of_row = np.unique((above + 1) * names + name, return_inverse=True)
    parent, name = pairs // names - 1, pairs % names
    # Pairs of parent and name are distinct: pairs with equal parent and template are its variants.
    template = templates.of_name[name]
    variant_keys = (parent + 1) * (templated + 1) + template + 1
    _, group, size = np.unique(variant_keys, return_inverse=True, return_counts=True)
    texts = (*templates.texts, "")  # the last for names without a template, -1
    is_module, is_batch = (
        np.array([bool(form.search(text)) for text in texts])[template] for form in (_MODULE, _BATCH)
    )
    is_folded = (template >= 0) & (size[group] >= np.where(is_module, 2, FEWEST_VARIANTS))
    if around is not None:
        # A name that recurs in half of the ranges around it, or twice on a thread, is a part of each, not a step.
        outer = np.zeros(len(pairs), np.int64)
        outer[pair_of_row] = around
        count, threads = (
            np.bincount(group, np.bincount(pair_of_row, weights, len(pairs)))[group] for weights in (ranges, None)
        )
        recurs = np.where(outer > 0, (outer > 1) & (2 * count >= outer * size[group]), count >= 2 * threads)
        is_folded &= is_batch | ~(is_module | (recurs & (size[group] <= _MAX_APART)))
    label = np.where(is_folded, names + template, name)
    _, first, node = np.unique((parent + 1) * (names + templated) + label, return_index=True, return_inverse=True)
    variants = np.where(is_folded, size[group], 0)[first]
    return _Level(parent[first], label[first], variants, node[pair_of_row])


def add_up(chains: Chains, paths: Paths) -> Totals:
    """Add up the totals of each path's chains, then of each group's paths. Exact: all in int64."""
    below = np.flatnonzero((paths.parent >= 0) & (paths.parent < paths.groups))
    levels = (below[below >= paths.groups], below[below < paths.groups])  # paths first, to complete their threads
    order, first = paths.chains

    def of_nodes(operation: np.ufunc, values: Ints, initial: int) -> Ints:
        result = np.full(len(paths), initial, np.int64)
        if len(order):
            # Every path has a chain, so no slice is empty.
            result[paths.groups :] = operation.reduceat(values[order], first[paths.groups : -1])
        for children in levels:
            operation.at(result, paths.parent[children], result[children])
        return result

    return chains.totals.added(of_nodes)
