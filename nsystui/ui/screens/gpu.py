"""4 Gpu."""

from __future__ import annotations

from nsystui.ui import keys
from nsystui.ui.screens.pane import Pane


class GpuScreen(Pane):
    MODE_KEY = "4"
    PLACES = ("gpu", "everywhere")
    BINDINGS = keys.bindings("gpu", "everywhere")

    def ask(self, job, selection):
        return None

    def show(self, result, same_place):
        self.show_title()
