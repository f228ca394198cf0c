"""The base of every screen: application, job, selection, notices, searches, prompts, exports, and doors to others."""

from __future__ import annotations

import os
from asyncio import to_thread
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsystui.base.errors import MissingDataError, UsageError, reason_of
from nsystui.base.selection import Selection, parse_numbers, window_words
from nsystui.base.text import counted, spans
from nsystui.exports.discover import files_of
from nsystui.output.files import TargetExistsError, propose_name, refuse_inputs, save, save_text
from nsystui.output.formats import DRAWING, format_for_path, row_for_clipboard
from nsystui.questions.queries.question import view_named
from nsystui.ui.widgets.frame import KeyLine
from nsystui.ui.widgets.prompt import LinePrompt
from nsystui.ui.widgets.repainting import ThrottledScreen, in_background

if TYPE_CHECKING:
    from nsystui.base.answer import Answer, Column, Row
    from nsystui.base.drawing import Drawing
    from nsystui.questions.events.listing import EventKey
    from nsystui.questions.job.job import OpenJob
    from nsystui.questions.queries.question import Question
    from nsystui.ui.app import NsystuiApp

_Writer = Callable[[Path, bool], int | None]
"""Writes a file, given path and whether to overwrite; returns the number of rows, or ``None``."""


class AskingScreen(ThrottledScreen[None]):
    """A screen with a question about the job and selection, and keys that ask for a part of the selection or export.

    An export never overwrites a file without asking.
    """

    ask: Callable[[OpenJob, Selection], Any]
    """Answer the question in a thread, without touching widgets. Raises NsystuiError with a reason for the user."""

    @property
    def explorer(self) -> NsystuiApp:
        return self.app  # type: ignore[return-value]

    @property
    def job(self) -> OpenJob | None:
        """The job, once a report is ready."""
        job = self.explorer.job
        return job if job is not None and job.session.reports else None

    @property
    def selection(self) -> Selection:
        return self.explorer.selection

    def has_job(self) -> bool:
        """Return whether a report is ready; if not, show a notice."""
        if self.job is None:
            self.say("nothing is loaded yet")
        return self.job is not None

    def say(self, text: str) -> None:
        """Show a sentence instead of the keys for a few seconds, unless the screen is closed."""
        if self.display:
            self.query_one("#keys", KeyLine).say(text)

    _search_in_progress: Callable[[], Awaitable[None]] | None = None
    """The running search: the next keys of searches wait for it."""

    def begin_search(self, search: Callable[[], Awaitable[None]]) -> None:
        self._search_in_progress = search
        self._run_search(search)

    @in_background("search")
    async def _run_search(self, search: Callable[[], Awaitable[None]]) -> None:
        try:
            await search()
        finally:
            if self._search_in_progress is search:
                self._search_in_progress = None
                self.explorer.take_keys()

    @property
    def prompt(self) -> LinePrompt:
        """The line in which the user types."""
        return self.query_one("#prompt", LinePrompt)

    def action_filter(self) -> None:
        name = self.selection.name
        self._ask_for("find", name.text if name else "", lambda text: self.selection.with_name(text))

    def action_ranks(self) -> None:
        """Ask for the numbers of ranks, once a report is ready."""
        if self.has_job() and self.job is not None:
            tasks = self.selection.tasks
            ranks = () if tasks is None else [item.rank for item in self.job.ranks if item.task in tasks]
            self._ask_for("ranks", spans(ranks), self._with_ranks)

    def action_clear(self) -> None:
        self.explorer.select(Selection())

    def action_devices(self) -> None:
        self._ask_for("devices", spans(self.selection.devices or ()), self._with_devices)

    def action_window(self) -> None:
        """Ask for a span of time, and show its meaning while it is typed."""
        if self.has_job():
            window = self.selection.window
            typed = f"{_seconds(window.start)}:{_seconds(window.end)}" if window else ""

            def understood(selection: Selection) -> str:
                return window_words(selection.window) if selection.window else "all time"

            self.prompt.ask("time", typed, self._with_window, self.explorer.select, understood, replaced=True)

    def _ask_for(self, label: str, value: str, parse: Callable[[str], Selection]) -> None:
        self.prompt.ask(label, value, parse, self.explorer.select, replaced=True)

    def _with_ranks(self, text: str) -> Selection:
        job, selection = self.job, self.selection
        assert job is not None
        return selection.with_tasks(job.tasks_of_ranks(parse_numbers(text, "ranks")) if text.strip() else None)

    def _with_devices(self, text: str) -> Selection:
        job, devices = self.job, parse_numbers(text, "devices") if text.strip() else None
        if job is not None and devices is not None and (unknown := devices - (available := job.devices)):
            available_words = f"the devices are {spans(available)}" if available else "no GPU work was recorded"
            raise UsageError(f"device {min(unknown)} is not there: {available_words}")
        return replace(self.selection, devices=devices)

    def _with_window(self, text: str) -> Selection:
        assert self.job is not None
        return self.selection.with_window(self.job.window(text) if text.strip() else None)

    async def go_to_view(self, name: str, selection: Selection | None = None, **options: str) -> Any:
        """Go to a view of the catalogue in one step, with a new selection if given, and ``options`` of its question.

        Return its screen, or ``None`` if a key switched to another mode meanwhile.
        """
        return await self.explorer.go(view_named(name).home, selection, name, **options)

    def go_to_event(self, key: EventKey, mode: str = "events") -> None:
        """Go to an event in the list of events, or to a range in the tree of the ``mode`` ``nvtx``."""

        async def go() -> None:
            if screen := await self.explorer.go(mode):
                screen.show_event(key)

        self.app.call_later(go)

    def answer_to_export(self) -> Answer | None:
        """Return the table that ``e`` exports."""
        return None

    def drawing_to_export(self) -> Callable[[], Drawing | None] | None:
        """Return a function that makes the drawing for .svg files, or ``None`` if the screen has no drawing.

        A thread calls the function, which returns ``None`` if there is nothing to draw.
        """
        return None

    def drawing_of(self, question: Question) -> Callable[[], Drawing | None] | None:
        if question.drawing is None or self.job is None:
            return None
        return partial(question.drawing, self.job, self.selection, question.defaults())

    def proposed_name(self, table: str) -> str | None:
        """Return the file name that ``e`` proposes; ``None`` before a report is loaded."""
        job, name = self.explorer.job_name, self.selection.name
        return propose_name(job, table, name.text if name else None, ".csv") if self.job is not None else None

    def row_to_copy(self) -> tuple[Sequence[Column], Row] | None:
        """Return the row that ``y`` copies, with its columns, from the answer on the screen."""
        return None

    def action_export(self) -> None:
        """Ask for a file name, and export to it."""
        answer = self.answer_to_export()
        self.ask_for_export(None if answer is None else answer.name)

    def ask_for_export(self, table: str | None) -> None:
        """Ask for a file name for the drawing or the table of this name (``None``: no table)."""
        proposed = None if table is None else self.proposed_name(table)
        if proposed is None:
            self.say("there is no table here to export")
        else:
            label = "export to" if self.drawing_to_export() is None else "export (.svg: the drawing) to"
            self.ask_for_file(label, proposed, self._check_format, self.export_to)

    def _check_format(self, text: str) -> None:
        if format_for_path(text) == DRAWING and self.drawing_to_export() is None:
            raise UsageError("SVG is for drawings, and this is a table: .csv .json .md .parquet .txt")

    def export_to(self, path: Path) -> None:
        """Write the table, or the drawing if the path ends in .svg."""
        if format_for_path(path) != DRAWING:
            self.export_table(path)
        elif (draw := self.drawing_to_export()) is not None:
            self.write(path, "the drawing", partial(_write_drawing, draw))

    def export_table(self, path: Path) -> None:
        """Write the table, which may have grown while the name was typed."""
        if (answer := self.answer_to_export()) is not None:
            self.write(path, counted(len(answer), "row"), partial(save, answer))

    def action_copy_row(self) -> None:
        copied = self.row_to_copy()
        if copied is None:
            self.say("there is no row here to copy")
            return
        self.app.copy_to_clipboard(row_for_clipboard(*copied))
        self.say("copied the row, if the terminal allows OSC 52 (tmux: set -g set-clipboard on)")

    def ask_for_file(
        self, label: str, proposed: str, check: Callable[[str], object], then: Callable[[Path], object]
    ) -> None:
        """Ask for a file name, and call ``then``. ``check`` raises NsystuiError if the name is not allowed."""

        def parse(text: str) -> Path:
            check(text)
            return Path(os.path.expanduser(text))

        self.prompt.ask(label, proposed, parse, then, replaced=True)

    @in_background("export", exclusive=False)
    async def write(self, path: Path, contents: str, writer: _Writer, overwrite: bool = False) -> None:
        """Write a file in a thread. Messages describe it by ``contents``, then by the rows that ``writer`` returns."""
        self.say(f"writing {contents} to {path}…")
        inputs = [name for source in self.explorer.sources for name in (*source.files, *source.logs)]

        def write() -> int | None:
            refuse_inputs([path], files_of(inputs), self.explorer.source.cache_directory)
            return writer(path, overwrite)

        def decide(text: str) -> None:
            if text.strip().lower() in ("y", "yes"):
                self.write(path, contents, writer, overwrite=True)
            else:
                self.say("not written")

        try:
            rows = await to_thread(write)
        except TargetExistsError:
            self.prompt.ask(f"{path} exists: overwrite? y/n", "", str, decide)
        except Exception as error:
            self.say(f"not written: {reason_of(error)}")
        else:
            written = contents if rows is None else counted(rows, "row")
            self.say(f"wrote {written} to {path.name} in {path.absolute().parent}")


def _seconds(time: int) -> str:
    return f"{Decimal(time).scaleb(-9).normalize():f}s"


def _write_drawing(draw: Callable[[], Drawing | None], path: Path, overwrite: bool) -> None:
    from nsystui.output.svg import svg

    drawing = draw()
    if drawing is None:
        raise MissingDataError("there is nothing to draw here")
    save_text(svg(drawing), path, overwrite)
