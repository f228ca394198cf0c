"""The kind of the terminal."""

import subprocess
import sys
from unittest.mock import Mock

import pytest

from nsystui.base.terminal import (
    bounded,
    check,
    few_colors,
    is_page_light,
    no_color,
    original_environ,
    over_ssh,
    size,
    text_width,
    wants_ascii,
)
from nsystui.cli import main


def test_a_terminal_is_accepted_and_a_refusal_says_why_and_what_works():
    for term in ("xterm-256color", "screen", "vt100", "linux", ""):
        assert check({"TERM": term}, True, True) is None, term
    assert check({}, True, True) is None
    for words, reason in (
        (({"TERM": "xterm"}, False, True), "standard input is not a terminal"),
        (({"TERM": "xterm"}, True, False), "standard error is not a terminal"),
        (({"TERM": "dumb"}, True, True), "TERM=dumb"),
    ):
        message = check(*words)
        assert message is not None and reason in message and "`nsystui " in message and "\n" not in message
    assert check({"TEXTUAL_COLOR_SYSTEM": "256"}, True, True) is None
    assert "auto, standard, 256 or truecolor" in (check({"TEXTUAL_COLOR_SYSTEM": "bogus"}, True, True) or "")


@pytest.mark.parametrize(("environ", "encoding", "ascii_only"), [
    ({"LANG": "en_US.UTF-8"}, "utf-8", False),
    ({"LANG": "de_DE.utf8@euro"}, "UTF-8", False),
    ({"LC_CTYPE": "UTF-8"}, "utf-8", False),  # macOS
    ({"LC_ALL": "C", "LANG": "en_US.UTF-8"}, "utf-8", True),
    ({"LC_ALL": "", "LC_CTYPE": "", "LANG": "C.UTF-8"}, "utf-8", False),
    ({"LC_CTYPE": "en_US.ISO-8859-1", "LANG": "en_US.UTF-8"}, "utf-8", True),
    ({"LANG": "en_US"}, "utf-8", True),
    ({}, "utf-8", True),
    ({"LANG": "en_US.UTF-8"}, "latin-1", True),
    ({"LANG": "en_US.UTF-8"}, "no such codec", True),
    ({"LANG": "en_US.UTF-8"}, None, True),
    ({"LANG": "en_US.UTF-8", "TERM": "linux"}, "utf-8", True),
    ({"LANG": "en_US.UTF-8", "TERM": "vt220"}, "utf-8", True),
    ({"LANG": "en_US.UTF-8", "TERM": "vte-256color"}, "utf-8", False),
])  # fmt: skip
def test_ascii_where_utf8_is_not_certain(environ, encoding, ascii_only):
    assert wants_ascii(environ, encoding) is ascii_only


def test_the_locale_is_the_users_and_not_pythons():
    program = "import os; from nsystui.base.terminal import *; print(wants_ascii(original_environ(), 'utf-8'))"
    result = subprocess.run([sys.executable, "-c", program], env={"LANG": "C"}, capture_output=True, text=True)
    assert result.stdout == ("True\n" if sys.platform == "linux" else result.stdout), result.stderr
    assert original_environ().get("PATH")


def test_no_color_and_ssh_are_told_by_values_only():
    assert [no_color(environ) for environ in ({"NO_COLOR": "1"}, {"NO_COLOR": ""}, {})] == [True, False, False]
    assert over_ssh({"SSH_CONNECTION": "10.0.0.1 5 10.0.0.2 22"}) and over_ssh({"SSH_TTY": "/dev/pts/3"})
    assert not over_ssh({"SSH_CONNECTION": ""})


@pytest.mark.parametrize(("environ", "few"), [
    *(({"TERM": term}, False) for term in ("xterm-256color", "xterm-kitty")),
    ({"TERM": "xterm", "COLORTERM": "truecolor"}, False),
    *(({"TERM": term}, True) for term in ("xterm", "screen")),
    *(({"TERM": "xterm", "COLORTERM": "1"}, True), ({}, True)),
])  # fmt: skip
def test_few_colors_agrees_with_what_rich_will_paint(environ, few):
    from rich.console import Console

    assert few_colors(environ) is few
    painted = Console(force_terminal=True, _environ=environ).color_system
    assert few_colors(environ) is (painted in ("standard", None))


@pytest.mark.parametrize(
    ("told", "columns"),
    [("132", 132), ("99999", 1000), ("9" * 5000, 1000), ("0", 77), ("-5", 77), ("wide", 77), ("", 77)],
)
def test_text_is_as_wide_as_the_environment_says_within_reason(monkeypatch, told, columns):
    monkeypatch.setattr("sys.__stdout__", None)
    error = OSError("not a terminal") if columns == 77 else AssertionError("it is told")
    monkeypatch.setattr("os.get_terminal_size", Mock(side_effect=error))
    assert text_width(77, {"COLUMNS": told}) == columns


def test_a_terminal_that_does_not_tell_its_size_has_what_the_environment_says(monkeypatch):
    with monkeypatch.context() as patched:  # pytest asks for the size, too
        patched.setattr("os.get_terminal_size", lambda _: (0, 0))
        assert size(2, {"COLUMNS": "132", "LINES": "43"}) == (132, 43)
        assert size(2, {}) == (80, 24)
        patched.setattr("os.get_terminal_size", lambda _: (99_999, 50))
        assert size(2, {"COLUMNS": "132"}) == (1000, 50)
        assert bounded(0, 10**9) == (1, 500)


@pytest.mark.campaign
@pytest.mark.parametrize("words", [["timeline"], ["recipe", "cuda_gpu_time_util_map"]])
def test_what_is_drawn_as_text_has_a_bounded_width(demo_job, monkeypatch, capsys, words):
    monkeypatch.setenv("COLUMNS", "99999")
    assert main([*words, *map(str, demo_job)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines and max(map(len, lines)) < 1100


@pytest.mark.parametrize(("told", "light"), [
    *(("0;15", True), ("0;7", True), ("0;default;15", True), ("default;11", True)),
    *(("15;0", False), ("7;8", False), ("15;default;0", False), ("12;6", False)),
    *(
        (text, None)
        for text in ("", "15", "0;default", "0;", ";", "0;16", "0;-1", "0;15;", "0;1;2;15", "a;b", "0;٧")
    ),
    ("0;" + "9" * 5000, None),
])  # fmt: skip
def test_colorfgbg_says_whether_the_page_is_light(told, light):
    assert is_page_light({"COLORFGBG": told}) is light and is_page_light({}) is None
