"""The base of screens with a table, and variants for views, groupings, long texts and filters."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events, on
from textual.containers import Container, Horizontal
from textual.widget import Widget

from nsystui.base.answer import Answer, Column, Record, Row, TableAnswer, Unit, Value, for_files, record
from nsystui.base.errors import reason_of
from nsystui.base.selection import NameFilter, Selection, Window
from nsystui.base.text import counted
from nsystui.base.units import format_value
from nsystui.questions.queries.question import views_of
from nsystui.ui.keys import MODE_OF, MOVES, ON_ROWS, keys_of
from nsystui.ui.screens.base import JobScreen, ScreenState
from nsystui.ui.widgets.frame import Choice
from nsystui.ui.widgets.panels import DetailPane, Details, NoteLines, SidePanel
from nsystui.ui.widgets.repainting import in_background
from nsystui.ui.widgets.strip_chart import StripChart
from nsystui.ui.widgets.window_table import PageFailed, RowHighlighted, RowSelected, SortRequested, WindowTable

if TYPE_CHECKING:
    from nsystui.base.drawing import Drawing
    from nsystui.questions.job.job import OpenJob
    from nsystui.questions.kernels.summary import Names
    from nsystui.questions.queries.question import View


_WIDE = 150
"""The minimum terminal width for details at the right of a table."""

_ROOMY = 30
"""The minimum terminal height for details of more than two lines."""

_FRAME, _DETAIL_LINES = 8, 6
"""Lines of the screen around the rows, and of the details below them."""


class TablesScreen(JobScreen):
    """A screen with tables; the active ``table`` receives the keys for rows and their order."""

    table: WindowTable
    """The active table."""

    def keeps(self, key: str) -> bool:
        """Return whether a key must wait, also for a row being read; keys that move wait only without rows."""
        is_free = key in MOVES and self.table.row_count > 0 and not self.question.is_outdated
        is_read_for = key in ON_ROWS and self.table.awaits_row and not self.prompt.is_open
        return not is_free and (is_read_for or super().keeps(key))

    def answer_to_export(self) -> Answer | None:
        return self.table.answer

    def row_to_copy(self) -> tuple[Sequence[Column], Row] | None:
        answer, row = self.table.answer, self.table.current_row
        return None if answer is None or row is None else (answer.columns, row)

    def action_sort(self) -> None:
        if self.table.pick_order():
            self.say("sort by: the marked letter of a column · the same letter reverses · s next column · Esc cancels")
        else:
            self.say("there is nothing to sort")

    @on(PageFailed)
    def _page_failed(self, message: PageFailed) -> None:
        self.say(f"rows could not be read: {reason_of(message.error)}")


class TableScreen(TablesScreen):
    """A screen with one answer in a table: order, "N of M", time of a row, and an optional panel.

    ``ask`` returns an ``Answer``; a screen with a panel fills it when the cursor moves or the answer arrives.
    """

    PLACES: ClassVar[tuple[str, ...]] = ("table", "everywhere")
    STATE: ClassVar[tuple[str, ...]] = ("_sort",)
    HAS_PANEL = False
    HAS_DETAILS = True
    BACKGROUND = False
    ELASTIC: ClassVar[str | None] = None
    """The text column that gets the spare room; by default the last."""
    BAR_CATEGORY: ClassVar[str | None] = None
    """The category of the bars."""
    ORDER: ClassVar[tuple[str | None, bool]] = (None, True)
    """The column that answers are sorted by, and whether descending."""
    COUNTED: ClassVar[str] = "rows"
    """The word for the rows in "N of M …"."""
    CLOSED: ClassVar[str] = ""
    """The notice if Enter opens no row."""
    NO_TIME = "these rows are sums over time: open a row to see single events with times"
    LENGTHS: ClassVar[tuple[str, ...]] = ("duration",)
    """The columns with an event's length from ``start``: the first value counts."""
    FREE_KEYS: ClassVar[tuple[str, ...]] = ()
    """The keys of the table that this screen takes for itself."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]

    _sort: tuple[str, bool] | None = None
    _asks_context = False

    def body(self) -> Iterable[Widget]:
        self.table = WindowTable(
            id="table",
            elastic=self.ELASTIC,
            row_style=self.row_category,
            bar_category=self.BAR_CATEGORY,
            background=self.BACKGROUND,
            free_keys=self.FREE_KEYS,
        )
        self.notes = NoteLines(id="notes")
        if self.HAS_PANEL:
            self.panel = SidePanel(id="panel")
            body: Widget = Horizontal(self.table, self.panel, id="body")
        else:
            body = self.table
        self.pane = DetailPane(id="details")
        yield Container(body, self.pane, id="around") if self.HAS_DETAILS else body
        yield self.notes

    @on(events.Resize)
    def _choose_layout(self) -> None:
        width, height = self.app.size
        self.set_class(width >= _WIDE, "-beside")
        self.set_class(height < _ROOMY, "-low")

    @property
    def free_lines(self) -> int:
        """The terminal's lines that rows, details below them and notes do not need."""
        details = 0 if self.has_class("-beside") else _DETAIL_LINES
        notes = self.notes.get_content_height(self.size, self.size, self.size.width)
        return self.app.size.height - _FRAME - notes - details - self.table.row_count

    def shown_names(self) -> Mapping[str, str]:
        """Return the texts shown instead of full names: smart names of kernels."""
        return self.job.smart_names() if self.job is not None else {}

    def row_category(self, values: Record) -> str | None:
        """Return the category that colours a row's name, from its values by key."""
        return None

    def show(self, answer: Answer, same_place: bool) -> None:
        """Show the answer in the user's order, else in its natural order."""
        if self._sort is not None and any(column.key == self._sort[0] for column in answer.columns):
            answer = answer.sorted_by(*self._sort)
        else:
            self._sort = None
        self.table.empty_text = self.empty_text(answer)
        self.table.names = self.shown_names()
        self.table.set_answer(answer, keep_cursor=same_place)
        self.table.mark_sorted(*(self._sort or self.natural_order()))
        self.notes.show_notes(answer.notes if len(answer) else ())
        if not len(answer) and self.HAS_DETAILS:
            self.pane.show([])
        self.show_count()

    def natural_order(self) -> tuple[str | None, bool]:
        """Return the column and direction that the answer is sorted by."""
        return self.ORDER

    def empty_text(self, answer: Answer) -> str:
        """Return the reason why there are no rows."""
        if answer.total:
            return f"none of {counted(answer.total, 'row')} is in the selection: Esc goes back"
        return "\n".join(answer.notes) or "nothing in the selection"

    def show_text(self, text: str) -> None:
        self.show_title()
        self.table.empty_text = text
        self.table.refresh_rows()

    def show_count(self) -> None:
        if (answer := self.table.answer) is not None:
            total = answer.total if answer.total is not None else len(answer)
            self.show_title(right=f"{len(answer):,} of {total:,} {self.counted()}")

    def counted(self) -> str:
        """Return the word for the rows in "N of M …"."""
        return self.COUNTED

    def values(self) -> dict[str, Value]:
        """Return the values of the cursor's row by column key, if any."""
        return self.table.current_values

    def row_window(self) -> Window | None:
        """Return the time span of the cursor's row, if any; a step's span is its time on all ranks."""
        from nsystui.questions.ranks.steps import window_of_step

        values = self.values()
        start, step, job = values.get("start"), values.get("step"), self.job
        if isinstance(step, int) and values.get("row") is None and job is not None and job.shares_clock:
            task = next((item.task for item in job.ranks if item.rank == values.get("rank")), None)
            return window_of_step(job.steps(), step, task)
        length = next((values[key] for key in self.LENGTHS if values.get(key) is not None), None)
        if not isinstance(start, int) or not isinstance(length, int | float):
            return None
        return Window(start, start + max(int(length), 1))

    def time_here(self) -> Window | None:
        return self.row_window()

    async def action_metrics(self, grouping: str) -> None:
        """Show the means of the GPU metrics by kernel, collective, range or step."""
        from nsystui.questions.queries.data_notes import missing_notes
        from nsystui.store import tables

        job = self.job
        if job is None or job.session.count(tables.gpu_metrics):
            await self.go_to_view("metrics", by=grouping)
        else:
            self.say(*missing_notes(job.session, tables.gpu_metrics))

    @on(RowSelected)
    def _row_selected(self) -> None:
        if self.is_awaiting:
            self.app.simulate_key("enter")
        elif self.question.is_outdated:
            self.say("these rows are outdated: the new ones could not be computed")
        else:
            self.open_row()

    def open_row(self) -> None:
        """Open the row under the cursor, on Enter."""
        if self.CLOSED:
            self.say(self.CLOSED)

    @on(RowHighlighted)
    def _row_highlighted(self) -> None:
        self.explorer.take_keys()
        if not self.question.is_outdated:
            self.cursor_moved()
            self.row_changed()

    @on(StripChart.Resized)
    def _chart_resized(self) -> None:
        if not self.question.is_outdated:
            self.cursor_moved()

    def row_changed(self) -> None:
        """React to a move of the cursor to another row."""

    @in_background("detail")
    async def cursor_rests(self) -> None:
        """Show the row's details, computed in a thread if they need a question."""
        job, row, question = self.job, self.table.cursor_row, self.details_question()
        if not self.HAS_DETAILS:
            return
        details = self.row_details() if job is None or question is None else await to_thread(question, job)
        if row == self.table.cursor_row:
            self._show_details(details)
            self._ask_context(row, details)

    def _show_details(self, details: Details) -> None:
        """Show details, and the keys that lead on from the row; ``w`` (its range) only from an event."""
        is_event = self.event_here() is not None
        keys = [key for key in keys_of(self.places()) if is_event or key.shown != "w"]
        labels = {key.shown: (key.label or key.help).partition(";")[0] for key in keys}
        doors = [f"{shown} {labels[shown]}" for shown in ("⏎", "c", "w", "u", "M", "L") if labels.get(shown)]
        self.pane.show(details, "  ".join(doors))

    @in_background("context")
    async def _ask_context(self, row: int, details: Details) -> None:
        """Compute an event's context, which may be slow; one at a time, so that other work need not wait."""
        key, job = self.event_here(), self.job
        if key is None or job is None or self._asks_context:
            return
        from nsystui.ui.pictures.details import event_context

        self._asks_context = True
        try:
            context = await to_thread(event_context, job, key)
        finally:
            self._asks_context = False
        if row == self.table.cursor_row and key == self.event_here():
            # The third paragraph has the NVTX ranges around an event.
            self._show_details([*details[:2], *([*context, *paragraph] for paragraph in details[2:3]), *details[3:]])
        elif self._rest_timer is None:
            self.cursor_rests()

    def row_details(self) -> Details:
        """Return the row's details that need no question: its name and hidden columns."""
        answer, row = self.table.answer, self.table.current_row
        if answer is None or row is None:
            return []
        return row_details(answer.columns, row, self.table.name_key, self.table.hidden_facts, self.around_row())

    def around_row(self) -> Sequence[str]:
        """Return the parents of the row, in words."""
        return ()

    def details_question(self) -> Callable[[OpenJob], Details] | None:
        """Return a question for the row's details; a thread runs it when the cursor rests."""
        return None

    @on(SortRequested)
    def _sort_requested(self, message: SortRequested) -> None:
        self.sort_rows(message.key, message.descending)

    def sort_rows(self, key: str, descending: bool) -> None:
        answer = self.table.answer
        if answer is None:
            return
        self._sort = (key, descending)
        self.table.set_answer(answer.sorted_by(key, descending))
        self.table.mark_sorted(key, descending)


