"""The selection in words, for the second line of every screen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from nsystui.base.columns import Unit
from nsystui.base.selection import Selection
from nsystui.base.units import format_value

if TYPE_CHECKING:
    from nsystui.questions.tasks import RankedTask


def spans(numbers: Iterable[int]) -> str:
    """{0, 1, 2, 5} as ``0-2,5``, as the prompts and the command line take it."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in found)


def describe(selection: Selection, ranks: Iterable[RankedTask]) -> str:
    """``ranks 0-3 · 6.0 s + 1 s · filter "nvjet"``; ``all ranks · all time`` when everything is selected."""
    if selection.is_everything:
        return "all ranks · all time"
    parts = []
    if selection.tasks is not None:
        chosen = [item.rank for item in ranks if item.task in selection.tasks]
        parts.append(f"rank {chosen[0]}" if len(chosen) == 1 else f"ranks {spans(chosen)}")
    if selection.devices is not None:
        parts.append(f"device {spans(selection.devices)}")
    if selection.streams is not None:
        parts.append(f"stream {spans(selection.streams)}")
    if selection.window is not None:
        start = format_value(Unit.TIME, selection.window.start)
        parts.append(f"{start} + {format_value(Unit.DURATION, selection.window.end - selection.window.start)}")
    if selection.name is not None:
        parts.append(f'filter "{selection.name.text}"')
    return " · ".join(parts)
