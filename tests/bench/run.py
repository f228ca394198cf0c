"""Measure nsystui and write RESULTS.md next to this file, one table: ``python tests/bench/run.py --help``.

No test reads a time: this is for people, who compare figures of one run on one machine.
"""

import argparse
import os
import platform
import shutil
import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from measuring import SHOWN, CacheDirectory, Program, Run, export_of, measure, nsystui, packed_job, program_of, rows_of

SMALL, SIZES, RANKS = 100_000, (1_000_000, 10_000_000), (256, 1024)
LARGE = 5_000_000
"""The least kernels for which each figure is measured once: it varies little and takes minutes."""
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
"""The kernel summary in pandas, as a user would write it."""
NSYS = {1_000_000: Run(0.0, 4.4, 0), 10_000_000: Run(0.0, 120.0, 0)}
"""CPU seconds of `nsys stats` 2023.4 for the kernel summary, minimum of runs on another machine: used without nsys."""
SUMMARY = "stats -r cuda_gpu_kern_sum"
COMMANDS = (SUMMARY, "triage", "overview", "gaps", "nvtx", "nccl", "events --top 20", "budget --by step", "path")
SMALL_COMMANDS = ("nccl", "triage", "gaps", "ranks", "nvtx")
SCREENS = {
    "2": "Kernels", "3": "NCCL", "4": "GPU", "5": "NVTX", "6": "Events", "7": "Ranks", "8": "Host", "9": "Steps",
    "L": "Timeline",
}  # fmt: skip
TEXT = """One table. MB are of 1000; CPU seconds are those of all threads, user and system. *empty* is without a cache,
*columns* with the columns of the export and what was derived of them but no answer, *again* repeats an answer.
`reading` is `cat` of the export from memory, the least that any program takes; the shell of SQLite and pandas compute
the kernel summary, the shell without a median. *older* is the version that `--older` names, in the same run. *reached*
says by which factor a goal is missed. No command may take more than 1 GB, whatever the export. A peak under 40 MB is
that of the program that measures.
"""


@dataclass(frozen=True)
class Goal:
    """Upper bounds of a row: seconds of wall and CPU time, and MB; ``None`` is no bound."""

    wall: float | None = None
    cpu: float | None = None
    peak: float | None = None

    def cells(self, run: Run) -> tuple[str, str]:
        """Return the bounds in words, and for each "yes" or the factor by which ``run`` exceeds it."""
        limits = ((self.wall, run.wall, "s"), (self.cpu, run.cpu, "CPU s"), (self.peak, run.peak / 1e6, "MB"))
        words, verdicts = [], []
        for limit, value, unit in limits:
            if limit is not None:
                words.append(f"≤ {limit:.3g} {unit}" if limit < 1000 else f"≤ {limit:.0f} {unit}")
                verdicts.append("yes" if value <= limit else f"no, {value / limit:.2g} ×")
        return "; ".join(words), "; ".join(verdicts)


_MEMORY = Goal(peak=1000)
_WARM = {"nccl": Goal(wall=0.6), "triage": Goal(wall=1.0), "gaps": Goal(wall=0.6), "ranks": Goal(wall=0.4),
         "nvtx": Goal(wall=0.5)}  # fmt: skip
GOALS = {
    **{(SMALL, command, cache): goal for command, goal in _WARM.items() for cache in ("columns", "again")},
    (1_000_000, "triage", "empty"): Goal(cpu=8, peak=300), (1_000_000, "triage", "columns"): Goal(cpu=1.5, peak=300),
    (1_000_000, "gaps", "columns"): Goal(cpu=3, peak=300), (1_000_000, "events --top 20", "columns"): Goal(wall=0.5),
    (1_000_000, SUMMARY, "empty"): Goal(wall=1.2), (10_000_000, "triage", "empty"): Goal(cpu=50, peak=700),
    (10_000_000, "triage", "columns"): Goal(cpu=4, peak=700),
    (10_000_000, "overview", "empty"): Goal(cpu=25, peak=120),
    (10_000_000, "overview", "columns"): Goal(cpu=0.5, peak=120),
    (10_000_000, "nvtx", "columns"): Goal(cpu=6, peak=400), (10_000_000, "nccl", "columns"): Goal(cpu=3, peak=350),
}  # fmt: skip
"""Goals by size, command and cache."""


SCREEN_GOALS = {
    ("exact kernels", "empty"): Goal(wall=4), ("first rows", "again"): Goal(wall=1.2),
    ("findings", "again"): Goal(wall=1.5),
}  # fmt: skip
"""Goals for the screens of a million kernels, by the rows shown and the state of the cache."""


