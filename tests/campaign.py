"""How much the campaigns try: ``NSYSTUI_CAMPAIGN`` times as much as in CI, from where ``NSYSTUI_SEED`` says."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

FACTOR = float(os.environ.get("NSYSTUI_CAMPAIGN", "1"))
SEED = int(os.environ.get("NSYSTUI_SEED", "1"))


def cases(number: float) -> int:
    """How many cases, where CI tries ``number``."""
    return max(round(number * FACTOR), 1)


def step(number: float) -> int:
    """Every how many cases is tried, where CI tries every ``number``th."""
    return max(round(number / FACTOR), 1)


def first(number: int, values: Iterable[Any]) -> list[Any]:
    """The values as parameters of a test: this many of them before the campaign, the others in it."""
    return [
        pytest.param(*value if isinstance(value, tuple) else [value], marks=[pytest.mark.campaign] * (place >= number))
        for place, value in enumerate(values)
    ]
