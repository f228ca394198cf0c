"""L Timeline: from event to event on the lanes of ranks, GPUs, streams and NVTX threads, down to the single kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from textual import on
from textual.message import Message

from nsystui.base.answer import Answer, Row
from nsystui.base.columns import Column
from nsystui.base.selection import NameFilter, Window
from nsystui.base.units import parse_duration
from nsystui.questions.events import EVENT_COLUMNS, key_of, window_of
from nsystui.questions.timeline.events import Neighbours, lane_events, range_next_to
from nsystui.questions.timeline.lanes import Lane
from nsystui.ui import keys
from nsystui.ui.screens.exporting import checker
from nsystui.ui.screens.handing_over import Ask, TracingScreen, of_event
from nsystui.ui.screens.timeline_view import TimelineView
from nsystui.ui.timeline_picture import TimelinePicture
from nsystui.ui.widgets.prompt import LinePrompt


class TimelineScreen(TracingScreen, TimelineView):
    """The timeline with what acts on it: events, marks, the selection. ``e`` exports the operations in view."""

    PLACES = ("timeline", "everywhere")
    BINDINGS = keys.bindings("timeline", "everywhere")

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
        super().__init__()
        self._neighbours: Neighbours | None = None
        self._listed: Answer | None = None
        self._searching = False
        self._steps = 0  # events still to go on by, after the one that is being searched

    def show(self, result: Any, same_place: bool) -> None:
        picture: TimelinePicture = result
        if self._picture is None or self._picture.timeline is not picture.timeline:
            self._neighbours = Neighbours(picture.timeline)
        super().show(result, same_place)

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

        self.lay_over(EventsScreen(key_of(row)))

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

    # -- marks and the selection ----------------------------------------------------------------------------------

    def action_mark(self) -> None:
        if self._is_empty():
            return
        time = self.time
        self._look(time=time, mark=None if self.eye.mark == time else time)
        self._place_cursor()
        self.show_detail()

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

    def ncu_question(self) -> Ask | str:
        row = self.row_to_copy()
        if row is None:
            return "there is no event under the cursor: n goes to the next one"
        key = key_of(row)
        return of_event(key.kind.value, key.report, key.row)
