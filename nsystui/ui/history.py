"""The way of a user through the screens: every jump is a step, and going back undoes the last one, as in a browser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from textual.screen import Screen

    from nsystui.base.selection import Selection

MOST_STEPS = 100
"""Screens behind older steps are let go of."""


@dataclass(frozen=True)
class HistoryStep:
    """Where a user was: the mode, the selection, and the screens of the mode with what each of them showed."""

    mode: str
    selection: Selection
    screens: tuple[tuple[Screen[Any], Any], ...]


class History:
    """The places that steps were made from, newest last. The screens of each stay alive, for going back to them."""

    def __init__(self) -> None:
        self._steps: list[HistoryStep] = []

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, step: HistoryStep) -> Sequence[Screen[Any]]:
        """Adds a place; the screens of the place that is forgotten for it, if nothing else keeps them."""
        self._steps.append(step)
        if len(self._steps) <= MOST_STEPS:
            return ()
        return [screen for screen, _ in self._steps.pop(0).screens if not self.keeps(screen)]

    def take(self) -> HistoryStep | None:
        """The newest place, which is no part of the history any more."""
        return self._steps.pop() if self._steps else None

    def keeps(self, screen: object) -> bool:
        """Whether going back may lead to a screen."""
        return any(screen is one for step in self._steps for one, _ in step.screens)
