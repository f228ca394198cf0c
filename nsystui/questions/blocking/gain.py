"""The largest possible gain in an iteration, and how it is known (docs/path.md#gains)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from nsystui.base.answer import Column, Unit
from nsystui.base.units import format_value


class Standing(Enum):
    """How a gain is known."""

    MEASURED = "measured"  # operations and calls show that all of it blocked the GPU
    BOUNDED = "bounded"  # some of it may not have blocked the GPU, or may not be avoidable
    INFERRED = "inferred"  # the export does not show its purpose, or that the work is avoidable


_MAX_FACTOR = 10
"""A larger factor is shown only as times: whatever remains would then take the most time."""


@dataclass(frozen=True)
class Gain:
    """The largest possible gain in an iteration, the mean over the GPUs, ns (docs/path.md#gains).

    ``includes``: ids of findings whose gain may be the same time. ``is_step``: whether the iteration is a step.
    """

    recoverable: int
    iteration: int
    standing: Standing
    includes: tuple[str, ...] = ()
    is_step: bool = True

    @property
    def speedup(self) -> float | None:
        """The largest possible speed-up, T / (T - R); ``None`` if all of the time is recoverable."""
        remaining = self.iteration - self.recoverable
        return self.iteration / remaining if remaining else None

    @property
    def words(self) -> str:
        """``at most 8.53 ms of a step of 116.4 ms, 1.08 times as fast (measured; may include straggler)``."""
        won, total = (format_value(Unit.DURATION, time) for time in (self.recoverable, self.iteration))
        factor = f", {self.speedup:.2f} times as fast" if 1.005 <= (self.speedup or 0) < _MAX_FACTOR else ""
        others = f"; may include {', '.join(self.includes)}" if self.includes else ""
        return f"at most {won} of {'a step of ' if self.is_step else ''}{total}{factor} ({self.standing.value}{others})"


RECOVERABLE = Column(
    "recoverable", header="Recoverable per Iteration (ns)", label="could save", unit=Unit.DURATION, importance=3
)
SPEEDUP = Column("speedup", header="Speed-up at Most", label="max speed-up", unit=Unit.RATIO, decimals=4, importance=4)
STANDING = Column("standing", header="Standing", label="standing", importance=5)
