"""What a rule says: a finding, or which data it lacks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from nsystui.base.answer import Answer
from nsystui.base.selection import Window


class Severity(Enum):
    """How bad a finding is."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    @property
    def place(self) -> int:
        """0 for the worst."""
        return list(Severity).index(self)


@dataclass(frozen=True)
class Shown:
    """Where the program shows what a finding is about: a screen's name, and the command, without its files."""

    screen: str
    command: str


@dataclass(frozen=True)
class Advice:
    """One thing to try, and why it should help."""

    text: str
    reason: str

    def __str__(self) -> str:
        return f"{self.text}: {self.reason}"


@dataclass(frozen=True, eq=False)
class Finding:
    """Something that is wrong with a job, or worth to be known.

    ``cost``: ns, a mean over the GPUs of the job, so that it compares with how long the job ran; ``percent``: of that.
    Both are ``None`` where no time can be put on it. ``measured``: how the cost was found. Costs of several findings
    may be of the same time. ``window``: the place in time (job time), ``ranks``: whom it concerns; empty is all.
    """

    id: str
    severity: Severity
    sentence: str
    advice: Advice
    shown: Shown
    cost: int | None = None
    percent: float | None = None
    measured: str = ""
    evidence: Answer | None = None
    window: Window | None = None
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class NotChecked:
    """A rule that could not judge. ``why`` says what it needs; ``failed`` where it broke instead."""

    rule: str
    why: str
    failed: bool = False
