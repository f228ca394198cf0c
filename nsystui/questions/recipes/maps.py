"""Maps: several figures over time, a line for each GPU, process or adapter; as a table, or for a drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsystui.base.answer import Row, TableAnswer
from nsystui.base.columns import END, START, Column, Unit
from nsystui.base.selection import Selection, Window
from nsystui.questions.job import Job
from nsystui.questions.time_window import selected_reports, shares_clock

_END = END.with_importance(4)


@dataclass(frozen=True)
class Figure:
    """A figure of a map: percent of the time where the unit of its column is that, else a rate."""

    column: Column
    category: str | None = None
    """Of a lane's colour."""

    @property
    def title(self) -> str:
        return self.column.header


@dataclass(frozen=True, eq=False)
class MapLine:
    """One place: the values of the columns that name it, and its figures, shape ``(figures, bins)``; NaN is missing."""

    place: Row
    label: str
    values: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RecipeMap:
    """``figures`` of each line over ``window`` in ``bins`` equal spans; ``places`` are the columns of a place."""

    name: str
    window: Window
    bins: int
    places: tuple[Column, ...]
    figures: tuple[Figure, ...]
    lines: tuple[MapLine, ...]
    notes: tuple[str, ...] = ()

    def shares(self, figure: int) -> list[NDArray[np.float64]]:
        """A figure of every line as 0 to 1 for a drawing: of rates 1 is the largest of all."""
        rows = [line.values[figure] for line in self.lines]
        if self.figures[figure].column.unit is Unit.PERCENT:
            return [row / 100.0 for row in rows]
        known = [float(np.nanmax(row)) for row in rows if np.isfinite(row).any()]
        largest = max(known, default=0.0)
        return [row / largest if largest > 0 else row for row in rows]


def percent(key: str, title: str, label: str, category: str | None = None) -> Figure:
    """A figure in percent of the time."""
    return Figure(Column(key, header=f"{title} (%)", label=f"{label} %", unit=Unit.PERCENT, decimals=1), category)


def window_of(job: Job, selection: Selection) -> Window:
    """The selected window, else from the first to the last event of the selected ranks."""
    return job.extent(selection)


def clock_notes(job: Job, selection: Selection) -> tuple[str, ...]:
    """That times of several reports do not compare, where they do not."""
    if shares_clock(selected_reports(job.session, selection)):
        return ()
    return ("these reports share no clock: select the ranks of one to see it over its own time",)


def edges_of(window: Window, bins: int) -> list[int]:
    """The ``bins + 1`` edges, ns, rounded down."""
    width = window.end - window.start
    return [window.start + number * width // bins for number in range(bins + 1)]


def map_table(shown: RecipeMap) -> TableAnswer:
    """A row for each line and span of time, with a column for each figure."""
    edges = edges_of(shown.window, shown.bins)
    columns = (*shown.places, START, _END, *(figure.column for figure in shown.figures))
    rows: list[Row] = []
    for line in shown.lines:
        for number, values in enumerate(line.values.T.tolist()):
            rows.append((*line.place, edges[number], edges[number + 1], *_known(values)))
    return TableAnswer(shown.name, columns, rows, len(rows), shown.notes)


def _known(values: Sequence[float]) -> list[float | None]:
    return [None if value != value else value for value in values]  # NaN is not equal to itself
