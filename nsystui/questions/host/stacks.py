"""Interned call stacks: for each report, a tree of the functions that call each other, and each chain's node.

A stack is a node: the function that ran, called by its parent, and so on to the root: node 0, not a function.
Unresolved addresses are folded by module; consecutive folded frames of a module are one frame. A damaged chain (a depth
is missing or repeated) keeps its other frames, without gaps: every chain has exactly one node, so sums over functions
are right.

Also the files that OS runtime calls access, if recorded (docs/numbers.md#gaps).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from os.path import commonpath
from typing import Any

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import Unit
from nsystui.base.selection import Selection
from nsystui.base.types import Array, Flags, Ints, grouped
from nsystui.base.units import format_value
from nsystui.questions.algebra.intervals import Intervals
from nsystui.questions.host.segments import NO_SEGMENTS, Segments, Thread, by_thread, outermost
from nsystui.questions.queries.conditions import job_end, job_start, of_reports, where
from nsystui.questions.queries.derived import of_each_report
from nsystui.store import tables
from nsystui.store.remember import Arrays, json_array, json_of
from nsystui.store.report import Report
from nsystui.store.session import Session

SAMPLE, OS_CALL, CUDA_CALL, PYTHON = KINDS = ("sample", "os", "cuda", "python")
"""The origins of chains: CPU samples, OS runtime calls, CUDA calls and Python samples are numbered separately."""
NO_STACK = 0
"""The node of an event without a recorded stack."""

_MAX_DEPTH = 1024
"""The maximum number of frames, counted from the function that ran; nsys records far fewer."""
_ADDRESS = re.compile(r"(0x[0-9a-fA-F]+)?$")


@dataclass(frozen=True)
class Function:
    """A function; if ``is_folded``, all unresolved functions of its module."""

    name: str
    module: str
    is_kernel: bool
    is_folded: bool

    @property
    def library(self) -> str:
        """The file name of the module."""
        return self.module.rpartition("/")[2] or self.module


@dataclass(frozen=True, eq=False)
class StackTree:
    """A tree of n nodes: ``parent``, and ``function``, an index into ``functions``, shapes ``(n,)``.

    Node 0 is the root: its parent is itself, its function -1. Nodes are numbered by level (``levels`` holds the first
    node of each) and by parent: parents precede children, and ``parent`` ascends.
    """

    parent: Ints
    function: Ints
    levels: Ints
    functions: tuple[Function, ...]

    def __len__(self) -> int:
        return len(self.parent)

    def totals(self, counts: Ints) -> Ints:
        """Sum each node and its descendants; ``counts`` has shape ``(n,)``, or ``(n, k)`` for k sums at once."""
        totals = counts.copy()
        edges = [*self.levels.tolist(), len(self)]
        for first, last in reversed(list(pairwise(edges[1:]))):
            np.add.at(totals, self.parent[first:last], totals[first:last])
        return totals

    @cached_property
    def is_outermost(self) -> Flags:
        """Whether no caller is the same function, because totals count recursion at the outermost call."""
        is_outermost = np.ones(len(self), np.bool_)
        is_outermost[:1] = False
        nodes = np.arange(1, len(self))
        above = self.parent[nodes]
        while len(nodes):
            is_same = self.function[above] == self.function[nodes]
            is_outermost[nodes[is_same]] = False
            is_open = (above > 0) & ~is_same
            nodes, above = nodes[is_open], self.parent[above[is_open]]
        return is_outermost

    def path(self, node: int) -> list[int]:
        """Return the indices of the functions from the outermost caller to ``node``."""
        functions = []
        while node:
            functions.append(int(self.function[node]))
            node = int(self.parent[node])
        return functions[::-1]

    def outside(self, node: int, libraries: re.Pattern[str]) -> int:
        """Return the node or its innermost caller outside of modules (file names) that match ``libraries``."""
        while node and libraries.fullmatch(self.functions[int(self.function[node])].library):
            node = int(self.parent[node])
        return node

    def words(self, node: int, limit: int = _MAX_DEPTH) -> str:
        """Return ``inner ‹ caller ‹ …``: the function and its callers, at most ``limit`` functions."""
        from nsystui.base.kernel_names import function_name

        called = [function_name(self.functions[function].name) for function in self.path(node)[::-1]]
        return " ‹ ".join(called[:limit] + ["…"] * (len(called) > limit))


LIBRARY = re.compile(
    r"(?:libc|ld|libpthread|libm|libstdc\+\+)[-.].*|lib(?:ToolsInjection|cupti|nvperf)\w*\.so.*|\[.*\]"
)
"""Modules whose functions only serve their caller: libc, the profiler, the kernel."""


def program_function(tree: StackTree | None, node: int, libraries: re.Pattern[str] = LIBRARY) -> str:
    """Name the innermost resolved function of the program, excluding the kernel and ``libraries``."""
    if tree is None or not node:
        return ""
    innermost = tree.functions[int(tree.function[node])]
    while node:
        frame = tree.functions[int(tree.function[node])]
        if not (frame.is_folded or frame.is_kernel or libraries.fullmatch(frame.library) or frame.name.startswith("[")):
            return _in_file(frame)
        node = int(tree.parent[node])
    return _in_file(innermost)


def _in_file(function: Function) -> str:
    """Return a function's name, for Python with its file, because many functions share a name."""
    from nsystui.base.kernel_names import function_name

    name = function_name(function.name)
    return f"{name} ({function.library})" if function.library.endswith(".py") else name


