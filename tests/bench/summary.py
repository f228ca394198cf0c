"""The exact kernel summary, beside what else makes one of an export."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from inputs import export_of, short
from measure import CacheDirectory, Run, measure, measure_computed, median, nsystui, pack
from table import Row, Setting, Table, Target, judged, ratio

HEADINGS = ("kernels", "program", "wall s", "CPU s", "peak MB", "CPU / ours cold", "CPU s / million kernels")
TEXT = """`cuda_gpu_kern_sum` as CSV. Opening everything (as the application does) also answers it for later, and
the same report again repeats what was answered before: neither computes anything. Computed anew takes the answer from
columns that were read before, as for a question that nobody asked yet: most of that are the imports of SQLAlchemy and
DuckDB, which also take the memory (see "Where the time goes"). The sqlite3 shell gives no median; pandas reads through
SQLAlchemy and gives all of our columns; nsys-ai prints ten kernels. Without a network nsys-ai cannot fetch the DuckDB
extension that it reads with and goes on with SQLite: the wall time then includes the attempt, so compare CPU. Where
nsys is not on the PATH, figures of nsys 2023.4 on two busy cores of another machine are quoted, for orientation:
`reached` compares our cold CPU seconds with the least of them. A peak under 40 MB is that of the program that
measures."""
SQL = """SELECT s.value, count(*), sum(k."end" - k.start), avg(k."end" - k.start), min(k."end" - k.start),
max(k."end" - k.start) FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName
GROUP BY k.demangledName ORDER BY 3 DESC"""
_REPORT = "cuda_gpu_kern_sum"
_MEMORY = Target("< 100 MB", 100e6)
_WARM = {10**6: Target("wall < 0.4 s", 0.4), 10**7: Target("wall < 0.6 s", 0.6)}
_COLD, _AGAIN = "nsystui, cold", "nsystui, the same report again"
_OPENED, _COMPUTED = "nsystui, everything opened before", "nsystui, computed anew"
_SHELL = "sqlite3 shell"


@dataclass(frozen=True)
class Quoted:
    """CPU seconds that nsys took elsewhere, and how many times less ours should be."""

    least: float
    most: float
    times: int


_NSYS = {10**6: Quoted(4.4, 7.7, 5), 10**7: Quoted(120.0, 120.0, 10)}


def tables(setting: Setting) -> Iterator[Table]:
    """The one table of this topic."""
    yield Table("Kernel summary", (*HEADINGS, "target", "reached"), _rows(setting), TEXT)


def _rows(setting: Setting) -> Iterator[Row]:
    for kernels in setting.sizes:
        path = export_of(setting.directory, kernels)
        runs = {**_ours(path, setting.runs(kernels)), **_others(path, setting, kernels)}
        cold = runs[_COLD].cpu
        for program, run in runs.items():
            cells = (f"{run.wall:.2f}", f"{run.cpu:.2f}", f"{run.peak / 1e6:.0f}")
            times = (ratio(run.cpu, cold), f"{run.cpu / kernels * 1e6:.2f}")
            yield short(kernels), _named(program, run), *cells, *times, *_verdict(kernels, program, runs)
        quoted = _NSYS.get(kernels)
        if quoted is not None and not shutil.which("nsys"):
            yield _quoted_row(kernels, quoted, cold)


def _named(program: str, run: Run) -> str:
    return program if run.status == 0 else f"{program} (ended with status {run.status})"


def _verdict(kernels: int, program: str, runs: Mapping[str, Run]) -> Row:
    run = runs[program]
    if program in (_OPENED, _AGAIN):
        walls = [(_WARM[kernels], run.wall)] if kernels in _WARM else []
        return judged(*walls, (_MEMORY, run.peak))
    if program == _COLD and kernels == 10**7 and _SHELL in runs:
        return judged((Target("wall <= sqlite3 shell", runs[_SHELL].wall), run.wall))
    return judged()


def _quoted_row(kernels: int, quoted: Quoted, cold: float) -> Row:
    span = f"{quoted.least:g}" if quoted.least == quoted.most else f"{quoted.least:g}–{quoted.most:g}"
    target = Target(f"ours cold {quoted.times} x less CPU", quoted.times, at_least=True)
    times = (ratio(quoted.least, cold), f"{quoted.least / kernels * 1e6:.2f}")
    return short(kernels), "nsys 2023.4, quoted", "–", span, "–", *times, *judged((target, quoted.least / cold))


def _ours(path: Path, repeats: int) -> dict[str, Run]:
    command = nsystui("stats", "-r", _REPORT, "--format", "csv", str(path))
    found, cold = {}, []
    with CacheDirectory() as cache:
        for _ in range(repeats):
            cache.clear()
            cold.append(measure(command, cache.environ))
        found[_COLD] = median(cold)
        found[_AGAIN] = median(measure(command, cache.environ) for _ in range(repeats))
        cache.clear()
        pack(path, cache)
        found[_OPENED] = median(measure(command, cache.environ) for _ in range(repeats))
        found[_COMPUTED] = measure_computed(command, cache, repeats)
    return found


def _others(path: Path, setting: Setting, kernels: int) -> dict[str, Run]:
    commands = {"pandas": [sys.executable, str(Path(__file__).with_name("child_pandas.py")), str(path)]}
    if shell := shutil.which("sqlite3"):
        commands[_SHELL] = [shell, "-readonly", "-csv", str(path), SQL]
    if nsys := shutil.which("nsys"):
        commands["nsys stats"] = [nsys, "stats", "-q", "--format", "csv", "-r", _REPORT, str(path)]
    with CacheDirectory() as cache:
        found = {
            program: median(measure(command, cache.environ) for _ in range(setting.runs(kernels)))
            for program, command in commands.items()
        }
    # It reads the export several times into memory: beyond a million kernels that takes minutes.
    is_small = path.stat().st_size < 1 << 30
    return {**found, **(_nsys_ai(setting.nsys_ai, path, setting.runs(kernels)) if setting.nsys_ai and is_small else {})}


def _nsys_ai(program: str, path: Path, repeats: int) -> dict[str, Run]:
    """A first and a second run on a copy of the export, each in a new directory that is also its home."""
    first, second, told = [], [], ""
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(prefix="nsystui-bench-") as place, CacheDirectory() as cache:
            copy = Path(place) / path.name
            shutil.copyfile(path, copy)
            environ = {**cache.environ, "HOME": place, "XDG_CACHE_HOME": place}
            command = [program, "summary", str(copy)]
            said = Path(place) / "stderr"
            first.append(measure(command, environ, stderr=said))
            told = said.read_text(encoding="utf-8", errors="replace")
            second.append(measure(command, environ))
    how = ", without its DuckDB extension" if "falling back" in told else ""
    return {f"nsys-ai summary, first{how}": median(first), f"nsys-ai summary, second{how}": median(second)}
