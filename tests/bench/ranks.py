"""Jobs of many ranks: large exports, packed jobs of more and more small ones, and one on Dask clusters."""

from __future__ import annotations

from collections.abc import Iterator

from measuring import LOADED, CacheDirectory, Program, Run, measure, nsystui, packed_job, ranks_of, rows_of
from table import Row, Setting, Table, Target, judged, short

KERNELS = 100_000
MANY, FEW = (64, 256, 1024), (4, 16)
CLUSTER_RANKS, CLUSTER_FEW = 256, 8
QUESTIONS = ("kernels", "kernels --by rank", "overview", "ranks", "nccl", "nvtx", "efficiency")
_COLD, _WARM, _MEMORY = Target("< 15 s", 15.0), Target("< 2 s", 2.0), Target("< 1 GB", 1e9)
_FIRST, _OPENED = Target("first screen <= 2 s", 2.0), Target("opened <= 3 s", 3.0)


def ranks(setting: Setting) -> Iterator[Table]:
    text = f"`nsystui overview` of exports of {short(KERNELS)} kernels each."
    headings = ("files", "rows", "cache", "wall s", "CPU s", "million rows/s", "peak MB", "target", "reached")
    yield Table("Ranks", headings, _ranks(setting), text)
    text = (
        "A packed demo job of two steps, whose ranks are packed by themselves as in a job. What grows with the ranks "
        "is linear where\nthe time for one rank is that of the row above or less."
    )
    headings = ("packed ranks", "what", "wall s", "CPU s", "CPU ms/rank", "peak MB", "target", "reached")
    yield Table("Many ranks", headings, _many(setting), text)


def _ranks(setting: Setting) -> Iterator[Row]:
    paths = ranks_of(setting.directory, setting.ranks, KERNELS)
    rows = sum(map(rows_of, paths))
    command = nsystui("overview", "--format", "csv", *map(str, paths))
    with CacheDirectory() as cache:
        for name, target, measured in (("empty", _COLD, cache.cold), ("full", _WARM, cache.warm)):
            run = measured(command, setting.repeats)
            wall, cpu, peak = run.cells
            goals = judged((target, run.wall), (_MEMORY, run.peak))
            yield str(len(paths)), f"{rows:,}", name, wall, cpu, f"{rows / run.wall / 1e6:.2f}", peak, *goals


def _many(setting: Setting) -> Iterator[Row]:
    for count in MANY if setting.ranks > max(FEW) else FEW:
        with CacheDirectory() as cache:
            packed = packed_job(setting.directory, count, cache.environ)
            runs = {}
            for command in ("overview", "ranks", "nccl", "triage"):
                runs[f"nsystui {command}"] = measure(nsystui(command, str(packed)), cache.environ)
            with Program(packed, cache) as program:
                first = program.seen(LOADED)
                runs["first screen"] = Run(first.wall, first.cpu, program.peak)
        for what, run in runs.items():
            goal = {"nsystui overview": _OPENED, "first screen": _FIRST}.get(what)
            wall, cpu, peak = run.cells
            goals = judged(*([(goal, run.wall)] if goal else []), (_MEMORY, run.peak))
            yield str(count), what, wall, cpu, f"{run.cpu * 1e3 / count:.1f}", peak, *goals


def cluster(setting: Setting) -> Iterator[Table]:
    count = CLUSTER_RANKS if setting.ranks > CLUSTER_FEW else CLUSTER_FEW
    text = (
        f"`--dask` on a packed demo job of {count} ranks of which nothing is kept yet, with workers of a thread each\n"
        "on this machine; 0 workers is the command alone. Workers, scheduler and command share the CPUs, so that more\n"
        "workers than CPUs cannot be faster: the CPU seconds are what can be spread over machines. Sent and received\n"
        "are the tasks and their results as they are pickled."
    )
    headings = (
        *("question", "workers", "wall s", "CPU s here", "CPU s of workers", "longest worker"),
        *("tasks", "sent MB", "received MB", "received kB/rank", "same answer"),
    )
    yield Table("On a cluster", headings, _cluster(setting, count), text)


def _cluster(setting: Setting, count: int) -> Iterator[Row]:
    with CacheDirectory() as cache:
        packed = packed_job(setting.directory, count, cache.environ)
        alone: dict[str, str] = {}
        for workers in (0, 1, 2, 4):
            for run in cache.child("cluster", packed, workers, *QUESTIONS):
                is_same = alone.setdefault(run["question"], run["answer"]) == run["answer"]
                seconds = (run["wall"], run["cpu"], sum(run["workers"]), max(run["workers"], default=0.0))
                moved = (f"{run['sent'] / 1e6:.2f}", f"{run['received'] / 1e6:.2f}")
                per_rank = f"{run['received'] / 1e3 / count:.1f}"
                cells = (*(f"{one:.2f}" for one in seconds), str(run["tasks"]), *moved, per_rank)
                yield run["question"], str(workers), *cells, "yes" if is_same else "no"
