"""The result of a rule: a finding with the door to its subject, or the data that the rule lacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from nsystui.base.answer import Answer
from nsystui.base.selection import Task, Window, window_flag
from nsystui.base.text import shell_word, spans
from nsystui.questions.blocking.gain import Gain
from nsystui.questions.queries.question import SCREENS
from nsystui.questions.queries.registry import question_named, view_named

if TYPE_CHECKING:
    from nsystui.questions.algebra.intervals import Intervals


class Severity(Enum):
    """The severity of a finding."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    @property
    def place(self) -> int:
        """0 for the worst."""
        return list(Severity).index(self)


DIAGNOSTICS = "diagnostics"
"""The view of what nsys said of its own capture: behind ``W`` on the overview, printed by ``nsystui info``."""


@dataclass(frozen=True)
class Door:
    """The view that shows the subject of a finding, and what of it: the names, the window, the grouping, the sort.

    ``view`` is the name of a view of the catalogue, or `DIAGNOSTICS`. ``report``: a report of ``nsys stats`` that tells
    more than the view, for the command.
    """

    view: str
    filter: str = ""
    by: str = ""
    sort: str = ""
    window: Window | None = None
    report: str = ""

    @property
    def screen(self) -> str:
        """The title of the screen."""
        return SCREENS["overview" if self.view == DIAGNOSTICS else view_named(self.view).home]

    @property
    def command(self) -> str:
        """The command that prints the same, without its files."""
        return self.command_for("")

    def command_for(self, files: str) -> str:
        """Return the command that prints the same of ``files``."""
        if self.view == DIAGNOSTICS:
            words = ["info", files] if files else ["info"]
        elif self.report:
            words = [question_named(self.report, "stats").command({}, files)]
        else:
            found = view_named(self.view)
            words = [found.question.command(found.view.values, files)]
        for flag, value in (("--filter", self.filter), ("--by", self.by), ("--sort", self.sort)):
            words += [flag, shell_word(value)] if value else []
        if self.window is not None:
            words.append(window_flag(self.window))
        return " ".join(words)


@dataclass(frozen=True)
class Advice:
    """One thing to try, and why it should help."""

    text: str
    reason: str

    def __str__(self) -> str:
        return f"{self.text} {self.reason}"


_FEW_RANKS = 16


@dataclass(frozen=True, eq=False)
class Finding:
    """A problem of a job, or a remark on it.

    ``cost``: ns, a mean over the GPUs of the job, so that it compares with how long the job ran; ``percent``: of that.
    Both are ``None`` where no time can be put on it. ``measured``: how the cost was found. Costs of several findings
    may be of the same time. ``window``: the place in time (job time), ``ranks``: whom it concerns; empty is all.
    ``under``: the id of the finding that is the cause of most of this one, where there is such a finding.
    ``gist``: it in a few words, for the summary. ``times``: when it cost time, by process and device, where that is
    known: of two findings the one may be the cause of the other if these are the same times.
    """

    id: str
    severity: Severity
    sentence: str
    advice: Advice
    door: Door
    cost: int | None = None
    percent: float | None = None
    measured: str = ""
    evidence: Answer | None = None
    window: Window | None = None
    ranks: tuple[int, ...] = ()
    under: str = ""
    gist: str = ""
    times: Mapping[tuple[Task, int], Intervals] = field(default_factory=dict)
    gain: Gain | None = None
    """``None`` where it costs no time that could be won back, or it is not known."""

    @property
    def rank_numbers(self) -> str:
        """``0 1 5``; many as ``0-63,70``, which ``--ranks`` takes."""
        return " ".join(map(str, self.ranks)) if len(self.ranks) <= _FEW_RANKS else spans(self.ranks)

    def shared_with(self, other: Finding) -> float | None:
        """The part of its time that is also the other's; ``None`` where it is not known of both."""
        if not self.times or not other.times:
            return None
        from nsystui.questions.algebra.intervals import intersect

        shared = sum(intersect(own, other.times[key]).length for key, own in self.times.items() if key in other.times)
        return shared / max(sum(own.length for own in self.times.values()), 1)


@dataclass(frozen=True)
class NotChecked:
    """A rule that could not judge. ``why`` says what it needs; ``failed`` where it broke instead."""

    rule: str
    why: str
    failed: bool = False
