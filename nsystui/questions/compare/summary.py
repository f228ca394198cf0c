"""A comparison's summary: utilisation, steps, GPU time, NCCL, memory, and the table that explains each row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import fmean
from typing import TypeVar

from nsystui.base.answer import FILES_ONLY, Column, Row, TableAnswer, Unit, Value
from nsystui.base.units import align_decimal, format_value
from nsystui.questions.compare.pairs import BOTH, GONE, NEW, Compared, minus, ratio
from nsystui.questions.compare.side import Basis, Side, both, gpu_basis, with_smart_names
from nsystui.questions.compare.tables import (
    STEP,
    api,
    families,
    graph_time,
    kernels,
    memory,
    nccl,
    nvtx,
    spreads,
    steps,
)
from nsystui.questions.compare.verdict import CHANGED, ComparedBy, Verdict, verdict, words_of_ranks
from nsystui.questions.gpu.utilisation import SHARE_COLUMNS
from nsystui.questions.host.naming import worker_processes
from nsystui.questions.kernels.summary import Names
from nsystui.questions.memory.host_copies import PAGEABLE, host_copies
from nsystui.questions.nccl.bandwidth import launched_in_steps
from nsystui.questions.nccl.summary import KERNEL
from nsystui.questions.queries.pauses import pauses
from nsystui.questions.queries.time_window import extents, report_at
from nsystui.questions.ranks.overview import task_table
from nsystui.questions.steps.kernels_in_steps import count_in_steps
from nsystui.store import tables


@dataclass(frozen=True)
class Utilisation:
    """A side's mean utilisation over its ranks with a GPU, if any, by the keys of ``SHARE_COLUMNS``.

    ``time``: the span that the percentages refer to, ns (a mean if reports share no clock).
    """

    percent: Mapping[str, float | None]
    time: float | None
    notes: tuple[str, ...]


def utilisation(side: Side, other: Side) -> Utilisation:
    """Return the mean of the overview's rows for ``side``, compared with ``other``."""
    job, selection = side.job, side.selection_for_shares(other)
    table = task_table(job.session, selection, job.ranks, job.busy(selection))
    percent = {
        column.key: _mean([cell for cell in table.cells(column.key) if isinstance(cell, int | float)])
        for column in SHARE_COLUMNS
    }
    windows = extents(job.session, selection)
    reports = [report_at(job.session, item.task.report) for item in side.ranks if item.task.report in windows]
    spans = [(windows[report.index], pauses(job.session, report)) for report in reports]
    times: list[float] = [span.end - span.start - paused.length_within(span.start, span.end) for span, paused in spans]
    return Utilisation(percent, _mean(times), table.notes)


def _mean(values: list[float]) -> float | None:
    return fmean(values) if values else None


T = TypeVar("T", bound=TableAnswer)
_TABLE = Column("table", header="Table", label="table", importance=FILES_ONLY)
COLUMNS = (
    Column("what", header="What", label="what"), Column("unit", header="Unit", label="unit"),
    Column("a", header="A", label="A", unit=Unit.NUMBER), Column("b", header="B", label="B", unit=Unit.NUMBER),
    Column("difference", header="Difference", label="B − A", unit=Unit.NUMBER),
    Column("ratio", header="B / A", label="B/A", unit=Unit.RATIO, decimals=4), _TABLE,
)  # fmt: skip
"""The columns of `summary`; ``unit`` is the unit of a row's values: ns, percent or count."""

_WORDED = (
    Column("what", header="What", label="what"),
    *(Column(key, header=label, label=label) for key, label in (("a", "A"), ("b", "B"))),
    Column("difference", header="B − A", label="B − A"),
    Column("ratio", header="B / A", label="B/A", unit=Unit.RATIO, decimals=4, importance=1),
    _TABLE,
)
_UNITS = {"ns": Unit.DURATION, "%": Unit.PERCENT, "count": Unit.COUNT}

_PARTS = (
    ("busy_percent", "GPU busy"), ("compute_percent", "  compute"), ("nccl_percent", "  NCCL"),
    ("exposed_nccl_percent", "  exposed NCCL"), ("memory_percent", "  memory"), ("graph_percent", "  graph"),
    ("idle_percent", "GPU idle"),
)  # fmt: skip
_OPTIONAL = ("nccl_percent", "exposed_nccl_percent", "graph_percent")
_NAMED = 3
"""The notes name at most this many of the largest changes."""
_OTHER_WORK = 0.02
_SAME_TIME = 0.05


