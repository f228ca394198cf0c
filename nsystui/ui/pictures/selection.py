"""The selection in words: the second line of every screen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from nsystui.base.answer import Unit
from nsystui.base.selection import Selection
from nsystui.base.text import spans
from nsystui.base.units import format_value

if TYPE_CHECKING:
    from nsystui.questions.queries.tasks import RankedTask


def describe(selection: Selection, ranks: Iterable[RankedTask]) -> str:
    """Return ``ranks 0-3 · 6.0 s + 1 s · filter "nvjet"``; ``all ranks · all time`` if everything is selected."""
    crumbs = []
    if selection.tasks is not None:
        numbers = [rank.rank for rank in ranks if rank.task in selection.tasks]
        crumbs.append(f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {spans(numbers)}")
    if selection.devices is not None:
        crumbs.append(f"device {spans(selection.devices)}")
    if selection.streams is not None:
        crumbs.append(f"stream {spans(selection.streams)}")
    if selection.window is not None:
        start, step = format_value(Unit.TIME, selection.window.start), selection.window.step
        if step is not None:
            crumbs.append(f"step {step}")
            start = f"{selection.window.start / 1e9:.3f} s"  # the number identifies the step
        crumbs.append(f"{start} + {format_value(Unit.DURATION, selection.window.end - selection.window.start)}")
    if selection.name is not None:
        crumbs.append(f'filter "{selection.name.words or selection.name.text}"')
    return " · ".join(crumbs) or "all ranks · all time"