@dataclass(frozen=True, eq=False)
class Stacks:
    """The stacks of one report: the tree, and each kind's ascending chains with their nodes.

    ``damaged``: the number of chains with missing or repeated depths, or too many frames.
    """

    tree: StackTree
    chains: Mapping[str, tuple[Ints, Ints]]
    damaged: int

    def nodes(self, kind: str, chains: Any) -> Ints:
        """Return each chain's node, or `NO_STACK` if it has no frames or is masked."""
        stored, nodes = self.chains[kind]
        requested = np.ma.filled(chains, -1).astype(np.int64)
        if not len(stored):
            return np.zeros(len(requested), np.int64)
        index = np.minimum(np.searchsorted(stored, requested), len(stored) - 1)
        return np.where(stored[index] == requested, nodes[index], NO_STACK)


def stacks_of(session: Session, reports: Sequence[Report]) -> dict[int, Stacks]:
    """Return the stacks of each report, by index; cached with its columns."""
    results = of_each_report(
        session, reports, "stacks", _compute, table=tables.stack_frames, activity="call stacks", in_memory=True
    )
    stacks = {}
    for index, saved in results.items():
        rows = json_of(saved["names"])
        functions = tuple(Function(name, module, bool(kernel), bool(folded)) for name, module, kernel, folded in rows)
        parent, function, levels = (saved[key].astype(np.int64, copy=False) for key in ("parent", "function", "levels"))
        chains = {kind: (saved[f"{kind}.chains"], saved[f"{kind}.nodes"]) for kind in KINDS}
        stacks[index] = Stacks(StackTree(parent, function, levels, functions), chains, int(saved["damaged"][0]))
    return stacks


def os_callers(session: Session, chains_of: Mapping[Thread, Ints]) -> dict[int, dict[int, str]]:
    """Return the functions that made OS runtime calls, by report and chain."""
    by_report = grouped((report, chains) for (report, _), chains in chains_of.items())
    callers: dict[int, dict[int, str]] = {}
    for index, stacks in stacks_of(session, [item for item in session.reports if item.index in by_report]).items():
        unique_chains = np.unique(np.concatenate(by_report[index]))
        nodes = zip(unique_chains.tolist(), stacks.nodes(OS_CALL, unique_chains).tolist(), strict=True)
        callers[index] = {chain: program_function(stacks.tree, node) for chain, node in nodes if node}
    return callers


