"""A job of many ranks: one row for each of them."""

from __future__ import annotations

from collections.abc import Iterator

from inputs import packed_job, ranks_of, rows_of, short
from measure import CacheDirectory, Run, measure, median, nsystui
from program import LOADED, Program
from table import Row, Setting, Table, Target, judged

KERNELS = 100_000
HEADINGS = ("files", "rows", "cache", "wall s", "CPU s", "million rows/s", "peak MB", "target", "reached")
_COLD, _WARM = Target("< 15 s", 15.0), Target("< 2 s", 2.0)
_MEMORY = Target("< 1 GB", 1e9)


def tables(setting: Setting) -> Iterator[Table]:
    """Large exports, then a packed job of more and more small ones."""
    text = f"`nsystui overview` of exports of {short(KERNELS)} kernels each."
    yield Table("Ranks", HEADINGS, _rows(setting), text)
    text = (
        "A packed demo job of two steps, whose ranks are packed by themselves as in a job. What grows with the ranks "
        "is linear where\nthe time for one rank is that of the row above or less."
    )
    yield Table("Many ranks", _MANY_HEADINGS, _many(setting), text)


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


_MANY_HEADINGS = ("packed ranks", "what", "wall s", "CPU s", "CPU ms/rank", "peak MB", "target", "reached")
_MANY, _FEW = (64, 256, 1024), (4, 16)
_FIRST, _OPENED = Target("first screen <= 2 s", 2.0), Target("opened <= 3 s", 3.0)


def _many(setting: Setting) -> Iterator[Row]:
    for ranks in _MANY if setting.ranks > max(_FEW) else _FEW:
        with CacheDirectory() as cache:
            packed = packed_job(setting.directory, ranks, cache.environ)
            for command, goals in (("overview", (_OPENED,)), ("ranks", ()), ("nccl", ()), ("triage", ())):
                run = measure(nsystui(command, str(packed)), cache.environ)
                reached = judged(*((goal, run.wall) for goal in goals), (_MEMORY, run.peak))
                figures = f"{run.wall:.2f}", f"{run.cpu:.2f}", f"{run.cpu * 1e3 / ranks:.1f}", f"{run.peak / 1e6:.0f}"
                yield str(ranks), f"nsystui {command}", *figures, *reached
            with Program(packed, cache) as program:
                first = program.seen(LOADED)
                peak = program.peak
            figures = f"{first.wall:.2f}", f"{first.cpu:.2f}", f"{first.cpu * 1e3 / ranks:.1f}", f"{peak / 1e6:.0f}"
            yield str(ranks), "first screen", *figures, *judged((_FIRST, first.wall), (_MEMORY, peak))


def _cells(run: Run, rows: int) -> Row:
    return f"{run.wall:.2f}", f"{run.cpu:.2f}", f"{rows / run.wall / 1e6:.2f}", f"{run.peak / 1e6:.0f}"
