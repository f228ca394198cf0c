"""The application on logs of NCCL alone: one screen, and nothing of what reads exports."""

from __future__ import annotations

from typing import ClassVar

from textual import on

from nsystui.ui import messages
from nsystui.ui.app import NsystuiApp
from nsystui.ui.screens import screen_of


class LogApp(NsystuiApp):
    """The log view. Its ``source`` has no files but ``logs``."""

    MODES: ClassVar[dict[str, object]] = {"nccl_log": lambda: screen_of("nccl_log")}
    DEFAULT_MODE = "nccl_log"

    def _begin(self) -> None:
        self.loading_now = False
        self.read_log()

    @on(messages.LogRead)
    def _leave_without_logs(self, message: messages.LogRead) -> None:
        """No log could be opened: the reasons belong on the terminal that stays."""
        state = message.state
        if state.is_over and len(state.failures) == len(state.names) and not state.lines:
            self.reasons = list(state.failures)
            self.exit(return_code=2)
