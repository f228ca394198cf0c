"""The program in fault tests: any command on some files, in this process, and its outcome."""

import contextlib
import csv
import io
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from support import fingerprint

from nsystui.cli import main
from nsystui.questions.recipes import all_recipes
from nsystui.questions.stats import all_reports

SECONDS = 600
"""A command that takes longer on a small export hangs, however slow and busy the machine is."""

FEW = [
    (name,)
    for name in ["overview", "kernels", "gpu", "nccl", "nvtx", "events", "memory", "api", "osrt", "mpi", "ncu", "info"]
]
"""Quick questions that together read every table."""

# Status 1 needs --fail-on, and 130 is an interruption: both are wrong here.
_SAID = (0, 2, 3, 4)


@dataclass(frozen=True)
class Ran:
    """The outcome of a command. ``trouble`` is a traceback or another reason why it failed, empty if it did not."""

    words: tuple[str, ...]
    status: int
    out: str
    err: str
    trouble: str = ""


class Hangs(BaseException):
    """Not an ``Exception``, so that only a test catches it."""


@contextlib.contextmanager
def in_time() -> Iterator[None]:
    """Raise Hangs if the block takes too long."""

    def over(*_: object) -> None:
        raise Hangs(f"longer than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class _Terminal(io.TextIOWrapper):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def run(*words: str | Path, is_terminal: bool = False) -> Ran:
    """Run a command in this process; never raises. With ``is_terminal``, stdout claims to be a terminal."""
    written, told = io.BytesIO(), io.BytesIO()
    out = (_Terminal if is_terminal else io.TextIOWrapper)(written, encoding="utf-8", write_through=True)
    err = io.TextIOWrapper(told, encoding="utf-8", errors="backslashreplace", write_through=True)
    texts, status, trouble = tuple(map(str, words)), -1, ""
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            with in_time():
                status = main(list(texts))
        except SystemExit as end:
            status = int(end.code or 0)
        except BaseException:
            trouble = traceback.format_exc()
    said = [stream.getvalue().decode("utf-8", "replace") for stream in (written, told)]
    if not trouble and status not in _SAID:
        trouble = f"status {status}"
    if not trouble and status in (2, 4) and not said[1].strip():
        trouble = f"status {status} without a word"
    if not trouble and ("Traceback" in said[0] + said[1] or "the rule failed" in said[1]):
        trouble = f"a traceback is printed, or a rule failed: {said[1]}"
    return Ran(texts, status, *said, trouble)


def answered(*words: str | Path) -> Ran:
    """Return the outcome of a command that must not fail."""
    ran = run(*words)
    assert not failures([ran])
    return ran


def rows(*words: str | Path) -> list[dict[str, str]]:
    return rows_of(answered(*words, "--format", "csv"))


def rows_of(ran: Ran) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(ran.out)))


_PLAIN = [
    *("triage", "overview", "kernels", "nccl", "ranks", "steps", "gpu", "efficiency", "nvtx", "timeline", "events"),
    *("memory", "api", "osrt", "mpi", "ncu", "info", "kernels --by rank", "nccl --sizes exact"),
    *("nccl --calls AllReduce", "nccl --kernels AllReduce", "nccl --by communicator,step,rank", "gpu --over-time"),
    *("nvtx --summary", "nvtx --by all --fold none", "timeline --all-lanes --width 60", "info --show diagnostics"),
    *("info --show contents", "diff --time-a 0: --time-b 0:"),
]


def questions() -> list[tuple[str, ...]]:
    """Return the words of every command with tables, with each option that asks for other rows."""
    reports = ",".join(report.name for report in all_reports())
    recipes = [("recipe", recipe.name) for recipe in all_recipes() if recipe.name != "diff"]
    plain = [tuple(words.split()) for words in _PLAIN]
    return [*plain, ("kernels", "--instances", ""), ("stats", "-r", reports), *recipes]


def writers(directory: Path, files: Sequence[Path]) -> list[tuple[str, ...]]:
    """Return the commands that write files, here into ``directory``."""
    names = [*map(str, files)]
    ranks = ",".join(f"{name}={number}" for number, name in enumerate(names))
    everything = ("--kinds", "kernel,nccl,memory,graph,api,nvtx,mark,mpi,metrics,os")
    return [
        ("export", "--trace", str(directory / "job.json"), *everything, *names),
        ("export", "--paraver", str(directory / "job.prv"), *everything, *names),
        ("export", "--trace", "-", *names),
        ("pack", *names, "-o", str(directory / "packed"), "--ranks", ranks),
        ("report", *names, "-o", str(directory / "report.html")),
        ("report", *names, "--anonymous", "-o", str(directory / "anonymous.html")),
    ]


def alone(lines: str, *words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python code that may import the tests' modules in another process."""
    before = f"import sys\nfrom pathlib import Path\nsys.path[:] = {sys.path}\n"
    command = [sys.executable, "-c", before + lines, *map(str, words)]
    limits = {"stdin": subprocess.DEVNULL, "timeout": 10 * SECONDS, "env": {**os.environ, **environment}}
    return subprocess.run(command, capture_output=True, text=True, check=False, **limits)


def outside(*words: str | Path, before: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in another process, after the Python code ``before``."""
    return alone(f"{before}\nfrom nsystui.cli import main\nsys.exit(main(sys.argv[1:]))", *words, **environment)


def unchanged(directory: Path) -> object:
    """Return names, sizes, times and bytes of a directory's files, which a command must not change."""
    return fingerprint(directory), sorted(os.listdir(directory))


def failures(ran: Sequence[Ran]) -> str:
    """Return the failures as the message of an assertion; empty without failures."""
    return "\n\n".join(f"{' '.join(one.words)}\n{one.err}\n{one.trouble}" for one in ran if one.trouble)
