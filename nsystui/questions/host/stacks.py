"""Call stacks, interned: the functions that call each other as one tree for each report, and the node of each chain.

A stack is a node of that tree: the function that ran, called by its parent, and so on to the root, which is node 0 and
no function. Addresses that nsys could not resolve are folded by module, and what such addresses of one module call
among themselves is one frame. A damaged chain (a depth is missing or there twice) is what is left of it, without
holes: every chain has one node, whatever its rows say, so that sums over functions are right.

Which files OS runtime calls read and write, where that is recorded (docs/numbers.md#gaps).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from os.path import commonpath
from typing import TYPE_CHECKING, Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.answer import Unit
from nsystui.base.kernel_names import function_name
from nsystui.base.selection import Selection
from nsystui.base.units import format_value
from nsystui.questions.algebra.intervals import Intervals
from nsystui.questions.host.segments import NO_SEGMENTS, Segments, Thread, by_thread, outermost
from nsystui.questions.queries.conditions import job_end, job_start, of_reports, where
from nsystui.questions.queries.derived import of_each_report
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.results import json_array, json_of
from nsystui.store.session import Session

if TYPE_CHECKING:
    from nsystui.store.results import Arrays


SAMPLE, OS_CALL, CUDA_CALL, PYTHON = KINDS = ("sample", "os", "cuda", "python")
"""Whose the chains are: those of CPU samples, OS runtime calls, CUDA calls and samples of Python are numbered apart."""
NO_STACK = 0
"""The node of an event without a recorded stack."""

_DEEPEST = 1024
"""Frames of a stack at most, counted from the function that ran: nsys records far fewer."""
_ADDRESS = re.compile(r"(0x[0-9a-fA-F]+)?$")

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Function:
    """A function of a module, or with ``is_folded`` all of a module that is not resolved."""

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
    """The stacks of n nodes: ``parent`` and ``function`` (an index into ``functions``), shapes ``(n,)``.

    Node 0 is the root: its parent is itself, its function -1. Nodes are numbered level by level, which begin at
    ``levels``, and by parent, so a parent has a lower number than its children, and ``parent`` ascends.
    """

    parent: Numbers
    function: Numbers
    levels: Numbers
    functions: tuple[Function, ...]

    def __len__(self) -> int:
        return len(self.parent)

    def totals(self, own: Numbers) -> Numbers:
        """Add up each node and all below it; ``own`` has the shape ``(n,)``, or ``(n, k)`` for k sums at once."""
        found = own.copy()
        edges = [*self.levels.tolist(), len(self)]
        for first, last in reversed(list(pairwise(edges[1:]))):
            np.add.at(found, self.parent[first:last], found[first:last])
        return found

    @cached_property
    def is_outermost(self) -> NDArray[np.bool_]:
        """Whether no caller of a node is the same function: a recursive call is in the total of the first one."""
        found = np.ones(len(self), np.bool_)
        found[:1] = False
        nodes = np.arange(1, len(self))
        above = self.parent[nodes]
        while len(nodes):
            is_same = self.function[above] == self.function[nodes]
            found[nodes[is_same]] = False
            is_open = (above > 0) & ~is_same
            nodes, above = nodes[is_open], self.parent[above[is_open]]
        return found

    def path(self, node: int) -> list[int]:
        """Return the functions from the outermost caller to the one of ``node``, as indices."""
        found = []
        while node:
            found.append(int(self.function[node]))
            node = int(self.parent[node])
        return found[::-1]

    def outside(self, node: int, libraries: re.Pattern[str]) -> int:
        """Find the innermost caller, or the node itself, that is in none of some modules (file names)."""
        while node and libraries.fullmatch(self.functions[int(self.function[node])].library):
            node = int(self.parent[node])
        return node

    def words(self, node: int, most: int = _DEEPEST) -> str:
        """Write ``inner ‹ caller ‹ …``: the function of a node and its callers, at most ``most`` functions."""
        called = [function_name(self.functions[one].name) for one in self.path(node)[::-1]]
        return " ‹ ".join(called[:most] + ["…"] * (len(called) > most))


LIBRARY = re.compile(r"(?:libc|ld|libpthread|libm|libstdc\+\+)[-.].*|\[.*\]")
"""Modules whose functions do what their caller wants."""


def program_function(tree: StackTree | None, node: int, libraries: re.Pattern[str] = LIBRARY) -> str:
    """Name the innermost function of a stack that is resolved and of the program: not of the kernel, not of libc."""
    if tree is None or not node:
        return ""
    innermost = tree.functions[int(tree.function[node])]
    while node:
        one = tree.functions[int(tree.function[node])]
        if not (one.is_folded or one.is_kernel or libraries.fullmatch(one.library) or one.name.startswith("[")):
            return _in_file(one)
        node = int(tree.parent[node])
    return _in_file(innermost)


def _in_file(function: Function) -> str:
    """The name; of a function of Python with its file, since many are called alike."""
    name = function_name(function.name)
    return f"{name} ({function.library})" if function.library.endswith(".py") else name


@dataclass(frozen=True, eq=False)
class Stacks:
    """The stacks of one report: the tree, and for each kind its chains in order with their nodes.

    ``damaged``: the number of chains that are not what nsys writes.
    """

    tree: StackTree
    chains: Mapping[str, tuple[Numbers, Numbers]]
    damaged: int

    def nodes(self, kind: str, chains: Any) -> Numbers:
        """Return the node of each of ``chains``, `NO_STACK` for one that has none (or is masked)."""
        known, nodes = self.chains[kind]
        wanted = np.ma.filled(chains, -1).astype(np.int64)
        if not len(known):
            return np.zeros(len(wanted), np.int64)
        place = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        return np.where(known[place] == wanted, nodes[place], NO_STACK)


def stacks_of(session: Session, reports: Sequence[Report]) -> dict[int, Stacks]:
    """Return the stacks of each report, by its index; computed once and kept with its columns."""
    found = of_each_report(
        session, reports, "stacks", _compute, by=tables.stack_frames, doing="call stacks", in_memory=True
    )
    stacks = {}
    for index, arrays in found.items():
        known = json_of(arrays["names"])
        functions = tuple(Function(name, module, bool(kernel), bool(folded)) for name, module, kernel, folded in known)
        parent, function, levels = (
            arrays[key].astype(np.int64, copy=False) for key in ("parent", "function", "levels")
        )
        chains = {kind: (arrays[f"{kind}.chains"], arrays[f"{kind}.nodes"]) for kind in KINDS}
        tree = StackTree(parent, function, levels, functions)
        stacks[index] = Stacks(tree, chains, int(arrays["damaged"][0]))
    return stacks


def os_callers(session: Session, chains_of: Mapping[Thread, Numbers]) -> dict[int, dict[int, str]]:
    """Find the functions that made OS runtime calls, by report and chain, of the chains of each thread's calls."""
    of_reports: dict[int, list[Numbers]] = {}
    for (report, _), chains in chains_of.items():
        of_reports.setdefault(report, []).append(chains)
    callers: dict[int, dict[int, str]] = {}
    for index, stacks in stacks_of(session, [one for one in session.reports if one.index in of_reports]).items():
        known = np.unique(np.concatenate(of_reports[index]))
        nodes = zip(known.tolist(), stacks.nodes(OS_CALL, known).tolist(), strict=True)
        callers[index] = {chain: program_function(stacks.tree, node) for chain, node in nodes if node}
    return callers


