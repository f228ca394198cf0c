"""A program in a terminal of its own, with a count of every byte that it sends.

A pseudo terminal replaces the user's, pyte (a terminal in memory) keeps the screen, and the test is the user::

    with Terminal([*PROGRAM, "job.sqlite"], columns=80, lines=24, ready="Overview") as terminal:
        terminal.press("2", until="Kernels")
        assert terminal.cost("down") < 600

The program's stdout is written to the terminal, too. Not for Windows.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyte

KEYS = {
    "up": b"\x1b[A", "down": b"\x1b[B", "right": b"\x1b[C", "left": b"\x1b[D", "home": b"\x1b[H", "end": b"\x1b[F",
    "pageup": b"\x1b[5~", "pagedown": b"\x1b[6~", "delete": b"\x1b[3~", "backspace": b"\x7f", "escape": b"\x1b",
    "shift+tab": b"\x1b[Z", "shift+left": b"\x1b[1;2D", "shift+right": b"\x1b[1;2C", "enter": b"\r", "tab": b"\t",
    "space": b" ",
    **{f"ctrl+{letter}": bytes([index]) for index, letter in enumerate("abcdefghijklmnopqrstuvwxyz", start=1)},
}  # fmt: skip
"""The bytes that xterm sends for a key. Any other single character is sent unchanged."""

CLEAN = ("PATH", "HOME", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH")
"""The variables that a child inherits; others (TERM, NO_COLOR, SSH_CONNECTION …) must not decide a test."""

PROGRAM = [sys.executable, "-m", "nsystui"]
"""The program as users start it, for tests of its start."""

SEEKS_NOTHING = "import sys; from nsystui.cli import main; from nsystui.ui.screens import findings"
WITHOUT_FINDINGS = [sys.executable, "-c", f"{SEEKS_NOTHING}; findings.MOST_KERNELS = -1; sys.exit(main())"]
"""The program without findings until a key asks for them: triage is more work than most tests of terminals."""

ALTERNATE_ON, ALTERNATE_OFF = b"\x1b[?1049h", b"\x1b[?1049l"

PATIENCE = 600.0
"""Seconds after which a test stops waiting: far more than the slowest test takes on a slow, busy machine."""

SLICE = 0.05
"""Seconds of data that a slow line carries at once."""

LEFT_AFTER_A_SCREEN = {"25": "h", "7": "h"}
"""The private modes that are on under a shell: the cursor is visible, lines wrap."""


def modes_left(received: bytes) -> set[str]:
    """Return the modes of the terminal that differ from a shell's after ``received``: ``{"?1049h", ">1u"}``."""
    modes: dict[str, str] = {}
    for numbers, switch in re.findall(rb"\x1b\[\?([\d;]+)([hl])", received):
        for number in numbers.decode().split(";"):
            modes[number] = switch.decode()
    left = {f"?{number}{switch}" for number, switch in modes.items() if LEFT_AFTER_A_SCREEN.get(number, "l") != switch}
    if received.count(b"\x1b[>1u") > received.count(b"\x1b[<u"):  # kitty's keyboard protocol
        left.add(">1u")
    return left


def assert_ends_well(terminal: Terminal) -> None:
    """Check that ``q`` ends the program without a traceback, and leaves the terminal as a shell has it."""
    terminal.press("q")
    assert terminal.wait_exit() == 0 and modes_left(terminal.received) == set()
    assert b"Traceback" not in terminal.received


