"""Loading of exports and NCCL's debug logs in threads, with messages for the application; the saved overview.

The overview is cached next to the answers of commands, and shown at once the next time.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from nsystui.base.answer import Answer, TableAnswer, Unit
from nsystui.base.errors import ExportError, NsystuiError
from nsystui.base.selection import Selection
from nsystui.base.units import format_value
from nsystui.questions.job.opening import Export, JobSource, Listener, Opener
from nsystui.ui.widgets.frame import UPDATE_INTERVAL, progress_bar
from nsystui.ui.widgets.panels import TextPart

if TYPE_CHECKING:
    from nsystui.exports.metadata import Opened
    from nsystui.exports.nccl_log.files import OpenLog
    from nsystui.exports.nccl_log.lines import LogReader
    from nsystui.questions.answers.remembered import Remembered
    from nsystui.questions.job.job import OpenJob
    from nsystui.questions.nccl_log.summary import IterationSpan, LogSummary, StepCut
    from nsystui.store.packed_job import JobReport


@dataclass(frozen=True)
class KernelsSeen:
    """The kernels of all files before a report is ready, with short names: from a sample of rows, then exact."""

    answer: Answer | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    is_exact: bool = False


class LoadingListener(Listener):
    """Receives the events of a `Loading`, in threads."""

    def job_started(self, job: OpenJob, paths: tuple[Path, ...]) -> None:
        """Handle the start of a job, which has no reports yet."""

    def opened(self, path: Path, opened: Opened | JobReport) -> None:
        """Handle a checked export: its metadata and counts are known, its rows are not read yet."""

    def kernels_seen(self, seen: KernelsSeen) -> None:
        """Handle an early table of the kernels."""

    def loading_ended(self, cancelled: bool) -> None:
        """Handle the end of loading; ``cancelled`` if the user stopped it."""


_FIRST_REPORTS = 32
"""Reports of a packed job opened before waiting for a screen's first answer."""
_FIRST_ANSWER = 3.0
"""Maximum seconds to wait after each further report."""

_FEW_EXPORTS, _MANY_KERNELS = 8, 200_000
"""The kernel summary is read first for at most this many exports, with at least this many kernels."""


class Loading:
    """A run of the loading; calls ``listener`` in threads."""

    def __init__(self, source: JobSource, listener: LoadingListener) -> None:
        self.source = source
        self._listener = listener
        self._opener = Opener(source, listener)
        self._has_turn = threading.Event()
        self.hold(False)

    def stop(self) -> None:
        """End the loading after the current chunk; reports that are ready stay."""
        self._opener.stop()
        self.hold(False)

    def hold(self, is_asking: bool) -> None:
        """Pause the opening of a packed job while a screen ``is_asking`` its first question.

        Both keep Python busy: in parallel, the answer would be ready last.
        """
        if is_asking:
            self._has_turn.clear()
        else:
            self._has_turn.set()

    def start(self) -> None:
        """Discover and load all files. Blocks: call it in a thread."""
        job, exports = self._opener.start()
        paths = tuple(export.path for export in exports)
        self._listener.job_started(job, paths)
        self.go_on(job, list(enumerate(paths)))

    def go_on(self, job: OpenJob, numbered_paths: Sequence[tuple[int, Path]]) -> None:
        """Load the given exports into ``job``; the numbers keep the order of the command line."""
        from nsystui.store.packed_job import JobReport

        opened, files, joined = [], [], 0
        for number, path in numbered_paths:
            export = self._opener.look_at(job, Export(number, path))
            if export is None or export.opened is None:
                continue
            self._listener.opened(export.path, export.opened)
            if isinstance(export.opened, JobReport):
                self._opener.add_one(job, export)
                joined += 1
                if joined >= _FIRST_REPORTS:
                    self._has_turn.wait(_FIRST_ANSWER)
            else:
                opened.append(export)
                files.append(export.opened)
        cache = job.session.cache
        unpacked = [item for item in files if cache is None or cache.find(item.file) is None]
        sampling = threading.Thread(target=self._sample, args=(job, unpacked), daemon=True)
        sampling.start()
        if len(files) <= _FEW_EXPORTS and sum(item.kernels or 0 for item in unpacked) >= _MANY_KERNELS:
            self._read_kernels(job, files)
        self._opener.add(job, opened)
        sampling.join()
        try:
            self._opener.align(job)
        except NsystuiError as error:
            self._listener.warned(f"clocks are aligned by UTC alone: {error}")
        if job.several_runs:
            self._listener.warned(job.several_runs)
        self._listener.loading_ended(self._opener.is_stopped)

    def _read_kernels(self, job: OpenJob, files: Sequence[Opened]) -> None:
        """Read the columns of the kernel summary first, and show it."""
        from nsystui.questions.kernels.summary import kernel_summary, smart_kernel_names
        from nsystui.store.packing import PackingCancelled
        from nsystui.store.session import Session

        session = Session(job.session.cache, job.session.limits, families=job.families)
        # Errors in a file are reported when it is packed.
        with suppress(NsystuiError, OSError, PackingCancelled), closing(session):
            for item in files:
                session.add(item.path, is_cancelled=lambda: self._opener.is_stopped, whole=False)
            answer = kernel_summary(session, Selection())
            self._listener.kernels_seen(KernelsSeen(answer, smart_kernel_names(session), is_exact=True))

    def _sample(self, job: OpenJob, unpacked: Sequence[Opened]) -> None:
        from nsystui.questions.capture.sample import sampled_kernels

        answer = sampled_kernels(unpacked)
        if answer is not None and not self._opener.is_stopped and not job.session.reports:
            self._listener.kernels_seen(KernelsSeen(answer))


