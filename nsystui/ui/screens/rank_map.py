"""The map of all ranks: one line a rank (or several), one cell a span of time or a step."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from nsystui.base.answer import Answer, Unit
from nsystui.base.drawing import Drawing
from nsystui.base.selection import Selection, Task, Window
from nsystui.base.text import spans
from nsystui.base.units import format_value
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.tasks import RankedTask
from nsystui.questions.ranks.heat import PARTS, Merge, RankMap, figures_of, map_table, scaled, step_map, time_map
from nsystui.questions.ranks.steps import step_times
from nsystui.ui.pictures.drawings import strips
from nsystui.ui.screens.chart import ChartScreen
from nsystui.ui.widgets.frame import Choice
from nsystui.ui.widgets.plots import step_axis, time_axis
from nsystui.ui.widgets.strip_chart import Lane, StripChart

_DEFAULT = "exposed NCCL"
"""The figure by which odd ranks are found: the one that makes the others wait has least of it."""
_HIGHEST = 4
"""Rows of a rank where there are few."""
_ODD, _LEAST_ODD = 3.5, 0.2
"""A rank is odd that is further from the median than so many times the usual distance, and than so much of it."""

_FRAME = 8
"""Lines for the title, the selection, the views, the axis, the details (3) and the keys."""

_CATEGORIES = {
    "busy": "compute",
    "compute": "compute",
    "NCCL": "nccl",
    "exposed NCCL": "nccl",
    "memory": "memory",
    "graph": "graph",
    "step time": "nvtx",
}
"""The colours of the figures; those of GPU metrics are that of metrics."""


@dataclass(frozen=True, eq=False)
class _Picture:
    """A map as it is drawn: the groups of ranks on its lines, and their values."""

    shown: RankMap
    groups: Sequence[Sequence[RankedTask]]
    merged: np.ndarray[Any, Any]
    figures: tuple[str, ...]
    window: Window


@dataclass(frozen=True)
class _Wanted:
    """The request for a picture. ``within``: the ranks of the line that was opened, or all."""

    figure: str = _DEFAULT
    of_steps: bool = False
    merge: Merge = Merge.MEAN
    within: frozenset[Task] | None = None
    columns: int = 1
    lines: int = 1


class RankMapScreen(ChartScreen):
    """Utilisation of every rank over time, or the times of its steps."""

    MODE_KEY = "4"
    SCREEN = "rank map"
    STATE = ("_figure", "_of_steps", "_merge", "_opened")
    PLACES = ("rank map", "everywhere")
    chart: StripChart

    DEFAULT_CSS = "RankMapScreen #detail { height: 3; }"

    def __init__(self) -> None:
        super().__init__()
        self._figure = _DEFAULT
        self._of_steps = False
        self._merge = {False: Merge.MEAN, True: Merge.MAXIMUM}
        self._opened: tuple[frozenset[Task], ...] = ()
        self._wanted = _Wanted()
        self._picture: _Picture | None = None

    def make_chart(self) -> StripChart:
        """A chart of shades, with steps or time on its axis."""
        return StripChart(label_width=9, value_width=17, axis=self._axis, is_ramp=True, id="chart")

    def parameters(self) -> tuple[Hashable, ...]:
        """The figure and the ranks, and the columns and lines there is room for."""
        size = self.app.size
        columns = self.chart.columns_in(size.width)
        within = self._opened[-1] if self._opened else None
        merge = self._merge[self._of_steps]
        lines = max(1, size.height - _FRAME)
        places = 2 * lines if self.chart.has_colours else lines
        self._wanted = _Wanted(self._figure, self._of_steps, merge, within, columns, places)
        return (self._wanted,)

    def ask(self, job: OpenJob, selection: Selection) -> _Picture:
        """Compute the figure of each group of ranks that a line has."""
        wanted = self._wanted
        window = job.extent(selection)
        ranks = [
            item
            for item in job.ranks
            if (selection.tasks is None or item.task in selection.tasks)
            and (wanted.within is None or item.task in wanted.within)
        ]
        figures: tuple[str, ...] = ("step time",)
        if wanted.of_steps:
            steps = job.steps()
            shown = step_map(ranks, step_times(steps, selection.window), steps.notes)
        else:
            figures = figures_of(job.session, selection)
            busy = job.busy(selection)
            shown = time_map(job.session, selection, ranks, busy, window, wanted.columns, wanted.figure)
        groups = shown.grouped(wanted.lines)
        return _Picture(shown, groups, shown.merged(groups, wanted.merge), figures, window)

    def show(self, result: Any, same_place: bool) -> None:
        """Draw the lines, or say why no rank has the figure."""
        picture: _Picture = result
        self._picture = picture
        shown = picture.shown
        if not picture.groups:
            self.show_empty("\n".join(shown.notes) or f"no rank has {shown.figure} here: b shows another metric")
            self.show_title()
            return
        self.show_empty("")
        heights = scaled(picture.merged, shown.is_of_steps)
        lines = max(1, self.app.size.height - _FRAME)
        halves = len(picture.groups) > lines
        height = max(1, min(lines // len(picture.groups), _HIGHEST))
        lanes = [
            Lane(_label(group), row, value, _CATEGORIES.get(shown.figure, "metric"), height=height)
            for group, row, value in zip(picture.groups, heights.tolist(), _values(picture), strict=True)
        ]
        ends = (0, len(shown.numbers)) if shown.is_of_steps else (picture.window.start, picture.window.end)
        self.chart.set_lanes(lanes, *ends, halves=halves)
        most = max(len(group) for group in picture.groups)
        how = f" · {self._wanted.merge.value} of {most} ranks a line" if most > 1 else ""
        ranks = f"{len(shown.ranks):,} rank{'' if len(shown.ranks) == 1 else 's'}"
        unit = "median step" if shown.is_of_steps else f"{shown.figure} %"
        self.show_title(right=f"{unit}{how} · {ranks} · {_MARK} unlike the others")
        self.show_detail()

    def _axis(self, low: int, high: int, width: int) -> str:
        picture = self._picture
        if picture is None or not picture.shown.is_of_steps:
            return time_axis(low, high, width)
        return step_axis(picture.shown.numbers, width)

    def _place(self) -> tuple[Sequence[RankedTask], int] | None:
        """The ranks of the cursor's line, and the column of the map that its cell shows."""
        picture = self._picture
        if picture is None or self.chart.cursor_lane >= len(picture.groups) or not picture.shown.columns:
            return None
        columns = len(picture.shown.columns)
        column = min(self.chart.cursor_column * columns // max(1, self.chart.chart_width), columns - 1)
        return picture.groups[self.chart.cursor_lane], column

    def show_detail(self) -> None:
        """Show the values of the ranks at the cursor, and those of all."""
        place, picture = self._place(), self._picture
        if place is None or picture is None:
            return
        group, column = place
        shown = picture.shown
        first = shown.ranks.index(group[0])
        values = shown.values[first : first + len(group), column]
        span = shown.columns[column]
        where = f"step {shown.numbers[column]} · " if shown.is_of_steps else ""
        start, length = format_value(Unit.TIME, span.start), format_value(Unit.DURATION, span.end - span.start)
        head = f"{_label(group, 'rank')} · {where}{start} + {length}"
        column_values = shown.values[:, column]
        lines = [[(head, "bold")], [(f"{shown.figure} {_spread(values, group, shown.is_of_steps)}", "")]]
        if len(shown.ranks) > len(group):
            lines.append([(f"all ranks: {_spread(column_values, shown.ranks, shown.is_of_steps)}", "dim")])
        self.detail.show_lines(lines)

    def view_name(self) -> str:
        """Whether the map is of time or of steps."""
        return "step map" if self._of_steps else "map"

    def take_view(self, name: str, **options: str) -> None:
        """Show the map of time or of steps."""
        self._of_steps = name == "step map"
        if self.is_mounted:
            self.job_changed()

    def choices(self) -> tuple[Choice, ...]:
        """Offer the figures of a map of time, and where lines are of several ranks what stands for these."""
        picture, found = self._picture, list(super().choices())
        names = picture.figures if picture is not None else tuple(PARTS)
        if not self._of_steps and self._figure in names:
            words = {name: name for name in names}
            found.append(Choice.among("by", words, self._figure, lambda figure: self.ask_with(_figure=figure)))
        if picture is not None and len(picture.groups) < len(picture.shown.ranks):
            ways = {merge: merge.value for merge in Merge}
            found.append(Choice.among("as", ways, self._merge[self._of_steps], self._merge_by))
        return tuple(found)

    def _merge_by(self, merge: Merge) -> None:
        self.ask_with(_merge={**self._merge, self._of_steps: merge})

    def open_column(self) -> None:
        """Enter: the ranks of a line on lines of their own, or the time of one rank."""
        place = self._place()
        if place is None:
            return
        group, _ = place
        if len(group) > 1:
            self.explorer.remember()
            self._opened += (frozenset(item.task for item in group),)
            self.chart.cursor_lane = 0
            self.job_changed()
            return
        window = self.row_window()
        chosen = self.selection.with_tasks(frozenset({group[0].task}))
        self.call_later(self.explorer.go, "gpu", chosen if window is None else chosen.with_window(window))

    def row_window(self) -> Window | None:
        """The time of the marked columns, else of the cursor's."""
        place, picture = self._place(), self._picture
        if place is None or picture is None:
            return None
        columns, width = picture.shown.columns, max(1, self.chart.chart_width)
        first, last = self.chart.span or (self.chart.cursor_column, self.chart.cursor_column)
        spans_ = [columns[min(cell * len(columns) // width, len(columns) - 1)] for cell in (first, last)]
        return Window(spans_[0].start, max(spans_[1].end, spans_[0].start + 1))

    def answer_to_export(self) -> Answer | None:
        """The map as a table, every rank by itself."""
        return map_table(self._picture.shown) if self._picture is not None else None

    def drawing_to_export(self) -> Callable[[], Drawing | None] | None:
        """The lines as they are drawn."""
        picture = self._picture
        if picture is None or not picture.groups:
            return None
        unit = "step times" if picture.shown.is_of_steps else f"{picture.shown.figure} %"
        lanes = [replace(lane, label=f"rank {lane.label}") for lane in self.chart.lanes]
        return partial(strips, f"map of ranks: {unit}", lanes, picture.window, picture.shown.numbers)


def _label(group: Sequence[RankedTask], word: str = "") -> str:
    numbers = spans([item.rank for item in group])
    return f"{word}{'s' if word and len(group) > 1 else ''} {numbers}".strip()


def _values(picture: _Picture) -> list[str]:
    """The value of each line, with a mark behind those that are unlike the others."""
    is_of_steps = picture.shown.is_of_steps
    figures = [_figure(values, is_of_steps) for values in picture.merged]
    known = np.array([value for value in figures if np.isfinite(value)])
    middle = float(np.median(known)) if len(known) else 0.0
    usual = 1.4826 * float(np.median(np.abs(known - middle))) if len(known) else 0.0
    least = max(_ODD * usual, _LEAST_ODD * abs(middle))
    odd = [len(known) > 2 and bool(abs(value - middle) > least) for value in figures]
    return [_value(value, is_of_steps) + (_MARK if is_odd else " ") for value, is_odd in zip(figures, odd, strict=True)]


_MARK = "◂"


def _figure(values: np.ndarray[Any, Any], is_of_steps: bool) -> float:
    """The median of the steps of a line, ns, or its mean over time, percent; NaN where nothing is known."""
    known = values[np.isfinite(values)]
    if not len(known):
        return float("nan")
    return float(np.median(known)) if is_of_steps else 100.0 * float(known.mean())


def _value(value: float, is_of_steps: bool) -> str:
    if not np.isfinite(value):
        return "–"
    return format_value(Unit.DURATION, value) if is_of_steps else f"{value:.1f}"


def _spread(values: np.ndarray[Any, Any], ranks: Sequence[RankedTask], is_of_steps: bool) -> str:
    """``43.2 %``, or of several ``mean 43.2 % · minimum 12.0 % rank 11 · maximum 61.0 % rank 9``."""
    unit, factor = (Unit.DURATION, 1.0) if is_of_steps else (Unit.PERCENT, 100.0)
    known = np.flatnonzero(np.isfinite(values))
    if not len(known):
        return "not recorded"
    if len(values) == 1:
        return format_value(unit, factor * float(values[0]))
    least, most = known[values[known].argmin()], known[values[known].argmax()]
    return " · ".join(
        (
            f"mean {format_value(unit, factor * float(values[known].mean()))}",
            f"minimum {format_value(unit, factor * float(values[least]))} rank {ranks[least].rank}",
            f"maximum {format_value(unit, factor * float(values[most]))} rank {ranks[most].rank}",
        )
    )
