"""The call tree of the selected CPU samples, from callers to callees, or reversed (docs/numbers.md#cpu-samples).

Trees of several reports are merged: functions are equal if name and module are. Every sample counts once per level;
notes report omitted branches, which are never added to other branches.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from nsystui.base.answer import FILES_ONLY, Column, Row, TableAnswer, Unit
from nsystui.base.kernel_names import function_name
from nsystui.base.selection import Selection
from nsystui.base.text import counted
from nsystui.base.types import Ints
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
from nsystui.questions.host.stacks import Function, StackTree, grown
from nsystui.questions.job.job import OpenJob


@dataclass(frozen=True, eq=False)
class CallTree:
    """A tree of calls with samples by node: ``self_samples`` at the node, ``total`` at or below it; shapes ``(n,)``.

    In a tree from callees to callers, self samples have the node as their outermost caller.
    """

    tree: StackTree
    self_samples: Ints
    total: Ints

    @property
    def samples(self) -> int:
        """The number of samples."""
        return int(self.total[0]) if len(self.total) else 0

    @property
    def nodes(self) -> int:
        """The number of sampled nodes, without the root."""
        return int(np.count_nonzero(self.total[1:]))

    def below(self, node: int) -> list[int]:
        """Return the sampled children of a node, most samples first."""
        first, last = np.searchsorted(self.tree.parent, [node, node + 1])
        children = np.arange(max(first, 1), last)
        children = children[self.total[children] > 0]
        return [int(child) for child in children[np.lexsort((children, -self.total[children]))]]

    def hot_path(self) -> list[int]:
        """Follow the largest child from the root, as long as it has half of its parent's samples."""
        node, path = 0, []
        while below := self.below(node):
            if node and 2 * self.total[below[0]] < self.total[node]:
                break
            node = below[0]
            path.append(node)
        return path

    def walk(self, is_shown: Callable[[int, int], bool]) -> Iterator[tuple[int, int, bool]]:
        """Yield nodes in tree order with level and ``is_shown(node, level)``; skip all below hidden nodes."""
        waiting = [(node, 0) for node in reversed(self.below(0))]
        while waiting:
            node, level = waiting.pop()
            is_visible = is_shown(node, level)
            yield node, level, is_visible
            if is_visible:
                waiting += [(child, level + 1) for child in reversed(self.below(node))]

    def function(self, node: int) -> Function:
        """Return the function of a node."""
        return self.tree.functions[int(self.tree.function[node])]

    def above(self, node: int) -> list[int]:
        """Return a node's callers, outermost first."""
        callers = []
        while node := int(self.tree.parent[node]):
            callers.append(node)
        return callers[::-1]

    def find_all(self, before: CallTree, nodes: Iterable[int]) -> set[int]:
        """Return this tree's nodes with the same functions and callers as ``nodes`` of another tree."""
        node_of: dict[int, int | None] = {0: 0}
        for node in sorted(nodes):  # a parent has a lower number
            for other_node in (*before.above(node), node):
                if other_node not in node_of:
                    parent, function = node_of[int(before.tree.parent[other_node])], before.function(other_node)
                    children = [] if parent is None else self.below(parent)
                    node_of[other_node] = next((child for child in children if self.function(child) == function), None)
        return {match for match in map(node_of.get, nodes) if match is not None}


_NO_PATHS = np.empty((0, 0), np.int64), np.empty(0, np.int64), np.empty(0, np.int64)


def call_tree(
    samples: CpuSamples, group: SampleGroup, bottom_up: bool = False, is_root: Callable[[str], bool] | None = None
) -> CallTree:
    """Build the tree of a group's samples, from functions whose full name ``is_root``, else from the ends of stacks.

    If matching functions call each other, the tree begins at the outermost.
    """
    code_of: dict[Function, int] = {}
    parts = []
    for report, node_counts in group.node_counts.items():
        tree = samples.stacks[report].tree
        codes = np.array([code_of.setdefault(called, len(code_of)) for called in tree.functions], np.int64)
        parts.append((tree, codes, node_counts))
    unknown = code_of.setdefault(NO_FUNCTION, len(code_of))
    functions = tuple(code_of)
    is_start = None if is_root is None else np.array([is_root(function.name) for function in functions])
    paths = [_NO_PATHS, *(_paths(*part, unknown, is_start, bottom_up) for part in parts)]
    depth = max(path.shape[1] for path, _, _ in paths)
    path = np.concatenate([np.pad(path, ((0, 0), (0, depth - path.shape[1]))) for path, _, _ in paths])
    length, weight = (np.concatenate([part[index] for part in paths]) for index in (1, 2))
    rows_by_level = (np.flatnonzero(length > level) for level in range(depth))
    levels = ((rows, path[rows, level]) for level, rows in enumerate(rows_by_level) if len(rows))
    nodes, merged = grown(levels, len(length), functions)
    counts = np.zeros(len(merged), np.int64)
    np.add.at(counts, nodes, weight)
    return CallTree(merged, counts, merged.totals(counts))


