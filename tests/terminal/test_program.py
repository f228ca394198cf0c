"""The program in real terminals: how it starts, what it draws where, how it leaves the terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness import WITHOUT_FINDINGS, Terminal

ALTERNATE_ON, ALTERNATE_OFF = b"\x1b[?1049h", b"\x1b[?1049l"
PROGRAM = [sys.executable, "-m", "nsystui"]


def start(job, *flags: str, columns: int = 80, lines: int = 24, **env: str | None) -> Terminal:
    cache = {"NSYSTUI_CACHE_DIR": str(Path(job[0]).parent / "cache")}
    return Terminal([*WITHOUT_FINDINGS, *flags, *job], {**cache, **env}, columns=columns, lines=lines)


def test_q_ends_with_status_0_and_leaves_the_terminal_as_it_was(job):
    with start(job) as terminal:
        terminal.wait_for("Kernels")
        terminal.press("q")
        assert terminal.wait_exit() == 0
        assert terminal.received.count(ALTERNATE_ON) == terminal.received.count(ALTERNATE_OFF) == 1


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 0)])
def test_signals_restore_the_terminal(job, number, status):
    with start(job) as terminal:
        terminal.wait_for("Kernels")
        if number is signal.SIGINT:
            terminal.press("ctrl+c")
        else:
            terminal.kill(number)
        assert terminal.wait_exit() == status
        assert ALTERNATE_OFF in terminal.received


def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        timeout=300,
    )


def test_without_a_terminal_it_says_so_and_ends_with_2(job):
    done = run(*job)
    assert done.returncode == 2
    assert "not a terminal" in done.stderr
    assert "\x1b" not in done.stderr


def test_a_dumb_terminal_gets_a_message(job):
    with start(job, TERM="dumb") as terminal:
        assert terminal.wait_exit() == 2
        assert b"cannot place a cursor" in terminal.received
        assert ALTERNATE_ON not in terminal.received


def test_a_file_that_is_no_export_is_told_after_the_screen_is_gone(tmp_path):
    broken = tmp_path / "rank0.sqlite"
    broken.write_bytes(b"hello")
    with Terminal([*PROGRAM, str(broken)], {"NSYSTUI_CACHE_DIR": str(tmp_path / "cache")}) as terminal:
        assert terminal.wait_exit() == 2
        assert b"not a SQLite file" in terminal.received.rpartition(ALTERNATE_OFF)[2]


@pytest.mark.parametrize(("env", "keys"), [({"LANG": "de_DE.ISO-8859-1"}, "4"), ({"TERM": "linux"}, "4")])
def test_only_ascii_is_drawn_where_utf8_is_not_understood(job, env, keys):
    with start(job, **env) as terminal:
        terminal.wait_for("Kernels")
        for key in keys:
            terminal.press(key)
            terminal.settle(quiet=0.5)
        assert terminal.received.isascii()


def test_no_color_sends_no_colours_and_a_posix_locale_gets_ascii_on_every_screen(job):
    with start(job, NO_COLOR="1", LANG="C") as terminal:
        terminal.wait_for("Kernels")
        for key in "23456":
            terminal.press(key)
            terminal.settle(quiet=0.5)
        assert terminal.received.isascii()
        assert b"38;5;" not in terminal.received
        assert b"48;5;" not in terminal.received
        assert b"38;2;" not in terminal.received


def test_sixteen_colours_do_for_a_plain_terminal(job):
    with start(job, TERM="xterm") as terminal:
        terminal.wait_for("Kernels")
        terminal.press("2")
        terminal.settle(quiet=0.5)
        assert b"38;5;" not in terminal.received
        assert b"38;2;" not in terminal.received


def test_the_mouse_is_left_alone_over_ssh(job):
    with start(job, SSH_CONNECTION="10.0.0.1 1 10.0.0.2 22") as terminal:
        terminal.wait_for("Kernels")
        assert b"\x1b[?1003h" not in terminal.received


def test_resizing_while_it_runs_draws_the_new_size(job):
    with start(job) as terminal:
        terminal.wait_for("Kernels")
        terminal.press("2")
        terminal.wait_for(" names")
        terminal.resize(120, 36)
        deadline = time.monotonic() + 60
        while not any(len(line) > 80 for line in terminal.screen) and time.monotonic() < deadline:
            terminal.listen(0.1)
        assert any(len(line) > 80 for line in terminal.screen), terminal.text
        terminal.settle(quiet=0.7)
        assert "stddev" in terminal.text or "max" in terminal.text
        terminal.resize(60, 15)
        terminal.settle(quiet=0.7)
        assert "│2 Krn│" in terminal.text
