"""The map of all ranks: a line per rank (or several), a cell per span of time or step."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from nsystui.base.answer import Answer, Unit
from nsystui.base.drawing import Drawing
from nsystui.base.selection import Selection, Task, Window
from nsystui.base.text import counted, spans
from nsystui.base.types import Array
from nsystui.base.units import format_value
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.tasks import RankedTask, selected_ranks
from nsystui.questions.ranks.heat import PARTS, Merge, RankMap, figures_of, map_table, scaled, step_map, time_map
from nsystui.questions.ranks.steps import step_times
from nsystui.ui.pictures.selection import span_words
from nsystui.ui.screens.chart import ChartScreen
from nsystui.ui.widgets.frame import Choice
from nsystui.ui.widgets.plots import step_axis, time_axis
from nsystui.ui.widgets.strip_chart import Lane, StripChart, strips

_DEFAULT_FIGURE = "exposed NCCL"
"""The figure that shows odd ranks: the rank that delays all other ranks has the lowest value."""
_MAX_HEIGHT = 4  # lines of a rank, on a map of few
_ODD, _MIN_ODD = 3.5, 0.2
"""An odd rank is further from the median than these multiples of the typical distance, and of the median."""

_FRAME = 8
"""Lines of the title, the selection, the views, the axis, the details (3) and the keys."""

_CATEGORIES = {
    "busy": "compute", "compute": "compute", "NCCL": "nccl", "exposed NCCL": "nccl", "memory": "memory",
    "graph": "graph", "step time": "nvtx",
}  # fmt: skip
"""The colours of the figures, except of GPU metrics."""


@dataclass(frozen=True, eq=False)
class _Picture:
    """A map to draw: the group of ranks on each line, and its values."""

    shown: RankMap
    groups: Sequence[Sequence[RankedTask]]
    merge: Merge
    merged: Array
    figures: tuple[str, ...]
    window: Window


class RankMapScreen(ChartScreen):
    """The utilisation of every rank over time, or the times of its steps."""

    MODE_KEY = "4"
    SCREEN = "rank map"
    STATE = ("_figure", "_of_steps", "_merge", "_opened")
    PLACES = ("rank map", "everywhere")
    chart: StripChart

    _figure = _DEFAULT_FIGURE
    _of_steps = False
    _merge: Mapping[bool, Merge] = {False: Merge.MEAN, True: Merge.MAXIMUM}
    _opened: tuple[frozenset[Task], ...] = ()
    _request: tuple[str, bool, Merge, frozenset[Task] | None, int, int]
    """Figure, whether of steps, merge, the ranks of the opened line (``None``: all), columns and lines."""
    _picture: _Picture | None = None

    def make_chart(self) -> StripChart:
        """Return a chart of shades, with steps or time on its axis."""
        return StripChart(label_width=9, value_width=17, axis=self._axis, is_ramp=True, id="chart")

    def parameters(self) -> tuple[Hashable, ...]:
        size = self.app.size
        columns = self.chart.columns_in(size.width)
        within = self._opened[-1] if self._opened else None
        merge = self._merge[self._of_steps]
        lines = max(1, size.height - _FRAME)
        max_lanes = 2 * lines if self.chart.has_colours else lines
        self._request = (self._figure, self._of_steps, merge, within, columns, max_lanes)
        return self._request

    def ask(self, job: OpenJob, selection: Selection) -> _Picture:
        figure, of_steps, merge, within, columns, lines = self._request
        window = job.extent(selection)
        ranks = [item for item in selected_ranks(job.ranks, selection) if within is None or item.task in within]
        figures: tuple[str, ...] = ("step time",)
        if of_steps:
            steps = job.steps()
            rank_map = step_map(ranks, step_times(steps, selection.window), steps.notes)
        else:
            figures = figures_of(job.session, selection)
            busy = job.busy(selection)
            rank_map = time_map(job.session, selection, ranks, busy, window, columns, figure)
        groups = rank_map.grouped(lines)
        return _Picture(rank_map, groups, merge, rank_map.merged(groups, merge), figures, window)

    def show(self, picture: _Picture, same_place: bool) -> None:
        self._picture = picture
        rank_map = picture.shown
        if not picture.groups:
            self.show_text("\n".join(rank_map.notes) or f"no rank has {rank_map.figure} here: b shows another metric")
            return
        self.show_empty("")
        heights = scaled(picture.merged, rank_map.is_of_steps)
        lines = max(1, self.app.size.height - _FRAME)
        halves = len(picture.groups) > lines
        height = max(1, min(lines // len(picture.groups), _MAX_HEIGHT))
        lanes = [
            Lane(_label(group), row, value, _CATEGORIES.get(rank_map.figure, "metric"), height=height)
            for group, row, value in zip(picture.groups, heights.tolist(), _value_labels(picture), strict=True)
        ]
        ends = (0, len(rank_map.numbers)) if rank_map.is_of_steps else (picture.window.start, picture.window.end)
        self.chart.set_lanes(lanes, *ends, halves=halves)
        largest = max(len(group) for group in picture.groups)
        merge_words = f" · {picture.merge.value} of {largest} ranks a line" if largest > 1 else ""
        ranks = counted(len(rank_map.ranks), "rank")
        unit = "median step" if rank_map.is_of_steps else f"{rank_map.figure} %"
        self.show_title(right=f"{unit}{merge_words} · {ranks} · {_MARK} odd")
        self.show_detail()

    def _axis(self, low: int, high: int, width: int) -> str:
        picture = self._picture
        if picture is None or not picture.shown.is_of_steps:
            return time_axis(low, high, width)
        return step_axis(picture.shown.numbers, width)

    def _cell(self) -> tuple[Sequence[RankedTask], int] | None:
        picture = self._picture
        if picture is None or self.chart.cursor_lane >= len(picture.groups) or not picture.shown.columns:
            return None
        columns = len(picture.shown.columns)
        column = min(self.chart.cursor_column * columns // max(1, self.chart.chart_width), columns - 1)
        return picture.groups[self.chart.cursor_lane], column

    def show_detail(self) -> None:
        cell, picture = self._cell(), self._picture
        if cell is None or picture is None:
            return
        group, column = cell
        rank_map = picture.shown
        first = rank_map.ranks.index(group[0])
        values = rank_map.values[first : first + len(group), column]
        span = rank_map.columns[column]
        step_words = f"step {rank_map.numbers[column]} · " if rank_map.is_of_steps else ""
        head = f"{_label(group, 'rank')} · {step_words}{span_words(span)}"
        column_values = rank_map.values[:, column]
        lines = [[(head, "bold")], [(f"{rank_map.figure} {_spread(values, group, rank_map.is_of_steps)}", "")]]
        if len(rank_map.ranks) > len(group):
            lines.append([(f"all ranks: {_spread(column_values, rank_map.ranks, rank_map.is_of_steps)}", "dim")])
        self.detail.show_lines(lines)

    def view_name(self) -> str:
        return "step map" if self._of_steps else "map"

    def take_view(self, name: str, **options: str) -> None:
        self.ask_with(_of_steps=name == "step map")

    def choices(self) -> tuple[Choice, ...]:
        picture, choices = self._picture, list(super().choices())
        names = picture.figures if picture is not None else tuple(PARTS)
        if not self._of_steps and self._figure in names:
            words = {name: name for name in names}
            choices.append(Choice.among("by", words, self._figure, lambda figure: self.ask_with(_figure=figure)))
        if picture is not None and len(picture.groups) < len(picture.shown.ranks):
            merges = {merge: merge.value for merge in Merge}

            def merge_by(merge: Merge) -> None:
                self.ask_with(_merge={**self._merge, self._of_steps: merge})

            choices.append(Choice.among("as", merges, self._merge[self._of_steps], merge_by))
        return tuple(choices)

    def open_column(self) -> None:
        """Open a line's ranks on separate lines, or a single rank's time."""
        cell = self._cell()
        if cell is None:
            return
        group, _ = cell
        if len(group) > 1:
            self.explorer.remember()
            self._opened += (frozenset(item.task for item in group),)
            self.chart.cursor_lane = 0
            self.job_changed()
            return
        window = self.row_window()
        selection = self.selection.with_tasks(frozenset({group[0].task}))
        self.call_later(self.explorer.go, "gpu", selection if window is None else selection.with_window(window))

    def row_window(self) -> Window | None:
        cursor_cell, picture = self._cell(), self._picture
        if cursor_cell is None or picture is None:
            return None
        columns, width = picture.shown.columns, max(1, self.chart.chart_width)
        first, last = self.chart.span or (self.chart.cursor_column, self.chart.cursor_column)
        windows = [columns[min(cell * len(columns) // width, len(columns) - 1)] for cell in (first, last)]
        return Window(windows[0].start, max(windows[1].end, windows[0].start + 1))

    def answer_to_export(self) -> Answer | None:
        return map_table(self._picture.shown) if self._picture is not None else None

    def drawing_to_export(self) -> Callable[[], Drawing | None] | None:
        picture = self._picture
        if picture is None or not picture.groups:
            return None
        unit = "step times" if picture.shown.is_of_steps else f"{picture.shown.figure} %"
        lanes = [replace(lane, label=f"rank {lane.label}") for lane in self.chart.lanes]
        return partial(strips, f"map of ranks: {unit}", lanes, picture.window, picture.shown.numbers)


def _label(group: Sequence[RankedTask], word: str = "") -> str:
    numbers = spans([item.rank for item in group])
    return f"{word}{'s' if word and len(group) > 1 else ''} {numbers}".strip()


def _value_labels(picture: _Picture) -> list[str]:
    is_of_steps = picture.shown.is_of_steps
    typical = [_typical_value(values, is_of_steps) for values in picture.merged]
    finite = np.array([value for value in typical if np.isfinite(value)])
    median = float(np.median(finite)) if len(finite) else 0.0
    typical_distance = 1.4826 * float(np.median(np.abs(finite - median))) if len(finite) else 0.0
    min_distance = max(_ODD * typical_distance, _MIN_ODD * abs(median))
    odd = [len(finite) > 2 and bool(abs(value - median) > min_distance) for value in typical]
    return [_words(value, is_of_steps) + (_MARK if is_odd else " ") for value, is_odd in zip(typical, odd, strict=True)]


_MARK = "◂"


def _typical_value(values: Array, is_of_steps: bool) -> float:
    """Return a line's median step, ns, or its mean over time, percent; NaN if all are unknown."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return float("nan")
    return float(np.median(finite)) if is_of_steps else 100.0 * float(finite.mean())


def _words(value: float, is_of_steps: bool) -> str:
    if not np.isfinite(value):
        return "–"
    return format_value(Unit.DURATION, value) if is_of_steps else f"{value:.1f}"


def _spread(values: Array, ranks: Sequence[RankedTask], is_of_steps: bool) -> str:
    """Return ``43.2 %``, or for several ranks ``mean 43.2 % · minimum 12.0 % rank 11 · maximum 61.0 % rank 9``."""
    unit, factor = (Unit.DURATION, 1.0) if is_of_steps else (Unit.PERCENT, 100.0)

    def words(value: float) -> str:
        return format_value(unit, factor * float(value))

    finite = np.flatnonzero(np.isfinite(values))
    if not len(finite):
        return "not recorded"
    if len(values) == 1:
        return words(values[0])
    lowest, highest = finite[values[finite].argmin()], finite[values[finite].argmax()]
    ends = f"minimum {words(values[lowest])} rank {ranks[lowest].rank} · maximum {words(values[highest])} rank"
    return f"mean {words(values[finite].mean())} · {ends} {ranks[highest].rank}"
