"""3 Nccl."""

from __future__ import annotations

from nsystui.ui import keys
from nsystui.ui.screens.pane import Pane


class NcclScreen(Pane):
    MODE_KEY = "3"
    PLACES = ("nccl", "everywhere")
    BINDINGS = keys.bindings("nccl", "everywhere")

    def ask(self, job, selection):
        return None

    def show(self, result, same_place):
        self.show_title()
