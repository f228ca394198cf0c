"""The base of every screen: the lines around it, its question, its table in a file, and the prompts for the selection.

`JobScreen` is made of three parts: `Asker` asks the job in a thread, `FileExport` writes files, and
`SelectionPrompts` change the selection by hand.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.timer import Timer
from textual.widget import Widget

from nsystui.base.errors import MissingDataError, NsystuiError, UsageError
from nsystui.base.text import spans
from nsystui.ui import keys
from nsystui.ui.ascii import key_name
from nsystui.ui.pictures.selection import crumbs_of, describe
from nsystui.ui.screens import TabView, screen_of, views_on
from nsystui.ui.widgets.frame import Choice, ChoiceLine, KeyLine, SelectionLine, TitleLine
from nsystui.ui.widgets.panels import NoteLines
from nsystui.ui.widgets.prompt import LinePrompt
from nsystui.ui.widgets.repainting import Other, ThrottledScreen, in_thread, reason_of
from nsystui.ui.widgets.window_table import WindowTable

if TYPE_CHECKING:
    from textual.screen import Screen

    from nsystui.base.answer import Answer, Column, Row
    from nsystui.base.drawing import Drawing
    from nsystui.base.selection import Selection, Window
    from nsystui.questions.events.listing import EventKey
    from nsystui.questions.job.job import OpenJob
    from nsystui.questions.queries.question import Question
    from nsystui.questions.queries.tasks import RankedTask
    from nsystui.ui.app import NsystuiApp

DETAIL_DELAY = 0.2
"""Seconds that a cursor rests before the details of its place are fetched and drawn."""

_PATIENCE = 0.7
"""Seconds after which a screen without an answer says that it is waiting for one."""

_LEAST_PAUSE = 0.5
_PAUSE = 2.0

Token = tuple[Hashable, ...]
"""The version of the session, the selection and the parameters of a screen: the same for the same answer."""

Writer = Callable[[Path, bool], int | None]
"""Writes a file, given the path and whether to overwrite; returns the number of rows, ``None`` of what has none."""

_NO_CHOICE = {
    "view": "this tab has one view only",
    "by": "these rows cannot be grouped otherwise",
    "names": "there are no kernel names here",
    "metrics": "no GPU metrics here: record with `nsys profile --gpu-metrics-devices=all`",
}
"""Why a key has nothing to choose from, by the label of the choice."""


@dataclass(frozen=True)
class ScreenState:
    """What a screen showed: the values of its attributes, the rows under the cursors, and the widget with the focus."""

    values: dict[str, Any]
    cursors: dict[WindowTable, int]
    focused: Widget | None


class JobScreen(ThrottledScreen[None]):
    """The base of all screens on a job.

    A screen defines its question (``ask``, called in a thread, so that it must not touch a widget) and how the answer
    is shown (``show``). ``MODE_KEY`` is the key of the mode that it belongs to; ``PLACES`` are the places of its keys
    (``ui.keys``), the most specific first. A drilled screen lies over its mode's screen.

    ``SCREEN`` is its name in `screen_of` if it shows views of a tab. ``STATE`` names the attributes that going back
    restores, besides the cursors of its tables.
    """

    MODE_KEY: ClassVar[str] = ""
    SCREEN: ClassVar[str] = ""
    STATE: ClassVar[tuple[str, ...]] = ()
    PLACES: ClassVar[tuple[str, ...]] = ("everywhere",)
    AUTO_FOCUS = "*"

    def __init__(self, *crumbs: str) -> None:
        super().__init__()
        self.crumbs = crumbs
        self.job_ranks: Sequence[RankedTask] = ()
        """The ranks of the job as they were when the answer on the screen was asked for."""
        self.question = Asker(self)
        self.file_export = FileExport(self)
        self.selection_prompts = SelectionPrompts(self)
        self._rest_timer: Timer | None = None
        self._places_back: ScreenState | None = None  # until the answer is there that has these rows
        self._count = ""
        self._views: tuple[object, tuple[TabView, ...]] = (None, ())  # for a version of the session

    @property
    def explorer(self) -> NsystuiApp:
        """The application, by its own type."""
        return self.app  # type: ignore[return-value]

    @property
    def job(self) -> OpenJob | None:
        """The job, once a report of it is ready."""
        job = self.explorer.job
        return job if job is not None and job.session.reports else None

    @property
    def selection(self) -> Selection:
        return self.explorer.selection

    @property
    def is_settled(self) -> bool:
        """Whether the screen shows the answer to its newest question, and no details are about to follow."""
        return self.question.is_settled and self._rest_timer is None

    # -- what a screen defines ------------------------------------------------------------------------------------

    def places(self) -> tuple[str, ...]:
        """The places of the keys of the key line and of the help, the most specific first."""
        return self.PLACES

    def body(self) -> Iterable[Widget]:
        """The widgets between the lines."""
        return ()

    def parameters(self) -> Token:
        """Everything besides the selection that changes the answer: a grouping, a table, a zoom."""
        return ()

    def ask(self, job: OpenJob, selection: Selection) -> Any:
        """The question. Called in a thread, so that it must not touch a widget; raises NsystuiError for the user."""
        raise NotImplementedError

    def show(self, result: Any, same_place: bool) -> None:
        """Shows an answer; ``same_place`` where only the data grew, so that the cursor should stay."""
        raise NotImplementedError

    def show_waiting(self) -> None:
        """Shows the screen before any report is ready."""

    def show_asking(self) -> None:
        """Says that the first answer is being computed; the second line shows the progress."""

    # -- the frame ------------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        tabs = [tab for tab in keys.TABS if keys.MODE_OF[tab[0]] in self.explorer.MODES]
        yield TitleLine(tabs, self.MODE_KEY, id="title")
        yield SelectionLine(id="selection")
        yield ChoiceLine(id="choices")
        yield from self.body()
        left_out = NoteLines(id="left-out")
        left_out.allow(2)
        yield left_out
        yield LinePrompt(id="prompt")
        yield KeyLine(keys.key_line(*self.places()), id="keys")

    def show_selection(self) -> None:
        """Updates the second line."""
        self.query_one("#selection", SelectionLine).update(describe(self.selection, self.job_ranks))

    @on(SelectionLine.CrumbClicked)
    def _crumb_clicked(self, message: SelectionLine.CrumbClicked) -> None:
        """Takes a part of the selection away."""
        message.stop()
        crumbs = crumbs_of(self.selection, self.job_ranks)
        if message.place < len(crumbs):
            self.explorer.select(crumbs[message.place][1])

    def show_status(self, status: str) -> None:
        """Shows the progress of the loading on the first line."""
        self.query_one("#title", TitleLine).set_status(status or self.explorer.state_of_loading)

    def show_title(self, right: str = "", about: str = "") -> None:
        """Updates the lines above: the job (or what it is ``about``), the way here, and at the ``right`` the count."""
        self.query_one("#title", TitleLine).update(about or self.explorer.job_name)
        self.query_one("#selection", SelectionLine).show_count(right)
        self.show_choices()

    def show_choices(self) -> None:
        """Updates the third line, and the keys that act with these choices."""
        self.query_one("#choices", ChoiceLine).show_choices(self.path(), self.choices())
        self.query_one("#keys", KeyLine).update(keys.key_line(*self.places()))

    def path(self) -> Sequence[str]:
        """The way down to this screen from its tab."""
        is_tab = self.crumbs and any(self.crumbs[0] == f"{key} {name}" for key, name, _ in keys.TABS)
        return self.crumbs[1:] if is_tab else self.crumbs

    def say(self, text: str) -> None:
        """Shows one sentence in place of the keys for a few seconds."""
        self.query_one("#keys", KeyLine).say(text)

    @property
    def prompt(self) -> LinePrompt:
        return self.query_one("#prompt", LinePrompt)

    # -- the question ---------------------------------------------------------------------------------------------

    def on_screen_resume(self, event: events.ScreenResume) -> None:
        self.job_changed()
        self._put_cursors_back()

    def job_changed(self) -> None:
        """Asks again if the selection, the session or the parameters have changed."""
        self.show_status(self.explorer.status)
        self.show_selection()
        job = self.job
        if job is None:
            self.show_waiting()
        else:
            self.question.ask(job, (job.session.version, self.selection, *self.parameters()))
            self._put_cursors_back()

    def show_answer(self, result: Any, ranks: Sequence[RankedTask], same_place: bool) -> None:
        """Shows an answer that arrived, with the lines that belong to it; ``ranks`` are those it was asked with."""
        from nsystui.questions.queries.data_notes import left_out_note

        self.job_ranks = ranks
        self.show_selection()
        note = left_out_note(self.job.session.reports) if self.job is not None else ""
        self.query_one("#left-out", NoteLines).show_notes((note,) if note else ())
        self.show(result, same_place)
        self.show_choices()
        self._put_cursors_back()

    # -- what can be chosen ---------------------------------------------------------------------------------------

    def choices(self) -> tuple[Choice, ...]:
        """What can be chosen here: the view of the tab, and what a subclass adds, such as how rows are grouped."""
        views = self.views()
        if len(views) < 2:
            return ()
        names = [view.name for view in views]
        chosen = names.index(self.view_name()) if self.view_name() in names else 0
        labels = tuple(view.label for view in views)
        return (Choice("view", labels, chosen, lambda place: self.show_view(names[place])),)

    def view_name(self) -> str:
        """The name of the view that is shown."""
        return next((view.name for view in self.views() if view.screen == self.SCREEN), "")

    def views(self) -> tuple[TabView, ...]:
        """The views of the tab that there are rows for; none on a drilled screen."""
        if not self.SCREEN:
            return ()
        version = self.job.session.version if self.job is not None else None
        if self._views[0] != (version, self.view_name_asked()):
            found = tuple(view for view in views_on(keys.MODE_OF[self.MODE_KEY]) if self.has_view(view))
            self._views = ((version, self.view_name_asked()), found)
        return self._views[1]

    def view_name_asked(self) -> str:
        """The view that is asked for, which is offered whatever rows it has."""
        return ""

    def has_view(self, view: TabView) -> bool:
        """Whether a view is offered."""
        if not view.needs or self.job is None:
            return True
        from nsystui.exports import canonical

        return any(self.job.session.count(canonical.BY_NAME[name]) for name in view.needs)

    def show_view(self, name: str, **options: str) -> None:
        """Shows a view of this tab, here or on the screen that has it; ``options`` are those of its question."""
        view = next((one for one in views_on(keys.MODE_OF[self.MODE_KEY]) if one.name == name), None)
        if view is None or not self.is_active:
            return
        screen = self if view.screen == self.SCREEN else self.explorer.open_view(view)
        screen.take_view(name, **options)

    def take_view(self, name: str, **options: str) -> None:
        """Shows one of the views of this screen."""

    def choose(self, label: str, step: int) -> None:
        """Changes what can be chosen under a label to the next option, or the one before."""
        choice = next((one for one in self.choices() if one.label == label), None)
        if choice is None:
            self.say(_NO_CHOICE.get(label, "there is nothing to choose here"))
            return
        choice.choose((choice.chosen + step) % len(choice.options))
        if self.is_mounted:
            self.show_choices()

    def action_choose(self, label: str, step: int) -> None:
        self.choose(label, step)

    # -- going back here ------------------------------------------------------------------------------------------

    def state(self) -> ScreenState:
        """What going back restores."""
        values = {name: copy(getattr(self, name)) for name in self.STATE}
        cursors = {table: table.cursor_row for table in self.query(WindowTable)}
        return ScreenState(values, cursors, self.focused)

    def restore(self, state: ScreenState) -> None:
        """Shows again what was shown; the cursors follow when the rows are there."""
        for name, value in state.values.items():
            setattr(self, name, copy(value))
        self._places_back = state

    def _put_cursors_back(self) -> None:
        state = self._places_back
        if state is None or not self.question.is_settled:
            return
        self._places_back = None
        for table, row in state.cursors.items():
            table.move_to(row)
        if state.focused is not None and state.focused.is_attached and not self.prompt.is_open:
            self.set_focus(state.focused)

    # -- details of the cursor's place ----------------------------------------------------------------------------

    def cursor_moved(self) -> None:
        """Calls ``cursor_rests`` when no key follows: a held key must not send details over a slow line."""
        if self._rest_timer is not None:
            self._rest_timer.stop()
        self._rest_timer = self.set_timer(DETAIL_DELAY, self._rested)

    def _rested(self) -> None:
        self._rest_timer = None
        self.cursor_rests()

    def cursor_rests(self) -> None:
        """Fetches and shows the details of the cursor's place."""

    # -- other screens --------------------------------------------------------------------------------------------

    @property
    def is_drilled(self) -> bool:
        """Whether this screen lies over another one of its mode."""
        return len(self.app.screen_stack) > 1

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self.is_mounted and not self.is_covered  # before it is mounted an action has no widgets to act on

    def lay_over(self, screen: Screen[Other], then: Callable[[Other | None], None] | None = None) -> None:
        if self.is_active and isinstance(screen, JobScreen):
            self.explorer.remember()
        super().lay_over(screen, then)

    async def action_mode(self, name: str) -> None:
        await self.explorer.go_to_tab(name)

    async def action_timeline(self) -> None:
        """Opens the timeline on the event or time under the cursor."""
        if self.app.current_mode == "timeline" and not self.is_drilled:
            self.say("this is the timeline")
            return
        key, window = self.event_here(), self.time_here()
        if timeline := await self.explorer.go("timeline"):
            timeline.open_at(key, window)

    def action_nvtx_range(self) -> None:
        """Goes to the NVTX range around the event under the cursor."""
        from nsystui.questions.nvtx.around import Around, range_around
        from nsystui.ui.doors import show_range

        key, job = self.event_here(), self.job
        if key is None or job is None:
            self.say("w goes from a single event to the NVTX range around it: there is no such event here")
            return

        def found(around: Around) -> None:
            if around.key is None:
                self.say(around.reason)
            elif self.is_current and key == self.event_here():
                show_range(self.explorer, around.key)

        def ask() -> Around:
            return range_around(job.session, key, job.ranks)

        in_thread(self, "range", ask, found, lambda error: self.say(reason_of(error)))

    def event_here(self) -> EventKey | None:
        """The event under the cursor."""
        return None

    def time_here(self) -> Window | None:
        """The time of what is under the cursor."""
        return None

    async def action_back(self) -> None:
        if not await self.explorer.go_back():
            self.say("stopping…" if self.explorer.stop_loading() else "nothing to go back to: q quits")

    def action_resume(self) -> None:
        if not self.explorer.resume_loading():
            self.say("everything is loaded already")

    def action_quit(self) -> None:
        self.explorer.stop_loading()
        self.app.exit(return_code=0)

    def action_help(self) -> None:
        from nsystui.ui.screens.dialogs import HelpScreen

        self.lay_over(HelpScreen(self.places(), partial(key_name, app=self.app)))

    def action_palette(self) -> None:
        self.lay_over(screen_of("palette"))

    def open_question(self, question: Question) -> None:
        """Opens the table of a question, or its map, over this screen."""
        from nsystui.questions.queries.question import COMPARISON

        if not self.has_job():
            return
        if question.home != COMPARISON:
            self.lay_over(screen_of("recipe" if question.map is None else "recipe map", question))
            return
        groups = ", or ranks A -- B" if self.job is not None and len(self.job.ranks) > 1 else ""
        self.prompt.ask(f"compare with a path{groups}", "", self._comparison_with, self.lay_over)

    def _comparison_with(self, text: str) -> Screen[None]:
        """The comparison of the job with another one, or of two groups of its ranks; raises NsystuiError."""
        return screen_of("comparison", self.job, self.selection, self.explorer.source, text)  # type: ignore[no-any-return]

    def has_job(self) -> bool:
        """Whether a report is ready; if not, it says so."""
        if self.job is None:
            self.say("nothing is loaded yet")
        return self.job is not None

    # -- the selection --------------------------------------------------------------------------------------------

    def select_window(self, window: Window) -> None:
        """Selects this span of time on every screen."""
        self.explorer.select(self.selection.with_window(window))

    def action_filter(self) -> None:
        self.selection_prompts.names()

    def action_ranks(self) -> None:
        self.selection_prompts.ranks()

    def action_devices(self) -> None:
        self.selection_prompts.devices()

    def action_window(self) -> None:
        self.selection_prompts.window()

    # -- files and the clipboard ----------------------------------------------------------------------------------

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
        answer = self.answer_to_export()
        proposed = self.proposed_name(answer) if answer is not None else None
        if proposed is None:
            self.say("there is no table here to export")
        else:
            label = "export to" if self.drawing_to_export() is None else "export (.svg: the drawing) to"
            self.file_export.ask_for_name(label, proposed, self._check_format, self._writer)

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
        from nsystui.output.formats import row_for_clipboard

        copied = self.row_to_copy()
        if copied is None:
            self.say("there is no row here to copy")
            return
        self.app.copy_to_clipboard(row_for_clipboard(*copied))
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


