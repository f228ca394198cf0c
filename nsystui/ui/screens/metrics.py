"""GPU metrics, over 4 GPU: every counter by rank, or its means over kernels, launches, ranges, steps, collectives."""

from __future__ import annotations

from typing import Any

from nsystui.questions.catalogue import view_named
from nsystui.ui import keys
from nsystui.ui.screens.table import ViewsScreen
from nsystui.ui.widgets.lines import Choice

_NAMES = {"": "metric", "step": "busiest", "collective": "collective"}
"""The column that says what a row is about, where it is not its name."""


class MetricsScreen(ViewsScreen):
    """The table of `nsystui metrics`, by what is chosen."""

    HOME = "gpu"
    SCREEN = "metrics"
    MODE_KEY = "4"
    PLACES = ("table", "everywhere")
    BINDINGS = keys.bindings("table", "everywhere")

    def __init__(self) -> None:
        super().__init__("4 GPU")
        self.view = self.answered = view_named("metrics")
        self.options = {"by": ""}

    def show(self, result: Any, same_place: bool) -> None:
        self.table.bar_category = "metric"
        self.table.elastic = _NAMES.get(self.options["by"], "name")
        super().show(result, same_place)

    def choices(self) -> tuple[Choice, ...]:
        subjects = next(one.choices for one in self.view.question.options if one.name == "by")
        groups = ("", *subjects)

        def choose(place: int) -> None:
            self.options["by"] = groups[place]
            self.job_changed()

        words = ("metric", *subjects)
        return (*super().choices(), Choice("by", words, groups.index(self.options["by"]), choose))
