"""The prompts that change the selection by hand, the same on every screen: names, ranks, devices and time."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING

from nsystui.base.errors import UsageError
from nsystui.base.text import spans

if TYPE_CHECKING:
    from nsystui.base.selection import Selection
    from nsystui.ui.screens.asking import AskingScreen


class SelectionPrompts:
    """The prompts for the selection of a screen; each opens the line for typing."""

    def __init__(self, screen: AskingScreen) -> None:
        self._screen = screen

    def names(self) -> None:
        """Ask for a part of a name."""
        name = self._screen.selection.name
        self._ask("find", name.text if name else "", lambda text: self._screen.selection.with_name(text))

    def ranks(self) -> None:
        """Ask for the numbers of ranks, once a report is ready."""
        screen = self._screen
        if screen.has_job() and screen.job is not None:
            chosen = screen.selection.tasks
            ranks = () if chosen is None else [item.rank for item in screen.job.ranks if item.task in chosen]
            self._ask("ranks", spans(ranks), self._with_ranks)

    def devices(self) -> None:
        """Ask for the numbers of devices."""
        self._ask("devices", spans(self._screen.selection.devices or ()), self._with_devices)

    def window(self) -> None:
        """Ask for a span of time, and say while it is typed what it means."""
        from nsystui.base.selection import window_words

        if self._screen.has_job():
            window = self._screen.selection.window
            self._screen.prompt.ask(
                "time",
                f"{_seconds(window.start)}:{_seconds(window.end)}" if window else "",
                self._with_window,
                self._screen.explorer.select,
                lambda selection: window_words(selection.window) if selection.window else "all time",
                replaced=True,
            )

    def _ask(self, label: str, value: str, parse: Callable[[str], Selection]) -> None:
        self._screen.prompt.ask(label, value, parse, self._screen.explorer.select, replaced=True)

    def _with_ranks(self, text: str) -> Selection:
        from nsystui.base.selection import parse_numbers

        job, selection = self._screen.job, self._screen.selection
        assert job is not None
        return selection.with_tasks(job.tasks_of_ranks(parse_numbers(text, "ranks")) if text.strip() else None)

    def _with_devices(self, text: str) -> Selection:
        from dataclasses import replace

        from nsystui.base.selection import parse_numbers

        job, devices = self._screen.job, parse_numbers(text, "devices") if text.strip() else None
        if job is not None and devices is not None and (unknown := devices - (there := job.devices)):
            known = f"the devices are {spans(there)}" if there else "no GPU work was recorded"
            raise UsageError(f"device {min(unknown)} is not there: {known}")
        return replace(self._screen.selection, devices=devices)

    def _with_window(self, text: str) -> Selection:
        job, selection = self._screen.job, self._screen.selection
        assert job is not None
        if not text.strip():
            return selection.with_window(None)
        return selection.with_window(job.window(text))


def _seconds(time: int) -> str:
    """``0.5s``, exactly."""
    return f"{Decimal(time).scaleb(-9).normalize():f}s"