def _compute(session: Session, reports: list[Report]) -> dict[int, Arrays]:
    indices = [report.index for report in reports if report.has(tables.stack_frames)]
    text = tables.stack_names.c
    query = sa.select(text.report, text.number, text.name).where(
        of_reports(text.report, indices), text.name.is_not(None)
    )
    names: dict[int, dict[int, str]] = {report.index: {} for report in reports}
    for report, number, name in session.rows(query.distinct()) if indices else ():
        names[report][int(number)] = str(name)
    chosen = [index for index in indices if names[index]]
    chains = {kind: _chains(session, chosen, kind) for kind in KINDS} if chosen else {}
    none = dict.fromkeys(KINDS, (_NONE, _NONE, _NO_FRAMES))
    return {
        index: _stacks(own, {kind: chains[kind][index] for kind in KINDS} if own else none)
        for index, own in names.items()
    }


def _stacks(names: Mapping[int, str], found: Mapping[str, _Chains]) -> Arrays:
    """The tree over the stacks of all kinds, and the chains of each kind."""
    chains: list[tuple[Numbers, Numbers]] = []
    parts: list[Arrays] = []
    stacks = 0
    for kind in KINDS:
        chain, stack, frames = found[kind]
        if len(frames.get("stack", _NONE)):
            known, place = np.unique(frames["stack"], return_inverse=True)
            # Frames without a chain, or a chain without frames, are what is left of a damaged export.
            is_there = np.isin(stack, known)
            chain, stack = chain[is_there], stacks + np.searchsorted(known, stack[is_there])
            parts.append({**frames, "stack": stacks + place.reshape(-1)})
            stacks += len(known)
        else:
            chain, stack = _NONE, _NONE
        chains.append((chain, stack))
    if not parts:
        nothing = {f"{kind}.{what}": _NONE for kind in KINDS for what in ("chains", "nodes")}
        root = {"parent": np.zeros(1, np.int64), "function": np.full(1, -1), "levels": np.zeros(1, np.int64)}
        return {**nothing, **root, "names": json_array([]), "damaged": np.zeros(1, np.int64)}
    every = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    functions, function = _functions(every, names)
    nodes, is_damaged, tree = _tree(every["stack"], every["depth"], function, functions)
    arrays: dict[str, NDArray[Any]] = {**tree}
    for kind, (chain, stack) in zip(KINDS, chains, strict=True):
        arrays[f"{kind}.chains"], arrays[f"{kind}.nodes"] = chain, nodes[stack]
    arrays["damaged"] = np.array([sum(int(is_damaged[stack].sum()) for _, stack in chains)])
    arrays["names"] = json_array([[one.name, one.module, one.is_kernel, one.is_folded] for one in functions])
    return arrays


