"""L Timeline: moves between events on the lanes of ranks, GPUs, streams and threads."""

from asyncio import to_thread
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from nsystui.base.answer import Answer, Row
from nsystui.base.drawing import Drawing
from nsystui.base.selection import NameFilter, Window
from nsystui.base.text import counted
from nsystui.base.units import parse_duration
from nsystui.exports.metadata import tid_of
from nsystui.questions.events.listing import EventKey, key_of, window_of
from nsystui.questions.job.job import OpenJob
from nsystui.questions.timeline.events import CpuInterval, Match, Matches, cpu_interval_next_to, range_next_to
from nsystui.questions.timeline.lanes import LaneIdentity, Timeline
from nsystui.questions.timeline.path import path_lane_at
from nsystui.questions.timeline.picture import lane_pictures, timeline_table
from nsystui.ui.pictures.selection import inside
from nsystui.ui.pictures.timeline import partner_of, place_of
from nsystui.ui.screens.lanes import LanesScreen
from nsystui.ui.screens.other_tools import export_trace, ncu_of_event, show_ncu_commands
from nsystui.ui.screens.table import name_filter
from nsystui.ui.widgets.repainting import in_background

_Result = TypeVar("_Result")

_AROUND_EVENT, _AROUND_WINDOW = 20, 2
"""The width of a view opened on an event or a span of time, as a multiple of its length."""


