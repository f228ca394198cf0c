"""The network, over 4 GPU: what each adapter moved, or what moved while NCCL's collectives ran."""

from __future__ import annotations

from typing import Any

from nsystui.questions.catalogue import view_named
from nsystui.ui import keys
from nsystui.ui.screens.table import ViewsScreen
from nsystui.ui.widgets.lines import Choice

_BY = ("adapter", "collective")


class NetworkScreen(ViewsScreen):
    """The table of `nsystui network`, by what is chosen."""

    HOME = "gpu"
    SCREEN = "network"
    MODE_KEY = "4"
    PLACES = ("table", "everywhere")
    BINDINGS = keys.bindings("table", "everywhere")

    def __init__(self) -> None:
        super().__init__("4 GPU")
        self.view = self.answered = view_named("network")
        self.options = {"by": _BY[0]}

    def show(self, result: Any, same_place: bool) -> None:
        self.table.elastic = self.options["by"]
        super().show(result, same_place)

    def choices(self) -> tuple[Choice, ...]:
        def choose(place: int) -> None:
            self.options["by"] = _BY[place]
            self.job_changed()

        return (*super().choices(), Choice("by", _BY, _BY.index(self.options["by"]), choose))