_NONE = np.empty(0, np.int64)
_NO_FRAMES: Arrays = {}
_FRAME = ("function", "module", "is_kernel")


_Chains = tuple[Numbers, Numbers, "Arrays"]
"""The chains of a kind in order, each once, the stack of each, and the frames of the stacks."""


def _chains(session: Session, reports: Sequence[int], kind: str) -> dict[int, _Chains]:
    """The chains of a kind of each report, all read at once: a query has its cost for each that is open."""
    rows, places = tables.stack_frames.c, tables.call_chains.c
    facts = [sa.func.coalesce(rows[name], -1).label(name) for name in _FRAME]
    query = sa.select(rows.report, rows.stack, rows.depth, *facts).where(
        of_reports(rows.report, reports), rows.kind == kind
    )
    query = query.where(rows.stack.is_not(None), rows.depth.is_not(None))
    frames = _by_report(session.arrays(query.order_by(rows.report, rows.stack)), reports)
    query = sa.select(places.report, places.chain, places.stack).where(
        of_reports(places.report, reports), places.kind == kind
    )
    query = query.where(places.chain.is_not(None))
    found = _by_report(session.arrays(query.order_by(places.report, places.chain, places.stack)), reports)
    return {index: _chains_of(frames[index], found[index]) for index in reports}


def _by_report(found: Arrays, reports: Sequence[int]) -> dict[int, Arrays]:
    """The rows of each report, which are together, without the column that says so."""
    of_report = found["report"]
    names = [name for name in found if name != "report"]
    edges = {index: np.searchsorted(of_report, [index, index + 1]) for index in reports}
    return {index: {name: found[name][low:high] for name in names} for index, (low, high) in edges.items()}


def _chains_of(frames: Arrays, found: Arrays) -> _Chains:
    chain, stack = found["chain"], found["stack"]
    # A chain that was read in two chunks has the frames of both, as a stack of its own.
    known, first, count = np.unique(chain, return_index=True, return_counts=True)
    whole, parts = stack[first], [frames]
    for number in np.flatnonzero(count > 1).tolist():
        own = -1 - number
        for piece in stack[first[number] : first[number] + count[number]].tolist():
            lo, hi = np.searchsorted(frames["stack"], [piece, piece + 1])
            part = {name: values[lo:hi] for name, values in frames.items()}
            parts.append({**part, "stack": np.full(hi - lo, own, np.int64)})
        whole[number] = own
    return known, whole, {name: np.concatenate([part[name] for part in parts]) for name in frames}


def _functions(frames: Arrays, names: Mapping[int, str]) -> tuple[list[Function], Numbers]:
    """The different functions, and which one each frame is."""
    # Of each column by itself, and then of one number: rows of three numbers take ten times as long to sort.
    known = [np.unique(frames[name], return_inverse=True) for name in _FRAME]
    shape = [len(values) for values, _ in known]
    keys, inverse = np.unique(np.ravel_multi_index([place for _, place in known], shape), return_inverse=True)
    places = np.unravel_index(keys, shape)
    columns = (values[place].tolist() for (values, _), place in zip(known, places, strict=True))
    numbers: dict[Function, int] = {}
    found = []
    for function, module, kernel in zip(*columns, strict=True):
        name, where = names.get(function, ""), names.get(module) or "[Unknown]"
        is_folded = bool(_ADDRESS.match(name))
        if is_folded:
            library = where.rpartition("/")[2] or where
            name = library if library.startswith("[") else f"[{library}]"
        found.append(numbers.setdefault(Function(name, where, kernel > 0, is_folded), len(numbers)))
    return list(numbers), np.array(found, np.int64)[inverse.reshape(-1)]


