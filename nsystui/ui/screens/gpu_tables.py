"""The tables over 4 GPU whose rows are grouped by one option: GPU metrics, and what network adapters moved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from nsystui.questions.catalogue import view_named
from nsystui.ui import keys
from nsystui.ui.screens.table import ViewsScreen
from nsystui.ui.widgets.lines import Choice


class _GroupedScreen(ViewsScreen):
    """The table of a question by its option ``by``."""

    HOME = "gpu"
    MODE_KEY = "4"
    PLACES = ("table", "everywhere")
    BINDINGS = keys.bindings(*PLACES)
    WORDS: ClassVar[Mapping[str, str]] = {}
    """The words for groupings that the option words otherwise."""
    ABOUT: ClassVar[Mapping[str, str]] = {}
    """By grouping the column that says what a row is about, where it is not its name."""

    def __init__(self) -> None:
        super().__init__("4 GPU")
        self.view = self.answered = view_named(self.SCREEN)
        by = next(one for one in self.view.question.options if one.name == "by")
        self.groups = tuple(dict.fromkeys((by.default or "", *by.choices)))
        self.options = {"by": self.groups[0]}

    def show(self, result: Any, same_place: bool) -> None:
        self.table.elastic = self.ABOUT.get(self.options["by"], "name")
        super().show(result, same_place)

    def choices(self) -> tuple[Choice, ...]:
        def choose(place: int) -> None:
            self.options["by"] = self.groups[place]
            self.job_changed()

        words = tuple(self.WORDS.get(one, one) for one in self.groups)
        return (*super().choices(), Choice("by", words, self.groups.index(self.options["by"]), choose))


class MetricsScreen(_GroupedScreen):
    """Every sampled counter by rank, or its means over kernels, launches, ranges, steps and collectives."""

    SCREEN = "metrics"
    WORDS: ClassVar[Mapping[str, str]] = {"": "metric"}
    ABOUT: ClassVar[Mapping[str, str]] = {"": "metric", "step": "busiest", "collective": "collective"}

    def show(self, result: Any, same_place: bool) -> None:
        self.table.bar_category = "metric"
        super().show(result, same_place)


class NetworkScreen(_GroupedScreen):
    """What each network adapter sent and received, or what moved while NCCL's collectives ran."""

    SCREEN = "network"
    ABOUT: ClassVar[Mapping[str, str]] = {"adapter": "adapter", "collective": "collective"}
