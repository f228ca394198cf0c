"""CPU samples of two sides: functions, by the running time that the samples represent.

See docs/numbers.md#comparison. Functions match if their names and their modules' file names are equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from nsystui.base.answer import FILES_ONLY, Column, Row, Unit, Value
from nsystui.base.kernel_names import function_name
from nsystui.base.selection import Window
from nsystui.base.types import Ints
from nsystui.base.units import format_value
from nsystui.questions.compare.pairs import BOTH, GONE, NEW, Compared, minus, ratio
from nsystui.questions.compare.side import ALWAYS, Basis, Side, both
from nsystui.questions.host.calltree import call_trees
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
from nsystui.questions.host.stacks import Function
from nsystui.store import tables

_NO_GROUP = SampleGroup((), {})


@dataclass(frozen=True, eq=False)
class _Sampled:
    """A side's counted samples, and the running time that each represents, ns.

    ``time`` is ``None`` if there are too few samples to estimate it; tables divide it by ``divisor``.
    """

    samples: CpuSamples
    group: SampleGroup
    time: float | None
    divisor: int
    is_recorded: bool

    @property
    def weight(self) -> float | None:
        """Time of a sample in the tables, ns."""
        return None if self.time is None else self.time / self.divisor

    def measures(self, sample_counts: Ints) -> tuple[list[float | None], list[float | None], list[int | None]]:
        """Return the times, shares of all samples (%), and counts."""
        if not self.is_recorded:
            return [None] * len(sample_counts), [None] * len(sample_counts), [None] * len(sample_counts)
        all_samples, counts = self.group.samples, sample_counts.tolist()
        weight = self.weight
        times = [None if count and weight is None else count * (weight or 0.0) for count in counts]
        return times, [100.0 * count / all_samples if all_samples else None for count in counts], counts


@dataclass(frozen=True, eq=False)
class _Pair:
    """Both sides, the divisor of their times (``step``, ``rank``, or empty), and the table's notes."""

    sides: tuple[_Sampled, _Sampled]
    each: str
    notes: tuple[str, ...]

    def cells(self, a: Ints, b: Ints) -> list[Row]:
        """Return a row per function: time difference, times, shares, and sample counts."""
        columns = [
            column for pair in zip(self.sides[0].measures(a), self.sides[1].measures(b), strict=True) for column in pair
        ]
        return [(minus(row[1], row[0]), *row) for row in zip(*columns, strict=True)]

    def statuses(self, a: Ints, b: Ints) -> list[str | None]:
        if not all(side.is_recorded for side in self.sides):
            return [None] * len(a)
        counts = zip(a.tolist(), b.tolist(), strict=True)
        return [BOTH if first and second else NEW if second else GONE for first, second in counts]


def functions(a: Side, b: Side, step_range: str | None = None) -> Compared:
    """Return functions by running time: self, and total, which includes the time as a caller."""
    pair = _pair(a, b, step_range)
    sampled = [(side.samples, side.group) for side in pair.sides]
    trees = call_trees(sampled, alike=lambda function: replace(function, module=function.library))
    self_counts, total_counts = zip(*(counts(tree.tree, tree.self_samples) for tree in trees), strict=True)
    # Samples without a stack have no self count, but count under a node for them.
    all_functions, indices = trees[0].tree.functions, np.flatnonzero((total_counts[0] > 0) | (total_counts[1] > 0))
    selfs, totals = [values[indices] for values in self_counts], [values[indices] for values in total_counts]
    parts = zip(indices.tolist(), pair.cells(*selfs), pair.cells(*totals), pair.statuses(*totals), strict=True)
    rows = [
        (*self_cells, _factor(self_cells), *total_cells, status, *_names(all_functions[index]))
        for index, self_cells, total_cells, status in parts
    ]
    name_filter = a.selection.name or b.selection.name
    if name_filter is not None:
        rows = [row for row in rows if name_filter.matches(str(row[-1]))]
    rows.sort(key=lambda row: (*(-abs(_number(row[index])) for index in (0, 5, 6)), str(row[-1])))
    columns = (*_columns("own", "Self", pair.each, 0), _RATIO, *_columns("total", "Total", pair.each, 2))
    names = (_STATUS, _FUNCTION, MODULE.with_importance(2), KERNEL_MODE.with_importance(4), FULL_NAME)
    return Compared("diff-functions", (*columns, *names), rows, len(indices), pair.notes)


