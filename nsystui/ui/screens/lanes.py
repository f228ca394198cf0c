"""Lanes of ranks, GPUs, streams and threads over time, and a cursor with its event."""

from asyncio import to_thread
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from textual import on

from nsystui.base.answer import Column, Row, Unit
from nsystui.base.errors import reason_of
from nsystui.base.selection import NameFilter, Selection, Task, Window
from nsystui.base.text import counted
from nsystui.base.units import format_value
from nsystui.questions.events.listing import EVENT_COLUMNS, EventKey, key_of
from nsystui.questions.job.job import OpenJob
from nsystui.questions.timeline.events import Neighbours
from nsystui.questions.timeline.lanes import LaneIdentity
from nsystui.questions.timeline.picture import cut_end
from nsystui.ui.pictures import timeline
from nsystui.ui.pictures.selection import describe, inside, span_words
from nsystui.ui.screens.chart import ZoomableChartScreen
from nsystui.ui.widgets.frame import SelectionLine
from nsystui.ui.widgets.lane_chart import LaneChart
from nsystui.ui.widgets.panels import fill
from nsystui.ui.widgets.repainting import in_background

_LABEL_WIDTH, _WIDE_LABEL_WIDTH = 14, 22
_WIDE = 100
_FRAME = 4
"""Lines of the title, the selection, the axis and the keys."""
_TALL = 30
"""The minimum terminal height for one more line of details."""


