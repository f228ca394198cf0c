"""Loading exports and NCCL's debug logs behind the screens, and the messages by which the application hears of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from textual.message import Message

from nsystui.base.answer import Answer, TableAnswer, Unit
from nsystui.base.errors import ExportError, NsystuiError
from nsystui.base.units import format_value
from nsystui.questions.job.opening import Export, JobSource, Listener, Opener
from nsystui.ui.widgets.frame import UPDATE_INTERVAL, progress_bar

if TYPE_CHECKING:
    from nsystui.exports.nccl_log.files import OpenLog
    from nsystui.exports.nccl_log.lines import LogReader
    from nsystui.questions.job.job import OpenJob
    from nsystui.questions.nccl_log.steps import IterationSpan, StepCut
    from nsystui.questions.nccl_log.summary import LogSummary
    from nsystui.store.opened import Opened
    from nsystui.store.packed_job import JobReport
    from nsystui.store.packing import Progress
    from nsystui.store.report import Report
    from nsystui.store.session import Computation


@dataclass
class JobStarted(Message):
    """The store is there; reports will join it."""

    job: OpenJob
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
    """A first kernel table from a sample of rows, until exact numbers are there."""

    answer: Answer


@dataclass
class Advanced(Message):
    """Packing goes on: rows done of all rows of an export."""

    path: Path
    table: str
    rows: int
    total: int

    def can_replace(self, message: Message) -> bool:
        """Leave the newest progress of a file in the queue."""
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
    """A long computation and its progress; ``None`` when it is done."""

    working: Computation | None

    def can_replace(self, message: Message) -> bool:
        """Leave the newest state of the computation in the queue."""
        return isinstance(message, Computing)


class _Messages(Listener):
    """Turns the events of the opener into messages."""

    def __init__(self, post: Callable[[Message], object]) -> None:
        self._post = post

    def advanced(self, path: Path, progress: Progress) -> None:
        self._post(Advanced(path, progress.table, progress.rows, progress.total))

    def ready(self, path: Path, report: Report) -> None:
        self._post(ReportReady(path, report))

    def failed(self, path: Path, error: NsystuiError) -> None:
        reason = str(error)
        if isinstance(error, ExportError):
            reason = error.cause + (f" ({error.advice})" if error.advice else "")
        self._post(ExportFailed(path, reason))

    def warned(self, text: str) -> None:
        self._post(Warned(text))

    def computing(self, working: Computation | None) -> None:
        self._post(Computing(working))


_FIRST_REPORTS = 32
"""Reports of a packed job that are opened before the opening waits for the first answer of a screen."""
_FIRST_ANSWER = 3.0
"""Seconds that it waits at most."""


class Loading:
    """One run of the loading; ``post`` must be safe to call from threads."""

    def __init__(self, source: JobSource, post: Callable[[Message], object]) -> None:
        self.source = source
        self._post = post
        self._opener = Opener(source, _Messages(post))
        self._has_turn = threading.Event()
        self.hold(False)

    def stop(self) -> None:
        """Ends the loading after the current chunk; reports that are ready stay."""
        self._opener.stop()
        self.hold(False)

    def hold(self, is_asking: bool) -> None:
        """Holds the opening of a packed job as long as a screen ``is_asking`` its first question.

        Both are work for Python: side by side the answer would come last.
        """
        if is_asking:
            self._has_turn.clear()
        else:
            self._has_turn.set()

    def start(self) -> None:
        """Discovers the files and loads them all. Blocks: call it in a thread."""
        job, exports = self._opener.start()
        paths = tuple(export.path for export in exports)
        self._post(JobStarted(job, paths))
        self.go_on(job, list(enumerate(paths)))

    def go_on(self, job: OpenJob, numbered: Sequence[tuple[int, Path]]) -> None:
        """Loads the given exports into ``job``; the numbers keep the order of the command line."""
        from nsystui.store.packed_job import JobReport

        opened, joined = [], 0
        for number, path in numbered:
            found = self._opener.look_at(job, Export(number, path))
            if found is not None and found.opened is not None:
                self._post(ExportOpened(found.path, found.opened))
            if found is not None and isinstance(found.opened, JobReport):
                self._opener.add_one(job, found)
                joined += 1
                if joined >= _FIRST_REPORTS:
                    self._has_turn.wait(_FIRST_ANSWER)
            elif found is not None:
                opened.append(found)
        sampling = threading.Thread(target=self._sample, args=(job, opened), daemon=True)
        sampling.start()
        self._opener.add(job, opened)
        sampling.join()
        try:
            self._opener.align(job)
        except NsystuiError as error:
            self._post(Warned(f"clocks are aligned by UTC alone: {error}"))
        if job.several_runs:
            self._post(Warned(job.several_runs))
        self._post(LoadingEnded(self._opener.is_stopped))
        self._remember(job)

    def _remember(self, job: OpenJob) -> None:
        """Remembers the first answers for the commands; a failure only costs those time."""
        from nsystui.questions.answers.remembered import remember_first_questions

        cache = job.session.cache
        if cache is not None and job.session.exports and not self._opener.is_stopped:
            with suppress(ExportError, OSError):
                remember_first_questions(job, cache)

    def _sample(self, job: OpenJob, opened: Sequence[Export]) -> None:
        """Posts a sampled kernel table of the exports that are not packed yet."""
        from nsystui.questions.capture.sample import sampled_kernels
        from nsystui.store.opened import Opened

        cache = job.session.cache
        exports = [export.opened for export in opened if isinstance(export.opened, Opened)]
        fresh = [item for item in exports if cache is None or cache.find(item.file) is None]
        for answer in sampled_kernels(fresh):
            if self._opener.is_stopped or job.session.reports:
                return
            self._post(SampleTaken(answer))


LINES_AT_ONCE = 50_000
"""How many lines are added up before anything else may happen: a fraction of a second of reading."""

FIRST_TABLES = 1.0
_SHARE_WAITED = 0.25
_TIMES_OF_MAKING = 20
"""The tables are made again when a quarter more time has gone by, and 20 times what making them took."""


@dataclass(frozen=True)
class LogState:
    """How far the logs are read, and what they say up to there.

    ``read`` of ``size`` bytes are read, as the files lie on the disk. ``tables`` are there as soon as the first are
    made, each with the notes; ``lines``, ``calls``, ``gpus`` (that called anything) and ``moved`` (the bytes of all
    calls) belong to them. ``failures`` say which logs could not be read, and why. ``is_over`` when nothing more is
    being read; ``is_stopped`` when the user ended it before its end.
    """

    names: tuple[str, ...]
    read: int = 0
    size: int = 0
    tables: Mapping[str, TableAnswer] = field(default_factory=dict)
    lines: int = 0
    calls: int = 0
    gpus: int = 0
    moved: int = 0
    failures: tuple[str, ...] = ()
    is_over: bool = False
    is_stopped: bool = False

    @property
    def share(self) -> float:
        """How much is read, from 0 to 1."""
        return min(self.read / self.size, 1.0) if self.size else 0.0

    @property
    def status(self) -> str:
        """The progress of the reading, in words; empty when all of it is read."""
        if self.is_stopped:
            return f"stopped at {int(self.share * 100)} %: R resumes reading"
        if self.is_over:
            return ""
        read, size = (format_value(Unit.BYTES, number) for number in (self.read, self.size))
        return f"reading log  {progress_bar(self.share)}  {read} of {size}" if self.size else "reading log…"

    @property
    def failed(self) -> str:
        """The logs that could not be read, in one sentence; empty where all could."""
        if not self.failures:
            return ""
        others = len(self.failures) - 1
        return f"not read: {self.failures[0]}" + (f", and {others:,} more" if others else "")


@dataclass
class LogRead(Message):
    """The reading of NCCL's debug logs goes on, or is over: ``state`` says how far, and what they say."""

    state: LogState

    def can_replace(self, message: Message) -> bool:
        """Leave the newest state of the log in the queue."""
        return isinstance(message, LogRead)


