"""How long the questions of the screens take on a packed export, in one process that asks them all."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median as middle

from inputs import export_of, short
from measure import CacheDirectory, child, pack
from table import Row, Setting, Table, Target, judged

_QUERY = Target("< 300 ms", 300.0)
_PAGE = Target("< 50 ms", 50.0)
_COLD_TREE, _WARM_TREE = Target("< 5 s", 5000.0), Target("< 0.5 s", 500.0)
_TREE_KERNELS = 10**6


def tables(setting: Setting) -> Iterator[Table]:
    """The questions on the biggest export, and the NVTX tree at each size."""
    headings = ("question", "first, ms", "median, ms", "target", "reached")
    text = (
        "On a warm cache, in a process that asks each question as often as there are repeats, one after the other. The "
        "first\nmay compute what the cache then keeps for the others, and every process to come."
    )
    yield Table(f"Questions, {short(setting.biggest)} kernels", headings, _questions(setting), text)
    text = "The tree of all ranges; cold is the first process after everything was opened, warm the second."
    headings = ("kernels", "first process, ms", "second process, ms", "target", "reached")
    yield Table("NVTX tree", headings, _trees(setting), text)


def _questions(setting: Setting) -> Iterator[Row]:
    path = export_of(setting.directory, setting.biggest)
    with CacheDirectory() as cache:
        pack(path, cache)
        found = child("child_queries.py", path, cache.path, "queries", str(setting.repeats), environ=cache.environ)
    for name, times in found.items():
        time = middle(times)
        target = _PAGE if "page" in name or "jump" in name else _QUERY
        yield name, f"{times[0]:.1f}", f"{time:.1f}", *judged((target, time))


def _trees(setting: Setting) -> Iterator[Row]:
    for kernels in setting.sizes:
        path = export_of(setting.directory, kernels)
        first, second = [], []
        with CacheDirectory() as cache:
            for _ in range(setting.runs(kernels)):
                cache.clear()
                pack(path, cache)
                for times in (first, second):
                    found = child("child_queries.py", path, cache.path, "tree", "1", environ=cache.environ)
                    times.extend(found["NVTX tree"])
        cold, warm = middle(first), middle(second)
        goals = [(_COLD_TREE, cold), (_WARM_TREE, warm)] if kernels == _TREE_KERNELS else []
        yield short(kernels), f"{cold:.0f}", f"{warm:.0f}", *judged(*goals)