@dataclass(frozen=True)
class _Line:
    """A row of the summary. ``difference``: B − A, used if a value is missing.

    ``fact``: the value's name in the verdict's sentence, if it may appear there.
    """

    what: str
    unit: str
    a: float | None
    b: float | None
    table: str | None = None
    difference: float | None = None
    fact: str = ""

    @property
    def change(self) -> float:
        """Growth from the smaller value, %; of percentages, in points."""
        if not self.fact or self.a is None or self.b is None:
            return 0.0
        if self.unit == "%":
            return abs(self.b - self.a)
        smaller, larger = sorted((self.a, self.b))
        return 100 * (larger / smaller - 1) if smaller else inf if larger else 0.0

    @property
    def words(self) -> str:
        before, after = (format_value(_UNITS[self.unit], value) for value in (self.a, self.b))
        return f"{self.fact} {before} → {after}"

    def row(self) -> Row:
        difference = minus(self.b, self.a)
        cells: Sequence[float | None] = (self.a, self.b, self.difference if difference is None else difference)
        if self.unit == "%":
            cells = [value if value is None else round(value, 4) for value in cells]
        return (self.what, self.unit, *cells, ratio(self.a, self.b), self.table)


@dataclass(frozen=True)
class ComparisonSummary(TableAnswer):
    """The summary, the verdict on B (or what differs between ranks), and the counts that changed most."""

    verdict: Verdict | None = None
    counts: tuple[str, ...] = ()
    of_ranks: str = ""

    @property
    def words(self) -> str:
        """The verdict and the counts as a sentence; empty without a verdict."""
        if self.verdict is None:
            return ""
        return "; ".join(filter(None, (self.of_ranks or self.verdict.words, ", ".join(self.counts)))) + "."

    @property
    def headline(self) -> str:
        """The sentence of `words`, with B as its subject unless it names ranks."""
        return f"B is {self.words}" if self.words and not self.of_ranks else self.words

    @property
    def remarks(self) -> tuple[str, ...]:
        """The notes without the headline, which is the first."""
        return self.notes[1:] if self.headline else self.notes


def summary(a: Side, b: Side, step_range: str | None = None) -> ComparisonSummary:
    """Return one row per measure: A, B, B − A and B / A. Percentages are means over the ranks of a side.

    The difference in kernel time is split into kernels that only one side has and, for other names, count and duration
    (see `pairs`). Sums are per rank if the sides have different numbers of ranks. Notes name the largest changes, and a
    side that did more work.
    """
    utilisations = utilisation(a, b), utilisation(b, a)
    compared = kernels(a, b), nccl(a, b), memory(a, b)
    ranges = nvtx(a, b, step_range=step_range)
    basis = gpu_basis(a, b)
    answer = ComparisonSummary("diff-summary", COLUMNS, [], 0, verdict=verdict(a, b, compared[0], step_range))
    lines = [
        *_steps(a, b, step_range, answer.verdict),
        _Line("time span", "ns", utilisations[0].time, utilisations[1].time),
        *(
            _Line(what, "%", utilisations[0].percent[key], utilisations[1].percent[key])
            for key, what in _PARTS
            if key not in _OPTIONAL or utilisations[0].percent[key] or utilisations[1].percent[key]
        ),
        *_facts((a, b), step_range),
        *_work((a, b), *compared, [spreads(side, step_range)[STEP].count for side in (a, b)]),
    ]
    changed = sorted((line for line in lines if line.change >= CHANGED), key=lambda line: -line.change)
    of_ranks = words_of_ranks(a, b, answer.verdict) if answer.verdict is not None else ""
    answer = replace(answer, counts=tuple(line.words for line in changed[:_NAMED]), of_ranks=of_ranks)
    other_work = _other_work(compared[0], utilisations)
    notes = (
        *([answer.headline] if answer.headline else []),
        *basis.note(" with a GPU"),
        *([other_work] if other_work else []),
        *_largest("kernel families", families(a, b)),
        *_largest("kernels", with_smart_names(compared[0], a, b)),
        *_largest("NVTX ranges", ranges, f" per {ranges.each}" if ranges.each else ""),
        *both(*(side.notes for side in utilisations)),
        *compared[0].notes,
        *both(*(side.job.steps(step_range).why_none for side in (a, b))),
    )
    rows = [line.row() for line in lines]
    return replace(answer, rows=rows, total=len(rows), notes=tuple(dict.fromkeys(notes)))


def worded(answer: T) -> T:
    """Return the summary for a screen, each value with its unit; files keep the plain summary."""
    units = [_UNITS[str(unit)] for unit in answer.cells("unit")]

    def aligned(key: str, format_cell: Callable[[Unit, Value], str]) -> list[str]:
        cells = [format_cell(unit, value) for unit, value in zip(units, answer.cells(key), strict=True)]
        return align_decimal(cells) if cells else []

    values = aligned("a", format_value), aligned("b", format_value), aligned("difference", _signed)
    columns = answer.cells("what"), *values, answer.cells("ratio"), answer.cells("table")
    return replace(answer, columns=_WORDED, rows=list(zip(*columns, strict=True)))


