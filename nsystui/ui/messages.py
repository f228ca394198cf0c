"""The messages of the loading to the application. Every message may come from a thread."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual.message import Message

if TYPE_CHECKING:
    from nsystui.questions.job import Job
    from nsystui.store.opened import Opened
    from nsystui.store.packed_job import JobReport
    from nsystui.store.report import Report
    from nsystui.store.session import Computation


@dataclass
class JobStarted(Message):
    """The store is there; reports will join it."""

    job: Job
    paths: tuple[Path, ...]


@dataclass
class ExportOpened(Message):
    """An export was checked: its metadata and counts are known, its rows are not read yet.

    In every message ``path`` is what the user named; a report that was converted is opened under another path.
    """

    path: Path
    opened: Opened | JobReport


@dataclass
class SampleTaken(Message):
    """A first kernel table from a sample of rows (an ``Answer``), until exact numbers are there."""

    answer: Any


@dataclass
class Advanced(Message):
    """Packing goes on: rows done of all rows of an export."""

    path: Path
    table: str
    rows: int
    total: int

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, Advanced) and message.path == self.path


@dataclass
class ReportReady(Message):
    """A report joined the session: every question sees it."""

    path: Path
    report: Report


@dataclass
class ExportFailed(Message):
    """An export cannot be used; the others go on."""

    path: Path
    reason: str


@dataclass
class LoadingEnded(Message):
    """Nothing more is being read; ``cancelled`` where the user stopped it."""

    cancelled: bool


@dataclass
class Warned(Message):
    """Something the user should know, in one line."""

    text: str


@dataclass
class Computing(Message):
    """A question takes its time: what is computed, and how far that is; ``None`` when it is done."""

    working: Computation | None

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, Computing)
