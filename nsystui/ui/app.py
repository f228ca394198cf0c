"""The application: the screens by their keys, one selection for all of them, and the loading behind them.

What is imported here is imported before the first window is painted: Textual and nothing heavier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import on, work
from textual.app import App
from textual.binding import Binding, BindingType
from textual.driver import Driver
from textual.message import Message
from textual.screen import Screen

from nsystui.base.selection import Selection
from nsystui.base.text import safe_text
from nsystui.questions.opening import Source
from nsystui.questions.question import SCREENS
from nsystui.ui.ascii import draw_in_ascii
from nsystui.ui.loading import (
    Advanced,
    Computing,
    ExportFailed,
    ExportOpened,
    JobStarted,
    Loading,
    LoadingEnded,
    LogLoading,
    LogRead,
    LogState,
    ReportReady,
    SampleTaken,
    Warned,
)
from nsystui.ui.screens import screen_of
from nsystui.ui.widgets.lines import progress_bar

if TYPE_CHECKING:
    from nsystui.base.answer import Answer
    from nsystui.questions.alignment import ClockMode
    from nsystui.questions.compare import Options
    from nsystui.questions.compare.side import Side
    from nsystui.questions.job import Job
    from nsystui.store.opened import Opened
    from nsystui.store.packed_job import JobReport
    from nsystui.store.session import Computation


@dataclass(frozen=True)
class Look:
    """How to draw: no colours, only the terminal's 16, only ASCII, on a light page."""

    no_color: bool = False
    few_colors: bool = False
    ascii_only: bool = False
    light: bool = False


@dataclass(frozen=True)
class WayBack:
    """The screen and the selection from which the timeline was opened."""

    mode: str
    selection: Selection


@dataclass
class FileState:
    """How far one export is: ``opened`` once checked, ``rows`` of ``total`` while packing, then ready or failed."""

    path: Path
    opened: Opened | JobReport | None = None
    rows: int = 0
    total: int = 0
    ready: bool = False
    failure: str = ""


