"""The call tree of the CPU samples of a selection: from callers to callees, or from callees to callers.

See docs/numbers.md#cpu-samples. The trees of several reports become one: functions are alike where name and module are.
Every sample is counted once at each level; what is left out of an answer is said, and never added to something else.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from nsystui.base.answer import FILES_ONLY, Column, Row, TableAnswer, Unit
from nsystui.base.kernel_names import function_name
from nsystui.base.selection import Selection
from nsystui.questions.host.functions import (
    FULL_NAME,
    KERNEL_MODE,
    MODULE,
    NO_FUNCTION,
    PATH,
    CpuSamples,
    SampleGroup,
    chosen_threads,
    grouped,
    mode_of,
    samples_of_job,
    sampling_notes,
)
from nsystui.questions.host.stacks import Function, Numbers, StackTree
from nsystui.questions.job.job import OpenJob


@dataclass(frozen=True, eq=False)
class CallTree:
    """A tree of calls with the samples of each node: ``own`` at this place, ``total`` here and below; shapes ``(n,)``.

    In a tree from callees to callers a node's own samples are those whose stack ends (at its outermost caller) there.
    """

    tree: StackTree
    own: Numbers
    total: Numbers

    @property
    def samples(self) -> int:
        """How many samples there are."""
        return int(self.total[0]) if len(self.total) else 0

    @property
    def nodes(self) -> int:
        """How many nodes but the root have any samples."""
        return int(np.count_nonzero(self.total[1:]))

    def below(self, node: int) -> list[int]:
        """Return the children of a node that have samples, those with the most first; of the root, the first ones."""
        first, last = np.searchsorted(self.tree.parent, [node, node + 1])
        found = np.arange(max(first, 1), last)
        found = found[self.total[found] > 0]
        return [int(child) for child in found[np.lexsort((found, -self.total[found]))]]

    def hot_path(self) -> list[int]:
        """Follow the child with the most samples from the root on, as long as it has half of its parent's."""
        node, found = 0, []
        while below := self.below(node):
            if node and 2 * self.total[below[0]] < self.total[node]:
                break
            node = below[0]
            found.append(node)
        return found

    def walk(self, is_shown: Callable[[int, int], bool]) -> Iterator[tuple[int, int, bool]]:
        """Yield the nodes in the order of the tree, each with its level and whether it ``is_shown`` (node, level).

        Nothing below a node that is not shown follows.
        """
        waiting = [(node, 0) for node in reversed(self.below(0))]
        while waiting:
            node, level = waiting.pop()
            shown = is_shown(node, level)
            yield node, level, shown
            if shown:
                waiting += [(child, level + 1) for child in reversed(self.below(node))]

    def function(self, node: int) -> Function:
        """Return the function of a node."""
        return self.tree.functions[int(self.tree.function[node])]

    def above(self, node: int) -> list[int]:
        """Return the nodes of the callers of one, the outermost first."""
        callers = []
        while node := int(self.tree.parent[node]):
            callers.append(node)
        return callers[::-1]

    def find_all(self, before: CallTree, nodes: Iterable[int]) -> set[int]:
        """Find the nodes with the same functions and callers as some of another tree, where this tree has them."""
        again: dict[int, int | None] = {0: 0}
        for node in sorted(nodes):  # a parent has a lower number
            for old in (*before.above(node), node):
                if old not in again:
                    parent, function = again[int(before.tree.parent[old])], before.function(old)
                    children = [] if parent is None else self.below(parent)
                    again[old] = next((child for child in children if self.function(child) == function), None)
        return {place for place in map(again.get, nodes) if place is not None}


def call_tree(
    samples: CpuSamples, group: SampleGroup, bottom_up: bool = False, is_root: Callable[[str], bool] | None = None
) -> CallTree:
    """Build the tree of a group's samples. It begins at the functions whose full name ``is_root``, else at the ends.

    Of functions that match within each other the outermost counts.
    """
    return call_trees([(samples, group)], bottom_up, is_root)[0]


