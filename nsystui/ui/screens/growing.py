"""A screen that asks about all reports at once: its question costs more with every report that joins."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nsystui.ui.describe import describe
from nsystui.ui.screens.pane import Pane
from nsystui.ui.widgets.crumbs import SelectionLine

if TYPE_CHECKING:
    from textual.timer import Timer

    from nsystui.analysis.tasks import RankedTask

_LEAST_PAUSE = 0.5
_PAUSE = 2.0


class GrowingPane(Pane):
    """While reports are being read, one question at a time, and then a pause twice as long as it took.

    Sixty-four reports that become ready one after the other would else begin sixty-four questions, each of which takes
    time from the reading. A change of the selection or of the screen's own parameters is asked at once.

    A subclass calls ``question_ended`` when it shows an answer. The ranks in it are what the selection is worded with:
    to ask for them anew, while reports join, would hold up the keys.
    """

    def __init__(self, *crumbs: str) -> None:
        super().__init__(*crumbs)
        self._began = 0.0
        self._next = 0.0
        self._later: Timer | None = None
        self._ranks: Sequence[RankedTask] = ()

    def job_changed(self) -> None:
        if self._should_wait():
            self.show_status(self.explorer.status)
            self.show_selection()
            if self._later is None:
                self._later = self.set_timer(max(_LEAST_PAUSE, self._next - time.monotonic()), self._go_on)
            return
        before = self._asked
        super().job_changed()
        if self._asked != before:
            self._began = time.monotonic()

    def _go_on(self) -> None:
        self._later = None
        if self.is_current:
            self.job_changed()

    def _should_wait(self) -> bool:
        """Whether there is only more of the same to ask about, and it is too early for that."""
        if not self.explorer.loading_now or not isinstance(self._asked, tuple):
            return False
        if self._asked[1:] != (self.selection, *self.parameters()):
            return False
        return self._asked != self._shown or time.monotonic() < self._next

    def question_ended(self, ranks: Sequence[RankedTask]) -> None:
        """An answer is there: from now on counts the pause."""
        now = time.monotonic()
        self._next = now + max(_LEAST_PAUSE, _PAUSE * (now - self._began))
        self._ranks = ranks
        self.show_selection()

    def show_selection(self) -> None:
        self.query_one("#selection", SelectionLine).update(describe(self.selection, self._ranks))
