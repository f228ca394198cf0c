"""How much the campaigns try: ``NSYSTUI_CAMPAIGN`` times as much as in CI, from where ``NSYSTUI_SEED`` says."""

from __future__ import annotations

import os

FACTOR = float(os.environ.get("NSYSTUI_CAMPAIGN", "1"))
SEED = int(os.environ.get("NSYSTUI_SEED", "1"))


def cases(number: float) -> int:
    """How many cases, where CI tries ``number``."""
    return max(round(number * FACTOR), 1)


def step(number: float) -> int:
    """Every how many cases is tried, where CI tries every ``number``th."""
    return max(round(number / FACTOR), 1)
