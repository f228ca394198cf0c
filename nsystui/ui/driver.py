"""The one place that owns the terminal while the screens are on: it is taken, read, written and given back here.

Signals end, stop and continue the program; a terminal that goes away ends it. The handlers stand before the screen is
touched, and stay until the process ends: a storm of signals ends the program once, with the status of the first.

Stops are obeyed between two tasks of the event loop. Textual's own handlers run in the midst of whatever the program
is at: where that was writing to the terminal, it waited for itself for ever.
"""

from __future__ import annotations

import errno
import os
import queue
import re
import select
import signal
import sys
import termios
import threading
import time
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO, cast

from textual import events
from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver
from textual.geometry import Size
from textual.message import Message

from nsystui.base import terminal
from nsystui.ui.keys import TYPED_AHEAD

if TYPE_CHECKING:
    from textual.app import App

_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
"""They end the program with 128 and their number, as a shell counts: killed, the line dropped, interrupted."""
_PATIENCE, _LAST_PATIENCE = 3.5, 1.0
"""Seconds that the program may take to end after a signal, or after the terminal is gone, and seconds that the
terminal may then take to receive the last bytes."""

_TRIES = 100
"""How often the settings of the terminal are given back: a signal may interrupt that, a storm often."""

_PORTION = 4096
"""Bytes that are read or written at once."""

_ASKED_PAGE = "\x1b]11;?\x07"
_PAGE = re.compile(
    r"\x1b\]11;rgba?:([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})[^\x07\x1b]*(?:\x07|\x1b\\)"
)
"""The question for the colour of the page (OSC 11), and a terminal's answer to it."""
_UNFINISHED = re.compile(r"\x1b\](11;)?[^\x07\x1b]{0,60}\x1b?$")
"""The beginning of an answer whose end is in the next portion."""
_SILENCES = 20
"""Empty reads, of 0.1 s each, after which an answer has no end; one where it may be Alt-] instead."""

_GIVEN_BACK = "".join(
    (
        "\x1b[?2004l",  # pasted text is in brackets
        "\x1b[?7h",  # lines wrap
        "\x1b[?2048l",  # sizes are told in the input
        "\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l",  # the mouse
        "\x1b[<u",  # kitty's keys, which belong to the alternate screen
        "\x1b[?1049l",  # the alternate screen
        "\x1b[?25h",  # the cursor
        "\x1b[?1004l",  # focus
    )
)
"""Takes back everything that ``LinuxDriver.start_application_mode`` asks the terminal for."""


class _Output:
    """Text for a terminal: waits while it is full, and drops the text once it is gone, which it says.

    Once ``is_over`` is true, the rest of the text is dropped, too.
    """

    def __init__(self, stream: TextIO, lost: Callable[[], None]) -> None:
        self._descriptor = stream.fileno()
        self._encoding = stream.encoding
        self._lost = lost
        self._text: list[str] = []
        self.is_over = False

    def fileno(self) -> int:
        return self._descriptor

    def write(self, text: str) -> None:
        self._text.append(text)

    def flush(self) -> None:
        data = "".join(self._text).encode(self._encoding, "backslashreplace")
        self._text.clear()
        while data and not self.is_over:
            try:
                data = data[os.write(self._descriptor, data[:_PORTION]) :]
            except BlockingIOError:  # somebody who shares the terminal asked for that
                select.select([], [self._descriptor], [])
            except OSError:
                self._lost()
                return


