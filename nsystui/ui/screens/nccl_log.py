"""NCCL's debug log, with or without exports: its tables, one at a time."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from nsystui.base.answer import Answer, TableAnswer, Unit
from nsystui.base.selection import NameFilter
from nsystui.base.text import counted
from nsystui.base.units import format_value
from nsystui.output.files import propose_name
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

_BEHIND = {
    "ops": ("calls", "op"), "sizes": ("calls", "op"), "communicators": ("ranks", "communicator"),
    "gpus": ("ranks", "host"),
}  # fmt: skip
"""The table with the rows behind a row of a table, and the column that both share."""


class NcclLogScreen(FilteredTableScreen):
    """The tables of the log.

    The rows are the application's ``nccl_log``, not an answer, and change during reading. The filter is this screen's:
    the shared selection is for exports.
    """

    MODE_KEY = "3"
    SCREEN = "nccl_log"
    STATE = (*FilteredTableScreen.STATE, "name_of_table")
    PLACES = ("nccl log", "table", "everywhere")
    ELASTIC = "communicator"

    name_of_table = _TABLE_ORDER[0]
    _tables: Mapping[str, TableAnswer] = {}
    _remark = ""

    def places(self) -> tuple[str, ...]:
        """Return the key groups; without keys for exports if only logs are open."""
        return self.PLACES if self.explorer.source.files else ("nccl log alone", *self.PLACES)

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
        if not self.explorer.nccl_log.tables or self.explorer.nccl_log.tables is not self._tables:
            self._show_table(same_place=True)

    def show_waiting(self) -> None:
        """Show that the log is being read, or why it could not be read."""
        super().show_waiting()
        self.show_title(right="reading")
        self.table.empty_text = (
            self.explorer.nccl_log.failed or "reading the log: its tables grow until all of it is read"
        )

    def show_status(self, status: str) -> None:
        super().show_status(self.explorer.nccl_log.status or status)

    def show_selection(self) -> None:
        """Show logs, their size and the filter instead of the selection."""
        log = self.explorer.nccl_log
        names = log.names
        title = os.path.basename(names[0]) if len(names) == 1 else f"{len(names):,} logs"
        parts = [
            title,
            *([format_value(Unit.BYTES, log.size)] if log.size else []),
        ]
        steps = self.explorer.source.log_steps
        parts += [f"steps {steps}"] if steps is not None else []
        parts += [f'filter "{self.words.words or self.words.text}"'] if self.words else []
        parts += [self._remark] if self._remark else []
        self.query_one("#selection", SelectionLine).update(" · ".join(parts))

    def _show_table(self, same_place: bool = False) -> None:
        self._tables = tables = self.explorer.nccl_log.tables
        if not tables:
            self.show_waiting()
            return
        is_inspected = len(tables["inspector"]) > 0 and not len(tables["ops"])
        if is_inspected and self.name_of_table == _TABLE_ORDER[0]:
            self.name_of_table = "inspector"
        filled = self._tables_with_rows()
        missing = [name for name in _CALL_TABLES if name not in filled and name != self.name_of_table]
        is_read = self.explorer.nccl_log.is_over and not self.explorer.nccl_log.is_stopped
        self._remark = f"no {', '.join(missing)} in it" if missing and is_read and not is_inspected else ""
        self.show_selection()
        elastic = {"rings": "ring", "problems": "evidence", "settings": "value"}
        self.table.elastic = elastic.get(self.name_of_table, self.ELASTIC)
        self.show(rows_with(tables[self.name_of_table], self.words), same_place)

    def _tables_with_rows(self) -> list[str]:
        return [name for name in _TABLE_ORDER if len(self._tables[name]) or name == self.name_of_table]

    def natural_order(self) -> tuple[str | None, bool]:
        return "total_bytes" if self.name_of_table == "ops" else None, True

    def empty_text(self, answer: Answer) -> str:
        """Return the reason why the table is empty; while reading, rows may follow."""
        if (answer.total and self.words) or self.explorer.nccl_log.is_over or not any(map(len, self._tables.values())):
            return super().empty_text(answer)
        return "no rows of this table so far"

    def views(self) -> tuple[View, ...]:
        return super().views() if self.explorer.source.files else ()

    def choices(self) -> tuple[Choice, ...]:
        if not self._tables:
            return ()
        names = {name: name for name in self._tables_with_rows()}
        return (*super().choices(), Choice.among("by", names, self.name_of_table, self._choose))

    def _choose(self, table: str) -> None:
        self.name_of_table = table
        self._sort = None
        self._show_table()

    def open_row(self) -> None:
        """Show the calls of an op, or the ranks of a communicator or host: another table, filtered."""
        table, key = _BEHIND.get(self.name_of_table, (self.name_of_table, ""))
        name = self.values().get(key)
        if isinstance(name, str) and name in self._tables[table].cells(key):
            self.explorer.remember()
            self.words = NameFilter(rf"re:(?<!\S){re.escape(name)}(?!\S)", name)
            self._choose(table)
        elif self.values():
            self.say("the log has no more about this row, such as times of single calls")

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
        names = self.explorer.nccl_log.names
        words = (self.words.words or self.words.text) if self.words else None
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
