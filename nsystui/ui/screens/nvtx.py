"""5 Nvtx."""

from __future__ import annotations

from nsystui.ui import keys
from nsystui.ui.screens.pane import Pane


class NvtxScreen(Pane):
    MODE_KEY = "5"
    PLACES = ("nvtx", "everywhere")
    BINDINGS = keys.bindings("nvtx", "everywhere")

    def ask(self, job, selection):
        return None

    def show(self, result, same_place):
        self.show_title()
