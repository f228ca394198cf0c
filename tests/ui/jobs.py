"""Shared by the tests of the screens: the program on some files, pressed keys, and the text on the screen."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from idle import until_idle  # pilots wait until the program rests
from textual.app import App, ComposeResult
from textual.events import Key
from textual.message import Message
from textual.pilot import Pilot
from textual.strip import Strip

from nsystui.questions.job.opening import JobSource
from nsystui.ui.app import Look, NsystuiApp
from nsystui.ui.widgets.repainting import ThrottledScreen

NARROW, WIDE = (80, 24), (120, 36)
DARK = Look(is_page_light=False)
"""The look of most tests: the terminal says that its page is dark."""


class WidgetApp(App[None]):
    """Widgets alone, the lines of the first widget, and their messages."""

    def __init__(self, *widgets: Any) -> None:
        super().__init__()
        self.widgets = widgets
        self.heard: list[Message] = []

    def get_default_screen(self) -> ThrottledScreen[None]:
        return ThrottledScreen(id="_default")

    def compose(self) -> ComposeResult:
        yield from self.widgets

    def hear(self, message: Message) -> None:
        self.heard.append(message)

    def lines(self) -> list[str]:
        """The lines that the first widget draws, without blanks at the right."""
        widget = self.widgets[0]
        return [widget.render_line(y).text.rstrip() for y in range(widget.size.height)]


@contextlib.asynccontextmanager
async def shown(app: Any, size: tuple[int, int] = NARROW) -> AsyncIterator[tuple[Any, Pilot[Any]]]:
    """An application in Textual's test driver, with its pilot."""
    async with app.run_test(size=size) as pilot:
        yield app, pilot


@contextlib.asynccontextmanager
async def running(
    files: Iterable[Path], cache: Path | None, size: tuple[int, int] = NARROW, *keys: str, look: Look | None = None
) -> AsyncIterator[tuple[NsystuiApp, Any]]:
    """The program on these files, with everything loaded and shown, and then these keys pressed."""
    async with shown(NsystuiApp(JobSource(tuple(map(str, files)), cache), look or DARK), size) as (app, pilot):
        await pilot.pause()
        await pilot.press(*keys)
        yield app, pilot


@contextlib.asynccontextmanager
async def kept_at_work(app: NsystuiApp, size: tuple[int, int] = NARROW) -> AsyncIterator[Callable[[], Any]]:
    """The program while a thread that the test holds up keeps it from resting: ``tap`` keys, and wait with ``becomes``.

    What this gives is called and awaited once the thread may go on: it waits until the program rests.
    """

    async def no_wait(*_: object, **__: object) -> bool:
        return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pilot, "_wait_for_screen", no_wait)
        async with app.run_test(size=size):
            yield until_idle


def painted(app: NsystuiApp) -> list[Strip]:
    """The lines of the screen as they are painted; Textual has no public way to them."""
    return app.screen._compositor.render_strips()


def screen_text(app: NsystuiApp) -> list[str]:
    """The lines of the screen as a user sees them."""
    width, height = app.size
    lines = ["".join(segment.text for segment in strip) for strip in painted(app)]
    assert len(lines) == height and all(len(line) <= 2 * width for line in lines)
    return [line.rstrip() for line in lines]


async def becomes(holds: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether a condition holds in time: only for a program that a test keeps at work, so that it never rests."""
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    return holds()


async def becomes_text(app: NsystuiApp, words: str) -> bool:
    """Return whether ``words`` appear on the screen of a program that a test keeps at work."""
    return await becomes(lambda: any(words in "".join(part.text for part in strip) for strip in painted(app)))


def tap(app: NsystuiApp, *keys: str) -> None:
    """Presses keys without any wait, as fast as a terminal sends them."""
    for key in keys:
        app.post_message(Key(key, key if len(key) == 1 else None))


def line_with(app: NsystuiApp, words: str) -> str:
    """The first line of the screen that has ``words`` in it; fails without one."""
    lines = screen_text(app)
    found = next((line for line in lines if words in line), None)
    assert found is not None, f"{words!r} is not on the screen:\n" + "\n".join(lines)
    return found


def name_of_screen(app: NsystuiApp) -> str:
    """The name of the class of the screen that is shown."""
    return type(app.screen).__name__


def last_line(app: NsystuiApp) -> str:
    """The keys, or a key's message."""
    return screen_text(app)[-1]


def shows(app: NsystuiApp, *texts: str) -> None:
    """Each of these texts is on the screen; fails for one that does not."""
    for text in texts:
        line_with(app, text)


def cells(app: NsystuiApp, key: str) -> list[Any]:
    """All values of a column of the screen's table."""
    answer = app.screen.table.answer
    place = [column.key for column in answer.columns].index(key)
    return [row[place] for row in answer.page(0, len(answer))]


async def press(pilot: Any, *keys: str) -> Any:
    """Presses keys and gives the program, for a line that says what is to be seen after them."""
    await pilot.press(*keys)
    return pilot.app


async def rested(pilot: Any) -> Any:
    """The program when it has nothing left to do."""
    await pilot.pause()
    return pilot.app


async def resize(pilot: Any, columns: int, lines: int) -> Any:
    """Gives the terminal another size, and the program when everything is drawn in it."""
    await pilot.resize_terminal(columns, lines)
    await pilot.pause()
    return pilot.app


async def answer(app: NsystuiApp, pilot: Any, text: str, *keys: str) -> NsystuiApp:
    """Puts ``text`` into the prompt, the open prompt or the prompt that ``keys`` open, submits it, and returns the
    program."""
    if keys:
        await pilot.press(*keys)
    app.screen.prompt.value = text
    await pilot.press("enter")
    return app
