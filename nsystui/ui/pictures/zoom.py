"""The view on a span of time: zooming and panning inside the selection."""

from __future__ import annotations

from dataclasses import replace

from nsystui.base.selection import Window


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
