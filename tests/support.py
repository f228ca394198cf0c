"""Exports in tests: paths of real exports, queries with SQLite, changes, and fingerprints of files."""

import hashlib
import io
import json
import os
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from nsystui.base.answer import iter_rows, record
from nsystui.base.selection import Selection
from nsystui.exports.discover import facts_of_group, packed_reports, rank_of
from nsystui.output import formats
from nsystui.questions.job.job import OpenJob
from nsystui.questions.stats import report_of
from nsystui.store.cache import Cache
from nsystui.store.session import Session

SHARED = Path(__file__).parents[2] / "shared/data"


REAL_EXPORTS: Final = {
    "alcf-allgather-rank0": "one AllGather of ranks on two nodes",
    "alcf-allgather-rank4": "the late rank of the same job",
    "ai-training-after": "OS runtime calls with stacks; pageable copies",
    "ai-training-before": "the same program, which waits for its data",
    "cuda-graphs": "graphs traced as a whole",
    "dataloader-bound-a100": "CPU samples and scheduling; a data loader that is too slow",
    "ddp-a100-nobroadcast-rank0of4": "the same program as the next, without broadcasts of buffers",
    "ddp-a100-rank0of4": "steps, NVTX domains, AllReduce beside compute",
    "event-ids-unified-memory-2025.5": "waits joined by eventSyncId; migrations of unified memory without a call",
    "gemm-pageable": "slow copies, no framework",
    "gemm-pinned": "the same program with pinned memory",
    "gpu-metrics": "samples of GPU metrics",
    "graph-events-2025.5": "events of CUDA graphs, overhead and file accesses as tables",
    "h100-2rank-moe-after": "the same job as the next, changed",
    "h100-2rank-moe-before": "two processes in one report, no table of GPUs, NVTX payload schemas",
    "jacobi-staged-copies": "copies between GPUs through the host",
    "jetson-orin": "an integrated GPU without a bus",
    "mig-slice": "a slice of a GPU (MIG)",
    "mpi-cuda-saxpy-schema2.9": "the oldest metadata, backtraces of calls, MPI as NVTX ranges",
    "no-gpu-work-2025.6": "CUDA traced, no GPU work, diagnostics that say why",
    "no-kernel-table": "OS runtime calls alone",
    "schema2021-no-metadata": "no metadata at all",
    "unordered-rows-2025.6": "rows in no order of time",
    "vadd-launch-bound": "launches that take longer than their kernels",
}  # fmt: skip
"""The real exports of the tests, with their purpose. Tests ignore other files in these directories."""

SAME_KIND: Final = (
    "alcf-allgather-rank4", "ai-training-before", "ddp-a100-nobroadcast-rank0of4", "gemm-pinned",
    "h100-2rank-moe-after",
)  # fmt: skip
"""Exports whose kinds of events other exports also have: sweeps over all kinds leave them out."""

LARGE: Final = ("ai-training-after", "ai-training-before", "dataloader-bound-a100", "jacobi-staged-copies")
"""Exports that take half a CPU second or more to read: tests open them only in campaigns."""


def real_export(name: str) -> Path:
    """Return the path of a real export, which need not exist."""
    return next(iter(SHARED.glob(f"exports*/{name}.sqlite")), SHARED / "exports" / f"{name}.sqlite")


def real_exports(*, of_every_kind: bool = False) -> list[Path]:
    """Return the real exports on this machine, if any; with ``of_every_kind`` without `SAME_KIND`."""
    names = [name for name in REAL_EXPORTS if not of_every_kind or name not in SAME_KIND]
    return [path for path in map(real_export, names) if path.exists()]


def nsys_tables() -> list[Path]:
    """Return the tables that NVIDIA's ``nsys stats`` printed for the real exports, ``EXPORT/REPORT.csv``."""
    return sorted(path for path in SHARED.glob("nsys-stats*/*/*.csv") if path.parent.name in REAL_EXPORTS)


def session_over(*paths: Path, cache: Cache | None = None) -> Session:
    """Return a session over exports. Real exports, which no test changes, are read once in a run."""
    are_real = cache is None and bool(paths) and all(SHARED in path.parents for path in paths)
    session = Session(cache=Cache(Path(os.environ["NSYSTUI_CACHE_DIR"])) if are_real else cache)
    for path in paths:
        session.add(path)
    return session


def open_job(*paths: Path, cache: Cache | None = None) -> OpenJob:
    """Return a job of exports, which the caller must close."""
    return OpenJob(session_over(*paths, cache=cache))


def packed_facts(job: Path) -> dict[int, dict[str, Any]]:
    """Return the facts of each rank of a packed job, as it is read."""
    return {rank_of(path): json.loads(facts_of_group(path)[1][path.name]) for path in packed_reports(job)}


def report_in(job: Path, rank: int) -> Path:
    (path,) = (path for path in packed_reports(job) if rank_of(path) == rank)
    return path


def job_of(*paths: Path, cache: Cache | None = None) -> closing[OpenJob]:
    """Open a job of exports, which is closed at the end of the block."""
    return closing(open_job(*paths, cache=cache))


def records(answer: Any) -> list[dict[str, Any]]:
    """Return the rows of an answer, each as a dictionary by the keys of the columns."""
    return [record(answer.columns, row) for row in iter_rows(answer)]


def asked_of_stats(session: Session, text: str, selection: Selection | None = None) -> Any:
    """Return the answer of a report of ``nsys stats``, which is named with its options."""
    report, options = report_of(text)
    return report.ask(OpenJob(session), selection or Selection(), options)


def csv_of_stats(session: Session, text: str, selection: Selection | None = None) -> str:
    """Return the answer of a report of ``nsys stats`` as CSV."""
    written = io.StringIO(newline="")
    formats.write(asked_of_stats(session, text, selection), "csv", written)
    return written.getvalue()


def native(path: Path, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Return SQLite's answer about an export."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        return connection.execute(sql, parameters).fetchall()


def native_count(path: Path, table: str, where: str = "1") -> int:
    """Return the number of rows of a table of an export, 0 without the table."""
    if not native(path, "SELECT 1 FROM sqlite_master WHERE name = ?", (table,)):
        return 0
    return int(native(path, f'SELECT count(*) FROM "{table}" WHERE {where}')[0][0])


def edit(path: Path, *statements: str) -> None:
    """Change an export of a test."""
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def damage_rows(path: Path, table: str) -> None:
    """Make the first rows of a table unreadable, and leave the schema whole."""
    (root,) = native(path, "SELECT rootpage FROM sqlite_master WHERE name = ?", (table,))[0]
    (size,) = native(path, "PRAGMA page_size")[0]
    with path.open("r+b") as file:
        head = file.seek((root - 1) * size) and file.read(12)
        child = int.from_bytes(file.read(2), "big") if head[0] == 5 else 0
        assert child, "the table fits into one page"
        file.seek((root - 1) * size + child)
        file.seek((int.from_bytes(file.read(4), "big") - 1) * size)
        file.write(b"\xff" * size)


def fingerprint(directory: Path) -> Mapping[str, tuple[int, int, str]]:
    """Return every file below a directory with its size, time of change and content."""
    found = {}
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        status, digest = path.stat(), hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path.relative_to(directory))] = (status.st_size, status.st_mtime_ns, digest)
    return found


def shared(*names: str) -> list[Path]:
    """Return the paths of real exports; skip the test if one is missing."""
    paths = [real_export(name) for name in names]
    if missing := [path.stem for path in paths if not path.exists()]:
        pytest.skip(f"not on this machine: the real export {', '.join(missing)} ({SHARED})")
    return paths
