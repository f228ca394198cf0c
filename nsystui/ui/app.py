"""The application: its screens and keys, their shared selection, and the loading.

Imports nothing heavier than Textual: imports precede the first painted window.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import to_thread
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events, work
from textual.app import App
from textual.binding import Binding, BindingType
from textual.driver import Driver
from textual.screen import Screen

from nsystui.base.errors import ExportError, NsystuiError, reason_of
from nsystui.base.selection import Selection
from nsystui.base.text import safe_text
from nsystui.questions.job.opening import JobSource
from nsystui.questions.queries.question import SCREENS, View
from nsystui.ui import keys
from nsystui.ui.loading import KeptOverview, KernelsSeen, Loading, LoadingListener, LogLoading, LogState, kept_overview
from nsystui.ui.page import AsciiFilter, OwnPage, register_themes
from nsystui.ui.screens import screen_of, views_on
from nsystui.ui.widgets.frame import UPDATE_INTERVAL, progress_bar
from nsystui.ui.widgets.repainting import in_background, in_own_task

if TYPE_CHECKING:
    from textual.timer import Timer

    from nsystui.exports.metadata import Opened
    from nsystui.questions.collectives.alignment import ClockMode
    from nsystui.questions.job.job import OpenJob
    from nsystui.questions.triage.run import Triage
    from nsystui.store.packed_job import JobReport
    from nsystui.store.packing import Progress
    from nsystui.store.report import Report
    from nsystui.store.session import Computation


@dataclass(frozen=True)
class Look:
    """Drawing options: without colours, with only the terminal's 16 colours, or only in ASCII.

    ``light`` is the user's choice of a theme, which ``remember`` saves; ``is_page_light`` is the environment's hint.
    """

    no_color: bool = False
    few_colors: bool = False
    ascii_only: bool = False
    light: bool | None = None
    is_page_light: bool | None = None
    remember: Callable[[str], None] = lambda _: None


@dataclass
class FileState:
    """Progress of an export, which is checked (``opened``), packed (``rows`` of ``total``), then ready or failed."""

    path: Path
    opened: Opened | JobReport | None = None
    rows: int = 0
    total: int = 0
    ready: bool = False
    failure: str = ""


@dataclass(frozen=True)
class HistoryStep:
    """The mode, the selection, and the screens of the mode with their states, before a step."""

    mode: str
    selection: Selection
    screens: tuple[tuple[Screen[Any], Any], ...]


_MAX_STEPS = 100
"""Steps that can be undone: their screens stay alive."""


class NsystuiApp(App[int], LoadingListener):
    """The screens of nsystui for one job, which all show ``selection``; for logs without exports, only their screen.

    The return code is the exit status. After the screens close, the terminal shows a ``failure``, or the ``reasons``
    for status 2. ``select``, ``go`` and ``go_to_tab`` are steps; ``go_back`` undoes the last step.
    """

    ENABLE_COMMAND_PALETTE = False
    TITLE = "nsystui"
    MODES: ClassVar[dict[str, object]] = {  # type: ignore[assignment]
        name: (lambda name=name: screen_of(name)) for name in SCREENS
    }
    DEFAULT_MODE = "overview"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+z", "suspend_process", show=False, priority=True)]
    CSS_PATH = Path(__file__).with_name("nsystui.tcss")

    def __init__(self, source: JobSource, look: Look = Look()) -> None:
        if not source.files:  # logs alone
            self.MODES, self.DEFAULT_MODE = {"nccl_log": lambda: screen_of("nccl_log")}, "nccl_log"  # type: ignore[misc]
        super().__init__(ansi_color=True if look.no_color else None)
        self.animation_level = "none"
        self._look = look
        self._light, self._is_page_light, self._page_filter = look.light, look.is_page_light, OwnPage()
        self._filters.append(self._page_filter)
        register_themes(self)
        self._use_theme()
        if look.ascii_only:
            self._filters.append(AsciiFilter())
        self.source = source
        self.sources = [source]
        self.other_files: tuple[str, ...] = ()
        self.job: OpenJob | None = None
        self.selection = Selection()
        self.files: dict[Path, FileState] = {}
        self.kept: KeptOverview | None = None
        self.seen = KernelsSeen()
        self.triage: Triage | None = None
        self.loading_now = True
        self.reasons: list[str] = []
        self._steps: list[HistoryStep] = []
        self._loading: Loading | None = None
        self.nccl_log = LogState(source.logs)
        self.working: Computation | None = None
        self._updated = -UPDATE_INTERVAL
        self._update: Timer | None = None
        self._log_loading: LogLoading | None = None
        self._typed: list[events.Event] = []
        self._may_act = asyncio.Event()
        self._reports_waiting = False

    def page_is(self, light: bool) -> None:
        """Use the colours for a light or dark terminal, unless the user chose a theme."""
        self._is_page_light = light
        self._use_theme()

    def choose_theme(self, light: bool | None) -> None:
        """Use a theme and remember it; ``None`` follows the terminal's background."""
        self._light = light
        self._use_theme()
        self.refresh_css(animate=False)
        try:
            self._look.remember("" if light is None else "light" if light else "dark")
        except (OSError, NsystuiError) as error:
            self.say(f"the theme could not be saved: {reason_of(error)}")

    def _use_theme(self) -> None:
        self.asks_page = self._page_filter.enabled = self._light is None and not self._look.no_color
        page = {True: "light", False: "dark", None: "unknown"}[
            self._is_page_light if self._light is None else self._light
        ]
        self.theme = f"ansi-{page}" if self._look.no_color or self._look.few_colors else f"textual-{page}"

    def get_driver_class(self) -> type[Driver]:
        """Return the driver that handles job control and the loss of the terminal."""
        from nsystui.ui.driver import TerminalDriver

        return TerminalDriver

    @property
    def failure(self) -> Exception | None:
        """The unhandled error that ended the program."""
        return self._exception

    def _handle_exception(self, error: Exception) -> None:
        """End after an unhandled error; ignore errors while closing: screens may lack widgets."""
        if not self._exit:
            super()._handle_exception(error)

    def _fatal_error(self) -> None:
        """End without the full-screen traceback that Textual would print."""
        self._close_messages_no_wait()

    def on_mount(self) -> None:
        """Begin to load after the first window is painted."""
        self._act()
        self.call_after_refresh(self._begin)

    def on_unmount(self) -> None:
        """Stop the reading threads, which would keep the program alive."""
        self.stop_loading()

    @in_background("kept")
    async def _begin(self) -> None:
        """Show the files' saved overview before opening them, which imports much more; read logs that are alone."""
        if not self.source.files:
            self.loading_now = False
            self.read_log()
            return
        with suppress(NsystuiError):
            self.kept = await to_thread(kept_overview, self.source)
        if (overview := self.kept) is not None:
            self.seen = KernelsSeen(overview.kernels, overview.names, is_exact=True)
            self.update_screen()
        self.call_after_refresh(self._load, self.source)

    @in_background("loading", exclusive=False)
    async def _load(self, source: JobSource) -> None:
        self._loading = loading = Loading(source, self)
        try:
            await to_thread(loading.start)
        except NsystuiError as error:  # concerns all files, such as a missing Dask cluster
            self._leave(str(error))

    async def on_event(self, event: events.Event) -> None:
        """Queue keys, clicks and pastes for `_act`, except keys that act at once; a click drops waiting keys."""
        acts_at_once = isinstance(event, events.Key) and event.key in ("ctrl+c", "ctrl+q", "ctrl+z")
        if not isinstance(event, events.InputEvent | events.Paste) or event.is_forwarded or acts_at_once:
            await super().on_event(event)
            return
        if isinstance(event, events.MouseDown) and self._keeps_keys:
            self._typed.clear()
        if len(self._typed) < keys.TYPED_AHEAD:
            self._typed.append(event)
            self.take_keys()

    def take_keys(self) -> None:
        """Wake `_act`, because keys that waited for an answer may act now."""
        self._may_act.set()

    @property
    def _keeps_keys(self) -> bool:
        """Return whether the next key waits for an answer."""
        keeps, event = getattr(self.screen, "keeps", None), self._typed[0] if self._typed else None
        return keeps is not None and isinstance(event, events.Key) and keeps(event.key)

    @work
    async def _act(self) -> None:
        while await self._may_act.wait():
            self._may_act.clear()
            names = [event.key if isinstance(event, events.Key) else "" for event in self._typed]
            end = next((number for number, name in enumerate(names) if name in ("escape", "q")), 0)
            if end and self._keeps_keys:
                del self._typed[: end + (names[end] == "escape")]
                self.say("waiting keys dropped")
            if self._keeps_keys:
                self.set_timer(0.3, partial(self._report_waiting, names))  # a shorter wait needs no message
            elif self._typed:
                if self._reports_waiting:
                    self._reports_waiting = False
                    self.say("")
                await super().on_event(self._typed.pop(0))
                # A key becomes an action, then a table's message, then a call in the screen: three rounds of messages.
                for _ in range(3):
                    for widget in (self.focused or self.screen).ancestors_with_self:
                        has_begun = asyncio.Event()
                        if widget.call_later(has_begun.set):
                            await has_begun.wait()
                self.take_keys()

    def _report_waiting(self, names: Sequence[str]) -> None:
        if self._keeps_keys and len(names) == len(self._typed):
            self._reports_waiting = True
            waiting = " ".join(map(keys.shown_key, filter(None, names)))
            self.say(f"one moment: {waiting} {'act' if len(names) > 1 else 'acts'} when this is computed")

    def copy_to_clipboard(self, text: str) -> None:
        """Copy ``text`` without control characters, except tabs and line ends."""
        lines = ("\t".join(map(safe_text, line.split("\t"))) for line in text.split("\n"))
        super().copy_to_clipboard("\n".join(lines))

    def select(self, selection: Selection) -> None:
        if selection != self.selection:
            self.remember()
            self.selection = selection
            self.update_screen()

    async def go(self, mode: str, selection: Selection | None = None, view: str = "", **options: str) -> Any:
        """Switch to a mode in one step, with a new selection and view if given.

        ``options`` belong to the view's question. Return the screen, or ``None`` if a key switched to another mode
        meanwhile.
        """
        self.remember()
        if selection is not None:
            self.selection = selection
        await self.switch_mode(mode)
        if self.current_mode != mode:
            return None
        self._show_screens(self.screen_stack[:1])
        if view:
            self.screen.show_view(view, **options)  # type: ignore[attr-defined]
        self.update_screen()
        return self.screen

    async def go_to_tab(self, mode: str) -> None:
        """Switch to a mode as it was left; in the current mode, return to the first view."""
        self.remember()
        if mode != self.current_mode:
            await self.switch_mode(mode)
            return
        self._show_screens(self.screen_stack[:1])
        if views := views_on(mode):
            self.screen.show_view(views[0].name)  # type: ignore[attr-defined]

    def open_view(self, view: View) -> Any:
        """Replace the current screen by another view of this tab, and return it."""
        root = self.screen_stack[0]
        screen = root if view.screen == self.current_mode else screen_of(view.screen)
        self._show_screens([root] if screen is root else [root, screen])
        return screen

    def remember(self) -> None:
        """Add the current screens and selection to the history, before a step."""
        shown = [screen for screen in self.screen_stack if hasattr(screen, "state")]
        states = tuple((screen, screen.state()) for screen in shown)
        self._steps.append(HistoryStep(self.current_mode, self.selection, states))
        if len(self._steps) > _MAX_STEPS:
            for screen, _ in self._steps.pop(0).screens:
                if self._is_closed(screen) and not self.is_screen_installed(screen):
                    screen.remove()

    def _is_closed(self, screen: Screen[Any]) -> bool:
        return all(screen not in stack for stack in self._screen_stacks.values())

    async def go_back(self) -> bool:
        """Undo the last step; return whether there was a step."""
        if not self._steps:
            return False
        step = self._steps.pop()
        self.selection = step.selection
        if step.mode != self.current_mode:
            await self.switch_mode(step.mode)
        self._show_screens([screen for screen, _ in step.screens])
        for screen, state in step.screens:
            screen.restore(state)  # type: ignore[attr-defined]
        self.update_screen()
        return True

    def _show_screens(self, screens: Sequence[Screen[Any]]) -> None:
        shown = list(self.screen_stack)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], zip(shown, screens, strict=False)))
        for _ in shown[shared:]:
            self.pop_screen()
        for screen in screens[shared:]:
            self.push_screen(screen)

    def is_screen_installed(self, screen: Screen[Any] | str) -> bool:
        """Return whether going back may reopen a closed screen, which Textual must keep."""
        is_kept = any(screen is kept for step in self._steps for kept, _ in step.screens)
        return is_kept or super().is_screen_installed(screen)

    async def _forget_steps(self) -> None:
        """Forget all steps, and end the screens that only the history keeps."""
        while self._steps:
            for screen, _ in self._steps.pop().screens:
                if screen.is_running and self._is_closed(screen):
                    await self._prune(screen)

    async def _close_all(self) -> None:
        """End the screens in the history, too: Textual does not know them."""
        await self._forget_steps()
        await super()._close_all()

    def stop_loading(self) -> bool:
        """Stop reading exports and logs; return whether any was being read."""
        log = self._log_loading if self._is_reading_log else None
        if log is not None:
            log.stop()
        if self._loading is None or not self.loading_now:
            return log is not None
        self._loading.stop()
        return True

    def hold_loading(self, is_asking: bool) -> None:
        """Pause the opening of a packed job while a screen asks its first question."""
        if self._loading is not None:
            self._loading.hold(is_asking)

    def read_log(self, again: bool = True) -> bool:
        """Begin to read the logs from their start, unless they are being read; return whether it began.

        Without ``again``, never read the logs a second time.
        """
        if not self.source.logs or self._is_reading_log or not (again or self._log_loading is None):
            return False
        self._log_loading = LogLoading(self.source.logs, self.log_read, self.source.log_steps)
        self.nccl_log = self._log_loading.state
        self.run_worker(self._log_loading.start, thread=True, group="log", exit_on_error=False)
        return True

    @property
    def _is_reading_log(self) -> bool:
        return self._log_loading is not None and not self.nccl_log.is_over

    def next_clock(self) -> ClockMode:
        """Align the reports by the next clock mode, in the background, and return the mode."""
        from nsystui.questions.collectives.alignment import ClockMode

        assert self.job is not None
        modes = list(ClockMode)
        alignment = self.job.alignment
        mode = modes[(modes.index(alignment.mode) + 1) % len(modes)] if alignment is not None else modes[0]
        self._align(partial(self.job.align, mode))
        return mode

    @in_background("align", exclusive=False)
    async def _align(self, align: Callable[[], object]) -> None:
        await to_thread(align)
        self.update_screen()

    @in_background("anchor")
    async def next_anchor(self) -> None:
        """Find the steps on all screens by the next anchor, in the background."""
        assert self.job is not None
        anchor = await to_thread(self.job.next_steps_by)
        self.say(f"steps by: {anchor or 'the usual anchor'}")
        if (window := self.selection.window) is not None:  # other steps have other numbers
            self.selection = self.selection.with_window(replace(window, step=None, spans=()))
        self.update_screen()

    def resume_loading(self) -> bool:
        """Resume loading exports that a stop left out; return whether there are any."""
        states = enumerate(self.files.values())
        unread = [(number, state.path) for number, state in states if not (state.ready or state.failure)]
        if self.loading_now or self.job is None or not unread:
            return False
        self.loading_now = True
        self._loading = Loading(self.source, self)
        go_on = partial(self._loading.go_on, self.job, unread)
        self.run_worker(go_on, group="loading", description="loading", thread=True, exit_on_error=False)
        return True

    @in_own_task
    def job_started(self, job: OpenJob, paths: tuple[Path, ...]) -> None:
        self.job = job
        self.files = {path: FileState(path) for path in paths}
        self.update_screen()

    def _state(self, path: Path) -> FileState:
        return self.files.setdefault(path, FileState(path))

    @in_own_task
    def opened(self, path: Path, opened: Opened | JobReport) -> None:
        state = self._state(path)
        state.opened, state.total = opened, opened.rows
        self._update_soon()

    @in_own_task
    def kernels_seen(self, seen: KernelsSeen) -> None:
        """Show the kernels; a sample never replaces exact numbers."""
        if seen.is_exact or not self.seen.is_exact:
            self.seen = seen
        self.update_screen()

    @in_own_task
    def advanced(self, path: Path, progress: Progress) -> None:
        state = self._state(path)
        state.rows, state.total = progress.rows, progress.total
        self._update_soon()

    @in_own_task
    def ready(self, path: Path, report: Report) -> None:
        self._state(path).ready = True
        self._update_soon()

    @in_own_task
    def failed(self, path: Path, error: NsystuiError) -> None:
        reason = str(error)
        if isinstance(error, ExportError):
            reason = error.cause + (f" ({error.advice})" if error.advice else "")
        self._state(path).failure = reason
        self._update_soon()
        self.say(f"{path.name}: {reason}")

    @in_own_task
    def loading_ended(self, cancelled: bool) -> None:
        """Read the log, or end if no file could be read."""
        self.loading_now = False
        self.update_status()
        self.update_screen()
        if cancelled:
            self.say("stopped loading: R resumes loading")
        elif not any(state.ready for state in self.files.values()):
            self._leave_without_files()
        else:
            # Only now, because reading a log keeps Python busy, which would slow down the screens of the exports.
            self.read_log(again=False)

    @in_own_task
    def computing(self, working: Computation | None) -> None:
        self.working = working
        self.update_status()

    @in_own_task
    def log_read(self, state: LogState) -> None:
        """Show the tables of the part that was read; end if no log could be read and no export is open."""
        self.nccl_log = state
        self.update_status()
        self._call_screen("log_changed")
        if state.is_over and state.failed:
            self.say(state.failed)
        if state.is_over and not state.is_stopped and self.job is not None:
            self._align(partial(self._take_sizes, self.job))
        if not self.source.files and state.is_over and len(state.failures) == len(state.names) and not state.lines:
            self._leave(*state.failures)

    def _take_sizes(self, job: OpenJob) -> None:
        """Take message sizes that the exports lack from the log."""
        from nsystui.questions.nccl.from_log import read_log

        job.nccl_log = read_log(self.source.logs, job.ranks)

    def _leave(self, *reasons: str) -> None:
        """End with status 2; the terminal shows the reasons after the screens close."""
        self.reasons = list(reasons)
        self.exit(return_code=2)

    def _leave_without_files(self) -> None:
        self._leave(*([f"{state.path}: {state.failure}" for state in self.files.values()] or ["no files"]))

    @property
    def job_name(self) -> str:
        """The name of the open job, shown on the first line."""
        if self.job is None or not self.job.session.reports:
            return ""
        from nsystui.questions.ranks.overview import title_of

        return title_of(self.job.session.reports)

    @property
    def state_of_loading(self) -> str:
        """The first line's count of loaded files; empty during loading."""
        if self.loading_now or not self.files:
            return ""
        ready = sum(state.ready for state in self.files.values())
        return "● loaded" if ready == len(self.files) else f"○ {ready} of {len(self.files)} loaded"

    @property
    def status(self) -> str:
        """The first line's progress of loading, computing or reading logs; empty if nothing runs."""
        if not self.loading_now:
            log = self.nccl_log.status if self._is_reading_log else ""
            return f"computing {self.working}" if self.working is not None else log
        ready = sum(state.ready for state in self.files.values())
        rows = sum(state.total if state.ready else state.rows for state in self.files.values())
        valid = [state for state in self.files.values() if not state.failure]
        totals = [state.total for state in valid if state.opened is not None or state.total]
        total = sum(totals) * len(valid) // max(len(totals), 1)  # an unopened file counts as the mean
        if not self.files and self.working is not None:
            return str(self.working)
        if not total:
            return f"opening {len(self.files) or ''} files…" if len(self.files) != 1 else "opening…"
        return f"loading {ready} of {len(self.files)}  {progress_bar(rows / total)}  {rows:,} rows"

    def update_status(self) -> None:
        self._call_screen("show_status", self.status)

    def update_screen(self) -> None:
        """Let the current screen ask again if something changed."""
        self._call_screen("job_changed")

    def _update_soon(self) -> None:
        """Update the screen at most twice a second: a thousand files are opened within seconds."""
        wait = self._updated + UPDATE_INTERVAL - time.monotonic()
        if wait <= 0:
            self._update_now()
        elif self._update is None:
            self._update = self.set_timer(wait, self._update_now)

    def _update_now(self) -> None:
        self._updated, self._update = time.monotonic(), None
        self.update_screen()

    def say(self, text: str) -> None:
        self._call_screen("say", text)

    warned = in_own_task(say)  # type: ignore[arg-type]

    def _call_screen(self, name: str, *arguments: str) -> None:
        """Call a method of the current screen, if it is mounted and has the method."""
        screen: Screen[object] = self.screen
        if screen.is_mounted and hasattr(screen, name):
            getattr(screen, name)(*arguments)
