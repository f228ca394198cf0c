"""Opening everything of an export: how fast, with how much memory, and how large the cache becomes."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median as middle

from inputs import export_of, rows_of, short
from measure import CacheDirectory, pack
from table import Row, Setting, Table, Target, judged

HEADINGS = ("kernels", "rows", "wall s", "CPU s", "million rows/s", "s per million rows", "peak MB", "cache / file")
_RATE = Target(">= 1 million rows/s", 1.0, at_least=True)
_PEAK = Target("< 400 MB", 400e6)
_SIZE = Target("cache < 15 %", 0.15)


def tables(setting: Setting) -> Iterator[Table]:
    """The one table of this topic; it grows with the rows where the time for a million of them stays the same."""
    text = "Everything of an export into an empty cache, in a process of its own; imports are not in the time."
    yield Table("Opening everything", (*HEADINGS, "target", "reached"), _rows(setting), text)


def _rows(setting: Setting) -> Iterator[Row]:
    for kernels in setting.sizes:
        path = export_of(setting.directory, kernels)
        runs, shares = [], []
        with CacheDirectory() as cache:
            for _ in range(setting.runs(kernels)):
                cache.clear()
                runs.append(pack(path, cache))
                shares.append(cache.size / path.stat().st_size)
        wall, cpu, peak = (middle(run[name] for run in runs) for name in ("wall", "cpu", "peak"))
        rows, share = rows_of(path), middle(shares)
        rate = rows / wall / 1e6
        yield (
            short(kernels),
            f"{rows:,}",
            f"{wall:.2f}",
            f"{cpu:.2f}",
            f"{rate:.2f}",
            f"{1 / rate:.2f}",
            f"{peak / 1e6:.0f}",
            f"{share:.1%}",
            *judged((_RATE, rate), (_PEAK, peak), (_SIZE, share)),
        )
