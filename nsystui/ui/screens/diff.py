"""Two sides of a comparison: what changed, then table after table. Over the screens of a job, or of two jobs alone."""

from __future__ import annotations

import os
import re
import shlex
import textwrap
import threading
from asyncio import to_thread
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from textual import events
from textual.widget import Widget

from nsystui.base.answer import Answer, Record, TableAnswer, Value
from nsystui.base.errors import NsystuiError, UsageError, reason_of
from nsystui.base.selection import NameFilter, Selection
from nsystui.base.text import safe_text, shorten, spans, width_of
from nsystui.questions.compare import TABLES, ComparisonOptions, Side, worded
from nsystui.questions.compare.pairs import GONE
from nsystui.questions.compare.side import smart_names_of
from nsystui.questions.compare.summary import ComparisonSummary
from nsystui.questions.job.opening import JobSource
from nsystui.questions.kernels.summary import Names
from nsystui.questions.nccl.names import is_nccl_kernel
from nsystui.ui.doors import show_view
from nsystui.ui.loading import Loading, LoadingListener
from nsystui.ui.pictures.details import Details, row_details
from nsystui.ui.pictures.diff import BAR, change_styles, summary_styles, with_bars, without_bars
from nsystui.ui.screens.table import FilteredTableScreen, names_choice, rows_with
from nsystui.ui.widgets.frame import Choice, SelectionLine
from nsystui.ui.widgets.panels import PartLines
from nsystui.ui.widgets.repainting import in_background, in_own_task

if TYPE_CHECKING:
    from pathlib import Path

    from nsystui.questions.job.job import OpenJob
    from nsystui.store.packing import Progress
    from nsystui.ui.diff_app import DiffApp


_SUMMARY = "summary"
_FRAME = 5
"""The lines around the table: title, sides, tables, headings, keys."""
_LEAST_NOTES = 4
_VIEWS = {
    "kernels": "kernels",
    "nvtx": "nvtx",
    "nccl": "nccl",
    "memory": "memory",
    "api": "api",
    "functions": "functions",
    "calltree": "call tree",
}
"""The view that shows the names of a table."""


