"""A job of many ranks: one row for each of them."""

from __future__ import annotations

from collections.abc import Iterator

from inputs import ranks_of, rows_of, short
from measure import CacheDirectory, Run, measure, median, nsystui
from table import Row, Setting, Table, Target, judged

KERNELS = 100_000
HEADINGS = ("files", "rows", "cache", "wall s", "CPU s", "million rows/s", "peak MB", "target", "reached")
_COLD, _WARM = Target("< 15 s", 15.0), Target("< 2 s", 2.0)
_MEMORY = Target("< 1 GB", 1e9)


def tables(setting: Setting) -> Iterator[Table]:
    """The one table of this topic."""
    text = f"`nsystui overview` of exports of {short(KERNELS)} kernels each."
    yield Table("Ranks", HEADINGS, _rows(setting), text)


def _rows(setting: Setting) -> Iterator[Row]:
    paths = ranks_of(setting.directory, setting.ranks, KERNELS)
    rows = sum(map(rows_of, paths))
    command = nsystui("overview", "--format", "csv", *map(str, paths))
    with CacheDirectory() as cache:
        cold = []
        for _ in range(setting.repeats):
            cache.clear()
            cold.append(measure(command, cache.environ))
        warm = median(measure(command, cache.environ) for _ in range(setting.repeats))
        for name, target, run in (("empty", _COLD, median(cold)), ("full", _WARM, warm)):
            goals = judged((target, run.wall), (_MEMORY, run.peak))
            yield str(len(paths)), f"{rows:,}", name, *_cells(run, rows), *goals


def _cells(run: Run, rows: int) -> Row:
    return f"{run.wall:.2f}", f"{run.cpu:.2f}", f"{rows / run.wall / 1e6:.2f}", f"{run.peak / 1e6:.0f}"
