"""The exact kernel summary, beside what else makes one of an export, and other reports beside ``nsys stats``."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from measuring import CacheDirectory, Run, export_of, measure, median, nsystui, rows_of
from table import Row, Setting, Table, Target, judged, ratio, short

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
PANDAS = """import sys
import pandas as pd
import sqlalchemy as sa
query = '''SELECT s.value AS name, k."end" - k.start AS duration
FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName'''
with sa.create_engine(f"sqlite:///{sys.argv[1]}").connect() as connection:
    frame = pd.read_sql(sa.text(query), connection)
figures = ["sum", "count", "mean", "median", "min", "max", "std"]
frame.groupby("name")["duration"].agg(figures).sort_values("sum", ascending=False).to_csv(sys.stdout)
"""
"""The kernel summary as a user of pandas writes it."""
_REPORT = "cuda_gpu_kern_sum"
_MEMORY = Target("< 100 MB", 100e6)
_WARM = {10**6: Target("wall < 0.4 s", 0.4), 10**7: Target("wall < 0.6 s", 0.6)}
_COLD, _AGAIN = "nsystui, cold", "nsystui, the same report again"
_OPENED, _COMPUTED = "nsystui, everything opened before", "nsystui, computed anew"
_SHELL = "sqlite3 shell"
_NSYS = {10**6: (4.4, "4.4–7.7", 5), 10**7: (120.0, "120", 10)}
"""CPU seconds that nsys took elsewhere, the least and all, and how many times less ours should be."""


def summary(setting: Setting) -> Iterator[Table]:
    headings = ("kernels", "program", "wall s", "CPU s", "peak MB", "CPU / ours cold", "CPU s / million kernels")
    yield Table("Kernel summary", (*headings, "target", "reached"), _summaries(setting), TEXT)


def _summaries(setting: Setting) -> Iterator[Row]:
    for kernels in setting.sizes:
        path, repeats = export_of(setting.directory, kernels), setting.runs(kernels)
        runs = {**_ours(path, repeats), **_others(path, repeats, setting.nsys_ai)}
        cold = runs[_COLD].cpu
        for program, run in runs.items():
            name = program if run.status == 0 else f"{program} (ended with status {run.status})"
            times = (ratio(run.cpu, cold), f"{run.cpu / kernels * 1e6:.2f}")
            yield short(kernels), name, *run.cells, *times, *_verdict(kernels, program, runs)
        if kernels in _NSYS and not shutil.which("nsys"):
            least, span, less = _NSYS[kernels]
            target = Target(f"ours cold {less} x less CPU", less, at_least=True)
            times = (ratio(least, cold), f"{least / kernels * 1e6:.2f}")
            yield short(kernels), "nsys 2023.4, quoted", "–", span, "–", *times, *judged((target, least / cold))


def _verdict(kernels: int, program: str, runs: Mapping[str, Run]) -> Row:
    run = runs[program]
    if program in (_OPENED, _AGAIN):
        walls = [(_WARM[kernels], run.wall)] if kernels in _WARM else []
        return judged(*walls, (_MEMORY, run.peak))
    if program == _COLD and kernels == 10**7 and _SHELL in runs:
        return judged((Target("wall <= sqlite3 shell", runs[_SHELL].wall), run.wall))
    return judged()


def _ours(path: Path, repeats: int) -> dict[str, Run]:
    command = nsystui("stats", "-r", _REPORT, "--format", "csv", str(path))
    with CacheDirectory() as cache:
        found = {_COLD: cache.cold(command, repeats), _AGAIN: cache.warm(command, repeats)}
        cache.clear()
        cache.pack(path)
        return {**found, _OPENED: cache.warm(command, repeats), _COMPUTED: cache.computed(command, repeats)}


def _others(path: Path, repeats: int, nsys_ai: str | None) -> dict[str, Run]:
    commands = {"pandas": [sys.executable, "-c", PANDAS, str(path)]}
    if shell := shutil.which("sqlite3"):
        commands[_SHELL] = [shell, "-readonly", "-csv", str(path), SQL]
    if nsys := shutil.which("nsys"):
        commands["nsys stats"] = [nsys, "stats", "-q", "--format", "csv", "-r", _REPORT, str(path)]
    with CacheDirectory() as cache:
        found = {program: cache.warm(command, repeats) for program, command in commands.items()}
    # nsys-ai reads the export several times into memory: beyond a million kernels that takes minutes.
    return {**found, **_nsys_ai(nsys_ai, path, repeats)} if nsys_ai and path.stat().st_size < 1 << 30 else found


def _nsys_ai(program: str, path: Path, repeats: int) -> dict[str, Run]:
    """A first and a second run on a copy of the export, each in a new directory that is also its home."""
    first, second, told = [], [], ""
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(prefix="nsystui-bench-") as place, CacheDirectory() as cache:
            copy, said = Path(place) / path.name, Path(place) / "stderr"
            shutil.copyfile(path, copy)
            environ = {**cache.environ, "HOME": place, "XDG_CACHE_HOME": place}
            first.append(measure([program, "summary", str(copy)], environ, stderr=said))
            told = said.read_text(encoding="utf-8", errors="replace")
            second.append(measure([program, "summary", str(copy)], environ))
    how = ", without its DuckDB extension" if "falling back" in told else ""
    return {f"nsys-ai summary, first{how}": median(first), f"nsys-ai summary, second{how}": median(second)}


_HEAVY = ("triage", "overview", "gaps", "nvtx", "nccl", "budget --by step", "path", "events --top 20")
_MEMORY = Target("< 1000 MB", 1e9)


def heavy(setting: Setting) -> Iterator[Table]:
    """The commands that look at every operation, beside an older version's, SQLite's shell and the disk."""
    text = """No command may take more than 1 GB, whatever the export. `empty` is without a cache, `full` with the
