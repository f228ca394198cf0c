"""The history of a user's jumps between screens and selections: going back undoes the last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from textual.screen import Screen

    from nsystui.base.selection import Selection


@dataclass(frozen=True)
class HistoryStep:
    """The mode, the selection, and the screens of the mode with their states, before a step."""

    mode: str
    selection: Selection
    screens: tuple[tuple[Screen[Any], Any], ...]


class History:
    """Steps, newest last. Their screens stay alive for going back."""

    def __init__(self) -> None:
        self._steps: list[HistoryStep] = []

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, step: HistoryStep) -> Sequence[Screen[Any]]:
        """Add a step; if the oldest step is dropped, return its screens that no other step keeps."""
        self._steps.append(step)
        if len(self._steps) <= 100:  # the screens of older steps are closed
            return ()
        return [screen for screen, _ in self._steps.pop(0).screens if not self.keeps(screen)]

    def take(self) -> HistoryStep | None:
        """Remove and return the newest step, if any."""
        return self._steps.pop() if self._steps else None

    def keeps(self, screen: object) -> bool:
        """Return whether going back may show a screen again."""
        return any(screen is step_screen for step in self._steps for step_screen, _ in step.screens)
