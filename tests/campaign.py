"""The cases of campaigns: ``NSYSTUI_CAMPAIGN=SEED[:FACTOR]`` chooses other cases, and more by the factor."""

import os
import random
from collections.abc import Iterable
from typing import Any

import pytest

_SEED, _, _FACTOR = os.environ.get("NSYSTUI_CAMPAIGN", "1").partition(":")
SEED = int(_SEED)
FACTOR = float(_FACTOR or 1)


def cases(number: float) -> int:
    """Return the number of cases: ``number`` times the factor."""
    return max(round(number * FACTOR), 1)


def step(number: float) -> int:
    """Return the step between tried cases: ``number`` without a factor."""
    return max(round(number / FACTOR), 1)


def some(number: int, values: Iterable[Any]) -> list[Any]:
    """Return a sample of the values in their order, chosen by the seed; ``number`` of them without a factor."""
    every = list(values)
    chosen = random.Random(SEED).sample(range(len(every)), min(cases(number), len(every)))
    return [every[place] for place in sorted(chosen)]


def first(number: int, values: Iterable[Any]) -> list[Any]:
    """Return values as parameters of a test: ``number`` of them always, a sample of the others in campaigns."""
    every = list(values)
    others = some(len(every) - number, range(number, len(every)))
    return [
        pytest.param(*value if isinstance(value, tuple) else [value], marks=[pytest.mark.campaign] * (place >= number))
        for place, value in enumerate(every)
        if place < number or place in others
    ]
