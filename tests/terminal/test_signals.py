"""Ends and stops of the program: the terminal is a shell's again, and no process, thread or file is left."""

import contextlib
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import campaign
import pytest
from harness import ALTERNATE_OFF, ALTERNATE_ON, PATIENCE, PROGRAM, WITHOUT_FINDINGS, Terminal, modes_left

BASH = "?2004h"
"""Bash's own mode at its prompt: bracketed paste."""

in_campaign = partial(pytest.param, marks=pytest.mark.campaign)


@contextlib.contextmanager
def in_bash(words: list[str], environment: dict[str, str], ready: str = "? help") -> Iterator[Terminal]:
    """Yield the program as a job of a shell with job control."""
    with Terminal(["bash", "--norc", "-i"], environment, ready="shell$") as terminal:
        terminal.send(f"{shlex.join(words)}\n".encode())
        terminal.wait_for(ready)
        yield terminal


def in_a_shell(words: list[str], environment: dict[str, str], ready: str = "") -> Terminal:
    """Return the program in a shell that prints the terminal's settings before and after it, and its status.

    Late signals of a storm may also end ``stty``, which is then run again.
    """
    script = f"trap : TERM HUP INT; stty -g; {shlex.join(words)}; echo status $?; until stty -g; do :; done; echo gone"
    return Terminal(["sh", "-c", script], environment, ready=ready)


def in_sh(words: list[str], environment: dict[str, str], before: str = "", after: str = "", **options) -> Terminal:
    """Return the program in a shell without job control."""
    return Terminal(["sh", "-c", f"{before}{shlex.join(words)}{after}"], environment, **options)


def assert_obeys(terminal: Terminal) -> None:
    """Check that the program shows another screen, and ends without an error."""
    terminal.press("2", until=" names")
    terminal.press("q")
    assert terminal.wait_exit() == 0


def assert_nothing_left(terminal: Terminal, environment: dict[str, str]) -> None:
    """Check that no process and no temporary file is left."""
    with pytest.raises(ProcessLookupError):
        os.killpg(terminal.pid, 0)
    assert not list(Path(environment["TMPDIR"]).iterdir())


@pytest.mark.campaign
@pytest.mark.parametrize(("number", "status", "moment"), [
    (signal.SIGTERM, 143, "? help"),
    (None, 0, "? help"),
    (signal.SIGTERM, 143, "Ovw"),
    (signal.SIGHUP, 129, "? help"),
    (signal.SIGINT, 130, "Ovw"),
    (None, 0, "Ovw"),
])  # fmt: skip
def test_an_end_leaves_the_terminal_as_it_was(job, environment, unpacked, number, status, moment):
    """At the first drawing, while it reads, and later."""
    with in_a_shell([*PROGRAM, *job], unpacked if moment == "Ovw" else environment, moment) as terminal:
        if number is None:
            terminal.press("q")
        else:
            terminal.kill(number)
        assert_clean(terminal, {status})
    assert not list(Path(environment["TMPDIR"]).iterdir())


@pytest.mark.campaign
def test_it_stops_and_comes_back(job, environment):
    with in_bash([*WITHOUT_FINDINGS, *job], environment) as terminal:
        os.killpg(terminal.foreground, signal.SIGTSTP)
        terminal.wait_for("Stopped")
        assert modes_left(terminal.received) <= {BASH}
        terminal.send(b"echo mine $((6*7))\n")
        terminal.wait_for("mine 42")
        terminal.resize(100, 30)
        terminal.mark()
        terminal.send(b"fg\n")
        terminal.wait_for_bytes(ALTERNATE_ON)
        terminal.press("2")
        terminal.wait_until(lambda: len(terminal.screen[-1]) > 80, "line as long as the new size")
        terminal.press("q", until="shell$")
        assert modes_left(terminal.received) <= {BASH}


