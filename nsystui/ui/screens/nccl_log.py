"""NCCL's debug log, with or without exports: its tables, one at a time, and the rows behind a row."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nsystui.base.answer import Answer, Record, TableAnswer, Unit, record
from nsystui.base.text import counted
from nsystui.base.units import format_value
from nsystui.questions.nccl.names import bucket_of
from nsystui.questions.queries.question import View
from nsystui.ui.screens.table import FilteredTableScreen, rows_with
from nsystui.ui.widgets.frame import Choice, SelectionLine

if TYPE_CHECKING:
    from nsystui.ui.loading import LogState


_CALL_TABLES = ("ops", "sizes", "calls", "communicators", "ranks", "gpus", "tuning", "steps", "lines")
_TABLE_ORDER = (
    *(*_CALL_TABLES[:-2], "inspector"),
    *("problems", "rings", "trees", "channels", "transports", "nics", "init", "settings"),
    *("steps", "iterations", "results", "lines"),
)
"""The tables in the order of a user's questions: calls, callers, links."""

Tables = Mapping[str, TableAnswer]
_Matches = Callable[[Record], bool]


@dataclass(frozen=True)
class RowsInside:
    """The rows of ``table`` behind a row of another table, which ``crumb`` names.

    ``choose`` returns the condition that these rows meet, given the current tables.
    """

    table: str
    crumb: str
    choose: Callable[[Tables], _Matches]


def rows_inside(tables: Tables, inside: RowsInside) -> TableAnswer:
    answer, matches = tables[inside.table], inside.choose(tables)
    rows = [row for row in answer.rows if matches(record(answer.columns, row))]
    return replace(answer, rows=rows, total=len(rows))


def inside_of(table: str, row: Record) -> RowsInside | None:
    """Return the rows that make up a row of ``table``, if any."""
    if table == "ops":
        return RowsInside("calls", f"{row['op']} calls", lambda _: lambda call: call["op"] == row["op"])
    if table == "sizes":
        return RowsInside("calls", f"{row['op']} {row['bucket']} calls", lambda _: lambda call: _is_sized(row, call))
    if table == "communicators":
        return RowsInside("ranks", f"{row['communicator']} ranks", lambda tables: _ranks_of(row, tables))
    if table == "gpus":
        gpu = ("host", "pid", "device")
        label = "unknown GPU" if row["host"] is None else f"{row['host']} pid {row['pid']} device {row['device']}"
        return RowsInside("ranks", f"{label} ranks", lambda _: lambda rank: all(rank[key] == row[key] for key in gpu))
    return None


def _is_sized(row: Record, call: Record) -> bool:
    size = call["bytes"]
    bucket = bucket_of(size) if isinstance(size, int) else None
    return call["op"] == row["op"] and (bucket or "unknown") == row["bucket"]


def _ranks_of(row: Record, tables: Tables) -> _Matches:
    """Match a communicator's ranks by its name, or if no rank has it, ranks of unnamed communicators of its size."""
    if row["communicator"] in tables["ranks"].cells("communicator"):
        return lambda rank: rank["communicator"] == row["communicator"]
    named = set(tables["communicators"].cells("communicator"))
    return lambda rank: rank["communicator"] not in named and rank["ranks"] == row["ranks"]


