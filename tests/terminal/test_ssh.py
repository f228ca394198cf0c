"""Through a real sshd: the sequences for the terminal, and no processes after a lost connection."""

import getpass
import os
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from harness import PROGRAM, Terminal, assert_ends_well
from synthetic import training_job

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
MISSING = SSHD is None or not shutil.which("ssh")
pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(MISSING, reason="neither without sshd nor without ssh (Debian: openssh-server)"),
]

CONFIG = """Port {port}
ListenAddress 127.0.0.1
HostKey {directory}/host
AuthorizedKeysFile {directory}/user.pub
PidFile {directory}/pid
StrictModes no
UsePAM no
PasswordAuthentication no
PubkeyAuthentication yes
PermitRootLogin yes
AcceptEnv LANG LC_* COLORTERM NO_COLOR
"""


@dataclass(frozen=True)
class Server:
    """An sshd for the tests, with an accepted key and a job."""

    directory: Path
    port: int
    paths: Sequence[str]

    def login(self, command: str, env: dict[str, str | None] | None = None, **options: Any) -> Terminal:
        flags = [
            *("-F", "none", "-tt", "-p", str(self.port), "-i", str(self.directory / "user")),
            *("-o", "StrictHostKeyChecking=no", "-o", f"UserKnownHostsFile={self.directory}/known"),
            *("-o", "SendEnv=LANG LC_* COLORTERM NO_COLOR", "-o", "LogLevel=ERROR", "-o", "EscapeChar=none"),
        ]
        return Terminal(["ssh", *flags, f"{getpass.getuser()}@127.0.0.1", command], env, **options)

    @property
    def program(self) -> str:
        """The command that opens the job, noting its process."""
        cache, words = self.directory / "cache", [*PROGRAM, *self.paths]
        return f"echo $$ > {self.directory}/shell; NSYSTUI_CACHE_DIR={cache} exec {shlex.join(words)}"

    @property
    def process(self) -> int:
        return int((self.directory / "shell").read_text())


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("ssh")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)], check=True)
    port = free_port()
    (directory / "config").write_text(CONFIG.format(port=port, directory=directory))
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # Debian's sshd, as root, drops its privileges there
    assert SSHD is not None
    paths = [str(path) for path in training_job(directory / "job", ranks=2, steps=3)]
    process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(directory / "config")], stderr=subprocess.PIPE)
    try:
        for _ in range(1200):
            time.sleep(0.05)
            if process.poll() is not None:
                pytest.skip(f"no sshd may run here: {process.communicate()[1].decode(errors='replace').strip()}")
            with socket.socket() as knock:
                if knock.connect_ex(("127.0.0.1", port)) == 0:
                    break
        yield Server(directory, port, paths)
    finally:
        process.terminate()
        process.communicate()


def test_keys_and_sizes_go_through_and_the_mouse_is_left_alone(server):
    with server.login(server.program, ready="? help") as terminal:
        terminal.press("2", until=" names")
        terminal.resize(120, 36)
        terminal.wait_until(lambda: len(terminal.screen[0]) > 100 and terminal.screen[-1], "screen of the new size")
        assert b"\x1b[?1003h" not in terminal.received
        assert_ends_well(terminal)


@pytest.mark.parametrize(("env", "is_ascii", "colours"), [
    ({"TERM": "vt100", "LANG": "POSIX"}, True, b"\x1b[3"),
    ({"TERM": "tmux-256color", "LANG": "C.UTF-8"}, False, b"38;5;"),
    ({"TERM": "xterm", "LANG": "C.UTF-8", "COLORTERM": "truecolor"}, False, b"38;2;"),
    ({"TERM": "xterm-256color", "LANG": "de_DE.ISO-8859-1", "NO_COLOR": "1"}, True, b""),
])  # fmt: skip
def test_the_terminal_of_the_other_end_decides(server, env, is_ascii, colours):
    with server.login(server.program, env, ready="? help") as terminal:
        terminal.press("2", until=" names")
        assert_ends_well(terminal)
        assert terminal.received.isascii() is is_ascii and colours in terminal.received
        assert "NO_COLOR" not in env or not any(one in terminal.received for one in (b"38;5;", b"38;2;"))


def test_a_dumb_terminal_is_told_what_works(server):
    with server.login(server.program, {"TERM": "dumb"}) as terminal:
        assert terminal.wait_exit() == 2 and b"cannot place a cursor" in terminal.received


def test_a_connection_that_drops_ends_the_program(server):
    with server.login(server.program, ready="? help") as terminal:
        terminal.press("2")
        terminal.kill(9)  # the client: the server sees a broken connection
        terminal.wait_exit()
    for _ in range(6000):
        if not Path(f"/proc/{server.process}").exists():
            break
        time.sleep(0.05)
    else:
        pytest.fail("it still runs, minutes after its connection is gone")


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> str:
    directory = tmp_path_factory.mktemp("multiplexers")
    paths = [str(path) for path in training_job(directory / "job", ranks=2, steps=3)]
    return f"NSYSTUI_CACHE_DIR={directory / 'cache'} {shlex.join([*PROGRAM, *paths])}; echo ended; sleep 20"


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