STOPPED_WHILE_IT_WRITES = """
import os, queue, signal, sys
from nsystui.cli import main

class StoppedOnce(queue.Queue):
    left = 40

    def _put(self, item):  # with the lock that other writers wait for
        StoppedOnce.left -= 1
        if not StoppedOnce.left:
            os.kill(os.getpid(), signal.SIGTSTP)
        super()._put(item)

import textual.drivers._writer_thread as writer
writer.Queue = StoppedOnce
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.campaign
def test_a_stop_while_it_writes_does_not_wait_for_itself(job, environment, tmp_path):
    (tmp_path / "writing.py").write_text(STOPPED_WHILE_IT_WRITES)
    with in_bash([sys.executable, str(tmp_path / "writing.py"), *job], environment, "") as terminal:

        def is_stopped() -> bool:
            terminal.press("j", "k")
            terminal.listen(0.2)
            return "Stopped" in terminal.text

        terminal.wait_until(is_stopped, "Stopped")
        assert modes_left(terminal.received) <= {BASH}
        terminal.send(b"fg\n")
        terminal.wait_for("? help")
        terminal.press("q", until="shell$")


SIGNALLED_WHILE_IT_BEGINS = """
import os, signal, sys
from nsystui.cli import main
from textual.drivers.linux_driver import LinuxDriver

begin = LinuxDriver.__init__

def begin_with_signals(self, *arguments, **options):
    begin(self, *arguments, **options)
    for number in (signal.SIGTSTP, signal.SIGCONT):
        os.kill(os.getpid(), number)

LinuxDriver.__init__ = begin_with_signals
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.campaign
def test_a_stop_before_it_has_the_terminal_waits_until_it_has(job, environment):
    with in_a_shell([sys.executable, "-c", SIGNALLED_WHILE_IT_BEGINS, *job], environment, "? help") as terminal:
        terminal.press("q")
        assert_clean(terminal, {0})


@pytest.mark.campaign
def test_stopped_from_outside_it_leaves_the_terminal_as_it_was(job, environment):
    with in_a_shell([*WITHOUT_FINDINGS, *job], environment, "? help") as terminal:
        program = int(subprocess.run(["pgrep", "-P", str(terminal.pid)], capture_output=True, check=True).stdout)
        os.kill(program, signal.SIGSTOP)
        terminal.listen(0.3)
        terminal.mark()
        os.kill(program, signal.SIGCONT)
        terminal.wait_for_bytes(ALTERNATE_ON)
        terminal.wait_for("? help")
        terminal.press("q")
        assert_clean(terminal, {0})


@pytest.mark.campaign
def test_without_a_shell_to_go_back_to_it_does_not_stop(job, environment):
    with Terminal([*WITHOUT_FINDINGS, *job], environment, ready="? help") as terminal:
        terminal.mark()
        terminal.kill(signal.SIGTSTP)
        terminal.wait_for_bytes(ALTERNATE_ON)
        assert_obeys(terminal)


@pytest.mark.campaign
@pytest.mark.parametrize("before", [(), (signal.SIGTSTP,), (signal.SIGTSTP, signal.SIGCONT)])
def test_a_terminal_that_closes_with_its_shell_ends_it_stopped_or_not(job, environment, before):
    """The system then sends SIGHUP and SIGCONT."""
    with in_bash([*WITHOUT_FINDINGS, *job], environment) as terminal:
        program = terminal.foreground
        for number in before:
            os.killpg(program, number)
            terminal.listen(0.2)
        os.kill(terminal.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program, signal.SIGHUP)
            os.killpg(program, signal.SIGCONT)
        terminal.hang_up()
        deadline = time.monotonic() + PATIENCE
        with pytest.raises(ProcessLookupError):
            while time.monotonic() < deadline:
                os.killpg(program, 0)
                time.sleep(0.1)