def call_trees(
    sides: Sequence[tuple[CpuSamples, SampleGroup]],
    bottom_up: bool = False,
    is_root: Callable[[str], bool] | None = None,
    alike: Callable[[Function], Function] = lambda one: one,
) -> list[CallTree]:
    """Build trees as `call_tree` does, of several sides with the same nodes: each has a node where any has it.

    Functions are the same that are ``alike``.
    """
    numbers: dict[Function, int] = {}
    parts = []
    for side, (samples, group) in enumerate(sides):
        for report, own in group.own.items():
            tree = samples.stacks[report].tree
            known = np.array([numbers.setdefault(alike(one), len(numbers)) for one in tree.functions], np.int64)
            parts.append((side, tree, known, own))
    none = numbers.setdefault(NO_FUNCTION, len(numbers))
    functions = tuple(numbers)
    wanted = None if is_root is None else np.array([is_root(one.name) for one in functions])
    found = [_paths(tree, known, own, none, wanted, bottom_up) for _, tree, known, own in parts]
    merged, places = _grown(functions, [path for path, *_ in found], [length for _, length, _ in found])
    counted = np.zeros((len(sides), len(merged)), np.int64)
    for (side, *_), place, (_, _, weight) in zip(parts, places, found, strict=True):
        np.add.at(counted[side], place, weight)
    return [CallTree(merged, own, merged.totals(own)) for own in counted]


def _paths(
    tree: StackTree, known: Numbers, own: Numbers, none: int, wanted: Numbers | None, bottom_up: bool
) -> tuple[Numbers, Numbers, Numbers]:
    """The stacks that have samples as rows of functions (-1 behind their ends), their lengths, and their samples."""
    nodes = np.flatnonzero(own)
    weight = own[nodes]
    columns, above = [], nodes
    while (above > 0).any():
        columns.append(np.where(above > 0, known[tree.function[above]], -1))
        above = tree.parent[above]
    if not columns:
        columns = [np.full(len(nodes), -1)]
    # From the function that ran to its outermost caller.
    path = np.stack(columns, axis=1)
    path[nodes == 0, 0] = none
    length = (path >= 0).sum(axis=1)
    place = np.arange(path.shape[1])
    if wanted is not None:
        is_match = (path >= 0) & wanted[np.maximum(path, 0)]
        last = np.where(is_match, place, -1).max(axis=1, initial=-1)
        chosen = last >= 0
        path, length, weight, last = path[chosen], length[chosen], weight[chosen], last[chosen]
        if bottom_up:
            # The match is the first, its callers follow.
            index = place[None, :] + last[:, None]
            inside = index < path.shape[1]
            path = np.where(inside, np.take_along_axis(path, np.minimum(index, path.shape[1] - 1), axis=1), -1)
            length = length - last
        else:
            length = last + 1
    if not bottom_up:
        index = length[:, None] - 1 - place[None, :]
        path = np.where(index >= 0, np.take_along_axis(path, np.maximum(index, 0), axis=1), -1)
    return path, length, weight