class TerminalDriver(LinuxDriver):
    """Textual's driver, which never leaves the terminal as the screens need it, nor waits for one that is gone."""

    def __init__(
        self, app: App[Any], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        assert sys.__stderr__ is not None
        self._output = _Output(sys.__stderr__, self._terminal_is_lost)
        self._file: Any = self._output
        self._size = size or self._get_terminal_size()
        self._is_taken = False
        self._typed: deque[Message] = deque()
        self._parser = XTermParser(self._debug)
        self._unfinished = ""
        self._silences = 0
        self._must_end = False
        self._endings: queue.SimpleQueue[int] = queue.SimpleQueue()
        threading.Thread(target=self._see_to_the_end, name="end", daemon=True).start()
        self._changing = threading.Lock()  # held while the terminal is taken or given back
        for number in _ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                signal.signal(number, lambda number, _: self._end(128 + number))
        self._obey_stops()

    # -- how it ends ----------------------------------------------------------------------------------------------

    def _end(self, status: int) -> None:
        """From a signal handler, too: it takes no lock, as what it interrupts may hold any."""
        self._must_end = True
        self._endings.put(status)

    def _terminal_is_lost(self) -> None:
        """Nobody is told who ignores SIGHUP: reading and writing say it."""
        self._end(128 + signal.SIGHUP)

    def _see_to_the_end(self) -> None:
        """Waits for the first reason to end, asks the application to, and ends the process where that takes long."""
        status = self._endings.get()
        self._soon(self._leave, status)
        time.sleep(_PATIENCE)
        self._output.is_over = True
        try:
            # If nobody reads the terminal, this thread never ends: the process does not wait for it.
            last = threading.Thread(target=self._give_back, name="last", daemon=True)
            last.start()
            last.join(_LAST_PATIENCE)
        finally:
            os._exit(status)

    def _soon(self, do: Callable[..., None], *words: Any) -> None:
        """Does something between two tasks of the event loop, unless that has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(do, *words)

    def _leave(self, status: int) -> None:
        self._typed.clear()
        self._app.exit(return_code=status)

    # -- stopped and continued ------------------------------------------------------------------------------------

    def _obey_stops(self) -> None:
        # Not by way of the event loop, which complains of every signal while it closes.
        signal.signal(signal.SIGTSTP, lambda *_: self._soon(self._stop))
        signal.signal(signal.SIGCONT, lambda *_: self._soon(self._go_on))

    @property
    def _is_ending(self) -> bool:
        return self._must_end or self._app.return_code is not None

    def _stop(self) -> None:
        """Gives the terminal back and stops; goes on from here when it is continued. Nothing where it is at its end.

        All of the process group stops, as on Ctrl-Z in other programs: of a script only its shell is known to the
        user's. Nothing stops where there is no shell that could continue it: the kernel sees to that for SIGTSTP alone.
        """
        if self._is_ending:
            return
        self.stop_application_mode()
        for number in (signal.SIGTSTP, signal.SIGCONT):
            signal.signal(number, signal.SIG_DFL)
        os.kill(0, signal.SIGTSTP)
        self._obey_stops()
        self._take_again()

    def _go_on(self) -> None:
        """Takes the terminal anew: it was stopped from outside (SIGSTOP), and others may have used it since."""
        if not self._is_ending:
            self.stop_application_mode()
            self._take_again()

    def _take_again(self) -> None:
        """Nobody would take the terminal back from a program that is at its end.

        A terminal that closes sends SIGHUP and SIGCONT, and `kill %1` of a shell SIGTERM and SIGCONT.
        """
        if not self._is_ending:
            self.start_application_mode()
            self._app.refresh(layout=True)

    # -- taken and given back -------------------------------------------------------------------------------------

    def start_application_mode(self) -> None:
        """Take the terminal over, and ask it for the colour of its page."""
        self._is_taken = True
        try:
            with self._changing:
                super().start_application_mode()  # type: ignore[no-untyped-call]
        except BaseException:  # such as no thread to be had
            self.stop_application_mode()
            raise
        if self._writer_thread is None:  # it is in the background, and takes the terminal when it is continued
            self._is_taken = False
            if not os.isatty(self.fileno):
                self._terminal_is_lost()
        elif getattr(self._app, "asks_page", False):
            self.write(_ASKED_PAGE)

    def disable_input(self) -> None:
        """Stop the reading of keys."""
        if self._is_taken:
            super().disable_input()

    def stop_application_mode(self) -> None:
        """Give the terminal back as it was."""
        if self._is_taken:
            self.disable_input()
            self.close()
            self._give_back()

    def close(self) -> None:
        """Waits until the terminal has taken all output; later output is dropped."""
        if self._writer_thread is not None:
            self._writer_thread.stop()
            self._writer_thread = None

    def _give_back(self) -> None:
        """Once for each time that it was taken, and as the last thing that it is sent."""
        with self._changing:
            if not self._is_taken:
                return
            self._is_taken = False
            settings = self.attrs_before
            for _ in range(_TRIES if settings else 0):
                try:
                    termios.tcsetattr(self.fileno, termios.TCSANOW, cast("list[Any]", settings))
                    break
                except termios.error as error:
                    if error.args[0] != errno.EINTR:
                        break
            with suppress(OSError):
                os.write(self._output.fileno(), _GIVEN_BACK.encode())

    def write(self, data: str) -> None:
        """Send to the terminal, unless it is lost."""
        if self._writer_thread is not None:
            self._writer_thread.write(data)

    def _get_terminal_size(self) -> tuple[int, int]:
        return terminal.size(self._output.fileno())

    # -- what is typed --------------------------------------------------------------------------------------------

    def run_input_thread(self) -> None:
        """Reads the input in portions; bytes that are no UTF-8 become replacement characters."""
        decode = getincrementaldecoder("utf-8")("replace").decode
        while not self.exit_event.is_set():
            try:
                data = os.read(self.fileno, _PORTION) if select.select([self.fileno], [], [], 0.1)[0] else None
            except OSError:
                self._terminal_is_lost()
                return
            if data == b"" and not os.isatty(self.fileno):
                self._terminal_is_lost()
                return
            for message in self._parsed(self._without_page(decode(data or b""))):
                self.process_message(message)

    def _without_page(self, text: str) -> str:
        """The input without the colour of the page, which the application is told."""
        self._silences = 0 if text else self._silences + 1
        text, self._unfinished = self._unfinished + text, ""
        while found := _PAGE.search(text):
            red, green, blue = (int(part, 16) / (16 ** len(part) - 1) for part in found.groups())
            is_light = 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.5
            self._soon(getattr(self._app, "page_is", lambda _: None), is_light)
            text = text[: found.start()] + text[found.end() :]
        unfinished = _UNFINISHED.search(text)
        if unfinished is not None and self._silences < (_SILENCES if unfinished[1] else 1):
            self._unfinished, text = unfinished.group(), text[: unfinished.start()]
        return text

    def _parsed(self, text: str) -> list[Message]:
        try:
            return [*(self._parser.feed(text) if text else ()), *self._parser.tick()]
        except Exception:  # the parser fails at what no terminal sends, such as a key beyond the last of Unicode
            self._parser = XTermParser(self._debug)
            return []

    def process_message(self, message: Message) -> None:
        """Hand on what the terminal said."""
        if isinstance(message, events.Resize):  # a terminal may tell its size in the input, and so may a paste
            size = Size(*terminal.bounded(*message.size))
            message = events.Resize(size, size, size, message.pixel_size)
        super().process_message(message)

    def send_message(self, message: Message) -> None:
        """From the thread that reads: hands a message over to the application, which takes it when it can.

        As on a terminal that is not raw, Ctrl-C passes over what was typed ahead of it.
        """
        if isinstance(message, events.Key) and message.key == "ctrl+c":
            self._typed.clear()
        if isinstance(message, events.InputEvent) and len(self._typed) >= TYPED_AHEAD:
            return
        self._typed.append(message)
        self._soon(self._deliver)

    def _deliver(self) -> None:
        while self._typed:
            self._app.post_message(self._typed.popleft())
