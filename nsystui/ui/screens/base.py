"""The base of all screens on a job: lines around the body, views, choices, and ways to other screens."""

from __future__ import annotations

import time
from asyncio import to_thread
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.timer import Timer
from textual.widget import Widget

from nsystui.base.errors import NsystuiError, reason_of
from nsystui.questions.queries.question import COMPARISON, Question, View
from nsystui.ui import keys
from nsystui.ui.page import key_name
from nsystui.ui.pictures.selection import crumbs_of, describe
from nsystui.ui.screens import screen_of, views_on
from nsystui.ui.screens.asking import AskingScreen
from nsystui.ui.widgets.frame import CRUMB, Choice, ChoiceLine, KeyLine, SelectionLine, TitleLine
from nsystui.ui.widgets.panels import NoteLines
from nsystui.ui.widgets.prompt import LinePrompt
from nsystui.ui.widgets.repainting import Other, in_background
from nsystui.ui.widgets.window_table import WindowTable

if TYPE_CHECKING:
    from textual.screen import Screen

    from nsystui.base.selection import Window
    from nsystui.questions.events.listing import EventKey
    from nsystui.questions.job.job import OpenJob
    from nsystui.questions.queries.tasks import RankedTask

_MIN_PAUSE = 0.5
_PAUSE_FACTOR = 2.0
_PATIENCE = 0.3
"""Seconds after which the first line reports that the rows are outdated."""

Token = tuple[Hashable, ...]
"""The session's version, the selection and the screen's parameters: equal tokens have equal answers."""

DETAIL_DELAY = 0.2
"""Seconds that the cursor rests before its details are fetched and drawn."""

_NO_CHOICE = {
    "view": "this tab has one view only",
    "by": "these rows cannot be grouped otherwise",
    "as": "these rows are shown in one way only: there are no kernel names here",
    "Metrics": "no GPU metrics here: record with `nsys profile --gpu-metrics-devices=all`",
}
"""Why a choice has no options, by its label."""


class Asker:
    """Asks a screen's question in a thread; a newer question replaces the current question.

    While reports are being read, new data wait for the current answer and a pause of twice its time: otherwise,
    sixty-four reports, ready in turn, would start sixty-four questions, which slow the reading. A change of the
    selection or the screen's parameters is asked at once.
    """

    def __init__(self, screen: JobScreen) -> None:
        self._screen = screen
        self._asked: Token | None = None
        self._finished: Token | None = None  # answered or failed
        self._answered: Token | None = None
        self._began = 0.0
        self._next = 0.0
        self._pause_timer: Timer | None = None
        self.is_late = False
        """Whether an outdated answer has been shown for a moment."""

    @property
    def is_settled(self) -> bool:
        """Whether the newest question is answered or has failed; true before the first question."""
        return self._asked == self._finished

    @property
    def is_outdated(self) -> bool:
        """Whether the screen shows an older question's answer, while the newest is computed or has failed."""
        return self._answered is not None and self._asked is not None and self._answered[1:] != self._asked[1:]

    @property
    def is_awaited(self) -> bool:
        """Whether the newest question awaits its first answer, even from less data, and has not failed."""
        return self._finished is None or (not self.is_settled and (self._answered is None or self.is_outdated))

    def ask(self, job: OpenJob, token: Token) -> None:
        """Ask, perhaps after a pause, unless ``token`` is unchanged."""
        if token == self._asked:
            return
        has_only_grown = self._asked is not None and self._asked[1:] == token[1:]
        is_early = not self.is_settled or time.monotonic() < self._next
        if has_only_grown and is_early and self._screen.explorer.loading_now:
            if self._pause_timer is None:
                pause = max(_MIN_PAUSE, self._next - time.monotonic())
                self._pause_timer = self._screen.set_timer(pause, self._ask_again)
            return
        self._asked = token
        self._began = time.monotonic()
        if self._finished is None:
            self._screen.explorer.hold_loading(True)
            self._screen.show_text(self._screen.computing)  # the first line shows its progress
        else:
            self._screen.set_timer(_PATIENCE, partial(self._say_late, token))
        ask = partial(self._answer, job, token)
        # Without a description Textual would describe every argument, with all of a job's data.
        self._screen.run_worker(ask, group="question", description="question", exclusive=True)  # type: ignore[arg-type]

    def _say_late(self, token: Token) -> None:
        if token == self._asked and self.is_awaited:
            self.is_late = True
            self._screen.show_status(self._screen.explorer.status)

    def _ask_again(self) -> None:
        self._pause_timer = None
        if self._screen.is_current:
            self._screen.job_changed()

    async def _answer(self, job: OpenJob, token: Token) -> None:
        screen, selection = self._screen, self._screen.selection

        def ask() -> tuple[Any, Sequence[RankedTask]]:
            ranks = job.ranks
            job.smart_names()  # cached for showing the answer
            return screen.ask(job, selection), ranks

        try:
            answer = await to_thread(ask)
        except Exception as error:
            self._finish(token)
            reason = reason_of(error)
            screen.say(reason if isinstance(error, NsystuiError) else f"this could not be computed: {reason}")
            return
        previous = self._finished
        self._answered = token
        self._finish(token)
        if screen.display:  # it may be closed by now
            screen.show_answer(*answer, same_place=previous is not None and previous[1:] == token[1:])

    def _finish(self, token: Token) -> None:
        now = time.monotonic()
        self._finished = token
        self._screen.explorer.hold_loading(False)
        self._screen.explorer.take_keys()
        if self.is_late and self._screen.display:
            self.is_late = False
            self._screen.show_status(self._screen.explorer.status)
        self._next = now + max(_MIN_PAUSE, _PAUSE_FACTOR * (now - self._began))


