"""The harness of the tests of terminals itself."""

from __future__ import annotations

import signal

import pytest
from harness import Terminal


def shell(script: str, **options: object) -> Terminal:
    return Terminal(["sh", "-c", script], **options)  # type: ignore[arg-type]


def test_it_shows_the_screen_counts_bytes_and_knows_the_exit_status():
    with shell("printf 'one\\ntwo'; exit 3", ready="two") as terminal:
        assert terminal.wait_exit() == 3 and terminal.screen[:2] == ["one", "two"]
        assert terminal.received == b"one\r\ntwo" and terminal.bytes_since_mark == 8


def test_a_mark_begins_a_new_count_what_is_sent_is_heard_and_silence_is_zero():
    script = "stty -echo; printf ready; read -r line; printf 'got %s' \"$line\"; sleep 600"
    with shell(script, ready="ready") as terminal:
        terminal.mark()
        terminal.settle(0.1)
        assert terminal.bytes_since_mark == terminal.listen(0.1) == 0
        terminal.press("h", "i", "enter", until="got hi")
        assert terminal.since_mark == b"got hi"


def test_the_child_gets_the_size_and_is_told_of_another():
    script = "trap 'stty size; exit' WINCH; stty size; printf 'ready\\n'; while :; do sleep 0.05; done"
    with shell(script, columns=93, lines=31, ready="ready") as terminal:
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


def test_what_does_not_come_is_a_timeout_with_the_screen_in_it_and_unknown_keys_are_refused():
    with shell("echo here; sleep 600") as terminal:
        with pytest.raises(TimeoutError, match=r"(?s)no 'there'.*here"):
            terminal.wait_for("there", timeout=0.2)
        with pytest.raises(TimeoutError, match="still running"):
            terminal.wait_exit(0.1)
        with pytest.raises(ValueError, match="no key is called 'pgdn'"):
            terminal.press("pgdn")


def test_an_end_before_the_text_is_said():
    with shell("echo oops; exit 2") as terminal, pytest.raises(AssertionError, match=r"(?s)exit status 2.*oops"):
        terminal.wait_for("ready")


@pytest.mark.campaign
def test_the_child_does_not_outlive_the_test_and_may_not_exist():
    with shell("trap '' TERM; echo ready; while :; do sleep 0.1; done", ready="ready") as terminal:
        assert terminal.exit_code is None
    assert terminal.exit_code == -signal.SIGKILL
    with Terminal(["/no/such/program"]) as terminal:
        assert terminal.wait_exit() == 127 and "cannot run /no/such/program" in terminal.text