columns and what was derived of them, `again` repeats an answer. `reading` is `cat` of the export, the least that any
program takes; the shell of SQLite groups the kernels by name, without a median."""
    headings = ("kernels", "command", "cache", "wall s", "CPU s", "peak MB", "CPU of the older version", "its peak MB")
    headings += ("CPU / its", "wall / sqlite3 shell", "wall / reading", "target", "reached")
    yield Table("Commands over all operations", headings, _heavy(setting), text)


def _heavy(setting: Setting) -> Iterator[Row]:
    for kernels in setting.sizes:
        path = export_of(setting.directory, kernels)
        with CacheDirectory() as cache:
            reading = cache.warm(["cat", str(path)], setting.repeats)
            shell = cache.warm(["sqlite3", "-readonly", "-csv", str(path), SQL], setting.runs(kernels))
        floor = (*[""] * 3, ratio(reading.wall, shell.wall), "1 x", *judged())
        yield short(kernels), "reading", "–", *reading.cells, *floor
        yield (
            short(kernels),
            "sqlite3 shell",
            "–",
            *shell.cells,
            *floor[:3],
            "1 x",
            ratio(shell.wall, reading.wall),
            "",
            "",
        )
        for command in _HEAVY:
            found = _runs(sys.executable, command, path, setting.runs(kernels))
            older = _runs(setting.older, command, path, 1) if setting.older else {}
            for name, run in found.items():
                old = older.get(name)
                known = old is not None and old.status == 0
                beside = (*old.cells[1:], ratio(run.cpu, old.cpu)) if known else ("–", "–", "–")
                ratios = (ratio(run.wall, shell.wall), ratio(run.wall, reading.wall))
                verdict = judged((_MEMORY, run.peak))
                yield short(kernels), command, name, *run.cells, *beside, *ratios, *verdict


def _runs(python: str, command: str, path: Path, repeats: int) -> dict[str, Run]:
    words = [python, "-m", "nsystui", *command.split(), str(path)]
    with CacheDirectory() as cache:
        runs = {"empty": cache.cold(words, repeats), "full": cache.computed(words, repeats)}
        return {**runs, "again": cache.warm(words, repeats)}


def stats(setting: Setting) -> Iterator[Table]:
    text = (
        "Nearly every NVTX range of these exports has a name of its own, as PyTorch's `emit_nvtx` gives them: at a\n"
        "million kernels `nvtx_sum` and `nvtx_gpu_proj_sum` print 471,000 rows, and most of the time and memory goes "
        "into writing\nthose."
    )
    headings = ("kernels", "reports", "program", "wall s", "CPU s", "million rows/s", "peak MB")
    yield Table("Reports", headings, _stats(setting), text)


def _stats(setting: Setting) -> Iterator[Row]:
    for kernels in setting.stats_sizes:
        path = export_of(setting.directory, kernels)
        rows = rows_of(path)
        for report in ("cuda_gpu_kern_sum,nvtx_sum,cuda_api_sum", "nvtx_gpu_proj_sum"):
            words = ["-r", report, "--format", "csv", str(path)]
            with CacheDirectory() as cache:
                ours = nsystui("stats", *words)
                runs = {"cold": cache.cold(ours, setting.repeats), "warm": cache.computed(ours, setting.repeats)}
                runs = {f"nsystui, {name}": run for name, run in runs.items()}
                if nsys := shutil.which("nsys"):
                    runs["nsys stats"] = cache.warm([nsys, "stats", "-q", *words], setting.repeats)
            for program, run in runs.items():
                wall, cpu, peak = run.cells
                cells = (wall, cpu, f"{rows / run.wall / 1e6:.2f}", peak)
                yield short(kernels), report.replace(",", ", "), program, *cells