def _grown(
    functions: tuple[Function, ...], paths: Sequence[Numbers], lengths: Sequence[Numbers]
) -> tuple[StackTree, list[Numbers]]:
    """The tree over all paths, a level at a time, and the node of each path."""
    deepest = max((int(length.max(initial=0)) for length in lengths), default=0)
    nodes = [np.zeros(len(length), np.int64) for length in lengths]
    parents, called, levels = [np.zeros(1, np.int64)], [np.full(1, -1, np.int64)], [0]
    made = 1
    for level in range(deepest):
        rows = [np.flatnonzero(length > level) for length in lengths]
        # Where no path is as deep, none has such a column.
        called_here = [path[row, min(level, path.shape[1] - 1)] for path, row in zip(paths, rows, strict=True)]
        keys = [nodes[number][row] * len(functions) + called_here[number] for number, row in enumerate(rows)]
        known, inverse = np.unique(np.concatenate(keys), return_inverse=True)
        places = np.split(made + inverse, np.cumsum([len(row) for row in rows])[:-1])
        for number, row in enumerate(rows):
            nodes[number][row] = places[number]
        parents.append(known // len(functions))
        called.append(known % len(functions))
        levels.append(made)
        made += len(known)
    return StackTree(np.concatenate(parents), np.concatenate(called), np.array(levels), functions), nodes


def tree_of(
    job: OpenJob, selection: Selection, bottom_up: bool = False, thread: str | None = None, function: str | None = None
) -> tuple[CpuSamples, CallTree]:
    """Read the samples of a selection and build their tree.

    It begins at the functions with the full name ``function``, else at those that pass the name filter.
    """
    samples = samples_of_job(job, selection)
    groups = grouped(samples, chosen_threads(job, samples, thread), "all")
    is_root = None if selection.name is None else selection.name.matches
    if function is not None:
        is_root = partial(operator.eq, function)
    return samples, call_tree(samples, groups[0] if groups else SampleGroup((), {}), bottom_up, is_root)


HOT = Column("hot", header="Hot", label="hot", importance=1)
CALL = Column("call", header="Call", label="call")
COLUMNS = (
    Column("total", header="Total Samples", label="total", unit=Unit.COUNT),
    Column("total_percent", header="Total (%)", label="total %", unit=Unit.PERCENT, decimals=2, has_bar=True),
    Column("own", header="Self Samples", label="self", unit=Unit.COUNT, importance=1),
    Column("own_percent", header="Self (%)", label="self %", unit=Unit.PERCENT, decimals=2, importance=2),
    HOT,
    CALL,
    MODULE,
    replace(KERNEL_MODE, importance=3),
    Column("level", header="Level", label="level", unit=Unit.NUMBER, importance=FILES_ONLY),
    Column("node", header="Node", label="node", unit=Unit.NUMBER, importance=FILES_ONLY),
    Column("parent", header="Parent", label="parent", unit=Unit.NUMBER, importance=FILES_ONLY),
    FULL_NAME,
    PATH,
)


def call_tree_table(
    job: OpenJob,
    selection: Selection,
    bottom_up: bool = False,
    thread: str | None = None,
    depth: int | None = None,
    least: float = 0.0,
    hot_only: bool = False,
) -> TableAnswer:
    """List the nodes in the order of the tree. ``least``: percent of the samples below which a node is left out."""
    samples, tree = tree_of(job, selection, bottom_up, thread)
    return nodes_table(tree, sampling_notes(job.session, samples), depth, least, hot_only)


LEAST = 0.5
"""Percent of the samples below which the command leaves a node out, unless told otherwise."""


def nodes_table(
    tree: CallTree, notes: tuple[str, ...], depth: int | None = None, least: float = LEAST, hot_only: bool = False
) -> TableAnswer:
    """List the nodes of a tree in its order."""
    whole, is_hot = tree.samples, set(tree.hot_path())
    rows: list[Row] = []
    left_out = 0

    def is_shown(node: int, level: int) -> bool:
        is_deep = depth is not None and level >= depth
        return not (is_deep or (hot_only and node not in is_hot) or 100.0 * tree.total[node] < least * whole)

    for node, level, shown in tree.walk(is_shown):
        if not shown:
            left_out += 1
            continue
        function, total, own = tree.function(node), int(tree.total[node]), int(tree.own[node])
        rows.append(
            (
                *(total, 100.0 * total / whole, own, 100.0 * own / whole),
                "◂" if node in is_hot else "",
                "  " * level + function_name(function.name),
                *(function.library, mode_of(function), level, node, int(tree.tree.parent[node])),
                *(function.name, function.module),
            )
        )
    if left_out:
        notes = (*notes, f"{left_out:,} branches are left out (--least, --depth, --hot)")
    return TableAnswer("calltree", COLUMNS, rows, len(rows) + left_out, notes)
