"""How an export is read: how many reads, of how many bytes. A parallel file system answers each of them slowly."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from measuring import CacheDirectory, export_of, nsystui
from table import LARGE, Row, Setting, Table, short

HEADINGS = ("kernels", "what", "reads", "MB read", "reads per MB of the file", "read / file")
# "12 pread64(3</a/b.sqlite>, ""..., 4096, 0) = 4096", or the same in two lines where another thread came between.
_CALL = re.compile(r"^(\d+) +p?read(?:64)?\(\d+<(.*?)>")
_RESULT = re.compile(r"= (\d+)$")
_UNFINISHED = "<unfinished ...>"
_POLL = 0.01
_TRACED = """The reads of the export alone, by strace; one run each. SQLite reads page by page, 4 KB each. While all
is opened these find their pages in memory: the program asks for the file ahead of them, from its beginning to its end
and each region once, in pieces of 32 MB (`posix_fadvise`), which a network file system answers in large requests. One
report alone reads the pages of its tables and no others."""


def reads(setting: Setting) -> Iterator[Table]:
    if _can_trace():
        yield Table("Reads", HEADINGS, _rows(setting, True), _TRACED)
    elif Path("/proc/self/io").exists():
        text = "By /proc/PID/io, so the reads of every file, Python's own too; one run each."
        yield Table("Reads", HEADINGS, _rows(setting, False), text)


def _can_trace() -> bool:
    """Whether strace is there and may look at a process: in a container it often may not."""
    strace = shutil.which("strace")
    return bool(strace) and subprocess.run([strace, "-o", os.devnull, "true"], capture_output=True).returncode == 0


def _rows(setting: Setting, can_trace: bool) -> Iterator[Row]:
    for kernels in [size for size in setting.sizes if size < LARGE]:  # strace takes minutes for more
        path = export_of(setting.directory, kernels).resolve()
        with CacheDirectory() as cache:
            packing = [sys.executable, str(Path(__file__).with_name("child_packing.py")), str(path), str(cache.path)]
            report = nsystui("stats", "-r", "cuda_gpu_kern_sum", "--format", "csv", str(path))
            for what, command in (("opening everything", packing), ("one report, cuda_gpu_kern_sum", report)):
                cache.clear()
                calls, read = _traced(command, path, cache) if can_trace else _polled(command, cache)
                size = path.stat().st_size
                cells = (f"{calls:,}", f"{read / 1e6:,.1f}", f"{calls / size * 1e6:,.0f}", f"{read / size:.2f}")
                yield short(kernels), what, *cells


def _traced(command: Sequence[str], path: Path, cache: CacheDirectory) -> tuple[int, int]:
    """How many calls, and how many bytes they gave, of ``path``; what is mapped into memory is not seen."""
    with tempfile.TemporaryDirectory(prefix="nsystui-bench-") as place:
        log = Path(place) / "reads"
        strace = ["strace", "-f", "-y", "-s", "0", "-e", "trace=read,pread64", "-o", str(log)]
        subprocess.run([*strace, *command], stdout=subprocess.DEVNULL, env=cache.environ, check=True)
        with open(log, encoding="utf-8", errors="replace") as lines:
            sizes = list(_sizes(lines, str(path)))
    return len(sizes), sum(sizes)


def _sizes(lines: Iterator[str], path: str) -> Iterator[int]:
    waiting: set[str] = set()  # the threads whose read of the file is not finished
    for line in map(str.rstrip, lines):
        thread, call = line.partition(" ")[0], _CALL.match(line)
        if call[2] != path if call else thread not in waiting:
            continue
        if line.endswith(_UNFINISHED):
            waiting.add(thread)
        else:
            waiting.discard(thread)
            if result := _RESULT.search(line):
                yield int(result[1])


def _polled(command: Sequence[str], cache: CacheDirectory) -> tuple[int, int]:
    """The same of every file, by the last line of /proc before the end."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=cache.environ)
    counters = {"syscr": 0, "rchar": 0}
    while process.poll() is None:
        try:
            told = Path(f"/proc/{process.pid}/io").read_text(encoding="utf-8")
        except OSError:  # it ended
            break
        counters.update((name, int(value)) for name, value in (line.split(": ") for line in told.splitlines()))
        time.sleep(_POLL)
    process.wait()
    return counters["syscr"], counters["rchar"]