def _signed(unit: Unit, value: Value) -> str:
    """Return a signed value; percentages differ by points."""
    text = format_value(unit, value).replace("%", "pp")
    if text.startswith("-") and not any(digit in text for digit in "123456789"):
        return text[1:]
    return f"+{text}" if isinstance(value, int | float) and value > 0 else text


def _steps(a: Side, b: Side, step_range: str | None, main: Verdict | None) -> Iterator[_Line]:
    first, second = (spreads(side, step_range)[STEP] for side in (a, b))
    if first.count or second.count:
        for item in (main, main and main.also):
            if item is not None and item.basis is ComparedBy.STEP:
                yield _Line("step time, mean", "ns", item.a.unit, item.b.unit, "steps")
        yield _Line("step time, median", "ns", first.median, second.median, "steps")
        yield _Line("step time, p95", "ns", first.p95, second.p95, "steps")
        yield _Line("steps of all ranks", "count", first.count or None, second.count or None, "steps")


def _work(
    sides: tuple[Side, Side], launched: Compared, communication: Compared, moved: Compared, steps: Sequence[int]
) -> Iterator[_Line]:
    """Yield the rows that sum columns of other tables. ``steps``: the number of steps of each side."""
    basis, kernels, copied = gpu_basis(*sides), gpu_basis(*sides, "kernels"), gpu_basis(*sides, "memory_ops")
    each = f" per {basis.each}" * bool(basis.each)

    def line(what: str, unit: str, pair: _Pair, table: str | None, fact: str = "") -> _Line:
        return _Line(f"{what}{each}", unit, *pair, table, fact=fact and f"{fact}{each}")

    kernel_time, memory_time = _pair(launched, "total", kernels), _pair(moved, "total", copied)
    graphs = [_graph_time(side, basis) for side in sides]
    parts = zip(kernel_time, memory_time, graphs, strict=True)
    a, b = (None if None in part else sum(filter(None, part)) for part in parts)
    yield line("GPU operation time", "ns", (a, b), None)
    if any(graphs):
        yield line("  whole CUDA graphs", "ns", (graphs[0], graphs[1]), None)
    yield line("  memory operations", "ns", memory_time, "memory")
    yield line("  kernels", "ns", kernel_time, "kernels")
    if kernels.a and kernels.b:
        common = [row for row in launched.records() if row["status"] == BOTH]
        single = [row for row in launched.records() if row["status"] != BOTH]
        changes = [("more calls", _total(common, "by_count")), ("longer calls", _total(common, "by_duration"))]
        changes += [("new and gone kernels", _total(single, "difference"))] if single else []
        for name, change in changes:
            yield _Line(f"    {name}", "ns", None, None, "kernels", change)
    has_nccl = communication.cells("what")[:1] == [KERNEL]
    if has_nccl:
        yield line("    NCCL kernels", "ns", _pair(communication, "total", kernels), "nccl")
        yield line("      exposed", "ns", _pair(communication, "exposed", kernels), "nccl")
    # Sums grow with the steps: if both sides have steps, `_facts` reports launches per step instead.
    has_fact = not all(steps)
    yield line("kernels launched", "count", _pair(launched, "count", kernels), "kernels", "kernels launched" * has_fact)
    if has_nccl:
        yield line("  of NCCL", "count", _pair(communication, "count", kernels), "nccl", "NCCL kernels" * has_fact)
    copy_fact = "copies and memsets" * (has_fact or steps[0] == steps[1])
    yield line("copies and memsets", "count", _pair(moved, "count", copied), "memory", copy_fact)


def _facts(sides: tuple[Side, Side], step_range: str | None) -> Iterator[_Line]:
    """Yield pageable copies, kernels of a step, and worker processes."""
    pageable = []
    for side in sides:
        copies = [copy for copy in host_copies(side.job.session, side.selection) if copy.memory is not None]
        copied = sum(copy.bytes for copy in copies)
        pageable_bytes = sum(copy.bytes for copy in copies if copy.memory == PAGEABLE)
        pageable.append(100.0 * pageable_bytes / copied if copied else None)
    if any(pageable):
        fact = "pageable share of the bytes copied"
        yield _Line("pageable, of bytes copied", "%", pageable[0], pageable[1], "memory", fact=fact)
    per_step = [_launches_per_step(side, step_range) for side in sides]
    for index, (what, table) in enumerate((("kernels of a step", "kernels"), ("NCCL kernels of a step", "nccl"))):
        if any(counts[index] for counts in per_step):
            yield _Line(what, "count", per_step[0][index], per_step[1][index], table, fact=what)
    workers = [
        len(worker_processes(side.job, [item.task for item in side.ranks]))
        if side.job.session.count(tables.sched_events)
        else None
        for side in sides
    ]
    if any(workers):
        yield _Line("worker processes", "count", workers[0], workers[1], fact="worker processes")


