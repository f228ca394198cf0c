"""6 Events: everything in time order, from a call to its GPU work and back."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from textual import on
from textual.message import Message
from textual.timer import Timer

from nsystui.base.answer import Row
from nsystui.base.selection import NameFilter, Selection, Window
from nsystui.base.units import parse_duration
from nsystui.questions.event_kinds import EventKind, kinds_of
from nsystui.questions.events import EventKey, EventList, Partners, key_of, partners, window_of
from nsystui.questions.job import Job
from nsystui.ui import keys
from nsystui.ui.event_details import detail_lines
from nsystui.ui.screens.asking import DETAIL_DELAY
from nsystui.ui.screens.exporting import checker
from nsystui.ui.screens.handing_over import Ask, TracingScreen, of_event
from nsystui.ui.screens.partners import PartnersScreen
from nsystui.ui.screens.table_pane import TablePane
from nsystui.ui.widgets.prompt import LinePrompt

_CATEGORIES = {
    "api": "api",
    "kernel": "compute",
    "nccl": "nccl",
    "memory": "memory",
    "graph": "graph",
    "sync": "idle",
    "nvtx": "nvtx",
    "mark": "nvtx",
}


class EventsScreen(TracingScreen, TablePane):
    """The event list; opened on an event (``target``) when another screen jumps to it."""

    MODE_KEY = "6"
    PLACES = ("events", "table", "everywhere")
    BINDINGS = keys.bindings("events", "table", "everywhere")
    HAS_PANEL = True
    BACKGROUND = True

    DEFAULT_CSS = """
    EventsScreen.-narrow #body { layout: vertical; }
    EventsScreen.-narrow SidePanel { display: block; width: 100%; height: 5; }
    EventsScreen.-wide SidePanel { width: 52; }
    """

    @dataclass
    class Found(Message):
        """A search or jump ended at ``index`` (``None``: nowhere, for ``reason``)."""

        index: int | None
        reason: str = ""

    @dataclass
    class Detailed(Message):
        """The detail lines of an event."""

        key: EventKey
        lines: list[str]

        def can_replace(self, message: Message) -> bool:
            return isinstance(message, EventsScreen.Detailed)

    @dataclass
    class PartnersFound(Message):
        """What belongs to the event under the cursor."""

        found: Partners

    def __init__(self, target: EventKey | None = None) -> None:
        super().__init__("6 Events")
        self.target = target
        self.chosen: tuple[EventKind, ...] = ()
        self.searched: NameFilter | None = None
        self._detail_timer: Timer | None = None

    def free_keys(self) -> frozenset[str]:
        return frozenset({"g", "k"})

    def parameters(self) -> tuple[Hashable, ...]:
        return (self.chosen,)

    def ask(self, job: Job, selection: Selection) -> tuple[EventList, int | None]:
        events = job.once(
            ("events", selection, self.chosen),
            lambda: EventList.build(job.session, selection, job.ranks, self.chosen),
        )
        return events, events.position(self.target) if self.target is not None else None

    def show(self, result: Any, same_place: bool) -> None:
        events, position = result
        super().show(events, same_place)
        if self.target is not None:
            if position is None:
                self.say("the selection leaves that event out: T and an empty line select all time")
            else:
                self.table.move_to(position)
            self.target = None

    def natural_order(self) -> tuple[str | None, bool]:
        return "start", False

    def counted(self) -> str:
        return "events"

    def row_category(self, row: Row) -> str | None:
        return _CATEGORIES.get(str(row[1]))

    def row_window(self) -> Window | None:
        row = self.table.current_row
        if row is None:
            return None
        window = window_of(row)
        return Window(window.start, max(window.end, window.start + 1))

    # -- details --------------------------------------------------------------------------------------------------

    def row_changed(self) -> None:
        """Details follow when the cursor rests: a held key must not drag them over a slow line."""
        if self._detail_timer is not None:
            self._detail_timer.stop()
        self._detail_timer = self.set_timer(DETAIL_DELAY, self._ask_details)

    def _ask_details(self) -> None:
        self._detail_timer = None
        row, job = self.table.current_row, self.job
        if row is None or job is None:
            return
        key = key_of(row)

        def work() -> None:
            lines = detail_lines(job.session, row, job.ranks)
            self.post_message(self.Detailed(key, lines))

        self.run_worker(work, thread=True, exclusive=True, group="detail", exit_on_error=False)

    @on(Detailed)
    def _detailed(self, message: Detailed) -> None:
        message.stop()
        row = self.table.current_row
        if row is not None and key_of(row) == message.key:
            self.panel.show_lines(message.lines)

    # -- partners -------------------------------------------------------------------------------------------------

    def action_partner(self) -> None:
        row, job = self.table.current_row, self.job
        if row is None or job is None:
            return
        key = key_of(row)

        def work() -> None:
            self.post_message(self.PartnersFound(partners(job.session, key, job.ranks)))

        self.run_worker(work, thread=True, exclusive=True, group="partner", exit_on_error=False)

    @on(PartnersFound)
    def _partners_found(self, message: PartnersFound) -> None:
        message.stop()
        rows = message.found.rows
        if not rows:
            self.say(message.found.reason)
        elif len(rows) == 1:
            self.jump_to(key_of(rows[0]))
        else:
            self.lay_over(PartnersScreen(rows), self._partner_chosen)

    def _partner_chosen(self, key: EventKey | None) -> None:
        if key is not None:
            self.jump_to(key)

    def jump_to(self, key: EventKey) -> None:
        """Moves the cursor to an event of this list."""
        events = self.table.answer
        if not isinstance(events, EventList):
            self.say("sort by time (s) to jump")
            return
        self._look(
            lambda: events.position(key),
            "it is there, but the selection leaves it out: Esc undoes the selection",
        )

    def open_row(self) -> None:
        self.action_partner()

    def ncu_question(self) -> Ask | str:
        row = self.table.current_row
        if row is None:
            return "there is no event here"
        key = key_of(row)
        return of_event(key.kind.value, key.report, key.row)

    # -- search ---------------------------------------------------------------------------------------------------

    def action_search(self) -> None:
        text = self.searched.text if self.searched else ""
        self.prompt.open("search", "search", text, checker(lambda text: NameFilter(text) if text else None))

    def action_go_to(self) -> None:
        self.prompt.open("go", "go to time", "", checker(parse_duration))

    def action_kinds(self) -> None:
        names = ",".join(kind.value for kind in self.chosen)
        self.prompt.open("kinds", "kinds (empty: all but os)", names, checker(kinds_of))

    @on(LinePrompt.Submitted)
    def _asked_for(self, message: LinePrompt.Submitted) -> None:
        if message.purpose == "search":
            self.searched = NameFilter(message.value) if message.value else None
            if self.searched is not None:
                self.action_search_on(1)
        elif message.purpose == "go":
            events = self.table.answer
            if isinstance(events, EventList):
                moment = parse_duration(message.value)
                self._look(lambda: events.at_time(moment), "no event then")
        elif message.purpose == "kinds":
            self.chosen = kinds_of(message.value)
            self.job_changed()

    def action_search_on(self, direction: int) -> None:
        if self.searched is None:
            self.say("/ searches first")
            return
        wanted = self.searched
        self._find(direction, f'no more "{wanted.text}"', name=wanted)

    def action_same_kind(self, direction: int) -> None:
        values = self.values()
        if values:
            kind = EventKind(values["kind"])
            self._find(direction, f"no more {kind.value} events", kind=kind)

    def _find(self, direction: int, reason: str, name: NameFilter | None = None, kind: EventKind | None = None) -> None:
        events, here = self.table.answer, self.table.cursor_row
        if isinstance(events, EventList):
            self._look(lambda: events.find(here, direction > 0, name, kind), reason)
        else:
            self.say("sort by time (s) to search")

    def _look(self, find: Any, reason: str) -> None:
        def work() -> None:
            try:
                index = find()
            except Exception as error:  # a query: the user gets the reason, the program lives on
                self.post_message(self.Found(None, str(error).splitlines()[0]))
            else:
                self.post_message(self.Found(index, reason))

        self.run_worker(work, thread=True, exclusive=True, group="find", exit_on_error=False)

    @on(Found)
    def _found(self, message: Found) -> None:
        message.stop()
        if message.index is None:
            self.say(message.reason)
        else:
            self.table.move_to(message.index)