class NsystuiApp(App[int]):
    """The screens of nsystui over one job.

    Its return code is the exit status; with 2, ``reasons`` are for the terminal that stays, and so is a ``failure``.
    ``selection`` is what every screen shows; ``select`` and ``undo_selection`` change it.
    """

    ENABLE_COMMAND_PALETTE = False
    TITLE = "nsystui"
    MODES: ClassVar[dict[str, object]] = {  # type: ignore[assignment]
        name: (lambda name=name: screen_of(name)) for name in SCREENS
    }
    DEFAULT_MODE = "overview"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+z", "suspend_process", show=False, priority=True)]
    CSS = """
    Screen { layers: base prompt; }
    """

    def __init__(self, source: Source, look: Look = Look()) -> None:
        super().__init__(ansi_color=True if look.no_color else None)
        self.animation_level = "none"
        kind = "ansi" if look.no_color or look.few_colors else "textual"
        self.theme = f"{kind}-{'light' if look.light and not look.no_color else 'dark'}"
        if look.ascii_only:
            draw_in_ascii(self)
        self.source = source
        self.job: Job | None = None
        self.selection = Selection()
        self.files: dict[Path, FileState] = {}
        self.sample: Answer | None = None
        self.loading_now = True
        self.reasons: list[str] = []
        self._paths: tuple[Path, ...] = ()
        self._history: list[Selection] = []
        self.way_back: WayBack | None = None
        self._loading: Loading | None = None
        self.nccl_log = LogState(source.logs)
        self.working: Computation | None = None
        self._log_loading: LogLoading | None = None

    def get_driver_class(self) -> type[Driver]:
        from nsystui.ui.driver import TerminalDriver

        return TerminalDriver

    @property
    def failure(self) -> Exception | None:
        """The error of the program that ended it, for the terminal that stays."""
        return self._exception

    def _handle_exception(self, error: Exception) -> None:
        """Ends after an unhandled error. A screen that is being closed may lack widgets, which is no error."""
        if not self._exit:
            super()._handle_exception(error)

    def _fatal_error(self) -> None:
        """Ends; Textual's own also paints a screenful of the error on the terminal."""
        self._close_messages_no_wait()

    def on_mount(self) -> None:
        self.call_after_refresh(self._begin)

    def on_unmount(self) -> None:
        """However the program ends: the threads that read exports must not keep it alive."""
        self.stop_loading()

    def _begin(self) -> None:
        self._loading = Loading(self.source, self.post_message)
        self._load(self._loading)

    @work(thread=True, group="loading", exit_on_error=False)
    def _load(self, loading: Loading) -> None:
        loading.start()

    @work(thread=True, group="loading", exit_on_error=False)
    def _load_rest(self, loading: Loading, job: Job, rest: list[tuple[int, Path]]) -> None:
        loading.go_on(job, rest)

    @work(thread=True, group="log", exit_on_error=False)
    def _read_log(self, loading: LogLoading) -> None:
        loading.start()

    def copy_to_clipboard(self, text: str) -> None:
        """Copies ``text`` without control characters that a terminal would execute, but for tabs and line ends."""
        lines = ("\t".join(map(safe_text, line.split("\t"))) for line in text.split("\n"))
        super().copy_to_clipboard("\n".join(lines))

    # -- the selection --------------------------------------------------------------------------------------------

    def select(self, selection: Selection) -> None:
        """Changes the selection of every screen; `undo_selection` restores the previous one."""
        if selection != self.selection:
            self._history.append(self.selection)
            self.selection = selection
            self.update_screen()

    def undo_selection(self) -> bool:
        """Restores the previous selection; ``False`` where there is none."""
        if not self._history:
            return False
        self.selection = self._history.pop()
        self.update_screen()
        return True

    def remember_way(self) -> None:
        """Remembers the current screen and selection, to which the timeline returns."""
        self.way_back = WayBack(self.current_mode, self.selection)

    def stop_loading(self) -> bool:
        """Stops the reading of exports and logs; ``False`` where nothing is being read."""
        is_reading_log = self.stop_log()
        if self._loading is None or not self.loading_now:
            return is_reading_log
        self._loading.stop()
        return True

    def stop_log(self) -> bool:
        """Stops the reading of the logs; ``False`` where none is being read."""
        if self._log_loading is None or not self._is_reading_log:
            return False
        self._log_loading.stop()
        return True

    def read_log(self, again: bool = True) -> bool:
        """Reads the logs from their start; ``False`` where there are none, or they are being read.

        Unless ``again``, also where they were read before.
        """
        if not self.source.logs or self._is_reading_log or not (again or self._log_loading is None):
            return False
        self._log_loading = LogLoading(self.source.logs, self.post_message)
        self.nccl_log = self._log_loading.state
        self._read_log(self._log_loading)
        return True

    @property
    def _is_reading_log(self) -> bool:
        return self._log_loading is not None and not self.nccl_log.is_over

    def next_clock(self) -> ClockMode:
        """Aligns the reports by the next clock mode, in the background; returns that mode."""
        from nsystui.questions.alignment import ClockMode

        assert self.job is not None
        modes = list(ClockMode)
        alignment = self.job.alignment
        mode = modes[(modes.index(alignment.mode) + 1) % len(modes)] if alignment is not None else modes[0]
        self._align(self.job, mode)
        return mode

    @work(thread=True, group="clock", exit_on_error=False, exclusive=True)
    def _align(self, job: Job, mode: ClockMode) -> None:
        from nsystui.base.errors import NsystuiError

        try:
            job.align(mode)
        except NsystuiError as error:
            self.call_from_thread(self.say, str(error))
        else:
            self.call_from_thread(self.update_screen)

    def resume_loading(self) -> bool:
        """Resumes loading the exports that a stop left out; ``False`` where there are none."""
        rest = [
            (number, path)
            for number, path in enumerate(self._paths)
            if not self.files[path].ready and not self.files[path].failure
        ]
        if self.loading_now or self.job is None or not rest:
            return False
        self.loading_now = True
        self._loading = Loading(self.source, self.post_message)
        self._load_rest(self._loading, self.job, rest)
        return True

    # -- the messages of the loading ------------------------------------------------------------------------------

    @on(JobStarted)
    def _job_started(self, message: JobStarted) -> None:
        self.job = message.job
        self._paths = message.paths
        self.files = {path: FileState(path) for path in message.paths}
        self.update_screen()

    def _state(self, path: Path) -> FileState:
        return self.files.setdefault(path, FileState(path))

    @on(ExportOpened)
    def _export_opened(self, message: ExportOpened) -> None:
        state = self._state(message.path)
        state.opened, state.total = message.opened, message.opened.rows
        self.update_screen()

    @on(SampleTaken)
    def _sample_taken(self, message: SampleTaken) -> None:
        self.sample = message.answer
        self.update_screen()

    @on(Advanced)
    def _advanced(self, message: Advanced) -> None:
        state = self._state(message.path)
        state.rows, state.total = message.rows, message.total
        self.update_status()

    @on(ReportReady)
    def _report_ready(self, message: ReportReady) -> None:
        self._state(message.path).ready = True
        self.update_status()
        self.update_screen()

    @on(ExportFailed)
    def _export_failed(self, message: ExportFailed) -> None:
        self._state(message.path).failure = message.reason
        self.update_screen()
        self.say(f"{message.path.name}: {message.reason}")

    @on(LoadingEnded)
    def _loading_ended(self, message: LoadingEnded) -> None:
        self.loading_now = False
        self.update_status()
        self.update_screen()
        if message.cancelled:
            self.say("stopped loading: R resumes")
            return
        if not any(state.ready for state in self.files.values()):
            self._leave_with_reasons()
            return
        # Only now: reading a log is work for Python, of which the screens of the exports need their share.
        self.read_log(again=False)

    @on(Warned)
    def _warned(self, message: Warned) -> None:
        self.say(message.text)

    @on(Computing)
    def _computing(self, message: Computing) -> None:
        self.working = message.working
        self.update_status()

    @on(LogRead)
    def _log_read(self, message: LogRead) -> None:
        self.nccl_log = message.state
        self.update_status()
        self._tell("log_changed")
        if self.nccl_log.is_over and self.nccl_log.failed:
            self.say(self.nccl_log.failed)
        if self.nccl_log.is_over and not self.nccl_log.is_stopped and self.job is not None:
            self._align_log(self.job)

    @work(thread=True, group="log", exit_on_error=False)
    def _align_log(self, job: Job) -> None:
        """Message sizes that the exports lack come from the log."""
        from nsystui.base.errors import NsystuiError
        from nsystui.questions.nccl.from_log import read_log

        try:
            job.nccl_log = read_log(self.source.logs, job.ranks)
        except NsystuiError as error:
            self.call_from_thread(self.say, str(error))
        else:
            self.call_from_thread(self.update_screen)

    def _leave_with_reasons(self) -> None:
        """No export could be opened: the reasons belong on the terminal that stays, not on a screen that goes."""
        self.reasons = [f"{state.path}: {state.failure}" for state in self.files.values()] or ["no files"]
        self.exit(return_code=2)

    @property
    def status(self) -> str:
        """The progress of the loading, for the second line of every screen; empty when nothing is being loaded."""
        if not self.loading_now:
            log = self.nccl_log.status if self._is_reading_log else ""
            return f"computing {self.working}" if self.working is not None else log
        ready = sum(state.ready for state in self.files.values())
        rows = sum(state.total if state.ready else state.rows for state in self.files.values())
        total = sum(state.total for state in self.files.values())
        if not total:
            return f"opening {len(self.files) or ''} files…" if len(self.files) != 1 else "opening…"
        bar = progress_bar(rows / total if total else 0.0)
        return f"loading {ready} of {len(self.files)}  {bar}  {rows:,} rows"

    def update_status(self) -> None:
        self._tell("show_status", self.status)

    def update_screen(self) -> None:
        self._tell("job_changed")

    def say(self, text: str) -> None:
        self._tell("say", text)

    def _tell(self, what: str, *words: str) -> None:
        """Calls a method of the screen, if it has one of that name; before it is mounted it needs no update."""
        screen: Screen[object] = self.screen
        if screen.is_mounted and hasattr(screen, what):
            getattr(screen, what)(*words)


