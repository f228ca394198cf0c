"""A screen whose table goes to a file or to the clipboard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.message import Message

from nsystui.base.errors import NsystuiError
from nsystui.ui.screens.asking import AskingScreen
from nsystui.ui.widgets.prompt import LinePrompt

if TYPE_CHECKING:
    from nsystui.base.answer import Answer, Row
    from nsystui.base.columns import Column


class ExportingScreen(AskingScreen):
    """``e`` writes the whole table that the screen shows, ``y`` and ``Y`` copy a row or all of it."""

    PURPOSES: ClassVar[tuple[str, ...]] = ("export",)
    """The prompts whose answer is the name of a file to write."""

    @dataclass
    class Saved(Message):
        """An export is written, or not (``error``); ``exists`` where a file of that name is there already."""

        path: Path
        rows: int = 0
        error: str = ""
        exists: bool = False

    def __init__(self, *crumbs: str) -> None:
        super().__init__(*crumbs)
        self._target = Path()
        self._purpose = "export"

    def answer_to_export(self) -> Answer | None:
        """The table that ``e`` and ``Y`` take."""
        return None

    def proposed_name(self, answer: Answer) -> str | None:
        """The name that ``e`` proposes for the file; ``None`` where nothing is loaded that it could say."""
        from nsystui.output.files import propose_name

        job, name = self.job, self.selection.name
        if job is None:
            return None
        return propose_name(job.report_names, answer.name, name.text if name else None, ".csv")

    def row_to_copy(self) -> Row | None:
        """The row that ``y`` takes."""
        return None

    def columns_to_copy(self) -> Sequence[Column]:
        """The columns of that row."""
        answer = self.answer_to_export()
        return answer.columns if answer is not None else ()

    def action_export(self) -> None:
        answer = self.answer_to_export()
        proposed = self.proposed_name(answer) if answer is not None else None
        if proposed is None:
            self.say("there is no table here to export")
            return
        self.prompt.open("export", "export to", proposed, checker(_format_known))

    @on(LinePrompt.Submitted)
    def _name_given(self, message: LinePrompt.Submitted) -> None:
        if message.purpose in ("overwrite", *self.PURPOSES):
            message.stop()
            self._export_to(message)

    def _export_to(self, message: LinePrompt.Submitted) -> None:
        if message.purpose == "overwrite":
            if message.value.strip().lower() in ("y", "yes"):
                self._save(self._target, overwrite=True)
            else:
                self.say("not written")
            return
        self._purpose = message.purpose
        self._target = Path(message.value).expanduser()
        self._save(self._target, overwrite=False)

    def writing(self, purpose: str) -> tuple[str, Callable[[Path, bool], int]] | None:
        """What is written for a prompt of this purpose, in words, and what writes it, given the path and whether to
        overwrite; it returns how many rows it wrote. ``None`` where there is nothing."""
        answer = self.answer_to_export()
        if answer is None:
            return None

        def write(path: Path, overwrite: bool) -> int:
            from nsystui.output.files import save

            return save(answer, path, overwrite)

        return f"{len(answer):,} rows", write

    def _save(self, path: Path, overwrite: bool) -> None:
        found = self.writing(self._purpose)
        if found is None:
            return
        words, fill = found
        self.say(f"writing {words} to {path}…")

        def write() -> None:
            from nsystui.output.files import TargetExistsError

            try:
                rows = fill(path, overwrite)
            except TargetExistsError:
                self.post_message(self.Saved(path, exists=True))
            except Exception as error:  # a query or a disk: the user gets the reason, the program lives on
                self.post_message(self.Saved(path, error=str(error).splitlines()[0]))
            else:
                self.post_message(self.Saved(path, rows))

        self.run_worker(write, thread=True, group="export", exit_on_error=False)

    @on(Saved)
    def _saved(self, message: Saved) -> None:
        message.stop()
        if message.exists:
            self.prompt.open("overwrite", f"{message.path} exists: overwrite? y/n")
        elif message.error:
            self.say(f"not written: {message.error}")
        else:
            self.say(f"wrote {message.rows:,} rows to {message.path}")

    def action_copy_row(self) -> None:
        from nsystui.output.formats import row_for_clipboard

        row = self.row_to_copy()
        if row is None:
            self.say("there is no row here to copy")
            return
        self.app.copy_to_clipboard(row_for_clipboard(self.columns_to_copy(), row))
        self.say("copied the row, if the terminal allows OSC 52 (tmux: set -g set-clipboard on)")

    def action_copy_table(self) -> None:
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
        self.say(f"copied {len(answer):,} rows, if the terminal allows OSC 52 (tmux: set -g set-clipboard on)")


def checker(make: Callable[[str], object]) -> Callable[[str], str | None]:
    """A check for a prompt: what is wrong with a text is what ``make`` says of it."""

    def check(text: str) -> str | None:
        try:
            make(text)
        except NsystuiError as error:
            return str(error)
        return None

    return check


def _format_known(text: str) -> object:
    from nsystui.output.formats import format_for_path

    return format_for_path(text)