def _compute(session: Session, reports: list[Report]) -> dict[int, Arrays]:
    indices = [report.index for report in reports if report.has(tables.stack_frames)]
    text = tables.stack_names.c
    is_named = of_reports(text.report, indices), text.name.is_not(None)
    query = sa.select(text.report, text.number, text.name).where(*is_named)
    names: dict[int, dict[int, str]] = {report.index: {} for report in reports}
    for report, number, name in session.rows(query.distinct()) if indices else ():
        names[report][int(number)] = str(name)
    with_names = [index for index in indices if names[index]]
    chains = {kind: _chains(session, with_names, kind) for kind in KINDS} if with_names else {}
    empty = dict.fromkeys(KINDS, (_NO_NUMBERS, _NO_NUMBERS, _NO_FRAMES))
    return {
        index: _stacks(texts, {kind: chains[kind][index] for kind in KINDS} if texts else empty)
        for index, texts in names.items()
    }


def _stacks(names: Mapping[int, str], chains_of_kind: Mapping[str, _Chains]) -> Arrays:
    chains: list[tuple[Ints, Ints]] = []
    parts: list[Arrays] = []
    stacks = 0
    for kind in KINDS:
        chain, stack, frames = chains_of_kind[kind]
        if len(frames.get("stack", _NO_NUMBERS)):
            stack_numbers, index = np.unique(frames["stack"], return_inverse=True)
            # Damaged exports have frames without a chain, and chains without frames.
            has_frames = np.isin(stack, stack_numbers)
            chain, stack = chain[has_frames], stacks + np.searchsorted(stack_numbers, stack[has_frames])
            parts.append({**frames, "stack": stacks + index.reshape(-1)})
            stacks += len(stack_numbers)
        else:
            chain, stack = _NO_NUMBERS, _NO_NUMBERS
        chains.append((chain, stack))
    if not parts:
        nothing = {f"{kind}.{suffix}": _NO_NUMBERS for kind in KINDS for suffix in ("chains", "nodes")}
        root = {"parent": np.zeros(1, np.int64), "function": np.full(1, -1), "levels": np.zeros(1, np.int64)}
        return {**nothing, **root, "names": json_array([]), "damaged": np.zeros(1, np.int64)}
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    functions, function = _functions(columns, names)
    nodes, is_damaged, tree = _tree(columns["stack"], columns["depth"], function, functions)
    arrays: dict[str, Array] = {"parent": tree.parent, "function": tree.function, "levels": tree.levels}
    for kind, (chain, stack) in zip(KINDS, chains, strict=True):
        arrays[f"{kind}.chains"], arrays[f"{kind}.nodes"] = chain, nodes[stack]
    arrays["damaged"] = np.array([sum(int(is_damaged[stack].sum()) for _, stack in chains)])
    arrays["names"] = json_array([[item.name, item.module, item.is_kernel, item.is_folded] for item in functions])
    return arrays


_NO_NUMBERS = np.empty(0, np.int64)
_NO_FRAMES: Arrays = {}
_FRAME_COLUMNS = ("function", "module", "is_kernel")


_Chains = tuple[Ints, Ints, "Arrays"]
"""Distinct chains in order, their stacks, and the stacks' frames."""


def _chains(session: Session, reports: Sequence[int], kind: str) -> dict[int, _Chains]:
    """Read one kind of chains of all reports at once: each query has a cost per open report."""
    frame, chain = tables.stack_frames.c, tables.call_chains.c
    frame_values = [sa.func.coalesce(frame[name], -1).label(name) for name in _FRAME_COLUMNS]
    query = sa.select(frame.report, frame.stack, frame.depth, *frame_values)
    query = query.where(of_reports(frame.report, reports), frame.kind == kind)
    query = query.where(frame.stack.is_not(None), frame.depth.is_not(None))
    frames = _by_report(session.arrays(query.order_by(frame.report, frame.stack)), reports)
    query = sa.select(chain.report, chain.chain, chain.stack)
    query = query.where(of_reports(chain.report, reports), chain.kind == kind, chain.chain.is_not(None))
    chains = _by_report(session.arrays(query.order_by(chain.report, chain.chain, chain.stack)), reports)
    return {index: _chains_of(frames[index], chains[index]) for index in reports}


