"""4 GPU: each GPU's utilisation over time, and tables of metrics, the network and memory."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from textual import on

from nsystui.base.answer import Answer, Column, Record, Row, Unit, Value
from nsystui.base.drawing import Drawing
from nsystui.base.selection import Selection, Window
from nsystui.base.text import counted, safe_text
from nsystui.base.units import format_value, numbered
from nsystui.questions.job.job import OpenJob
from nsystui.questions.memory.gpu_allocations import AT_PEAK, NEVER_FREED, allocation_table
from nsystui.questions.memory.gpu_memory import COLUMNS, memory_over_time
from nsystui.ui.pictures import gpu as pictures
from nsystui.ui.pictures.selection import describe
from nsystui.ui.screens.chart import ZoomableChartScreen
from nsystui.ui.screens.table import GroupedViewsScreen, TableScreen, ViewsScreen
from nsystui.ui.widgets.frame import Choice
from nsystui.ui.widgets.panels import Details
from nsystui.ui.widgets.plots import blocks
from nsystui.ui.widgets.strip_chart import StripChart, strips


class _GroupedScreen(ViewsScreen):
    """A question's table, grouped by its option ``by``."""

    MODE_KEY = "4"
    PLACES = ("table", "everywhere")
    WORDS: ClassVar[Mapping[str, str]] = {}
    """Labels of groupings, if they differ from the option's values."""
    ABOUT: ClassVar[Mapping[str, str]] = {}
    """The column with a row's subject, by grouping; by default ``name``."""

    def __init__(self) -> None:
        super().__init__()
        group_by = next(option for option in self.view.question.options if option.name == "by")
        self.groups = tuple(dict.fromkeys((group_by.default or "", *group_by.choices)))
        self.options = {"by": self.groups[0]}

    def show(self, result: Any, same_place: bool) -> None:
        self.table.elastic = self.ABOUT.get(self.options["by"], "name")
        super().show(result, same_place)

    def choices(self) -> tuple[Choice, ...]:
        words, options = {group: self.WORDS.get(group, group) for group in self.groups}, self.options
        by = Choice.among("by", words, options["by"], lambda group: self.ask_with(options={**options, "by": group}))
        return (*super().choices(), by)


class MetricsScreen(_GroupedScreen):
    """Every sampled counter by rank, or its means over kernels, ranges, steps and collectives."""

    SCREEN = "metrics"
    BAR_CATEGORY = "metric"
    WORDS: ClassVar[Mapping[str, str]] = {"": "metric"}
    ABOUT: ClassVar[Mapping[str, str]] = {"": "metric", "step": "busiest", "collective": "collective"}


class NetworkScreen(_GroupedScreen):
    """Traffic of each network adapter, or during NCCL's collectives."""

    SCREEN = "network"
    ABOUT: ClassVar[Mapping[str, str]] = {"adapter": "adapter", "collective": "collective"}


_FRAME = 5
"""Lines for the title, the selection, the views, the time axis and the keys."""