class _StoppedError(Exception):
    """The user stopped the reading."""


class LogLoading:
    """One reading of some logs, as one, or of some training ``steps`` in them.

    ``post`` gets a `LogRead` now and then, and must be safe to call in threads.
    """

    def __init__(
        self, names: Sequence[str], post: Callable[[Message], object], steps: IterationSpan | None = None
    ) -> None:
        self.state = LogState(tuple(names))
        self._steps = steps
        self._cut: StepCut | None = None
        self._post = post
        self._stopped = threading.Event()
        self._began = time.monotonic()
        self._told = self._began
        self._next_tables = self._began + FIRST_TABLES

    def stop(self) -> None:
        """Ends the reading after the current piece; the tables of the part that was read stay."""
        self._stopped.set()

    def start(self) -> None:
        """Reads all logs. Blocks: call it in a thread."""
        try:
            self._read_all()
        except Exception as error:  # whatever it is, the screens must not say forever that they are reading
            reason = (str(error) or type(error).__name__).splitlines()[0]
            self._tell(failures=(*self.state.failures, reason), is_over=True)

    def _read_all(self) -> None:
        from nsystui.exports.nccl_log.files import open_log, size_of
        from nsystui.exports.nccl_log.lines import LogReader
        from nsystui.questions.nccl_log.steps import StepCut
        from nsystui.questions.nccl_log.summary import LogSummary

        self._cut = None if self._steps is None else StepCut(self._steps)
        sizes = [size_of(name) or 0 for name in self.state.names]
        self._tell(size=sum(sizes))
        summary, reader = LogSummary(), LogReader()
        before = 0
        for name, size in zip(self.state.names, sizes, strict=True):
            try:
                with open_log(name) as log:
                    self._read(log, summary, reader, before)
            except ExportError as error:
                self._tell(failures=(*self.state.failures, str(error)))
            except _StoppedError:
                self._tell_tables(summary, reader, is_over=True, is_stopped=True)
                return
            before += size
        self._tell_tables(summary, reader, read=self.state.size, is_over=True)

    def _read(self, log: OpenLog, summary: LogSummary, reader: LogReader, before: int) -> None:
        """Adds one log, which begins ``before`` bytes after the first one."""

        def read(size: int) -> bytes:
            if self._stopped.is_set():
                raise _StoppedError
            if time.monotonic() >= self._told + UPDATE_INTERVAL:
                self._tell(read=before + log.position)
            return log.read(size)

        lines = reader.read(read) if self._cut is None else self._cut.of(reader.read(read))
        for line in lines:
            summary.add(chain((line,), islice(lines, LINES_AT_ONCE)))
            if time.monotonic() >= self._next_tables:
                self._tell_tables(summary, reader)

    def _tell_tables(self, summary: LogSummary, reader: LogReader, **changes: object) -> None:
        """Makes the tables here, in the thread of the reading: nothing adds to the summary meanwhile."""
        from nsystui.questions.nccl_log.summary import notes, nothing
        from nsystui.questions.nccl_log.tables import TABLES

        begun = time.monotonic()
        summary.lines, summary.results = reader.lines, reader.reported
        answers = {name: table.make(summary) for name, table in TABLES.items()}
        cut = self._cut
        has_any = summary.calls or any(len(answer) for name, answer in answers.items() if name != "lines")
        has_any = has_any if cut is None else cut.chosen
        failed = [self.state.failed] if self.state.failed else []
        said = (*failed, *(notes(summary, cut) if has_any else (nothing(summary, cut),)))
        self._tell(
            tables={name: replace(answer, notes=said) for name, answer in answers.items()},
            lines=summary.lines,
            calls=summary.calls,
            gpus=len(summary.gpus()),
            moved=sum(number * (kind.size or 0) for kind, number in summary.kinds.items()),
            **changes,
        )
        now = time.monotonic()
        self._next_tables = now + max((now - self._began) * _SHARE_WAITED, (now - begun) * _TIMES_OF_MAKING)

    def _tell(self, **changes: object) -> None:
        self.state = replace(self.state, **changes)  # type: ignore[arg-type]
        self._told = time.monotonic()
        self._post(LogRead(self.state))
