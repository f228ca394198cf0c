"""Words that the notes of answers share."""

from __future__ import annotations

from collections.abc import Sequence


def few(names: Sequence[object]) -> str:
    """Up to three of the names and how many more there are, for a sentence."""
    shown = ", ".join(str(name) for name in names[:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def which_of(names: Sequence[str], reports: int) -> str:
    """How a note calls the exports of these names, some or all of the ``reports`` that it speaks of."""
    if len(names) < reports:
        return few(names)
    return "this export" if reports == 1 else "these exports"
