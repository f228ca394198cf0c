"""The writer of synthetic exports."""

from __future__ import annotations

from pathlib import Path

from .cuda import CudaEvents
from .nvtx import NvtxEvents
from .parallel import ParallelEvents
from .system import SystemEvents
from .target import Session


class ExportWriter(CudaEvents, NvtxEvents, ParallelEvents, SystemEvents):
    """Writes one SQLite file as `nsys export` of a given schema version would.

    Use it as a context manager; leaving it completes the file, an exception removes it. Events may come in any order:
    they wait in memory and are sorted by start when written. A long run calls `flush(until=…)` between its steps.

        with ExportWriter(path, session=Session(hostname="gpu-01")) as export:
            python = export.process(4711)
            main = export.thread(python, 4711, "python")
            export.api(main, 1_000, 6_000, "cudaLaunchKernel_v7000", correlation_id=1)
            export.kernel(python, 0, 7, 9_000, 31_000, name="saxpy(float *)", correlation_id=1)
    """

    def __init__(
        self, path: str | Path, schema: str = "3.25.0", *, lazy: bool = True, session: Session | None = None
    ) -> None:
        """Creates the file, replacing what was there.

        `schema` is a key of `SCHEMAS`; `lazy` False creates every table of that version, as ``--lazy=false`` does.
        Raises `ValueError` for an unknown schema, or if binary payloads are asked of a schema older than 3.16.
        """
        self.session = Session() if session is None else session
        super().__init__(Path(path), schema, lazy=lazy)
        if self.session.include_blobs and self.version < (3, 16):
            self.discard()
            raise ValueError(f"schema {schema} has no binary payloads (first seen in 3.16.1)")
        self.create("TARGET_INFO_SYSTEM_ENV", "TARGET_INFO_SESSION_START_TIME", "ANALYSIS_DETAILS")
