"""1 Overview: what ran, how busy each rank was, where the GPU time went."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from textual.widget import Widget

from nsystui.ui import keys
from nsystui.ui.screens.pane import Pane

if TYPE_CHECKING:
    from nsystui.analysis.job import Job
    from nsystui.analysis.selection import Selection


class OverviewScreen(Pane):
    """The first screen: it must be painted before anything heavy is imported."""

    MODE_KEY = "1"
    PLACES = ("overview", "table", "everywhere")
    BINDINGS = keys.bindings("overview", "table", "everywhere")

    def __init__(self) -> None:
        super().__init__("nsystui")

    def body(self) -> Iterable[Widget]:
        return ()

    def ask(self, job: Job, selection: Selection) -> Any:
        return None

    def show(self, result: Any, same_place: bool) -> None:
        self.show_title()
