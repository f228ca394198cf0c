"""How tests wait for the program: until it has nothing left to do.

Textual's pilot also stops waiting for a process that gets no CPU, or in which a thread computes. Here the event loop
itself is asked: nothing ready, no timer due soon, no thread at work. While no thread works, the clock is moved to the
next timer instead of waiting for it. Importing this module makes every ``press``, ``click`` and ``pause`` of a pilot
end with ``until_idle``. Between the keys of a ``press`` only repaints are waited for, as with a user who types:
details of the rows on the way would be most of a test's work.
"""

import asyncio
import time
from asyncio.base_events import BaseEventLoop
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import WeakKeyDictionary

import textual._time
import textual.app
import textual.pilot
from textual._context import active_app
from textual.command import CommandPalette
from textual.pilot import Pilot

SOON = 0.25
"""Seconds within which due timers are waited for: repaints, and details that follow a resting cursor."""
REPAINTED = 0.03

_threads: WeakKeyDictionary[Any, set[object]] = WeakKeyDictionary()
_monotonic = time.monotonic
_skipped = 0.0
"""How far the clock was moved, seconds."""


def _clock() -> float:
    return _monotonic() + _skipped


async def until_idle(*_: object, seconds: float = 60.0, soon: float = SOON, **__: object) -> bool:
    """Wait until the program of the running loop rests; ``seconds`` is a bound for hangs, not a measurement.

    Timers due within ``soon`` seconds are waited for.

    Raises:
        TimeoutError: something is still to be done, with what.
    """
    global _skipped
    loop: Any = asyncio.get_running_loop()
    deadline = _monotonic() + seconds
    while True:
        await asyncio.sleep(0)
        if loop._ready:
            continue
        working = _threads.get(loop, set())
        due = min((timer.when() for timer in loop._scheduled if not timer.cancelled()), default=float("inf"))
        wait = due - loop.time()
        app = active_app.get(None)
        if not working and (
            wait > soon or (app is not None and app._exit)
        ):  # repaints of finished widgets never happen
            return True
        if _monotonic() > deadline:
            raise TimeoutError(f"not idle after {seconds} s: {working or f'a timer every {wait} s'}")
        # The palette reports that nothing matches after half a second of searching: there the clock is not moved.
        if working or (app is not None and app._screen_stacks and CommandPalette.is_open(app)):
            await asyncio.sleep(0.002)
        else:
            _skipped += max(wait, 0)


async def until_repainted(*_: object, **__: object) -> bool:
    return await until_idle(soon=REPAINTED)


def _run_in_counted_executor(loop: Any, executor: ThreadPoolExecutor | None, *words: Any) -> asyncio.Future[Any]:
    """As asyncio does, except that a thread counts until it has ended: who cancels its future does not end it."""
    if executor is None and loop._default_executor is None:
        loop.set_default_executor(ThreadPoolExecutor(thread_name_prefix="asyncio"))
    thread = (executor or loop._default_executor).submit(*words)
    future = asyncio.wrap_future(thread, loop=loop)
    working = _threads.setdefault(loop, set())
    for one in (thread, future):
        working.add(one)
        one.add_done_callback(working.discard)
    return future


time.monotonic = _clock
textual._time.get_time = _clock
BaseEventLoop.run_in_executor = _run_in_counted_executor  # type: ignore[method-assign]
textual.app.wait_for_idle = until_repainted  # type: ignore[attr-defined]
textual.pilot.wait_for_idle = until_idle  # type: ignore[attr-defined]
Pilot._wait_for_screen = until_idle  # type: ignore[assignment, method-assign]
