"""NCCL's debug log, next to the exports or without any: its tables, one at a time, and the rows behind a row."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nsystui.base.answer import Answer, Record, TableAnswer, Unit, record
from nsystui.base.units import format_value
from nsystui.questions.nccl.names import bucket_of
from nsystui.ui.screens.table import FilteredTableScreen, rows_with
from nsystui.ui.widgets.frame import Choice, SelectionLine

if TYPE_CHECKING:
    from nsystui.ui.loading import LogState
    from nsystui.ui.screens import TabView


_OF_CALLS = ("ops", "sizes", "calls", "communicators", "ranks", "gpus", "tuning", "steps", "lines")
_ORDER = (
    *_OF_CALLS[:-2],
    *("problems", "rings", "trees", "channels", "transports", "nics", "init", "settings"),
    *("steps", "iterations", "results", "lines"),
)
"""The tables in the order in which a user goes through them: what was called first, then by whom, over what."""

Tables = Mapping[str, TableAnswer]
Holds = Callable[[Record], bool]


@dataclass(frozen=True)
class RowsInside:
    """Those rows of ``table`` that make up a row of another one; ``crumb`` says which.

    ``choose`` gives, for the tables as they are now, what a row must hold.
    """

    table: str
    crumb: str
    choose: Callable[[Tables], Holds]


def rows_inside(tables: Tables, inside: RowsInside) -> TableAnswer:
    """The rows that make up a row."""
    answer, holds = tables[inside.table], inside.choose(tables)
    found = [row for row in answer.rows if holds(record(answer.columns, row))]
    return replace(answer, rows=found, total=len(found))


def inside_of(table: str, row: Record) -> RowsInside | None:
    """The rows that make up a row of ``table``; ``None`` where the log has no more about it."""
    if table == "ops":
        return RowsInside("calls", f"{row['op']} calls", lambda _: lambda call: call["op"] == row["op"])
    if table == "sizes":
        return RowsInside("calls", f"{row['op']} {row['bucket']} calls", lambda _: lambda call: _is_sized(row, call))
    if table == "communicators":
        return RowsInside("ranks", f"{row['communicator']} ranks", lambda tables: _ranks_of(row, tables))
    if table == "gpus":
        gpu = ("host", "pid", "device")
        where = "unknown GPU" if row["host"] is None else f"{row['host']} pid {row['pid']} device {row['device']}"
        return RowsInside("ranks", f"{where} ranks", lambda _: lambda rank: all(rank[key] == row[key] for key in gpu))
    return None


def _is_sized(row: Record, call: Record) -> bool:
    size = call["bytes"]
    bucket = bucket_of(size) if isinstance(size, int) else None
    return call["op"] == row["op"] and (bucket or "unknown") == row["bucket"]


def _ranks_of(row: Record, tables: Tables) -> Holds:
    """The ranks of a communicator: by its name, or those of its size that no row names."""
    if row["communicator"] in tables["ranks"].cells("communicator"):
        return lambda rank: rank["communicator"] == row["communicator"]
    named = set(tables["communicators"].cells("communicator"))
    return lambda rank: rank["communicator"] not in named and rank["ranks"] == row["ranks"]


class NcclLogScreen(FilteredTableScreen):
    """The tables of the log, or, with ``inside``, the rows of one of them that make up a row of another.

    Their rows come from the application's ``nccl_log``, without a question in between, and change while that is being
    read. The filter is this screen's own: the selection of the other screens is of exports.
    """

    MODE_KEY = "3"
    SCREEN = "nccl_log"
    STATE = (*FilteredTableScreen.STATE, "name_of_table")
    PLACES = ("nccl log", "table", "everywhere")
    ELASTIC = "communicator"

    def __init__(self, inside: RowsInside | None = None) -> None:
        super().__init__()
        self.inside = inside
        self.name_of_table = inside.table if inside else _ORDER[0]
        self._tables: Mapping[str, TableAnswer] = {}
        self._remark = ""

    def places(self) -> tuple[str, ...]:
        """The keys that need exports leave where only logs are open."""
        return self.PLACES if self.explorer.source.files else ("nccl log alone", *self.PLACES)

    @property
    def nccl_log(self) -> LogState:
        """The log as far as it is read."""
        return self.explorer.nccl_log

    def on_mount(self) -> None:
        """Begin to read the logs beside the exports, unless that was done."""
        if self.explorer.source.files:
            self.explorer.read_log(again=False)

    is_awaiting = False
    """No question is asked: the tables come from the reading."""

    def job_changed(self) -> None:
        """Show the log, which no export changes."""
        self.log_changed()

    def log_changed(self) -> None:
        """More of the log is read, or another one is."""
        self.show_status(self.explorer.status)
        self.show_selection()
        if not self.nccl_log.tables or self.nccl_log.tables is not self._tables:
            self._show_table(same_place=True)

    def show_waiting(self) -> None:
        """Say that the log is being read, or why it could not be."""
        super().show_waiting()
        self.show_title(right="reading")  # else the other screens' keys would stand there, and there may be none
        # Over and without tables is what went wrong in a way that nobody thought of.
        self.table.empty_text = self.nccl_log.failed or "reading the log: its tables grow until all of it is read"

    def show_status(self, status: str) -> None:
        """Show how far the log is read, else the progress of the loading."""
        super().show_status(self.nccl_log.status or status)

    def show_selection(self) -> None:
        """Show the logs, their size and the filter in place of the selection."""
        names = self.nccl_log.names
        what = os.path.basename(names[0]) if len(names) == 1 else f"{len(names):,} logs"
        parts = [what, *([format_value(Unit.BYTES, self.nccl_log.size)] if self.nccl_log.size else [])]
        steps = self.explorer.source.log_steps
        parts += [f"steps {steps}"] if steps is not None else []
        parts += [f'filter "{self.words.text}"'] if self.words else []
        parts += [self._remark] if self._remark else []
        self.query_one("#selection", SelectionLine).update(" · ".join(parts))

    def _show_table(self, same_place: bool) -> None:
        self._tables = tables = self.nccl_log.tables
        if not tables:
            self.show_waiting()
            return
        if self.inside is None:
            there = self._tables_with_rows()
            lacking = [name for name in _OF_CALLS if name not in there and name != self.name_of_table]
            is_whole = self.nccl_log.is_over and not self.nccl_log.is_stopped
            self._remark = f"no {', '.join(lacking)} in it" if lacking and is_whole else ""
            self.show_selection()
            answer = tables[self.name_of_table]
        else:
            answer = rows_inside(tables, self.inside)
        elastic = {"rings": "ring", "problems": "evidence", "settings": "value"}
        self.table.elastic = elastic.get(self.name_of_table, self.ELASTIC)
        self.show(rows_with(answer, self.words), same_place)

    def _tables_with_rows(self) -> list[str]:
        """The tables to go through: the one that is shown stands among them even if it is empty."""
        return [name for name in _ORDER if len(self._tables[name]) or name == self.name_of_table]

    def natural_order(self) -> tuple[str | None, bool]:
        """The column by which a table of the log comes sorted, if it is a single column."""
        return "total_bytes" if self.name_of_table == "ops" else None, True

    def empty_text(self, answer: Answer) -> str:
        """Say whether rows may still come."""
        if (answer.total and self.words) or self.nccl_log.is_over or not any(map(len, self._tables.values())):
            return super().empty_text(answer)
        return "nothing of it in what is read so far"

    def path(self) -> tuple[str, ...]:
        """The row whose parts these rows are."""
        return () if self.inside is None else ("log", self.inside.crumb)

    def views(self) -> tuple[TabView, ...]:
        """The views of the tab, where exports are open beside the log."""
        return super().views() if self.inside is None and self.explorer.source.files else ()

    def choices(self) -> tuple[Choice, ...]:
        """Offer the tables of the log that have rows."""
        if self.inside is not None or not self._tables:
            return ()
        there = self._tables_with_rows()

        def choose(place: int) -> None:
            self.name_of_table = there[place]
            self._sort = None
            self._show_table(same_place=False)

        return (*super().choices(), Choice("by", tuple(there), there.index(self.name_of_table), choose))

    def open_row(self) -> None:
        """Open the rows that make up the one under the cursor."""
        values = self.values()
        if not values:
            return
        inside = inside_of(self.name_of_table, values) if self.inside is None else None
        if inside is None:
            self.say("a log has no times of single calls, so this row has no details")
        else:
            self.lay_over(NcclLogScreen(inside))

    def show_filtered(self) -> None:
        """Show the rows of the table that pass the filter."""
        self._show_table(same_place=False)

    def action_resume(self) -> None:
        """Read the logs again."""
        if not self.explorer.read_log():
            self.say("the log is being read")

    def action_selection(self) -> None:
        """Say that a log has no selection."""
        self.say("the selection is of exports: / finds rows of a log by their words")

    async def action_mode(self, name: str) -> None:
        """Go to a tab, where exports are open."""
        if self.explorer.source.files:
            await super().action_mode(name)
        else:
            self.say("no export is open: `nsystui FILE… --nccl-log LOG…` shows both")

    async def action_timeline(self) -> None:
        """Go to the timeline, where exports are open."""
        await (super().action_timeline() if self.explorer.source.files else self.action_mode("timeline"))

    def proposed_name(self, table: str) -> str | None:
        """Name the file after the log."""
        from nsystui.output.files import propose_name

        names = self.nccl_log.names
        words = self.words.text if self.words else None
        if len(names) > 1:
            return propose_name("nccl-log", self.name_of_table, words, ".csv")
        stem = os.path.basename(names[0]).removesuffix(".gz").removesuffix(".log")
        return propose_name(stem, table, words, ".csv")


def log_note(log: LogState) -> str:
    """A summary of the logs, for the screen of the kernels; empty where there is none."""
    if not log.names:
        return ""
    if not log.calls:
        found = (log.failed or "no calls in it") if log.is_over else ""
        return f"NCCL log: {found}" if found else "NCCL log: the view log shows its tables"
    moved = format_value(Unit.BYTES, log.moved)
    so_far = "" if log.is_over and not log.is_stopped else " so far"
    ranks = f"{log.gpus:,} rank{'s' if log.gpus != 1 else ''}"
    found = f"{log.calls:,} calls of {ranks}, {moved}{so_far}"
    return f"NCCL log (view log): {found}"