@dataclass(frozen=True)
class Row:
    """A row of the table: a command, its input's ``size``, the state of the cache, and runs to compare with."""

    size: str
    what: str
    cache: str
    run: Run
    goal: Goal = field(default_factory=Goal)
    older: Run | None = None
    shell: Run | None = None
    reading: Run | None = None

    HEADINGS = (
        *("of", "what", "cache", "wall s", "CPU s", "peak MB", "older CPU s", "older MB", "CPU / older"),
        *("wall / older", "wall / sqlite3 shell", "wall / reading", "goal", "reached"),
    )

    @property
    def cells(self) -> Sequence[str]:
        older = self.older if self.older and not self.older.status else None
        beside = ("", "", "", "")
        if older:
            ratios_to_older = _ratio(self.run.cpu, older.cpu), _ratio(self.run.wall, older.wall)
            beside = (f"{older.cpu:.2f}", older.megabytes, *ratios_to_older)
        ratios = (_ratio(self.run.wall, beside.wall) if beside else "" for beside in (self.shell, self.reading))
        failed = f" (ended with status {self.run.status})" if self.run.status else ""
        figures = (f"{self.run.wall:.2f}", f"{self.run.cpu:.2f}", self.run.megabytes)
        if self.run in NSYS.values():  # only its CPU time is known
            figures = ("–", figures[1], "–")
        return (self.size, self.what + failed, self.cache, *figures, *beside, *ratios, *self.goal.cells(self.run))


def _ratio(value: float, other: float) -> str:
    return f"{value / other:.2g} ×" if other and value < 10 * other else f"{value / other:,.0f} ×" if other else ""


def _short(kernels: int) -> str:
    return f"{kernels // 10**6} M kernels" if kernels >= 10**6 else f"{kernels // 1000} k kernels"


@dataclass(frozen=True)
class Bench:
    """The inputs: exports in ``directory``, written if they are missing, and packed jobs of demo ranks."""

    directory: Path
    sizes: Sequence[int]
    ranks: Sequence[int]
    repeats: int
    older: str | None

    def rows(self) -> Iterator[Row]:
        yield from self._startup()
        for kernels in (SMALL, *self.sizes):
            yield from self._export(kernels)
        for ranks in self.ranks:
            yield from self._job(ranks)

    def _startup(self) -> Iterator[Row]:
        with CacheDirectory() as cache:
            python = cache.warm([sys.executable, "-c", "pass"], 5 * self.repeats)
            yield Row("", "python -c pass", "", python)
            for flag in ("--version", "--help"):
                run = cache.warm(nsystui(flag), 5 * self.repeats)
                yield Row("", f"nsystui {flag}", "", run, Goal(wall=4 * python.wall))

    def _export(self, kernels: int) -> Iterator[Row]:
        path, size = export_of(self.directory, kernels), _short(kernels)
        repeats = 1 if kernels >= LARGE else self.repeats
        with CacheDirectory() as cache:
            reading = cache.warm(["cat", str(path)], 1 + repeats)
            shell = cache.warm(["sqlite3", "-readonly", "-csv", str(path), SQL], repeats)
            yield Row(size, "reading", "", reading, shell=shell)
            yield Row(size, "sqlite3 shell, kernel summary", "", shell, reading=reading)
            if nsys := shutil.which("nsys"):
                run = cache.warm([nsys, "stats", "-q", "-r", "cuda_gpu_kern_sum", str(path)], repeats)
                yield Row(size, "nsys stats, kernel summary", "", run, shell=shell, reading=reading)
            elif kernels in NSYS:
                yield Row(size, "nsys stats 2023.4, kernel summary, quoted", "", NSYS[kernels])
            if kernels < LARGE:
                run = cache.warm([sys.executable, "-c", PANDAS, str(path)], repeats)
                yield Row(size, "pandas, kernel summary", "", run, shell=shell, reading=reading)
        for command in SMALL_COMMANDS if kernels == SMALL else COMMANDS:
            older = self._runs(self.older, command, path, 1) if self.older else {}
            for state, run in self._runs(sys.executable, command, path, repeats).items():
                goal = GOALS.get((kernels, command, state), _MEMORY)
                yield Row(size, f"nsystui {command}", state, run, goal, older.get(state), shell, reading)
        yield from self._screens(path, size, _MEMORY, SCREEN_GOALS if kernels == 1_000_000 else {})

    @staticmethod
    def _runs(python: str, command: str, path: Path, repeats: int) -> dict[str, Run]:
        words = program_of(python, *command.split(), str(path))
        with CacheDirectory() as cache:
            runs = {"empty": cache.cold(words, repeats), "columns": cache.computed(words, repeats)}
            return {**runs, "again": cache.warm(words, repeats)}

    def _screens(
        self, path: Path, size: str, most: Goal, goals: Mapping[tuple[str, str], Goal], visits: Goal | None = None
    ) -> Iterator[Row]:
        """Measure when the Overview shows what, with an empty and a filled cache, first visits, and peak memory."""
        older = {}
        with CacheDirectory() as cache:
            for state in ("empty", "again") if self.older else ():
                with Program(path, cache, self.older or "") as program:
                    older |= {(what, state): program.until(texts) for what, texts in SHOWN.items()}
                    program.rest()
        with CacheDirectory() as cache:
            for state in ("empty", "again"):
                with Program(path, cache) as program:
                    for what, texts in SHOWN.items():
                        goal, run = goals.get((what, state), Goal()), program.until(texts)
                        yield Row(size, f"screens: {what}", state, run, goal, older.get((what, state)))
                    program.rest()
                    for key, title in SCREENS.items() if state == "empty" else ():
                        run = program.visit(key)
                        yield Row(size, f"screens: {title}, first visit", "", run, visits or Goal())
                    if state == "empty":
                        yield Row(size, "screens: after all of them", "", program.used, most)

    def _job(self, ranks: int) -> Iterator[Row]:
        size = f"{ranks} packed ranks"
        packed, packing = packed_job(self.directory, ranks)
        if packing is not None:
            files = sum(path.is_file() for path in packed.rglob("*"))
            yield Row(
                size, f"nsystui pack: {files:,} files", "empty", packing, Goal(cpu=80) if ranks == 256 else Goal()
            )
        with CacheDirectory() as cache:
            for command in ("overview", "ranks", "nccl", "triage"):
                goal = Goal(wall=15, peak=500) if (ranks, command) == (1024, "triage") else _MEMORY
                yield Row(
                    size, f"nsystui {command}", "empty", measure(nsystui(command, str(packed)), cache.environ), goal
                )
        few = ranks <= 256
        first = dict.fromkeys([("first rows", "empty"), ("first rows", "again")], Goal(wall=2 if few else 3))
        yield from self._screens(packed, size, Goal(peak=800), first, Goal(wall=2 if few else 4))


