"""The application on two jobs, or two parts of one, that are only compared: one screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.message import Message

from nsystui.questions.opening import Source
from nsystui.ui import messages
from nsystui.ui.app import Look, NsystuiApp
from nsystui.ui.loading import Loading
from nsystui.ui.screens import screen_of

if TYPE_CHECKING:
    from nsystui.questions.comparison import Options, Side
    from nsystui.questions.job import Job

_FAILED = 2


class DiffApp(NsystuiApp):
    """Reads one job or two, one after the other, and then shows how its two sides differ.

    ``sides_of`` makes the sides of the jobs when these are read, in a thread; what it raises ends the application, and
    so does a job of which nothing could be read: its reason belongs on the terminal that stays. An interrupted reading
    compares nothing: half a job would differ from itself.
    """

    MODES: ClassVar[dict[str, object]] = {"diff": lambda: screen_of("diff")}
    DEFAULT_MODE = "diff"

    def __init__(
        self,
        sources: Sequence[Source],
        sides_of: Callable[[Sequence[Job]], tuple[Side, Side]],
        options: Options,
        look: Look,
    ) -> None:
        super().__init__(sources[0], look)
        self.sources = sources
        self.sides: tuple[Side, Side] | None = None
        self.options = options
        self._sides_of = sides_of
        self._reading = 0
        self._jobs: dict[int, Job] = {}

    def _begin(self) -> None:
        self._read(0)

    def _read(self, number: int) -> None:
        """Begins to read one of the jobs."""
        self._reading = number
        self.loading_now = True
        self._loading = Loading(self.sources[number], partial(self._post, number))
        self._load(self._loading)

    def _post(self, number: int, message: Message) -> None:
        """From the thread of the reading: the beginning and the end of a job are this application's own."""
        if isinstance(message, messages.JobStarted):
            self.call_later(self._started, number, message.job, message.paths)
        elif isinstance(message, messages.LoadingEnded):
            self.call_later(self._ended, number, message.cancelled)
        elif not isinstance(message, messages.SampleTaken):
            self.post_message(message)

    def _started(self, number: int, job: Job, paths: tuple[Path, ...]) -> None:
        self._jobs[number] = job
        for path in paths:
            self._state(path).ready = False
        self._tell_screen()

    def _ended(self, number: int, cancelled: bool) -> None:
        self.loading_now = False
        self._tell_progress()
        if cancelled:
            self._say("stopped: R reads on, q quits")
        elif number not in self._jobs or not self._jobs[number].session.reports:
            self._leave_with_reasons()
        elif number + 1 < len(self.sources):
            self._read(number + 1)
        else:
            self._make_sides([self._jobs[place] for place in sorted(self._jobs)])

    @work(thread=True, group="sides", exit_on_error=False)
    def _make_sides(self, jobs: Sequence[Job]) -> None:
        from nsystui.base.errors import NsystuiError

        try:
            sides = self._sides_of(jobs)
        except NsystuiError as error:
            self.call_from_thread(self._leave, str(error))
        else:
            self.call_from_thread(self._compare, sides)

    def _leave(self, reason: str) -> None:
        self.reasons = [reason]
        self.exit(return_code=_FAILED)

    def _compare(self, sides: tuple[Side, Side]) -> None:
        self.sides = sides
        self._tell_screen()

    def resume_loading(self) -> bool:
        """Reads the job on that a stop interrupted: what is ready of it comes from the cache, or is read again."""
        if self.loading_now or self.sides is not None:
            return False
        self._read(self._reading)
        return True

    @property
    def status(self) -> str:
        """What is being read, and of which side."""
        words = super().status
        return f"{'AB'[self._reading]}: {words}" if words and len(self.sources) > 1 else words
