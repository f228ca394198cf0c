"""Recipes: options, answers by rank, and maps of several figures over time.

A map, shown as a table or drawn, has a line per GPU, process or adapter.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

import numpy as np

from nsystui.base.answer import END, RANK, START, Answer, Column, Row, TableAnswer, Unit, row_batches
from nsystui.base.selection import Selection, Window
from nsystui.base.types import Floats
from nsystui.base.units import format_value
from nsystui.questions.job.job import OpenJob
from nsystui.questions.kernels.summary import Names
from nsystui.questions.queries.tasks import RankedTask, selected_ranks
from nsystui.questions.queries.time_window import edges_of, selected_reports, shares_clock
from nsystui.store.session import Session

T = TypeVar("T")

MILLISECOND = 1_000_000
BINS = 30


@dataclass(frozen=True)
class RecipeOptions:
    """The options of a recipe, with NVIDIA's defaults.

    ``by_rank``: answer each rank separately. ``name``: kernel or range; ``None`` for the kernel with the most time, or
    the training steps. ``bins``: of a map. ``gap``: ns. ``threshold``: percent. ``chunks``: parts of a GPU's time.
    """

    by_rank: bool = False
    name: str | None = None
    names: Names = Names.FULL
    bins: int = BINS
    gap: int = 500 * MILLISECOND
    threshold: float = 50.0
    chunks: int = 30


AskRecipe = Callable[[OpenJob, Selection, RecipeOptions], Answer]
Draw = Callable[[OpenJob, Selection, RecipeOptions], "RecipeMap"]
"""Modules of this package list their functions by recipe name in ``ASK`` or ``MAPS``."""


_Question = Callable[[Session, Selection], Answer]
"""A question about a rank; the session has at least its report."""


def of_each_rank(job: OpenJob, selection: Selection, question: _Question) -> Answer:
    """Concatenate the ranks' answers after a column for the rank."""
    parts = [(item.rank, of_rank(job, selection, item, question)) for item in selected_ranks(job.ranks, selection)]
    if not parts:
        empty = question(job.session, selection)
        return TableAnswer(empty.name, (RANK, *empty.columns), [], 0, empty.notes)
    return _RankAnswers(tuple(rank for rank, _ in parts), tuple(part for _, part in parts))


def of_rank(job: OpenJob, selection: Selection, rank: RankedTask, question: Callable[[Session, Selection], T]) -> T:
    """Return the answer for one rank."""
    return question(job.session.part([rank.task.report]), selection.with_tasks(frozenset({rank.task})))


@dataclass(frozen=True)
class _RankAnswers:
    """The concatenated answers for ``ranks``, which have the same columns."""

    ranks: tuple[int, ...]
    parts: tuple[Answer, ...]

    @property
    def name(self) -> str:
        return self.parts[0].name

    @property
    def columns(self) -> tuple[Column, ...]:
        return (RANK, *self.parts[0].columns)

    @property
    def total(self) -> int:
        return len(self)

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(note for part in self.parts for note in part.notes))

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def page(self, offset: int, limit: int) -> Sequence[Row]:
        ends = list(accumulate(map(len, self.parts)))
        rows: list[Row] = []
        for rank, part, end in zip(self.ranks, self.parts, ends, strict=True):
            first = max(0, offset - (end - len(part)))
            wanted = limit - len(rows)
            if first < len(part) and wanted > 0:
                rows += [(rank, *row) for row in part.page(first, wanted)]
        return rows

    def stream(self, size: int) -> Iterator[Sequence[Row]]:
        for rank, part in zip(self.ranks, self.parts, strict=True):
            for batch in row_batches(part, size):
                yield [(rank, *row) for row in batch]

    def sorted_by(self, key: str, descending: bool) -> Answer:
        rows = [row for batch in self.stream(10_000) for row in batch]
        return TableAnswer(self.name, self.columns, rows, self.total, self.notes).sorted_by(key, descending)


@dataclass(frozen=True)
class Figure:
    """A figure of a map: percent if its column has that unit, else a rate."""

    column: Column
    category: str | None = None  # the category that selects the lane's colour

    @property
    def title(self) -> str:
        """The heading of its lanes, without the unit, which the values show."""
        return self.column.header.removesuffix(" (B/s)")

    def words(self, value: float) -> str:
        """Return a value with its unit, as ``10.26 GB/s``, or with thousands separators."""
        unit = self.column.unit
        return format_value(Unit.COUNT if unit in (Unit.NUMBER, Unit.TICK_RATE) else unit, float(value))


@dataclass(frozen=True, eq=False)
class MapLine:
    """A line of a map: its ``key``, and the values of its figures, shape ``(figures, bins)``, NaN if missing.

    ``means``, shape ``(figures,)``: means over all sampled time; ``None`` if no bin is sampled in part.
    """

    key: Row
    label: str
    values: Floats
    means: Floats | None = None

    def mean(self, figure: int) -> float:
        """Return the mean of a figure over all bins; NaN if no bin has a value."""
        if self.means is not None:
            return float(self.means[figure])
        values = self.values[figure]
        finite = values[np.isfinite(values)]
        return float(finite.mean()) if len(finite) else math.nan


@dataclass(frozen=True, eq=False)
class RecipeMap:
    """A map: ``figures`` of each line in ``bins`` equal spans of ``window``; ``key_columns`` identify a line."""

    name: str
    window: Window
    bins: int
    key_columns: tuple[Column, ...]
    figures: tuple[Figure, ...]
    lines: tuple[MapLine, ...]
    notes: tuple[str, ...] = ()

    def shares(self, figure: int) -> list[Floats]:
        """Return every line's figure scaled to 0…1; 1 is 100 % or the largest rate."""
        rows = [line.values[figure] for line in self.lines]
        if self.figures[figure].column.unit is Unit.PERCENT:
            return [row / 100.0 for row in rows]
        largest = max([float(np.nanmax(row)) for row in rows if np.isfinite(row).any()], default=0.0)
        return [row / largest if largest > 0 else row for row in rows]


def percent(key: str, title: str, label: str, category: str | None = None) -> Figure:
    """Return a figure in percent of the time."""
    return Figure(Column(key, header=f"{title} (%)", label=f"{label} %", unit=Unit.PERCENT, decimals=1), category)


def clock_notes(job: OpenJob, selection: Selection) -> tuple[str, ...]:
    """Return a note if the selected reports share no clock."""
    if shares_clock(selected_reports(job.session, selection)):
        return ()
    return ("these reports share no clock: select the ranks of one report to see it over its own time",)


def map_table(shown: RecipeMap) -> TableAnswer:
    """Tabulate a map: a row per line and span of time, a column per figure."""
    edges = edges_of(shown.window, shown.bins)
    columns = (*shown.key_columns, START, END.with_importance(4), *(figure.column for figure in shown.figures))
    rows: list[Row] = []
    for line in shown.lines:
        for number, values in enumerate(line.values.T.tolist()):
            known = (None if value != value else value for value in values)  # NaN is not equal to itself
            rows.append((*line.key, edges[number], edges[number + 1], *known))
    return TableAnswer(shown.name, columns, rows, len(rows), shown.notes)
