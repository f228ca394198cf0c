"""The line of progress on stderr: only on terminals, only for long computations, and removed at the end."""

import io
import subprocess
import sys
from threading import Event
from types import SimpleNamespace

import pyte
import pytest

from nsystui.commands.progress import ProgressLine
from nsystui.questions.job.opening import Opener
from nsystui.store.session import Computation


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def screen_of(text: str) -> list[str]:
    """Return the lines of a terminal after ``text``."""
    screen = pyte.Screen(80, 4)
    pyte.Stream(screen).feed(text.replace("\n", "\r\n"))
    return [line.rstrip() for line in screen.display]


@pytest.fixture
def terminal(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr("nsystui.commands.progress.sys", SimpleNamespace(stderr=stream))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    return stream


@pytest.fixture
def clock(monkeypatch):
    """Replace the clock: seconds pass only when a test advances them."""
    now = [100.0]
    monkeypatch.setattr("nsystui.commands.progress.time.monotonic", lambda: now[0])
    return now


def test_a_long_work_has_a_bar_on_a_terminal_that_is_gone_at_the_end(terminal, clock):
    terminal.write("before\n")
    with ProgressLine(1000) as line:
        line.show(lambda: "at once", 100)
        assert terminal.getvalue() == "before\n"
        clock[0] += 1
        line.show(lambda: "reading nccl\x1b[2J.log", 500)
        line.show(lambda: "too soon to be worth a line", 600)
        first, second, *_ = screen_of(terminal.getvalue())
        assert first == "before"
        assert second.endswith("50% reading nccl?[2J.log")
        clock[0] += 1
        line.show(lambda: "reading " + "long" * 50, 600)
        first, second, third, *_ = screen_of(terminal.getvalue())
        assert (first, third) == ("before", "")
        assert "60%" in second and len(second) <= 80
    terminal.write("after\n")
    assert screen_of(terminal.getvalue()) == ["before", "after", "", ""]
    assert "\x1b[?25l" not in terminal.getvalue(), "a program that is killed could not show the cursor again"


def test_a_new_computation_is_shown_at_once(terminal, clock):
    """The name of a finished computation must not stay while the next runs."""
    with ProgressLine() as line:
        clock[0] += 1
        line.show_computing(Computation("first", 0, 2))
        line.show_computing(Computation("first", 1, 2))
        assert "first: 0 of 2" in screen_of(terminal.getvalue())[0]
        line.show_computing(Computation("second", 0, 1))
        assert "second: 0 of 1" in screen_of(terminal.getvalue())[0]


def until(terminal: Terminal, text: str) -> str:
    """Wait until ``text``, which another thread writes, is in the terminal's line, and return the line."""
    for _ in range(1000):
        if text in (line := screen_of(terminal.getvalue())[0]):
            return line
        Event().wait(0.02)
    raise AssertionError(f"{text!r} is not in {line!r}")


def test_what_is_computed_in_silence_is_told_with_its_time_and_gone_at_the_end(terminal, clock):
    line = ProgressLine()
    with line.waiting("nccl"):
        assert terminal.getvalue() == ""
        clock[0] += 3
        assert until(terminal, "nccl").endswith("computing nccl, 3 s")
        line.show_computing(Computation("intervals", 2, 9))
        clock[0] += 2
        assert until(terminal, "5 s").endswith("computing intervals: 2 of 9 reports, 5 s")
        line.show_computing(None)
        clock[0] += 2
        assert until(terminal, "7 s").endswith("computing nccl, 7 s")
    assert screen_of(terminal.getvalue())[0] == ""


def test_what_is_computed_for_something_else_is_told_on_the_same_line(terminal, clock):
    line = ProgressLine()
    with line.waiting("report"):
        with line.waiting("nccl"):
            clock[0] += 2
            assert until(terminal, "2 s").endswith("computing nccl, 2 s")
        clock[0] += 2
        assert until(terminal, "4 s").endswith("computing report, 4 s")
    assert not any(screen_of(terminal.getvalue()))


def test_an_opening_that_is_silent_is_told_with_its_time(terminal, clock, demo_job, monkeypatch, run):
    add = Opener.add

    def slow(*words):
        clock[0] += 3
        assert until(terminal, "columns").endswith("computing the columns, 3 s")
        return add(*words)

    monkeypatch.setattr(Opener, "add", slow)
    assert run("info", demo_job[0]).status == 0
    assert not any(screen_of(terminal.getvalue()))


@pytest.mark.campaign
@pytest.mark.parametrize("words", ["report -o a.html", "report -o a.html --baseline", "triage --baseline", "diff --"])
def test_two_jobs_and_their_questions_share_one_line(terminal, demo_job, tmp_path, monkeypatch, run, words):
    """With a second line, the first would lose its cursor and leave words on the terminal."""
    for name in ("_PATIENCE", "_SECONDS_BETWEEN", "_SILENCE"):
        monkeypatch.setattr(f"nsystui.commands.progress.{name}", 0.001)
    monkeypatch.chdir(tmp_path)
    command, *options = words.split()
    others = [] if words.endswith("html") else demo_job[1:2]
    assert run(command, demo_job[0], *options, *others).status == 0
    drawn = terminal.getvalue()
    assert "computing" in drawn
    screen = pyte.Screen(80, 24)
    pyte.Stream(screen).feed(drawn.replace("\n", "\r\n"))
    assert not any(line.strip() for line in screen.display)


def test_no_color_is_respected(terminal, clock, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    with ProgressLine(10) as line:
        clock[0] += 1
        line.show(lambda: "reading", 5)
    assert "reading" in terminal.getvalue()
    assert not any(f"\x1b[{code}" in terminal.getvalue() for code in ("3", "9", "38", "1;3"))


@pytest.mark.parametrize("has_terminal", [False, True])
def test_nothing_is_drawn_where_nobody_sees_it_and_on_a_dumb_terminal(terminal, clock, monkeypatch, has_terminal):
    monkeypatch.setenv("TERM", "dumb" if has_terminal else "xterm-256color")
    monkeypatch.setattr(terminal, "isatty", lambda: has_terminal)
    with ProgressLine(1000) as line:
        clock[0] += 1
        line.show(lambda: "reading", 500)
    assert terminal.getvalue() == ""


def test_a_quick_command_does_not_import_rich():
    code = """if True:
        import sys
        from nsystui.commands.progress import ProgressLine
        sys.stderr.isatty = lambda: True
        with ProgressLine(10) as line:
            line.show(lambda: "reading", 5)
        print("rich" in sys.modules)
    """
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
