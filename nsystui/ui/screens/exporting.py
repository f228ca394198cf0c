"""Export of a screen's table or drawing, to a file or the clipboard."""

from __future__ import annotations

import os
from asyncio import to_thread
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nsystui.base.errors import MissingDataError, UsageError, reason_of
from nsystui.base.text import counted
from nsystui.ui.screens.asking import AskingScreen
from nsystui.ui.widgets.repainting import in_background

if TYPE_CHECKING:
    from nsystui.base.answer import Answer, Column, Row
    from nsystui.base.drawing import Drawing
    from nsystui.questions.queries.question import Question

_Writer = Callable[[Path, bool], int | None]
"""Writes a file, given path and whether to overwrite; returns the number of rows, or ``None``."""


class ExportingScreen(AskingScreen):
    """A screen with a table or a drawing to export; never overwrites a file without asking."""

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
        from nsystui.output.files import propose_name

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
        from nsystui.output.formats import DRAWING, format_for_path

        if format_for_path(text) == DRAWING and self.drawing_to_export() is None:
            raise UsageError("SVG is for drawings, and this is a table: .csv .json .md .parquet .txt")

    def export_to(self, path: Path) -> None:
        """Write the table, or the drawing if the path ends in .svg."""
        from nsystui.output.formats import DRAWING, format_for_path

        if format_for_path(path) == DRAWING:
            if (draw := self.drawing_to_export()) is not None:
                self.write(path, "the drawing", partial(_write_drawing, draw))
            return
        answer = self.answer_to_export()  # it may have grown while the name was typed
        if answer is not None:
            from nsystui.output.files import save

            self.write(path, counted(len(answer), "row"), partial(save, answer))

    def action_copy_row(self) -> None:
        from nsystui.output.formats import row_for_clipboard

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
        from nsystui.exports.discover import files_of
        from nsystui.output.files import TargetExistsError, refuse_inputs

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


def _write_drawing(draw: Callable[[], Drawing | None], path: Path, overwrite: bool) -> None:
    from nsystui.output.files import save_text
    from nsystui.output.svg import svg

    drawing = draw()
    if drawing is None:
        raise MissingDataError("there is nothing to draw here")
    save_text(svg(drawing), path, overwrite)
