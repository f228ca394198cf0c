"""The question of a screen, asked in a thread: the newest one wins."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from textual.timer import Timer

from nsystui.base.errors import NsystuiError
from nsystui.ui.widgets.frame import KeyLine
from nsystui.ui.widgets.prompt import LinePrompt
from nsystui.ui.widgets.repainting import ThrottledScreen, in_thread, reason_of

if TYPE_CHECKING:
    from nsystui.base.selection import Selection
    from nsystui.questions.job.job import OpenJob
    from nsystui.questions.queries.tasks import RankedTask
    from nsystui.ui.app import NsystuiApp

Result = TypeVar("Result")

_LEAST_PAUSE = 0.5
_PAUSE = 2.0
_PATIENCE = 0.3
"""Seconds after which the first line says that other rows than those on the screen are being computed."""

Token = tuple[Hashable, ...]
"""The version of the session, the selection and the parameters of a screen: the same for the same answer."""


class AskingScreen(ThrottledScreen[None]):
    """A screen of the job and the selection of the application, with a line for prompts and notices.

    It defines its question (``ask``, called in a thread, so that it must not touch a widget), and how the answer is
    shown.
    """

    @property
    def explorer(self) -> NsystuiApp:
        """The application, by its own type."""
        return self.app  # type: ignore[return-value]

    @property
    def job(self) -> OpenJob | None:
        """The job, once a report of it is ready."""
        job = self.explorer.job
        return job if job is not None and job.session.reports else None

    @property
    def selection(self) -> Selection:
        """The selection of all screens."""
        return self.explorer.selection

    def has_job(self) -> bool:
        """Whether a report is ready; if not, it says so."""
        if self.job is None:
            self.say("nothing is loaded yet")
        return self.job is not None

    def say(self, text: str) -> None:
        """Show one sentence in place of the keys for a few seconds."""
        self.query_one("#keys", KeyLine).say(text)

    def in_background(
        self,
        group: str,
        work: Callable[[], Result],
        then: Callable[[Result], object],
        failed: Callable[[Exception], object] | None = None,
        *,
        is_exclusive: bool = True,
    ) -> None:
        """Call ``work`` in a thread, then ``then`` with its result; say an error unless ``failed`` takes it."""
        in_thread(self, group, work, then, failed or self.say_reason, exclusive=is_exclusive)

    def say_reason(self, error: Exception) -> None:
        """Show the first line of an error in place of the keys."""
        self.say(reason_of(error))

    @property
    def prompt(self) -> LinePrompt:
        """The line in which the user types."""
        return self.query_one("#prompt", LinePrompt)

    def ask(self, job: OpenJob, selection: Selection) -> Any:
        """Answer the question, in a thread: it must not touch a widget. Raises NsystuiError for the user."""
        raise NotImplementedError

    def job_changed(self) -> None:
        """Ask again if the selection, the session or the parameters have changed."""
        raise NotImplementedError

    def show_status(self, status: str) -> None:
        """Show the progress of the loading, else that the screen computes."""
        raise NotImplementedError

    def show_answer(self, result: Any, ranks: Sequence[RankedTask], same_place: bool) -> None:
        """Show an answer that arrived; ``ranks`` are those it was asked with."""
        raise NotImplementedError

    def show_asking(self) -> None:
        """Say that the first answer is being computed; the first line shows the progress."""


class Asker:
    """The question of a screen, asked in a thread: the newest one wins.

    While reports are being read it is asked once at a time, and then pauses twice as long as that took: sixty-four
    reports that become ready one after the other would otherwise start sixty-four questions, each of which takes time
    from the reading. A change of the selection or of the screen's own parameters is asked at once.
    """

    def __init__(self, screen: AskingScreen) -> None:
        self._screen = screen
        self._asked: Token | None = None
        self._finished: Token | None = None  # answered or failed
        self._answered: Token | None = None
        self._began = 0.0
        self._next = 0.0
        self._later: Timer | None = None
        self.keeps_enter = False
        """Whether Enter was pressed before the answer is there, on which it then acts."""
        self.is_late = False
        """Whether the screen shows the answer to another question, and has done so for a moment."""

    @property
    def is_settled(self) -> bool:
        """Whether the newest question is answered or has failed; also before there is any."""
        return self._asked == self._finished

    @property
    def has_ended(self) -> bool:
        """Whether there was a question, and the newest one is answered or has failed."""
        return self._finished is not None and self.is_settled

    @property
    def is_outdated(self) -> bool:
        """Whether the answer on the screen is to another question than the newest, which is computed or has failed."""
        return self._answered is not None and self._asked is not None and self._answered[1:] != self._asked[1:]

    @property
    def is_awaited(self) -> bool:
        """Whether an answer is on its way, and none to the newest question is on the screen, not even of less data."""
        return not self.is_settled and (self._answered is None or self.is_outdated)

    def ask(self, job: OpenJob, token: Token) -> None:
        """Asks, unless ``token`` says that the answer would be the same; perhaps only after a pause."""
        if token == self._asked:
            return
        has_only_grown = self._asked is not None and self._asked[1:] == token[1:]
        is_early = not self.is_settled or time.monotonic() < self._next
        if has_only_grown and is_early and self._screen.explorer.loading_now:
            if self._later is None:
                pause = max(_LEAST_PAUSE, self._next - time.monotonic())
                self._later = self._screen.set_timer(pause, self._ask_again)
            return
        self.keeps_enter &= self._asked is None or has_only_grown
        self._asked = token
        self._began = time.monotonic()
        if self._finished is None:
            self._screen.explorer.hold_loading(True)
            self._screen.show_asking()
        else:
            self._screen.set_timer(_PATIENCE, partial(self._say_late, token))
        screen, selection = self._screen, self._screen.selection

        def ask() -> tuple[Any, Sequence[RankedTask]]:
            ranks = job.ranks
            job.smart_names()  # so that they are at hand when the answer is shown
            return screen.ask(job, selection), ranks

        in_thread(screen, "question", ask, partial(self._arrived, token), partial(self._failed, token))

    def _say_late(self, token: Token) -> None:
        if token == self._asked and self.is_awaited:
            self.is_late = True
            self._screen.show_status(self._screen.explorer.status)

    def _ask_again(self) -> None:
        self._later = None
        if self._screen.is_current:
            self._screen.job_changed()

    def _arrived(self, token: Token, answer: tuple[Any, Sequence[RankedTask]]) -> None:
        if token != self._asked:
            return  # a newer question is on its way
        before = self._finished
        self._answered = token
        self._finish(token)
        same_place = before is not None and before[1:] == token[1:]
        screen = self._screen
        screen.show_answer(*answer, same_place)
        enters, self.keeps_enter = self.keeps_enter, False
        if enters and screen.is_active and not screen.prompt.is_open:
            screen.query_one("#keys", KeyLine).show_parts(())
            screen.app.call_later(screen.app.simulate_key, "enter")  # else no binding would see it

    def _failed(self, token: Token, error: Exception) -> None:
        if token == self._asked:
            self._finish(token)
            reason = reason_of(error)
            self._screen.say(reason if isinstance(error, NsystuiError) else f"this could not be computed: {reason}")

    def _finish(self, token: Token) -> None:
        now = time.monotonic()
        self._finished = token
        self._screen.explorer.hold_loading(False)
        if self.is_late:
            self.is_late = False
            self._screen.show_status(self._screen.explorer.status)
        self._next = now + max(_LEAST_PAUSE, _PAUSE * (now - self._began))
