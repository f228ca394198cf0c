"""The table or the drawing of a screen in a file whose name the user types, or on the clipboard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nsystui.base.errors import MissingDataError, UsageError
from nsystui.ui.screens.asking import AskingScreen
from nsystui.ui.widgets.repainting import reason_of

if TYPE_CHECKING:
    from nsystui.base.answer import Answer, Column, Row
    from nsystui.base.drawing import Drawing

Writer = Callable[[Path, bool], int | None]
"""Writes a file, given the path and whether to overwrite; returns the number of rows, ``None`` of what has none."""

_COPIED = "if the terminal allows OSC 52 (tmux: set -g set-clipboard on)"


class ExportingScreen(AskingScreen):
    """A screen with a table or a drawing to export; a file is never written over without asking."""

    def answer_to_export(self) -> Answer | None:
        """The table that ``e`` and ``Y`` take."""
        return None

    def drawing_to_export(self) -> Callable[[], Drawing | None] | None:
        """What makes the drawing that ``e`` writes under a name in .svg; ``None`` where the screen draws nothing.

        It is called in a thread, and returns ``None`` where there is nothing to draw.
        """
        return None

    def proposed_name(self, answer: Answer) -> str | None:
        """The file name that ``e`` proposes; ``None`` where nothing is loaded to name it after."""
        from nsystui.output.files import propose_name

        job, name = self.job, self.selection.name
        if job is None:
            return None
        return propose_name(job.report_names, answer.name, name.text if name else None, ".csv")

    def row_to_copy(self) -> tuple[Sequence[Column], Row] | None:
        """The row that ``y`` takes, with its columns: both from the answer on the screen."""
        return None

    def action_export(self) -> None:
        """Ask for a file name and write the table, or under .svg the drawing."""
        answer = self.answer_to_export()
        proposed = self.proposed_name(answer) if answer is not None else None
        if proposed is None:
            self.say("there is no table here to export")
        else:
            label = "export to" if self.drawing_to_export() is None else "export (.svg: the drawing) to"
            self.ask_for_file(label, proposed, self._check_format, self._writer)

    def _check_format(self, text: str) -> None:
        from nsystui.output.formats import DRAWING, format_for_path

        if format_for_path(text) == DRAWING and self.drawing_to_export() is None:
            raise UsageError("SVG is for drawings, and this is a table: .csv .json .md .parquet .txt")

    def _writer(self, path: Path) -> tuple[str, Writer] | None:
        from nsystui.output.formats import DRAWING, format_for_path

        if format_for_path(path) == DRAWING:
            draw = self.drawing_to_export()
            return ("the drawing", partial(_write_drawing, draw)) if draw is not None else None
        answer = self.answer_to_export()  # it may have grown while the name was typed
        if answer is None:
            return None

        def write(path: Path, overwrite: bool) -> int:
            from nsystui.output.files import save

            return save(answer, path, overwrite)

        return f"{len(answer):,} rows", write

    def action_copy_row(self) -> None:
        """Copy the row under the cursor."""
        from nsystui.output.formats import row_for_clipboard

        copied = self.row_to_copy()
        if copied is None:
            self.say("there is no row here to copy")
            return
        self.app.copy_to_clipboard(row_for_clipboard(*copied))
        self.say(f"copied the row, {_COPIED}")

    def action_copy_table(self) -> None:
        """Copy the table, unless it is too long for a terminal's clipboard."""
        from nsystui.output.formats import text_for_clipboard

        answer = self.answer_to_export()
        if answer is None:
            self.say("there is no table here to copy")
            return
        text = text_for_clipboard(answer)
        if text is None:
            self.say("too much for a terminal's clipboard: e writes it to a file")
            return
        self.app.copy_to_clipboard(text)
        self.say(f"copied {len(answer):,} rows, {_COPIED}")

    def ask_for_file(
        self,
        label: str,
        proposed: str,
        check: Callable[[str], object],
        writer: Callable[[Path], tuple[str, Writer] | None],
    ) -> None:
        """Ask for the name of a file and write it.

        ``check`` raises NsystuiError for a name that will not do. ``writer`` gives the contents in words and the
        function that writes them, or ``None`` where there is nothing to write any more.
        """

        def named(text: str) -> Path:
            check(text)
            return Path(text).expanduser()

        def write(path: Path) -> None:
            contents = writer(path)
            if contents is not None:
                self._write(path, *contents, overwrite=False)

        self.prompt.ask(label, proposed, named, write)

    def _write(self, path: Path, contents: str, writer: Writer, overwrite: bool) -> None:
        from nsystui.output.files import TargetExistsError

        self.say(f"writing {contents} to {path}…")

        def failed(error: Exception) -> None:
            if isinstance(error, TargetExistsError):
                self.prompt.ask(f"{path} exists: overwrite? y/n", "", str, answered)
            else:
                self.say(f"not written: {reason_of(error)}")

        def answered(text: str) -> None:
            if text.strip().lower() in ("y", "yes"):
                self._write(path, contents, writer, overwrite=True)
            else:
                self.say("not written")

        def finished(rows: int | None) -> None:
            self.say(f"wrote {contents if rows is None else f'{rows:,} rows'} to {path}")

        self.in_background("export", partial(writer, path, overwrite), finished, failed, is_exclusive=False)


def _write_drawing(draw: Callable[[], Drawing | None], path: Path, overwrite: bool) -> None:
    from nsystui.output.files import save_text
    from nsystui.output.svg import svg

    drawing = draw()
    if drawing is None:
        raise MissingDataError("there is nothing to draw here")
    save_text(svg(drawing), path, overwrite)
