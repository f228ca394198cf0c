"""6 Events: all events in time order, with jumps from a call to its GPU work and back."""

from asyncio import to_thread
from collections.abc import Callable
from functools import partial
from typing import Any

from nsystui.base.answer import Answer, Record, TableAnswer, record
from nsystui.base.selection import NameFilter, Selection, Window
from nsystui.base.units import parse_duration
from nsystui.questions.events.kinds import RUNTIMES, EventKind, kinds_of
from nsystui.questions.events.listing import EVENT_COLUMNS, EventKey, EventList, key_of, partners, window_of
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.paged import smart_named
from nsystui.ui.pictures.details import event_details
from nsystui.ui.screens import screen_of
from nsystui.ui.screens.other_tools import export_trace, ncu_of_event, show_ncu_commands
from nsystui.ui.screens.table import TableScreen, name_filter
from nsystui.ui.widgets.panels import Details
from nsystui.ui.widgets.repainting import in_background


@in_background("partner")
async def find_partner(screen: TableScreen, go: Callable[[EventKey], None]) -> None:
    """Find the GPU work of the cursor's call, or the reverse; list several GPU operations."""
    key, job = screen.event_here(), screen.job
    if key is None or job is None:
        return
    answer = await to_thread(partners, job.session, key, job.ranks)
    if not answer.rows:
        screen.say(answer.reason)
    elif len(answer.rows) == 1:
        go(key_of(answer.rows[0]))
    else:
        table = TableAnswer("partners", EVENT_COLUMNS, answer.rows, len(answer.rows))
        screen.lay_over(screen_of("GPU work", "launched by this call", lambda job: table, screen.MODE_KEY))


_CATEGORIES = {
    "api": "api", "kernel": "compute", "nccl": "nccl", "memory": "memory", "graph": "graph", "sync": "idle",
    "nvtx": "nvtx", "mark": "nvtx", "os": "os", **dict.fromkeys((kind.value for kind in RUNTIMES), "os"),
}  # fmt: skip


class EventsScreen(TableScreen):
    """The list of events, with the cursor on an event (``target``) if another screen jumps to it."""

    PARAMETERS = ("chosen",)
    COUNTED = "events"
    ORDER = ("start", False)
    SCREEN = "events"
    MODE_KEY = "6"
    PLACES = ("events", "table", "everywhere")
    STATE = (*TableScreen.STATE, "searched")
    BACKGROUND = True

    target: EventKey | None = None
    chosen: tuple[EventKind, ...] = ()
    searched: NameFilter | None = None

    def show_event(self, key: EventKey) -> None:
        """Move the cursor to an event, by time; list all kinds if its kind is not listed."""
        self.target, self._sort = key, None
        if self.chosen and key.kind not in self.chosen:
            self.chosen = ()
        self.ask_with(_jump=object())

    def ask(self, job: OpenJob, selection: Selection) -> tuple[EventList, int | None]:
        events = job.once(
            ("events", selection, self.chosen), lambda: EventList.build(job.session, selection, job.ranks, self.chosen)
        )
        return events, events.position(self.target) if self.target is not None else None

    def show(self, result: Any, same_place: bool) -> None:
        events, position = result
        super().show(events, same_place)
        if self.target is not None:
            if position is None:
                self.say("that event is outside the selection: T and an empty line select all time")
            else:
                self.table.cursor_row = position
            self.target = None

    def row_category(self, values: Record) -> str | None:
        return _CATEGORIES.get(str(values["kind"]))

    def row_window(self) -> Window | None:
        row = self.table.current_row
        if row is None:
            return None
        window = window_of(row)
        return Window(window.start, max(window.end, window.start + 1))

    def event_here(self) -> EventKey | None:
        row = self.table.current_row
        return None if row is None else key_of(row)

    def answer_to_export(self) -> Answer | None:
        answer = self.table.answer
        return None if answer is None else smart_named(answer, self.shown_names())

    def details_question(self) -> Callable[[OpenJob], Details] | None:
        row = self.table.current_row
        return None if row is None else lambda job: event_details(job, row)

    def action_partner(self) -> None:
        find_partner(self, self._go_to_partner)

    def _go_to_partner(self, key: EventKey) -> None:
        self.explorer.remember()
        events = self.table.answer
        if not isinstance(events, EventList):
            self.say("sort by time (s) to jump")
            return
        outside = "the event is outside the selection: Esc undoes the selection"
        self.begin_search(partial(self._look, partial(events.position, key), outside))

    open_row = action_partner

    def action_ncu(self) -> None:
        show_ncu_commands(self, ncu_of_event(self.event_here(), "there is no event here"))

    action_trace = export_trace

    def action_search(self) -> None:
        self.prompt.ask("search", "", name_filter, self._search)

    def _search(self, name: NameFilter | None) -> None:
        self.searched = name
        if name is not None:
            self.action_match(1)

    def action_go_to(self) -> None:
        self.prompt.ask("go to time", "", parse_duration, self._go_to)

    def _go_to(self, moment: int) -> None:
        events = self.table.answer
        if isinstance(events, EventList):
            self.begin_search(partial(self._look, partial(events.at_time, moment), "no event at that time"))

    def action_kinds(self) -> None:
        names = ",".join(kind.value for kind in self.chosen)
        self.prompt.ask("kinds (empty: all except os)", names, kinds_of, lambda kinds: self.ask_with(chosen=kinds))

    def action_match(self, direction: int) -> None:
        """Go to the next event of the searched name (-1: the previous event)."""
        if self.searched is None:
            self.say("search with / first: n and N then go to the matches")
            return
        searched, forward = self.searched, direction > 0

        def find(events: EventList, row: int) -> int | None:
            if (index := events.find(row, forward, searched)) is not None:
                return index
            end = 0 if forward else len(events) - 1  # continue from the other end
            end_row = next(iter(events.page(end, 1)), None)
            is_match = end_row is not None and searched.matches(str(record(EVENT_COLUMNS, end_row)["name"]))
            return end if is_match else events.find(end, forward, searched)

        self._find(find, f'no event has "{searched.text}" in its name')

    def action_same_kind(self, direction: int) -> None:
        """Go to the next event of this kind (-1: the previous event)."""
        if values := self.values():
            kind = EventKind(values["kind"])
            self._find(lambda events, row: events.find(row, direction > 0, kind=kind), f"no more {kind.value} events")

    def _find(self, find: Callable[[EventList, int], int | None], reason: str) -> None:
        events, cursor_row = self.table.answer, self.table.cursor_row
        if isinstance(events, EventList):
            self.begin_search(partial(self._look, partial(find, events, cursor_row), reason))
        else:
            self.say("sort by time (s) to search")

    async def _look(self, find: Callable[[], int | None], reason: str) -> None:
        index = await to_thread(find)
        if index is None:
            self.say(reason)
        else:
            self.table.cursor_row = index
