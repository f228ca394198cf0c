"""The driver: takes, reads, writes and gives back the terminal; nothing else touches it while the screens are on.

Signals end, stop and continue the program; a lost terminal ends it. The handlers are set before the screen is
touched, and stay until the process ends: after many signals, the program ends once, with the first signal's status.

The program stops between two tasks of the event loop. Textual's handlers would interrupt any code: code writing to the
terminal would wait for itself forever.
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

_PATIENCE, _LAST_PATIENCE = 3.5, 1.0
"""Seconds to end after a signal or the loss of the terminal, and then for the terminal to receive the last bytes."""

_MAX_BYTES = 4096
"""Maximum bytes of a read or write."""

_PAGE_ANSWER = re.compile(
    r"\x1b\]11;rgba?:([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})[^\x07\x1b]*(?:\x07|\x1b\\)"
)
"""A terminal's answer to the question for its background colour (OSC 11)."""
_UNFINISHED = re.compile(r"\x1b\](11;)?[^\x07\x1b]{0,60}\x1b?$")
"""The beginning of an answer that ends in the next read."""
_MAX_EMPTY_READS = 20
"""Empty reads (0.1 s each) after which an unfinished answer counts as keys; 1 read if it may be Alt-] instead."""

_RESET = "".join(
    (
        "\x1b[?2004l",  # bracketed paste
        "\x1b[?7h",  # lines wrap
        "\x1b[?2048l",  # sizes in the input
        "\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l",  # the mouse
        "\x1b[<u",  # kitty's keys, which belong to the alternate screen
        "\x1b[?1049l",  # the alternate screen
        "\x1b[?25h",  # the cursor
        "\x1b[?1004l",  # focus
    )
)
"""Undoes everything that ``LinuxDriver.start_application_mode`` asks of the terminal."""


class _Output:
    """Writes text to a terminal, and waits while the terminal accepts no more.

    Drops the text once ``is_over`` is true. If the terminal is lost, drops the text and calls ``on_lost``.
    """

    def __init__(self, stream: TextIO, on_lost: Callable[[], None]) -> None:
        self._descriptor = stream.fileno()
        self._encoding = stream.encoding
        self._on_lost = on_lost
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
                data = data[os.write(self._descriptor, data[:_MAX_BYTES]) :]
            except BlockingIOError:  # another program made the shared terminal non-blocking
                select.select([], [self._descriptor], [])
            except OSError:
                self._on_lost()
                return