class NcclLogScreen(FilteredTableScreen):
    """The tables of the log; with ``inside``, the rows of a table that make up a row of another table.

    The rows are the application's ``nccl_log``, not an answer, and change during reading. The filter is this screen's:
    the shared selection is for exports.
    """

    MODE_KEY = "3"
    SCREEN = "nccl_log"
    STATE = (*FilteredTableScreen.STATE, "name_of_table")
    PLACES = ("nccl log", "table", "everywhere")
    ELASTIC = "communicator"

    def __init__(self, inside: RowsInside | None = None) -> None:
        super().__init__()
        self.inside = inside
        self.name_of_table = inside.table if inside else _TABLE_ORDER[0]
        self._tables: Mapping[str, TableAnswer] = {}
        self._remark = ""

    def places(self) -> tuple[str, ...]:
        """Return the key groups; without keys for exports if only logs are open."""
        return self.PLACES if self.explorer.source.files else ("nccl log alone", *self.PLACES)

    @property
    def nccl_log(self) -> LogState:
        """The log, as far as it is read."""
        return self.explorer.nccl_log

    def on_mount(self) -> None:
        """Read the logs of the exports, unless they were read."""
        if self.explorer.source.files:
            self.explorer.read_log(again=False)

    is_awaiting = False
    """Always false: the tables are read from the log, not from a question."""

    def job_changed(self) -> None:
        """Show the log, which no export changes."""
        self.log_changed()

    def log_changed(self) -> None:
        self.show_status(self.explorer.status)
        self.show_selection()
        if not self.nccl_log.tables or self.nccl_log.tables is not self._tables:
            self._show_table(same_place=True)

    def show_waiting(self) -> None:
        """Show that the log is being read, or why it could not be read."""
        super().show_waiting()
        self.show_title(right="reading")
        self.table.empty_text = self.nccl_log.failed or "reading the log: its tables grow until all of it is read"

    def show_status(self, status: str) -> None:
        super().show_status(self.nccl_log.status or status)

    def show_selection(self) -> None:
        """Show logs, their size and the filter instead of the selection."""
        names = self.nccl_log.names
        title = os.path.basename(names[0]) if len(names) == 1 else f"{len(names):,} logs"
        parts = [title, *([format_value(Unit.BYTES, self.nccl_log.size)] if self.nccl_log.size else [])]
        steps = self.explorer.source.log_steps
        parts += [f"steps {steps}"] if steps is not None else []
        parts += [f'filter "{self.words.text}"'] if self.words else []
        parts += [self._remark] if self._remark else []
        self.query_one("#selection", SelectionLine).update(" · ".join(parts))

    def _show_table(self, same_place: bool = False) -> None:
        self._tables = tables = self.nccl_log.tables
        if not tables:
            self.show_waiting()
            return
        if self.inside is None:
            is_inspected = len(tables["inspector"]) > 0 and not len(tables["ops"])
            if is_inspected and self.name_of_table == _TABLE_ORDER[0]:
                self.name_of_table = "inspector"
            filled = self._tables_with_rows()
            missing = [name for name in _CALL_TABLES if name not in filled and name != self.name_of_table]
            is_read = self.nccl_log.is_over and not self.nccl_log.is_stopped
            self._remark = f"no {', '.join(missing)} in it" if missing and is_read and not is_inspected else ""
            self.show_selection()
            answer = tables[self.name_of_table]
        else:
            answer = rows_inside(tables, self.inside)
        elastic = {"rings": "ring", "problems": "evidence", "settings": "value"}
        self.table.elastic = elastic.get(self.name_of_table, self.ELASTIC)
        self.show(rows_with(answer, self.words), same_place)

    def _tables_with_rows(self) -> list[str]:
        return [name for name in _TABLE_ORDER if len(self._tables[name]) or name == self.name_of_table]

    def natural_order(self) -> tuple[str | None, bool]:
        return "total_bytes" if self.name_of_table == "ops" else None, True

    def empty_text(self, answer: Answer) -> str:
        """Return the reason why the table is empty; while reading, rows may follow."""
        if (answer.total and self.words) or self.nccl_log.is_over or not any(map(len, self._tables.values())):
            return super().empty_text(answer)
        return "no rows of this table so far"

    def path(self) -> tuple[str, ...]:
        return () if self.inside is None else ("log", self.inside.crumb)

    def views(self) -> tuple[View, ...]:
        return super().views() if self.inside is None and self.explorer.source.files else ()

    def choices(self) -> tuple[Choice, ...]:
        if self.inside is not None or not self._tables:
            return ()
        names = self._tables_with_rows()

        def choose(index: int) -> None:
            self.name_of_table = names[index]
            self._sort = None
            self._show_table()

        return (*super().choices(), Choice("by", tuple(names), names.index(self.name_of_table), choose))

    def open_row(self) -> None:
        values = self.values()
        if not values:
            return
        inside = inside_of(self.name_of_table, values) if self.inside is None else None
        if inside is None:
            self.say("a log has no times of single calls, so this row has no details")
        else:
            self.lay_over(NcclLogScreen(inside))

    show_filtered = _show_table

    def action_resume(self) -> None:
        if not self.explorer.read_log():
            self.say("the log is being read")

    def action_selection(self) -> None:
        self.say("a selection applies to exports: / filters the rows of a log")

    async def action_mode(self, name: str) -> None:
        """Open a tab if exports are open."""
        if self.explorer.source.files:
            await super().action_mode(name)
        else:
            self.say("no export is open: `nsystui FILE… --nccl-log LOG…` shows both")

    async def action_timeline(self) -> None:
        """Open the timeline if exports are open."""
        await (super().action_timeline() if self.explorer.source.files else self.action_mode("timeline"))

    def proposed_name(self, table: str) -> str | None:
        """Return a file name after the log."""
        from nsystui.output.files import propose_name

        names = self.nccl_log.names
        words = self.words.text if self.words else None
        if len(names) > 1:
            return propose_name("nccl-log", self.name_of_table, words, ".csv")
        return propose_name(os.path.basename(names[0]).removesuffix(".gz").removesuffix(".log"), table, words, ".csv")


def log_note(log: LogState) -> str:
    """Return a note with a summary of the logs; empty without logs."""
    if not log.names:
        return ""
    if not log.calls:
        has_records = bool(log.tables) and len(log.tables["inspector"]) > 0
        summary = (log.failed or "no calls in it") if log.is_over and not has_records else ""
        return f"NCCL log: {summary}" if summary else "NCCL log: the view log shows its tables"
    moved = format_value(Unit.BYTES, log.moved)
    so_far = "" if log.is_over and not log.is_stopped else " so far"
    return f"NCCL log (view log): {counted(log.calls, 'call')} of {counted(log.gpus, 'rank')}, {moved}{so_far}"