def main() -> None:
    chosen = _arguments()
    # Without bytecode every start would compile all modules, which a user's Python does once.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    chosen.directory.mkdir(parents=True, exist_ok=True)
    sizes, ranks, repeats = ((), (), 1) if chosen.quick else (chosen.kernels, chosen.ranks, chosen.repeats)
    bench = Bench(chosen.directory, sizes, ranks, repeats, chosen.older)
    lines = [_machine(bench), _line(Row.HEADINGS), _line(["---"] * len(Row.HEADINGS))]
    for row in bench.rows():
        print(*row.cells, sep="  ", file=sys.stderr)
        lines.append(_line(row.cells))
        chosen.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, required=True, help="where the generated exports are kept")
    parser.add_argument("--kernels", type=int, nargs="*", default=SIZES, help="sizes of the large exports")
    parser.add_argument("--ranks", type=int, nargs="*", default=RANKS, help="sizes of the packed jobs")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each figure; the median is written")
    parser.add_argument("--quick", action="store_true", help="100 thousand kernels alone, one run of each figure")
    parser.add_argument("--older", help="the Python of an older version, to compare with")
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).with_name("RESULTS.md"))
    return parser.parse_args()


def _machine(bench: Bench) -> str:
    arrow = "with pyarrow" if find_spec("pyarrow") else "no pyarrow, as users have it"
    libraries = ", ".join(f"{name} {version(name)}" for name in ("duckdb", "textual", "pandas", "sqlalchemy"))
    runs = f"medians of {bench.repeats} runs, one run of 5 million kernels and more"
    runs = runs if bench.repeats > 1 else "one run of each figure"
    lines = [
        "# Measured",
        "",
        f"Written by `python tests/bench/run.py`: {runs}.",
        TEXT,
        f"- {datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, {os.cpu_count()} CPUs, {_processor()}",
        f"- load average at the start: {os.getloadavg()[0]:.1f}; what else runs makes wall times longer than CPU times",
        f"- {libraries}, {arrow}, SQLite {sqlite3.sqlite_version}",
    ]
    for kernels in (SMALL, *bench.sizes):
        path = export_of(bench.directory, kernels)
        lines.append(f"- {_short(kernels)}: {path.stat().st_size / 1e6:,.0f} MB, {rows_of(path):,} rows")
    return "\n".join(lines) + "\n"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


if __name__ == "__main__":
    main()
