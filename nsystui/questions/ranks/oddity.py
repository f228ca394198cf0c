"""Which ranks are odd: a robust score of each figure against the other ranks.

The modified z-score of Iglewicz and Hoaglin (1993), 0.6745 · (x − median) / MAD with MAD the median absolute deviation,
does not mind the odd ones themselves, as a mean and a standard deviation would. Above 3.5 a value is odd. Ranks that
agree to the last digit have no MAD: a figure must also differ by a share that somebody would care for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ODD_SCORE = 3.5
FEWEST = 4
"""Of fewer ranks no one is the odd one out."""

_NORMAL = 0.6745


@dataclass(frozen=True)
class Measure:
    """A figure of every rank to judge.

    To be odd it must differ from the median by ``least`` (in its unit), and by ``share`` of the median. ``only_high``:
    a low value is nothing odd.
    """

    name: str
    least: float
    share: float = 0.0
    only_high: bool = False


def scores(values: Sequence[float | None], measure: Measure) -> list[float | None]:
    """The score of each value, signed; ``None`` where it is missing or there are too few. Shape as ``values``.

    0 for what differs by less than ``measure`` asks for. Where the others are all alike the score is infinite.
    """
    known = np.array([np.nan if value is None else value for value in values], float)
    if np.isfinite(known).sum() < FEWEST:
        return [None] * len(values)
    middle = float(np.nanmedian(known))
    off = known - middle
    spread = float(np.nanmedian(np.abs(off)))
    with np.errstate(divide="ignore", invalid="ignore"):
        score = _NORMAL * off / spread
    is_small = np.abs(off) < max(measure.least, measure.share * abs(middle))
    score = np.where(is_small | (measure.only_high & (off < 0)), 0.0, score)
    return [None if np.isnan(value) else float(one) for value, one in zip(known, score, strict=True)]


def is_odd(score: float | None) -> bool:
    """Whether a score is that of an odd one."""
    return score is not None and abs(score) > ODD_SCORE
