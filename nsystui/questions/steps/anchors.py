"""Steps of exports without NVTX ranges of steps: regular repetitions in a task's GPU work (docs/ranks.md#anchors).

A task's operations are ordered by launch. Anchors, such as collectives or an optimizer's kernels, cut them into pieces,
which are steps if nearly all have the same number of operations. Layers repeat, too: names that repeat once per step
must agree on the number of steps.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base import anchors
from nsystui.base.kernel_families import COMMUNICATION, NCCL, OPTIMIZER, family_of
from nsystui.base.selection import Task
from nsystui.base.types import Array, Expression, Flags, Ints, Labelled
from nsystui.questions.algebra.groups import distinct
from nsystui.questions.algebra.intervals import EMPTY, Intervals, Times, union
from nsystui.questions.algebra.projection import Projection
from nsystui.questions.queries.conditions import job_end, job_start, of_reports
from nsystui.questions.queries.process_rows import rows_by_task
from nsystui.questions.steps.task_steps import FEWEST, LEAST_COVERAGE, TaskSteps, launched_work, to_arrays
from nsystui.store import tables
from nsystui.store.remember import Arrays
from nsystui.store.report import Report
from nsystui.store.session import Session

_TOLERANCE, _MIN_ALIKE = 0.1, 0.9
"""The allowed deviation from the median number of operations; the share of steps within it."""
_MIN_SIZE, _MAX_SIZE = 0.5, 3.0
"""The allowed number of operations of a step, in medians."""
_NESTED = 1.5
"""Names with at least this many repetitions per step repeat within steps, and have no vote."""
_MIN_AGREEMENT = 0.5
"""The share of names repeating once per step that must agree, if the anchor alone is no evidence."""
_MIN_VOTES = 0.1
"""The share of all regular names that must agree, so that a check every 50 steps is not taken for a step."""
_JUMP = 1.5
_MAX_JUMPS = 8
"""Distances this many times the next shorter may separate steps; only the largest jumps are tried."""
_MAX_COMMON, _MAX_RUNS = 3, 64
"""The number of kernels that may mark iterations, and of their runs in an iteration."""
_TO_HOST = 2
MARKS_STEP, MARKS_OPTIMIZER = 1, 2
_LOSS = re.compile(r"loss|cross_?entropy", re.IGNORECASE)
_OPTIMIZES = r"optim\w*\W*(?:inner\W*)?(?:step|update)|\bopt[._](?:step|update)|\boptimi[sz]er$|DeepSpeedEngine\.step"
"""Ranges of optimizers, whose kernels may have any name."""


def anchored_steps(tasks: Collection[Task], session: Session, reports: list[Report]) -> dict[int, Arrays]:
    """Find the steps of each report by every anchor, to store with its columns."""
    steps_by_report: dict[int, list[TaskSteps]] = {report.index: [] for report in reports}
    names = OperationNames.load(session, steps_by_report)
    parts: dict[Task, list[dict[str, Any]]] = {}
    for task, batch in launched_work(session, steps_by_report, _MORE_COLUMNS):
        if task in tasks:
            batch["code"] = names.codes(batch.pop("key"))
            if not batch["graph"].any():
                batch["graph"] = batch["graph"].astype(np.int8)  # the usual case: a byte is enough
            # Sorted batches make the sort of all batches fast.
            order = np.lexsort((batch["start"], batch["launch"]))
            parts.setdefault(task, []).append({key: column[order] for key, column in batch.items()})
    for task in sorted(parts):
        steps_by_report[task.report] += OperationSequence.of(names, parts.pop(task)).steps(task)
    return {report.index: to_arrays(steps_by_report[report.index], report.clock_offset) for report in reports}


def _key(text: Expression) -> Labelled:
    return sa.cast(sa.func.hash(text) % sa.literal(2**62), sa.BigInteger).label("key")


_KERNEL = sa.func.coalesce(tables.kernels.c.name, tables.kernels.c.short_name, "")
_OPERATION = sa.func.coalesce(tables.memory_ops.c.operation, "")
_EXEC = sa.func.coalesce(tables.graph_launches.c.graph_exec_id, 0)
_GRAPH = sa.func.concat("CUDA graph ", sa.cast(_EXEC, sa.Text), type_=sa.Text)
_MORE_COLUMNS: Mapping[str, Sequence[Labelled]] = {
    "kernels": (_key(_KERNEL), sa.func.coalesce(tables.kernels.c.graph_node_id, 0).label("graph")),
    "memory_ops": (_key(_OPERATION), sa.func.coalesce(tables.memory_ops.c.graph_node_id, 0).label("graph")),
    "graph_launches": (_key(_GRAPH), (_EXEC + 1).label("graph")),
}
KEYS = {name: columns[:1] for name, columns in _MORE_COLUMNS.items()}
"""The key in `OperationNames` of each operation, by table."""


@dataclass(frozen=True, eq=False)
class OperationNames:
    """Names of operations by ascending key, and each process's optimizer ranges, job time, ns."""

    optimizing: Mapping[Task, Intervals]
    keys: Ints
    texts: Sequence[str]
    is_to_host: Flags
    is_kernel: Flags

    @classmethod
    def load(cls, session: Session, reports: Collection[int]) -> OperationNames:
        name_by_key: dict[int, tuple[str, bool, bool]] = {}
        work = (tables.kernels, _KERNEL), (tables.memory_ops, _OPERATION), (tables.graph_launches, _GRAPH)
        for table, text in work:
            if session.count(table):
                kind = table.c.get("copy_kind", sa.literal(0))
                is_to_host = sa.func.coalesce(kind == _TO_HOST, sa.false())
                query = sa.select(_key(text), text, is_to_host).where(of_reports(table.c.report, reports)).distinct()
                is_kernel = table is tables.kernels
                name_by_key |= {key: (name, is_copy, is_kernel) for key, name, is_copy in session.rows(query)}
        keys = sorted(name_by_key)
        texts, *flags = zip(*(name_by_key[key] for key in keys), strict=True) if keys else ((), (), ())
        ranges = tables.nvtx_ranges
        names = sa.select(ranges.c.name).group_by(ranges.c.name)  # patterns are slow
        matches = sa.func.regexp_matches(sa.func.any_value(ranges.c.name), _OPTIMIZES, "i", type_=sa.Boolean)
        columns = ranges.c.report, ranges.c.process, job_start(ranges).label("start"), job_end(ranges).label("end")
        query = sa.select(*columns).where(of_reports(columns[0], reports), ranges.c.end.is_not(None))
        query = query.where(ranges.c.name.in_(names.having(matches)))
        rows = rows_by_task(session.arrays(query)) if session.count(ranges) else ()
        optimizing = {task: union(spans["start"], spans["end"]) for task, spans in rows}
        return cls(optimizing, np.array(keys, np.int64), texts, *(np.array(flag, bool) for flag in flags))

    def codes(self, keys: Ints) -> NDArray[np.int32]:
        """Return each key's name index."""
        return np.searchsorted(self.keys, keys).astype(np.int32)

    @cached_property
    def families(self) -> Array:
        return np.array([family_of(text) for text in self.texts], object)

    def of(self, *families: str) -> Ints:
        """Return the codes of names of some families."""
        return np.flatnonzero(np.isin(self.families, families))

    @cached_property
    def marks(self) -> NDArray[np.int8]:
        """`MARKS_STEP` for names that layers lack (copies to the host, loss), `MARKS_OPTIMIZER`, or 0."""
        marks = np.where(self.is_to_host, MARKS_STEP, 0).astype(np.int8)
        marks[[code for code, text in enumerate(self.texts) if _LOSS.search(text)]] = MARKS_STEP
        marks[self.of(OPTIMIZER)] = MARKS_OPTIMIZER
        return marks

    def marks_of(self, task: Task, codes: NDArray[np.int32], launch: Times) -> NDArray[np.int8]:
        """Return the mark of each operation by its name, or by the optimizer's range around its launch."""
        is_optimizer = self.optimizing.get(task, EMPTY).before(launch)[1] > 0
        return np.where(is_optimizer, MARKS_OPTIMIZER, self.marks[codes]).astype(np.int8)


