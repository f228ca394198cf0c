"""A packed job of many ranks, asked here and on Dask clusters of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from inputs import packed_job
from measure import CacheDirectory, child
from table import Row, Setting, Table

RANKS, QUICK_RANKS = 256, 8
WORKERS = (0, 1, 2, 4)
QUESTIONS = ("kernels", "kernels --by rank", "overview", "ranks", "nccl", "nvtx", "efficiency")
HEADINGS = (
    *("question", "workers", "wall s", "CPU s here", "CPU s of workers", "longest worker"),
    *("tasks", "sent MB", "received MB", "received kB/rank", "same answer"),
)


def tables(setting: Setting) -> Iterator[Table]:
    """The one table of this topic."""
    ranks = RANKS if setting.ranks > QUICK_RANKS else QUICK_RANKS
    text = (
        f"`--dask` on a packed demo job of {ranks} ranks of which nothing is kept yet, with workers of a thread each\n"
        "on this machine; 0 workers is the command alone. Workers, scheduler and command share the CPUs, so that more\n"
        "workers than CPUs cannot be faster: the CPU seconds are what can be spread over machines. Sent and received\n"
        "are the tasks and their results as they are pickled."
    )
    yield Table("On a cluster", HEADINGS, _rows(setting.directory, ranks), text)


def _rows(directory: Path, ranks: int) -> Iterator[Row]:
    with CacheDirectory() as cache:
        packed = packed_job(directory, ranks, cache.environ)
        alone = {}
        for workers in WORKERS:
            for run in child("child_cluster.py", packed, str(workers), *QUESTIONS, environ=cache.environ):
                alone.setdefault(run["question"], run["answer"])
                yield (
                    run["question"],
                    str(workers),
                    f"{run['wall']:.2f}",
                    f"{run['cpu']:.2f}",
                    f"{sum(run['workers']):.2f}",
                    f"{max(run['workers'], default=0.0):.2f}",
                    str(run["tasks"]),
                    f"{run['sent'] / 1e6:.2f}",
                    f"{run['received'] / 1e6:.2f}",
                    f"{run['received'] / 1e3 / ranks:.1f}",
                    "yes" if run["answer"] == alone[run["question"]] else "no",
                )