def _pair(a: Side, b: Side, step_range: str | None) -> _Pair:
    recorded = [bool(side.job.session.count(tables.host_samples)) for side in (a, b)]
    steps = [side.whole_steps(step_range) for side in (a, b)]
    basis = Basis(a.ranks_with(tables.host_samples), b.ranks_with(tables.host_samples))
    by_step = all(recorded) and all(side_steps.count for side_steps in steps)
    if by_step:
        basis = Basis(steps[0].count, steps[1].count, by_step=True)
    sides: list[_Sampled] = []
    left_out, sampling = [], []
    for side, side_steps, divisor, is_recorded in zip((a, b), steps, basis.divisors, recorded, strict=True):
        job_samples = samples_of_job(side.job, side.selection)
        windows = side_steps.spans if by_step else dict.fromkeys(job_samples.stacks, side.selection.window or ALWAYS)
        samples = job_samples.within(windows)
        groups = grouped(samples, named_threads(side.job, samples.threads), "all")
        time = _time_of(side, samples, windows)
        sides.append(_Sampled(samples, groups[0] if groups else _NO_GROUP, time, divisor, is_recorded))
        left_out.append(f"{len(job_samples) - len(samples):,} of {len(job_samples):,}")
        sampling.append(sampling_notes(side.job.session, job_samples, with_count=False))
    pair = sides[0], sides[1]
    notes = [*both(sampling[0], sampling[1])]
    if not all(recorded):
        return _Pair(pair, "", tuple(notes))
    if by_step:
        notes.append(
            f"times are per step (A has {basis.a:,}, B has {basis.b:,}); samples before and after all steps "
            f"are left out: {left_out[0]} of A, {left_out[1]} of B"
        )
    else:
        notes += basis.note(" with CPU samples")
        notes.append("A or B has no steps: compare percentages, and times only if both did the same work")
    times = ("–" if side.time is None else format_value(Unit.DURATION, side.time) for side in pair)
    notes.append("a sample represents {} of running time in A, {} in B".format(*times))
    return _Pair(pair, basis.each, tuple(notes))


def _time_of(side: Side, samples: CpuSamples, windows: Mapping[int, Window]) -> float | None:
    """Return the running time that a sample represents, ns: by scheduling, the threads' running time per sample.

    Without scheduling, it is the typical time between two samples of a thread: too long for threads that often leave
    their CPU.
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


def _columns(key: str, title: str, each: str, importance: int) -> tuple[Column, ...]:
    """Return the columns of `_Pair.cells`; with ``importance`` 0, the difference is the main column."""
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
    side_columns = (
        Column(
            name.format(side),
            header=header.format(side.upper()),
            label=label.format(side.upper()),
            unit=unit,
            decimals=decimals,
            importance=level,
        )
        for name, header, label, unit, decimals, level in pairs
        for side in "ab"
    )
    header = f"{title} Difference{per} (ns)"
    return (
        Column(change, header=header, label=f"{word} B − A", unit=Unit.CHANGE, decimals=digits, importance=importance),
        *side_columns,
    )


def _number(value: Value) -> float:
    return value if isinstance(value, int | float) else 0.0


def _factor(cells: Row) -> float | None:
    a, b = (value if isinstance(value, int | float) else None for value in cells[1:3])
    return ratio(a, b)


def _names(function: Function) -> tuple[str, str, str, str]:
    return function_name(function.name), function.library, mode_of(function), function.name
