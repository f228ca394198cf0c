"""Where the time of a cold kernel summary goes."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median as middle

from inputs import export_of, short
from measure import CacheDirectory, child
from table import Row, Setting, Table

HEADINGS = ("kernels", "phase", "CPU s", "of it")
TEXT = """`stats -r cuda_gpu_kern_sum` into an empty cache, CPU seconds by phase. SQLite alone is the same scan by the
same driver with its rows thrown away: what no program that reads these files through SQLite can go below."""


def tables(setting: Setting) -> Iterator[Table]:
    """The one table of this topic."""
    yield Table("Where the time goes", HEADINGS, _rows(setting), TEXT)


def _rows(setting: Setting) -> Iterator[Row]:
    for kernels in setting.sizes:
        runs = []
        for _ in range(setting.runs(kernels)):
            with CacheDirectory() as cache:
                path = export_of(setting.directory, kernels)
                runs.append(child("child_phases.py", path, cache.path, environ=cache.environ))
        spent = {name: middle(run[name] for run in runs) for name in runs[0]}
        sqlite, answering = spent.pop("SQLite alone, to Arrow"), spent.pop("answering alone")
        reading = spent.pop("reading and answering")
        spent["reading: SQLite, to Arrow"] = sqlite
        spent["reading: the columns into DuckDB, sorted, as Parquet"] = reading - sqlite - answering
        spent["answering, with the median"] = answering
        whole = sum(spent.values())
        for name, seconds in spent.items():
            yield short(kernels), name, f"{seconds:.2f}", f"{seconds / whole:.0%}"
