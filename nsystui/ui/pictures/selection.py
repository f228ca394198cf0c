"""The selection in words: the second line of every screen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from nsystui.base.answer import Unit
from nsystui.base.selection import Selection
from nsystui.base.text import CRUMB_GAP, spans
from nsystui.base.units import format_value

if TYPE_CHECKING:
    from nsystui.questions.queries.tasks import RankedTask


def describe(selection: Selection, ranks: Iterable[RankedTask]) -> str:
    """Return ``ranks 0-3 · 6.0 s + 1 s · filter "nvjet"``; ``all ranks · all time`` if everything is selected."""
    return CRUMB_GAP.join(words for words, _ in crumbs_of(selection, ranks)) or "all ranks · all time"


def crumbs_of(selection: Selection, ranks: Iterable[RankedTask]) -> list[tuple[str, Selection]]:
    """Return each part of a selection in words, and the selection without it."""
    crumbs = []
    if selection.tasks is not None:
        numbers = [rank.rank for rank in ranks if rank.task in selection.tasks]
        words = f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {spans(numbers)}"
        crumbs.append((words, replace(selection, tasks=None)))
    if selection.devices is not None:
        crumbs.append((f"device {spans(selection.devices)}", replace(selection, devices=None)))
    if selection.streams is not None:
        crumbs.append((f"stream {spans(selection.streams)}", replace(selection, streams=None)))
    if selection.window is not None:
        start, step = format_value(Unit.TIME, selection.window.start), selection.window.step
        if step is not None:
            crumbs.append((f"step {step}", replace(selection, window=None)))
            start = f"{selection.window.start / 1e9:.3f} s"  # the number identifies the step
        length = format_value(Unit.DURATION, selection.window.end - selection.window.start)
        crumbs.append((f"{start} + {length}", replace(selection, window=None)))
    if selection.name is not None:
        crumbs.append((f'filter "{selection.name.words or selection.name.text}"', replace(selection, name=None)))
    return crumbs
