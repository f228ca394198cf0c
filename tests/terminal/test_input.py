"""Whatever comes from the keyboard, a paste or the environment: the program goes on, answers, and can be ended."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from pathlib import Path

import pytest
from harness import WITHOUT_FINDINGS, Terminal, modes_left


@pytest.fixture
def environment(job) -> dict[str, str]:
    return {"NSYSTUI_CACHE_DIR": str(Path(job[0]).parent / "cache")}


def answers(terminal: Terminal) -> None:
    """It opens a screen and ends when it is told to."""
    terminal.press("2")
    terminal.wait_for(" names", timeout=60)
    terminal.press("q")
    assert terminal.wait_exit(60) == 0
    assert modes_left(terminal.received) == set()
    assert b"Traceback" not in terminal.received


NO_UTF8 = {
    "latin-1": b"\xe9",
    "0xff": b"\xff",
    "half of two": b"\xc3(",
    "surrogate": b"\xed\xa0\x80",
    "much": bytes(range(0x80, 0x100)) * 20,
    "paste": b"\x1b[200~caf\xe9\xff\x1b[201~",
    "no code point": b"\x1b[99999999u",
    "no text": b"\x1b[99999999;1;99999999u",
}


def test_a_key_that_is_no_utf8_does_not_end_it(job, environment):
    with Terminal([*WITHOUT_FINDINGS, *job], environment) as terminal:
        terminal.wait_for("? help", timeout=60)
        for name, typed in NO_UTF8.items():
            terminal.settle()
            terminal.send(typed)
            terminal.listen(0.3)
            assert terminal.exit_code is None, name
            for key, title in (("2", "│2 Krn│"), ("1", "│1 Ovw│")):
                terminal.press(key)
                terminal.wait_for(title, timeout=60)
        answers(terminal)


def test_a_prompt_shows_what_is_no_utf8_as_a_replacement_character(job, environment):
    with Terminal([*WITHOUT_FINDINGS, *job], environment) as terminal:
        terminal.wait_for("? help", timeout=60)
        terminal.press("2")
        terminal.wait_for(" names", timeout=60)
        terminal.press("/")
        terminal.listen(0.3)
        terminal.send(b"caf\xe9 \xc3(")
        terminal.wait_for("caf\N{REPLACEMENT CHARACTER} \N{REPLACEMENT CHARACTER}(")
        terminal.press("ctrl+c")
        assert terminal.wait_exit(60) == 0


KEYS = {
    "a paste": b"2026-01-01 ste 12 loss 0.1234 ms/ste 93.1\r" * 2500,
    "one key": b"j" * 20_000,
    "an arrow": b"\x1b[B" * 20_000,
    "a paste without an end": b"\xe9\x1b[200~" * 10_000,
}


def test_any_number_of_keys_at_once_is_answered(job, environment):
    with Terminal([*WITHOUT_FINDINGS, *job], environment) as terminal:
        terminal.wait_for("? help", timeout=60)
        for keys in KEYS.values():
            terminal.settle()
            type_all(terminal, keys)
            terminal.send(b"\x1b[201~")
        terminal.press("ctrl+c")
        assert terminal.wait_exit(60) == 0
        assert modes_left(terminal.received) == set()


@pytest.mark.parametrize("name", KEYS if "NSYSTUI_CAMPAIGN" in os.environ else ("a paste", "a paste without an end"))
def test_any_number_of_keys_at_once_does_not_keep_it_from_obeying(job, environment, name):
    with Terminal([*WITHOUT_FINDINGS, *job], environment) as terminal:
        terminal.wait_for("? help", timeout=60)
        terminal.settle()
        type_all(terminal, KEYS[name])
        terminal.kill(signal.SIGTERM)
        assert terminal.wait_exit(60) == 143
        assert modes_left(terminal.received) == set()


def type_all(terminal: Terminal, data: bytes) -> None:
    """Sends more than the terminal holds, while reading what comes back."""
    for offset in range(0, len(data), 1024):
        terminal.send(data[offset : offset + 1024])
        terminal.listen(0.0)
        while terminal.read(0.0):
            pass


@pytest.mark.parametrize(("columns", "lines"), [("99999", "0"), ("many", "-1")])
def test_it_is_as_large_as_its_terminal_whatever_the_environment_says(job, environment, columns, lines):
    with Terminal([*WITHOUT_FINDINGS, *job], {**environment, "COLUMNS": columns, "LINES": lines}) as terminal:
        terminal.wait_for("? help", timeout=60)
        assert "? help" in terminal.screen[-1]
        answers(terminal)


def test_a_terminal_that_claims_to_be_huge_is_drawn_on_in_part(job, environment):
    with Terminal([*WITHOUT_FINDINGS, *job], environment, columns=5_000, lines=24) as terminal:
        terminal.wait_for("? help", timeout=60)
        answers(terminal)


FAILING = """
import sys
from nsystui.cli import main
from nsystui.ui.app import NsystuiApp

