"""The base of every screen: application, job and selection, notices, searches, prompts for parts of the selection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from nsystui.base.errors import UsageError
from nsystui.base.selection import Selection, parse_numbers, window_words
from nsystui.base.text import spans
from nsystui.ui.widgets.frame import KeyLine
from nsystui.ui.widgets.prompt import LinePrompt
from nsystui.ui.widgets.repainting import ThrottledScreen, in_background

if TYPE_CHECKING:
    from nsystui.questions.job.job import OpenJob
    from nsystui.ui.app import NsystuiApp


class AskingScreen(ThrottledScreen[None]):
    """A screen with a question about the job and selection, notices, and keys that ask for a part of the selection."""

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


def _seconds(time: int) -> str:
    return f"{Decimal(time).scaleb(-9).normalize():f}s"
