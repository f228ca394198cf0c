"""The open job against another one: the line that asks for its files, and the comparison once these are read."""

from __future__ import annotations

import os
import shlex
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from textual import on
from textual.message import Message

from nsystui.base.errors import NsystuiError, UsageError
from nsystui.questions.opening import Source
from nsystui.ui import messages
from nsystui.ui.loading import Loading
from nsystui.ui.screens.diff import DiffScreen

if TYPE_CHECKING:
    from pathlib import Path

    from nsystui.questions.comparison import Side
    from nsystui.questions.job import Job


def files_of_other(text: str) -> tuple[str, ...]:
    """The names in a line as it is typed, ``~`` and quotes as in a shell; raises NsystuiError if no export is there."""
    from nsystui.exports.discover import discover
    from nsystui.store.opened import look_at

    try:
        names = tuple(os.path.expanduser(word) for word in shlex.split(text))
    except ValueError as error:
        raise UsageError(f"{text}: {str(error).lower()}") from None
    paths = discover(names)
    if not paths:
        raise UsageError("name the exports of the other job, or their folder")
    look_at(paths[0])
    return names


class OtherJobScreen(DiffScreen):
    """A is the open job, B the one that is read here; closing the screen ends the reading and lets go of B."""

    @dataclass
    class Read(Message):
        """B is read, and what A and B are."""

        sides: tuple[Side, Side]

    @dataclass
    class Unreadable(Message):
        """There is nothing to compare with."""

        reason: str

    def __init__(self, job: Job, opened: Source, files: tuple[str, ...]) -> None:
        super().__init__()
        self._own = (job, opened.files)
        source = replace(opened, files=files, logs=(), ranks="", step_range=job.step_range)
        self._loading = Loading(source, self._hear)
        self._other: Job | None = None
        self._rows: dict[Path, tuple[int, int]] = {}
        self._reasons: list[str] = []
        self._letting_go = threading.Lock()
        self._is_closed = self._is_read = False

    def on_mount(self) -> None:
        self.run_worker(self._read, thread=True, group="other job", exit_on_error=False)

    def on_unmount(self) -> None:
        self._loading.stop()
        with self._letting_go:
            self._is_closed = True
            self._let_go()

    def _let_go(self) -> None:
        """Closes B where neither the reading nor the screen has it any more."""
        if self._is_closed and self._is_read and self._other is not None:
            self._other.close()
            self._other = None

    # -- in the thread of the reading -----------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            self._loading.start()
        except Exception as error:  # whatever a file can do: the screen says it, and A stays open
            self.post_message(self.Unreadable(str(error).partition("\n")[0]))
        finally:
            with self._letting_go:
                self._is_read = True
                self._let_go()

    def _hear(self, message: Message) -> None:
        if isinstance(message, messages.JobStarted):
            self._other = message.job
        elif isinstance(message, messages.ExportFailed):
            self._reasons.append(f"{message.path}: {message.reason}")
        elif isinstance(message, messages.Advanced):
            self.post_message(message)
        elif isinstance(message, messages.LoadingEnded) and not message.cancelled:
            self.post_message(self._ended())

    def _ended(self) -> Message:
        from nsystui.base.selection import Selection
        from nsystui.questions.comparison import Side, job_labels

        assert self._other is not None
        if not self._other.session.reports:
            return self.Unreadable(self._reasons[0] if self._reasons else "nothing could be read")
        jobs = (self._own[0], self._other)
        try:
            labels = job_labels(jobs, (self._own[1], self._loading.source.files))
        except NsystuiError as error:
            return self.Unreadable(str(error))
        a, b = (Side(job, Selection(), label) for job, label in zip(jobs, labels, strict=True))
        return self.Read((a, b))

    # -- on the screen --------------------------------------------------------------------------------------------

    @on(messages.Advanced)
    def _advanced(self, message: messages.Advanced) -> None:
        message.stop()  # the application would take it for one of its own exports
        self._rows[message.path] = message.rows, message.total
        self.show_status(self.explorer.status)

    def show_status(self, status: str) -> None:
        done, total = (sum(numbers) for numbers in zip(*self._rows.values(), strict=True)) if self._rows else (0, 0)
        own = "" if self._sides is not None else f"B: reading {100 * done // max(total, 1)} %"
        super().show_status(own or status)

    @on(Read)
    def _compare(self, message: Read) -> None:
        message.stop()
        self._sides = message.sides
        self.job_changed()
        if self._reasons:
            self.say(f"not all of B could be read: {self._reasons[0]}")

    @on(Unreadable)
    def _give_up(self, message: Unreadable) -> None:
        message.stop()
        if self.is_active:
            self.leave()
            self.app.screen.say(f"nothing to compare with: {message.reason}")  # type: ignore[attr-defined]

    async def action_mode(self, name: str) -> None:
        self.say("the screens are those of A: esc goes back to them")
