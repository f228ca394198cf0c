"""The base of every screen: application, job and selection, and a line for prompts and notices."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nsystui.ui.widgets.frame import KeyLine
from nsystui.ui.widgets.prompt import LinePrompt
from nsystui.ui.widgets.repainting import ThrottledScreen

if TYPE_CHECKING:
    from nsystui.base.selection import Selection
    from nsystui.questions.job.job import OpenJob
    from nsystui.ui.app import NsystuiApp


class AskingScreen(ThrottledScreen[None]):
    """A screen with a question about the job and selection, a prompt, and notices."""

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
        """Show a sentence instead of the keys for a few seconds."""
        self.query_one("#keys", KeyLine).say(text)

    @property
    def prompt(self) -> LinePrompt:
        """The line in which the user types."""
        return self.query_one("#prompt", LinePrompt)
