"""What a session is busy with, for whoever shows it to the user."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Working:
    """``what`` is computed of ``done`` of ``total`` reports."""

    what: str
    done: int
    total: int

    def __str__(self) -> str:
        return f"{self.what}: {self.done} of {self.total} reports"
