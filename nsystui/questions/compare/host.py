"""CPU samples of two sides: functions, and the call tree, by the running time that the samples stand for.

See docs/numbers.md#comparison. Functions are the same where their name and the file name of their module
are; nodes of the tree where the functions on the whole way to them are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from nsystui.base.answer import FILES_ONLY, Column, Row, Unit, Value
from nsystui.base.kernel_names import function_name
from nsystui.base.selection import Window
from nsystui.base.units import format_value
from nsystui.questions.compare.pairs import BOTH, GONE, NEW, Compared, minus, ratio
from nsystui.questions.compare.side import ALWAYS, Basis, Side, both
from nsystui.questions.host.calltree import HOT, LEAST, CallTree, call_trees
from nsystui.questions.host.functions import (
    FULL_NAME,
    KERNEL_MODE,
    MODULE,
    CpuSamples,
    SampleGroup,
    counts,
    grouped,
    mode_of,
    samples_of_job,
    sampling_notes,
)
from nsystui.questions.host.naming import named_threads
from nsystui.questions.host.segments import RUNNING, scheduling_of
from nsystui.questions.host.stacks import Function, Numbers
from nsystui.store import tables

_NO_GROUP = SampleGroup((), {})


@dataclass(frozen=True, eq=False)
class _Sampled:
    """The samples of a side that count, and the running time that each stands for, ns.

    ``time`` is ``None`` where too few samples tell; tables have times by ``divisor``. ``is_recorded``: whether samples
    were taken at all.
    """

    samples: CpuSamples
    group: SampleGroup
    time: float | None
    divisor: int
    is_recorded: bool

    @property
    def weight(self) -> float | None:
        """The time of a sample in the tables, ns."""
        return None if self.time is None else self.time / self.divisor

    def measures(self, own: Numbers) -> tuple[list[float | None], list[float | None], list[int | None]]:
        """Of some numbers of samples the times that they stand for, their shares (%), and these numbers themselves."""
        if not self.is_recorded:
            return [None] * len(own), [None] * len(own), [None] * len(own)
        whole, counts = self.group.samples, own.tolist()
        weight = self.weight
        times = [None if count and weight is None else count * (weight or 0.0) for count in counts]
        return times, [100.0 * count / whole if whole else None for count in counts], counts


@dataclass(frozen=True, eq=False)
class _Pair:
    """Both sides, what their times are of (``step``, ``rank``, or empty: all), and the notes of both tables."""

    sides: tuple[_Sampled, _Sampled]
    each: str
    notes: tuple[str, ...]

    def trees(self, is_root: Callable[[str], bool] | None = None) -> list[CallTree]:
        sides = [(one.samples, one.group) for one in self.sides]
        return call_trees(sides, is_root=is_root, alike=lambda one: replace(one, module=one.library))

    def cells(self, a: Numbers, b: Numbers) -> list[Row]:
        """Of each function or node the difference of the times, these, the shares and the numbers of samples."""
        columns = [
            column for pair in zip(self.sides[0].measures(a), self.sides[1].measures(b), strict=True) for column in pair
        ]
        return [(minus(row[1], row[0]), *row) for row in zip(*columns, strict=True)]

    def statuses(self, a: Numbers, b: Numbers) -> list[str | None]:
        if not all(one.is_recorded for one in self.sides):
            return [None] * len(a)
        found = zip(a.tolist(), b.tolist(), strict=True)
        return [BOTH if first and second else NEW if second else GONE for first, second in found]


def functions(a: Side, b: Side, step_range: str | None = None) -> Compared:
    """Functions by the time in which they ran (self); total is the time in which they ran or were a caller."""
    pair = _pair(a, b, step_range)
    trees = pair.trees()
    own, total = zip(*(counts(one.tree, one.own) for one in trees), strict=True)
    # What has no stack is at no function's end, but under a node of its own.
    known, chosen = trees[0].tree.functions, np.flatnonzero((total[0] > 0) | (total[1] > 0))
    mine, whole = [one[chosen] for one in own], [one[chosen] for one in total]
    parts = zip(chosen.tolist(), pair.cells(*mine), pair.cells(*whole), pair.statuses(*whole), strict=True)
    rows = [(*one, _factor(one), *every, place, *_names(known[number])) for number, one, every, place in parts]
    wanted = a.selection.name or b.selection.name
    if wanted is not None:
        rows = [row for row in rows if wanted.matches(str(row[-1]))]
    rows.sort(key=lambda row: (*(-abs(_number(row[place])) for place in (0, 5, 6)), str(row[-1])))
    columns = (*_columns("own", "Self", pair.each, 0), _RATIO, *_columns("total", "Total", pair.each, 2))
    names = (_STATUS, _FUNCTION, MODULE.with_importance(2), KERNEL_MODE.with_importance(4), FULL_NAME)
    return Compared("diff-functions", (*columns, *names), rows, len(chosen), pair.notes)


def call_tree(a: Side, b: Side, step_range: str | None = None) -> Compared:
    """The nodes of both call trees, paired by their ways from the root, in the order of the tree.

    The first below a node is the one with the largest difference in it. With a name filter the tree begins at functions
    that pass it.
    """
    pair = _pair(a, b, step_range)
    wanted = a.selection.name or b.selection.name
    trees = pair.trees(wanted.matches if wanted is not None else None)
    changed, whole = _changed(pair, trees)
    is_hot = set(changed.hot_path())
    shown = [
        (node, level)
        for node, level, is_shown in changed.walk(lambda node, _: 100.0 * changed.total[node] >= LEAST * whole)
        if is_shown
    ]
    nodes = np.array([node for node, _ in shown], np.int64)
    own, total = [one.own[nodes] for one in trees], [one.total[nodes] for one in trees]
    indents = _indents(shown, trees[0].tree.parent)
    parts = zip(shown, indents, pair.cells(*total), pair.cells(*own), pair.statuses(*total), strict=True)
    rows: list[Row] = []
    for (node, level), indent, mine, self_time, place in parts:
        name, *more = _names(trees[0].function(node))
        parent = int(trees[0].tree.parent[node])
        hot = "◂" if node in is_hot else ""
        places = (place, hot, "  " * indent + name, *more[:-1], level, node, parent, more[-1])
        rows.append((*mine, _factor(mine), *self_time, *places))
    every = int((trees[0].total + trees[1].total > 0)[1:].sum())
    notes = pair.notes
    if len(rows) < every:
        small = f"they and what they call differ by less than {LEAST:g} % of the time"
        notes = (*notes, f"{every - len(rows):,} of {every:,} nodes are left out: {small}")
    columns = (*_columns("total", "Total", pair.each, 0), _RATIO, *_columns("own", "Self", pair.each, 2))
    names = (_STATUS, HOT, _CALL, MODULE.with_importance(4), KERNEL_MODE.with_importance(5), *_PLACES, FULL_NAME)
    return Compared("diff-calltree", (*columns, *names), rows, every, notes)


def _changed(pair: _Pair, trees: Sequence[CallTree]) -> tuple[CallTree, float]:
    """The largest size of a difference of total time at each node and below, as a tree, and the time of all, ns."""
    tree = trees[0].tree
    a, b = (one.total * (side.weight or 1.0) for one, side in zip(trees, pair.sides, strict=True))
    largest = np.rint(np.abs(b - a)).astype(np.int64)
    edges = [*tree.levels.tolist(), len(tree)]
    for first, last in reversed(list(pairwise(edges[1:]))):
        np.maximum.at(largest, tree.parent[first:last], largest[first:last])
    return CallTree(tree, largest, largest), float(max(a[0], b[0]))


def _indents(shown: Sequence[tuple[int, int]], parents: Numbers) -> list[int]:
    """How far each node stands in: only one of several children moves, for chains of calls are deep."""
    children = np.bincount(parents[[node for node, _ in shown]], minlength=len(parents)) if shown else ()
    found = {0: -1}
    for node, _ in shown:
        parent = int(parents[node])
        found[node] = max(found[parent] + int(children[parent] > 1), 0)
    return [found[node] for node, _ in shown]


def _pair(a: Side, b: Side, step_range: str | None) -> _Pair:
    recorded = [bool(side.job.session.count(tables.host_samples)) for side in (a, b)]
    steps = [side.whole_steps(step_range) for side in (a, b)]
    basis = Basis(a.sampled_ranks, b.sampled_ranks)
    by_step = all(recorded) and all(one.count for one in steps)
    if by_step:
        basis = Basis(steps[0].count, steps[1].count, by_step=True)
    sides: list[_Sampled] = []
    left_out, lacking = [], []
    for side, own, divisor, is_recorded in zip((a, b), steps, basis.divisors, recorded, strict=True):
        whole = samples_of_job(side.job, side.selection)
        windows = own.spans if by_step else dict.fromkeys(whole.stacks, side.selection.window or ALWAYS)
        samples = whole.within(windows)
        groups = grouped(samples, named_threads(side.job, samples.threads), "all")
        time = _time_of(side, samples, windows)
        sides.append(_Sampled(samples, groups[0] if groups else _NO_GROUP, time, divisor, is_recorded))
        left_out.append(f"{len(whole) - len(samples):,} of {len(whole):,}")
        lacking.append(sampling_notes(side.job.session, whole, with_count=False))
    found = sides[0], sides[1]
    notes = [*both(lacking[0], lacking[1])]
    if not all(recorded):
        return _Pair(found, "", tuple(notes))
    if by_step:
        notes.append(
            f"times are per step (A has {basis.a:,}, B has {basis.b:,}); samples before and after all steps "
            f"are left out: {left_out[0]} of A, {left_out[1]} of B"
        )
    else:
        notes += basis.note("ranks with CPU samples")
        notes.append("A or B has no steps: compare percentages, and times only if both did the same work")
    said = ("–" if one.time is None else format_value(Unit.DURATION, one.time) for one in found)
    notes.append("a sample of A stands for {} of running time, a sample of B for {}".format(*said))
    return _Pair(found, basis.each, tuple(notes))


def _time_of(side: Side, samples: CpuSamples, windows: Mapping[int, Window]) -> float | None:
    """The running time that a sample stands for, ns: that of the threads by their scheduling, by their samples.

    Where no scheduling is recorded, the usual time between two samples of a thread, which is less for threads that
    often leave their CPU.
    """
    scheduling = scheduling_of(side.job.session, side.selection)
    if len(samples) and {report for report, _ in samples.threads} <= scheduling.reports():
        ran = sum(
            scheduling.threads[thread].labelled(RUNNING).clip(window.start, window.end).length
            for thread in samples.threads
            if thread in scheduling.threads
            for window in (windows[thread[0]],)
        )
        if ran:
            return ran / len(samples)
    return samples.period


_RATIO = Column("ratio", header="B / A", label="B/A", unit=Unit.RATIO, decimals=4, importance=4)
_STATUS = Column("status", header="Status", label="side", importance=3)
_FUNCTION = Column("name", header="Function", label="function")
_CALL = Column("name", header="Call", label="call")
_PLACES = tuple(
    Column(key, header=key.title(), label=key, unit=Unit.NUMBER, importance=FILES_ONLY)
    for key in ("level", "node", "parent")
)


def _columns(key: str, title: str, each: str, importance: int) -> tuple[Column, ...]:
    """The columns of `_Pair.cells`; with ``importance`` 0 the difference is the one that the table is about."""
    word, digits = title.lower(), 0 if each else None
    change = f"{key}_difference" if importance else "difference"
    per, short = (f" per {each.capitalize()}", f"/{each}") if each else ("", "")
    short = f" {word}{short}" if importance else short
    share = f" {word} %" if importance else " %"
    pairs = (
        (f"{key}_{{}}", f"{title} {{}}{per} (ns)", f"{{}}{short}", Unit.DURATION, digits, importance + 1),
        (f"{key}_{{}}_percent", f"{title} {{}} (%)", f"{{}}{share}", Unit.PERCENT, 2, importance + 2),
        (f"{key}_samples_{{}}", f"{title} Samples {{}}", f"{{}} {word} samples", Unit.COUNT, None, FILES_ONLY),
    )
    both_of = (
        Column(
            name.format(side),
            header=header.format(side.upper()),
            label=label.format(side.upper()),
            unit=unit,
            decimals=decimals,
            importance=rank,
        )
        for name, header, label, unit, decimals, rank in pairs
        for side in "ab"
    )
    header = f"{title} Difference{per} (ns)"
    return (
        Column(change, header=header, label=f"{word} B − A", unit=Unit.CHANGE, decimals=digits, importance=importance),
        *both_of,
    )


def _number(value: Value) -> float:
    return value if isinstance(value, int | float) else 0.0


def _factor(cells: Row) -> float | None:
    a, b = (value if isinstance(value, int | float) else None for value in cells[1:3])
    return ratio(a, b)


def _names(function: Function) -> tuple[str, str, str, str]:
    return function_name(function.name), function.library, mode_of(function), function.name