class GpuScreen(ZoomableChartScreen):
    """Lanes over time, a cursor in time, and the values under it.

    Each GPU has a lane, as high as the screen allows, of compute, NCCL that no compute hides, memory and idle time, and
    below it a lane for each metric. If there are very many GPUs, two share a line. Instead of metrics, the user may
    choose the network (traffic of each host's adapters, below all GPUs). ``e`` exports the drawing, or the table that
    ``nsystui gpu`` prints; with ``--over-time`` it prints the lanes.
    """

    MODE_KEY = "4"
    SCREEN = "gpu"
    PLACES = ("gpu", "everywhere")
    chart: StripChart

    VERTICAL_BREAKPOINTS = [(0, "-short"), (30, "-tall")]

    metrics = pictures.FITTING
    picture: pictures.GpuPicture | None = None
    _lane: tuple[Hashable, ...] = ()  # GPU and label of the cursor's lane
    _request = pictures.GpuPictureRequest(None, 1, 1)

    def make_chart(self) -> StripChart:
        return StripChart(label_width=16, value_width=7, id="chart")

    def parameters(self) -> tuple[Hashable, ...]:
        lines = self.app.size.height - _FRAME - self._detail_height
        columns = self.chart.columns_in(self.app.size.width)
        self._request = pictures.GpuPictureRequest(
            self.position.view, columns, lines, self.metrics, self.chart.has_colours
        )
        return (self._request,)

    @property
    def _detail_height(self) -> int:
        return 5 if self.app.size.height < 30 else 7

    def ask(self, job: OpenJob, selection: Selection) -> pictures.GpuPicture:
        return pictures.gpu_picture(job, selection, self._request)

    def show(self, picture: pictures.GpuPicture, same_place: bool) -> None:
        self.picture = picture
        count = sum(not gpu.is_host for gpu in picture.gpus)
        visible, total = (window.end - window.start for window in (picture.window, picture.base))
        time = format_value(Unit.DURATION, visible)
        if picture.window != picture.base:
            time += f" of {format_value(Unit.DURATION, total)}"
        if not picture.lanes:
            reasons = picture.notes or ("no GPU is in the selection: Esc goes back",)
            self.show_text("\n".join((*reasons, "", "1 Overview shows what was recorded")))
            return
        self.show_title(right=f"{counted(count, 'GPU')} · {time}")
        self.show_empty("")
        window = picture.window
        self.chart.set_lanes(picture.lanes, window.start, window.end, picture.halves, picture.steps)
        self.chart.cursor_lane = self._lane_of(picture)
        if self.position.time is not None:
            self.chart.cursor_column = self.chart.time_column(self.position.time)
        self.show_detail()

    def _lane_of(self, picture: pictures.GpuPicture) -> int:
        """Find the cursor's lane, else a lane of its GPU, else keep its index."""
        lanes = zip(picture.owners, picture.lanes, strict=True)
        keys = [(picture.gpus[owner].key, lane.label) for owner, lane in lanes]
        indices = (index for size in (2, 1) for index, key in enumerate(keys) if key[:size] == self._lane[:size])
        return next(indices, self.chart.cursor_lane)

    def show_detail(self) -> None:
        picture = self.picture
        if picture is None or not picture.lanes or self.chart.cursor_lane >= len(picture.owners):
            return
        span = self.chart.span or (self.chart.cursor_column, self.chart.cursor_column)
        times = self.chart.span_times or self.chart.cursor_times
        bins = len(picture.lanes[0].bins)  # fewer than columns if these would be shorter than 1 ns
        first, last = (column * bins // self.chart.chart_width for column in span)
        marked = self.chart.span is not None
        width = self.app.size.width
        lines = pictures.detail_lines(
            picture, self.chart.cursor_lane, (first, last), times, marked, width, self._detail_height
        )
        self.detail.show_lines(lines)

    @on(StripChart.CursorMoved)
    def _keep_position(self) -> None:
        picture = self.picture
        if picture is not None and picture.lanes and self.question.is_settled:  # else a move in an old view
            start, end = self.chart.cursor_times
            self.move_to(time=(start + end) // 2)
            lane = self.chart.cursor_lane
            self._lane = (picture.gpus[picture.owners[lane]].key, picture.lanes[lane].label)

    def times_of(self, column: int) -> tuple[int, int]:
        return self.chart.column_times(column)

    @property
    def time(self) -> int:
        """The time under the cursor, or the middle of its column, ns."""
        start, end = self.chart.cursor_times
        return self.position.time if self.position.time is not None else (start + end) // 2

    def why_empty(self) -> str:
        return "" if self.picture is not None and self.picture.lanes else "there is nothing to zoom"

    def look_at(self, view: Window | None, time: int) -> None:
        self.move_to(view=view, time=time)
        self.job_changed()

    def choices(self) -> tuple[Choice, ...]:
        picture = self.picture
        if picture is None or not (picture.metrics or picture.has_network):
            return super().choices()
        usual = (pictures.FITTING, pictures.NO_METRICS, pictures.USUAL, pictures.EVERY)
        metric_choices = usual if picture.metrics else usual[:1]
        options = (*metric_choices, *([pictures.NETWORK] if picture.has_network else ()), *picture.metrics)
        words = {name: safe_text(name) for name in options}
        selected = self.metrics if self.metrics in options else options[0]
        return (*super().choices(), Choice.among("Metrics", words, selected, lambda name: self.ask_with(metrics=name)))

    def row_window(self) -> Window | None:
        start, end = self.chart.span_times or self.chart.cursor_times
        return Window(start, max(end, start + 1)) if self.picture is not None and self.picture.lanes else None

    def action_mark(self) -> None:
        """Begin a span at the cursor, end it there, or remove it."""
        self.chart.action_mark()

    def action_only_rank(self) -> None:
        picture = self.picture
        if picture is None or not picture.lanes:
            self.say("there is no lane here")
            return
        gpu = picture.gpus[picture.owners[self.chart.cursor_lane]]
        device = gpu.device
        tasks = self.selection.tasks
        if device is None:
            self.say("these adapters are of a host" if gpu.is_host else "no rank worked on this GPU")
        elif tasks == frozenset({device.task.task}) or len(picture.ranks) == 1:
            self.say(f"rank {device.task.rank} is already the only rank")
        else:
            selection = self.selection.with_tasks(frozenset({device.task.task}))
            self.move_to(selection)
            self.explorer.select(selection)

    def answer_to_export(self) -> Answer | None:
        return self.picture.answer if self.picture is not None and self.picture.lanes else None

    def drawing_to_export(self) -> Callable[[], Drawing | None] | None:
        """Return a function that draws the chosen lanes in more columns than a terminal has."""
        job, selection, request = self.job, self.selection, self._request
        if job is None or self.picture is None or not self.picture.lanes:
            return None

        def draw() -> Drawing:
            from nsystui.questions.report.drawings import LANE_COLUMNS

            picture = pictures.gpu_picture(job, selection, replace(request, columns=LANE_COLUMNS, halves=False))
            return strips(f"GPUs over time, {describe(selection, job.ranks)}", picture.lanes, picture.window)

        return draw

    def row_to_copy(self) -> tuple[Sequence[Column], Row] | None:
        picture = self.picture
        if picture is None or not picture.lanes:
            return None
        number = picture.owners[self.chart.cursor_lane]
        rows = picture.answer.rows
        return (picture.answer.columns, rows[number]) if number < len(rows) else None


_CURVE = 60
"""Columns of the curve of memory over time."""


def _group(values: Record) -> tuple[Value, ...]:
    return tuple(values.get(key) for key in ("rank", "device", "memory"))


class GpuMemoryScreen(GroupedViewsScreen):
    """The memory of each rank, device and kind, or its allocations."""

    MODE_KEY = "4"
    SCREEN = "GPU memory"
    BAR_CATEGORY = "memory"
    PLACES = ("gpu memory", "table", "everywhere")
    _LISTS = {"allocation": "all", "at peak": AT_PEAK, "never freed": NEVER_FREED}
    BY = {"GPU memory": (("device", {}), *((words, {"allocations": which}) for words, which in _LISTS.items()))}

    def open_row(self) -> None:
        if "peak_time" in self.values():
            self.lay_over(PeakScreen(*_group(self.values())))
        else:
            self.say("b groups by device: Enter there lists what was in use at the peak")

    def row_window(self) -> Window | None:
        """Return the moment of the peak, or the time of the row."""
        peak = self.values().get("peak_time")
        return Window(peak, peak + 1) if isinstance(peak, int) else super().row_window()

    def details_question(self) -> Callable[[OpenJob], Details] | None:
        values, selection = self.values(), self.selection
        if "peak_time" not in values:
            return None
        details, group = self.row_details(), _group(values)
        rank, device, memory = group
        title = [f"{memory} memory of rank {'–' if rank is None else rank}, {numbered('device', device)}"]
        peak = values["peak"]

        def ask(job: OpenJob) -> Details:
            peak_bytes = int(peak or 0)
            rows = [row for row in memory_over_time(job, selection, _CURVE).rows if row[:3] == group]
            used = [float("nan") if row[4] is None else int(row[4]) / max(peak_bytes, 1) for row in rows]
            words = format_value(COLUMNS[3].unit, peak_bytes)
            return [title, [f"over time {blocks(used, _CURVE)} a full block is {words}"], *details[1:]]

        return ask


class PeakScreen(TableScreen):
    """The allocations in use at the peak of a rank, device and kind of memory."""

    MODE_KEY = "4"
    COUNTED = "allocations"
    BAR_CATEGORY = "memory"
    CLOSED = "this is one allocation: L shows its time on the timeline, t selects it"

    def __init__(self, rank: Value, device: Value, memory: Value) -> None:
        super().__init__(
            f"rank {'–' if rank is None else rank}", numbered("device", device), f"{memory} memory at its peak"
        )
        self.group = (rank, device, memory)

    def ask(self, job: OpenJob, selection: Selection) -> Answer:
        answer = allocation_table(job, selection, AT_PEAK)
        rows = [row for row in answer.rows if row[:3] == self.group]
        return replace(answer, rows=rows, total=len(rows))
