"""The view on a span of time: zooming and panning it inside the selection."""

from __future__ import annotations

from dataclasses import replace

from nsystui.base.selection import Window


def zoomed(view: Window, base: Window, time: int, closer: bool, least: int) -> Window | None:
    """``view`` at half or twice its width around ``time``, inside ``base``; ``None`` where it would be all of it.

    Not narrower than ``least`` ns, a nanosecond for each column.
    """
    width = view.end - view.start
    # Rounded up, so that going back out arrives at all of it again.
    wanted = max(-(-width // 2), min(least, width)) if closer else width * 2
    start = time - (time - view.start) * wanted // max(width, 1)
    return inside(Window(start, start + wanted), base)


def inside(view: Window, base: Window) -> Window | None:
    """``view`` moved into ``base``; ``None`` where it is as wide."""
    width = view.end - view.start
    if width >= base.end - base.start:
        return None
    start = max(base.start, min(view.start, base.end - width))
    return replace(view, start=start, end=start + width)


def panned(view: Window, base: Window, direction: int) -> Window | None:
    """``view`` moved by half of its width, inside ``base``; ``None`` where it cannot be moved."""
    half = direction * max(1, (view.end - view.start) // 2)
    moved = inside(Window(view.start + half, view.end + half), base)
    return None if moved == view else moved
