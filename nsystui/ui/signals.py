"""What the shell and the terminal may do to a running program: end it, stop it, let it go on, go away.

Everything is done between two tasks of the event loop. Textual's own handlers of stops run in the midst of whatever
the program is at: where that was writing to the terminal, it waited for itself for ever.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsystui.ui.app import NsystuiApp

_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
"""They end the program with 128 and their number, as a shell counts: killed, the line dropped, interrupted."""


def obey(app: NsystuiApp) -> None:
    """Lets signals end, stop and continue the program that runs in the event loop of this thread."""
    loop = asyncio.get_running_loop()
    # Textual leaves the terminal as it is when a signal ends the process: no login node user wants that.
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            loop.add_signal_handler(number, partial(app.exit, return_code=128 + number))
    if not app.is_headless:
        _obey_stops(app, loop)
        leave = partial(app.exit, return_code=128 + signal.SIGHUP)
        threading.Thread(target=_watch_line, args=(loop, leave), name="line", daemon=True).start()


def _obey_stops(app: NsystuiApp, loop: asyncio.AbstractEventLoop) -> None:
    loop.add_signal_handler(signal.SIGTSTP, _stop, app, loop)
    loop.add_signal_handler(signal.SIGCONT, _go_on, app)


def _stop(app: NsystuiApp, loop: asyncio.AbstractEventLoop) -> None:
    """Gives the terminal back and stops; goes on from here when it is continued. Nothing where it is at its end.

    All of the process group stops, as on Ctrl-Z in other programs: of a script only its shell is known to the user's.
    Nothing stops where there is no shell that could continue it: the kernel sees to that for SIGTSTP alone.
    """
    if _is_ending(app):
        return
    with app.suspend():
        for number in (signal.SIGTSTP, signal.SIGCONT):
            loop.remove_signal_handler(number)
        os.kill(0, signal.SIGTSTP)
        _obey_stops(app, loop)
    app.refresh(layout=True)


def _go_on(app: NsystuiApp) -> None:
    """Takes the terminal anew: it was stopped from outside (SIGSTOP), and others may have used it since.

    A terminal that closes sends SIGHUP and SIGCONT: nobody would take it back from a program that is at its end.
    """
    if _is_ending(app):
        return
    with app.suspend():
        pass
    app.refresh(layout=True)


def _is_ending(app: NsystuiApp) -> bool:
    return app.return_code is not None


def _watch_line(loop: asyncio.AbstractEventLoop, leave: partial[None]) -> None:
    """Waits for the terminal to go away, which nobody is told who ignores SIGHUP; keys wake it not."""
    stdin = sys.__stdin__
    if stdin is None:
        return
    line = select.poll()
    line.register(stdin.fileno(), 0)  # its end is reported in any case
    line.poll()
    with suppress(RuntimeError):  # it has ended meanwhile
        loop.call_soon_threadsafe(leave)
