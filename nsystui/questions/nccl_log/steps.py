"""Training iterations cut out of a log, by lines that the training itself writes into it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nsystui.base.errors import UsageError
from nsystui.base.text import whole_number
from nsystui.exports.nccl_log.files import TrainingStep
from nsystui.exports.nccl_log.inspector import InspectedCall
from nsystui.exports.nccl_log.lines import Call, CommunicatorLine, Line
from nsystui.exports.nccl_log.topology import TopologyLine

_ALWAYS = (CommunicatorLine, TopologyLine)


@dataclass(frozen=True)
class IterationSpan:
    """The iterations from ``first`` to ``last``, both included; ``None`` is an open end."""

    first: int | None = None
    last: int | None = None

    def __contains__(self, iteration: int) -> bool:
        return (self.first is None or self.first <= iteration) and (self.last is None or iteration <= self.last)

    def __str__(self) -> str:
        return f"{'' if self.first is None else self.first}:{'' if self.last is None else self.last}"


def steps_of(text: str) -> IterationSpan:
    """Parse ``45:50``, ``45:``, ``:50`` or ``45``. Raises UsageError."""
    first, colon, last = (word.strip() for word in text.partition(":"))
    low, high = whole_number(first), whole_number(last)
    if not (first or last) or (first and low is None) or (last and high is None):
        raise UsageError(f"steps {text!r}: write A:B, such as 45:50 (both included), A: or :B")
    if not colon:
        high = low
    if low is not None and high is not None and high < low:
        raise UsageError(f"steps {text!r}: {low}:{high} goes backwards")
    return IterationSpan(low, high)


class StepCut:
    """A filter for the lines of some iterations, log by log.

    The lines from iteration N's training line to the next training line count as N's, as in ``1-separate-steps.awk`` of
    ``nsys-profiling`` (its ``44 < N <= 50`` is 45:50). NeMo writes the line when the iteration is over, so these are
    the calls of the next iteration. Communicators and their topology always pass, because they precede the training.

    ``heard``: the number of training lines, of iterations ``first`` to ``last``; ``chosen``: how many of them passed;
    ``outside``: the number of calls left out.
    """

    def __init__(self, steps: IterationSpan) -> None:
        self._steps = steps
        self.heard = self.chosen = self.outside = 0
        self.first: int | None = None
        self.last: int | None = None

    def of(self, lines: Iterable[Line]) -> Iterator[Line]:
        """Yield the lines of one log that pass."""
        is_inside = False
        for line in lines:
            if type(line) is TrainingStep:
                is_inside = line.iteration in self._steps
                self.heard += 1
                self.chosen += is_inside
                self.first = line.iteration if self.first is None else min(self.first, line.iteration)
                self.last = line.iteration if self.last is None else max(self.last, line.iteration)
            if is_inside or type(line) in _ALWAYS:
                yield line
            elif type(line) in (Call, InspectedCall):
                self.outside += 1