def _write_drawing(draw: Callable[[], Drawing | None], path: Path, overwrite: bool) -> None:
    from nsystui.output.files import save_text
    from nsystui.output.svg import svg

    drawing = draw()
    if drawing is None:
        raise MissingDataError("there is nothing to draw here")
    save_text(svg(drawing), path, overwrite)


class Asker:
    """The question of a screen, asked in a thread: the newest one wins.

    While reports are being read it is asked once at a time, and then pauses twice as long as that took: sixty-four
    reports that become ready one after the other would otherwise start sixty-four questions, each of which takes time
    from the reading. A change of the selection or of the screen's own parameters is asked at once.
    """

    def __init__(self, screen: JobScreen) -> None:
        self._screen = screen
        self._asked: Token | None = None
        self._finished: Token | None = None  # answered or failed
        self._answered: Token | None = None
        self._began = 0.0
        self._next = 0.0
        self._later: Timer | None = None

    @property
    def is_settled(self) -> bool:
        """Whether the newest question is answered or has failed; also before there is any."""
        return self._asked == self._finished

    @property
    def has_ended(self) -> bool:
        """Whether there was a question, and the newest one is answered or has failed."""
        return self._finished is not None and self.is_settled

    @property
    def is_outdated(self) -> bool:
        """Whether the answer on the screen is to another question than the newest, which is computed or has failed."""
        return self._answered is not None and self._asked is not None and self._answered[1:] != self._asked[1:]

    def ask(self, job: OpenJob, token: Token) -> None:
        """Asks, unless ``token`` says that the answer would be the same; perhaps only after a pause."""
        if token == self._asked:
            return
        if self._is_too_early(token):
            if self._later is None:
                pause = max(_LEAST_PAUSE, self._next - time.monotonic())
                self._later = self._screen.set_timer(pause, self._ask_again)
            return
        self._asked = token
        self._began = time.monotonic()
        if self._finished is None:
            self._screen.set_timer(_PATIENCE, self._show_asking)
        screen, selection = self._screen, self._screen.selection

        def ask() -> tuple[Any, Sequence[RankedTask]]:
            ranks = job.ranks
            job.smart_names()  # so that they are at hand when the answer is shown
            return screen.ask(job, selection), ranks

        in_thread(screen, "question", ask, partial(self._arrived, token), partial(self._failed, token))

    def _is_too_early(self, token: Token) -> bool:
        """Whether only the data grew, and the last question has just been asked."""
        if not self._screen.explorer.loading_now or self._asked is None or self._asked[1:] != token[1:]:
            return False
        return not self.is_settled or time.monotonic() < self._next

    def _ask_again(self) -> None:
        self._later = None
        if self._screen.is_current:
            self._screen.job_changed()

    def _show_asking(self) -> None:
        if self._finished is None and self._screen.is_current:
            self._screen.show_asking()

    def _arrived(self, token: Token, found: tuple[Any, Sequence[RankedTask]]) -> None:
        if token != self._asked:
            return  # a newer question is on its way
        before = self._finished
        self._answered = token
        self._finish(token)
        same_place = before is not None and before[1:] == token[1:]
        self._screen.show_answer(*found, same_place)

    def _failed(self, token: Token, error: Exception) -> None:
        if token == self._asked:
            self._finish(token)
            reason = reason_of(error)
            self._screen.say(reason if isinstance(error, NsystuiError) else f"this could not be computed: {reason}")

    def _finish(self, token: Token) -> None:
        now = time.monotonic()
        self._finished = token
        self._next = now + max(_LEAST_PAUSE, _PAUSE * (now - self._began))


