"""Shared by the tests of the screens: the program on some files, pressed keys, and the text on the screen."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

from textual.strip import Strip

from nsystui.questions.opening import Source
from nsystui.ui.app import NsystuiApp

NARROW, WIDE = (80, 24), (120, 36)


@contextlib.asynccontextmanager
async def running(
    files: Iterable[Path], cache: Path | None, size: tuple[int, int] = NARROW
) -> AsyncIterator[tuple[NsystuiApp, Any]]:
    """The program on these files, with everything loaded and shown."""
    app = NsystuiApp(Source(tuple(map(str, files)), cache))
    async with app.run_test(size=size) as pilot:
        await rest(app, pilot)
        yield app, pilot


async def rest(app: NsystuiApp, pilot: Any, seconds: float = 60.0) -> None:
    """Waits until everything is loaded and the screen shows the answer to what it asked last."""
    deadline = time.monotonic() + seconds
    while True:
        await pilot.pause()
        is_settled = getattr(app.screen, "is_settled", True)  # dialogs ask nothing
        if is_settled and not app.loading_now and all(worker.is_finished for worker in app.workers):
            break
        assert time.monotonic() < deadline, "the screen did not come to rest"
    await pilot.pause()


async def hit(app: NsystuiApp, pilot: Any, *keys: str) -> None:
    """Presses keys as fast as a user who knows them, and waits for the end."""
    await pilot.press(*keys)
    await rest(app, pilot)


def painted(app: NsystuiApp) -> list[Strip]:
    """The lines of the screen as they are painted; Textual has no public way to them."""
    return app.screen._compositor.render_strips()


def screen_text(app: NsystuiApp) -> list[str]:
    """The lines of the screen as a user sees them."""
    width, height = app.size
    lines = ["".join(segment.text for segment in strip) for strip in painted(app)]
    assert len(lines) == height and all(len(line) <= 2 * width for line in lines)
    return [line.rstrip() for line in lines]


async def becomes(pilot: Any, holds: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether a condition holds in time: for a screen that does not come to rest, or moves by itself."""
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        await pilot.pause(0.02)
    return holds()


async def shows(app: NsystuiApp, pilot: Any, words: str) -> None:
    """Waits until ``words`` are on the screen; a state alone does not mean that it was painted."""
    await becomes(pilot, lambda: any(words in line for line in screen_text(app)))
    line_with(app, words)


def line_with(app: NsystuiApp, words: str) -> str:
    """The first line of the screen that has ``words`` in it; fails where there is none."""
    lines = screen_text(app)
    found = next((line for line in lines if words in line), None)
    assert found is not None, f"{words!r} is not on the screen:\n" + "\n".join(lines)
    return found
