"""The results of a rule: findings, with the views of their subjects, or missing data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from nsystui.base.answer import Answer
from nsystui.base.selection import Task, Window, window_flag
from nsystui.base.text import shell_word, spans
from nsystui.questions.queries.question import SCREENS, question_named, view_named

if TYPE_CHECKING:
    from nsystui.questions.algebra.intervals import Intervals
    from nsystui.questions.blocking.budget import Gain


class Severity(Enum):
    """The severity of a finding."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    @property
    def order(self) -> int:
        """0 for the worst severity."""
        return list(Severity).index(self)


DIAGNOSTICS = "diagnostics"
"""The view of nsys's messages on its own capture: ``W`` on the overview, printed by ``nsystui info``."""


@dataclass(frozen=True)
class Door:
    """The view of a finding's subject, with filter, grouping, sort order and window.

    ``view``: a view of the catalogue, or `DIAGNOSTICS`. ``report``: a report of ``nsys stats`` with more details, which
    the command prints instead.
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
        """The command that prints the view, without its files."""
        return self.command_for("")

    def command_for(self, files: str) -> str:
        """Return the command that prints the view for ``files``."""
        if self.view == DIAGNOSTICS:
            words = ["info", files] if files else ["info"]
        elif self.report:
            words = [question_named(self.report, "stats").command({}, files)]
        else:
            named = view_named(self.view)
            words = [named.question.command(named.values, files)]
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

    ``cost``: the mean over the job's GPUs, ns; ``percent``: the cost in % of the run time. Both are ``None`` if no time
    can be attributed. Costs of findings may include the same time. ``measured``: the method. ``window``: job time.
    ``ranks``: the ranks concerned, empty for all. ``under``: the id of the finding that causes most of the cost, if
    any. ``gist``: words for the summary. ``line``: the cause in a line of a table. ``times``: when the cost
    occurs, by process and device, if known. ``losses``: what each GPU loses, ns, if known; or only each GPU that waits.
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
    line: str = ""
    times: Mapping[tuple[Task, int], Intervals] = field(default_factory=dict)
    losses: Mapping[tuple[Task, int], int] = field(default_factory=dict)
    gain: Gain | None = None
    """``None`` if no time could be won back, or it is unknown."""

    @property
    def in_a_line(self) -> str:
        """The cause in a line, or the first clause without parentheses and the cost, which tables also show."""
        sentence = re.sub(r" \([^()]*\)", "", self.sentence)
        clause = re.split(r"\.(?: |$)|[:;] |, (?=\d+ % of|so )", sentence, maxsplit=1)[0]
        cost = r"^(?:Each|The) GPU (?:(idle)s(?: [\d.,]+ \S+)?|spends \S+ \S+ on) "
        return self.line or re.sub(cost, r"\1 ", clause).strip()

    @property
    def rank_numbers(self) -> str:
        """``0 1 5``, or for many ranks ``0-63,70``, which ``--ranks`` accepts."""
        return " ".join(map(str, self.ranks)) if len(self.ranks) <= _FEW_RANKS else spans(self.ranks)

    def shared_with(self, other: Finding) -> float | None:
        """Return the share of this finding's time that is also the other's; ``None`` if either time is unknown."""
        if not self.times or not other.times:
            return None
        from nsystui.questions.algebra.intervals import intersect

        shared = sum(intersect(when, other.times[key]).length for key, when in self.times.items() if key in other.times)
        return shared / max(sum(when.length for when in self.times.values()), 1)


@dataclass(frozen=True)
class NotChecked:
    """A rule that could not judge. ``rule``: ids of its findings; ``why``: the missing data, or the error."""

    rule: str
    why: str
    failed: bool = False