class FileExport:
    """Writes the export of a screen to a file whose name the user types; never over a file without asking."""

    def __init__(self, screen: JobScreen) -> None:
        self._screen = screen

    def ask_for_name(
        self,
        label: str,
        proposed: str,
        check: Callable[[str], object],
        writer: Callable[[Path], tuple[str, Writer] | None],
    ) -> None:
        """Asks for the name of a file and writes it.

        ``check`` raises NsystuiError for a name that will not do. ``writer`` gives the contents in words and the
        function that writes them, or ``None`` where there is nothing to write any more.
        """

        def named(text: str) -> Path:
            check(text)
            return Path(text).expanduser()

        def write(path: Path) -> None:
            found = writer(path)
            if found is not None:
                self._write(path, *found, overwrite=False)

        self._screen.prompt.ask(label, proposed, named, write)

    def _write(self, path: Path, contents: str, writer: Writer, overwrite: bool) -> None:
        from nsystui.output.files import TargetExistsError

        screen = self._screen
        screen.say(f"writing {contents} to {path}…")

        def failed(error: Exception) -> None:
            if isinstance(error, TargetExistsError):
                screen.prompt.ask(f"{path} exists: overwrite? y/n", "", str, answered)
            else:
                screen.say(f"not written: {reason_of(error)}")

        def answered(text: str) -> None:
            if text.strip().lower() in ("y", "yes"):
                self._write(path, contents, writer, overwrite=True)
            else:
                screen.say("not written")

        def finished(rows: int | None) -> None:
            screen.say(f"wrote {contents if rows is None else f'{rows:,} rows'} to {path}")

        in_thread(screen, "export", partial(writer, path, overwrite), finished, failed, exclusive=False)


