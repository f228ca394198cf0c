"""What the program sends through a real terminal at 120x36, key by key: a slow line must not feel slow."""

from __future__ import annotations

import sys

import pytest
from harness import Terminal

from nsystui.exports.demo import training_job

CURSOR, PAGE, SWITCH = 600, 8 * 1024, 15 * 1024
DETAILS = 2 * 1024
MODES = {"2": "2 Kernels", "3": "3 NCCL", "4": "4 GPU", "5": "5 NVTX", "6": "6 Events", "1": "nsystui"}


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    directory = tmp_path_factory.mktemp("job")
    return directory, [str(path) for path in training_job(directory, ranks=2, steps=4)]


@pytest.fixture(scope="module")
def terminal(job):
    directory, paths = job
    env = {"NSYSTUI_CACHE_DIR": str(directory / "cache"), "SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22"}
    with Terminal([sys.executable, "-m", "nsystui", *paths], env, columns=120, lines=36) as running:
        running.wait_for("Kernels", timeout=30)
        for key, title in MODES.items():  # each screen once, so that it is made and its answer known
            running.press(key)
            running.wait_for(title, timeout=30)
            running.settle(quiet=1.0)
        yield running


def cost(terminal: Terminal, *keys: str, quiet: float = 0.6) -> int:
    terminal.mark()
    terminal.press(*keys)
    terminal.answer(quiet, timeout=2.0)  # a key that changes nothing, such as "home" at home, sends nothing
    return terminal.bytes_since_mark


@pytest.mark.parametrize("mode", ["1", "2", "3", "5", "6"])
def test_a_step_of_the_cursor_sends_little(terminal, mode):
    terminal.press(mode)
    terminal.settle(quiet=0.8)
    cost(terminal, "home")
    cost(terminal, "down")
    # What the key draws; the details of an event follow when the cursor rests.
    sent = cost(terminal, "down", quiet=0.12)
    assert sent <= CURSOR


@pytest.mark.parametrize("key", ["right", "down", ">", "end", "left", "up"])
def test_a_step_along_time_sends_little(terminal, key):
    terminal.press("4")
    terminal.settle(quiet=0.8)
    assert cost(terminal, key, quiet=0.12) <= CURSOR


def test_the_details_of_an_event_are_a_few_lines(terminal):
    terminal.press("6")
    terminal.settle(quiet=0.8)
    cost(terminal, "home")
    assert cost(terminal, "down") <= CURSOR + DETAILS


@pytest.mark.parametrize("mode", ["2", "6"])
def test_a_page_sends_less_than_8_kb(terminal, mode):
    terminal.press(mode)
    terminal.settle(quiet=0.8)
    cost(terminal, "home")
    assert cost(terminal, "pagedown", quiet=0.15) <= PAGE


@pytest.mark.parametrize("mode", list(MODES))
def test_another_screen_sends_less_than_15_kb(terminal, mode):
    terminal.press("2" if mode != "2" else "1")
    terminal.settle(quiet=0.8)
    sent = cost(terminal, mode, quiet=0.8)
    assert sent <= SWITCH


def test_nothing_is_sent_while_nothing_happens(terminal):
    terminal.press("1")
    terminal.settle(quiet=1.0)
    assert terminal.listen(2.0) == 0