def _by_report(columns: Arrays, reports: Sequence[int]) -> dict[int, Arrays]:
    report_indices = columns["report"]
    names = [name for name in columns if name != "report"]
    edges = {index: np.searchsorted(report_indices, [index, index + 1]) for index in reports}
    return {index: {name: columns[name][low:high] for name in names} for index, (low, high) in edges.items()}


def _chains_of(frames: Arrays, chains: Arrays) -> _Chains:
    chain, stack = chains["chain"], chains["stack"]
    # A chain read in two chunks gets a new stack with all frames.
    unique_chains, first, count = np.unique(chain, return_index=True, return_counts=True)
    stacks, parts = stack[first], [frames]
    for index in np.flatnonzero(count > 1).tolist():
        joined_stack = -1 - index
        for number in stack[first[index] : first[index] + count[index]].tolist():
            lo, hi = np.searchsorted(frames["stack"], [number, number + 1])
            part = {name: column[lo:hi] for name, column in frames.items()}
            parts.append({**part, "stack": np.full(hi - lo, joined_stack, np.int64)})
        stacks[index] = joined_stack
    return unique_chains, stacks, {name: np.concatenate([part[name] for part in parts]) for name in frames}


def _functions(frames: Arrays, names: Mapping[int, str]) -> tuple[list[Function], Ints]:
    # One combined key: sorting rows of three numbers takes ten times as long.
    uniques = [np.unique(frames[name], return_inverse=True) for name in _FRAME_COLUMNS]
    shape = [len(values) for values, _ in uniques]
    keys, inverse = np.unique(np.ravel_multi_index([index for _, index in uniques], shape), return_inverse=True)
    value_indices = np.unravel_index(keys, shape)
    columns = (values[index].tolist() for (values, _), index in zip(uniques, value_indices, strict=True))
    indices: dict[Function, int] = {}
    function_indices = []
    for function, module, kernel in zip(*columns, strict=True):
        name, path = names.get(function, ""), names.get(module) or "[Unknown]"
        is_folded = bool(_ADDRESS.match(name))
        if is_folded:
            library = path.rpartition("/")[2] or path
            name = library if library.startswith("[") else f"[{library}]"
        function_indices.append(indices.setdefault(Function(name, path, kernel > 0, is_folded), len(indices)))
    return list(indices), np.array(function_indices, np.int64)[inverse.reshape(-1)]


def _tree(stack: Ints, depth: Ints, function: Ints, functions: Sequence[Function]) -> tuple[Ints, Flags, StackTree]:
    """Return each stack's node, whether it is damaged, and the tree; stacks are numbered from 0."""
    order = np.lexsort((depth, stack))
    stack, depth, function = stack[order], depth[order], function[order]
    is_new = np.concatenate(([True], stack[1:] != stack[:-1]))
    stacks = int(stack[-1]) + 1
    expected = np.arange(len(stack)) - np.flatnonzero(is_new)[stack]
    is_damaged = np.bincount(stack, (depth != expected) | (expected >= _MAX_DEPTH), stacks) > 0
    is_repeated = ~is_new & np.concatenate(([False], depth[1:] == depth[:-1]))
    is_folded = np.array([item.is_folded for item in functions])[function]
    # Fold addresses of a module that call each other.
    is_same = ~is_new & is_folded & np.concatenate(([False], function[1:] == function[:-1]))
    is_kept = ~is_repeated & ~is_same & (expected < _MAX_DEPTH)
    stack, function = stack[is_kept], function[is_kept]
    # By level from the outermost caller: each distinct function called from a node is a child.
    position = np.cumsum(np.bincount(stack, minlength=stacks))[stack] - 1 - np.arange(len(stack))
    by_level = np.argsort(position, kind="stable")
    edges = np.searchsorted(position[by_level], np.arange(int(position.max()) + 2)).tolist()
    rows_by_level = [by_level[first:last] for first, last in pairwise(edges)]
    nodes, tree = grown(((stack[rows], function[rows]) for rows in rows_by_level), stacks, functions)
    return nodes, is_damaged, tree


