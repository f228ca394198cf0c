"""A line of 56 kbit/s: every key answers, the newest wins, and nothing queues up behind a held key."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import ALTERNATE_ON, WITHOUT_FINDINGS, Terminal, modes_left

RATE = 56_000 // 8
pytestmark = pytest.mark.campaign
BEHIND = 4 * RATE
"""Bytes that may still follow the last key: a screen on its way, one more, and the system's buffer."""


@pytest.fixture(scope="module")
def terminal(job) -> Iterator[Terminal]:
    env = {"NSYSTUI_CACHE_DIR": str(Path(job[0]).parent / "cache"), "SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22"}
    with Terminal([*WITHOUT_FINDINGS, *job], env, rate=RATE, ready="? help") as running:
        for key, title in {"2": "│2 Krn│", "3": "│3 NCCL│", "6": "│6 Evt│"}.items():
            running.press(key, until=title)
            running.settle(quiet=1.0)
        yield running


def hold(terminal: Terminal, *keys: str, times: int, every: float) -> int:
    """Press the keys in turn, as a keyboard repeats them; return the number of bytes after the last key."""
    for number in range(times):
        terminal.press(keys[number % len(keys)])
        terminal.listen(every)
    terminal.mark()
    terminal.settle(quiet=1.0)
    return terminal.bytes_since_mark


def test_a_page_key_held_down_stops_where_it_is_let_go_and_screens_in_a_hurry_end_at_the_last(terminal):
    terminal.press("6")
    terminal.settle(quiet=1.0)
    before = terminal.text
    assert hold(terminal, "pagedown", times=90, every=1 / 30) <= BEHIND and terminal.text != before

    assert hold(terminal, "2", "3", "6", times=45, every=0.1) <= BEHIND
    assert "│6 Evt│" in terminal.screen[0], "the last of many screens"


def test_a_program_that_is_told_to_end_while_much_is_on_its_way_gives_the_terminal_back(job, environment):
    """Sending the screen takes longer than the program may take to end."""
    with Terminal([*WITHOUT_FINDINGS, *job], environment, columns=500, lines=200, rate=RATE // 2) as terminal:
        terminal.wait_until(lambda: ALTERNATE_ON in terminal.received, "screens")
        for key in "123123":
            terminal.press(key)
            terminal.listen(0.3)
        terminal.kill()
        terminal.wait_until(lambda: terminal.exit_code is not None, "end")
        terminal.settle(quiet=1.0)
        assert terminal.exit_code == 143 and modes_left(terminal.received) == set()


def test_every_single_key_answers(terminal):
    """Each key is pressed after the previous answer."""
    answers = {"2": " names", "?": "╭─────", "escape": "? help", "/": "\nfind", "n": "\nfind n"}
    for key, words in answers.items():
        terminal.cost(key, quiet=1.0)
        assert words in terminal.text, key
    terminal.press("escape")
