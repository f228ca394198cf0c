"""``nsystui diff``: names of the sides, printed tables, and refusals."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from synthetic.demo import TrainingJob

from nsystui.commands.diff import prepared

TABLES = ["summary", "kernels", "families", "nvtx", "nccl", "memory", "api", "functions", "steps"]


@pytest.fixture(scope="session")
def other_job(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return TrainingJob(ranks=2, steps=3, layers=2, straggler=None).write(tmp_path_factory.mktemp("other"))


@pytest.fixture
def diff(run):
    """Return a function that runs ``nsystui diff`` and returns its status, output and notes."""

    def diff(*words):
        done = run("diff", *words)
        return done.status, done.out, done.err

    return diff


def test_the_dashes_between_the_jobs_may_be_followed_by_options():
    words = ["a", "b", "--top", "3", "--", "c", "d", "--format", "csv"]
    assert prepared(words) == ["a", "b", "--top", "3", "--against", "c", "d", "--format", "csv"]
    assert prepared(["a", "--ranks-a", "0"]) == ["a", "--ranks-a", "0"]


@pytest.mark.campaign
def test_a_text_that_is_read_on_a_terminal_through_a_pipe_has_its_width(demo_job):
    """As with ``nsystui diff … | less``: stdout is a pipe, stderr the terminal."""
    terminal, own = pty.openpty()
    fcntl.ioctl(own, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    command = [sys.executable, "-m", "nsystui", "diff", *demo_job[:2], "--ranks-a", "0", "--ranks-b", "1"]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=own, text=True, check=True, timeout=120)
    finally:
        os.close(own)
        os.close(terminal)
    tables = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    assert len(tables) > 40 and max(map(len, tables)) <= 100


@pytest.mark.campaign
def test_each_table_gets_a_file(demo_job, other_job, tmp_path, diff):
    target = tmp_path / "out.csv"
    status, _, _ = diff(demo_job[0], "--", other_job[0], "-o", target)
    assert status == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"out_{name}.csv" for name in TABLES)
    status, _, _ = diff(demo_job[0], "--", other_job[0], "--tables", "summary", "-o", target)
    assert status == 0 and target.exists()