class TerminalDriver(LinuxDriver):
    """Textual's driver, but it always restores the terminal, and never waits for a lost terminal."""

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
        self._empty_reads = 0
        self._must_end = False
        self._exit_statuses: queue.SimpleQueue[int] = queue.SimpleQueue()
        threading.Thread(target=self._end_when_asked, name="end", daemon=True).start()
        self._terminal_lock = threading.Lock()  # held while the terminal is taken or given back
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                signal.signal(number, lambda number, _: self._end(128 + number))  # as in a shell

    # -- ending ---------------------------------------------------------------------------------------------------

    def _end(self, status: int) -> None:
        """End the program. Takes no lock: signal handlers call it, and the interrupted code may hold any lock."""
        self._must_end = True
        self._exit_statuses.put(status)

    def _terminal_is_lost(self) -> None:
        """End after a failed read or write: SIGHUP may be ignored."""
        self._end(128 + signal.SIGHUP)

    def _end_when_asked(self) -> None:
        """Wait for the first status, ask the application to exit, and end the process if that takes too long."""
        status = self._exit_statuses.get()
        self._call_soon(self._leave, status)
        time.sleep(_PATIENCE)
        self._output.is_over = True
        try:
            # This thread never ends if nobody reads the terminal: a daemon does not keep the process alive.
            restoring = threading.Thread(target=self._give_back, name="last", daemon=True)
            restoring.start()
            restoring.join(_LAST_PATIENCE)
        finally:
            os._exit(status)

    def _call_soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Call a function between two tasks of the event loop, unless it has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _leave(self, status: int) -> None:
        self._typed.clear()
        self._app.exit(return_code=status)

    # -- stopped and continued ------------------------------------------------------------------------------------

    def _sigtstp_application(self, *_: object) -> None:
        """Handle SIGTSTP from Textual's constructor on: before this class has its own attributes.

        The event loop's own handlers would log an error for every signal while the loop closes.
        """
        self._call_soon(self._stop)

    def _sigcont_application(self, *_: object) -> None:
        self._call_soon(self._continue)

    @property
    def _is_ending(self) -> bool:
        return self._must_end or self._app.return_code is not None

    def _stop(self) -> None:
        """Give the terminal back, stop, and take the terminal again when continued, unless the program is ending.

        The whole process group stops, as on Ctrl-Z: if a script runs the program, the user's shell knows only
        the script. Unlike SIGSTOP, SIGTSTP has no effect if no shell could continue the group.
        """
        if self._is_ending:
            return
        self.stop_application_mode()
        for number in (signal.SIGTSTP, signal.SIGCONT):
            signal.signal(number, signal.SIG_DFL)
        os.kill(0, signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._sigtstp_application)
        signal.signal(signal.SIGCONT, self._sigcont_application)
        self._take_again()

    def _continue(self) -> None:
        """Take the terminal again after SIGSTOP: other programs may have used it since."""
        if not self._is_ending:
            self.stop_application_mode()
            self._take_again()

    def _take_again(self) -> None:
        """Take the terminal again, unless the program is ending, because nothing would give it back.

        A closing terminal sends SIGHUP and SIGCONT, and a shell's `kill %1` sends SIGTERM and SIGCONT.
        """
        if not self._is_ending:
            self.start_application_mode()
            self._app.refresh(layout=True)

    # -- taken and given back -------------------------------------------------------------------------------------

    def start_application_mode(self) -> None:
        """Take the terminal, and ask it for its background colour."""
        self._is_taken = True
        try:
            with self._terminal_lock:
                super().start_application_mode()  # type: ignore[no-untyped-call]
        except BaseException:  # for example, no thread could be started
            self.stop_application_mode()
            raise
        if self._writer_thread is None:  # in the background: takes the terminal when continued
            self._is_taken = False
            if not os.isatty(self.fileno):
                self._terminal_is_lost()
        elif getattr(self._app, "asks_page", False):
            self.write("\x1b]11;?\x07")  # asks for the background colour

    def disable_input(self) -> None:
        if self._is_taken:
            super().disable_input()

    def stop_application_mode(self) -> None:
        if self._is_taken:
            self.disable_input()
            self.close()
            self._give_back()

    def close(self) -> None:
        """Wait until all output is written; later output is dropped."""
        if self._writer_thread is not None:
            self._writer_thread.stop()
            self._writer_thread = None

    def _give_back(self) -> None:
        """Restore the terminal if it is taken; nothing may be written afterwards."""
        with self._terminal_lock:
            if not self._is_taken:
                return
            self._is_taken = False
            settings = self.attrs_before
            for _ in range(100 if settings else 0):  # a signal may interrupt each try
                try:
                    termios.tcsetattr(self.fileno, termios.TCSANOW, cast("list[Any]", settings))
                    break
                except termios.error as error:
                    if error.args[0] != errno.EINTR:
                        break
            with suppress(OSError):
                os.write(self._output.fileno(), _RESET.encode())

    def write(self, data: str) -> None:
        """Write to the terminal, unless it is given back."""
        if self._writer_thread is not None:
            self._writer_thread.write(data)

    def _get_terminal_size(self) -> tuple[int, int]:
        return terminal.size(self._output.fileno())

    # -- input ----------------------------------------------------------------------------------------------------

    def run_input_thread(self) -> None:
        """Read the input; invalid UTF-8 becomes replacement characters."""
        decode = getincrementaldecoder("utf-8")("replace").decode
        while not self.exit_event.is_set():
            try:
                data = os.read(self.fileno, _MAX_BYTES) if select.select([self.fileno], [], [], 0.1)[0] else None
            except OSError:
                self._terminal_is_lost()
                return
            if data == b"" and not os.isatty(self.fileno):
                self._terminal_is_lost()
                return
            for message in self._parsed(self._without_page(decode(data or b""))):
                self.process_message(message)

    def _without_page(self, text: str) -> str:
        """Return the input without background colours, and pass to the application whether the background is light."""
        self._empty_reads = 0 if text else self._empty_reads + 1
        text, self._unfinished = self._unfinished + text, ""
        while match := _PAGE_ANSWER.search(text):
            red, green, blue = (int(part, 16) / (16 ** len(part) - 1) for part in match.groups())
            is_light = 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.5
            self._call_soon(getattr(self._app, "page_is", lambda _: None), is_light)
            text = text[: match.start()] + text[match.end() :]
        unfinished = _UNFINISHED.search(text)
        if unfinished is not None and self._empty_reads < (_MAX_EMPTY_READS if unfinished[1] else 1):
            self._unfinished, text = unfinished.group(), text[: unfinished.start()]
        return text

    def _parsed(self, text: str) -> list[Message]:
        try:
            return [*(self._parser.feed(text) if text else ()), *self._parser.tick()]
        except Exception:  # the parser fails on input that no terminal sends, such as a key beyond Unicode
            self._parser = XTermParser(self._debug)
            return []

    def process_message(self, message: Message) -> None:
        """Pass on a message from the input; bound the terminal's size in it."""
        if isinstance(message, events.Resize):  # pasted text may look like a terminal's size
            size = Size(*terminal.bounded(*message.size))
            message = events.Resize(size, size, size, message.pixel_size)
        super().process_message(message)

    def send_message(self, message: Message) -> None:
        """Queue a message of the reading thread for the application.

        Ctrl-C drops the keys typed before it, as on a terminal that is not raw.
        """
        if isinstance(message, events.Key) and message.key == "ctrl+c":
            self._typed.clear()
        if isinstance(message, events.InputEvent) and len(self._typed) >= TYPED_AHEAD:
            return
        self._typed.append(message)
        self._call_soon(self._deliver)

    def _deliver(self) -> None:
        while self._typed:
            self._app.post_message(self._typed.popleft())
