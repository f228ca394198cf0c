"""The bytes that the program sends through a real terminal at 120x36, key by key: a slow line must not feel slow."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import WITHOUT_FINDINGS, Terminal
from synthetic import training_job

CURSOR, PAGE, SWITCH = 600, 8 * 1024, 15 * 1024
DETAILS = 2 * 1024
TITLES = ("Overview", "Kernels", "NCCL", "GPU", "NVTX", "Events", "Ranks", "Host")
MODES = {str(number): f"│{number} {title}│" for number, title in enumerate(TITLES, 1)}


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    directory = tmp_path_factory.mktemp("job")
    return directory, [str(path) for path in training_job(directory, ranks=2, steps=4)]


# The details of an event, which follow when the cursor rests, follow after an hour: however busy the machine is, they
# are not counted with the step.
WITHOUT_REST = """
import sys
from nsystui.ui.screens import base, findings
base.DETAIL_DELAY, findings.MOST_KERNELS = 3600.0, -1
from nsystui.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def terminal(job):
    yield from running_program(WITHOUT_FINDINGS, *job)


@pytest.fixture(scope="module")
def restless(job):
    """A program whose cursor never rests."""
    yield from running_program([sys.executable, "-c", WITHOUT_REST], *job)


def running_program(program: list[str], directory: Path, paths: list[str]) -> Iterator[Terminal]:
    env = {"NSYSTUI_CACHE_DIR": str(directory / "cache"), "SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22"}
    with Terminal([*program, *paths], env, columns=120, lines=36) as running:
        running.wait_for("Kernels")
        for key, title in MODES.items():  # each screen once, so that it is made and its answer known
            running.press(key)
            running.wait_for(title)
            running.settle(quiet=1.0)
        yield running


def cost(terminal: Terminal, *keys: str, quiet: float = 0.6) -> int:
    terminal.mark()
    terminal.press(*keys)
    terminal.answer(quiet, timeout=2.0)  # a key that changes nothing, such as "home" at home, sends nothing
    return terminal.bytes_since_mark


@pytest.mark.parametrize("mode", ["1", "2", "3", "5", "6", "8"])
def test_a_step_of_the_cursor_sends_little(restless, mode):
    restless.press(mode)
    restless.settle(quiet=0.8)
    cost(restless, "home")
    cost(restless, "down")
    assert cost(restless, "down") <= CURSOR


@pytest.mark.parametrize("key", ["right", "down", ">", "end", "left", "up"])
def test_a_step_along_time_sends_little(restless, key):
    restless.press("4")
    restless.settle(quiet=0.8)
    assert cost(restless, key) <= CURSOR


def test_the_details_of_an_event_are_a_few_lines(terminal):
    terminal.press("6")
    terminal.settle(quiet=0.8)
    cost(terminal, "home")
    assert cost(terminal, "down") <= CURSOR + DETAILS


@pytest.mark.parametrize("keys", [("2",), ("6",), ("1", "8", "v")], ids=["kernels", "events", "functions"])
def test_a_page_sends_less_than_8_kib(restless, keys):
    for key in keys:
        restless.press(key)
        restless.settle(quiet=0.8)
    cost(restless, "home")
    assert PAGE / 10 <= cost(restless, "pagedown") <= PAGE


@pytest.mark.parametrize("mode", list(MODES))
def test_another_screen_sends_less_than_15_kib(terminal, mode):
    terminal.press("2" if mode != "2" else "1")
    terminal.settle(quiet=0.8)
    sent = cost(terminal, mode, quiet=0.8)
    assert sent <= SWITCH


def test_nothing_is_sent_while_nothing_happens(terminal):
    terminal.press("1")
    terminal.settle(quiet=1.0)
    assert terminal.listen(2.0) == 0