@dataclass(frozen=True)
class ScreenState:
    """The state of a screen: values of its attributes, the cursor row of each table, and the focused widget."""

    values: dict[str, Any]
    cursors: dict[WindowTable, int]
    focused: Widget | None


class JobScreen(AskingScreen):
    """The base of all screens on a job.

    ``MODE_KEY`` is the key of its mode; ``PLACES`` are the places of its keys (``ui.keys``), most specific first, from
    which its bindings are made. A drilled screen is above the mode's screen.

    ``SCREEN`` is its name if it shows views of a tab. ``PARAMETERS`` names the attributes that change the answer, which
    are replaced, never changed. Going back restores them, those in ``STATE``, and the cursors.
    """

    MODE_KEY: str = ""
    SCREEN: ClassVar[str] = ""
    PARAMETERS: ClassVar[tuple[str, ...]] = ()
    STATE: ClassVar[tuple[str, ...]] = ()
    PLACES: ClassVar[tuple[str, ...]] = ("everywhere",)
    CRUMBS: ClassVar[tuple[str, ...]] = ()
    """The path from the tab to the screen, if it is always the same."""
    AUTO_FOCUS = "*"
    show: Callable[[Any, bool], None]
    """Show an answer; ``same_place`` if only the data grew, so that the cursor should stay."""
    _jump: object = None  # differs for each jump from another screen, which asks again; going back does not restore it
    NO_TIME: ClassVar[str] = "there is no time to select here"
    """Notice if there is no time to select."""

    def __init_subclass__(cls, **options: Any) -> None:
        if "PLACES" in cls.__dict__:
            cls.BINDINGS = keys.bindings(*cls.PLACES)
        super().__init_subclass__(**options)

    def __init__(self, *crumbs: str) -> None:
        super().__init__()
        self.crumbs = crumbs or self.CRUMBS
        self.job_ranks: Sequence[RankedTask] = ()
        """The job's ranks when the answered question was asked."""
        self.question = Asker(self)
        self._rest_timer: Timer | None = None
        self._saved_state: ScreenState | None = None  # until the answer with its rows is shown
        self._views: tuple[object, tuple[View, ...]] = (None, ())  # with the session's version and the view's name

    @property
    def is_settled(self) -> bool:
        """Whether the screen shows the answer to its newest question, and no details follow."""
        return self.question.is_settled and self._rest_timer is None

    def places(self) -> tuple[str, ...]:
        """Return the keys' places in key line and help, most specific first."""
        return self.PLACES

    def body(self) -> Iterable[Widget]:
        """Return the widgets between the lines above and below."""
        return ()

    def parameters(self) -> Token:
        """Return what changes the answer except the selection: a grouping, a table, a zoom."""
        return (self._jump, *(getattr(self, name) for name in self.PARAMETERS))

    def ask_with(self, **changes: object) -> None:
        """Change attributes, and ask again, unless the screen was never shown."""
        for name, value in changes.items():
            setattr(self, name, value)
        if self.is_mounted:
            self.job_changed()

    def show_waiting(self) -> None:
        """Show the screen before any report is ready."""
        self.show_text("opening…")

    @property
    def computing(self) -> str:
        """The name of the computation, in words."""
        tab = [title for key, title, _ in keys.TABS if key == self.MODE_KEY]
        view = [view.label for view in self.views()[1:] and self.views() if view.name == self.view_name()]
        return f"computing {CRUMB.join((*tab, *view, *self.path()))}…"

    @property
    def is_awaiting(self) -> bool:
        """Whether the rows that Enter acts on are still missing."""
        return self.job is None or self.question.is_awaited

    def keeps(self, key: str) -> bool:
        """Return whether a key must wait for the answer that is being computed, or for a search."""
        is_searching = self._search_in_progress is not None
        waits = (key in keys.ON_ROWS and self.is_awaiting) or (key in keys.SEARCHES and is_searching)
        return waits and not self.prompt.is_open

    def show_text(self, text: str) -> None:
        """Show a text instead of an answer."""

    def compose(self) -> ComposeResult:
        tabs = [tab for tab in keys.TABS if keys.MODE_OF[tab[0]] in self.explorer.MODES]
        yield TitleLine(tabs, self.MODE_KEY, id="title")
        yield SelectionLine(id="selection")
        yield ChoiceLine(id="choices")
        yield from self.body()
        left_out = NoteLines(id="left-out")
        left_out.max_lines = 2
        yield left_out
        yield LinePrompt(id="prompt")
        yield KeyLine(keys.key_line(*self.places()), id="keys")

    def show_selection(self) -> None:
        self.query_one("#selection", SelectionLine).update(describe(self.selection, self.job_ranks))

    @on(SelectionLine.CrumbClicked)
    def _crumb_clicked(self, message: SelectionLine.CrumbClicked) -> None:
        crumbs = crumbs_of(self.selection, self.job_ranks)
        if message.index < len(crumbs):
            self.explorer.select(crumbs[message.index][1])

    def show_status(self, status: str) -> None:
        """Show the loading's progress, or that rows are being computed again."""
        status = status or (self.computing if self.question.is_late else "")
        self.query_one("#title", TitleLine).set_status(status or self.explorer.state_of_loading, at_once=not status)

    def show_title(self, right: str = "", about: str = "") -> None:
        """Update the lines above: job name (or ``about``), path, and count at the ``right``."""
        self.query_one("#title", TitleLine).update(about or self.explorer.job_name)
        self.query_one("#selection", SelectionLine).show_count(right)
        self.show_choices()

    def show_choices(self) -> None:
        self.query_one("#choices", ChoiceLine).show_choices(self.path(), self.choices())
        self.query_one("#keys", KeyLine).keys = keys.key_line(*self.places())

    def path(self) -> Sequence[str]:
        """Return the path to this screen, shown on the third line."""
        return self.crumbs

    def on_screen_resume(self, event: events.ScreenResume) -> None:
        """Ask again if anything changed while another screen was shown."""
        self.job_changed()
        self._restore_cursors()

    def job_changed(self) -> None:
        """Ask again if the selection, the session or the parameters have changed."""
        self.show_status(self.explorer.status)
        self.show_selection()
        job = self.job
        if job is None:
            self.show_waiting()
        else:
            self.question.ask(job, (job.version, self.selection, *self.parameters()))
            self._restore_cursors()

    def show_answer(self, result: Any, ranks: Sequence[RankedTask], same_place: bool) -> None:
        """Show an answer and the lines around it; ``ranks`` are the job's ranks when it was asked."""
        from nsystui.questions.queries.data_notes import left_out_note

        self.job_ranks = ranks
        self.show_selection()
        note = left_out_note(self.job.session.reports) if self.job is not None else ""
        self.query_one("#left-out", NoteLines).show_notes((note,) if note else ())
        self.show(result, same_place)
        self.show_choices()
        self._restore_cursors()

    def choices(self) -> tuple[Choice, ...]:
        """Return the choices: the tab's view, and a subclass's, such as a grouping."""
        views = self.views()
        if len(views) < 2:
            return ()
        names = [view.name for view in views]
        index = names.index(self.view_name()) if self.view_name() in names else 0
        labels = tuple(view.label for view in views)
        return (Choice("view", labels, index, lambda number: self.show_view(names[number])),)

    def view_name(self) -> str:
        """Return the name of the view that is shown or being computed."""
        return next((view.name for view in views_on(keys.MODE_OF[self.MODE_KEY]) if view.screen == self.SCREEN), "")

    def views(self) -> tuple[View, ...]:
        """Return the views of the tab that have rows; empty on a drilled screen."""
        if not self.SCREEN:
            return ()
        key = (self.job.version if self.job is not None else None, self.view_name())
        if self._views[0] != key:
            self._views = (key, tuple(filter(self.has_view, views_on(keys.MODE_OF[self.MODE_KEY]))))
        return self._views[1]

    def has_view(self, view: View) -> bool:
        if not view.needs or self.job is None:
            return True
        from nsystui.exports import canonical

        return any(self.job.session.count(canonical.BY_NAME[name]) for name in view.needs)

    def show_view(self, name: str, **options: str) -> None:
        """Show a view of this tab, on this screen or the view's; ``options`` belong to its question."""
        view = next((view for view in views_on(keys.MODE_OF[self.MODE_KEY]) if view.name == name), None)
        if view is None or not self.is_active:
            return
        screen = self if view.screen == self.SCREEN else self.explorer.open_view(view)
        screen.take_view(name, **options)

    def take_view(self, name: str, **options: str) -> None:
        """Show a view of this screen."""

    def action_choose(self, label: str, step: int) -> None:
        """Choose the next option under a label (``step=-1``: the previous option)."""
        if choice := self._choice(label):
            self.take_option(choice, (choice.chosen + step) % len(choice.options))

    def action_pick(self, label: str) -> None:
        """List the options under a label, or take the other option if there are two."""
        from nsystui.ui.screens.dialogs import ChoiceList

        choice = self._choice(label)
        if choice and len(choice.options) > 2:

            def take(index: int | None) -> None:
                if index is not None:
                    self.call_later(self.take_option, choice, index)  # later, because this screen must be active again

            self.lay_over(ChoiceList(choice), take)
        elif choice:
            self.take_option(choice, (choice.chosen + 1) % len(choice.options))

    def _choice(self, label: str) -> Choice | None:
        choice = next((choice for choice in self.choices() if choice.label == label), None)
        if choice is None:
            self.say(_NO_CHOICE.get(label, "there is nothing to choose here"))
        return choice

    def take_option(self, choice: Choice, index: int) -> None:
        """Choose an option, and show it as chosen."""
        choice.choose(index)
        if self.is_mounted:
            self.show_choices()

    def state(self) -> ScreenState:
        """Return the state that going back restores."""
        values = {name: getattr(self, name) for name in (*self.PARAMETERS, *self.STATE)}
        return ScreenState(values, {table: table.cursor_row for table in self.query(WindowTable)}, self.focused)

    def restore(self, state: ScreenState) -> None:
        """Restore a state; the cursors follow once the rows are shown."""
        for name, value in state.values.items():
            setattr(self, name, value)
        self._saved_state = state

    def _restore_cursors(self) -> None:
        state = self._saved_state
        if state is None or not self.question.is_settled:
            return
        self._saved_state = None
        for table, row in state.cursors.items():
            table.cursor_row = row
        if state.focused is not None and state.focused.is_attached and not self.prompt.is_open:
            self.set_focus(state.focused)

    def cursor_moved(self) -> None:
        """Call ``cursor_rests`` if no key follows: held keys must not send details over a slow line."""
        if self._rest_timer is not None:
            self._rest_timer.stop()

        def rested() -> None:
            self._rest_timer = None
            self.cursor_rests()

        self._rest_timer = self.set_timer(DETAIL_DELAY, rested)

    def cursor_rests(self) -> None:
        """Fetch and show the details under the cursor."""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Refuse actions of a screen that is below another, or has no widgets yet."""
        return self.is_mounted and self not in self.app.screen_stack[:-1]

    def lay_over(self, screen: Screen[Other], then: Callable[[Other | None], None] | None = None) -> None:
        """Open a screen over this screen; unless it is a dialog, going back undoes this step."""
        if self.is_active and isinstance(screen, JobScreen):
            self.explorer.remember()
        super().lay_over(screen, then)

    async def action_mode(self, name: str) -> None:
        await self.explorer.go_to_tab(name)

    async def action_timeline(self) -> None:
        """Open the timeline at the event or time under the cursor."""
        if self.app.current_mode == "timeline" and len(self.app.screen_stack) == 1:
            self.say("this is the timeline")
            return
        key, window = self.event_here(), self.time_here()
        if timeline := await self.explorer.go("timeline"):
            timeline.open_at(key, window)

    @in_background("range")
    async def action_nvtx_range(self) -> None:
        """Go to the NVTX range around the event under the cursor."""
        from nsystui.questions.nvtx.around import range_around

        key, job = self.event_here(), self.job
        if key is None or job is None:
            self.say("w goes from an event to the NVTX range around it: there is no event here")
            return
        enclosing = await to_thread(range_around, job.session, key, job.ranks)
        if enclosing.key is None:
            self.say(enclosing.reason)
        elif self.is_current and key == self.event_here():
            self.go_to_event(enclosing.key, "nvtx")
            if enclosing.reason:
                self.say(enclosing.reason)

    def event_here(self) -> EventKey | None:
        """Return the event under the cursor."""
        return None

    def time_here(self) -> Window | None:
        """Return the time under the cursor."""
        return None

    def row_window(self) -> Window | None:
        """Return the time that ``t`` selects."""
        return None

    def action_take_window(self) -> None:
        window = self.row_window()
        if window is None:
            self.say(self.NO_TIME)
        else:
            self.select_window(window)

    async def action_back(self) -> None:
        """Undo the last step; without a step, stop the loading."""
        if not await self.explorer.go_back():
            self.say("stopping…" if self.explorer.stop_loading() else "nothing to go back to: q quits")

    def action_resume(self) -> None:
        if not self.explorer.resume_loading():
            self.say("everything is loaded already")

    def action_quit(self) -> None:
        self.explorer.stop_loading()
        self.app.exit(return_code=0)

    def action_help(self) -> None:
        from nsystui.ui.screens.dialogs import HelpScreen

        self.lay_over(HelpScreen(self.places(), partial(key_name, app=self.app)))

    def action_palette(self) -> None:
        self.lay_over(screen_of("palette"))

    def open_question(self, question: Question) -> None:
        """Open a question's table or map, or ask for a comparison's other side."""
        if not self.has_job():
            return
        if question.rows.home != COMPARISON:
            self.lay_over(screen_of("recipe" if question.map is None else "recipe map", question))
            return
        groups = ", or ranks A -- B" if self.job is not None and len(self.job.ranks) > 1 else ""

        def compare(other: Screen[None] | tuple[str, ...]) -> None:
            if isinstance(other, tuple):
                self.explorer.other_files = other  # the application for comparisons follows
                self.action_quit()
            else:
                self.lay_over(other)

        find = partial(screen_of, "comparison", self.job, self.selection)
        self.prompt.ask(f"compare with a path{groups}", "", find, compare)

    def select_window(self, window: Window) -> None:
        self.explorer.select(self.selection.with_window(window))