@pytest.mark.campaign
@pytest.mark.parametrize("words", [["JOB"], ["demo"]])
def test_a_dropped_connection_ends_it_and_leaves_nothing(job, environment, words):
    with Terminal([*PROGRAM, *(job if words == ["JOB"] else words)], environment, ready="? help") as terminal:
        terminal.press("2")
        terminal.listen(0.2)
        terminal.hang_up()
        terminal.wait_exit()
        assert_nothing_left(terminal, environment)


@pytest.mark.campaign
def test_without_one_of_its_streams_it_ends_with_2(job, environment):
    reasons = {"</dev/null": "standard input", "<&-": "standard input", "2>/dev/null": "", "2>&-": ""}
    for redirection, reason in reasons.items():
        with in_sh([*PROGRAM, *job], environment, after=f" {redirection}; echo status $?") as terminal:
            terminal.wait_exit()
            assert "status 2" in terminal.text and reason in terminal.text, redirection
            assert modes_left(terminal.received) == set(), redirection


@pytest.mark.campaign
@pytest.mark.parametrize("redirection", [">/dev/null", ">&-", "| cat"])
def test_stdout_is_not_needed_for_the_screens(job, environment, redirection):
    with in_sh([*WITHOUT_FINDINGS, *job], environment, after=f" {redirection}", ready="? help") as terminal:
        assert_obeys(terminal)


@pytest.mark.campaign
def test_many_starts_and_stops_leave_nothing(job, unpacked, tmp_path):
    """Each stop is later than the previous: during an import, a file, an answer."""
    for number in range(campaign.cases(2)):
        with Terminal([*PROGRAM, *job], unpacked) as terminal:
            terminal.listen(0.05 + number * 0.37 % 2.5)
            while terminal.exit_code is None:
                terminal.press("q")  # again: keys typed before it takes the terminal are discarded
                terminal.listen(0.3)
            assert terminal.wait_exit() == 0, terminal.text
            assert modes_left(terminal.received) == set() and "Traceback" not in terminal.text
            assert_nothing_left(terminal, unpacked)
    kept = {path.name for path in (tmp_path / "cache").rglob("*")}
    assert not [name for name in kept if "tmp" in name or name.endswith(".part")]


BEGUN = """
import runpy, signal
signal.signal(signal.SIGINT, signal.SIG_DFL)
print("begun")
runpy.run_module("nsystui", None, "__main__")
"""
"""A program that announces its beginning: earlier interrupts hit Python's own start."""
INSTANTS = [*range(0, 600, campaign.step(300)), *range(600, 2000, campaign.step(1000))]
"""Milliseconds after the program has begun: in imports, while it takes the screen, draws and loads."""


def begun(job: list[str], environment: dict[str, str]) -> Terminal:
    return in_a_shell([sys.executable, "-c", BEGUN, *job], environment, "begun")


def assert_clean(terminal: Terminal, statuses: set[int]) -> None:
    """Check that the shell has its terminal back, and got one of these statuses."""
    terminal.wait_for("gone")
    settings = re.findall(r"(?:[0-9a-f]+:){20,}[0-9a-f]+", terminal.received.decode(errors="replace"))  # by stty -g
    assert len(settings) >= 2 and len(set(settings)) == 1 and modes_left(terminal.received) == set()
    assert re.findall(r"status (\d+)", terminal.received.decode(errors="replace"))[-1:] in [[str(s)] for s in statuses]
    for word in (b"Traceback", b"Exception ignored"):
        assert word not in terminal.received, terminal.received.rpartition(ALTERNATE_OFF)[2].decode()