class ViewsScreen(TableScreen):
    """The views of a screen, one at a time. The catalogue defines the views and their questions.

    ``options`` override the views' values for questions with such options.
    """

    PARAMETERS = ("view", "options")
    options: Mapping[str, str] = {}

    def __init__(self) -> None:
        super().__init__()
        self.view = self.answered = self._views_here()[0]

    def ask(self, job: OpenJob, selection: Selection) -> tuple[View, Answer]:
        view = self.view
        return view, view.ask(job, selection, self.options)

    def show(self, result: Any, same_place: bool) -> None:
        view, answer = result
        self.answered = view
        super().show(answer, same_place)

    def drawing_to_export(self) -> Callable[[], Drawing | None] | None:
        return self.drawing_of(self.answered.question)

    def counted(self) -> str:
        return self.answered.counted

    def natural_order(self) -> tuple[str | None, bool]:
        return self.answered.sort

    def view_name(self) -> str:
        return self.view.name

    def _views_here(self) -> list[View]:
        return [view for view in views_of(MODE_OF[self.MODE_KEY]) if view.screen == self.SCREEN]

    def take_view(self, name: str, **options: str) -> None:
        view = next(view for view in self._views_here() if view.name == name)
        self.ask_with(view=view, options={**self.options, **options}, _sort=None)


