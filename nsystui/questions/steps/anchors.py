"""Steps of exports whose NVTX ranges do not tell them: what comes back regularly in the GPU work of a task.

See docs/ranks.md#anchors.

The operations of a task stand in the order of their launches. An anchor is work that marks a step: the kernels of the
optimizer, collectives, the launches of one CUDA graph, or any operation. Anchors next to one another are one. An anchor
cuts the sequence into pieces; those at both ends that are no whole step (start of the capture, warm-up) are left out.
The rest are steps only if nearly all hold the same number of operations. What runs once a layer is regular, too: so the
names that come back once a step must say the same number of steps, and something must tell a step from a layer.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base import anchors
from nsystui.base.kernel_families import COMMUNICATION, NCCL, OPTIMIZER, family_of
from nsystui.base.kernel_names import smart_name
from nsystui.base.selection import Task
from nsystui.questions.algebra.groups import distinct
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.algebra.projection import Projection
from nsystui.questions.queries.conditions import of_reports
from nsystui.questions.steps.task_steps import FEWEST, LEAST_COVERAGE, TaskSteps, launched_work, to_arrays
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.session import Session

if TYPE_CHECKING:
    from nsystui.store.results import Arrays

_ALIKE, _MOSTLY = 0.1, 0.9
"""So many of the steps differ by less than so much from the median in their number of operations."""
_SHORTEST, _LONGEST = 0.5, 3.0
"""No step has fewer or more operations, in medians."""
_NESTED = 1.5
"""A name with so many times as many repetitions comes back within steps, and says nothing of their number."""
_LEAST_AGREEMENT = 0.5
"""The share of the names that come back once a step which must agree, where the anchor alone does not tell."""
_LEAST_VOTES = 0.1
"""The share of all names that come back regularly which must agree, lest a check every 50 steps be taken for one."""
_JUMP = 1.5
_MOST_JUMPS = 8
"""Distances within a step are told from those between steps where one is so much longer than the next shorter one."""
_TO_HOST = 2
_LOSS = re.compile(r"loss|cross_?entropy", re.IGNORECASE)


def anchored_steps(tasks: Collection[Task], session: Session, reports: list[Report]) -> dict[int, Arrays]:
    """The steps of each report by every anchor that has any, to be stored next to its columns."""
    found: dict[int, list[TaskSteps]] = {report.index: [] for report in reports}
    names = _names(session, list(found))
    parts: dict[Task, list[dict[str, Any]]] = {}
    for task, batch in launched_work(session, found, _MORE):
        if task in tasks:
            batch["code"] = np.searchsorted(names.keys, batch.pop("key")).astype(np.int32)
            if not batch["graph"].any():
                batch["graph"] = batch["graph"].astype(np.int8)  # most have none: a byte is enough then
            # Each in order, all are nearly so, and quickly sorted.
            order = np.lexsort((batch["start"], batch["launch"]))
            parts.setdefault(task, []).append({key: values[order] for key, values in batch.items()})
    for task in sorted(parts):
        found[task.report] += OperationSequence.of(names, parts.pop(task)).steps(task)
    return {report.index: to_arrays(found[report.index], report.clock_offset) for report in reports}


def _key(text: sa.ColumnElement[Any]) -> sa.Label[Any]:
    return sa.cast(sa.func.hash(text) % sa.literal(2**62), sa.BigInteger).label("key")


_KERNEL = sa.func.coalesce(tables.kernels.c.name, tables.kernels.c.short_name, "")
_OPERATION = sa.func.coalesce(tables.memory_ops.c.operation, "")
_EXEC = sa.func.coalesce(tables.graph_launches.c.graph_exec_id, 0)
_GRAPH = sa.func.concat("CUDA graph ", sa.cast(_EXEC, sa.Text), type_=sa.Text)
_MORE: Mapping[str, Sequence[sa.Label[Any]]] = {
    "kernels": (_key(_KERNEL), sa.func.coalesce(tables.kernels.c.graph_node_id, 0).label("graph")),
    "memory_ops": (_key(_OPERATION), sa.func.coalesce(tables.memory_ops.c.graph_node_id, 0).label("graph")),
    "graph_launches": (_key(_GRAPH), (_EXEC + 1).label("graph")),
}


@dataclass(frozen=True, eq=False)
class OperationNames:
    """The names of operations by ascending key. ``is_to_host``: copies to the host; the rest by families."""

    keys: NDArray[np.int64]
    texts: Sequence[str]
    is_to_host: NDArray[np.bool_]

    @cached_property
    def families(self) -> NDArray[Any]:
        return np.array([family_of(text) for text in self.texts], object)

    def of(self, *families: str) -> NDArray[np.int64]:
        """The names of some families."""
        return np.flatnonzero(np.isin(self.families, families))

    @cached_property
    def is_telling(self) -> NDArray[np.bool_]:
        """Whether a step has it and a layer has not: a copy to the host, a loss, an optimizer."""
        found = self.is_to_host.copy()
        found[[place for place, text in enumerate(self.texts) if _LOSS.search(text)]] = True
        found[self.of(OPTIMIZER)] = True
        return found


def _names(session: Session, reports: Sequence[int]) -> OperationNames:
    found: dict[int, tuple[str, bool]] = {}
    kind = tables.memory_ops.c.copy_kind
    for table, text, is_to_host in (
        (tables.kernels, _KERNEL, sa.false()),
        (tables.memory_ops, _OPERATION, sa.func.coalesce(kind == _TO_HOST, sa.false())),
        (tables.graph_launches, _GRAPH, sa.false()),
    ):
        if session.count(table):
            query = sa.select(_key(text), text, is_to_host).where(of_reports(table.c.report, reports)).distinct()
            found |= {key: (name, is_copy) for key, name, is_copy in session.rows(query)}
    keys = sorted(found)
    is_copy = np.array([found[key][1] for key in keys], bool)
    return OperationNames(np.array(keys, np.int64), [found[key][0] for key in keys], is_copy)


@dataclass(frozen=True, eq=False)
class _Repetition:
    """Steps between the places ``edges`` in the sequence, ``(n + 1,)``, marked by the work ``name``."""

    edges: Times
    name: str

    def __len__(self) -> int:
        return len(self.edges) - 1


@dataclass(frozen=True, eq=False)
class OperationSequence:
    """The m operations of a task in the order of their launches, ``(m,)``; times in ns.

    ``code``: the place of an operation's name. ``graph``: which CUDA graph, or node of one, it is; 0 for none.
    """

    names: OperationNames
    launch: Times
    start: Times
    end: Times
    code: NDArray[np.int32]
    graph: Times

    @classmethod
    def of(cls, names: OperationNames, parts: Sequence[dict[str, Any]]) -> OperationSequence:
        """The operations of all parts, which are emptied, in order."""
        columns = {key: np.concatenate([part.pop(key) for part in parts]) for key in list(parts[0])}
        order = np.argsort(columns["launch"], kind="stable")
        return cls(names, **{key: columns.pop(key)[order] for key in list(columns)})

    def steps(self, task: Task) -> list[TaskSteps]:
        """The steps by each kind of anchor that has any."""
        ends = (lasts + 1 for _, lasts in _bursts(self._places(self.names.of(OPTIMIZER))))
        by_optimizer = [one for edges in ends for one in self._all(edges, "optimizer kernels")]
        by = {
            anchors.OPTIMIZER: self._best(by_optimizer),
            anchors.COLLECTIVES: self._best(list(self._collectives()), _LEAST_AGREEMENT),
            anchors.GRAPH: self._best(list(self._graphs())),
            anchors.KERNELS: self._any_operation(),
        }
        return [self._as_steps(task, kind, one) for kind, one in by.items() if one is not None]

    @cached_property
    def _runs(self) -> dict[int, Times]:
        """Where each name begins to run, by its code; what follows itself is one run."""
        begins = np.flatnonzero(np.append(True, self.code[1:] != self.code[:-1])).astype(np.int32)
        code = self.code[begins]
        begins = begins[np.argsort(code, kind="stable")]
        counts = np.bincount(code)
        return dict(enumerate(np.split(begins, np.cumsum(counts)[:-1])))

    @cached_property
    def _busy(self) -> Times:
        """The GPU time of all operations before each place."""
        busy = np.zeros(len(self.start) + 1, np.int64)
        np.subtract(self.end, self.start, out=busy[1:])
        np.cumsum(busy[1:], out=busy[1:])
        return busy

    @cached_property
    def _regular(self) -> dict[int, _Repetition]:
        """The names that come back regularly."""
        found = {
            code: self._repetition(places, smart_name(self.names.texts[code]))
            for code, places in self._runs.items()
            if len(places) >= FEWEST
        }
        return {code: one for code, one in found.items() if one is not None}

    def _repetition(self, begins: Times, name: str) -> _Repetition | None:
        """The steps that begin at these places; ``None`` unless they are regular."""
        # All that one call launched, such as the nodes of a graph, is in one step.
        begins = np.searchsorted(self.launch, self.launch[begins[begins < len(self.launch)]])
        edges = distinct(np.concatenate(([0], begins, [len(self.launch)])))
        sizes = np.diff(edges)
        typical = np.median(sizes)
        is_alike = np.abs(sizes - typical) <= _ALIKE * typical
        # Of the pieces at the ends no anchor says that they are whole, nor that a step is all that they hold.
        is_alike[[0, -1]] = sizes[[0, -1]] == typical
        whole = np.flatnonzero(is_alike)
        if len(whole) < FEWEST:
            return None
        first, last = whole[0], whole[-1] + 1
        inner = sizes[first:last]
        is_even = inner.min() >= _SHORTEST * typical and inner.max() <= _LONGEST * typical
        if not is_even or is_alike[first:last].mean() < _MOSTLY:
            return None
        edges = edges[first : last + 1]
        covered = self._busy[edges[-1]] - self._busy[edges[0]]
        return _Repetition(edges, name) if covered >= LEAST_COVERAGE * self._busy[-1] else None

    def _votes(self, steps: _Repetition) -> tuple[list[int], int]:
        """The names that come back once a step as often, and the number of those that come back less or more often."""
        agree = [code for code, one in self._regular.items() if abs(len(one) - len(steps)) <= 1]
        nested = sum(len(one) >= _NESTED * len(steps) and len(one) > len(steps) + 1 for one in self._regular.values())
        return agree, len(self._regular) - len(agree) - nested

    def _agreement(self, steps: _Repetition) -> float:
        agree, differ = self._votes(steps)
        return len(agree) / max(len(agree) + differ, 1)

    def _best(self, found: Sequence[_Repetition], least: float = 0.0) -> _Repetition | None:
        """Of several the one that most names agree with, then the one of the longest steps."""
        enough = [one for one in found if self._agreement(one) >= least]
        return max(enough, key=lambda one: (self._agreement(one), -len(one)), default=None)

    def _collectives(self) -> Iterator[_Repetition]:
        """A step begins with the first collective of a group, of one name or of any."""
        codes = self.names.of(NCCL, COMMUNICATION)
        for chosen in (codes, *(codes[[place]] for place in range(len(codes)) if len(codes) > 1)):
            for firsts, _ in _bursts(self._places(chosen)):
                yield from self._all(firsts, "collectives")

    def _places(self, codes: NDArray[np.int64]) -> Times:
        """Where any of these names runs."""
        is_wanted = np.zeros(len(self.names.texts), bool)
        is_wanted[codes] = True
        return np.flatnonzero(is_wanted[self.code])

    def _graphs(self) -> Iterator[_Repetition]:
        """A step holds one launch of a CUDA graph, at its start or its end; traced as a whole or node by node."""
        places = np.flatnonzero(self.graph)
        if not len(places):
            return
        first = np.flatnonzero(np.diff(self.launch[places], prepend=self.launch[places[0]] - 1))
        graphs = np.minimum.reduceat(self.graph[places], first)
        for graph in np.unique(graphs).tolist():
            begins = places[first[graphs == graph]]
            phases = [*self._all(begins, "CUDA graph"), *self._all(begins + 1, "CUDA graph")]
            yield from sorted(phases, key=lambda one: one.edges[-1] - one.edges[0])[-1:]

    def _all(self, begins: Times, name: str) -> Iterator[_Repetition]:
        found = self._repetition(begins, name)
        if found is not None:
            yield found

    def _any_operation(self) -> _Repetition | None:
        """The longest steps that enough names agree on; they begin where the CPU took longest to launch the first."""
        for steps in sorted(self._regular.values(), key=len):
            agree, differ = self._votes(steps)
            if len(agree) >= max(2, _LEAST_VOTES * len(self._regular)) and len(agree) > differ:
                # A result that goes to the host ends a step.
                firsts = [self._regular[code] for code in agree if not self.names.is_to_host[code]]
                waits = np.diff(self.launch)
                return max(firsts, key=lambda one: float(np.median(waits[one.edges[1:-1] - 1])), default=None)
        return None

    def _as_steps(self, task: Task, anchor: str, found: _Repetition) -> TaskSteps:
        agree, differ = self._votes(found)
        edges, count = found.edges, len(found)
        launches = np.append(self.launch, self.launch[-1] + 1)[edges]
        first = edges[:-1]
        until = slice(0, edges[-1])
        busy = np.diff(self._busy[edges])
        starts, ends = np.minimum.reduceat(self.start[until], first), np.maximum.reduceat(self.end[until], first)
        needs_proof = anchor in (anchors.COLLECTIVES, anchors.KERNELS)
        return TaskSteps(
            task,
            found.name,
            np.arange(count),
            launches[:-1],
            launches[1:],
            Projection(np.diff(edges), starts, ends, busy),
            int(self._busy[-1] - busy.sum()),
            anchor,
            len(agree),
            differ,
            needs_proof and not bool(self.names.is_telling[agree].any()),
        )


def _bursts(places: Times) -> Iterator[tuple[Times, Times]]:
    """The first and the last of each group of places, for every plausible distance within a group."""
    if not len(places):
        return
    gaps = np.diff(places)
    sizes = distinct(gaps)
    ratios = sizes[1:] / sizes[:-1]
    jumps = np.flatnonzero(ratios >= _JUMP)
    for within in (1, *sizes[jumps[np.argsort(-ratios[jumps])][:_MOST_JUMPS]].tolist()):
        is_new = gaps > within
        yield places[np.append(True, is_new)], places[np.append(is_new, True)]
