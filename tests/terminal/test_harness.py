"""The harness itself, and what the widgets cost a slow line: exact bytes at 120x36 with 256 colours."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Terminal

DEMO = Path(__file__).with_name("demo_app.py")
ROOT = Path(__file__).parents[2]
ENVIRONMENT = {"PYTHONPATH": str(ROOT)}

CURSOR_BYTES = 600
PAGE_BYTES = 8_000


def shell(script: str, **options: object) -> Terminal:
    return Terminal(["sh", "-c", script], **options)  # type: ignore[arg-type]


# -- the harness ----------------------------------------------------------------------------------------------------


def test_it_shows_the_screen_counts_bytes_and_knows_the_exit_status():
    with shell("printf 'one\\ntwo'; exit 3") as terminal:
        terminal.wait_for("two")
        assert terminal.wait_exit() == 3
        assert terminal.screen[:2] == ["one", "two"]
        assert terminal.received == b"one\r\ntwo"
        assert terminal.bytes_since_mark == 8


def test_a_mark_begins_a_new_count():
    with shell("stty -echo; printf ready; read -r line; printf 'got %s' \"$line\"") as terminal:
        terminal.wait_for("ready")
        terminal.mark()
        assert terminal.bytes_since_mark == 0
        terminal.press("h", "i", "enter")
        terminal.wait_for("got hi")
        assert terminal.since_mark == b"got hi"


def test_the_child_gets_the_size_and_is_told_of_another():
    script = "trap 'stty size; exit' WINCH; stty size; printf 'ready\\n'; while :; do sleep 0.05; done"
    with shell(script, columns=93, lines=31) as terminal:
        terminal.wait_for("ready")
        assert terminal.screen[0] == "31 93"
        terminal.resize(70, 20)
        terminal.wait_for("20 70")


def test_the_environment_is_the_tests_own(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    with shell(
        'echo "$TERM/$LANG/${NO_COLOR-unset}/$MINE"; echo done', env={"TERM": "screen", "MINE": "x"}
    ) as terminal:
        terminal.wait_for("done")
        assert terminal.screen[0] == "screen/C.UTF-8/unset/x"


def test_stdout_can_be_a_file(tmp_path):
    with shell("echo data; echo message >&2", stdout=tmp_path / "out") as terminal:
        terminal.wait_exit()
        assert terminal.screen[0] == "message"
        assert (tmp_path / "out").read_text() == "data\n"


def test_what_does_not_come_is_a_timeout_with_the_screen_in_it():
    with shell("echo here; sleep 30") as terminal:
        with pytest.raises(TimeoutError, match=r"(?s)no 'there'.*here"):
            terminal.wait_for("there", timeout=0.2)
        with pytest.raises(TimeoutError, match="still running"):
            terminal.wait_exit(0.1)


def test_an_end_before_the_text_is_said():
    with shell("echo oops; exit 2") as terminal, pytest.raises(AssertionError, match=r"(?s)exit status 2.*oops"):
        terminal.wait_for("ready")


def test_the_child_does_not_outlive_the_test():
    with shell("trap '' TERM; echo ready; while :; do sleep 0.1; done") as terminal:
        terminal.wait_for("ready")
    assert terminal.exit_code == -signal.SIGKILL


def test_a_program_that_does_not_exist():
    with Terminal(["/no/such/program"]) as terminal:
        assert terminal.wait_exit() == 127
        assert "cannot run /no/such/program" in terminal.text


def test_unknown_keys_are_refused():
    with shell("sleep 5") as terminal, pytest.raises(ValueError, match="no key is called 'pgdn'"):
        terminal.press("pgdn")


def test_an_idle_program_is_heard_to_send_nothing():
    with shell("echo ready; sleep 30") as terminal:
        terminal.wait_for("ready")
        terminal.settle(0.1)
        started = time.monotonic()
        assert terminal.listen(0.3) == 0
        assert 0.3 <= time.monotonic() - started < 2


# -- what the widgets send --------------------------------------------------------------------------------------------


def demo(*arguments: str, **environment: str) -> Terminal:
    args = [sys.executable, str(DEMO), *arguments]
    return Terminal(args, env={**ENVIRONMENT, **environment}, columns=120, lines=36)


@pytest.fixture(scope="module", params=["table", "background"])
def table(request) -> Iterator[Terminal]:
    """Ten million rows on a screen; each test leaves it where it likes."""
    with demo(request.param) as terminal:
        terminal.wait_for("0.000 041 237")
        terminal.settle(0.5)
        yield terminal


@pytest.fixture(scope="module")
def chart() -> Iterator[Terminal]:
    """Sixteen lanes."""
    with demo("chart") as terminal:
        terminal.wait_for("rank 15")
        terminal.settle(0.5)
        yield terminal


def cost(terminal: Terminal, *keys: str, quiet: float = 0.3) -> int:
    """Bytes that the terminal is sent for ``keys``; 0 would mean that they did nothing."""
    terminal.mark()
    terminal.press(*keys)
    terminal.answer(quiet)
    assert terminal.bytes_since_mark > 0
    return terminal.bytes_since_mark


def test_moving_in_a_table_is_cheap(table):
    for key in ("down", "j", "up", "down"):
        assert cost(table, key) <= CURSOR_BYTES
    for key in ("pagedown", "pagedown", "end", "pageup", "home"):
        assert cost(table, key) <= PAGE_BYTES
    assert table.screen[3].split()[:4] == ["▸", "0.000", "000", "000"]


def test_a_held_key_sends_a_screen_for_a_third_of_a_screen_of_rows(table):
    cost(table, "pagedown", "home")
    sent = sum(cost(table, "down", quiet=0.1) for _ in range(40))
    assert sent <= 40 * CURSOR_BYTES + PAGE_BYTES


def test_a_quiet_table_sends_nothing(table):
    table.settle(0.5)
    assert table.listen(1.0) == 0


def test_a_prompt_costs_a_line_or_two(table):
    assert cost(table, "/") <= 1_000
    assert cost(table, "n") <= CURSOR_BYTES
    table.settle(0.5)
    assert table.listen(1.0) == 0, "its cursor must not blink"
    assert cost(table, "escape") <= 1_200


def test_progress_costs_two_lines_a_second(table):
    table.press("w")
    assert 0 < table.listen(1.5) <= 4 * 300
    table.settle(1.0)


def test_moving_in_a_chart_is_cheap(chart):
    for key in ("right", ">", "end", "left", "home", "down", "up"):
        assert cost(chart, key) <= CURSOR_BYTES, key
    assert chart.listen(1.0) == 0


def test_without_colour_the_cursor_is_reversed():
    with demo("table", "ansi", NO_COLOR="1") as terminal:
        terminal.wait_for("0.000 041 237")
        terminal.settle()
        cursor, other = terminal.cells[3], terminal.cells[4]
        assert all(cursor[x].reverse for x in range(120))
        assert not any(other[x].reverse for x in range(120))
        assert {(line[x].fg, line[x].bg) for line in (cursor, other) for x in range(120)} == {("default", "default")}


@pytest.mark.parametrize("term", ["xterm", "screen-256color"])
def test_with_the_terminals_own_colours_nothing_is_drawn_in_its_background(term):
    with demo("table", "ansi", TERM=term) as terminal:
        terminal.wait_for("0.000 041 237")
        terminal.settle()
        for line in range(36):
            for x in range(120):
                cell = terminal.cells[line][x]
                assert cell.data == " " or cell.fg != cell.bg or cell.fg == "default", (line, x, cell)