def _tree(
    stack: Numbers, depth: Numbers, function: Numbers, functions: Sequence[Function]
) -> tuple[Numbers, NDArray[np.bool_], Arrays]:
    """The node of each stack, whether it is damaged, and the tree. Stacks are numbered from 0, each has frames."""
    order = np.lexsort((depth, stack))
    stack, depth, function = stack[order], depth[order], function[order]
    is_new = np.concatenate(([True], stack[1:] != stack[:-1]))
    stacks = int(stack[-1]) + 1
    expected = np.arange(len(stack)) - np.flatnonzero(is_new)[stack]
    is_damaged = np.bincount(stack, (depth != expected) | (expected >= _DEEPEST), stacks) > 0
    is_double = ~is_new & np.concatenate(([False], depth[1:] == depth[:-1]))
    is_folded = np.array([one.is_folded for one in functions])[function]
    # Of addresses of one module that call each other one stays.
    is_same = ~is_new & is_folded & np.concatenate(([False], function[1:] == function[:-1]))
    kept = ~is_double & ~is_same & (expected < _DEEPEST)
    stack, function = stack[kept], function[kept]
    # From the outermost caller on, a level at a time: the children of a node are the functions that differ.
    position = np.cumsum(np.bincount(stack, minlength=stacks))[stack] - 1 - np.arange(len(stack))
    by_level = np.argsort(position, kind="stable")
    edges = np.searchsorted(position[by_level], np.arange(int(position.max()) + 2)).tolist()
    nodes = np.zeros(stacks, np.int64)
    parents, called, levels = [np.zeros(1, np.int64)], [np.full(1, -1, np.int64)], [0]
    made = 1
    for first, last in pairwise(edges):
        rows = by_level[first:last]
        keys, inverse = np.unique(nodes[stack[rows]] * len(functions) + function[rows], return_inverse=True)
        nodes[stack[rows]] = made + inverse
        parents.append(keys // len(functions))
        called.append(keys % len(functions))
        levels.append(made)
        made += len(keys)
    tree = {"parent": np.concatenate(parents), "function": np.concatenate(called), "levels": np.array(levels)}
    return nodes, is_damaged, tree


_TID = (1 << 24) - 1


@dataclass(frozen=True, eq=False)
class Files:
    """The accesses of each thread, by report and the system's own number of it; their labels are places in the rest."""

    threads: Mapping[Thread, Segments] = field(default_factory=dict)
    paths: Sequence[str] = ()
    sizes: Sequence[int] = ()

    def accessed(self, thread: Thread, when: Intervals) -> str:
        """Name the files accessed within ``when``: ``/data/a.tar, 12 MiB``, ``1,204 files in /data, 1.3 GiB``.

        Of an access that begins or ends outside all bytes count; one of a file that is not known does not.
        """
        own = self.threads.get((thread[0], thread[1] & _TID), NO_SEGMENTS).within(when)
        rows = [row for row in np.unique(own.labels).tolist() if self.paths[row]]
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
    """Read the accesses in the window of a selection."""
    table, names = tables.file_accesses, tables.files
    if not session.count(table):
        return Files()
    columns = table.c
    path = sa.select(names.c.report, names.c.file, sa.func.min(names.c.path).label("path"))
    known = path.group_by(names.c.report, names.c.file).subquery("known")
    query = sa.select(
        columns.report,
        columns.tid.label("thread"),
        job_start(table).label("start"),
        job_end(table).label("end"),
        sa.func.coalesce(known.c.path, "").label("path"),
        sa.func.coalesce(columns.bytes, 0).label("bytes"),
    ).outerjoin_from(table, known, sa.and_(known.c.report == columns.report, known.c.file == columns.file))
    found = session.arrays(query.where(*where(table, selection.with_name(None))))
    threads = {key: outermost(found["start"][rows], found["end"][rows], rows) for key, rows in by_thread(found).items()}
    return Files(threads, [str(one) for one in found["path"]], found["bytes"].tolist())
