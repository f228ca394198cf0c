"""Opening an export, where the time of a cold report goes, and questions of the screens on columns that are there."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median as middle

from measuring import CacheDirectory, export_of, rows_of
from table import Row, Setting, Table, Target, judged, short

_RATE = Target(">= 1 million rows/s", 1.0, at_least=True)
_PEAK, _SIZE = Target("< 400 MB", 400e6), Target("cache < 15 %", 0.15)
_QUERY, _PAGE = Target("< 300 ms", 300.0), Target("< 50 ms", 50.0)
_COLD_TREE, _WARM_TREE = Target("< 5 s", 5000.0), Target("< 0.5 s", 500.0)
_TREE_KERNELS = 10**6


def phases(setting: Setting) -> Iterator[Table]:
    text = (
        "`stats -r cuda_gpu_kern_sum` into an empty cache, CPU seconds by phase. SQLite alone is the same scan by the\n"
        "same driver with its rows thrown away: what no program that reads these files through SQLite can go below."
    )
    yield Table("Where the time goes", ("kernels", "phase", "CPU s", "of it"), _phases(setting), text)


def _phases(setting: Setting) -> Iterator[Row]:
    for kernels in setting.sizes:
        runs = []
        for _ in range(setting.runs(kernels)):
            with CacheDirectory() as cache:
                runs.append(cache.child("phases", export_of(setting.directory, kernels), cache.path))
        spent = {name: middle(run[name] for run in runs) for name in runs[0]}
        sqlite, answering = spent.pop("SQLite alone, to Arrow"), spent.pop("answering alone")
        reading = spent.pop("reading and answering")
        spent["reading: SQLite, to Arrow"] = sqlite
        spent["reading: the columns into DuckDB, sorted, as Parquet"] = reading - sqlite - answering
        spent["answering, with the median"] = answering
        whole = sum(spent.values())
        for name, seconds in spent.items():
            yield short(kernels), name, f"{seconds:.2f}", f"{seconds / whole:.0%}"


def packing(setting: Setting) -> Iterator[Table]:
    """What grows with the rows where the time for a million of them stays the same."""
    headings = ("kernels", "rows", "wall s", "CPU s", "million rows/s", "s per million rows", "peak MB", "cache / file")
    text = "Everything of an export into an empty cache, in a process of its own; imports are not in the time."
    yield Table("Opening everything", (*headings, "target", "reached"), _packing(setting), text)


def _packing(setting: Setting) -> Iterator[Row]:
    for kernels in setting.sizes:
        path = export_of(setting.directory, kernels)
        runs, shares = [], []
        with CacheDirectory() as cache:
            for _ in range(setting.runs(kernels)):
                cache.clear()
                runs.append(cache.pack(path))
                shares.append(cache.size / path.stat().st_size)
        wall, cpu, peak = (middle(run[name] for run in runs) for name in ("wall", "cpu", "peak"))
        rows, share = rows_of(path), middle(shares)
        rate = rows / wall / 1e6
        cells = (f"{rows:,}", f"{wall:.2f}", f"{cpu:.2f}", f"{rate:.2f}", f"{1 / rate:.2f}", f"{peak / 1e6:.0f}")
        yield short(kernels), *cells, f"{share:.1%}", *judged((_RATE, rate), (_PEAK, peak), (_SIZE, share))


def queries(setting: Setting) -> Iterator[Table]:
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
        cache.pack(path)
        found = cache.child("queries", path, cache.path, "queries", setting.repeats)
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
                cache.pack(path)
                for times in (first, second):
                    times.extend(cache.child("queries", path, cache.path, "tree", 1)["NVTX tree"])
        cold, warm = middle(first), middle(second)
        goals = [(_COLD_TREE, cold), (_WARM_TREE, warm)] if kernels == _TREE_KERNELS else []
        yield short(kernels), f"{cold:.0f}", f"{warm:.0f}", *judged(*goals)