class GroupedViewsScreen(ViewsScreen):
    """Views with rows grouped by option values of their question; empty columns are hidden."""

    PARAMETERS = ("view", "grouping")
    BY: ClassVar[Mapping[str, Sequence[tuple[str, Mapping[str, Any]]]]] = {}
    """The groupings of each view: words and option values."""

    grouping: Mapping[str, int] = {}

    def ask(self, job: OpenJob, selection: Selection) -> tuple[View, Answer]:
        view = self.view
        groups = self.BY.get(view.name)
        return view, view.ask(job, selection, dict(groups[self.grouping.get(view.name, 0)][1]) if groups else {})

    def show(self, result: Any, same_place: bool) -> None:
        view, answer = result
        keys = [column.key for column in answer.columns] if len(answer) else []
        columns = for_files(answer.columns, [key for key in keys if not set(answer.cells(key)) - {None}])
        super().show((view, replace(answer, columns=columns)), same_place)

    def choices(self) -> tuple[Choice, ...]:
        views, groups = super().choices(), self.BY.get(self.view.name)
        if groups is None:
            return views
        index = self.grouping.get(self.view.name, 0)
        return (*views, Choice("by", tuple(words for words, _ in groups), index, self.group_by))

    def group_by(self, index: int) -> None:
        """Group the rows of the view by another grouping."""
        self.ask_with(grouping={**self.grouping, self.view.name: index}, _sort=None)


