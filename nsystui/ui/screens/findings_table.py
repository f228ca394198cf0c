"""The findings on the overview: looked for in the background, worst first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual import on
from textual.message import Message
from textual.worker import get_current_worker

from nsystui.ui.finding_lines import HEALTHY, NOT_CHECKED, findings_answer
from nsystui.ui.widgets.window_table import WindowTable

if TYPE_CHECKING:
    from nsystui.base.answer import Row
    from nsystui.base.selection import Selection
    from nsystui.questions.job import Job
    from nsystui.questions.triage.finding import Finding
    from nsystui.questions.triage.run import Triage

MOST_KERNELS = 5_000_000
"""Of a job with more kernels nothing is looked for unasked: all rules over them take longer than a glance."""


class _Left(Exception):
    """Nobody waits for this any more."""


class FindingsTable(WindowTable):
    """A table of findings that looks for them itself: ``seek`` says of what, ``found`` is what came of it."""

    @dataclass
    class Changed(Message):
        """Findings came, or ``status`` says something else."""

    @dataclass
    class Advanced(Message):
        """So many rules have judged."""

        token: object
        done: int
        rules: int

    @dataclass
    class Found(Message):
        """All rules have judged, or it did not work out."""

        token: object
        triage: Triage | None
        reason: str = ""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name for it
        super().__init__(id=id, elastic="sentence", is_prose=True, row_style=_category)
        self.found: Triage | None = None
        self.status = ""
        """What stands in place of the table until there are findings."""
        self.waits = False
        """Whether nothing is looked for until the user says so."""
        self._token: object = None
        self._is_asked_for = False
        self.display = False

    def seek(self, job: Job, selection: Selection, is_asked_for: bool = False) -> None:
        """Looks for the findings of a selection, unless it did; of a huge job only where the user asks for it."""
        token = (job.session.version, selection)
        if token == self._token and not (is_asked_for and self.waits):
            return
        self._token = token
        self._is_asked_for |= is_asked_for
        kernels = _kernels(job)
        self.waits = kernels > MOST_KERNELS and not self._is_asked_for
        if self.waits:
            self._say(f"not looked for yet in so many kernels ({kernels:,}): v looks")
            return
        self._say("looking for what is wrong…")
        self._look(job, selection, token)

    @property
    def place(self) -> int | None:
        """Which finding the row under the cursor shows, in the order of ``found``; ``None`` where it shows none."""
        row, number = self.current_row, None
        if row is not None and self.answer is not None:
            number = dict(zip((column.key for column in self.answer.columns), row, strict=True))["number"]
        return number if isinstance(number, int) else None

    @property
    def current(self) -> Finding | None:
        """The finding under the cursor."""
        place = self.place
        return None if self.found is None or place is None else self.found.findings[place]

    @property
    def is_last(self) -> bool:
        """Whether the row under the cursor is the one of what was not checked."""
        row = self.current_row
        return row is not None and row[0] == NOT_CHECKED

    def _say(self, words: str) -> None:
        """One line instead of findings."""
        self.found, self.status, self.display = None, words, False
        self.post_message(self.Changed())

    def _look(self, job: Job, selection: Selection, token: object) -> None:
        def look() -> None:
            from nsystui.questions.triage.run import triage

            worker = get_current_worker()

            def advanced(done: int, rules: int) -> None:
                if worker.is_cancelled:
                    raise _Left
                self.post_message(self.Advanced(token, done, rules))

            try:
                found = job.once(("triage", selection), lambda: triage(job, selection, told=advanced))
            except _Left:
                return
            except Exception as error:  # whatever a query can raise: the line says it
                first = (str(error) or type(error).__name__).splitlines()[0]
                self.post_message(self.Found(token, None, first))
            else:
                self.post_message(self.Found(token, found))

        self.run_worker(look, thread=True, exclusive=True, group="findings", exit_on_error=False)

    @on(Advanced)
    def _advanced(self, message: Advanced) -> None:
        message.stop()
        if message.token == self._token and self.found is None:
            self._say(f"looking for what is wrong: {message.done} of {message.rules} rules")

    @on(Found)
    def _arrived(self, message: Found) -> None:
        message.stop()
        if message.token != self._token:
            return
        if message.triage is None:
            self._say(f"could not be looked for: {message.reason}")
            return
        self.found, self.status, self.display = message.triage, "", True
        self.set_answer(findings_answer(message.triage))
        self.post_message(self.Changed())


def _kernels(job: Job) -> int:
    from nsystui.store import tables

    return job.session.count(tables.kernels)


def _category(row: Row) -> str | None:
    """What is only a remark stands back."""
    return "idle" if row[0] in ("I", NOT_CHECKED, HEALTHY) else None
