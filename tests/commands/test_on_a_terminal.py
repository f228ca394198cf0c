"""Tables on a terminal: they fit its width and height, and report hidden parts. Other output is whole."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

pytestmark = pytest.mark.campaign


@pytest.fixture(scope="module")
def on_terminal():
    """Return a function that runs a command on a terminal of 80 columns and 24 lines, and returns its lines."""

    def run(*words: str | Path) -> list[str]:
        terminal, own = pty.openpty()
        fcntl.ioctl(own, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        command = [sys.executable, "-m", "nsystui", *map(str, words)]
        process = subprocess.Popen(command, stdin=own, stdout=own, stderr=own, env={**environ, "TERM": "dumb"})
        os.close(own)
        parts = []
        try:
            while part := os.read(terminal, 65536):
                parts.append(part)
        except OSError:  # the program has ended, and with it the terminal
            pass
        process.wait()
        os.close(terminal)
        return b"".join(parts).decode().replace("\r", "").splitlines()

    return run


@pytest.mark.parametrize("words", ["kernels", "ranks", "nccl", "gpu", "threads", "efficiency", "overview"])
def test_a_table_fits_the_width_and_names_the_columns_that_are_left_out(on_terminal, demo_job, words):
    lines = on_terminal(*words.split(), *demo_job)
    assert lines and max(map(len, lines)) <= 80
    assert "hidden: " in " ".join(lines) and "--wide shows all" in " ".join(" ".join(lines).split())


@pytest.mark.parametrize(("words", "kept"), {
    "gaps": "cause",
    "gaps --list": "cause",
    "nccl": "busbw",
    "nccl --by rank,collective,size": "busbw",
    "efficiency": "exposed NCCL and copies: 3 NCCL",
    "info --show contents": "`nsys profile -t osrt --osrt-file-access=true`",
}.items())  # fmt: skip
def test_a_table_keeps_what_its_rows_are_asked_for(on_terminal, demo_job, words, kept):
    assert any(kept in line for line in on_terminal(*words.split(), *demo_job, "--top", "40"))


def test_a_table_ends_after_a_screenful_and_says_how_many_rows_there_are(on_terminal, demo_job, run):
    whole = len(run("events", demo_job[0], "--format", "csv").out.splitlines()) - 1
    lines = on_terminal("events", demo_job[0])
    assert len(lines) <= 24
    assert f"18 of {whole:,} rows (--top N for more)" in " ".join(lines)
    assert len(on_terminal("events", demo_job[0], "--top", "40")) > 40


def test_wide_has_every_column_and_a_pipe_has_everything(on_terminal, demo_job, run):
    piped = run("kernels", *demo_job).out.splitlines()
    assert on_terminal("kernels", *demo_job, "--wide", "--top", "100")[: len(piped)] == piped


def test_notes_break_between_words_and_stand_after_the_last_table(on_terminal, demo_job):
    lines = on_terminal("efficiency", *demo_job)
    first_note = min(place for place, line in enumerate(lines) if line.startswith("nsystui: note: "))
    last_title = max(place for place, line in enumerate(lines) if line.startswith("# "))
    assert last_title < first_note