class DiffScreen(FilteredTableScreen):
    """The tables of a comparison, one at a time; ``e`` exports the one that is shown.

    Without ``sides`` they are those of the application, once it has them (`nsystui.ui.diff_app.DiffApp`).
    """

    PLACES = ("diff", "table", "everywhere")
    STATE = (*FilteredTableScreen.STATE, "name_of_table", "_is_swapped", "options")

    def __init__(self, sides: tuple[Side, Side] | None = None, options: ComparisonOptions | None = None) -> None:
        super().__init__("Comparison")
        self._sides = sides
        self._is_swapped = False
        self.options = options
        self.name_of_table = _SUMMARY
        self._current = _SUMMARY
        self.answer: TableAnswer | None = None

    def body(self) -> Iterable[Widget]:
        """Compose the verdict above the table."""
        self.verdict = PartLines(id="verdict")
        yield self.verdict
        yield from super().body()

    def places(self) -> tuple[str, ...]:
        """The keys that need one open job leave where A and B are two."""
        return self.PLACES if self._is_of_open_job else ("diff alone", *self.PLACES)

    @property
    def sides(self) -> tuple[Side, Side] | None:
        """A and B as they are shown; ``None`` until they are read."""
        found: tuple[Side, Side] | None = self._sides or getattr(self.explorer, "sides", None)
        return found and (found[::-1] if self._is_swapped else found)

    @property
    def job(self) -> OpenJob | None:
        """The job of A."""
        return self.sides[0].job if self.sides is not None else None

    @property
    def _is_of_open_job(self) -> bool:
        """Whether there are other screens, of the job that both sides are of."""
        return self._sides is not None and all(side.job is self.explorer.job for side in self._sides)

    def show_selection(self) -> None:
        """Shows the labels of A and B in place of the selection."""
        line = self.query_one("#selection", SelectionLine)
        if self.sides is None:
            line.update("")
            return
        words = [f'filter "{self.words.text}"'] if self.words is not None else []
        room = self.app.size.width - sum(width_of(text) + 2 for text in words)
        a, b = (shorten(side.label, max(10, room // 2 - 6)) for side in self.sides)
        line.update("  ".join([f"[A] {a}   [B] {b}", *words]))

    @property
    def _own_app(self) -> DiffApp | None:
        """The application, where A and B are all that it has open."""
        return None if self._sides is not None or self.sides is None else self.app  # type: ignore[return-value]

    def _options(self) -> ComparisonOptions:
        return self.options or getattr(self.explorer, "options", None) or ComparisonOptions(Names.SMART)

    def parameters(self) -> tuple[Hashable, ...]:
        """The table, the sides and the options."""
        assert self.sides is not None
        return (self.name_of_table, self._is_swapped, self._options(), self.sides[1].job.version)

    def ask(self, job: OpenJob, selection: Selection) -> tuple[str, TableAnswer]:
        """Compare A with B by the table that is asked for."""
        name, sides = self.name_of_table, self.sides
        assert sides is not None
        sides[1].job.smart_names()  # so that they are at hand, as those of A are
        return name, TABLES[name].make(*sides, self._options())

    def job_changed(self) -> None:
        """Say that A and B are being compared until the first table is there."""
        super().job_changed()
        self.show_choices()
        if self.answer is None and self.job is not None:
            self.table.empty_text = "comparing A with B…"
            self.table.refresh_rows()

    def show(self, result: Any, same_place: bool) -> None:
        """Show a table with a bar for each difference."""
        self._current, self.answer = result
        self._show_rows(same_place)

    def _show_rows(self, same_place: bool) -> None:
        if self.answer is None:
            return
        answer = worded(self.answer) if self._current == _SUMMARY else self.answer
        found = rows_with(answer, self.words)
        self.table.cell_styles = self._styles_of
        self.table.elastic = "collective" if self._current == "nccl" else "name"
        headline = self.answer.headline if isinstance(self.answer, ComparisonSummary) else ""
        lines = textwrap.wrap(safe_text(headline), max(1, self.app.size.width), max_lines=2, placeholder=" …")
        self.verdict.show_lines([[(line, "bold")] for line in lines])
        if self._current == _SUMMARY:
            found = replace(found, notes=tuple(note for note in found.notes if note != headline))
        super().show(found if self._current == _SUMMARY else with_bars(found), same_place)
        self._share_room()

    def on_resize(self, event: events.Resize) -> None:
        self.show_selection()
        self._share_room()

    def _share_room(self) -> None:
        """The notes get the lines that the rows leave."""
        self.notes.allow(
            max(_LEAST_NOTES, self.app.size.height - _FRAME - len(self.verdict.texts) - self.table.row_count)
        )

    def show_waiting(self) -> None:
        """Say that A and B are being read."""
        super().show_waiting()
        self.show_title(right="reading")
        self.table.empty_text = "reading: A and B are compared when both are read completely"
        self.show_choices()

    def shown_names(self) -> Mapping[str, str]:
        """Smart names that are unique among the kernels of both."""
        if self.sides is None or self._current != "kernels" or self._options().names is not Names.SMART:
            return {}
        return smart_names_of(*self.sides)

    def row_details(self) -> Details:
        """Without the bar, which says what the difference says; a line of the summary is named by what it measures."""
        answer, row = self.table.answer, self.table.current_row
        if answer is None or row is None:
            return []
        name = "what" if self._current == _SUMMARY else self.table.name_key
        facts = {key: words for key, words in self.table.hidden_facts.items() if key != BAR.key}
        (title, *_), *others = row_details(answer.columns, row, name, facts)
        return [[title.strip()], *others]

    def natural_order(self) -> tuple[str | None, bool]:
        """The largest difference first, unless rows have an order of their own."""
        return (None, True) if self._current in (_SUMMARY, "steps", "calltree") else ("difference", True)

    def empty_text(self, answer: Answer) -> str:
        """Say that neither side has any of this."""
        if answer.total and self.words is not None:
            return super().empty_text(answer)
        return "\n".join(answer.notes) or "neither A nor B has any of this"

    def counted(self) -> str:
        """The word for the rows of the table."""
        own = {_SUMMARY: "measures", "steps": "measures", "calltree": "nodes"}
        return own.get(self._current, self._current if self._current in ("functions", "families") else "names")

    def _styles_of(self, values: Record) -> dict[str, str]:
        """The categories of the cells of a row: those of the summary, which is worded, by its numbers."""
        if self._current != _SUMMARY or self.answer is None:
            return change_styles(values)
        return summary_styles(self.answer).get(values.get("what"), {})

    def row_category(self, values: Record) -> str | None:
        """A line of the summary has the colour of its change, a name that of its work."""
        if self._current == _SUMMARY:
            return self._styles_of(values).get("difference")
        name = values.get("name")
        if self.name_of_table == "kernels" and isinstance(name, str):
            return "nccl" if is_nccl_kernel(name) else None
        if values.get("mode"):
            return "os"
        return {"nccl": "nccl", "memory": "memory"}.get(self.name_of_table)

    def choices(self) -> tuple[Choice, ...]:
        """Offer the tables and the names of kernels."""
        tables = list(TABLES)
        return (
            Choice(
                "view", tuple(tables), tables.index(self.name_of_table), lambda place: self._show_table(tables[place])
            ),
            names_choice(self._options().names, self._show_names),
        )

    def _show_table(self, name: str) -> None:
        self.name_of_table = name
        self.words = self._sort = None
        if self.job is None:
            self.show_choices()
        else:
            self.job_changed()

    def action_swap(self) -> None:
        """Exchange A and B."""
        self._is_swapped = not self._is_swapped
        if self.job is not None:
            self.say("A and B are swapped")
            self.job_changed()

    def _show_names(self, names: Names) -> None:
        self.options = replace(self._options(), names=names)
        self._ask_again("kernels")

    def action_fold(self) -> None:
        """Take numbered NVTX names as one, or apart."""
        options = self._options()
        self.options = replace(options, fold_numbers=not options.fold_numbers)
        self.say("numbered names one by one" if options.fold_numbers else "numbered names as one")
        self._ask_again("nvtx")

    def _ask_again(self, table: str) -> None:
        """Shows the table that the change is about; it is another one, or its rows are."""
        if self.name_of_table != table:
            self._show_table(table)
        elif self.job is not None:
            self.job_changed()

    def action_selection(self) -> None:
        """Say that the sides have their own selections."""
        self.say("A and B cannot be changed here: press x on two ranks of another screen")

    def show_filtered(self) -> None:
        """Show the rows of the table that pass the filter."""
        self._show_rows(same_place=False)

    async def action_timeline(self) -> None:
        """Go to the timeline: of A where A and B are two jobs."""
        if self._is_of_open_job:
            await super().action_timeline()
        else:
            await self.action_mode("timeline")

    async def action_mode(self, name: str) -> None:
        """Go to a tab: of A where A and B are two jobs."""
        if self._is_of_open_job:
            await super().action_mode(name)
        elif self._own_app is not None and self.sides is not None:
            await self._own_app.open_side(self.sides[0], "A")
            await super().action_mode(name)
        else:
            self.say("one moment: A and B are being read")

    def open_row(self) -> None:
        """From the summary to a table, from a table to the screen of its names."""
        values = self.values()
        if self._current == _SUMMARY:
            table = values.get("table")
            if isinstance(table, str):
                self._show_table(table)
            elif values:
                self.say("no other table shows this; v shows the next table")
        elif values:
            self._open_name(values)

    def _open_name(self, values: dict[str, Value]) -> None:
        key = {"nccl": "collective", "functions": "full_name", "calltree": "full_name"}.get(self._current, "name")
        name, shown = values.get(key), values.get("name")
        if self._current not in _VIEWS or not isinstance(name, str):
            self.say("this row has no screen of its own")
            return
        sides = self.sides
        if sides is None or not (self._is_of_open_job or self._own_app is not None):
            self.say("only the comparison is open here: `nsystui FILE…` shows a job, f filters by name there")
            return
        usual = "A" if values.get("status") == GONE else "B"

        def chosen(number: int) -> None:
            self.call_later(self._open_in, number, name)

        title = shown.strip() if key == "full_name" and isinstance(shown, str) else self.table.names.get(name, name)
        self.prompt.ask(f"open {shorten(title, 40)} in A or B?", usual, _side_of, chosen)

    async def _open_in(self, number: int, name: str) -> None:
        """Shows the screen of a name, with the ranks and the time of one side."""
        sides, table, names = self.sides, self._current, self._options().names
        assert sides is not None
        side = sides[number]
        # This name and no other; a numbered name has any number at its ``*``.
        pattern = re.escape(name).replace(r"\*", "(?:[0-9]+|0[xX][0-9a-fA-F]+|[*])")
        chosen = replace(side.selection, name=NameFilter(f"re:^{pattern}$", name))
        if self._own_app is not None:
            await self._own_app.open_side(side, "AB"[number])
        await show_view(self.explorer, _VIEWS[table], chosen, names=names.value)

    def answer_to_export(self) -> Answer | None:
        """As on the screen; of the summary the plain values, with their units beside them."""
        if self.answer is not None and self._current == _SUMMARY:
            return rows_with(self.answer, self.words)
        shown = self.table.answer
        return without_bars(shown) if isinstance(shown, TableAnswer) else shown

    def proposed_name(self, table: str) -> str | None:
        """Name the file after both sides."""
        from nsystui.output.files import propose_name

        if self.sides is None:
            return None
        labels = [side.label for side in self.sides]
        return propose_name(f"{labels[0]}-{labels[1]}", table, self.words.text if self.words else None, ".csv")


def _side_of(text: str) -> int:
    """0 for A, 1 for B; raises UsageError."""
    word = text.strip().upper()
    if word not in ("A", "B"):
        raise UsageError("A or B")
    return "AB".index(word)


# -- from a line that a user typed ------------------------------------------------------------------------------------

Groups = tuple[frozenset[int], frozenset[int]]


def comparison_with(job: OpenJob, selection: Selection, opened: JobSource, text: str) -> DiffScreen:
    """The comparison with the job, or of the ranks, that ``text`` names; raises NsystuiError."""
    # Numbers only, as ``0-3 -- 4-7``, name ranks, unless a file has that name.
    if re.fullmatch(r"[\d\s,-]+", text) and not os.path.lexists(text.strip()):
        return comparison_of_ranks(job, selection, *groups_of(job, text))
    return OtherJobScreen(job, opened, files_of_other(text))


def comparison_of_ranks(
    job: OpenJob, selection: Selection, first: Collection[int], second: Collection[int]
) -> DiffScreen:
    """The comparison of two groups of ranks in the selected time."""
    own = selection.with_name(None)
    a, b = (Side(job, own.with_tasks(job.tasks_of_ranks(frozenset(group))), _label(group)) for group in (first, second))
    return DiffScreen((a, b))


def _label(ranks: Collection[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {spans(ranks)}"


def groups_of(job: OpenJob, text: str) -> Groups:
    """``0-3 -- 4-7``, or ``0-3`` against all others; raises UsageError."""
    from nsystui.base.selection import parse_numbers

    first, dashes, second = (word.strip() for word in text.partition("--"))
    a = parse_numbers(first, "ranks")
    b = parse_numbers(second, "ranks") if dashes else frozenset(item.rank for item in job.ranks) - a
    for group in (a, b):
        job.tasks_of_ranks(group)
    if not b:
        raise UsageError("these are all ranks: there are no others to compare with")
    if a == b:
        raise UsageError("these are the same ranks twice")
    return a, b


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


class OtherJobScreen(DiffScreen, LoadingListener):
    """A is the open job, B the one that is read here; closing the screen ends the reading and lets go of B."""

    def __init__(self, job: OpenJob, opened: JobSource, files: tuple[str, ...]) -> None:
        super().__init__()
        self._own = (job, opened.files)
        source = replace(opened, files=files, logs=(), ranks="", step_range=job.step_range)
        self._loading = Loading(source, self)
        self._other: OpenJob | None = None
        self._rows: dict[Path, tuple[int, int]] = {}
        self._reasons: list[str] = []
        self._letting_go = threading.Lock()
        self._is_closed = self._is_read = False

    def on_mount(self) -> None:
        """Begin to read B in a thread."""
        self.explorer.sources.append(self._loading.source)
        self._read()

    def on_unmount(self) -> None:
        """Stop the reading and let go of B."""
        self._loading.stop()
        with self._letting_go:
            self._is_closed = True
            self._let_go()

    def _let_go(self) -> None:
        """Closes B where neither the reading nor the screen has it any more."""
        if self._is_closed and self._is_read and self._other is not None:
            self._other.close()
            self._other = None

    @in_background("other job")
    async def _read(self) -> None:
        def read() -> None:
            try:
                self._loading.start()
            finally:
                with self._letting_go:
                    self._is_read = True
                    self._let_go()

        try:
            await to_thread(read)
        except Exception as error:
            if self.is_active:
                self.app.call_later(self._leave, f"nothing to compare with: {reason_of(error)}")

    async def _leave(self, why: str) -> None:
        await self.explorer.go_back()
        self.explorer.say(why)

    def job_started(self, job: OpenJob, paths: tuple[Path, ...]) -> None:
        """Take the job for B."""
        self._other = job

    def failed(self, path: Path, error: NsystuiError) -> None:
        """Note why a file is left out."""
        self._reasons.append(str(error))

    def loading_ended(self, cancelled: bool) -> None:
        """Compare A with B. Raises NsystuiError if nothing of B could be read."""
        from nsystui.base.selection import Selection
        from nsystui.questions.compare.side import Side, job_labels

        if cancelled:
            return
        assert self._other is not None
        if not self._other.session.reports:
            raise NsystuiError(self._reasons[0] if self._reasons else "nothing could be read")
        jobs = (self._own[0], self._other)
        labels = job_labels(jobs, (self._own[1], self._loading.source.files))
        a, b = (Side(job, Selection(), label) for job, label in zip(jobs, labels, strict=True))
        self._compare((a, b))

    @in_own_task
    def advanced(self, path: Path, progress: Progress) -> None:
        """Show how much of B is read."""
        self._rows[path] = progress.rows, progress.total
        self.show_status(self.explorer.status)

    def show_status(self, status: str) -> None:
        """Show how much of B is read, in percent of its rows."""
        done, total = (sum(numbers) for numbers in zip(*self._rows.values(), strict=True)) if self._rows else (0, 0)
        own = "" if self._sides is not None else f"B: reading {100 * done // max(total, 1)} %"
        super().show_status(own or status)

    @in_own_task
    def _compare(self, sides: tuple[Side, Side]) -> None:
        self._sides = sides
        self.job_changed()
        if self._reasons:
            self.say(f"not all of B could be read: {self._reasons[0]}")

    async def action_mode(self, name: str) -> None:
        """Say that the other screens are A's."""
        self.say("these are the screens of A: esc returns to them")
