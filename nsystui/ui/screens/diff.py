"""Comparison of two sides by summary and tables: over a job's screens, or alone for two jobs."""

from __future__ import annotations

import os
import re
import shlex
import textwrap
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from textual import events
from textual.widget import Widget

from nsystui.base.answer import Answer, Column, Record, Row, TableAnswer, Value, record
from nsystui.base.errors import UsageError
from nsystui.base.selection import NameFilter, Selection, parse_numbers
from nsystui.base.text import safe_text, shorten, spans, width_of
from nsystui.exports.discover import discover
from nsystui.output.files import propose_name
from nsystui.questions.compare import TABLES, ComparisonOptions, Side, worded
from nsystui.questions.compare.pairs import GONE
from nsystui.questions.compare.side import smart_names_of
from nsystui.questions.compare.summary import ComparisonSummary
from nsystui.questions.job.opening import open_at
from nsystui.questions.kernels.summary import Names
from nsystui.questions.nccl.names import is_nccl_kernel
from nsystui.ui.screens.table import FilteredTableScreen, names_choice, row_details, rows_with
from nsystui.ui.widgets.frame import Choice, SelectionLine
from nsystui.ui.widgets.panels import Details, PartLines

if TYPE_CHECKING:
    from nsystui.questions.job.job import OpenJob
    from nsystui.ui.diff_app import DiffApp


_SUMMARY = "summary"
_FRAME = 5
"""Lines around the table: title, sides, tables, headings, keys."""
_MIN_NOTES = 4
_VIEWS = ("kernels", "nvtx", "nccl", "memory", "api")
"""The tables with names that the view of the same name opens."""


