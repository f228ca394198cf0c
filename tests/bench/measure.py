"""How long a program takes and how much memory it needs, measured from outside."""

from __future__ import annotations

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


@dataclass(frozen=True)
class Run:
    """One run of a program, or the median of several: seconds of wall and CPU time, peak resident bytes."""

    wall: float
    cpu: float
    peak: int
    status: int = 0


def measure(command: Sequence[str], environ: Mapping[str, str], stdout: Path | None = None) -> Run:
    """Runs a command to its end. stderr goes nowhere; what it prints goes to ``stdout``, if that is named."""
    with open(stdout or os.devnull, "wb") as stream:
        start = time.perf_counter()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.DEVNULL, env=environ
        )
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


class CacheDirectory:
    """A cache of its own for a measurement: empty when asked for, gone at the end."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="nsystui-bench-"))

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "NSYSTUI_CACHE_DIR": str(self.path)}

    def clear(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(mode=0o700)

    def __enter__(self) -> CacheDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