def grown(levels: Iterable[tuple[Ints, Ints]], stacks: int, functions: Sequence[Function]) -> tuple[Ints, StackTree]:
    """Return each stack's node, and the tree, grown from the outermost callers.

    ``levels``: the stacks that reach a level, and the functions that they call there.
    """
    nodes = np.zeros(stacks, np.int64)
    parents, called, first_nodes = [np.zeros(1, np.int64)], [np.full(1, -1, np.int64)], [0]
    node_count = 1
    for stack, function in levels:
        keys, inverse = np.unique(nodes[stack] * len(functions) + function, return_inverse=True)
        nodes[stack] = node_count + inverse
        parents.append(keys // len(functions))
        called.append(keys % len(functions))
        first_nodes.append(node_count)
        node_count += len(keys)
    tree = StackTree(np.concatenate(parents), np.concatenate(called), np.array(first_nodes), tuple(functions))
    return nodes, tree


_TID = (1 << 24) - 1


@dataclass(frozen=True, eq=False)
class Files:
    """File accesses by report and the system's thread number, labelled by index into ``paths`` and ``sizes``."""

    threads: Mapping[Thread, Segments] = field(default_factory=dict)
    paths: Sequence[str] = ()
    sizes: Sequence[int] = ()

    def accessed(self, thread: Thread, intervals: Intervals) -> str:
        """Name the files accessed within ``intervals``: ``/data/a.tar, 12 MiB``, ``1,204 files in /data, 1.3 GiB``.

        All bytes of an access count, even if it begins or ends outside; accesses of unknown files do not.
        """
        accesses = self.threads.get((thread[0], thread[1] & _TID), NO_SEGMENTS).within(intervals)
        rows = [row for row in np.unique(accesses.labels).tolist() if self.paths[row]]
        paths = sorted({self.paths[row] for row in rows})
        if not paths:
            return ""
        if len(paths) == 1:
            words = paths[0]
        else:
            is_tree = len({path.startswith("/") for path in paths}) == 1
            folder = commonpath(paths) if is_tree else ""
            words = f"{len(paths):,} files" + (f" in {folder}" if folder else "")
        size = sum(self.sizes[row] for row in rows)
        return f"{words}, {format_value(Unit.BYTES, size)}" if size else words


def files_of(session: Session, selection: Selection) -> Files:
    """Read the selection's file accesses."""
    table, files = tables.file_accesses, tables.files
    if not session.count(table):
        return Files()
    columns = table.c
    path = sa.select(files.c.report, files.c.file, sa.func.min(files.c.path).label("path"))
    paths = path.group_by(files.c.report, files.c.file).subquery("known")
    times = job_start(table).label("start"), job_end(table).label("end")
    accessed = sa.func.coalesce(paths.c.path, "").label("path"), sa.func.coalesce(columns.bytes, 0).label("bytes")
    query = sa.select(columns.report, columns.tid.label("thread"), *times, *accessed)
    is_file = sa.and_(paths.c.report == columns.report, paths.c.file == columns.file)
    query = query.outerjoin_from(table, paths, is_file)
    rows = session.arrays(query.where(*where(table, selection.with_name(None))))
    threads = {key: outermost(rows["start"][at], rows["end"][at], at) for key, at in by_thread(rows).items()}
    return Files(threads, [str(path) for path in rows["path"]], rows["bytes"].tolist())