LINES_AT_ONCE = 50_000
"""Lines added between checks of the time: a fraction of a second."""

FIRST_TABLES = 1.0
_WAIT_SHARE = 0.25
_MAKING_FACTOR = 20
"""Seconds until the first tables; new tables follow after a quarter of the elapsed time, at least 20 times the time to
make them."""


@dataclass(frozen=True)
class LogState:
    """Progress of reading the logs, and tables of the part read.

    ``read`` of ``size`` bytes on disk are read. ``tables`` is empty until the first are made, each with the notes;
    ``lines``, ``calls``, ``gpus`` (with calls) and ``moved`` (bytes of all calls) are the counts at that time.
    ``failures`` lists the logs that could not be read, with reasons. ``is_over`` is true once the reading has ended,
    ``is_stopped`` if the user ended it early.
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
        """The share that is read, from 0 to 1."""
        return min(self.read / self.size, 1.0) if self.size else 0.0

    @property
    def status(self) -> str:
        """The progress of the reading, in words; empty when all is read."""
        if self.is_stopped:
            return f"stopped at {int(self.share * 100)} %: R resumes reading"
        if self.is_over:
            return ""
        read, size = (format_value(Unit.BYTES, number) for number in (self.read, self.size))
        return f"reading log  {progress_bar(self.share)}  {read} of {size}" if self.size else "reading log…"

    @property
    def failed(self) -> str:
        """The logs that could not be read, in a sentence; empty without failures."""
        if not self.failures:
            return ""
        remaining = len(self.failures) - 1
        return f"not read: {self.failures[0]}" + (f", and {remaining:,} more" if remaining else "")


class LogLoading:
    """Reads several logs as one, or only some training ``steps``.

    Calls ``callback`` with the state from time to time, in the reading thread.
    """

    def __init__(
        self, names: Sequence[str], callback: Callable[[LogState], object], steps: IterationSpan | None = None
    ) -> None:
        self.state = LogState(tuple(names))
        self._steps = steps
        self._cut: StepCut | None = None
        self._callback = callback
        self._stopped = threading.Event()
        self._began = time.monotonic()
        self._reported_at = self._began
        self._next_tables = self._began + FIRST_TABLES

    def stop(self) -> None:
        """End the reading after the current piece; the tables already made stay."""
        self._stopped.set()

    def start(self) -> None:
        """Read all logs. Blocks: call it in a thread."""
        try:
            self._read_all()
        except Exception as error:  # after any error, the screens must not show "reading" forever
            reason = (str(error) or type(error).__name__).splitlines()[0]
            self._report(failures=(*self.state.failures, reason), is_over=True)

    def _read_all(self) -> None:
        from nsystui.exports.nccl_log.files import open_log, size_of
        from nsystui.exports.nccl_log.lines import LogReader
        from nsystui.questions.nccl_log.summary import LogSummary, StepCut

        self._cut = None if self._steps is None else StepCut(self._steps)
        sizes = [size_of(name) or 0 for name in self.state.names]
        self._report(size=sum(sizes))
        summary, reader = LogSummary(), LogReader()
        previous_bytes = 0
        for name, size in zip(self.state.names, sizes, strict=True):
            try:
                with open_log(name) as log:
                    self._read(log, summary, reader, previous_bytes)
            except ExportError as error:
                self._report(failures=(*self.state.failures, str(error)))
            except CancelledError:
                self._report_tables(summary, reader, is_over=True, is_stopped=True)
                return
            previous_bytes += size
        self._report_tables(summary, reader, read=self.state.size, is_over=True)

    def _read(self, log: OpenLog, summary: LogSummary, reader: LogReader, previous_bytes: int) -> None:
        def read(size: int) -> bytes:
            if self._stopped.is_set():
                raise CancelledError
            if time.monotonic() >= self._reported_at + UPDATE_INTERVAL:
                self._report(read=previous_bytes + log.position)
            return log.read(size)

        lines = reader.read(read) if self._cut is None else self._cut.of(reader.read(read))
        for line in lines:
            summary.add(chain((line,), islice(lines, LINES_AT_ONCE)))
            if time.monotonic() >= self._next_tables:
                self._report_tables(summary, reader)

    def _report_tables(self, summary: LogSummary, reader: LogReader, **changes: object) -> None:
        """Make the tables in the reading thread, so that nothing adds to the summary meanwhile."""
        from nsystui.questions.nccl_log.summary import notes, nothing
        from nsystui.questions.nccl_log.tables import TABLES

        tables_began = time.monotonic()
        summary.lines, summary.results = reader.lines, reader.reported
        answers = {name: table.make(summary) for name, table in TABLES.items()}
        cut = self._cut
        has_content = summary.calls or any(len(answer) for name, answer in answers.items() if name != "lines")
        has_content = has_content if cut is None else cut.chosen
        failed = [self.state.failed] if self.state.failed else []
        table_notes = (*failed, *(notes(summary, cut) if has_content else (nothing(summary, cut),)))
        self._report(
            tables={name: replace(answer, notes=table_notes) for name, answer in answers.items()},
            lines=summary.lines,
            calls=summary.calls,
            gpus=len(summary.gpus()),
            moved=sum(count * (kind.size or 0) for kind, count in summary.kinds.items()),
            **changes,
        )
        now = time.monotonic()
        self._next_tables = now + max((now - self._began) * _WAIT_SHARE, (now - tables_began) * _MAKING_FACTOR)

    def _report(self, **changes: object) -> None:
        self.state = replace(self.state, **changes)  # type: ignore[arg-type]
        self._reported_at = time.monotonic()
        self._callback(self.state)


@dataclass(frozen=True)
class KeptOverview:
    """The tables and words of the overview without a selection.

    ``title`` and ``lines`` were made for ``terminal``: its columns, its lines, and whether it is without colours.
    ``losses`` is the sentence above the findings, ``names`` maps kernels to short names.
    """

    findings: Answer
    ranks: Answer
    kernels: Answer
    title: str
    lines: Sequence[Sequence[TextPart]]
    losses: str
    names: Mapping[str, str]
    terminal: tuple[int, int, bool]

    def save(self, source: JobSource, job: OpenJob) -> None:
        """Save the overview of a source's files. Blocks: call it in a thread. Raises ExportError and OSError."""
        from nsystui.questions.answers.remembered import to_json

        memory, question = _memory(source)
        tables = [to_json(self.findings), to_json(self.ranks)]
        words = json.dumps([*tables, self.title, self.lines, self.losses, self.names, self.terminal])
        if memory is not None:
            memory.keep(job, self.kernels, words, *question)


def kept_overview(source: JobSource) -> KeptOverview | None:
    """Return the saved overview of the unchanged files, if any. Blocks: call it in a thread."""
    from nsystui.questions.answers.remembered import from_json

    memory, question = _memory(source)
    saved = memory.recall(*question) if memory is not None else None
    if saved is None:
        return None
    findings, ranks, title, lines, losses, names, terminal = json.loads(saved[0])
    return KeptOverview(from_json(findings), from_json(ranks), saved[1], title, lines, losses, names, tuple(terminal))


def _memory(source: JobSource) -> tuple[Remembered | None, tuple[str, ...]]:
    """Return the saved answers, and the key of the overview."""
    from nsystui.questions.answers.remembered import Remembered

    options = (source.ranks, source.clock, str(source.steps_by), str(source.step_range))
    return None if source.logs or source.dask else Remembered.of_source(source), ("overview screen", *options)