_FAILED = 2


class DiffApp(NsystuiApp):
    """Reads one job or two, one after the other, and then shows how its two sides differ.

    ``sides_of`` makes the sides of the jobs when these are read, in a thread; what it raises ends the application, and
    so does a job of which nothing could be read: its reason belongs on the terminal that stays. An interrupted reading
    compares nothing: half a job would differ from itself.
    """

    MODES: ClassVar[dict[str, object]] = {**NsystuiApp.MODES, "diff": lambda: screen_of("diff")}
    DEFAULT_MODE = "diff"

    def __init__(
        self,
        sources: Sequence[Source],
        sides_of: Callable[[Sequence[Job]], tuple[Side, Side]],
        options: Options,
        look: Look,
    ) -> None:
        super().__init__(sources[0], look)
        self.sources = sources
        self.sides: tuple[Side, Side] | None = None
        self.options = options
        self._sides_of = sides_of
        self._reading = 0
        self._shown: tuple[str, Side] | None = None
        self._jobs: dict[int, Job] = {}

    def _begin(self) -> None:
        self._read(0)

    def _read(self, number: int) -> None:
        """Begins to read one of the jobs."""
        self._reading = number
        self.loading_now = True
        self._loading = Loading(self.sources[number], partial(self._post, number))
        self._load(self._loading)

    def _post(self, number: int, message: Message) -> None:
        """From the thread of the reading: the beginning and the end of a job are this application's own."""
        if isinstance(message, JobStarted):
            self.call_later(self._started, number, message.job, message.paths)
        elif isinstance(message, LoadingEnded):
            self.call_later(self._ended, number, message.cancelled)
        elif not isinstance(message, SampleTaken):
            self.post_message(message)

    def _started(self, number: int, job: Job, paths: tuple[Path, ...]) -> None:
        self._jobs[number] = job
        for path in paths:
            self._state(path).ready = False
        self.update_screen()

    def _ended(self, number: int, cancelled: bool) -> None:
        self.loading_now = False
        self.update_status()
        if cancelled:
            self.say("stopped: R reads on, q quits")
        elif number not in self._jobs or not self._jobs[number].session.reports:
            self._leave_with_reasons()
        elif number + 1 < len(self.sources):
            self._read(number + 1)
        else:
            self._make_sides([self._jobs[place] for place in sorted(self._jobs)])

    @work(thread=True, group="sides", exit_on_error=False)
    def _make_sides(self, jobs: Sequence[Job]) -> None:
        from nsystui.base.errors import NsystuiError

        try:
            sides = self._sides_of(jobs)
        except NsystuiError as error:
            self.call_from_thread(self._leave, str(error))
        else:
            self.call_from_thread(self._compare, sides)

    def _leave(self, reason: str) -> None:
        self.reasons = [reason]
        self.exit(return_code=_FAILED)

    def _compare(self, sides: tuple[Side, Side]) -> None:
        self.sides = sides
        self.update_screen()

    async def open_side(self, side: Side, letter: str) -> None:
        """Makes the screens those of one side; screens of the other one are closed, with what they show."""
        if self._shown == (letter, side):
            return
        self._shown = letter, side
        for mode in set(SCREENS) & set(self._screen_stacks):
            await self.remove_mode(mode)
            self.add_mode(mode, type(self).MODES[mode])  # type: ignore[arg-type]
        self.job, self.selection = side.job, side.selection
        self._history.clear()

    def undo_selection(self) -> bool:
        """Restores the previous selection; without one, goes back to the comparison."""
        if self.current_mode != "diff" and not self._history:
            self.call_later(self.switch_mode, "diff")
            return True
        return super().undo_selection()

    def resume_loading(self) -> bool:
        """Resumes the reading that a stop interrupted: ready reports come from the cache, or are read again."""
        if self.loading_now or self.sides is not None:
            return False
        self._read(self._reading)
        return True

    @property
    def status(self) -> str:
        """The progress of the reading, and of which side."""
        words = super().status
        if self.sides is not None and self._shown is not None and self.current_mode != "diff":
            return f"{self._shown[0]}: {self._shown[1].label}"
        return f"{'AB'[self._reading]}: {words}" if words and len(self.sources) > 1 else words


class LogApp(NsystuiApp):
    """The log view. Its ``source`` has no files but ``logs``."""

    MODES: ClassVar[dict[str, object]] = {"nccl_log": lambda: screen_of("nccl_log")}
    DEFAULT_MODE = "nccl_log"

    def _begin(self) -> None:
        self.loading_now = False
        self.read_log()

    @on(LogRead)
    def _leave_without_logs(self, message: LogRead) -> None:
        """No log could be opened: the reasons belong on the terminal that stays."""
        state = message.state
        if state.is_over and len(state.failures) == len(state.names) and not state.lines:
            self.reasons = list(state.failures)
            self.exit(return_code=2)
