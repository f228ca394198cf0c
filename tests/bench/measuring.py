"""What every topic of the measurements uses: exports, runs of programs, and a terminal."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "terminal"))

from harness import Terminal
from synthetic import benchmark_export

ROWS = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_MEMCPY", "NVTX_EVENTS")
LOADED, SAMPLE = "GPU time", "sample:"
"""What is on the Overview: the bar of exact numbers, the word for those of a sample."""
_LONG = 1800.0


# Exports


def export_of(directory: Path, kernels: int) -> Path:
    """An export with so many kernels; written if it is not there (12 s and 210 MB for a million)."""
    return _written(directory / f"kernels-{kernels}.sqlite", kernels, seed=1)


def ranks_of(directory: Path, count: int, kernels: int) -> list[Path]:
    """The exports of a job of ``count`` ranks with so many kernels each; those that are not there are written."""
    place = directory / f"ranks-{kernels}"
    place.mkdir(exist_ok=True)
    return [_written(place / f"rank{seed - 1:03d}.sqlite", kernels, seed) for seed in range(1, count + 1)]


def _written(path: Path, kernels: int, seed: int) -> Path:
    if not path.exists():
        partial = path.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        benchmark_export(partial, kernels, seed=seed).rename(path)
    return path


def packed_job(directory: Path, ranks: int, environ: Mapping[str, str]) -> Path:
    """A packed demo job of so many small ranks; made if it is not there."""
    exports, packed = directory / f"demo-{ranks}", directory / f"packed-{ranks}"
    if not packed.exists():
        demo = nsystui("demo", "--ranks", str(ranks), "--steps", "2", "--directory", str(exports), "--write-only")
        for command in (demo, nsystui("pack", str(exports), "-o", str(packed))):
            subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, check=True)
    return packed


def rows_of(path: Path) -> int:
    """How many event rows an export has, by the last number of each large table."""
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        return sum(connection.execute(f'SELECT max(rowid) FROM "{table}"').fetchone()[0] or 0 for table in ROWS)


# Runs


@dataclass(frozen=True)
class Run:
    """One run of a program, or the median of several: seconds of wall and CPU time, peak resident bytes."""

    wall: float
    cpu: float
    peak: int
    status: int = 0

    @property
    def cells(self) -> tuple[str, str, str]:
        """Seconds of wall and of CPU, and the peak in MB."""
        return f"{self.wall:.2f}", f"{self.cpu:.2f}", f"{self.peak / 1e6:.0f}"


def measure(command: Sequence[str], environ: Mapping[str, str], stderr: Path | None = None) -> Run:
    """Runs a command to its end, seen from outside. What it complains of goes to ``stderr``, if that is named."""
    with open(os.devnull, "wb") as out, open(stderr or os.devnull, "wb") as err:
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
    walls, cpus, peaks, statuses = zip(*((run.wall, run.cpu, run.peak, run.status) for run in runs), strict=True)
    return Run(statistics.median(walls), statistics.median(cpus), int(statistics.median(peaks)), max(statuses))


def nsystui(*words: str) -> list[str]:
    """The command line of this checkout's program."""
    return [sys.executable, "-m", "nsystui", *words]


class CacheDirectory:
    """A cache of its own for a measurement: empty when asked for, gone at the end."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="nsystui-bench-"))
        self.environ = {**os.environ, "NSYSTUI_CACHE_DIR": str(self.path)}

    @property
    def size(self) -> int:
        """Bytes of the files in it."""
        return sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file())

    def clear(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(mode=0o700)

    def child(self, what: str, *words: object) -> Any:
        """The JSON of ``child_<what>.py`` beside this file, which measures inside a process of its own."""
        command = [sys.executable, str(Path(__file__).with_name(f"child_{what}.py")), *map(str, words)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=self.environ, check=True)
        return json.loads(done.stdout)

    def pack(self, path: Path) -> Any:
        """Opens everything of an export into it; what ``child_packing.py`` says of it."""
        return self.child("packing", path, self.path)

    def cold(self, command: Sequence[str], repeats: int) -> Run:
        """The median of runs that find it empty."""
        return self._renewed(command, repeats, self.clear)

    def warm(self, command: Sequence[str], repeats: int) -> Run:
        return median(measure(command, self.environ) for _ in range(repeats))

    def computed(self, command: Sequence[str], repeats: int) -> Run:
        """The median of warm runs that find the columns but no answer that was given before."""
        return self._renewed(command, repeats, lambda: shutil.rmtree(self.path / "answers", ignore_errors=True))

    def _renewed(self, command: Sequence[str], repeats: int, renew: Any) -> Run:
        runs = []
        for _ in range(repeats):
            renew()
            runs.append(measure(command, self.environ))
        return median(runs)

    def __enter__(self) -> CacheDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


# The program in a terminal


@dataclass(frozen=True)
class Moment:
    """Seconds since a program was started, and of CPU that it has used."""

    wall: float
    cpu: float


class Program(Terminal):
    """The program on an export, at 120x36 as over SSH; a context manager. For Linux."""

    def __init__(self, path: Path, cache: CacheDirectory) -> None:
        environ = {"NSYSTUI_CACHE_DIR": str(cache.path), "SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22"}
        super().__init__(nsystui(str(path)), environ, 120, 36)
        self._began = time.perf_counter()

    def seen(self, *texts: str) -> Moment:
        """The moment when one of ``texts`` is on the screen; raises ``RuntimeError`` where it never will be."""
        while not any(text in self.text for text in texts):
            if not self.read(1.0) and (self.exit_code is not None or time.perf_counter() - self._began > _LONG):
                raise RuntimeError(f"the program does not go on:\n{self.text}")
        return Moment(time.perf_counter() - self._began, self.cpu)

    @property
    def cpu(self) -> float:
        """Seconds of CPU so far, exact to the microsecond: the kernel's clock of the other process."""
        return time.clock_gettime((~self._pid << 3) | 2)

    @property
    def peak(self) -> int:
        """The most bytes that were resident so far."""
        status = Path(f"/proc/{self._pid}/status").read_text(encoding="utf-8")
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