@dataclass(frozen=True, eq=False)
class _Repetition:
    """Steps between the positions ``edges`` in the sequence, ``(n + 1,)``, marked by the work ``name``."""

    edges: Times
    name: str

    def __len__(self) -> int:
        return len(self.edges) - 1


@dataclass(frozen=True, eq=False)
class OperationSequence:
    """A task's m operations by launch, ``(m,)``; times in ns.

    ``code``: index of the operation's name. ``graph``: its CUDA graph or graph node, or 0.
    """

    names: OperationNames
    launch: Times
    start: Times
    end: Times
    code: NDArray[np.int32]
    graph: Times

    @classmethod
    def of(cls, names: OperationNames, parts: Sequence[dict[str, Any]]) -> OperationSequence:
        """Join the operations of all parts in order; empties the parts."""
        columns = {key: np.concatenate([part.pop(key) for part in parts]) for key in list(parts[0])}
        order = np.argsort(columns["launch"], kind="stable")
        return cls(names, **{key: columns.pop(key)[order] for key in list(columns)})

    def steps(self, task: Task) -> list[TaskSteps]:
        """Return the steps that each kind of anchor finds, if any."""
        optimizes = self.names.marks_of(task, self.code, self.launch) == MARKS_OPTIMIZER
        ends = [lasts + 1 for _, lasts in _bursts(np.flatnonzero(optimizes))]
        # An optimizer on the CPU may launch nothing.
        ends = ends or [np.searchsorted(self.launch, self.names.optimizing.get(task, EMPTY).ends)]
        by_optimizer = [repetition for edges in ends for repetition in self._all(edges, "optimizer kernels")]
        repetitions = {
            anchors.OPTIMIZER: self._best(by_optimizer),
            anchors.COLLECTIVES: self._best(list(self._collectives()), _MIN_AGREEMENT),
            anchors.GRAPH: self._best(list(self._graphs())),
            anchors.KERNELS: self._any_operation(),
        }
        steps = [self._as_steps(task, kind, rep) for kind, rep in repetitions.items() if rep is not None]
        iterations = None if steps else self._iterations()
        if iterations is not None:
            repeated = self._as_steps(task, anchors.KERNELS, iterations)
            steps.append(replace(repeated, is_doubtful=repeated.is_doubtful or repeated.differ > 0))  # layers may copy
        return steps

    @cached_property
    def _runs(self) -> dict[int, Times]:
        """The positions at which runs of each name begin, by code; a name that follows itself is one run."""
        begins = np.flatnonzero(np.append(True, self.code[1:] != self.code[:-1])).astype(np.int32)
        code = self.code[begins]
        begins = begins[np.argsort(code, kind="stable")]
        counts = np.bincount(code)
        return dict(enumerate(np.split(begins, np.cumsum(counts)[:-1])))

    @cached_property
    def _busy(self) -> Times:
        """The GPU time of all operations before each position."""
        busy = np.zeros(len(self.start) + 1, np.int64)
        np.subtract(self.end, self.start, out=busy[1:])
        np.cumsum(busy[1:], out=busy[1:])
        return busy

    @cached_property
    def _regular(self) -> dict[int, _Repetition]:
        from nsystui.base.kernel_names import smart_name

        repetitions = {
            code: self._repetition(positions, smart_name(self.names.texts[code]))
            for code, positions in self._runs.items()
            if len(positions) >= FEWEST
        }
        return {code: repetition for code, repetition in repetitions.items() if repetition is not None}

    def _repetition(self, begins: Times, name: str) -> _Repetition | None:
        # All operations of a call, such as graph nodes, are in one step.
        begins = np.searchsorted(self.launch, self.launch[begins[begins < len(self.launch)]])
        edges = distinct(np.concatenate(([0], begins, [len(self.launch)])))
        sizes = np.diff(edges)
        typical = np.median(sizes)
        is_alike = np.abs(sizes - typical) <= _TOLERANCE * typical
        # End pieces, with one anchor, may be incomplete or more than a step.
        is_alike[[0, -1]] = sizes[[0, -1]] == typical
        alike = np.flatnonzero(is_alike)
        if len(alike) < FEWEST:
            return None
        first, last = alike[0], alike[-1] + 1
        inner = sizes[first:last]
        is_even = inner.min() >= _MIN_SIZE * typical and inner.max() <= _MAX_SIZE * typical
        if not is_even or is_alike[first:last].mean() < _MIN_ALIKE:
            return None
        edges = edges[first : last + 1]
        covered = self._busy[edges[-1]] - self._busy[edges[0]]
        return _Repetition(edges, name) if covered >= LEAST_COVERAGE * self._busy[-1] else None

    def _votes(self, steps: _Repetition) -> tuple[list[int], int]:
        """Return the names that repeat once per step, and the number of names with other repetitions."""
        agree = [code for code, rep in self._regular.items() if abs(len(rep) - len(steps)) <= 1]
        nested = sum(len(rep) >= _NESTED * len(steps) and len(rep) > len(steps) + 1 for rep in self._regular.values())
        return agree, len(self._regular) - len(agree) - nested

    def _agreement(self, steps: _Repetition) -> float:
        agree, differ = self._votes(steps)
        return len(agree) / max(len(agree) + differ, 1)

    def _best(self, repetitions: Sequence[_Repetition], min_agreement: float = 0.0) -> _Repetition | None:
        """Return the repetition that most names agree with, preferring longer steps."""
        accepted = [repetition for repetition in repetitions if self._agreement(repetition) >= min_agreement]
        return max(accepted, key=lambda repetition: (self._agreement(repetition), -len(repetition)), default=None)

    def _collectives(self) -> Iterator[_Repetition]:
        """Yield steps that begin with the first collective of a group, of any name or one name."""
        codes = self.names.of(NCCL, COMMUNICATION)
        for group_codes in (codes, *(codes[[index]] for index in range(len(codes)) if len(codes) > 1)):
            for firsts, _ in _bursts(self._positions(group_codes)):
                yield from self._all(firsts, "collectives")

    def _positions(self, codes: Ints) -> Times:
        has_code = np.zeros(len(self.names.texts), bool)
        has_code[codes] = True
        return np.flatnonzero(has_code[self.code])

    def _graphs(self) -> Iterator[_Repetition]:
        """Yield steps with one launch of a CUDA graph at start or end, traced as a whole or by node."""
        positions = np.flatnonzero(self.graph)
        if not len(positions):
            return
        first = np.flatnonzero(np.diff(self.launch[positions], prepend=self.launch[positions[0]] - 1))
        graphs = np.minimum.reduceat(self.graph[positions], first)
        for graph in np.unique(graphs).tolist():
            begins = positions[first[graphs == graph]]
            phases = [*self._all(begins, "CUDA graph"), *self._all(begins + 1, "CUDA graph")]
            yield from sorted(phases, key=lambda repetition: repetition.edges[-1] - repetition.edges[0])[-1:]

    def _all(self, begins: Times, name: str) -> Iterator[_Repetition]:
        repetition = self._repetition(begins, name)
        if repetition is not None:
            yield repetition

    def _any_operation(self) -> _Repetition | None:
        """Return the longest steps that enough names agree on; they begin after the longest launch pauses."""
        for steps in sorted(self._regular.values(), key=len):
            agree, differ = self._votes(steps)
            if len(agree) >= max(2, _MIN_VOTES * len(self._regular)) and len(agree) > differ:
                # A copy to the host ends a step.
                candidates = [self._regular[code] for code in agree if not self.names.is_to_host[code]]
                pauses = np.diff(self.launch)
                return max(candidates, key=lambda rep: float(np.median(pauses[rep.edges[1:-1] - 1])), default=None)
        return None

    def _iterations(self) -> _Repetition | None:
        """Return the shortest repetition of one of the commonest kernels that returns at one distance in kernels.

        A kernel may run several times in an iteration. Iterations begin after the longest launch pauses.
        """
        from nsystui.base.kernel_names import smart_name

        kernels = np.flatnonzero(self.names.is_kernel[self.code])
        counts = np.bincount(self.code[kernels], minlength=len(self.names.texts))
        pauses = np.diff(self.launch, prepend=self.launch[:1])
        for code in np.argsort(-counts, kind="stable")[:_MAX_COMMON].tolist():
            indices = np.flatnonzero(self.code[kernels] == code)
            for runs in range(1, min(_MAX_RUNS, len(indices) // FEWEST) + 1):
                distances = indices[runs:] - indices[:-runs]
                if (distances == np.median(distances)).mean() < _MIN_ALIKE:
                    continue
                phases = [kernels[indices[first::runs]] for first in range(runs)]
                begins = max(phases, key=lambda phase: float(np.median(pauses[phase])))
                if self._busy[-1] - self._busy[begins[0]] >= LEAST_COVERAGE * self._busy[-1]:
                    return _Repetition(np.append(begins, len(self.code)), smart_name(self.names.texts[code]))
        return None

    def _as_steps(self, task: Task, anchor: str, repetition: _Repetition) -> TaskSteps:
        agree, differ = self._votes(repetition)
        edges, count = repetition.edges, len(repetition)
        launches = np.append(self.launch, self.launch[-1] + 1)[edges]
        first = edges[:-1]
        until = slice(0, edges[-1])
        busy = np.diff(self._busy[edges])
        starts, ends = np.minimum.reduceat(self.start[until], first), np.maximum.reduceat(self.end[until], first)
        gpu, outside = Projection(np.diff(edges), starts, ends, busy), int(self._busy[-1] - busy.sum())
        needs_proof = anchor in (anchors.COLLECTIVES, anchors.KERNELS)
        certainty = anchor, len(agree), differ, needs_proof and not bool(self.names.marks[agree].any())
        numbers = np.arange(count)
        return TaskSteps(task, repetition.name, numbers, launches[:-1], launches[1:], gpu, outside, *certainty)


def _bursts(positions: Times) -> Iterator[tuple[Times, Times]]:
    """Yield first and last positions of groups, for each plausible distance within groups."""
    if not len(positions):
        return
    gaps = np.diff(positions)
    sizes = distinct(gaps)
    ratios = sizes[1:] / sizes[:-1]
    jumps = np.flatnonzero(ratios >= _JUMP)
    for within in (1, *sizes[jumps[np.argsort(-ratios[jumps])][:_MAX_JUMPS]].tolist()):
        is_new = gaps > within
        yield positions[np.append(True, is_new)], positions[np.append(is_new, True)]
