"""Exports to measure, runs of programs seen from outside, and the program in a terminal."""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "terminal"))

from harness import Terminal
from synthetic import benchmark_export
from synthetic.demo import TrainingJob

ROWS = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_MEMCPY", "NVTX_EVENTS")
SHOWN = {
    "first rows": ("GPU time", "sample:", "by total time"), "exact kernels": ("by total time",),
    "findings": ("what is wrong",),
}  # fmt: skip
"""Texts of which the Overview shows one when it has rows, from a sample or exact; exact kernels; the findings."""
_LONG, _THOUGHT, _MOMENT = 1800.0, 2.0, 0.05
"""Seconds: after which the program counts as hanging, of rest that end a screen, between two looks."""


def export_of(directory: Path, kernels: int) -> Path:
    """Return an export with this number of kernels; write it if it is missing (12 s and 210 MB for a million)."""
    path = directory / f"kernels-{kernels}.sqlite"
    if not path.exists():
        partial = path.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        benchmark_export(partial, kernels, seed=1).rename(path)
    return path


def packed_job(directory: Path, ranks: int) -> tuple[Path, Run | None]:
    """Return a packed demo job of small ranks, and the run that packed it, ``None`` if it was packed before."""
    exports, packed = directory / f"demo-{ranks}", directory / f"packed-{ranks}"
    if packed.exists():
        return packed, None
    if not exports.exists():
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # all exports are open at once
        TrainingJob.of_any_size(ranks, 2).write(exports)
    with CacheDirectory() as cache:
        return packed, measure(nsystui("pack", str(exports), "-o", str(packed)), cache.environ)


def rows_of(path: Path) -> int:
    """Count the event rows of an export, by the last row id of each large table."""
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        return sum(connection.execute(f'SELECT max(rowid) FROM "{table}"').fetchone()[0] or 0 for table in ROWS)


@dataclass(frozen=True)
class Run:
    """One run of a program, or the median of several: seconds of wall and CPU time, peak resident bytes."""

    wall: float
    cpu: float
    peak: int
    status: int = 0

    @property
    def megabytes(self) -> str:
        return f"{self.peak / 1e6:.0f}"


def measure(command: Sequence[str], environ: Mapping[str, str]) -> Run:
    start = time.perf_counter()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environ
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    # Linux reports the peak in KiB, macOS in bytes.
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Run(wall, usage.ru_utime + usage.ru_stime, peak, process.returncode)


def median(runs: Iterable[Run]) -> Run:
    walls, cpus, peaks, statuses = zip(*((run.wall, run.cpu, run.peak, run.status) for run in runs), strict=True)
    return Run(statistics.median(walls), statistics.median(cpus), int(statistics.median(peaks)), max(statuses))


def nsystui(*words: str) -> list[str]:
    return program_of(sys.executable, *words)


def program_of(python: str, *words: str) -> list[str]:
    """Return a command line of the program installed for a Python, wherever it is started."""
    return [python, "-P", "-m", "nsystui", *words]


class CacheDirectory:
    """A cache for one measurement, removed at the end."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="nsystui-bench-"))
        self.environ = {**os.environ, "NSYSTUI_CACHE_DIR": str(self.path)}

    def clear(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(mode=0o700)

    def cold(self, command: Sequence[str], repeats: int) -> Run:
        """Return the median of runs with an empty cache."""
        return self._renewed(command, repeats, self.clear)

    def warm(self, command: Sequence[str], repeats: int) -> Run:
        return median(measure(command, self.environ) for _ in range(repeats))

    def computed(self, command: Sequence[str], repeats: int) -> Run:
        """Return the median of runs that find the columns in the cache, but no answer."""
        return self._renewed(command, repeats, lambda: shutil.rmtree(self.path / "answers", ignore_errors=True))

    def _renewed(self, command: Sequence[str], repeats: int, renew: Callable[[], object]) -> Run:
        runs = []
        for _ in range(repeats):
            renew()
            runs.append(measure(command, self.environ))
        return median(runs)

    def __enter__(self) -> CacheDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


class Program(Terminal):
    """The program on exports, at 120x36 as over SSH; a context manager. For Linux."""

    def __init__(self, path: Path, cache: CacheDirectory, python: str = sys.executable) -> None:
        environ = {"NSYSTUI_CACHE_DIR": str(cache.path), "SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22"}
        super().__init__(program_of(python, str(path)), environ, 120, 36)
        self._began = time.perf_counter()

    def until(self, texts: Sequence[str]) -> Run:
        """Measure until one of ``texts`` is on the screen."""
        while not any(text in self.text for text in texts):
            if not self.read(1.0) and (self.exit_code is not None or time.perf_counter() - self._began > _LONG):
                raise RuntimeError(f"the program does not go on:\n{self.text}")
        return self.used

    def visit(self, key: str) -> Run:
        """Measure the way to the screen of ``key``, until it is complete."""
        began, before = time.perf_counter(), self.used.cpu
        self.press(key)
        last, cpu = began, before
        while time.perf_counter() - last < _THOUGHT:
            if self.listen(_MOMENT):
                last, cpu = time.perf_counter(), self.used.cpu
        return Run(last - began, cpu - before, self.used.peak)

    def rest(self) -> None:
        """Wait until the program has neither sent nor computed anything for a while."""
        before = -1.0
        while self.used.cpu - before > _THOUGHT / 40:
            before = self.used.cpu
            self.listen(_THOUGHT)

    @property
    def used(self) -> Run:
        """Return seconds since the start, CPU seconds (the kernel's clock of the other process), and the peak."""
        status = Path(f"/proc/{self._pid}/status").read_text(encoding="utf-8")
        peak = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
        return Run(time.perf_counter() - self._began, time.clock_gettime((~self._pid << 3) | 2), peak)
