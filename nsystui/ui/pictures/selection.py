"""The selection: in words, as on the second line of every screen, and views zoomed and moved inside it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from nsystui.base.answer import Unit
from nsystui.base.selection import Selection, Window
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
        words, step = span_words(selection.window), selection.window.step
        if step is not None:  # the number identifies the step
            crumbs.append((f"step {step}", replace(selection, window=None)))
            words = f"{selection.window.start / 1e9:.3f} s + {words.partition(' + ')[2]}"
        crumbs.append((words, replace(selection, window=None)))
    if selection.name is not None:
        crumbs.append((f'filter "{selection.name.words or selection.name.text}"', replace(selection, name=None)))
    return crumbs


def span_words(window: Window) -> str:
    """Return the start and length of a window: ``6.0 s + 1 s``."""
    return f"{format_value(Unit.TIME, window.start)} + {format_value(Unit.DURATION, window.end - window.start)}"


def zoomed(view: Window, base: Window, time: int, closer: bool, min_width: int) -> Window | None:
    """Return ``view`` at half or twice its width around ``time``, inside ``base``; ``None`` if that is all of it.

    It is at least ``min_width`` ns wide, a nanosecond per column.
    """
    width = view.end - view.start
    # Rounded up, so that zooming out reaches all.
    new_width = max(-(-width // 2), min(min_width, width)) if closer else width * 2
    start = time - (time - view.start) * new_width // max(width, 1)
    return inside(Window(start, start + new_width), base)


def inside(view: Window, base: Window) -> Window | None:
    """Return ``view`` moved into ``base``; ``None`` if it is at least as wide."""
    width = view.end - view.start
    if width >= base.end - base.start:
        return None
    start = max(base.start, min(view.start, base.end - width))
    return replace(view, start=start, end=start + width)


def panned(view: Window, base: Window, direction: int) -> Window | None:
    """Return ``view`` moved by half its width, inside ``base``; ``None`` if it cannot move."""
    half = direction * max(1, (view.end - view.start) // 2)
    moved = inside(Window(view.start + half, view.end + half), base)
    return None if moved == view else moved
