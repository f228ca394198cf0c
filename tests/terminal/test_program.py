"""The program in real terminals: how it starts, draws, and leaves the terminal."""

import os
import signal
import subprocess
from random import Random

import pytest
from campaign import SEED, cases
from harness import ALTERNATE_OFF, ALTERNATE_ON, PROGRAM, WITHOUT_FINDINGS, Terminal, assert_ends_well, modes_left


@pytest.mark.campaign
def test_it_takes_the_terminal_once_draws_each_new_size_and_gives_it_back(running):
    with running(SSH_CONNECTION="10.0.0.1 1 10.0.0.2 22") as terminal:
        terminal.press("2", until=" names")
        terminal.resize(120, 36)
        terminal.wait_until(lambda: any(len(line) > 80 for line in terminal.screen), "wide line")
        terminal.wait_for("max")
        terminal.resize(60, 15)
        terminal.wait_for("│2│")
        assert_ends_well(terminal)
        assert terminal.received.count(ALTERNATE_ON) == terminal.received.count(ALTERNATE_OFF) == 1
        assert b"\x1b[?1003h" not in terminal.received, "over ssh the mouse is left alone"


def test_without_a_terminal_it_says_so_and_ends_with_2(job, environment):
    done = subprocess.run(
        [*PROGRAM, *job], stdin=subprocess.DEVNULL, capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert done.returncode == 2 and "not a terminal" in done.stderr and "\x1b" not in done.stderr


def test_a_dumb_terminal_gets_a_message(job, environment):
    with Terminal([*PROGRAM, *job], {**environment, "TERM": "dumb"}) as terminal:
        assert terminal.wait_exit() == 2 and b"cannot place a cursor" in terminal.received
        assert ALTERNATE_ON not in terminal.received


@pytest.mark.campaign
def test_a_file_that_is_no_export_is_told_after_the_screen_is_gone(environment, tmp_path):
    broken = tmp_path / "rank0.sqlite"
    broken.write_bytes(b"hello")
    with Terminal([*PROGRAM, str(broken)], environment) as terminal:
        assert terminal.wait_exit() == 2 and b"not a SQLite file" in terminal.received.rpartition(ALTERNATE_OFF)[2]


@pytest.mark.campaign
@pytest.mark.parametrize(("env", "keys", "unsent"), [
    ({"LANG": "de_DE.ISO-8859-1"}, "4", []),
    ({"TERM": "linux"}, "4", []),
    ({"NO_COLOR": "1", "LANG": "C"}, "34562", [b"38;5;", b"48;5;", b"38;2;"]),
    ({"TERM": "xterm"}, "2", [b"38;5;", b"38;2;"]),
], ids=["latin-1", "linux", "no colour", "sixteen colours"])  # fmt: skip
def test_a_terminal_gets_the_characters_and_colours_that_it_has(running, env, keys, unsent):
    with running(**env) as terminal:
        for key in keys:
            terminal.cost(key)
        if "NO_COLOR" in env:
            cursors = [line for line in terminal.cells.values() if sum(line[x].reverse for x in range(80)) > 75]
            assert cursors, "without colours the cursor is reversed"
            assert {(cell.fg, cell.bg) for line in terminal.cells.values() for cell in line.values()} == {
                ("default", "default")
            }
        else:
            cells = [cell for line in terminal.cells.values() for cell in line.values()]
            assert [cell for cell in cells if cell.data != " " and cell.fg == cell.bg != "default"] == []
        assert terminal.received.isascii() is (env != {"TERM": "xterm"})
        assert [sequence for sequence in unsent if sequence in terminal.received] == []
        assert_ends_well(terminal)


SIZES = ((1, 1), (2, 40), (7, 3), (80, 24), (120, 36), (500, 200))


@pytest.mark.campaign
@pytest.mark.parametrize("term", ["xterm-256color", "", None])
@pytest.mark.parametrize(("number", "status"), [("ctrl+c", 0), (signal.SIGHUP, 129), (signal.SIGTERM, 143)])
def test_a_storm_of_sizes_does_not_keep_it_from_ending_well(job, environment, number, status, term):
    random = Random(f"{SEED} {number}")
    columns, lines = random.choice(SIZES)
    with Terminal([*WITHOUT_FINDINGS, *job], {**environment, "TERM": term}, columns, lines) as terminal:
        terminal.wait_until(lambda: ALTERNATE_ON in terminal.received, "screens")
        for _ in range(cases(60)):
            terminal.resize(*random.choice(SIZES))
            terminal.press(random.choice("123456789Lvb/"))
            terminal.listen(0.02)
        if number == "ctrl+c":
            terminal.press(number)
        else:
            terminal.kill(number)
        assert terminal.wait_exit() == status
        assert modes_left(terminal.received) == set() and b"Traceback" not in terminal.received


@pytest.mark.campaign
@pytest.mark.parametrize("question", ["overview", "kernels", "nccl", "events", "triage"])
def test_a_table_that_is_printed_while_its_terminal_changes_its_size_ends_well(job, environment, question):
    random = Random(f"{SEED} {question}")
    for columns, lines in SIZES:
        with Terminal([*PROGRAM, question, *job], environment, columns, lines) as terminal:
            while terminal.exit_code is None:
                terminal.resize(*random.choice(SIZES))
                terminal.listen(0.02)
            assert terminal.exit_code == 0 and b"Traceback" not in terminal.received