def fail(*_):
    raise RuntimeError("of this test")

setattr(NsystuiApp, {where!r}, fail)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("where", ["_begin", "on_mount", "on_unmount"])
def test_an_error_of_the_program_gives_the_terminal_back_and_says_where_its_details_are(
    job, environment, tmp_path, where
):
    script = tmp_path / "failing.py"
    script.write_text(FAILING.format(where=where))
    (tmp_path / "tmp").mkdir()
    words = shlex.join([sys.executable, str(script), *job])
    environment["TMPDIR"] = str(tmp_path / "tmp")
    with Terminal(["sh", "-c", f"stty -g; {words}; echo status $?; stty -g"], environment, columns=250) as terminal:
        if where == "on_unmount":
            terminal.wait_for("? help", timeout=60)
            terminal.press("q")
        terminal.wait_exit(60)
        before, after = re.findall(rb"(?:[0-9a-f]+:){20,}[0-9a-f]+", terminal.received)
        assert before == after
        assert modes_left(terminal.received) == set()
        said = terminal.received.rpartition(b"\x1b[?1049l")[2].decode()
        assert "status 70" in said
        assert "Traceback" not in said
        (line,) = [line for line in said.splitlines() if "nsystui:" in line]
        assert "of this test" in line
        (details,) = (tmp_path / "tmp").iterdir()
        assert str(details) in line
        assert details.stat().st_mode & 0o77 == 0
        assert "Traceback" in details.read_text()


def test_ctrl_z_gives_the_terminal_back_and_fg_draws_it_again(job, environment):
    with Terminal(["bash", "--norc", "-i"], {**environment, "PS1": "shell$ "}) as terminal:
        terminal.wait_for("shell$", timeout=30)
        terminal.send(f"{shlex.join([*WITHOUT_FINDINGS, *job])}\n".encode())
        terminal.wait_for("? help", timeout=60)
        for screen, prompt in (("2", ""), ("2", "/"), ("5", "")):
            terminal.press(screen)
            terminal.wait_for(" names" if screen == "2" else "digits", timeout=60)
            if prompt:
                terminal.press(prompt)
                terminal.listen(0.3)
            terminal.press("ctrl+z")
            terminal.wait_for("Stopped", timeout=30)
            terminal.settle()
            assert modes_left(terminal.received) <= {"?2004h"}
            terminal.send(b"stty -a | grep -o ' echo '; clear\n")
            terminal.wait_for("shell$", timeout=30)
            terminal.settle()
            terminal.send(b"fg\n")
            terminal.wait_for("│2 Krn│" if screen == "2" else "│5 NVTX│", timeout=60)
            terminal.settle()
            if prompt:
                terminal.press("escape")
                terminal.wait_for("? help", timeout=60)
                terminal.settle()  # what follows Esc at once is a key with Alt
        terminal.press("q")
        terminal.wait_for("shell$", timeout=30)
        terminal.settle()
        assert modes_left(terminal.received) <= {"?2004h"}


def page_of(output: bytes) -> int:
    """How light the last background is that was set, 0 to 765."""
    return sum(map(int, re.findall(rb"48;2;(\d+);(\d+);(\d+)", output)[-1]))


@pytest.mark.parametrize(
    ("answer", "is_light"),
    [
        ((b"\x1b]11;rgb:fafa/fa", b"fa/f0f0\x1b\\"), True),
        ((b"\x1b]11;rgb:ff/ff/ff\x07",), True),
        ((b"\x1b]11;rgb:1010/1010/1010\x07",), False),
        ((b"\x1b]",), False),
    ],
    ids=["in two portions", "short", "dark", "no answer"],
)
def test_the_page_is_as_light_as_the_terminal_says(job, environment, answer, is_light):
    with Terminal([*WITHOUT_FINDINGS, *job], {**environment, "COLORTERM": "truecolor"}) as terminal:
        terminal.wait_for("? help", timeout=60)
        assert b"\x1b]11;?\x07" in terminal.received
        for portion in answer:
            terminal.send(portion)
            terminal.listen(0.05)
        terminal.settle()
        terminal.press("2")
        terminal.wait_for(" names", timeout=60)
        terminal.settle()
        assert (page_of(terminal.received) > 600) is is_light
        answers(terminal)


def test_a_theme_that_was_chosen_is_kept(job, environment):
    with Terminal([*WITHOUT_FINDINGS, *job, "--theme", "dark"], environment) as terminal:
        terminal.wait_for("? help", timeout=60)
        assert b"\x1b]11;?" not in terminal.received
        answers(terminal)