def _paths(
    tree: StackTree, codes: Ints, counts: Ints, unknown: int, is_start: Ints | None, bottom_up: bool
) -> tuple[Ints, Ints, Ints]:
    """Return sampled stacks as rows of function codes (-1 after the end), their lengths, and sample counts."""
    nodes = np.flatnonzero(counts)
    weight = counts[nodes]
    columns, above = [], nodes
    while (above > 0).any():
        columns.append(np.where(above > 0, codes[tree.function[above]], -1))
        above = tree.parent[above]
    if not columns:
        columns = [np.full(len(nodes), -1)]
    # From the function that ran to its outermost caller.
    path = np.stack(columns, axis=1)
    path[nodes == 0, 0] = unknown
    length = (path >= 0).sum(axis=1)
    position = np.arange(path.shape[1])
    if is_start is not None:
        is_match = (path >= 0) & is_start[np.maximum(path, 0)]
        outermost = np.where(is_match, position, -1).max(axis=1, initial=-1)
        has_start = outermost >= 0
        path, length, weight, outermost = path[has_start], length[has_start], weight[has_start], outermost[has_start]
        if bottom_up:
            # The match is first; its callers follow.
            index = position[None, :] + outermost[:, None]
            inside = index < path.shape[1]
            path = np.where(inside, np.take_along_axis(path, np.minimum(index, path.shape[1] - 1), axis=1), -1)
            length = length - outermost
        else:
            length = outermost + 1
    if not bottom_up:
        index = length[:, None] - 1 - position[None, :]
        path = np.where(index >= 0, np.take_along_axis(path, np.maximum(index, 0), axis=1), -1)
    return path, length, weight


def tree_of(
    job: OpenJob, selection: Selection, bottom_up: bool = False, thread: str | None = None, function: str | None = None
) -> tuple[CpuSamples, CallTree]:
    """Build the tree of selected samples from ``function`` (full name), else from functions that pass the filter."""
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
    Column("own_percent", header="Self (%)", label="self %", unit=Unit.PERCENT, decimals=2, importance=2), HOT, CALL,
    MODULE, replace(KERNEL_MODE, importance=3),
    Column("level", header="Level", label="level", unit=Unit.NUMBER, importance=FILES_ONLY),
    Column("node", header="Node", label="node", unit=Unit.NUMBER, importance=FILES_ONLY),
    Column("parent", header="Parent", label="parent", unit=Unit.NUMBER, importance=FILES_ONLY), FULL_NAME, PATH,
)  # fmt: skip


def call_tree_table(
    job: OpenJob, selection: Selection, bottom_up: bool = False, thread: str | None = None, depth: int | None = None,
    least: float = 0.0, hot_only: bool = False,
) -> TableAnswer:  # fmt: skip
    """List the nodes with at least ``least`` percent of the samples in tree order."""
    samples, tree = tree_of(job, selection, bottom_up, thread)
    return nodes_table(tree, sampling_notes(job.session, samples), depth, least, hot_only)


LEAST = 0.5
"""The command's default for the smallest share of samples of a node, percent."""


def nodes_table(
    tree: CallTree, notes: tuple[str, ...], depth: int | None = None, least: float = LEAST, hot_only: bool = False
) -> TableAnswer:
    """List a tree's nodes in its order."""
    samples, is_hot = tree.samples, set(tree.hot_path())
    rows: list[Row] = []
    hidden = 0

    def is_shown(node: int, level: int) -> bool:
        is_deep = depth is not None and level >= depth
        return not (is_deep or (hot_only and node not in is_hot) or 100.0 * tree.total[node] < least * samples)

    for node, level, is_visible in tree.walk(is_shown):
        if not is_visible:
            hidden += 1
            continue
        function, total, self_samples = tree.function(node), int(tree.total[node]), int(tree.self_samples[node])
        shares = (total, 100.0 * total / samples, self_samples, 100.0 * self_samples / samples)
        call = ("◂" if node in is_hot else "", "  " * level + function_name(function.name), function.library)
        position = (mode_of(function), level, node, int(tree.tree.parent[node]))
        rows.append((*shares, *call, *position, function.name, function.module))
    if hidden:
        notes = (*notes, f"{counted(hidden, 'branch', 'are')} hidden by --least, --depth or --hot")
    return TableAnswer("calltree", COLUMNS, rows, len(rows) + hidden, notes)