class LanesScreen(ZoomableChartScreen):
    """Lanes over time, and a cursor at a lane and a time.

    Only visible lanes are drawn. Names and unread data are drawn when the cursor rests, not while a key is held.
    """

    chart: LaneChart
    action_open_event: Callable[[], None]

    VERTICAL_BREAKPOINTS = [(0, "-low"), (_TALL, "-tall")]

    opened: frozenset[Task] | None = None
    search: NameFilter | None = None
    path_lane: LaneIdentity | None = None
    """The lane of a critical path, if requested."""
    match_count = ""
    """The number of matching events in words, once counted."""
    picture: timeline.TimelinePicture | None = None
    facts: timeline.EventFacts | None = None
    """The details of the event under the cursor, once looked up."""
    opens: Hashable = None
    """The `target` of an Enter key that waits for the event's look-up."""
    _rests = False
    _request = timeline.TimelineRequest(None, 1, 1, 0, None, None, False, None)
    _neighbours: Neighbours | None = None

    def make_chart(self) -> LaneChart:
        return LaneChart(label_width=_LABEL_WIDTH, value_width=7, id="chart")

    def parameters(self) -> tuple[Hashable, ...]:
        width, height = self.app.size
        self.chart.label_width = _LABEL_WIDTH if width < _WIDE else _WIDE_LABEL_WIDTH
        columns = self.chart.columns_in(width)
        lines = max(1, height - _FRAME - self._detail_lines)
        self._request = timeline.TimelineRequest(
            self.view, columns, lines, self.chart.in_sight.start, self.position.lane, self.opened, self._rests,
            self._marked_names, self.chart.label_width, self.path_lane,
        )  # fmt: skip
        # Without the cursor's lane: only scrolling needs a new picture.
        return (replace(self._request, lane=None),)

    @property
    def _detail_lines(self) -> int:
        return timeline.HEIGHT if self.app.size.height >= _TALL else timeline.LOW

    @property
    def _marked_names(self) -> NameFilter | None:
        """The names to mark: a filter hides nothing on a timeline."""
        return self.search or self.selection.name

    def ask(self, job: OpenJob, selection: Selection) -> timeline.TimelinePicture:
        return timeline.timeline_picture(job, selection, self._request)

    def show(self, picture: timeline.TimelinePicture, same_place: bool) -> None:
        if self.picture is None or self.picture.timeline is not picture.timeline:
            self._neighbours = Neighbours(picture.timeline)
        self.picture = picture
        if self.opened is None:
            self.opened = picture.opened
        if not picture.lanes:
            reasons = picture.notes or ("no GPU work and no NVTX range is in the selection: Esc goes back",)
            self.show_text("\n".join((*reasons, "", "1 Overview shows what was recorded")))
            return
        self.show_empty("")
        window = picture.window
        self.chart.show(picture.labels, picture.kinds, picture.lines, window.start, window.end)
        self.show_selection()
        ranks, lanes = counted(len(picture.timeline.tasks), "rank"), counted(len(picture.lanes), "lane")
        time = f" · {format_value(Unit.DURATION, window.end - window.start)}" if self.view is None else ""
        self.show_title(right=f"{ranks} · {lanes}{time}")
        self._follow()

    def show_selection(self) -> None:
        text = describe(self.selection, self.job_ranks)
        if (view := self.view) is not None:
            text += f" · in view {span_words(view)}"
        if self.search is not None:
            text += f' · "{self.search.text}"'
            text += f" {self.match_count or 'searching…'}"
        self.query_one("#selection", SelectionLine).update(text)

    @on(LaneChart.Scrolled)
    def _scrolled(self) -> None:
        if self.picture is not None and self.picture.lanes:
            self._place_cursor()
        self._draw_again()

    def _draw_again(self) -> None:
        """Draw cheap parts at once, and expensive parts when no key follows."""
        self._rests = False
        self.job_changed()

    @property
    def lane(self) -> LaneIdentity | None:
        """The lane under the cursor."""
        picture, number = self.picture, self.chart.cursor_lane
        return picture.lanes[number] if picture is not None and number < len(picture.lanes) else None

    @property
    def time(self) -> int:
        """The time under the cursor; initially the middle of the view."""
        picture = self.picture
        if self.position.time is not None:
            return self.position.time
        return (picture.window.start + picture.window.end) // 2 if picture is not None else 0

    def _column_of(self, time: int) -> int:
        assert self.picture is not None
        window = self.picture.window
        return (time - window.start) * self.chart.chart_width // max(window.end - window.start, 1)

    def times_of(self, column: int) -> tuple[int, int]:
        """Return the first times of a column and the next, ns: the inverse of ``_column_of``."""
        assert self.picture is not None
        window, width = self.picture.window, self.chart.chart_width
        length = window.end - window.start
        return window.start - (-column * length // width), window.start - (-(column + 1) * length // width)

    def _place_cursor(self) -> None:
        picture, position = self.picture, self.position
        assert picture is not None
        if position.lane is not None:
            number = self._nearest(picture, position.lane)
        else:  # users open a timeline for kernels
            number = next((number for number, lane in enumerate(picture.lanes) if not lane.is_host), 0)
        mark = None if position.mark is None else self._column_of(position.mark)
        self.chart.move(number, self._column_of(self.time), mark)

    def _nearest(self, picture: timeline.TimelinePicture, target: LaneIdentity) -> int:
        for matches in (
            lambda lane: lane == target,
            lambda lane: (lane.task, lane.device, lane.stream) == (target.task, target.device, None),
            lambda lane: lane.task == target.task,
        ):
            number = next((number for number, lane in enumerate(picture.lanes) if matches(lane)), None)
            if number is not None:
                return number
        return self.chart.cursor_lane

    def _follow(self) -> None:
        """Draw the cursor at its position, and its details."""
        self._place_cursor()
        self.facts = None
        self.show_detail()
        self.cursor_moved()

    def show_detail(self) -> None:
        picture = self.picture
        lane_picture = picture.pictures.get(self.chart.cursor_lane) if picture is not None else None
        if lane_picture is None:
            return
        column = min(self.chart.cursor_column, len(lane_picture.columns.busy) - 1)
        times, width = self.times_of(column), self.app.size.width
        lines = [timeline.column_line(lane_picture, column, times, self.time, self.position.mark, width)]
        if self.facts is not None:
            details = fill(self.facts.details, width, self._detail_lines - 2)
            lines += [[(cut_end(self.facts.title, width), "bold")], *([(line, "")] for line in details)]
        elif picture is not None and not picture.is_whole and self._waits_for_lanes(picture):
            lines.append([("reading the streams and ranges of this rank…", "dim")])
        elif picture is not None:
            lines += [[(note, "dim")] for note in picture.notes[: self._detail_lines - 1]]
        self.detail.show_lines((lines + [[]] * timeline.HEIGHT)[: timeline.HEIGHT])

    def _waits_for_lanes(self, picture: timeline.TimelinePicture) -> bool:
        lane = self.lane
        if lane is None or lane.task not in picture.opened:
            return False
        return not any(item.task == lane.task and (item.is_host or item.stream is not None) for item in picture.lanes)

    def cursor_rests(self) -> None:
        """Look up the event under the cursor, and draw names and unread data."""
        picture, lane, job = self.picture, self.lane, self.job
        if picture is None or lane is None or job is None:
            return
        if not self.question.is_settled:
            self.cursor_moved()
            return
        if not picture.is_whole and not self._rests:
            self._rests = True
            self.job_changed()
        first, last = self.times_of(self.chart.cursor_column)
        self._show_facts(job, picture, lane, Window(first, max(last, first + 1)))

    @in_background("detail")
    async def _show_facts(
        self, job: OpenJob, picture: timeline.TimelinePicture, lane: LaneIdentity, window: Window
    ) -> None:
        position, row = self._cursor_state(), self.position.event
        try:
            facts = await to_thread(timeline.event_facts, job, picture.timeline, lane, window, row)
        except Exception as error:
            facts = timeline.EventFacts(None, reason_of(error))
        if self._cursor_state() == position:
            self.facts = facts
            self.show_detail()
            opens, self.opens = self.opens == self.target, None
            if opens and self.is_active:
                self.action_open_event()

    @property
    def target(self) -> tuple[Hashable, ...]:
        """The lane, the time and the event under the cursor."""
        return (self.lane, self.time, self.position.event)

    def _cursor_state(self) -> Hashable:
        picture = self.picture
        return (*self.target, self.chart.cursor_column, picture.window if picture else None)

    @property
    def is_awaiting(self) -> bool:
        """Whether no lanes exist yet: they stay while names or another view are computed."""
        return self.picture is None and super().is_awaiting

    def why_empty(self) -> str:
        """Return why there is no lane to act on; empty if there is a lane."""
        if self.picture is None:
            return "one moment: the lanes are being computed"
        return "" if self.picture.lanes else "there is no lane here"

    def drawn(self) -> timeline.TimelinePicture | None:
        """Return the picture if it has lanes; else show why it has no lanes."""
        reason = self.why_empty()
        if reason:
            self.say(reason)
        return None if reason else self.picture

    def look_at(self, view: Window | None, time: int) -> None:
        """Show another view; the event under the cursor stays if the cursor's time does."""
        self.move_to(view=view, time=time, event=self.position.event if time == self.time else None)
        self._draw_again()

    def _center(self, time: int) -> None:
        picture = self.picture
        assert picture is not None
        view = self.view or picture.base
        width = view.end - view.start
        self.move_to(view=inside(Window(time - width // 2, time - width // 2 + width), picture.base))
        self._draw_again()

    def action_move(self, columns: int) -> None:
        """Move the cursor by columns, within the view."""
        if self.drawn() is None:
            return
        column = max(0, min(self.chart.cursor_column + columns, self.chart.chart_width - 1))
        first, last = self.times_of(column)
        self.move_to(time=(first + last) // 2, event=None)
        self._follow()

    def action_lane(self, lanes: int) -> None:
        picture = self.drawn()
        if picture is None:
            return
        number = max(0, min(self.chart.cursor_lane + lanes, len(picture.lanes) - 1))
        self.move_to(time=self.time, lane=picture.lanes[number], event=None)
        self._follow()

    def action_page(self, direction: int) -> None:
        self.action_lane(direction * len(self.chart.in_sight))

    @on(LaneChart.Pointed)
    def _pointed(self, message: LaneChart.Pointed) -> None:
        """Move the cursor; a press removes the mark, and a drag sets it at its start."""
        picture = self.picture
        if picture is None or not picture.lanes:
            return
        first, last = self.times_of(message.column)
        mark = None if message.first is None else self.times_of(message.first)[0]
        lane = self.lane if message.lane is None else picture.lanes[message.lane]
        self.move_to(time=(first + last) // 2, lane=lane, event=None, mark=mark)
        self._follow()

    def action_mark(self) -> None:
        """Set the mark at the cursor, or remove it."""
        if self.drawn() is None:
            return
        time = self.time
        self.move_to(time=time, mark=None if self.position.mark == time else time)
        self._place_cursor()
        self.show_detail()

    def row_to_copy(self) -> tuple[Sequence[Column], Row] | None:
        row = self.event_row()
        return None if row is None else (EVENT_COLUMNS, row)

    def event_row(self) -> Row | None:
        """Return the event under the cursor, a row of ``EVENT_COLUMNS``."""
        return self.position.event or (self.facts.row if self.facts is not None else None)

    def event_here(self) -> EventKey | None:
        row = self.event_row()
        return None if row is None else key_of(row)