class SelectionPrompts:
    """The prompts for the selection that all screens share: names, ranks, devices and time."""

    def __init__(self, screen: JobScreen) -> None:
        self._screen = screen

    def names(self) -> None:
        name = self._screen.selection.name
        self._ask("find", name.text if name else "", lambda text: self._screen.selection.with_name(text))

    def ranks(self) -> None:
        screen = self._screen
        if screen.has_job() and screen.job is not None:
            chosen = screen.selection.tasks
            ranks = () if chosen is None else [item.rank for item in screen.job.ranks if item.task in chosen]
            self._ask("ranks", spans(ranks), self._with_ranks)

    def devices(self) -> None:
        self._ask("devices", spans(self._screen.selection.devices or ()), self._with_devices)

    def window(self) -> None:
        from nsystui.base.selection import window_words

        if self._screen.has_job():
            window = self._screen.selection.window
            self._screen.prompt.ask(
                "time",
                f"{_seconds(window.start)}:{_seconds(window.end)}" if window else "",
                self._with_window,
                self._screen.explorer.select,
                lambda selection: window_words(selection.window) if selection.window else "all time",
                replaced=True,
            )

    def _ask(self, label: str, value: str, parse: Callable[[str], Selection]) -> None:
        self._screen.prompt.ask(label, value, parse, self._screen.explorer.select, replaced=True)

    def _with_ranks(self, text: str) -> Selection:
        from nsystui.base.selection import parse_numbers

        job, selection = self._screen.job, self._screen.selection
        assert job is not None
        return selection.with_tasks(job.tasks_of_ranks(parse_numbers(text, "ranks")) if text.strip() else None)

    def _with_devices(self, text: str) -> Selection:
        from dataclasses import replace

        from nsystui.base.selection import parse_numbers

        job, devices = self._screen.job, parse_numbers(text, "devices") if text.strip() else None
        if job is not None and devices is not None and (unknown := devices - (there := job.devices)):
            known = f"the devices are {spans(there)}" if there else "no GPU work was recorded"
            raise UsageError(f"device {min(unknown)} is not there: {known}")
        return replace(self._screen.selection, devices=devices)

    def _with_window(self, text: str) -> Selection:
        job, selection = self._screen.job, self._screen.selection
        assert job is not None
        if not text.strip():
            return selection.with_window(None)
        return selection.with_window(job.window(text))


def _seconds(time: int) -> str:
    """``0.5s``, exactly."""
    return f"{Decimal(time).scaleb(-9).normalize():f}s"
