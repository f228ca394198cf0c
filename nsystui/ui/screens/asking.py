"""A screen that asks questions in a thread: the newest wins, and not all too often while reports join."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.message import Message
from textual.widget import Widget

from nsystui.base.errors import NsystuiError
from nsystui.ui import keys
from nsystui.ui.describe import describe
from nsystui.ui.widgets.crumbs import KeyLine, SelectionLine, TitleLine
from nsystui.ui.widgets.note_lines import NoteLines
from nsystui.ui.widgets.prompt import LinePrompt
from nsystui.ui.widgets.quiet import QuietScreen

if TYPE_CHECKING:
    from textual.timer import Timer

    from nsystui.base.selection import Selection
    from nsystui.questions.job import Job
    from nsystui.questions.tasks import RankedTask
    from nsystui.ui.app import NsystuiApp

DETAIL_DELAY = 0.2
"""Seconds that a cursor rests before what belongs to its place is fetched and drawn beside it."""

_PATIENCE = 0.7
"""Seconds after which a screen without an answer says that it is waiting for one."""

_LEAST_PAUSE = 0.5
_PAUSE = 2.0


class AskingScreen(QuietScreen[None]):
    """The three lines around every screen, and the question between them; below it, what is left out of all answers.

    A screen says what to ask (``ask``, in a thread: no widget is touched there) and how to show the answer (``show``).
    While reports are being read it asks one question at a time, and then pauses twice as long as that took: sixty-four
    reports that become ready one after the other would else begin sixty-four questions, each of which takes time from
    the reading. A change of the selection or of the screen's own parameters is asked at once.

    ``MODE_KEY`` is the key of the mode a screen belongs to, ``PLACES`` where its keys come from (``ui.keys``), most
    special first.
    """

    MODE_KEY: ClassVar[str] = ""
    PLACES: ClassVar[tuple[str, ...]] = ("everywhere",)
    AUTO_FOCUS = "*"

    @dataclass
    class Answered(Message):
        """The answer to a question, from its thread; ``token`` says which. ``ranks`` are those it was asked with."""

        token: Hashable
        result: Any
        ranks: Sequence[RankedTask]

    @dataclass
    class Failed(Message):
        """A question could not be answered."""

        token: Hashable
        error: Exception

    def __init__(self, *crumbs: str) -> None:
        super().__init__()
        self.crumbs = crumbs
        self.job_ranks: Sequence[RankedTask] = ()
        self._asked: tuple[Hashable, ...] | None = None
        self._shown: tuple[Hashable, ...] | None = None
        self._answer_of: tuple[Hashable, ...] | None = None
        self._began = 0.0
        self._next = 0.0
        self._later: Timer | None = None

    @property
    def explorer(self) -> NsystuiApp:
        """The application, by its own type."""
        return self.app  # type: ignore[return-value]

    @property
    def job(self) -> Job | None:
        """The job, once a report of it is ready."""
        job = self.explorer.job
        return job if job is not None and job.session.reports else None

    @property
    def selection(self) -> Selection:
        return self.explorer.selection

    # -- what a screen fills in -----------------------------------------------------------------------------------

    def places(self) -> tuple[str, ...]:
        """Where the keys of the key line and of the help come from, most special first."""
        return self.PLACES

    def body(self) -> Iterable[Widget]:
        """The widgets between the lines."""
        return ()

    def parameters(self) -> tuple[Hashable, ...]:
        """What besides the selection changes the answer: a grouping, a table, a zoom."""
        return ()

    def ask(self, job: Job, selection: Selection) -> Any:
        """The question. Runs in a thread: widgets must not be touched; raises NsystuiError for the user."""
        raise NotImplementedError

    def show(self, result: Any, same_place: bool) -> None:
        """Shows an answer; ``same_place`` where only the data grew, so that the cursor should stay."""
        raise NotImplementedError

    def show_waiting(self) -> None:
        """Shows what there is before any report is ready."""

    def show_asking(self) -> None:
        """Says that the first answer takes its time; how far it is stands on the second line."""

    # -- the frame ------------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        title = TitleLine(keys.MODES, self.MODE_KEY, id="title")
        title.update(*self.crumbs)  # before the first answer, too
        yield title
        yield SelectionLine(id="selection")
        yield from self.body()
        left_out = NoteLines(id="left-out")
        left_out.allow(2)
        yield left_out
        yield LinePrompt(id="prompt")
        yield KeyLine(keys.key_line(*self.places()), id="keys")

    def show_selection(self) -> None:
        """The second line; the first one is the screen's own."""
        self.query_one("#selection", SelectionLine).update(describe(self.selection, self.job_ranks))

    def show_status(self, status: str) -> None:
        """What is being loaded."""
        self.query_one("#selection", SelectionLine).set_status(status)

    def show_title(self, right: str = "", about: str = "") -> None:
        """The first line: where I am, on what, how many."""
        self.query_one("#title", TitleLine).update(*self.crumbs, about=about, right=right)

    def say(self, text: str) -> None:
        """One sentence for the user, in place of the keys, for a few seconds."""
        self.query_one("#keys", KeyLine).say(text)

    @property
    def prompt(self) -> LinePrompt:
        return self.query_one("#prompt", LinePrompt)

    # -- asking ---------------------------------------------------------------------------------------------------

    def on_screen_resume(self, event: events.ScreenResume) -> None:
        self.job_changed()

    def job_changed(self) -> None:
        """The selection or the session may have changed: ask again if so."""
        self.show_status(self.explorer.status)
        self.show_selection()
        job = self.job
        if job is None:
            self.show_waiting()
            return
        token = (job.session.version, self.selection, *self.parameters())
        if token == self._asked:
            return
        if self._should_wait(token):
            if self._later is None:
                self._later = self.set_timer(max(_LEAST_PAUSE, self._next - time.monotonic()), self._go_on)
            return
        self._ask(job, token)

    def _should_wait(self, token: tuple[Hashable, ...]) -> bool:
        """Whether there is only more of the same to ask about, and it is too early for that."""
        if not self.explorer.loading_now or self._asked is None or self._asked[1:] != token[1:]:
            return False
        return self._asked != self._shown or time.monotonic() < self._next

    def _go_on(self) -> None:
        self._later = None
        if self.is_current:
            self.job_changed()

    def _ask(self, job: Job, token: tuple[Hashable, ...]) -> None:
        self._asked = token
        self._began = time.monotonic()
        if self._shown is None:
            self.set_timer(_PATIENCE, self._say_that_it_asks)
        selection = self.selection

        def question() -> None:
            try:
                ranks = job.ranks
                result = self.ask(job, selection)
            except Exception as error:  # whatever a query can raise: the screen says it and lives on
                self.post_message(self.Failed(token, error))
            else:
                self.post_message(self.Answered(token, result, ranks))

        self.run_worker(question, thread=True, exclusive=True, group="question", exit_on_error=False)

    def _say_that_it_asks(self) -> None:
        if self._shown is None and self.is_current:
            self.show_asking()

    @on(Answered)
    def _answered(self, message: Answered) -> None:
        message.stop()
        if message.token != self._asked:
            return  # a newer question is on its way
        before, self._shown = self._shown, self._asked
        self._answer_of = message.token
        same_place = before is not None and self._shown is not None and before[1:] == self._shown[1:]
        self._pause()
        self.job_ranks = message.ranks
        self.show_selection()
        self._show_left_out()
        self.show(message.result, same_place)

    def _show_left_out(self) -> None:
        from nsystui.questions.data_notes import left_out_note

        note = left_out_note(self.job.session) if self.job is not None else ""
        self.query_one("#left-out", NoteLines).show_notes((note,) if note else ())

    @on(Failed)
    def _failed(self, message: Failed) -> None:
        message.stop()
        if message.token == self._asked:
            self._shown = self._asked
            self._pause()
            first = (str(message.error) or type(message.error).__name__).splitlines()[0]
            self.say(first if isinstance(message.error, NsystuiError) else f"this could not be computed: {first}")

    @property
    def is_of_before(self) -> bool:
        """Whether what is shown answers another question than the newest, which is computed or has failed."""
        return self._answer_of is not None and self._asked is not None and self._answer_of[1:] != self._asked[1:]

    def _pause(self) -> None:
        now = time.monotonic()
        self._next = now + max(_LEAST_PAUSE, _PAUSE * (now - self._began))
