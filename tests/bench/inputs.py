"""The exports that the measurements read: generated once for a directory, in the proportions of a training job."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from measure import nsystui

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from synthetic import benchmark_export

ROWS = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_MEMCPY", "NVTX_EVENTS")


def export_of(directory: Path, kernels: int) -> Path:
    """An export with so many kernels; written if it is not there (12 s and 210 MB for a million)."""
    return _written(directory / f"kernels-{kernels}.sqlite", kernels, seed=1)


def ranks_of(directory: Path, count: int, kernels: int) -> list[Path]:
    """The exports of a job of ``count`` ranks with so many kernels each; those that are not there are written."""
    place = directory / f"ranks-{kernels}"
    place.mkdir(exist_ok=True)
    return [_written(place / f"rank{seed - 1:03d}.sqlite", kernels, seed) for seed in range(1, count + 1)]


def packed_job(directory: Path, ranks: int, environ: Mapping[str, str]) -> Path:
    """A packed demo job of so many small ranks; made if it is not there."""
    exports, packed = directory / f"demo-{ranks}", directory / f"packed-{ranks}"
    if not packed.exists():
        demo = nsystui("demo", "--ranks", str(ranks), "--steps", "2", "--directory", str(exports), "--write-only")
        for command in (demo, nsystui("pack", str(exports), "-o", str(packed))):
            subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, check=True)
    return packed


def read_through(path: Path) -> None:
    """Brings a file into the page cache, so that the first run on it is like the others."""
    with open(path, "rb", buffering=0) as stream:
        while stream.read(1 << 20):
            pass


def _written(path: Path, kernels: int, seed: int) -> Path:
    if not path.exists():
        partial = path.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        benchmark_export(partial, kernels, seed=seed).rename(path)
    return path


def rows_of(path: Path, tables: tuple[str, ...] = ROWS) -> int:
    """How many event rows these tables have together."""
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    try:
        return sum(connection.execute(f'SELECT max(rowid) FROM "{table}"').fetchone()[0] or 0 for table in tables)
    finally:
        connection.close()


def short(count: int) -> str:
    """``100 thousand``, ``5 million``."""
    return f"{count // 10**6} million" if count >= 10**6 else f"{count // 1000} thousand"
