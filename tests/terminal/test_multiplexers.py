"""The program in tmux and screen: it draws, follows a resize, survives a detached client, and restores the window."""

import shlex
import shutil

import pytest
from harness import PROGRAM, Terminal
from synthetic import training_job


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> str:
    directory = tmp_path_factory.mktemp("multiplexers")
    paths = [str(path) for path in training_job(directory / "job", ranks=2, steps=3)]
    words = [*PROGRAM, *paths]
    return f"NSYSTUI_CACHE_DIR={directory / 'cache'} {shlex.join(words)}; echo ended; sleep 20"


def start(name: str, program: str, directory) -> tuple[list[str], list[str], dict[str, str | None]]:
    """Return the commands that start a multiplexer with the program and attach to it again, and its variables."""
    if not shutil.which(name):
        pytest.skip(f"{name} is not on this machine")
    own = {"SHELL": "/bin/sh", "HOME": str(directory), "TMUX": None, "STY": None}
    if name == "tmux":
        call = ["tmux", "-f", "/dev/null", "-S", str(directory / "socket")]
        return [*call, "new-session", program], [*call, "attach"], own
    sockets = directory / "screens"
    sockets.mkdir(mode=0o700)
    own |= {"SCREENDIR": str(sockets)}
    return ["screen", "-U", "-S", "nsystui", "sh", "-c", program], ["screen", "-U", "-r", "nsystui"], own


@pytest.mark.campaign
@pytest.mark.parametrize("name", ["tmux", "screen"])
def test_it_runs_in(name, program, tmp_path):
    first, again, env = start(name, program, tmp_path)
    with Terminal(first, env) as terminal:
        try:
            terminal.wait_for("? help")
            terminal.press("2", until=" names")
            terminal.resize(120, 36)
            terminal.wait_until(lambda: len(terminal.screen[0]) > 100, "line as wide as the terminal")
            detach = ("ctrl+b", "d") if name == "tmux" else ("ctrl+a", "d")
            terminal.press(*detach)
            assert terminal.wait_exit() == 0
            with Terminal(again, env, columns=100, lines=30, ready=" names") as other:
                other.press("6", until="6 Ev")
                other.press("q", until="ended")
                other.settle()
                assert not any("6 Ev" in line for line in other.screen[1:]), "the window is the shell's again"
        finally:
            end = [*first[:5], "kill-server"] if name == "tmux" else ["screen", "-S", "nsystui", "-X", "quit"]
            with Terminal(end, env) as ending:
                ending.wait_exit()