class DiffScreen(FilteredTableScreen):
    """The tables of a comparison, one at a time; ``e`` exports the current table.

    Without ``sides``, compares the application's sides once they are read (`nsystui.ui.diff_app.DiffApp`).
    """

    PLACES = ("diff", "table", "everywhere")
    STATE = (*FilteredTableScreen.STATE, "name_of_table", "_is_swapped", "options")

    def __init__(self, sides: tuple[Side, Side] | None = None) -> None:
        super().__init__("Comparison")
        self._sides = sides
        self._is_swapped = False
        self.options: ComparisonOptions | None = None
        self.name_of_table = _SUMMARY
        self._current = _SUMMARY
        self.answer: TableAnswer | None = None

    def body(self) -> Iterable[Widget]:
        self.verdict = PartLines(id="verdict")
        yield self.verdict
        yield from super().body()

    def places(self) -> tuple[str, ...]:
        """Return the places of the keys, with ``diff alone`` first in the application for comparisons."""
        return self.PLACES if self._sides is not None else ("diff alone", *self.PLACES)

    @property
    def sides(self) -> tuple[Side, Side] | None:
        """A and B, swapped if the user swapped them; ``None`` until they are read."""
        sides: tuple[Side, Side] | None = self._sides or getattr(self.explorer, "sides", None)
        return sides and (sides[::-1] if self._is_swapped else sides)

    @property
    def job(self) -> OpenJob | None:
        return self.sides[0].job if self.sides is not None else None

    def show_selection(self) -> None:
        line = self.query_one("#selection", SelectionLine)
        if self.sides is None:
            line.update("")
            return
        words = [f'filter "{self.words.text}"'] if self.words is not None else []
        room = self.app.size.width - sum(width_of(text) + 2 for text in words)
        a, b = (shorten(side.label, max(10, room // 2 - 6)) for side in self.sides)
        line.update("  ".join([f"[A] {a}   [B] {b}", *words]))

    @property
    def _diff_app(self) -> DiffApp | None:
        """The application, if it has only A and B open."""
        return None if self._sides is not None or self.sides is None else self.app  # type: ignore[return-value]

    def _options(self) -> ComparisonOptions:
        return self.options or getattr(self.explorer, "options", None) or ComparisonOptions(Names.SMART)

    def parameters(self) -> tuple[Hashable, ...]:
        assert self.sides is not None
        return (self.name_of_table, self._is_swapped, self._options(), self.sides[1].job.version)

    def ask(self, job: OpenJob, selection: Selection) -> tuple[str, TableAnswer]:
        name, sides = self.name_of_table, self.sides
        assert sides is not None
        sides[1].job.smart_names()  # cached for showing the answer, as A's names are
        return name, TABLES[name].make(*sides, self._options())

    def job_changed(self) -> None:
        """Ask again, and show a notice until the first table is made."""
        super().job_changed()
        self.show_choices()
        if self.answer is None and self.job is not None:
            self.table.empty_text = "comparing A with B…"
            self.table.refresh_rows()

    def show(self, result: Any, same_place: bool) -> None:
        self._current, self.answer = result
        self._show_rows(same_place)

    def _show_rows(self, same_place: bool = False) -> None:
        if self.answer is None:
            return
        answer = worded(self.answer) if self._current == _SUMMARY else self.answer
        shown = rows_with(answer, self.words)
        self.table.cell_styles = self._styles_of
        self.table.elastic = "collective" if self._current == "nccl" else "name"
        summary = self.answer if isinstance(self.answer, ComparisonSummary) else None
        headline = "" if summary is None else summary.headline
        lines = textwrap.wrap(safe_text(headline), max(1, self.app.size.width), max_lines=2, placeholder=" …")
        self.verdict.show_lines([[(line, "bold")] for line in lines])
        super().show(with_bars(shown) if summary is None else replace(shown, notes=summary.remarks), same_place)
        self._share_room()

    def on_resize(self, event: events.Resize) -> None:
        self.show_selection()
        self._share_room()

    def _share_room(self) -> None:
        room = self.app.size.height - _FRAME - len(self.verdict.texts) - self.table.row_count
        self.notes.max_lines = max(_MIN_NOTES, room)

    def show_waiting(self) -> None:
        super().show_waiting()
        self.show_title(right="reading")
        self.table.empty_text = "reading: A and B are compared when both are read completely"
        self.show_choices()

    def shown_names(self) -> Mapping[str, str]:
        """Return smart names that are unique among the kernels of both sides."""
        if self.sides is None or self._current != "kernels" or self._options().names is not Names.SMART:
            return {}
        return smart_names_of(*self.sides)

    def row_details(self) -> Details:
        """Return the row's details without the bar, which repeats the difference; summary rows are named by measure."""
        answer, row = self.table.answer, self.table.current_row
        if answer is None or row is None:
            return []
        name = "what" if self._current == _SUMMARY else self.table.name_key
        facts = {key: words for key, words in self.table.hidden_facts.items() if key != BAR.key}
        (title, *_), *more_lines = row_details(answer.columns, row, name, facts)
        return [[title.strip()], *more_lines]

    def natural_order(self) -> tuple[str | None, bool]:
        """Return the table's own order, else the largest difference first."""
        return (None, True) if self._current in (_SUMMARY, "steps") else ("difference", True)

    def empty_text(self, answer: Answer) -> str:
        if answer.total and self.words is not None:
            return super().empty_text(answer)
        return "\n".join(answer.notes) or "neither A nor B has any of this"

    def counted(self) -> str:
        words = {_SUMMARY: "measures", "steps": "measures"}
        return words.get(self._current, self._current if self._current == "families" else "names")

    def _styles_of(self, values: Record) -> dict[str, str]:
        """Return the cells' categories; in the summary, words have the categories of their numbers."""
        if self._current != _SUMMARY or self.answer is None:
            return change_styles(values)
        return summary_styles(self.answer).get(values.get("what"), {})

    def row_category(self, values: Record) -> str | None:
        """Return a row's category: its change in the summary, its kind of work in other tables."""
        if self._current == _SUMMARY:
            return self._styles_of(values).get("difference")
        name = values.get("name")
        if self.name_of_table == "kernels" and isinstance(name, str):
            return "nccl" if is_nccl_kernel(name) else None
        if values.get("mode"):
            return "os"
        return {"nccl": "nccl", "memory": "memory"}.get(self.name_of_table)

    def choices(self) -> tuple[Choice, ...]:
        tables = Choice.among("view", {name: name for name in TABLES}, self.name_of_table, self._show_table)
        return tables, names_choice(self._options().names, self._show_names)

    def _show_table(self, name: str) -> None:
        self.name_of_table = name
        self.words = self._sort = None
        if self.job is None:
            self.show_choices()
        else:
            self.job_changed()

    def action_swap(self) -> None:
        self._is_swapped = not self._is_swapped
        if self.job is not None:
            self.say("A and B are swapped")
            self.job_changed()

    def _show_names(self, names: Names) -> None:
        self.options = replace(self._options(), names=names)
        self._ask_again("kernels")

    def action_fold(self) -> None:
        options = self._options()
        self.options = replace(options, fold_numbers=not options.fold_numbers)
        self.say("numbered names are separate rows" if options.fold_numbers else "numbered names are one row")
        self._ask_again("nvtx")

    def _ask_again(self, table: str) -> None:
        if self.name_of_table != table:
            self._show_table(table)
        elif self.job is not None:
            self.job_changed()

    def action_selection(self) -> None:
        """Explain that the selections of A and B are fixed."""
        self.say("A and B cannot be changed here: press x on two ranks of another screen")

    show_filtered = _show_rows

    async def action_timeline(self) -> None:
        """Go to the timeline, of A if only A and B are open."""
        if self._sides is not None:
            await super().action_timeline()
        else:
            await self.action_mode("timeline")

    async def action_mode(self, name: str) -> None:
        """Go to a tab, of A if only A and B are open."""
        if self.sides is None:
            self.say("one moment: A and B are being read")
            return
        if self._diff_app is not None:
            await self._diff_app.open_side(self.sides[0], "A")
        await super().action_mode(name)

    def open_row(self) -> None:
        values = self.values()
        if self._current == _SUMMARY:
            table = values.get("table")
            if isinstance(table, str):
                self._show_table(table)
            elif values:
                self.say("no other table shows this: v lists the tables")
            return
        name = values.get("collective" if self._current == "nccl" else "name")
        if self._current in _VIEWS and isinstance(name, str):
            title = shorten(self.table.names.get(name, name), 40)
            default = "A" if values.get("status") == GONE else "B"
            self.prompt.ask(
                f"open {title} in A or B?", default, _side_of, lambda side: self.call_later(self._open_in, side, name)
            )
        elif values:
            self.say("no other screen shows this row")

    async def _open_in(self, number: int, name: str) -> None:
        sides, table, names = self.sides, self._current, self._options().names
        assert sides is not None
        side = sides[number]
        # Exactly this name; the ``*`` of a folded name matches any number.
        pattern = re.escape(name).replace(r"\*", "(?:[0-9]+|0[xX][0-9a-fA-F]+|[*])")
        selection = replace(side.selection, name=NameFilter(f"re:^{pattern}$", name))
        if self._diff_app is not None:
            await self._diff_app.open_side(side, "AB"[number])
        await self.go_to_view(table, selection, names=names.value)

    def answer_to_export(self) -> Answer | None:
        """Return the table without bars; for the summary, plain values with a column of units."""
        if self.answer is not None and self._current == _SUMMARY:
            return rows_with(self.answer, self.words)
        shown = self.table.answer
        return shown.plain if isinstance(shown, WithBars) else shown

    def proposed_name(self, table: str) -> str | None:
        if self.sides is None:
            return None
        labels = [side.label for side in self.sides]
        return propose_name(f"{labels[0]}-{labels[1]}", table, self.words.text if self.words else None, ".csv")


def _side_of(text: str) -> int:
    word = text.strip().upper()
    if word not in ("A", "B"):
        raise UsageError("A or B")
    return "AB".index(word)


# -- typed by the user ------------------------------------------------------------------------------------------------


def comparison_with(job: OpenJob, selection: Selection, text: str) -> DiffScreen | tuple[str, ...]:
    """Return the comparison of the ranks that ``text`` names, or the files of another job. Raises NsystuiError."""
    # A text of numbers, such as ``0-3 -- 4-7``, names ranks unless a file has that name.
    if re.fullmatch(r"[\d\s,-]+", text) and not os.path.lexists(text.strip()):
        return comparison_of_ranks(job, selection, *groups_of(job, text))
    try:
        names = tuple(os.path.expanduser(word) for word in shlex.split(text))
    except ValueError as error:
        raise UsageError(f"{text}: {str(error).lower()}") from None
    paths = discover(names)
    if not paths:
        raise UsageError("name the exports of the other job, or their folder")
    open_at(paths[0])
    return names


def comparison_of_ranks(
    job: OpenJob, selection: Selection, first: Collection[int], second: Collection[int]
) -> DiffScreen:
    """Return the comparison of two groups of ranks in the selected time."""

    def side(ranks: Collection[int]) -> Side:
        label = f"rank{'s' if len(ranks) > 1 else ''} {spans(ranks)}"
        return Side(job, selection.with_name(None).with_tasks(job.tasks_of_ranks(frozenset(ranks))), label)

    return DiffScreen((side(first), side(second)))


def groups_of(job: OpenJob, text: str) -> tuple[frozenset[int], frozenset[int]]:
    """Return the ranks in ``0-3 -- 4-7``, or ``0-3`` and all other ranks. Raises UsageError."""
    first, dashes, second = (word.strip() for word in text.partition("--"))
    a = parse_numbers(first, "ranks")
    b = parse_numbers(second, "ranks") if dashes else frozenset(item.rank for item in job.ranks) - a
    for group in (a, b):
        job.tasks_of_ranks(group)
    if not b:
        raise UsageError("these are all ranks: there are no others to compare with")
    if a == b:
        raise UsageError("both groups have the same ranks")
    return a, b


# -- the tables as they are drawn, with a diverging bar at each difference ---------------------------------------------

BAR = Column("bar", header="Bar", label="▼ less │ more ▲", importance=2)
_HALF = 6  # cells of a bar on each side of its middle


@dataclass(frozen=True)
class WithBars(TableAnswer):
    """A comparison with bars; sorting by the bars sorts by the difference."""

    plain: TableAnswer | None = None

    def sorted_by(self, key: str, descending: bool) -> WithBars:
        assert self.plain is not None
        return with_bars(self.plain.sorted_by("difference" if key == BAR.key else key, descending))


def with_bars(answer: TableAnswer) -> WithBars:
    """Return the answer with a bar behind each difference, scaled to the largest difference."""
    index = [column.key for column in answer.columns].index("difference")
    changes = [float(value) if isinstance(value := row[index], int | float) else None for row in answer.rows]
    largest = max((abs(change) for change in changes if change is not None), default=0.0)
    rows: list[Row] = [
        (*row[: index + 1], _bar(change, largest), *row[index + 1 :])
        for row, change in zip(answer.rows, changes, strict=True)
    ]
    columns = (*answer.columns[: index + 1], BAR, *answer.columns[index + 1 :])
    return WithBars(answer.name, columns, rows, answer.total, answer.notes, plain=answer)


def _bar(change: float | None, largest: float) -> str | None:
    if change is None:
        return None
    halves = round(2 * _HALF * abs(change) / largest) if largest else 0
    full, half = divmod(halves, 2)
    if change < 0:
        return ("▼" + "▐" * half + "█" * full).rjust(_HALF + 1) + "│" + " " * (_HALF + 1)
    return " " * (_HALF + 1) + "│" + ("█" * full + "▌" * half + ("▲" if change > 0 else "")).ljust(_HALF + 1)


def change_styles(values: Record) -> dict[str, str]:
    """Return the categories of cells that show a change: less time is better, more is worse."""
    change = values.get("difference")
    if not change or not isinstance(change, int | float):
        return {}
    category = "worse" if change > 0 else "better"
    return {"difference": category, BAR.key: category}


def summary_styles(summary: TableAnswer) -> dict[Value, dict[str, str]]:
    """Return the `change_styles` of a summary's rows by measure, if a change is better or worse."""
    styles = {}
    for row in summary.rows:
        values = record(summary.columns, row)
        measure, change, is_percent = values["what"], values["difference"], values["unit"] == "%"
        if is_percent and isinstance(change, int | float):
            change = round(change, 1)  # as shown
        if values["unit"] == "ns" or str(measure).strip() in ("GPU idle", "exposed NCCL"):
            styles[measure] = change_styles({"difference": change})
    return styles


OPENED = {"comparison": comparison_with, "diff": DiffScreen}