class Terminal:
    """A terminal of ``columns`` x ``lines`` in which ``args`` runs; use it as a context manager.

    Args:
        args: The program and its arguments; the program by path or by name on PATH.
        env: Variables for the child, over ``TERM=xterm-256color``, ``LANG=C.UTF-8`` and ``CLEAN``.
            ``None`` as a value removes one.
        cwd: Where the child runs.
        rate: Bytes a second that the line takes from the child; ``None`` means all.
                ready: The text to wait for at the start.
    """

    def __init__(
        self,
        args: Sequence[str | os.PathLike[str]],
        env: Mapping[str, str | None] | None = None,
        columns: int = 80,
        lines: int = 24,
        cwd: str | os.PathLike[str] | None = None,
        rate: int | None = None,
        ready: str = "",
    ) -> None:
        self._args = [os.fspath(arg) for arg in args]
        inherited: dict[str, str | None] = {name: os.environ.get(name) for name in CLEAN}
        chosen = {**inherited, "TERM": "xterm-256color", "LANG": "C.UTF-8", **(env or {})}
        self._env = {name: value for name, value in chosen.items() if value is not None}
        self._cwd, self._rate, self._ready = cwd, rate, ready
        self._carried = (time.monotonic(), 0.0)  # the end, and the bytes that the line may carry since
        self._emulator = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._emulator)
        self._received = bytearray()
        self._mark, self._fd, self._pid = 0, -1, 0
        self._status: int | None = None

    # -- the child's life -----------------------------------------------------------------------------------------

    def __enter__(self) -> Terminal:
        size = (self._emulator.lines, self._emulator.columns)
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            self._become_child(size)
        os.set_blocking(self._fd, False)
        try:
            self.wait_for(self._ready)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _become_child(self, size: tuple[int, int]) -> None:
        """Set up the child and run the program. Never returns."""
        try:
            _set_size(0, *size)
            if self._cwd is not None:
                os.chdir(self._cwd)
            # As from a terminal: tests in the background would ignore these signals.
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP):
                signal.signal(number, signal.SIG_DFL)
            os.execvpe(self._args[0], self._args, self._env)
        except BaseException as error:  # the child must not continue with the parent's code
            os.write(2, f"cannot run {self._args[0]}: {error}\n".encode())
        finally:
            os._exit(127)

    def __exit__(self, *_: object) -> None:
        """End the child if it still runs, politely first, and a shell's job, and close the terminal."""
        job = self._job()
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            if self._wait_exit(2.0 if self.kill(signal_number) else 0.0):
                break
        if job:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job, signal.SIGKILL)
        self.hang_up()

    def _job(self) -> int:
        """Return the process group of a shell's foreground job, which a failed test must not leave; 0 without a job."""
        if self._fd < 0 or self.exit_code is not None:
            return 0
        with contextlib.suppress(OSError):
            return self.foreground if self.foreground not in (0, self._pid) else 0
        return 0

    def hang_up(self) -> None:
        """Drop the connection, as a closed window or a broken line does."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def kill(self, number: int = signal.SIGTERM) -> bool:
        """Send the child's process group a signal; return whether the group exists."""
        if self._status is not None:
            return False
        try:
            os.killpg(self._pid, number)  # pty.fork made the child the leader of its own group
        except ProcessLookupError:
            return False
        return True

    @property
    def pid(self) -> int:
        """The child's process id, also the id of its group."""
        return self._pid

    @property
    def foreground(self) -> int:
        """The process group that receives keys: under a shell with jobs, the job's."""
        return os.tcgetpgrp(self._fd)

    @property
    def exit_code(self) -> int | None:
        """The child's exit status, or the negative signal that ended it; ``None`` while it runs."""
        if self._status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status

    def wait_exit(self, timeout: float = PATIENCE) -> int:
        """Wait for the child's end and return its status; raise ``TimeoutError`` if it continues."""
        if not self._wait_exit(timeout):
            raise TimeoutError(f"still running after {timeout} s:\n{self.text}")
        assert self._status is not None
        return self._status

    def _wait_exit(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while True:
            self.read(0.02)  # keeps the child from blocking on a full terminal
            if self.exit_code is not None:
                while self.read(0.0):
                    pass
                return True
            if time.monotonic() >= deadline:
                return False

    # -- the user's hands -----------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Type ``data``, byte for byte, and read the output meanwhile."""
        deadline = time.monotonic() + PATIENCE
        while data:
            try:
                data = data[os.write(self._fd, data[:1024]) :]
            except BlockingIOError:
                pass
            except OSError:  # EIO: the child has ended
                return
            while data and self.read(0.01):
                pass
            if self.exit_code is not None:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"the program reads no keys:\n{self.text}")

    def press(self, *keys: str, until: str = "") -> None:
        """Press keys by name (``"down"``, see ``KEYS``) or by character (``"é"``), and wait for their effect."""
        for key in keys:
            if key not in KEYS and len(key) != 1:
                raise ValueError(f"no key is called {key!r}")
            self.send(KEYS.get(key) or key.encode())
        if until:
            self.wait_for(until)

    def resize(self, columns: int, lines: int) -> None:
        """Resize the terminal, as dragging a window's corner does."""
        self._emulator.resize(lines, columns)
        _set_size(self._fd, lines, columns)

    # -- the user's eyes ------------------------------------------------------------------------------------------

    @property
    def screen(self) -> list[str]:
        """The lines of the screen, without the blanks at their right ends."""
        return [line.rstrip() for line in self._emulator.display]

    @property
    def text(self) -> str:
        return "\n".join(self.screen)

    @property
    def cells(self) -> Mapping[int, Mapping[int, pyte.screens.Char]]:
        """Line -> column -> character with its colours, for tests about colour."""
        return self._emulator.buffer

    @property
    def received(self) -> bytes:
        return bytes(self._received)

    def mark(self) -> None:
        """Count bytes from here; bytes on their way are read first."""
        while self.read(0.0):
            pass
        self._mark = len(self._received)

    @property
    def bytes_since_mark(self) -> int:
        """Number of bytes received since ``mark`` (or since the start): the load of a slow line."""
        return len(self._received) - self._mark

    @property
    def since_mark(self) -> bytes:
        """The bytes received since ``mark``."""
        return bytes(self._received[self._mark :])

    def settle(self, quiet: float = 0.3, timeout: float = PATIENCE) -> None:
        """Read until nothing arrives for ``quiet`` seconds in which the program is idle.

        On a busy machine a silent program may wait for a CPU, or still compute its screen.
        """
        now = time.monotonic()
        deadline, last = now + timeout, now
        while time.monotonic() - last < quiet:
            if self.read(quiet / 4) or self._is_at_work():
                last = time.monotonic()
            if time.monotonic() > deadline:
                raise TimeoutError(f"no quiet of {quiet} s within {timeout} s:\n{self.text}")

    def answer(self, quiet: float = 0.3) -> None:
        """Wait until bytes arrive after ``mark``, however busy the machine is, and then until the program settles."""
        self.wait_until(lambda: self.bytes_since_mark > 0, "answer")
        self.settle(quiet)

    def cost(self, key: str, quiet: float = 0.5) -> int:
        """Return the bytes sent after a key that changes something."""
        self.mark()
        self.press(key)
        self.answer(quiet)
        return self.bytes_since_mark

    def listen(self, seconds: float) -> int:
        """Read for ``seconds``, and return the number of bytes. For "an idle program sends nothing"."""
        before, deadline = len(self._received), time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.read(min(left, 0.05))
        return len(self._received) - before

    def _is_at_work(self) -> bool:
        """Return whether a thread of the program runs, or waits for a CPU or a disk; False if that is unknown."""
        states = set()
        with contextlib.suppress(OSError, IndexError):  # the process or a thread has ended, or this is not Linux
            for task in Path(f"/proc/{self.foreground or self._pid}/task").iterdir():
                states.add(Path(task, "stat").read_bytes().rpartition(b")")[2].split()[0])
        return bool(states & {b"R", b"D"})

    def wait_for(self, text: str, timeout: float = PATIENCE) -> None:
        """Read until ``text`` is on the screen."""
        self.wait_until(lambda: text in self.text, text, timeout)

    def wait_for_bytes(self, data: bytes) -> None:
        """Read until ``data`` has arrived since ``mark``."""
        self.wait_until(lambda: data in self.since_mark, str(data))

    def wait_until(self, holds: Callable[[], bool], what: str, timeout: float = PATIENCE) -> None:
        """Read until a condition holds; raise if the child ends before, or after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while not holds():
            self.read(0.05)
            if self.exit_code is not None:
                self._wait_exit(0.1)
                assert holds(), f"exit status {self._status} before {what!r} appeared:\n{self.text}"
            elif time.monotonic() > deadline:
                raise TimeoutError(f"no {what!r} within {timeout} s:\n{self.text}")

    def read(self, timeout: float) -> int:
        """Read at most one chunk within ``timeout`` seconds; return the number of bytes."""
        if self._fd < 0:
            time.sleep(timeout)
            return 0
        if not select.select([self._fd], [], [], timeout)[0]:
            return 0
        allowed = self._allowance(timeout)
        if not allowed:
            return 0
        try:
            data = os.read(self._fd, allowed)
        except OSError:  # the child closed its end
            return 0
        self._received += data
        until, left = self._carried
        self._carried = (until, left - len(data))
        with contextlib.suppress(Exception):  # pyte knows most of xterm, and an unknown sequence must not end a test
            self._stream.feed(data)
        return len(data)

    def _allowance(self, timeout: float) -> int:
        """Return the bytes that the line can carry now, after at most ``timeout`` seconds if it is busy."""
        if self._rate is None:
            return 65536
        if self._carried[1] < 1:
            time.sleep(min(timeout, SLICE))
        now = time.monotonic()
        until, left = self._carried
        self._carried = (now, min(left + (now - until) * self._rate, self._rate * SLICE))
        return max(0, int(self._carried[1]))


def _set_size(fd: int, lines: int, columns: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
