"""What every screen has: the three lines around it, the one selection, a question asked in a thread, export and copy.

A screen says what to ask (``ask``, in a thread: no widget is touched there) and how to show the answer (``show``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.message import Message
from textual.widget import Widget

from nsystui.errors import NsystuiError
from nsystui.ui import keys
from nsystui.ui.describe import describe, spans
from nsystui.ui.widgets.crumbs import KeyLine, SelectionLine, TitleLine
from nsystui.ui.widgets.prompt import LinePrompt
from nsystui.ui.widgets.quiet import QuietScreen

if TYPE_CHECKING:
    from nsystui.analysis.answer import Answer, Column, Row
    from nsystui.analysis.job import Job
    from nsystui.analysis.selection import Selection, Window
    from nsystui.ui.app import NsystuiApp


class Pane(QuietScreen[None]):
    """Base of all screens.

    ``MODE_KEY`` is the key of the mode a screen belongs to, ``PLACES`` where its keys come from (``ui.keys``), most
    special first. A drilled screen lies over its mode's screen; Esc closes it.
    """

    MODE_KEY: ClassVar[str] = ""
    PLACES: ClassVar[tuple[str, ...]] = ("everywhere",)
    AUTO_FOCUS = "*"

    @dataclass
    class Answered(Message):
        """The answer to a question, from its thread; ``token`` says which."""

        token: Hashable
        result: Any

    @dataclass
    class Failed(Message):
        """A question could not be answered."""

        token: Hashable
        error: Exception

    @dataclass
    class Saved(Message):
        """An export is written, or not (``error``); ``exists`` where a file of that name is there already."""

        path: Path
        rows: int = 0
        error: str = ""
        exists: bool = False

    def __init__(self, *crumbs: str) -> None:
        super().__init__()
        self.crumbs = crumbs
        self._asked: Hashable = None
        self._shown: Hashable = None
        self._target = Path()

    @property
    def explorer(self) -> NsystuiApp:
        """The application, by its own type."""
        return self.app  # type: ignore[return-value]

    @property
    def job(self) -> Job | None:
        """The job, once a report of it is ready."""
        job = self.explorer.job
        return job if job is not None and job.session.reports else None

    @property
    def selection(self) -> Selection:
        return self.explorer.selection

    # -- what a screen fills in -----------------------------------------------------------------------------------

    def body(self) -> Iterable[Widget]:
        """The widgets between the lines."""
        return ()

    def parameters(self) -> tuple[Hashable, ...]:
        """What besides the selection changes the answer: a grouping, a table, a zoom."""
        return ()

    def ask(self, job: Job, selection: Selection) -> Any:
        """The question. Runs in a thread: widgets must not be touched; raises NsystuiError for the user."""
        raise NotImplementedError

    def show(self, result: Any, same_place: bool) -> None:
        """Shows an answer; ``same_place`` where only the data grew, so that the cursor should stay."""
        raise NotImplementedError

    def show_waiting(self) -> None:
        """Shows what there is before any report is ready."""

    def answer_to_export(self) -> Answer | None:
        """The table that ``e`` and ``Y`` take."""
        return None

    def row_to_copy(self) -> Row | None:
        """The row that ``y`` takes."""
        return None

    def columns_to_copy(self) -> Sequence[Column]:
        """The columns of that row."""
        answer = self.answer_to_export()
        return answer.columns if answer is not None else ()

    # -- the frame ------------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        yield TitleLine(keys.MODES, self.MODE_KEY, id="title")
        yield SelectionLine(id="selection")
        yield from self.body()
        yield LinePrompt(id="prompt")
        yield KeyLine(keys.key_line(*self.PLACES), id="keys")

    def on_screen_resume(self) -> None:
        self.job_changed()

    def job_changed(self) -> None:
        """The selection or the session may have changed: ask again if so."""
        self.show_status(self.explorer.status)
        self.show_selection()
        job = self.job
        if job is None:
            self.show_waiting()
            return
        token = (job.session.version, self.selection, *self.parameters())
        if token in (self._asked, self._shown) and self._asked == token:
            return
        self._asked = token
        selection = self.selection

        def question() -> None:
            try:
                result = self.ask(job, selection)
            except Exception as error:  # whatever a query can raise: the screen says it and lives on
                self.post_message(self.Failed(token, error))
            else:
                self.post_message(self.Answered(token, result))

        self.run_worker(question, thread=True, exclusive=True, group="question", exit_on_error=False)

    @on(Answered)
    def _answered(self, message: Answered) -> None:
        message.stop()
        if message.token != self._asked:
            return  # a newer question is on its way
        before, self._shown = self._shown, message.token
        same_place = isinstance(before, tuple) and before[1:] == message.token[1:]  # type: ignore[index]
        self.show(message.result, same_place)

    @on(Failed)
    def _failed(self, message: Failed) -> None:
        message.stop()
        if message.token == self._asked:
            first = (str(message.error) or type(message.error).__name__).splitlines()[0]
            self.say(first if isinstance(message.error, NsystuiError) else f"this could not be computed: {first}")

    def show_selection(self) -> None:
        """The second line; the first one is the screen's own."""
        job = self.job
        ranks = job.ranks if job is not None and not self.selection.is_everything else ()
        self.query_one("#selection", SelectionLine).update(describe(self.selection, ranks))

    def show_status(self, status: str) -> None:
        """What is being loaded."""
        self.query_one("#selection", SelectionLine).set_status(status)

    def show_title(self, right: str = "", about: str = "") -> None:
        """The first line: where I am, on what, how many."""
        self.query_one("#title", TitleLine).update(*self.crumbs, about=about, right=right)

    def say(self, text: str) -> None:
        """One sentence for the user, in place of the keys, for a few seconds."""
        self.query_one("#keys", KeyLine).say(text)

    @property
    def prompt(self) -> LinePrompt:
        return self.query_one("#prompt", LinePrompt)

    # -- going places ---------------------------------------------------------------------------------------------

    @property
    def is_drilled(self) -> bool:
        """Whether this screen lies over another one of its mode."""
        return len(self.app.screen_stack) > 1

    async def action_mode(self, name: str) -> None:
        await self.app.switch_mode(name)

    def action_back(self) -> None:
        if self.is_drilled:
            self.app.pop_screen()
        elif not self.explorer.undo_selection():
            if self.explorer.stop_loading():
                self.say("stopping…")
            else:
                self.say("nothing to go back to: q quits")

    def action_resume(self) -> None:
        if not self.explorer.resume_loading():
            self.say("nothing is left to load")

    def action_quit(self) -> None:
        self.explorer.stop_loading()
        self.app.exit(return_code=0)

    def action_help(self) -> None:
        from nsystui.ui.screens.help import HelpScreen

        self.app.push_screen(HelpScreen(self.PLACES))

    # -- the selection by hand ------------------------------------------------------------------------------------

    def action_filter(self) -> None:
        name = self.selection.name
        self.prompt.open("filter", "find", name.text if name else "", _checker(self._filtered))

    def action_ranks(self) -> None:
        if self._needs_job():
            chosen = self.selection.tasks
            ranks = () if chosen is None or self.job is None else [r.rank for r in self.job.ranks if r.task in chosen]
            self.prompt.open("ranks", "ranks", spans(ranks), _checker(self._with_ranks))

    def action_devices(self) -> None:
        self.prompt.open("devices", "devices", spans(self.selection.devices or ()), _checker(self._with_devices))

    def action_window(self) -> None:
        if self._needs_job():
            window = self.selection.window
            self.prompt.open(
                "window", "time", f"{window.start}:{window.end}" if window else "", _checker(self._with_window)
            )

    def _needs_job(self) -> bool:
        if self.job is None:
            self.say("nothing is loaded yet")
        return self.job is not None

    def _filtered(self, text: str) -> Selection:
        return self.selection.with_name(text)

    def _with_ranks(self, text: str) -> Selection:
        from nsystui.analysis.typed import numbers

        assert self.job is not None
        return self.selection.with_tasks(self.job.tasks_of_ranks(numbers(text, "ranks")) if text.strip() else None)

    def _with_devices(self, text: str) -> Selection:
        from dataclasses import replace

        from nsystui.analysis.typed import numbers

        return replace(self.selection, devices=numbers(text, "devices") if text.strip() else None)

    def _with_window(self, text: str) -> Selection:
        from nsystui.analysis.typed import window

        assert self.job is not None
        return self.selection.with_window(window(text, self.job.extent()) if text.strip() else None)

    @on(LinePrompt.Submitted)
    def _prompt_submitted(self, message: LinePrompt.Submitted) -> None:
        make = {
            "filter": self._filtered,
            "ranks": self._with_ranks,
            "devices": self._with_devices,
            "window": self._with_window,
        }.get(message.purpose)
        if make is not None:
            message.stop()
            self.explorer.select(make(message.value))
        elif message.purpose in ("export", "overwrite"):
            message.stop()
            self._export_to(message)

    def select_window(self, window: Window) -> None:
        """Looks at this span of time on every screen."""
        self.explorer.select(self.selection.with_window(window))

    # -- files and clipboard --------------------------------------------------------------------------------------

    def action_export(self) -> None:
        from nsystui.output.files import propose_name

        answer = self.answer_to_export()
        job = self.job
        if answer is None or job is None:
            self.say("there is no table here to export")
            return
        name = self.selection.name
        proposed = propose_name(job.report_names, answer.name, name.text if name else None, ".csv")
        self.prompt.open("export", "export to", proposed, _checker(_format_known))

    def _export_to(self, message: LinePrompt.Submitted) -> None:
        if message.purpose == "overwrite":
            if message.value.strip().lower() in ("y", "yes"):
                self._save(self._target, overwrite=True)
            else:
                self.say("not written")
            return
        self._target = Path(message.value).expanduser()
        self._save(self._target, overwrite=False)

    def _save(self, path: Path, overwrite: bool) -> None:
        answer = self.answer_to_export()
        if answer is None:
            return
        self.say(f"writing {len(answer):,} rows to {path}…")

        def write() -> None:
            from nsystui.output.files import TargetExistsError, save

            try:
                rows = save(answer, path, overwrite)
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
        from nsystui.output.clipboard import row_for_clipboard

        row = self.row_to_copy()
        if row is None:
            self.say("there is no row here to copy")
            return
        self.app.copy_to_clipboard(row_for_clipboard(self.columns_to_copy(), row))
        self.say("copied the row, if the terminal allows OSC 52 (tmux: set -g set-clipboard on)")

    def action_copy_table(self) -> None:
        from nsystui.output.clipboard import text_for_clipboard

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


def _checker(make: Callable[[str], object]) -> Callable[[str], str | None]:
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
