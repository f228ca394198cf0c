"""L Timeline: from event to event on the lanes of ranks, GPUs, streams and threads, down to the single kernel."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from textual import events, on

from nsystui.base.answer import Answer, Column, Row, Unit
from nsystui.base.drawing import Drawing
from nsystui.base.selection import NameFilter, Selection, Task, Window
from nsystui.base.units import format_value, parse_duration
from nsystui.questions.events.listing import EVENT_COLUMNS, EventKey, key_of, window_of
from nsystui.questions.job.job import OpenJob
from nsystui.questions.timeline.events import (
    Match,
    Matches,
    Neighbours,
    cpu_interval_next_to,
    lane_events,
    range_next_to,
)
from nsystui.questions.timeline.lanes import LaneIdentity, Timeline
from nsystui.questions.timeline.picture import cut_end, lane_pictures, timeline_table
from nsystui.ui.doors import show_event, show_thread
from nsystui.ui.pictures.selection import describe
from nsystui.ui.pictures.timeline import (
    HEIGHT,
    LOW,
    EventFacts,
    FoundEvent,
    TimelinePicture,
    TimelineRequest,
    column_line,
    event_facts,
    partner_of,
    place_of,
    timeline_picture,
)
from nsystui.ui.pictures.zoom import inside
from nsystui.ui.screens.chart import ZoomableChartScreen
from nsystui.ui.screens.other_tools import export_trace, ncu_of_event, show_ncu_commands
from nsystui.ui.screens.table import name_filter
from nsystui.ui.widgets.frame import SelectionLine
from nsystui.ui.widgets.lane_chart import LaneChart
from nsystui.ui.widgets.panels import fill
from nsystui.ui.widgets.prompt import one_of
from nsystui.ui.widgets.repainting import reason_of

_LABEL_WIDTH, _WIDE_LABEL_WIDTH = 14, 22
_WIDE = 100
_VALUE_WIDTH = 7
_FRAME = 3
"""Lines for the title, the selection and the keys."""
_AXIS = 1
_TALL = 30
"""On a terminal of so many lines the details have one more."""
_AROUND_EVENT, _AROUND_WINDOW = 20, 2
"""How many times as long as an event, or a span of time, the view is that is opened on it."""


class TimelineScreen(ZoomableChartScreen):
    """Lanes over time, a view on them, and a cursor at a lane and a time; ``e`` exports the operations in view.

    A picture is computed of the lanes in sight only. While a key is held, names and what must be read first are left
    out; they follow when the cursor rests.
    """

    MODE_KEY = "L"
    PLACES = ("timeline", "everywhere")
    chart: LaneChart

    DEFAULT_CSS = f"""
    TimelineScreen #detail {{ height: {LOW}; }}
    TimelineScreen.-tall #detail {{ height: {HEIGHT}; }}
    """

    VERTICAL_BREAKPOINTS = [(0, "-low"), (_TALL, "-tall")]

    def __init__(self) -> None:
        super().__init__()
        self.opened: frozenset[Task] | None = None
        self.found: NameFilter | None = None
        self.match_count: int | None = None
        self.picture: TimelinePicture | None = None
        self.facts: EventFacts | None = None
        """The details of the event under the cursor, once they are looked up."""
        self._rests = False
        self._wanted = TimelineRequest(None, 1, 1, 0, None, None, False, None)
        self._neighbours: Neighbours | None = None
        self._listed: Answer | None = None
        self._searching = False
        self._steps = 0  # events still to go on by, after the one that is being searched

    def make_chart(self) -> LaneChart:
        return LaneChart(label_width=_LABEL_WIDTH, value_width=_VALUE_WIDTH, id="chart")

    def parameters(self) -> tuple[Hashable, ...]:
        """The view, the size of the chart, the opened ranks and the names to mark."""
        width, height = self.app.size
        self.chart.label_width = _LABEL_WIDTH if width < _WIDE else _WIDE_LABEL_WIDTH
        columns = max(1, width - len("▸ ") - self.chart.label_width - 1 - _VALUE_WIDTH - 1)
        lines = max(1, height - _FRAME - self._detail_lines - _AXIS)
        position = self.position
        self._wanted = TimelineRequest(
            position.view,
            columns,
            lines,
            self.chart.in_sight.start,
            position.lane,
            self.opened,
            self._rests,
            self._to_mark,
            self.chart.label_width,
        )
        # The lane of the cursor matters only where it lies out of sight, which the chart has seen to.
        return (replace(self._wanted, lane=None),)

    @property
    def _detail_lines(self) -> int:
        return HEIGHT if self.app.size.height >= _TALL else LOW

    @property
    def _to_mark(self) -> NameFilter | None:
        """The names to mark: those looked for here, else those of the filter, which hides nothing on a timeline."""
        return self.found or self.selection.name

    def ask(self, job: OpenJob, selection: Selection) -> TimelinePicture:
        """Compute the lanes, and the lines of those in sight."""
        return timeline_picture(job, selection, self._wanted)

    def show(self, result: Any, same_place: bool) -> None:
        """Draw the lanes with the cursor where it was, or say why there are none."""
        picture: TimelinePicture = result
        if self.picture is None or self.picture.timeline is not picture.timeline:
            self._neighbours = Neighbours(picture.timeline)
        self.picture = picture
        if self.opened is None:
            self.opened = picture.opened
        if not picture.lanes:
            why = picture.notes or ("no GPU work and no NVTX range is in the selection: Esc goes back",)
            self.show_title()
            self.show_empty("\n".join((*why, "", "1 Overview shows what was recorded")))
            return
        self.show_empty("")
        window = picture.window
        self.chart.show(picture.labels, picture.kinds, picture.lines, window.start, window.end)
        self._place_cursor()
        self.show_selection()
        self._show_view(picture)
        self._follow()

    def _show_view(self, picture: TimelinePicture) -> None:
        seen, whole = (window.end - window.start for window in (picture.window, picture.base))
        time = format_value(Unit.DURATION, seen)
        if picture.window != picture.base:
            time += f" of {format_value(Unit.DURATION, whole)}"
        count = len(picture.timeline.tasks)
        lanes = f"{len(picture.lanes):,} lane{'' if len(picture.lanes) == 1 else 's'}"
        self.show_title(right=f"{count:,} rank{'' if count == 1 else 's'} · {lanes} · {time}")

    def show_selection(self) -> None:
        """Show the selection, the time in view and what is looked for."""
        text = describe(self.selection, self.job_ranks)
        view = self.position.view
        if view is not None:
            start, length = format_value(Unit.TIME, view.start), format_value(Unit.DURATION, view.end - view.start)
            text += f" · in view {start} + {length}"
        if self.found is not None:
            text += f' · "{self.found.text}"'
            if self.match_count is not None:
                text += f" {self.match_count:,} match{'' if self.match_count == 1 else 'es'}"
        self.query_one("#selection", SelectionLine).update(text)

    def on_resize(self, event: events.Resize) -> None:
        self._changed()

    @on(LaneChart.Scrolled)
    def _scrolled(self, message: LaneChart.Scrolled) -> None:
        message.stop()
        self._changed()

    def _changed(self) -> None:
        """Something else is to be drawn: at once what costs nothing, the rest when no key follows."""
        self._rests = False
        self.job_changed()

    @property
    def lane(self) -> LaneIdentity | None:
        """The lane under the cursor."""
        picture, number = self.picture, self.chart.cursor_lane
        return picture.lanes[number] if picture is not None and number < len(picture.lanes) else None

    @property
    def time(self) -> int:
        """The time under the cursor: the middle of the view before it was moved."""
        picture = self.picture
        if self.position.time is not None:
            return self.position.time
        return (picture.window.start + picture.window.end) // 2 if picture is not None else 0

    def _column_of(self, time: int) -> int:
        assert self.picture is not None
        window = self.picture.window
        return (time - window.start) * self.chart.chart_width // max(window.end - window.start, 1)

    def times_of(self, column: int) -> tuple[int, int]:
        """From and to which ns a column reaches: just those that ``_column_of`` puts into it."""
        assert self.picture is not None
        window, width = self.picture.window, self.chart.chart_width
        length = window.end - window.start
        return window.start - (-column * length // width), window.start - (-(column + 1) * length // width)

    def _place_cursor(self) -> None:
        """Puts the cursor of the chart at the position."""
        picture = self.picture
        assert picture is not None
        position, lane = self.position, self.chart.cursor_lane
        if position.lane is not None:
            lane = self._nearest(picture, position.lane)
        else:  # kernels are what a timeline is opened for
            lane = next((number for number, one in enumerate(picture.lanes) if not one.is_host), 0)
        mark = None if position.mark is None else self._column_of(position.mark)
        self.chart.move(lane, self._column_of(self.time), mark)

    def _nearest(self, picture: TimelinePicture, wanted: LaneIdentity) -> int:
        """The lane itself, else its GPU, else another of its rank, else where the cursor is."""
        for is_it in (
            lambda lane: lane == wanted,
            lambda lane: (lane.task, lane.device, lane.stream) == (wanted.task, wanted.device, None),
            lambda lane: lane.task == wanted.task,
        ):
            place = next((number for number, lane in enumerate(picture.lanes) if is_it(lane)), None)
            if place is not None:
                return place
        return self.chart.cursor_lane

    def _follow(self) -> None:
        """Shows the details of the cursor's place: its column at once, and the event when the cursor rests."""
        self.facts = None
        self.show_detail()
        self.cursor_moved()

    def show_detail(self) -> None:
        """Show what the column holds, and below it the event or the notes."""
        picture = self.picture
        shown = picture.pictures.get(self.chart.cursor_lane) if picture is not None else None
        if shown is None:
            return
        column = min(self.chart.cursor_column, len(shown.columns.busy) - 1)
        times, width = self.times_of(column), self.app.size.width
        lines = [column_line(shown, column, times, self.time, self.position.mark, width)]
        if self.facts is not None:
            below = fill(self.facts.details, width, self._detail_lines - 2)
            lines += [[(cut_end(self.facts.title, width), "bold")], *([(line, "")] for line in below)]
        elif picture is not None and not picture.is_whole and self._waits_for_lanes(picture):
            lines.append([("reading the streams and ranges of this rank…", "dim")])
        elif picture is not None:
            lines += [[(note, "dim")] for note in picture.notes[: self._detail_lines - 1]]
        self.detail.show_lines((lines + [[]] * HEIGHT)[:HEIGHT])

    def _waits_for_lanes(self, picture: TimelinePicture) -> bool:
        lane = self.lane
        return (
            lane is not None
            and lane.task in picture.opened
            and not any(one.task == lane.task and (one.is_host or one.stream is not None) for one in picture.lanes)
        )

    def cursor_rests(self) -> None:
        """Look up the event under the cursor, and draw what was left out."""
        picture, lane = self.picture, self.lane
        if picture is None or lane is None:
            return
        if not self.question.is_settled:
            self.cursor_moved()
            return
        if not picture.is_whole and not self._rests:
            self._rests = True
            self.job_changed()
        self._ask_facts(picture, lane)

    def _ask_facts(self, picture: TimelinePicture, lane: LaneIdentity) -> None:
        place, row = self._place(), self.position.event
        first, last = self.times_of(self.chart.cursor_column)
        window = Window(first, max(last, first + 1))

        def show(facts: EventFacts) -> None:
            if self._place() == place:
                self.facts = facts
                self.show_detail()

        def failed(error: Exception) -> None:
            show(EventFacts(None, reason_of(error)))

        job = self.job
        if job is not None:
            self.in_background("detail", lambda: event_facts(job, picture.timeline, lane, window, row), show, failed)

    def _place(self) -> Hashable:
        """Where the cursor is, and in which picture."""
        picture = self.picture
        return (self.lane, self.chart.cursor_column, self.position.event, picture.window if picture else None)

    def action_move(self, columns: int) -> None:
        """Move the cursor by columns, within the view."""
        if self._is_empty():
            return
        column = max(0, min(self.chart.cursor_column + columns, self.chart.chart_width - 1))
        first, last = self.times_of(column)
        self.move_to(time=(first + last) // 2, event=None)
        self._place_cursor()
        self._follow()

    def action_lane(self, lanes: int) -> None:
        """Move the cursor by lanes."""
        picture = self.picture
        if self._is_empty() or picture is None:
            return
        number = max(0, min(self.chart.cursor_lane + lanes, len(picture.lanes) - 1))
        self.move_to(time=self.time, lane=picture.lanes[number], event=None)
        self._place_cursor()
        self._follow()

    def action_page(self, direction: int) -> None:
        """Move the cursor by the lanes in sight."""
        self.action_lane(direction * len(self.chart.in_sight))

    def why_empty(self) -> str:
        """Say why there is no lane to act on; empty where there is one."""
        if self.picture is None:
            return "one moment: the lanes are being computed"
        return "" if self.picture.lanes else "there is no lane here"

    def _is_empty(self) -> bool:
        why = self.why_empty()
        if why:
            self.say(why)
        return bool(why)

    def _center(self, time: int) -> None:
        """Moves the view so that ``time`` is in its middle."""
        picture = self.picture
        assert picture is not None
        view = self._view_of(picture)
        width = view.end - view.start
        self.move_to(view=inside(Window(time - width // 2, time - width // 2 + width), picture.base))
        self._changed()

    def _view_of(self, picture: TimelinePicture) -> Window:
        """The time in view, also while it is being drawn: a key may come before the picture."""
        return self.position.view or picture.base

    def look_at(self, view: Window | None, time: int) -> None:
        """Show another view; an event under the cursor stays so if its time does."""
        self.move_to(view=view, time=time, event=self.position.event if time == self.time else None)
        self._changed()

    def action_event(self, direction: int) -> None:
        """Go to the next event of the lane (-1: the one before)."""
        picture, lane, neighbours = self.picture, self.lane, self._neighbours
        if self._is_empty() or picture is None or lane is None or neighbours is None:
            return
        if self._searching:
            self._steps += direction  # when the one before is found
            return
        time, forward = self.time, direction > 0
        if lane.is_cpu:
            self._go_to_interval(picture, lane, forward)
            return

        self._searching = True

        def find() -> Row | None:
            if lane.is_host:
                return range_next_to(picture.timeline, lane, time, forward)
            return neighbours.find(lane, time, forward)

        def failed(error: Exception) -> None:
            self._event_found(lane, None, reason_of(error))

        self.in_background("neighbour", find, partial(self._event_found, lane), failed)

    def _go_to_interval(self, picture: TimelinePicture, lane: LaneIdentity, forward: bool) -> None:
        """Goes to where the thread came to a CPU, left it or went on to another function; to functions looked for."""
        start = cpu_interval_next_to(picture.timeline, lane, self.time, forward, self._to_mark)
        if start is None:
            self.say("no more of it on this lane")
        elif self._view_of(picture).start <= start < self._view_of(picture).end:
            self.move_to(time=start, event=None)
            self._place_cursor()
            self._follow()
        else:
            self._go_to(start)

    def _event_found(self, lane: LaneIdentity, row: Row | None, reason: str = "no more events on this lane") -> None:
        picture, steps = self.picture, self._steps
        self._searching, self._steps = False, 0
        if picture is None or lane != self.lane:
            return
        if row is None:
            self.say(reason)
            return
        window = window_of(row)
        if not picture.base.start <= window.start < picture.base.end:
            self.say("the next one lies outside of the selection: Esc goes back, T selects a time")
            return
        self._show_event(row, lane)
        if steps:
            self._steps = steps - (1 if steps > 0 else -1)
            self.action_event(1 if steps > 0 else -1)

    def _show_event(self, row: Row, lane: LaneIdentity) -> None:
        """Puts the cursor on an event, and that into view."""
        picture, start = self.picture, window_of(row).start
        assert picture is not None
        self.move_to(time=start, event=row, lane=lane)
        view = self._view_of(picture)
        if not view.start <= start < view.end:
            self._center(start)
        elif lane not in picture.lanes:
            self.opened = picture.opened | {lane.task}
            self._changed()
        else:
            self._place_cursor()
            self._follow()

    def action_partner(self) -> None:
        """Goes from GPU work to the call that launched it, and back."""
        picture, row = self.picture, self.event_row()
        if self._is_empty() or picture is None:
            return
        if row is None:
            self.say("there is no event under the cursor: ] goes to the next one")
            return
        self.in_background("partner", lambda: partner_of(picture.timeline, row), self._go_to_place)

    def _go_to_place(self, place: FoundEvent) -> None:
        picture = self.picture
        if place.row is None or place.lane is None or picture is None:
            self.say(place.reason)
        elif not picture.base.start <= window_of(place.row).start < picture.base.end:
            self.say("it lies outside of the selected time: Esc goes back, T selects a time")
        else:
            self.opened = picture.opened | {place.lane.task}
            self._show_event(place.row, place.lane)

    def open_at(self, key: EventKey | None, window: Window | None) -> None:
        """Shows an event or a span of time of another screen in the middle of the view."""
        job = self.job
        if job is None or (key is None and window is None):
            return
        base = job.extent(self.selection)
        window = window or Window(key.start if key is not None else 0, (key.start if key is not None else 0) + 1)
        around = _AROUND_WINDOW if key is None else _AROUND_EVENT
        length = max((window.end - window.start) * around, self.app.size.width)
        middle = (window.start + window.end) // 2
        time = middle if key is None else key.start
        if not base.start <= time < base.end:
            return
        view = inside(Window(middle - length // 2, middle - length // 2 + length), base)
        self.move_to(view=view, time=time, event=None)
        self._changed()
        if key is not None:
            selection = self.selection
            self.in_background(
                "place",
                lambda: place_of(Timeline.of(job, selection), key),
                self._opened_at,
            )

    def _opened_at(self, place: FoundEvent) -> None:
        if place.row is None or place.lane is None:
            self.say(place.reason)
            return
        self.opened = frozenset({place.lane.task})
        self.move_to(time=window_of(place.row).start, event=place.row, lane=place.lane)
        self._changed()

    def open_rank(self, rank: int) -> None:
        """Opens one rank, the others closed, with the cursor on its first GPU."""
        item = next((item for item in self.job.ranks if item.rank == rank), None) if self.job is not None else None
        if item is not None:
            self.opened = frozenset({item.task})
            self.move_to(lane=LaneIdentity(item.task, item.rank, item.devices[0] if item.devices else None))
            self._changed()

    def action_next_rank(self, step: int) -> None:
        """Opens the next rank in place of this one."""
        picture, lane = self.picture, self.lane
        if self._is_empty() or picture is None or lane is None:
            return
        tasks = [item.task for item in picture.timeline.tasks]
        place = tasks.index(lane.task) + step
        if not 0 <= place < len(tasks):
            self.say("this is the last rank" if step > 0 else "this is the first rank")
            return
        self.move_to(time=self.time)
        self.open_rank(picture.timeline.tasks[place].rank)

    def action_open_event(self) -> None:
        """Go to the event in the list, or open the rank of the lane."""
        picture, lane = self.picture, self.lane
        if self._is_empty() or picture is None or lane is None:
            return
        if lane.task not in picture.opened and len(picture.timeline.tasks) > 1 and self.position.event is None:
            self.action_open_rank()
            return
        row = self.position.event
        if row is None and self.facts is not None:
            row = self.facts.row
            if (interval := self.facts.interval) is not None:
                show_thread(self.explorer, lane.task, lane.thread or 0, interval.window, bool(interval.node))
                return
        if row is None:
            self.say(self.facts.title if self.facts is not None else "one moment: the event is being read")
            return
        show_event(self.explorer, key_of(row))

    def action_open_rank(self) -> None:
        """Open or close the rank of the lane: its streams and threads."""
        picture, lane = self.picture, self.lane
        if self._is_empty() or picture is None or lane is None:
            return
        if not picture.timeline.has_inside(lane.task):
            self.say("nothing to open: no stream and no NVTX range was recorded for this rank")
            return
        self.opened = picture.opened ^ {lane.task}
        self.move_to(time=self.time, lane=lane, event=None)
        self._changed()

    def action_go_to(self) -> None:
        """Ask for a time to go to."""
        if not self._is_empty():
            self.prompt.ask("go to time", "", parse_duration, self._go_to)

    def _go_to(self, time: int) -> None:
        picture = self.picture
        if picture is None:
            return
        if not picture.base.start <= time < picture.base.end:
            self.say("the selection does not reach there")
            return
        self.move_to(time=time, event=None)
        self._center(time)
        self._place_cursor()
        self._follow()

    def action_highlight(self) -> None:
        """Ask for the names to mark."""
        self.prompt.ask("find", self.found.text if self.found else "", name_filter, self._highlight)

    def _highlight(self, name: NameFilter | None) -> None:
        self.found, self.match_count = name, None
        self.show_selection()
        self._changed()
        matches = self._matches()
        if name is None or matches is None:
            return

        def counted(count: int) -> None:
            if self.found == name:
                self.match_count = count
                self.show_selection()
                self.say("no event on these lanes matches" if not count else f"{count:,} found: n and N go to them")

        self.in_background("count", matches.count, counted)

    def _matches(self) -> Matches | None:
        """What is looked for on the lanes that are shown, and has its start in the selection."""
        picture, wanted = self.picture, self._to_mark
        if picture is None or wanted is None:
            return None
        lanes = tuple(lane for lane in picture.lanes if not lane.is_cpu)  # what ran there is no event
        return Matches(picture.timeline, lanes, picture.base, wanted)

    def action_match(self, direction: int) -> None:
        """Goes to the next event, on any lane, whose name is looked for."""
        if self._is_empty():
            return
        matches, lane, time = self._matches(), self.lane, self.time
        if lane is not None and lane.is_cpu:
            self.action_event(direction)
            return
        if matches is None:
            self.say("find a name with / first; ] and [ go to the next and previous event")
            return
        if self._searching:
            return
        self._searching = True

        def go(match: Match | None) -> None:
            self._searching = False
            if match is None:
                self.say(f'no more "{matches.wanted.text}"' if self.match_count != 0 else "no event matches")
            else:
                self._show_event(match.row, match.lane)

        def failed(error: Exception) -> None:
            self._searching = False
            self.say(reason_of(error))

        self.in_background("neighbour", lambda: matches.next_to(time, lane, direction > 0), go, failed)

    @on(LaneChart.Pointed)
    def _pointed(self, message: LaneChart.Pointed) -> None:
        """A press moves the cursor, and takes the mark away; drawing sets the mark where it began."""
        message.stop()
        picture = self.picture
        if picture is None or not picture.lanes:
            return
        first, last = self.times_of(message.column)
        mark = None if message.first is None else self.times_of(message.first)[0]
        lane = self.lane if message.lane is None else picture.lanes[message.lane]
        self.move_to(time=(first + last) // 2, lane=lane, event=None, mark=mark)
        self._place_cursor()
        self._follow()

    def action_mark(self) -> None:
        """Set the mark at the cursor, or take it away."""
        if self._is_empty():
            return
        time = self.time
        self.move_to(time=time, mark=None if self.position.mark == time else time)
        self._place_cursor()
        self.show_detail()

    def action_take_window(self) -> None:
        """Selects the time from the mark to the cursor, or the time in view, for every screen."""
        picture = self.picture
        if self._is_empty() or picture is None:
            return
        mark, time = self.position.mark, self.time
        window = self._view_of(picture)
        if mark is not None and mark != time:
            window = Window(min(mark, time), max(mark, time))
        if window == picture.base:
            self.say("this is all of the selection already: zoom in, or set a mark with m")
            return
        lane = self.lane
        self.select_window(window)
        self.move_to(time=min(max(time, window.start), window.end - 1), lane=lane)
        self._changed()

    def action_only_rank(self) -> None:
        """Select the rank of the lane alone."""
        picture, lane = self.picture, self.lane
        if self._is_empty() or picture is None or lane is None:
            return
        if len(picture.timeline.tasks) == 1:
            self.say(f"rank {lane.rank} is the only one already")
            return
        alone = self.selection.with_tasks(frozenset({lane.task}))
        self.take_position(alone, lane=lane)
        self.opened = frozenset({lane.task}) | (picture.opened if self.opened is not None else frozenset())
        self.explorer.select(alone)

    def answer_to_export(self) -> Answer | None:
        """The lanes or events that were listed for it."""
        return self._listed

    def drawing_to_export(self) -> Callable[[], Drawing | None] | None:
        """The lanes in sight; events are a table."""
        from nsystui.base.answer import TableAnswer

        picture = self.picture
        if picture is None or not isinstance(self._listed, TableAnswer):
            return None
        lanes, window = [picture.lanes[number] for number in self.chart.in_sight], self._view_of(picture)

        def draw() -> Drawing | None:
            from nsystui.questions.report.drawings import LANE_COLUMNS, timeline_lanes

            return timeline_lanes(lane_pictures(picture.timeline, lanes, window, LANE_COLUMNS))

        return draw

    def action_export(self) -> None:
        """Exports the lanes as they are drawn, a row for each lane and column, or the events on them."""
        if not self._is_empty():
            self.prompt.ask("export lanes (as drawn) or events?", "lanes", one_of("lanes", "events"), self._export)

    def _export(self, what: str) -> None:
        self._list(what, super().action_export)

    def action_copy_table(self) -> None:
        """Copy the events of the lanes in sight."""
        self._list("events", super().action_copy_table)

    def _list(self, what: str, then: Callable[[], None]) -> None:
        """Lists the lanes in sight or their events, which is a query, and goes on when they are counted."""
        picture = self.picture
        if self._is_empty() or picture is None:
            return
        lanes, window = [picture.lanes[number] for number in self.chart.in_sight], self._view_of(picture)
        columns = self.chart.chart_width

        def make() -> Answer:
            if what == "events":
                return lane_events(picture.timeline, lanes, window)
            return timeline_table(lane_pictures(picture.timeline, lanes, window, columns), picture.timeline.busy.notes)

        def listed(answer: Answer) -> None:
            self._listed = answer
            then()

        def failed(error: Exception) -> None:
            self._listed = None
            self.say(reason_of(error))

        self.in_background("list", make, listed, failed)

    def row_to_copy(self) -> tuple[Sequence[Column], Row] | None:
        """The event under the cursor."""
        row = self.event_row()
        return None if row is None else (EVENT_COLUMNS, row)

    def event_row(self) -> Row | None:
        """The event under the cursor, a row of ``EVENT_COLUMNS``."""
        if self.position.event is not None:
            return self.position.event
        return self.facts.row if self.facts is not None else None

    def event_here(self) -> EventKey | None:
        """The event under the cursor, by its key."""
        row = self.event_row()
        return None if row is None else key_of(row)

    def action_ncu(self) -> None:
        """Show the ``ncu`` command for the kernel under the cursor."""
        row = self.event_row()
        if row is None:
            show_ncu_commands(self, "there is no event under the cursor: ] goes to the next one")
        else:
            key = key_of(row)
            show_ncu_commands(self, ncu_of_event(key.kind.value, key.report, key.row))

    def action_trace(self) -> None:
        """Ask for a file and write the selection as a trace."""
        export_trace(self)
