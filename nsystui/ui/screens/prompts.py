"""The prompts that change the selection on every screen: names, ranks, devices and time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

from nsystui.base.errors import UsageError
from nsystui.base.selection import Selection, parse_numbers, window_words
from nsystui.base.text import spans
from nsystui.ui.screens.asking import AskingScreen


class SelectingScreen(AskingScreen):
    """A screen with keys that open the prompt for a part of the selection."""

    def action_filter(self) -> None:
        name = self.selection.name
        self._ask_for("find", name.text if name else "", lambda text: self.selection.with_name(text))

    def action_ranks(self) -> None:
        """Ask for the numbers of ranks, once a report is ready."""
        if self.has_job() and self.job is not None:
            tasks = self.selection.tasks
            ranks = () if tasks is None else [item.rank for item in self.job.ranks if item.task in tasks]
            self._ask_for("ranks", spans(ranks), self._with_ranks)

    def action_clear(self) -> None:
        self.explorer.select(Selection())

    def action_devices(self) -> None:
        self._ask_for("devices", spans(self.selection.devices or ()), self._with_devices)

    def action_window(self) -> None:
        """Ask for a span of time, and show its meaning while it is typed."""
        if self.has_job():
            window = self.selection.window
            self.prompt.ask(
                "time",
                f"{_seconds(window.start)}:{_seconds(window.end)}" if window else "",
                self._with_window,
                self.explorer.select,
                lambda selection: window_words(selection.window) if selection.window else "all time",
                replaced=True,
            )

    def _ask_for(self, label: str, value: str, parse: Callable[[str], Selection]) -> None:
        self.prompt.ask(label, value, parse, self.explorer.select, replaced=True)

    def _with_ranks(self, text: str) -> Selection:
        job, selection = self.job, self.selection
        assert job is not None
        return selection.with_tasks(job.tasks_of_ranks(parse_numbers(text, "ranks")) if text.strip() else None)

    def _with_devices(self, text: str) -> Selection:
        job, devices = self.job, parse_numbers(text, "devices") if text.strip() else None
        if job is not None and devices is not None and (unknown := devices - (available := job.devices)):
            available_words = f"the devices are {spans(available)}" if available else "no GPU work was recorded"
            raise UsageError(f"device {min(unknown)} is not there: {available_words}")
        return replace(self.selection, devices=devices)

    def _with_window(self, text: str) -> Selection:
        assert self.job is not None
        return self.selection.with_window(self.job.window(text) if text.strip() else None)


def _seconds(time: int) -> str:
    return f"{Decimal(time).scaleb(-9).normalize():f}s"