@pytest.mark.campaign
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_at_any_instant_leaves_the_terminal_as_it_was(job, unpacked, number):
    for instant in INSTANTS:
        with begun(job, unpacked) as terminal:
            terminal.listen(instant / 1000)
            terminal.kill(number)
            assert_clean(terminal, {128 + number})


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(campaign.cases(2)))
def test_a_storm_of_signals_leaves_the_terminal_as_it_was(job, unpacked, seed):
    chance, ending = random.Random(seed), [signal.SIGTERM, signal.SIGHUP, signal.SIGINT]
    others = [signal.SIGWINCH, signal.SIGCONT, signal.SIGTSTP]
    with begun(job, unpacked) as terminal:
        if chance.random() < 0.5:
            terminal.wait_for("1 Ovw")
        terminal.listen(chance.random() / 2)
        for number in [*chance.choices(others, k=10), *chance.choices(ending * 3 + others, k=40), *ending]:
            terminal.kill(number)
            terminal.listen(chance.choice((0.0, 0.0, 0.001, 0.01)))
        assert_clean(terminal, {128 + number for number in ending})


@pytest.mark.parametrize(("words", "module"), [
    ("nsystui", "textual"),
    ("nsystui kernels", "argparse"),
    in_campaign("nsystui kernels", "typing"),
    in_campaign("nsystui", "argparse"),
    in_campaign("nsystui", "asyncio"),
])  # fmt: skip
def test_an_interrupt_in_the_midst_of_an_import_is_no_traceback(job, environment, module, words, tmp_path):
    (tmp_path / f"{module}.py").write_text("import os; os.kill(os.getpid(), 2); import time; time.sleep(600)")
    command = [sys.executable, "-m", *words.split(), *job]
    with in_a_shell(command, {**environment, "PYTHONPATH": str(tmp_path)}) as terminal:
        assert_clean(terminal, {130})


@pytest.mark.campaign
@pytest.mark.parametrize("instant", [50, *range(0, 2000, campaign.step(1000)), None])
def test_it_ends_with_its_terminal_even_where_it_must_not_be_told(job, unpacked, instant):
    """At some milliseconds after it begins to draw or to start, or after it has loaded."""
    with in_sh(
        [*PROGRAM, *job], unpacked, "trap '' HUP; exec ", ready="" if instant is not None else "? help"
    ) as terminal:
        while instant is not None and instant < 500 and ALTERNATE_ON not in terminal.received:
            terminal.listen(0.001)
        terminal.listen((instant or 0) / 1000)
        terminal.hang_up()
        terminal.wait_exit()


NEVER_ENDING = """
import sys, threading
from nsystui.cli import main
from nsystui.ui.app import NsystuiApp

def never(*_):
    threading.Event().wait()

setattr(NsystuiApp, {where!r}, never)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.campaign
@pytest.mark.parametrize("where", ["on_unmount", "stop_loading", "exit", "_load"])
def test_a_signal_ends_it_whatever_it_waits_for(job, environment, tmp_path, where):
    (tmp_path / "never.py").write_text(NEVER_ENDING.format(where=where))
    with in_a_shell([sys.executable, str(tmp_path / "never.py"), *job], environment, "1 Ovw") as terminal:
        terminal.kill(signal.SIGTERM)
        assert_clean(terminal, {143})


@pytest.mark.campaign
def test_a_stopped_job_that_the_shell_kills_is_gone(job, environment):
    with in_bash([*WITHOUT_FINDINGS, *job], environment) as terminal:
        terminal.press("ctrl+z", until="Stopped")
        # Bash's wait returns at once for a job that bash counts as stopped; a job that bash continues is waited for.
        terminal.send(b"kill %1; kill -CONT %1; wait %1; echo status $?\n")
        terminal.wait_for("status 143")
        assert modes_left(terminal.received) <= {BASH}


@pytest.mark.campaign
@pytest.mark.parametrize("number", range(campaign.cases(2)))
def test_an_interrupt_while_the_program_starts_is_no_traceback_of_its_own(job, environment, number):
    """Only Python's own start may print a traceback."""
    process = subprocess.Popen(
        [sys.executable, "-m", "nsystui", "kernels", *job], env={**os.environ, **environment},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    time.sleep(random.Random(f"{campaign.SEED}-{number}").uniform(0, 0.5))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode in (0, 130, -signal.SIGINT)
    assert "nsystui/cli.py" not in said