def _launches_per_step(side: Side, step_range: str | None) -> _Pair:
    """Return the mean number of kernels, and of NCCL kernels, of a rank's step, if there are steps."""
    count = spreads(side, step_range)[STEP].count
    if not count or not side.gpu_ranks("kernels"):
        return None, None
    steps = side.job.steps(step_range)
    calls = launched_in_steps(side.job.pairing(), steps, side.selection)
    return count_in_steps(side.job.session, side.selection, steps) / count, sum(calls.values()) / count


_Pair = tuple[float | None, float | None]


def _graph_time(side: Side, basis: Basis) -> float | None:
    if not (ranks := side.gpu_ranks("graph_launches")):
        return None
    return graph_time(side) / (ranks if basis.each else 1)


def _pair(answer: Compared, key: str, basis: Basis) -> _Pair:
    return _sum(answer, f"{key}_a", basis.a), _sum(answer, f"{key}_b", basis.b)


def _sum(answer: Compared, key: str, ranks: int = 1) -> float | None:
    """Return a column's sum; missing if no rank recorded it."""
    return _total(answer.records(), key) if ranks else None


def _total(rows: Iterable[Mapping[str, Value]], key: str) -> float:
    return sum(value for row in rows if isinstance(value := row[key], int | float))


def _other_work(launched: Compared, utilisations: tuple[Utilisation, Utilisation]) -> str:
    """Note if one side launched more kernels, which changes sums even if no kernel is slower; else empty."""
    a, b = _sum(launched, "count_a"), _sum(launched, "count_b")
    if not a or not b or abs(b / a - 1) <= _OTHER_WORK:
        return ""
    times = utilisations[0].time, utilisations[1].time
    is_as_long = bool(times[0] and times[1] and abs(times[1] / times[0] - 1) <= _SAME_TIME)
    span = " in about the same time" if is_as_long else ""
    percent = format_value(Unit.PERCENT, 100 * abs(b / a - 1))
    times_as = f"{format_value(Unit.COUNT, b / a)} times as many"
    amount = times_as if b >= 2 * a else f"{percent} {'fewer' if b < a else 'more'}"
    return f"B launched {amount} kernels{span}: this changes totals, but not medians and 'longer calls'"


def _largest(what: str, answer: TableAnswer, each: str = "") -> Iterator[str]:
    """Yield the largest changes by name, with the total in A, and the numbers of new and gone names."""
    changes = []
    for row in answer.records():
        change = row["difference"]
        if isinstance(change, int | float) and change:
            before = format_value(Unit.DURATION, row["total_a"])
            origin = f" from {before}" if row["status"] == BOTH else f" ({row['status']})"
            changes.append((-abs(change), f"{row['name']} {format_value(Unit.CHANGE, change)}{origin}"))
    if changes:
        yield f"{what} that changed most{each}: {', '.join(words for _, words in sorted(changes)[:_NAMED])}"
    statuses = answer.cells("status")
    counts = [f"{count:,} {word}" for word in (NEW, GONE) if (count := statuses.count(word))]
    if counts:
        yield f"names of {what}: {', '.join(counts)} in B"


@dataclass(frozen=True)
class ComparisonOptions:
    """Options: kernel names, whether to fold numbered NVTX names, and which ranges are steps."""

    names: Names = Names.FULL
    fold_numbers: bool = True
    step_range: str | None = None


@dataclass(frozen=True)
class ComparisonTable:
    """A table of the comparison and its title."""

    title: str
    make: Callable[[Side, Side, ComparisonOptions], TableAnswer]


TABLES: Mapping[str, ComparisonTable] = {
    "summary": ComparisonTable("what changed", lambda a, b, options: summary(a, b, options.step_range)),
    "kernels": ComparisonTable("kernels by name", lambda a, b, options: kernels(a, b, options.names)),
    "families": ComparisonTable("kernels by family", lambda a, b, _: families(a, b)),
    "nvtx": ComparisonTable(
        "NVTX ranges by name", lambda a, b, options: nvtx(a, b, options.fold_numbers, options.step_range)
    ),
    "nccl": ComparisonTable("NCCL by collective and message size", lambda a, b, _: nccl(a, b)),
    "memory": ComparisonTable("memory operations", lambda a, b, _: memory(a, b)),
    "api": ComparisonTable("CUDA API calls", lambda a, b, options: api(a, b, options.step_range)),
    "steps": ComparisonTable("training steps", lambda a, b, options: steps(a, b, options.step_range)),
}
