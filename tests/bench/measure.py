"""How long a program takes and how much memory it needs, measured from outside."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Run:
    """One run of a program, or the median of several: seconds of wall and CPU time, peak resident bytes."""

    wall: float
    cpu: float
    peak: int
    status: int = 0


def measure(
    command: Sequence[str], environ: Mapping[str, str], stdout: Path | None = None, stderr: Path | None = None
) -> Run:
    """Runs a command to its end. What it prints goes to ``stdout`` and ``stderr``, as far as they are named."""
    with open(stdout or os.devnull, "wb") as out, open(stderr or os.devnull, "wb") as err:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environ)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    # Linux tells the peak in KiB, macOS in bytes.
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Run(wall, usage.ru_utime + usage.ru_stime, peak, process.returncode)


def median(runs: Iterable[Run]) -> Run:
    """The median of every figure by itself."""
    runs = list(runs)
    return Run(
        statistics.median(run.wall for run in runs),
        statistics.median(run.cpu for run in runs),
        int(statistics.median(run.peak for run in runs)),
        max(run.status for run in runs),
    )


def nsystui(*words: str) -> list[str]:
    """The command line of this checkout's program."""
    return [sys.executable, "-m", "nsystui", *words]


def child(script: str, *words: str | os.PathLike[str], environ: Mapping[str, str] | None = None) -> Any:
    """The JSON of a script beside this file, which measures inside a process of its own."""
    command = [sys.executable, str(Path(__file__).with_name(script)), *map(os.fspath, words)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environ, check=True)
    return json.loads(done.stdout)


def pack(path: Path, cache: CacheDirectory) -> Any:
    """Opens everything of an export into a cache; what ``child_packing.py`` says of it."""
    return child("child_packing.py", path, cache.path, environ=cache.environ)


def measure_computed(command: Sequence[str], cache: CacheDirectory, repeats: int) -> Run:
    """The median of runs on a warm cache that compute their answer, though it was given before."""
    runs = []
    for _ in range(repeats):
        cache.forget_answers()
        runs.append(measure(command, cache.environ))
    return median(runs)


class CacheDirectory:
    """A cache of its own for a measurement: empty when asked for, gone at the end."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="nsystui-bench-"))

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "NSYSTUI_CACHE_DIR": str(self.path)}

    @property
    def size(self) -> int:
        """Bytes of the files in it."""
        return sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file())

    def forget_answers(self) -> None:
        """Keeps the columns and lets go of remembered answers: the next report is computed again, not repeated."""
        shutil.rmtree(self.path / "answers", ignore_errors=True)

    def clear(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(mode=0o700)

    def __enter__(self) -> CacheDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
