"""The bytes that the program sends through a real terminal at 120x36, key by key: a slow line must not feel slow."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from harness import WITHOUT_FINDINGS, Terminal

pytestmark = pytest.mark.campaign

CURSOR, DETAILS, LINES, PAGE, SWITCH = 600, 2 * 1024, 1_200, 8 * 1024, 15 * 1024
TITLES = ("Overview", "Kernels", "NCCL", "GPU", "NVTX", "Events", "Ranks", "Host")
MODES = {str(number): f"│{number} {title}│" for number, title in enumerate(TITLES, 1)}

# Details of an event follow a resting cursor. Here they follow after an hour, so that they never count with a step,
# however busy the machine is.
WITHOUT_REST = """
import sys
from nsystui.ui.screens import base, findings
base.DETAIL_DELAY, findings.MOST_KERNELS = 3600.0, -1
from nsystui.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def restless(job) -> Iterator[Terminal]:
    """Yield a program whose cursor never rests."""
    yield from running_program([sys.executable, "-c", WITHOUT_REST, *job])


@pytest.fixture(scope="module")
def resting(job) -> Iterator[Terminal]:
    """Yield a program that has shown each screen once, so that screens exist and have their answers."""
    for terminal in running_program([*WITHOUT_FINDINGS, *job]):
        for mode in MODES:
            show(terminal, mode)
        yield terminal


def running_program(words: Sequence[str]) -> Iterator[Terminal]:
    env = {"NSYSTUI_CACHE_DIR": str(Path(words[-1]).parent / "cache"), "SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22"}
    with Terminal(words, env, columns=120, lines=36, ready="? help") as running:
        yield running


def show(terminal: Terminal, mode: str) -> None:
    terminal.press(mode, until=MODES[mode])
    terminal.settle(quiet=0.5)


@pytest.mark.parametrize("mode", list("213568"))
def test_a_step_of_the_cursor_and_a_page_send_little_and_nothing_is_sent_without_a_key(restless, mode):
    show(restless, mode)
    for key in ("down", "up"):
        assert restless.cost(key) <= CURSOR, key
    if mode in "26":
        assert PAGE / 10 <= restless.cost("pagedown") <= PAGE
        restless.cost("home")
    assert restless.listen(1.0) == 0


def test_functions_a_step_along_time_and_a_prompt_whose_cursor_does_not_blink_send_little(restless):
    show(restless, "8")
    restless.press("v", "f")
    restless.settle(quiet=0.5)
    assert PAGE / 10 <= restless.cost("pagedown") <= PAGE
    restless.cost("home")
    show(restless, "4")
    for key in ("right", "down", ">", "end", "left", "up"):
        assert restless.cost(key) <= CURSOR, key
    show(restless, "2")
    assert restless.cost("/") <= LINES and restless.cost("n") <= CURSOR
    assert restless.listen(1.0) == 0
    assert restless.cost("escape") <= LINES


def test_details_are_a_few_lines_another_screen_sends_less_than_15_kib_and_nothing_comes_by_itself(resting):
    show(resting, "6")
    assert resting.cost("down") <= CURSOR + DETAILS
    show(resting, "8")
    for mode in MODES:
        assert resting.cost(mode) <= SWITCH, mode
    show(resting, "1")
    assert resting.listen(2.0) == 0