class TextTableScreen(TableScreen):
    """A table of long texts: the details show the cursor's complete text."""

    MODE_KEY = "1"
    TEXT: ClassVar[str] = "{text}"
    """The format of a row's text, with values by column key."""

    def row_details(self) -> Details:
        values = self.values()
        return [[self.TEXT.format_map(values)]] if values else []


class FilteredTableScreen(TableScreen):
    """A table with its own filter over the words of its rows; other screens share one filter."""

    STATE = (*TableScreen.STATE, "words")

    show_filtered: Callable[[], None]
    """Show the rows that pass the new filter."""
    words: NameFilter | None = None

    def action_filter(self) -> None:
        self.prompt.ask("rows with", self.words.text if self.words else "", name_filter, self._filter_rows)

    def _filter_rows(self, words: NameFilter | None) -> None:
        self.explorer.remember()
        self.words = words
        self.show_selection()
        self.show_filtered()

    def restore(self, state: ScreenState) -> None:
        super().restore(state)
        self.show_selection()
        self.show_filtered()

    def empty_text(self, answer: Answer) -> str:
        if answer.total and self.words is not None:
            return (
                f'none of {counted(answer.total, "row")} has the words "{self.words.text}": Esc takes the filter away'
            )
        return super().empty_text(answer)


def row_details(
    columns: Sequence[Column], row: Row, name: str | None, facts: Mapping[str, str], around: Sequence[str] = ()
) -> Details:
    """Return a row's details: its name and the ``facts`` without room in the table.

    ``name`` is the key of the name column.
    """
    title = str(record(columns, row).get(name or "") or f"{columns[0].label} {format_value(columns[0].unit, row[0])}")
    return [[title], list(around), [words for key, words in facts.items() if key != name]]


def names_choice(names: Names, choose: Callable[[Names], object], without: Collection[Names] = ()) -> Choice:
    """Return the choice between kinds of kernel names, ``without`` kinds that a table lacks."""
    kinds = {kind: f"{kind.value} names" for kind in type(names) if kind not in without}
    return Choice.among("as", kinds, names, choose)


def rows_with(answer: TableAnswer, words: NameFilter | None) -> TableAnswer:
    """Return the rows whose texts (not numbers), joined by blanks, pass the filter; all rows without a filter."""
    if words is None:
        return answer
    texts = [index for index, column in enumerate(answer.columns) if column.unit is Unit.TEXT]
    rows = [row for row in answer.rows if words.matches(" ".join(str(row[i]) for i in texts if row[i] is not None))]
    return replace(answer, rows=rows)


def name_filter(text: str) -> NameFilter | None:
    """Return the filter that a user typed; ``None`` for an empty line."""
    return NameFilter(text) if text else None
