"""Reading NCCL's debug logs behind the screens: the tables of what is read so far, again and again until the end.

Runs in a thread. What has no end in sight has tables all the same: they grow, at first after a second, then more and
more seldom, so that neither the reading nor a slow line has much to do for them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import TYPE_CHECKING

from textual.message import Message

from nsystui.base.answer import Row, TableAnswer, Value
from nsystui.base.columns import Column, Unit
from nsystui.base.errors import ExportError
from nsystui.base.units import format_value
from nsystui.questions.nccl.names import bucket_of
from nsystui.ui.widgets.lines import UPDATE_INTERVAL, progress_bar

if TYPE_CHECKING:
    from nsystui.exports.nccl_log.files import OpenLog
    from nsystui.exports.nccl_log.lines import LogReader
    from nsystui.questions.nccl_log.summary import Summary


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
            return f"stopped at {int(self.share * 100)} %: R reads again"
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
        return isinstance(message, LogRead)


class _StoppedError(Exception):
    """The user stopped the reading."""


class LogLoading:
    """One reading of some logs, as one: ``post`` gets a `LogRead` now and then, and must be safe to call in threads."""

    def __init__(self, names: Sequence[str], post: Callable[[Message], object]) -> None:
        self.state = LogState(tuple(names))
        self._post = post
        self._stopped = threading.Event()
        self._began = time.monotonic()
        self._told = self._began
        self._next_tables = self._began + FIRST_TABLES

    def stop(self) -> None:
        """Ends the reading as soon as the current piece is read; what is read stays."""
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
        from nsystui.questions.nccl_log.summary import Summary

        sizes = [size_of(name) or 0 for name in self.state.names]
        self._tell(size=sum(sizes))
        summary, reader = Summary(), LogReader()
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

    def _read(self, log: OpenLog, summary: Summary, reader: LogReader, before: int) -> None:
        """Adds one log, which begins ``before`` bytes after the first one."""

        def read(size: int) -> bytes:
            if self._stopped.is_set():
                raise _StoppedError
            if time.monotonic() >= self._told + UPDATE_INTERVAL:
                self._tell(read=before + log.position)
            return log.read(size)

        lines = reader.read(read)
        for line in lines:
            summary.add(chain((line,), islice(lines, LINES_AT_ONCE)))
            if time.monotonic() >= self._next_tables:
                self._tell_tables(summary, reader)

    def _tell_tables(self, summary: Summary, reader: LogReader, **changes: object) -> None:
        """Makes the tables here, in the thread of the reading: nothing adds to the summary meanwhile."""
        from nsystui.questions.nccl_log.summary import notes, nothing
        from nsystui.questions.nccl_log.tables import TABLES

        begun = time.monotonic()
        summary.lines = reader.lines
        answers = {name: table.make(summary) for name, table in TABLES.items()}
        has_any = summary.calls or any(len(answer) for name, answer in answers.items() if name != "lines")
        failed = [self.state.failed] if self.state.failed else []
        said = (*failed, *(notes(summary) if has_any else (nothing(summary),)))
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


ORDER = ("ops", "sizes", "calls", "communicators", "ranks", "gpus", "tuning", "steps", "lines")
"""The tables in the order in which a user goes through them: what was called first, then by whom."""

NATURAL_ORDER = {"ops": "total_bytes"}
"""The column by which a table comes sorted, largest first, where it is one column."""

Values = Mapping[str, Value]
Tables = Mapping[str, TableAnswer]


Holds = Callable[[Values], bool]


@dataclass(frozen=True)
class Inside:
    """Those rows of ``table`` that make up a row of another one; ``crumb`` says which.

    ``choose`` gives, for the tables as they are now, what a row must hold.
    """

    table: str
    crumb: str
    choose: Callable[[Tables], Holds]


def rows_inside(tables: Tables, inside: Inside) -> TableAnswer:
    """The rows that make up a row."""
    answer, holds = tables[inside.table], inside.choose(tables)
    found = [row for row in answer.rows if holds(values_of(answer.columns, row))]
    return replace(answer, rows=found, total=len(found))


def values_of(columns: Sequence[Column], row: Row) -> Values:
    """The values of a row by the keys of its columns."""
    return dict(zip((column.key for column in columns), row, strict=True))


def inside_of(table: str, row: Values) -> Inside | None:
    """The rows that make up a row of ``table``; ``None`` where the log has no more about it."""
    if table == "ops":
        return Inside("calls", f"{row['op']} calls", lambda _: lambda call: call["op"] == row["op"])
    if table == "sizes":
        return Inside("calls", f"{row['op']} {row['bucket']} calls", lambda _: lambda call: _is_sized(row, call))
    if table == "communicators":
        return Inside("ranks", f"{row['communicator']} ranks", lambda tables: _ranks_of(row, tables))
    if table == "gpus":
        gpu = ("host", "pid", "device")
        where = "unknown GPU" if row["host"] is None else f"{row['host']} pid {row['pid']} device {row['device']}"
        return Inside("ranks", f"{where} ranks", lambda _: lambda rank: all(rank[key] == row[key] for key in gpu))
    return None


def _is_sized(row: Values, call: Values) -> bool:
    size = call["bytes"]
    bucket = bucket_of(size) if isinstance(size, int) else None
    return call["op"] == row["op"] and (bucket or "unknown") == row["bucket"]


def _ranks_of(row: Values, tables: Tables) -> Holds:
    """The ranks of a communicator: by its name, or those of its size that no row names."""
    if row["communicator"] in {rank[0] for rank in tables["ranks"].rows}:
        return lambda rank: rank["communicator"] == row["communicator"]
    named = {communicator[0] for communicator in tables["communicators"].rows}
    return lambda rank: rank["communicator"] not in named and rank["ranks"] == row["ranks"]
