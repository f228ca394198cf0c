"""Helpers for tests of screens: the program on some files, pressed keys, and the text on the screen."""

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

    CSS_PATH = NsystuiApp.CSS_PATH

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
        """Return the lines that the first widget draws, without blanks at the right."""
        widget = self.widgets[0]
        return [widget.render_line(y).text.rstrip() for y in range(widget.size.height)]


@contextlib.asynccontextmanager
async def shown(app: Any, size: tuple[int, int] = NARROW) -> AsyncIterator[tuple[Any, Pilot[Any]]]:
    """Yield an application in Textual's test driver, with its pilot."""
    async with app.run_test(size=size) as pilot:
        yield app, pilot


@contextlib.asynccontextmanager
async def running(
    files: Iterable[Path], cache: Path | None, size: tuple[int, int] = NARROW, *keys: str, look: Look | None = None
) -> AsyncIterator[tuple[NsystuiApp, Any]]:
    """Yield the program on these files, after everything is loaded and shown and these keys are pressed."""
    async with shown(NsystuiApp(JobSource(tuple(map(str, files)), cache), look or DARK), size) as (app, pilot):
        await pilot.pause()
        await pilot.press(*keys)
        yield app, pilot


@contextlib.asynccontextmanager
async def kept_at_work(app: NsystuiApp, size: tuple[int, int] = NARROW) -> AsyncIterator[Callable[[], Any]]:
    """Run the program while a thread that the test holds keeps it busy: ``tap`` keys, and wait with ``becomes``.

    Yields a function to await after the thread is released: it waits until the program rests.
    """

    async def no_wait(*_: object, **__: object) -> bool:
        return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pilot, "_wait_for_screen", no_wait)
        async with app.run_test(size=size):
            yield until_idle


def painted(app: NsystuiApp) -> list[Strip]:
    """Return the painted lines of the screen; Textual has no public access to them."""
    return app.screen._compositor.render_strips()


def screen_text(app: NsystuiApp) -> list[str]:
    """Return the lines of the screen as a user sees them."""
    width, height = app.size
    lines = ["".join(segment.text for segment in strip) for strip in painted(app)]
    assert len(lines) == height and all(len(line) <= 2 * width for line in lines)
    return [line.rstrip() for line in lines]


async def becomes(holds: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Return whether a condition holds in time: only for a program that a test keeps busy, so that it never rests."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(AssertionError):  # a screen that was just opened has no lines yet
            if holds():
                return True
        await asyncio.sleep(0.05)  # to look at the screen takes 10 ms
    return holds()


async def becomes_text(app: NsystuiApp, words: str) -> bool:
    """Return whether ``words`` appear on the screen of a program that a test keeps busy."""
    return await becomes(lambda: any(words in "".join(part.text for part in strip) for strip in painted(app)))


def tap(app: NsystuiApp, *keys: str) -> None:
    """Press keys without waiting, as fast as a terminal sends them."""
    for key in keys:
        app.post_message(Key(key, key if len(key) == 1 else None))


def line_with(app: NsystuiApp, words: str) -> str:
    """Return the first line of the screen that contains ``words``; fail if no line does."""
    lines = screen_text(app)
    found = next((line for line in lines if words in line), None)
    assert found is not None, f"{words!r} is not on the screen:\n" + "\n".join(lines)
    return found


def name_of_screen(app: NsystuiApp) -> str:
    return type(app.screen).__name__


def last_line(app: NsystuiApp) -> str:
    """Return the last line: the keys, or a key's message."""
    return screen_text(app)[-1]


def shows(app: NsystuiApp, *texts: str) -> None:
    """Check that each of these texts is on the screen."""
    for text in texts:
        line_with(app, text)


def cells(app: NsystuiApp, key: str) -> list[Any]:
    """Return all values of a column of the screen's table."""
    answer = app.screen.table.answer
    place = [column.key for column in answer.columns].index(key)
    return [row[place] for row in answer.page(0, len(answer))]


def keys_of(text: str) -> list[str]:
    named = {" ": "space", ",": "comma", "-": "minus"}
    return [named.get(character, character) for character in text]


async def press(pilot: Any, *keys: str) -> Any:
    """Press keys and return the program, so that a single line can press and check."""
    await pilot.press(*keys)
    return pilot.app


async def rested(pilot: Any) -> Any:
    await pilot.pause()
    return pilot.app


async def resize(pilot: Any, columns: int, lines: int) -> Any:
    """Resize the terminal, and return the program when it rests."""
    await pilot.resize_terminal(columns, lines)
    await pilot.pause()
    return pilot.app


async def answer(app: NsystuiApp, pilot: Any, text: str, *keys: str) -> NsystuiApp:
    """Submit ``text`` in the open prompt or the prompt that ``keys`` open, and return the program."""
    if keys:
        await pilot.press(*keys)
    app.screen.prompt.input.value = text
    await pilot.press("enter")
    return app