class TimelineScreen(LanesScreen):
    """The lanes of the selection, with moves between events and a name search; ``e`` exports the visible operations."""

    SCREEN = "timeline"
    MODE_KEY = "L"
    PLACES = ("timeline", "everywhere")

    _listed: Answer | None = None

    def action_event(self, direction: int) -> None:
        """Move to the next event of the lane (-1: the previous event)."""
        picture, lane, neighbours = self.drawn(), self.lane, self._neighbours
        if picture is None or lane is None or neighbours is None:
            return
        time, forward = self.time, direction > 0
        if lane.has_stretches:
            if not self._go_to_interval(lane, time, forward):
                self.say("no more matches on this lane")
            return

        find = partial(range_next_to, picture.timeline) if lane.is_host else neighbours.find
        self.begin_search(partial(self._go_to_neighbour, lane, partial(find, lane, time, forward)))

    def _go_to_interval(self, lane: LaneIdentity, time: int, forward: bool) -> bool:
        """Move to the thread's next function or CPU state, or to a function that matches the search.

        Return whether there is such a change.
        """
        picture = self.picture
        assert picture is not None
        start = cpu_interval_next_to(picture.timeline, lane, time, forward, self._marked_names)
        if start is None:
            return False
        if (view := self.view or picture.base).start <= start < view.end:
            self.move_to(time=start, event=None)
            self._follow()
        else:
            self._go_to(start)
        return True

    async def _go_to_neighbour(self, lane: LaneIdentity, find: Callable[[], Row | None]) -> None:
        row = await to_thread(find)
        picture = self.picture
        if picture is None or lane != self.lane:
            return
        if row is None:
            self.say("no more events on this lane")
            return
        if not picture.base.start <= window_of(row).start < picture.base.end:
            self.say("the next event is outside of the selection: Esc goes back, T selects a time")
            return
        self._show_event(row, lane)

    def _show_event(self, row: Row, lane: LaneIdentity) -> None:
        picture, start = self.picture, window_of(row).start
        assert picture is not None
        self.move_to(time=start, event=row, lane=lane)
        view = self.view or picture.base
        if not view.start <= start < view.end:
            self._center(start)
        elif lane not in picture.lanes:
            self.opened = picture.opened | {lane.task}
            self._draw_again()
        else:
            self._follow()

    @in_background("partner")
    async def action_partner(self) -> None:
        picture, row = self.drawn(), self.event_row()
        if picture is None:
            return
        if row is None:
            self.say("there is no event under the cursor: ] moves to the next event")
            return
        partner = await to_thread(partner_of, picture.timeline, row)
        if partner.row is None or partner.lane is None:
            self.say(partner.reason)
        elif not picture.base.start <= window_of(partner.row).start < picture.base.end:
            self.say("its partner is outside of the selected time: Esc goes back, T selects a time")
        else:
            self.opened = picture.opened | {partner.lane.task}
            self._show_event(partner.row, partner.lane)

    def open_at(self, key: EventKey | None, window: Window | None) -> None:
        """Show another screen's event or span of time in the middle of the view."""
        job = self.job
        if job is None or (key is None and window is None):
            return
        base = job.extent(self.selection)
        window = window or Window(key.start if key is not None else 0, (key.start if key is not None else 0) + 1)
        factor = _AROUND_WINDOW if key is None else _AROUND_EVENT
        length = max((window.end - window.start) * factor, self.app.size.width)
        middle = (window.start + window.end) // 2
        time = middle if key is None else key.start
        if not base.start <= time < base.end:
            return
        view = inside(Window(middle - length // 2, middle - length // 2 + length), base)
        self.move_to(view=view, time=time, event=None)
        self._draw_again()
        if key is not None:
            self._open_event(job, key)

    @in_background("place")
    async def _open_event(self, job: OpenJob, key: EventKey) -> None:
        selection = self.selection
        target = await to_thread(lambda: place_of(Timeline.of(job, selection), key))
        if target.row is None or target.lane is None:
            self.say(target.reason)
            return
        self.opened = frozenset({target.lane.task})
        self.move_to(time=window_of(target.row).start, event=target.row, lane=target.lane)
        self._draw_again()

    def open_rank(self, rank: int) -> None:
        """Open a rank, close the others, and move the cursor to its first GPU."""
        item = next((item for item in self.job.ranks if item.rank == rank), None) if self.job is not None else None
        if item is not None:
            self.opened = frozenset({item.task})
            self.move_to(lane=LaneIdentity(item.task, item.rank, item.devices[0] if item.devices else None))
            self._draw_again()

    def action_next_rank(self, step: int) -> None:
        """Open the next rank instead of this rank (-1: the previous rank)."""
        picture, lane = self.drawn(), self.lane
        if picture is None or lane is None:
            return
        tasks = [item.task for item in picture.timeline.tasks]
        number = tasks.index(lane.task) + step
        if not 0 <= number < len(tasks):
            self.say("this is the last rank" if step > 0 else "this is the first rank")
            return
        self.move_to(time=self.time)
        self.open_rank(picture.timeline.tasks[number].rank)

    def action_open_event(self) -> None:
        """Open the event in the list, or the rank of the lane."""
        picture, lane = self.drawn(), self.lane
        if picture is None or lane is None:
            return
        if lane.task not in picture.opened and len(picture.timeline.tasks) > 1 and self.position.event is None:
            self.action_open_rank()
            return
        facts, interval = self.facts, self.facts.interval if self.facts is not None else None
        if (row := self.event_row()) is not None:
            self.go_to_event(key_of(row))
        elif facts is None:
            self.opens = self.target
            self.say("one moment: the event opens when it is read")
        elif interval is not None:
            self.app.call_later(self._open_thread, lane, interval)
        else:
            self.say(facts.title)

    async def _open_thread(self, lane: LaneIdentity, interval: CpuInterval) -> None:
        """Go to the call tree of a lane's thread in an interval; without samples, go to the list of threads."""
        selection = self.selection.with_tasks(frozenset({lane.task})).with_window(interval.window).with_name(None)
        threads = await self.go_to_view("threads", selection)
        if threads and interval.node:
            threads.open_call_tree(lane.task, tid_of(lane.thread or 0))

    def action_open_rank(self) -> None:
        """Open or close the rank of the lane: its streams and threads."""
        picture, lane = self.drawn(), self.lane
        if picture is None or lane is None:
            return
        if not picture.timeline.has_inside(lane.task):
            self.say("nothing to open: no stream and no NVTX range was recorded for this rank")
            return
        self.opened = picture.opened ^ {lane.task}
        self.move_to(time=self.time, lane=lane, event=None)
        self._draw_again()

    @in_background("path")
    async def action_path(self) -> None:
        """Show or remove the critical path of the cursor's step, on its own lane."""
        picture, lane, job, time = self.drawn(), self.lane, self.job, self.time
        if picture is None or lane is None or job is None:
            return
        self.say("walking the critical path…")
        path_lane, message = await to_thread(path_lane_at, job, lane, time, picture.base)
        is_shown = path_lane == self.path_lane and path_lane in picture.lanes
        self.path_lane = None if is_shown else path_lane
        self.say("" if is_shown else message)
        self.opened = picture.opened | {path_lane.task}
        self._draw_again()

    def action_go_to(self) -> None:
        if self.drawn() is not None:
            self.prompt.ask("go to time", "", parse_duration, self._go_to)

    def _go_to(self, time: int) -> None:
        picture = self.picture
        if picture is None:
            return
        if not picture.base.start <= time < picture.base.end:
            self.say("that time is outside the selection")
            return
        self.move_to(time=time, event=None)
        self._center(time)
        self._follow()

    def action_search(self) -> None:
        """Ask for a name, mark and count its events, and move to the first."""
        if self.drawn() is not None:
            self.prompt.ask("search", "", name_filter, lambda name: self.begin_search(partial(self._search, name)))

    async def _search(self, name: NameFilter | None) -> None:
        self.search, self.match_count = name, ""
        self.show_selection()
        self._draw_again()
        lane = self.lane

        def find(matches: Matches) -> tuple[Matches, int, Match | None]:
            return matches, matches.count(), matches.next_to(matches.window.start - 1, None, forward=True)

        result = await self._find_match(find) if name is not None else None
        if result is None:
            return
        matches, count, match = result
        self.match_count = counted(count, "match")
        if not matches.is_whole:
            self.match_count += ", calls and ranges of open ranks only"
        self.show_selection()
        before = matches.window.start - 1
        is_found = lane is not None and lane.has_stretches and self._go_to_interval(lane, before, forward=True)
        if not is_found:
            self._show_match(match)

    def action_match(self, direction: int) -> None:
        """Move to the next matching event on any lane; from the last to the first."""
        picture, lane = self.drawn(), self.lane
        if picture is None or lane is None:
            return
        if self._marked_names is None:
            self.say("search a name with / first; ] and [ go to the next and previous event")
            return
        self.begin_search(partial(self._go_to_match, picture.base, lane, direction > 0))

    async def _go_to_match(self, base: Window, lane: LaneIdentity, forward: bool) -> None:
        time, edge = self.time, base.start - 1 if forward else base.end
        if lane.has_stretches:
            if not self._go_to_interval(lane, time, forward) and not self._go_to_interval(lane, edge, forward):
                self.say("nothing of that name on this lane")
            return

        def find(matches: Matches) -> tuple[Match | None, bool]:
            match = matches.next_to(time, lane, forward)
            return (match, False) if match is not None else (matches.next_to(edge, None, forward), True)

        if (result := await self._find_match(find)) is not None:
            match, is_wrapped = result
            self._show_match(match)
            if is_wrapped and match is not None:
                self.say(f"the {'first' if forward else 'last'} match again")

    def _show_match(self, match: Match | None) -> None:
        if match is None:
            self.say("no event matches")
        else:
            self._show_event(match.row, match.lane)

    async def _find_match(self, find: Callable[[Matches], _Result]) -> _Result | None:
        """Call ``find`` in a thread with the matches; return ``None`` if the search changed meanwhile."""
        picture, job, name, selection = self.picture, self.job, self._marked_names, self.selection
        if picture is None or job is None or name is None:
            return None
        opened, base = picture.opened, picture.base
        make = partial(Matches.of, picture.timeline, opened, base, name)
        try:
            result = await to_thread(lambda: find(job.once(("matches", selection, opened, name), make)))
        except Exception:
            self.match_count = self.match_count or "not counted"
            self.show_selection()
            raise
        return result if self._marked_names == name and self.picture is not None else None

    def action_take_window(self) -> None:
        """Select the time from the mark to the cursor, or the time in view, for every screen."""
        picture = self.drawn()
        if picture is None:
            return
        mark, time = self.position.mark, self.time
        window = self.view or picture.base
        if mark is not None and mark != time:
            window = Window(min(mark, time), max(mark, time))
        if window == picture.base:
            self.say("this is all of the selection already: zoom in, or set a mark with m")
            return
        lane = self.lane
        self.select_window(window)
        self.move_to(time=min(max(time, window.start), window.end - 1), lane=lane)
        self._draw_again()

    def action_only_rank(self) -> None:
        picture, lane = self.drawn(), self.lane
        if picture is None or lane is None:
            return
        if len(picture.timeline.tasks) == 1:
            self.say(f"rank {lane.rank} is already the only rank")
            return
        selection = self.selection.with_tasks(frozenset({lane.task}))
        self.move_to(selection, lane=lane)
        self.opened = frozenset({lane.task}) | (picture.opened if self.opened is not None else frozenset())
        self.explorer.select(selection)

    def answer_to_export(self) -> Answer | None:
        return self._listed

    def drawing_to_export(self) -> Callable[[], Drawing | None] | None:
        picture = self.picture
        if picture is None:
            return None
        lanes, window = [picture.lanes[number] for number in self.chart.in_sight], self.view or picture.base

        def draw() -> Drawing | None:
            from nsystui.questions.report.drawings import LANE_COLUMNS, timeline_lanes

            return timeline_lanes(lane_pictures(picture.timeline, lanes, window, LANE_COLUMNS))

        return draw

    def action_export(self) -> None:
        if self.drawn() is not None:
            self.ask_for_export("lanes")

    @in_background("lanes")
    async def export_table(self, path: Path) -> None:
        """Write the visible lanes: a row for each lane and column."""
        picture = self.drawn()
        if picture is None:
            return
        lanes, window = [picture.lanes[number] for number in self.chart.in_sight], self.view or picture.base
        shown = await to_thread(lane_pictures, picture.timeline, lanes, window, self.chart.chart_width)
        self._listed = timeline_table(shown, picture.timeline.busy.notes)
        super().export_table(path)

    def action_ncu(self) -> None:
        no_event = "there is no event under the cursor: ] moves to the next event"
        show_ncu_commands(self, ncu_of_event(self.event_here(), no_event))

    action_trace = export_trace
