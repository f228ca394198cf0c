"""The picture of a timeline: which lanes and what time are in view, and where the cursor is."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

from textual import events, on
from textual.message import Message

from nsystui.base.answer import Row
from nsystui.base.columns import Unit
from nsystui.base.selection import NameFilter, Selection, Task, Window
from nsystui.base.units import format_value
from nsystui.questions.job import Job
from nsystui.questions.timeline.lanes import Lane
from nsystui.ui.describe import describe
from nsystui.ui.screens.zooming_pane import ZoomingPane
from nsystui.ui.timeline_lines import HEIGHT, EventFacts, column_line, event_facts
from nsystui.ui.timeline_picture import TimelinePicture, Wanted, timeline_picture
from nsystui.ui.widgets.crumbs import SelectionLine
from nsystui.ui.widgets.lanes import LaneChart
from nsystui.ui.zooming import inside

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


class TimelineView(ZoomingPane):
    """Lanes over time, a view on them, and a cursor at a lane and a time.

    A picture is computed of the lanes in sight only. While a key is held, names and what must be read first are left
    out; they follow when the cursor rests.
    """

    MODE_KEY = "L"
    chart: LaneChart

    DEFAULT_CSS = f"""
    TimelineView #detail {{ height: {HEIGHT}; }}
    """

    @dataclass
    class Detailed(Message):
        """What is known of the event at a place, which is the ``token``."""

        token: Hashable
        facts: EventFacts

        def can_replace(self, message: Message) -> bool:
            return isinstance(message, TimelineView.Detailed)

    def __init__(self) -> None:
        super().__init__("L Timeline")
        self.opened: frozenset[Task] | None = None
        self.found: NameFilter | None = None
        self._picture: TimelinePicture | None = None
        self._eyes: dict[Selection, _Eye] = {}  # going back to a selection goes back to where the eye was
        self._rests = False
        self._facts: EventFacts | None = None
        self._wanted = Wanted(None, 1, 1, 0, None, None, False, None)

    def make_chart(self) -> LaneChart:
        return LaneChart(label_width=_LABEL_WIDTH, value_width=_VALUE_WIDTH, id="chart")

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

    def show(self, result: Any, same_place: bool) -> None:
        picture: TimelinePicture = result
        self._picture = picture
        if not picture.lanes:
            why = picture.notes or ("no GPU work and no NVTX range is in the selection: Esc goes back",)
            self.show_title()
            self.show_empty("\n".join((*why, "", "1 Overview shows what there is")))
            return
        self.show_empty("")
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
        lanes = f"{len(picture.lanes):,} lane{'' if len(picture.lanes) == 1 else 's'}"
        self.show_title(right=f"{count:,} rank{'' if count == 1 else 's'} · {lanes} · {time}")

    def show_selection(self) -> None:
        text = describe(self.selection, self.job_ranks)
        view = self.eye.view
        if view is not None:
            start, length = format_value(Unit.TIME, view.start), format_value(Unit.DURATION, view.end - view.start)
            text += f" · in view {start} + {length}"
        if self.found is not None:
            text += f' · marks "{self.found.text}"'
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
        self.show_detail()
        self.show_detail_later()

    def show_detail(self) -> None:
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

    def cursor_rests(self) -> None:
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
            self.show_detail()

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

    def why_empty(self) -> str:
        if self._picture is None:
            return "a moment: the lanes are being computed"
        return "" if self._picture.lanes else "there is no lane here"

    def _is_empty(self) -> bool:
        why = self.why_empty()
        if why:
            self.say(why)
        return bool(why)

    def _center(self, time: int) -> None:
        """Moves the view so that ``time`` is in its middle."""
        picture = self._picture
        assert picture is not None
        view = self._view_of(picture)
        width = view.end - view.start
        self._look(view=inside(Window(time - width // 2, time - width // 2 + width), picture.base))
        self._changed()

    def _view_of(self, picture: TimelinePicture) -> Window:
        """What is in view, or is about to be: a key may come before the picture that the one before it asked for."""
        return self.eye.view or picture.base

    # -- the view -------------------------------------------------------------------------------------------------

    @property
    def view(self) -> Window | None:
        return self.eye.view

    @property
    def base(self) -> Window | None:
        return self._picture.base if self._picture is not None else None

    @property
    def columns(self) -> int:
        return self.chart.width

    def look_at(self, view: Window | None, time: int) -> None:
        self._look(view=view, time=time, event=self.eye.event if time == self.time else None)
        self._changed()
