"""L Timeline: the lanes of ranks, GPUs, streams and NVTX threads on one clock, down to the single kernel."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from textual import events, on
from textual.message import Message
from textual.timer import Timer
from textual.widget import Widget

from nsystui.analysis.answer import Answer, Column, Row, Unit
from nsystui.analysis.events import EVENT_COLUMNS, key_of, window_of
from nsystui.analysis.job import Job
from nsystui.analysis.selection import NameFilter, Selection, Task, Window
from nsystui.analysis.timeline.gpu_events import Neighbours
from nsystui.analysis.timeline.lanes import Lane
from nsystui.analysis.timeline.listing import lane_events
from nsystui.analysis.timeline.nvtx_lane import range_next_to
from nsystui.ui import keys
from nsystui.ui.describe import describe
from nsystui.ui.gpu_lanes import inside, zoomed
from nsystui.ui.screens.asking import DETAIL_DELAY
from nsystui.ui.screens.exporting import checker
from nsystui.ui.screens.pane import Pane
from nsystui.ui.timeline_lines import HEIGHT, EventFacts, column_line, event_facts
from nsystui.ui.timeline_picture import TimelinePicture, Wanted, timeline_picture
from nsystui.ui.widgets.crumbs import SelectionLine
from nsystui.ui.widgets.lanes import LaneChart
from nsystui.ui.widgets.part_lines import PartLines
from nsystui.ui.widgets.prompt import LinePrompt
from nsystui.ui.widgets.window_table import WindowTable
from nsystui.units import format_value, parse_duration

_LABEL_WIDTH, _WIDE_LABEL_WIDTH = 11, 20
_VALUE_WIDTH = 7
_FRAME = 3
"""Lines for the title, the selection and the keys."""
_AXIS = 1


@dataclass(frozen=True)
class _Eye:
    """Where the user looks within a selection: the view (``None``: all of it), the time and the lane of the cursor.

    ``event`` is the event that the cursor was put on, until it is moved.
    """

    view: Window | None = None
    time: int | None = None
    lane: Lane | None = None
    mark: int | None = None
    event: Row | None = None


class TimelineScreen(Pane):
    """Lanes over time with a cursor that goes from event to event.

    A picture is computed of the lanes in sight only. While a key is held, names and what must be read first are left
    out; they follow when the cursor rests. ``e`` exports the operations of the lanes in sight, in the view.
    """

    MODE_KEY = "L"
    PLACES = ("timeline", "everywhere")
    BINDINGS = keys.bindings("timeline", "everywhere")

    DEFAULT_CSS = f"""
    TimelineScreen #detail {{ height: {HEIGHT}; }}
    TimelineScreen #empty {{ display: none; }}
    """

    @dataclass
    class Detailed(Message):
        """What is known of the event at a place, which is the ``token``."""

        token: Hashable
        facts: EventFacts

        def can_replace(self, message: Message) -> bool:
            return isinstance(message, TimelineScreen.Detailed)

    @dataclass
    class Found(Message):
        """The event that ``n`` or ``p`` goes to; ``None`` where there is none, or it failed for ``reason``."""

        lane: Lane
        row: Row | None
        reason: str = ""

    @dataclass
    class Listed(Message):
        """The events to export or to copy."""

        answer: Answer | None
        purpose: str
        reason: str = ""

    def __init__(self) -> None:
        super().__init__("L Timeline")
        self.opened: frozenset[Task] | None = None
        self.found: NameFilter | None = None
        self._picture: TimelinePicture | None = None
        self._neighbours: Neighbours | None = None
        self._eyes: dict[Selection, _Eye] = {}  # going back to a selection goes back to where the eye was
        self._rests = False
        self._facts: EventFacts | None = None
        self._listed: Answer | None = None
        self._searching = False
        self._steps = 0  # events still to go on by, after the one that is being searched
        self._wanted = Wanted(None, 1, 1, 0, None, None, False, None)
        self._detail_timer: Timer | None = None

    def body(self) -> Iterable[Widget]:
        self.chart = LaneChart(label_width=_LABEL_WIDTH, value_width=_VALUE_WIDTH, id="chart")
        self.detail = PartLines(id="detail")
        self.empty = WindowTable(id="empty")
        yield from (self.chart, self.detail, self.empty)

    # -- the question ---------------------------------------------------------------------------------------------

    @property
    def eye(self) -> _Eye:
        return self._eyes.get(self.selection, _Eye())

    def _look(self, **changes: Any) -> None:
        self._eyes[self.selection] = replace(self.eye, **changes)

    def parameters(self) -> tuple[Hashable, ...]:
        width, height = self.app.size
        self.chart.label_width = _LABEL_WIDTH if width < 100 else _WIDE_LABEL_WIDTH
        columns = max(1, width - len("▸ ") - self.chart.label_width - 1 - _VALUE_WIDTH - 1)
        lines = max(1, height - _FRAME - HEIGHT - _AXIS)
        eye = self.eye
        self._wanted = Wanted(
            eye.view,
            columns,
            lines,
            self.chart.rows.start,
            eye.lane,
            self.opened,
            self._rests,
            self._to_mark,
            self.chart.label_width,
        )
        # The lane of the cursor matters only where it lies out of sight, which the chart has seen to.
        return (replace(self._wanted, lane=None),)

    @property
    def _to_mark(self) -> NameFilter | None:
        """The names to mark: those looked for here, else those of the filter, which hides nothing on a timeline."""
        return self.found or self.selection.name

    def ask(self, job: Job, selection: Selection) -> TimelinePicture:
        return timeline_picture(job, selection, self._wanted)

    def show_waiting(self) -> None:
        self.show_title()
        self._show_empty("opening…")

    def show(self, result: Any, same_place: bool) -> None:
        picture: TimelinePicture = result
        if self._picture is None or self._picture.timeline is not picture.timeline:
            self._neighbours = Neighbours(picture.timeline)
        self._picture = picture
        if not picture.lanes:
            why = picture.notes or ("no GPU work and no NVTX range is in the selection: Esc goes back",)
            self.show_title()
            self._show_empty("\n".join((*why, "", "1 Overview shows what there is")))
            return
        self._show_empty("")
        window = picture.window
        self.chart.show(picture.labels, picture.lines, window.start, window.end)
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
        self.show_title(right=f"{count:,} rank{'' if count == 1 else 's'} · {len(picture.lanes):,} lanes · {time}")

    def show_selection(self) -> None:
        text = describe(self.selection, self.job_ranks)
        view = self.eye.view
        if view is not None:
            start, length = format_value(Unit.TIME, view.start), format_value(Unit.DURATION, view.end - view.start)
            text += f" · in view {start} + {length}"
        if self.found is not None:
            text += f' · marks "{self.found.text}"'
        self.query_one("#selection", SelectionLine).update(text)

    def _show_empty(self, text: str) -> None:
        """Words in place of the lanes, or the lanes again."""
        self.empty.display = bool(text)
        self.chart.display = self.detail.display = not text
        self.empty.empty_text = text
        self.empty.refresh_rows()
        if not text and self.focused is not self.chart and not self.prompt.has_focus_within:
            self.chart.focus()

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

    # -- the cursor -----------------------------------------------------------------------------------------------

    @property
    def lane(self) -> Lane | None:
        picture = self._picture
        return picture.lanes[self.chart.lane] if picture is not None and self.chart.lane < len(picture.lanes) else None

    @property
    def time(self) -> int:
        """The time under the cursor: the middle of the view before it was moved."""
        picture = self._picture
        if self.eye.time is not None:
            return self.eye.time
        return (picture.window.start + picture.window.end) // 2 if picture is not None else 0

    def _column_of(self, time: int) -> int:
        assert self._picture is not None
        window = self._picture.window
        return (time - window.start) * self.chart.width // max(window.end - window.start, 1)

    def _times_of(self, column: int) -> tuple[int, int]:
        """From and to which ns a column reaches: just those that ``_column_of`` puts into it."""
        assert self._picture is not None
        window, width = self._picture.window, self.chart.width
        length = window.end - window.start
        return window.start - (-column * length // width), window.start - (-(column + 1) * length // width)

    def _place_cursor(self) -> None:
        """Puts the cursor of the chart where the eye is."""
        picture = self._picture
        assert picture is not None
        eye, lane = self.eye, self.chart.lane
        if eye.lane is not None:
            lane = self._nearest(picture, eye.lane)
        else:  # kernels are what a timeline is opened for
            lane = next((number for number, one in enumerate(picture.lanes) if not one.is_nvtx), 0)
        mark = None if eye.mark is None else self._column_of(eye.mark)
        self.chart.move(lane, self._column_of(self.time), mark)

    def _nearest(self, picture: TimelinePicture, wanted: Lane) -> int:
        """The lane itself, else its GPU, else another of its rank, else where the cursor is."""
        for is_it in (
            lambda lane: lane == wanted,
            lambda lane: (lane.task, lane.device, lane.stream) == (wanted.task, wanted.device, None),
            lambda lane: lane.task == wanted.task,
        ):
            place = next((number for number, lane in enumerate(picture.lanes) if is_it(lane)), None)
            if place is not None:
                return place
        return self.chart.lane

    def _follow(self) -> None:
        """What belongs to the cursor's place: at once its column, and when the cursor rests, the event."""
        self._facts = None
        self._show_detail()
        if self._detail_timer is not None:
            self._detail_timer.stop()
        self._detail_timer = self.set_timer(DETAIL_DELAY, self._rested)

    def _show_detail(self) -> None:
        picture = self._picture
        shown = picture.pictures.get(self.chart.lane) if picture is not None else None
        if shown is None:
            return
        column = min(self.chart.column, len(shown.columns.busy) - 1)
        times, width = self._times_of(column), self.app.size.width
        lines = [column_line(shown, column, times, self.time, self.eye.mark, width)]
        if self._facts is not None:
            first, *others = self._facts.lines
            lines += [[(first, "bold")], *([(line, "")] for line in others)]
        elif picture is not None and not picture.is_whole and self._waits_for_lanes(picture):
            lines.append([("reading the streams and ranges of this rank…", "dim")])
        elif picture is not None:
            lines += [[(note, "dim")] for note in picture.notes[: HEIGHT - 1]]
        self.detail.show_lines((lines + [[]] * HEIGHT)[:HEIGHT])

    def _waits_for_lanes(self, picture: TimelinePicture) -> bool:
        lane = self.lane
        return (
            lane is not None
            and lane.task in picture.opened
            and not any(one.task == lane.task and (one.is_nvtx or one.stream is not None) for one in picture.lanes)
        )

    def _rested(self) -> None:
        self._detail_timer = None
        picture, lane = self._picture, self.lane
        if picture is None or lane is None or self._asked != self._shown:
            return
        if not picture.is_whole and not self._rests:
            self._rests = True
            self.job_changed()
        self._ask_facts(picture, lane)

    def _ask_facts(self, picture: TimelinePicture, lane: Lane) -> None:
        token, row = self._place(), self.eye.event
        first, last = self._times_of(self.chart.column)
        window = Window(first, max(last, first + 1))

        def work() -> None:
            try:
                facts = event_facts(picture.timeline, lane, window, row)
            except Exception as error:  # a query: the user gets the reason, the program lives on
                facts = EventFacts(None, (str(error).splitlines()[0],))
            self.post_message(self.Detailed(token, facts))

        self.run_worker(work, thread=True, exclusive=True, group="detail", exit_on_error=False)

    def _place(self) -> Hashable:
        """Where the cursor is, and in which picture."""
        picture = self._picture
        return (self.lane, self.chart.column, self.eye.event, picture.window if picture else None)

    @on(Detailed)
    def _detailed(self, message: Detailed) -> None:
        message.stop()
        if message.token == self._place():
            self._facts = message.facts
            self._show_detail()

    def action_move(self, columns: int) -> None:
        if self._is_empty():
            return
        column = max(0, min(self.chart.column + columns, self.chart.width - 1))
        first, last = self._times_of(column)
        self._look(time=(first + last) // 2, event=None)
        self._place_cursor()
        self._follow()

    def action_lane(self, lanes: int) -> None:
        picture = self._picture
        if self._is_empty() or picture is None:
            return
        number = max(0, min(self.chart.lane + lanes, len(picture.lanes) - 1))
        self._look(time=self.time, lane=picture.lanes[number], event=None)
        self._place_cursor()
        self._follow()

    def action_page(self, direction: int) -> None:
        self.action_lane(direction * len(self.chart.rows))

    def _is_empty(self) -> bool:
        if self._picture is None or not self._picture.lanes:
            self.say("there is no lane here" if self._picture is not None else "a moment: the lanes are being computed")
            return True
        return False

    # -- from event to event --------------------------------------------------------------------------------------

    def action_event(self, direction: int) -> None:
        picture, lane, neighbours = self._picture, self.lane, self._neighbours
        if self._is_empty() or picture is None or lane is None or neighbours is None:
            return
        if self._searching:
            self._steps += direction  # when the one before is found
            return
        self._searching = True
        time, forward = self.time, direction > 0

        def work() -> None:
            try:
                if lane.is_nvtx:
                    row = range_next_to(picture.timeline, lane, time, forward)
                else:
                    row = neighbours.find(lane, time, forward)
            except Exception as error:  # a query: the user gets the reason, the program lives on
                self.post_message(self.Found(lane, None, str(error).splitlines()[0]))
            else:
                self.post_message(self.Found(lane, row))

        self.run_worker(work, thread=True, exclusive=True, group="neighbour", exit_on_error=False)

    @on(Found)
    def _event_found(self, message: Found) -> None:
        message.stop()
        picture, steps = self._picture, self._steps
        self._searching, self._steps = False, 0
        if picture is None or message.lane != self.lane:
            return
        if message.row is None:
            self.say(message.reason or "no more events on this lane")
            return
        window = window_of(message.row)
        if not picture.base.start <= window.start < picture.base.end:
            self.say("the next one lies outside of the selection: Esc goes back, T selects a time")
            return
        self._look(time=window.start, event=message.row)
        view = self._view_of(picture)
        if view.start <= window.start < view.end:
            self._place_cursor()
            self._follow()
        else:
            self._center(window.start)
        if steps:
            self._steps = steps - (1 if steps > 0 else -1)
            self.action_event(1 if steps > 0 else -1)

    def _center(self, time: int) -> None:
        """Moves the view so that ``time`` is in its middle."""
        picture = self._picture
        assert picture is not None
        view = self._view_of(picture)
        width = view.end - view.start
        self._look(view=inside(Window(time - width // 2, time - width // 2 + width), picture.base))
        self._changed()

    def action_open_event(self) -> None:
        picture, lane = self._picture, self.lane
        if self._is_empty() or picture is None or lane is None:
            return
        if lane.task not in picture.opened and len(picture.timeline.tasks) > 1 and self.eye.event is None:
            self.action_open_rank()
            return
        row = self.eye.event if self.eye.event is not None else self._facts.row if self._facts is not None else None
        if row is None:
            self.say(self._facts.lines[0] if self._facts is not None else "a moment: the event is being looked up")
            return
        from nsystui.ui.screens.events import EventsScreen

        self.app.push_screen(EventsScreen(key_of(row)))

    def action_open_rank(self) -> None:
        picture, lane = self._picture, self.lane
        if self._is_empty() or picture is None or lane is None:
            return
        if not picture.timeline.has_inside(lane.task):
            self.say("nothing is inside: no stream and no NVTX range was recorded of this rank")
            return
        self.opened = picture.opened ^ {lane.task}
        self._look(time=self.time, lane=lane, event=None)
        self._changed()

    def action_go_to(self) -> None:
        if not self._is_empty():
            self.prompt.open("go", "go to time", "", checker(parse_duration))

    def action_highlight(self) -> None:
        text = self.found.text if self.found else ""
        self.prompt.open("mark", "mark names", text, checker(lambda text: NameFilter(text) if text else None))

    @on(LinePrompt.Submitted)
    def _asked_for(self, message: LinePrompt.Submitted) -> None:
        picture = self._picture
        if message.purpose == "mark":
            self.found = NameFilter(message.value) if message.value else None
            self.show_selection()
            self._changed()
        elif message.purpose == "go" and picture is not None:
            time = parse_duration(message.value)
            if not picture.base.start <= time < picture.base.end:
                self.say("the selection does not reach there")
                return
            self._look(time=time, event=None)
            self._center(time)
            self._place_cursor()
            self._follow()

    def _view_of(self, picture: TimelinePicture) -> Window:
        """What is in view, or is about to be: a key may come before the picture that the one before it asked for."""
        return self.eye.view or picture.base

    # -- the view -------------------------------------------------------------------------------------------------

    def action_zoom(self, direction: int) -> None:
        picture = self._picture
        if self._is_empty() or picture is None:
            return
        view = self._view_of(picture)
        width = view.end - view.start
        if direction > 0 and width <= self.chart.width:
            self.say("a column is 1 ns already")
        elif direction < 0 and self.eye.view is None:
            self.say("this is all of the selection: Esc goes back to the one before")
        else:
            time = self.time
            self._look(view=zoomed(view, picture.base, time, direction > 0, self.chart.width), time=time)
            self._changed()

    def action_pan(self, direction: int) -> None:
        picture, view = self._picture, self.eye.view
        if picture is None or view is None:
            self.say("all of the selection is in view: + zooms in")
            return
        half = direction * max(1, (view.end - view.start) // 2)
        moved = inside(Window(view.start + half, view.end + half), picture.base)
        if moved is None or moved == view:
            self.say("the selection ends here")
            return
        self._look(view=moved, time=self.time + moved.start - view.start, event=None)
        self._changed()

    def action_whole(self) -> None:
        if self.eye.view is None:
            self.say("all of the selection is in view")
        else:
            self._look(view=None, time=self.time)
            self._changed()

    # -- marks and the selection ----------------------------------------------------------------------------------

    def action_mark(self) -> None:
        if self._is_empty():
            return
        time = self.time
        self._look(time=time, mark=None if self.eye.mark == time else time)
        self._place_cursor()
        self._show_detail()

    def action_take_window(self) -> None:
        """Selects the time from the mark to the cursor, or what is in view, for every screen."""
        picture = self._picture
        if self._is_empty() or picture is None:
            return
        mark, time = self.eye.mark, self.time
        window = self._view_of(picture)
        if mark is not None and mark != time:
            window = Window(min(mark, time), max(mark, time))
        if window == picture.base:
            self.say("this is all of the selection already: zoom in, or set a mark with m")
            return
        lane = self.lane
        self.select_window(window)
        self._look(time=min(max(time, window.start), window.end - 1), lane=lane)
        self._changed()

    def action_only_rank(self) -> None:
        picture, lane = self._picture, self.lane
        if self._is_empty() or picture is None or lane is None:
            return
        if len(picture.timeline.tasks) == 1:
            self.say(f"rank {lane.rank} is the only one already")
            return
        alone = self.selection.with_tasks(frozenset({lane.task}))
        self._eyes[alone] = replace(self.eye, lane=lane)
        self.opened = frozenset({lane.task}) | (picture.opened if self.opened is not None else frozenset())
        self.explorer.select(alone)

    def action_back(self) -> None:
        """Undoes a selection that was made since the timeline was opened; then goes back to where that was."""
        way = self.explorer.way_back
        if self.is_drilled or way is None:
            super().action_back()
        elif self.selection == way.selection or not self.explorer.undo_selection():
            self.app.call_later(self.app.switch_mode, way.mode)

    # -- files ----------------------------------------------------------------------------------------------------

    def answer_to_export(self) -> Answer | None:
        return self._listed

    def action_export(self) -> None:
        self._list("export")

    def action_copy_table(self) -> None:
        self._list("copy")

    def _list(self, purpose: str) -> None:
        """Has the events of the lanes in sight counted, which is a query, and goes on when they are."""
        picture = self._picture
        if self._is_empty() or picture is None:
            return
        lanes, window = [picture.lanes[number] for number in self.chart.rows], self._view_of(picture)

        def work() -> None:
            try:
                answer = lane_events(picture.timeline, lanes, window)
            except Exception as error:  # a query: the user gets the reason, the program lives on
                self.post_message(self.Listed(None, purpose, str(error).splitlines()[0]))
            else:
                self.post_message(self.Listed(answer, purpose))

        self.run_worker(work, thread=True, exclusive=True, group="list", exit_on_error=False)

    @on(Listed)
    def _lanes_listed(self, message: Listed) -> None:
        message.stop()
        self._listed = message.answer
        if message.answer is None:
            self.say(message.reason)
        elif message.purpose == "export":
            super().action_export()
        else:
            super().action_copy_table()

    def row_to_copy(self) -> Row | None:
        """The event under the cursor."""
        if self.eye.event is not None:
            return self.eye.event
        return self._facts.row if self._facts is not None else None

    def columns_to_copy(self) -> tuple[Column, ...]:
        return EVENT_COLUMNS
