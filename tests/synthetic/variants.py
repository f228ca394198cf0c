"""Small exports that differ in recorded data or its form: old schemas, missing tables, metadata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from synthetic.demo import NcclPayloads
from synthetic.demo.model import LAYER_FORWARD
from synthetic.demo.nccl import CUDA_DEVICE, RANK, RANKS, encode_payload
from synthetic.writing.target import DEFAULT_STREAM, CaptureSession, Process, Thread
from synthetic.writing.writer import BACKTRACE_CALL, MANAGED

from .writer import ExportWriter

OLD_KERNELS: Final = 40


def start_gpu_process(export: ExportWriter, pid: int = 5_000, *, device: int = 0) -> tuple[Process, Thread]:
    """Declare a process that uses CUDA device `device` (context ``device + 1``) and its main thread."""
    process = export.process(pid, "python")
    main = export.thread(process, pid, "python")
    export.cuda_context(process, device, device + 1)
    export.cuda_device(process, device, device)
    return process, main


@contextmanager
def one_process(
    path: str | Path, schema: str, session: CaptureSession | None = None
) -> Iterator[tuple[ExportWriter, Process, Thread]]:
    """Yield an export of a process on one GPU, the process and its main thread."""
    with ExportWriter(path, schema, session=session) as export:
        export.gpu(0)
        yield export, *start_gpu_process(export)


def launch_kernels(
    export: ExportWriter, process: Process, main: Thread, count: int, *,
    device: int = 0, first_correlation: int = 1, backtrace: bool = False,
) -> None:  # fmt: skip
    """Launch `count` kernels: kernel n starts at 1 ms + n · 100 µs and lasts 50 µs; its API call is 20 µs earlier.

    Correlation ids count up from `first_correlation`; kernel n is number n modulo 10 of `LAYER_FORWARD`.
    """
    for number in range(count):
        spec = LAYER_FORWARD[number % len(LAYER_FORWARD)]
        correlation = first_correlation + number
        start = 1_000_000 + 100_000 * number
        call, event_class = spec.launch
        export.api(main, start - 20_000, start - 10_000, call, correlation, event_class=event_class)
        if backtrace:
            bare = call.rsplit("_v", 1)[0]
            export.api(main, start - 21_000, start - 9_000, bare, correlation, event_class=BACKTRACE_CALL)
        export.kernel(
            process, device, DEFAULT_STREAM, start, start + 50_000, name=spec.name, correlation_id=correlation,
            grid=spec.grid, block=spec.block, registers=spec.registers, context=device + 1,
        )  # fmt: skip


def old_schema_export(path: str | Path, schema: str = "2.9.1", *, backtrace: bool = True) -> Path:
    """Write an old export: 40 kernels, 40 launch calls, 4 NVTX ranges ``step 0`` … ``step 3`` of 10 kernels each.

    With `backtrace` each call has a second row with ``eventClass`` 67 and the same correlation id (80 rows in all).
    Schema ``"2021"`` has no metadata table, and ``TARGET_INFO_CUDA_NULL_STREAM`` names the null stream.
    """
    with one_process(path, schema) as (export, process, main):
        launch_kernels(export, process, main, OLD_KERNELS, backtrace=backtrace)
        for step in range(4):
            begin = 1_000_000 + 1_000_000 * step - 50_000
            export.nvtx_range(main, begin, begin + 999_000, f"step {step}")
        export.profiler_overhead(main, 500, 90_000, "CUDA profiling initialization")
    return Path(path)


def cpu_only_export(path: str | Path, schema: str = "3.7.2") -> Path:
    """Write 10 NVTX ranges, 20 OS runtime calls, and MPI as rank 3: 6 collectives, 4 sends, 1 other call; no CUDA.

    The ranges ``iteration 0`` … are 1 ms long, 1 ms apart, from t = 0. Raises `ValueError` for schemas before 3.1,
    which had no MPI tables.
    """
    session = CaptureSession(event_types=("OSRuntime", "NvtxEvents", "MPI"), command=("./cfd", "input.nml"))
    with ExportWriter(path, schema, session=session) as export:
        process = export.process(6_000, "./cfd")
        main = export.thread(process, 6_000, "cfd")
        export.mpi_rank(main, 3)
        export.mpi_other(main, 1_000, 400_000, "MPI_Init")
        for number in range(10):
            start = 2_000_000 * number
            export.nvtx_range(main, start, start + 1_000_000, f"iteration {number}")
            export.osrt(main, start + 10_000, start + 60_000, "read")
            export.osrt(main, start + 70_000, start + 95_000, "pthread_cond_wait")
            called = start + 500_000
            if number < 6:
                export.mpi_collective(main, called, called + 200_000, "MPI_Allreduce", size=4_096, receive_size=4_096)
            else:
                export.mpi_p2p(main, called, called + 150_000, "MPI_Send", peer=(number - 5) % 4, size=65_536)
    return Path(path)


def empty_export(path: str | Path, schema: str = "3.25.0") -> Path:
    """Write a lazy export without events: metadata and session only, no process, duration 0."""
    ExportWriter(path, schema).close()
    return Path(path)


def all_tables_export(path: str | Path, schema: str = "3.25.0") -> Path:
    """Write every table of the schema version (``--lazy=false``), all event tables empty."""
    ExportWriter(path, schema, lazy=False).close()
    return Path(path)


def delayed_capture_export(path: str | Path, schema: str = "3.25.0") -> Path:
    """Write a capture that began late: 20 kernels of which the first 4 have no launch call, and rows long before t = 0.

    The NVTX domains ``NCCL`` (1) and ``DALI`` (2) and two thread names were created about five minutes earlier; the
    first GPU metric sample is at -376,735 ns; the last event ends 400 ms after the session's duration of 3 ms.
    """
    with one_process(path, schema, session=CaptureSession(duration=3_000_000)) as (export, process, main):
        worker = export.thread(process, 5_009, "python")
        export.nvtx_domain(main, -351_429_369_363, 1, "NCCL")
        export.nvtx_domain(main, -346_050_393_894, 2, "DALI")
        export.nvtx_thread_name(worker, -346_047_104_916, "[DALI][WT]GPU executor")
        export.nvtx_thread_name(worker, -336_000_000_000, "NCCL Progress 0")
        if export.has("GPU_METRICS"):
            export.gpu_metric_names(0, ("SMs Active [Throughput %]",))
            for sample in range(30):
                export.gpu_metric(0, -376_735 + 100_000 * sample, (50,))
        launch_kernels(export, process, main, 20)
        # The first four kernels were launched before the capture.
        del export.rows("CUPTI_ACTIVITY_KIND_RUNTIME")[:4]
        export.nvtx_range(worker, 2_000_000, 403_000_000, "[Executor] Run", domain_id=2)
    return Path(path)


def unified_memory_export(path: str | Path, schema: str = "3.7.2") -> Path:
    """Write unified memory: 4 kernels, 8 migrations to and 3 from the device, 5 CPU page faults, 6 GPU fault groups."""
    with one_process(path, schema) as (export, process, main):
        launch_kernels(export, process, main, 4)
        address = 0x7F0000000000
        for number in range(11):
            start = 1_010_000 + 30_000 * number
            export.memcpy(
                process, 0, DEFAULT_STREAM, start, start + 8_000, size=65_536,
                kind="UvmHtoD" if number < 8 else "UvmDtoH", correlation_id=None, source=MANAGED, destination=MANAGED,
                migration_cause=2, address=address + 65_536 * number,
            )  # fmt: skip
        for number in range(5):
            export.cpu_page_fault(process, 900_000 + 1_000 * number, address + 4_096 * number)
        for number in range(6):
            start = 1_005_000 + 40_000 * number
            export.gpu_page_fault(process, 0, start, start + 3_000, address=address, count=12 + number)
    return Path(path)


def hostile_names_export(path: str | Path, schema: str = "3.25.0") -> Path:
    """Write a kernel (50 µs), an NVTX range and an API call for each of `HOSTILE_NAMES`, in that order, 1 ms apart."""
    with ExportWriter(path, schema, session=CaptureSession(hostname=HOSTILE_NAMES[1])) as export:
        export.gpu(0)
        process = export.process(5_000, HOSTILE_NAMES[0])
        main = export.thread(process, 5_000, HOSTILE_NAMES[2])
        export.cuda_context(process)
        for number, name in enumerate(HOSTILE_NAMES):
            start, end = 1_000_000 * (number + 1), 1_000_000 * (number + 1) + 50_000
            export.nvtx_range(main, start - 40_000, start - 5_000, name)
            export.api(main, start - 30_000, start - 10_000, name or "cudaLaunchKernel_v7000", number + 1)
            export.kernel(process, 0, DEFAULT_STREAM, start, end, name=name, short=name, correlation_id=number + 1)
        export.diagnostic(500, HOSTILE_NAMES[1], severity=2, process=process)
    return Path(path)


HOSTILE_NAMES: Final = (
    "[bold]x[/foo]", "\x1b[31mred\x1b[0m\x1b]0;title\x07", "tab\there\nnewline\r\x07bell", "f[abi:cxx11](int)",
    "[@click=app.quit]press[/]", "[link=file:///etc/passwd]", '=HYPERLINK("http://example.com")',
    "comma, \"quote\"; 'apostrophe'", "| table | cell |", "\\[escaped]", "größe_ядро_内核_🚀",
    "e\u0301 combining, \u202egnp.exe right-to-left, \u200bzero width", "%s %d {0} {name} ${HOME} $(id)",
    "'; DROP TABLE StringIds; --", "x" * 5_000, "",
)  # fmt: skip
"""Names that break naive programs: escape sequences, markup, control characters, formulas, quotes, length, nothing."""


def open_ranges_export(path: str | Path, schema: str = "3.25.0") -> Path:
    """Write unusual NVTX events on one thread, from 1 ms on.

    3 finished ranges (``done 0`` …, 1 ms each), 2 open push/pop ranges (``open 0``, ``open 1``), 1 open start/end
    range (``open start/end``), 1 start/end range ended on another thread (``crossing``), 1 range of length zero
    (``instant``), 4 marks (``mark 0`` …), 1 category. The last event is the mark at 10 ms.
    """
    with ExportWriter(path, schema) as export:
        process, main = start_gpu_process(export)
        other = export.thread(process, 5_001, "worker")
        export.nvtx_category(main, 900_000, 7, "input")
        for number in range(3):
            start = 1_000_000 + 1_500_000 * number
            export.nvtx_range(main, start, start + 1_000_000, f"done {number}", category=7)
        export.nvtx_range(main, 6_000_000, None, "open 0")
        export.nvtx_range(main, 6_500_000, None, "open 1")
        export.nvtx_range(main, 6_600_000, None, "open start/end", style=60, range_id=1)
        export.nvtx_range(main, 6_700_000, 9_000_000, "crossing", style=60, range_id=2, end_thread=other)
        export.nvtx_range(main, 7_000_000, 7_000_000, "instant")
        for number in range(4):
            export.nvtx_mark(main, 7_000_000 + 1_000_000 * number, f"mark {number}")
    return Path(path)


def deep_nvtx_export(path: str | Path, depth: int = 3_000, schema: str = "3.25.0") -> Path:
    """Write `depth` nested NVTX ranges (``level 0`` is the outermost), and a kernel launched inside the innermost."""
    with one_process(path, schema) as (export, process, main):
        middle = 10_000 * depth
        for level in range(depth):
            reach = 1_000 * (depth - level)
            export.nvtx_range(main, middle - reach, middle + reach, f"level {level}")
        export.api(main, middle - 300, middle + 300, "cudaLaunchKernel_v7000", 1)
        start = middle + 2_000
        export.kernel(process, 0, DEFAULT_STREAM, start, start + 50_000, name="deep(float *)", correlation_id=1)
    return Path(path)


EFA_TYPE: Final = 1 << 48 | 5 << 32 | 3


def efa_export(
    path: Path,
    events: Sequence[Mapping[str, Any]],
    source: str = "efa_metrics",
    kind: str = "rdmap0s6",
    session: CaptureSession | None = None,
) -> Path:
    """Write an EFA event and an event of another source each second."""
    second = 10**9
    with ExportWriter(path, "3.25.0", session=session) as writer:
        writer.nvtx_range(writer.thread(writer.process(100), 100, "main"), 0, 4 * second, "all")
        writer.generic_source(1, source)
        writer.generic_source(2, "default")
        writer.generic_type(EFA_TYPE, 1, kind, list(events[0]))
        writer.generic_type(EFA_TYPE + 1, 2, "EFAULT", ["other bytes"])
        for number, values in enumerate(events):
            writer.generic_event(number * second, EFA_TYPE, values)
            writer.generic_event(number * second, EFA_TYPE + 1, {"other bytes": 7})
    return path


def rank_export(path: Path, told: Mapping[str, Any]) -> None:
    """Write processes that ran a kernel, and what identifies their ranks: MPI, NCCL, the environment."""
    capture = CaptureSession(environment=told.get("environment", {}), include_json=True)
    with ExportWriter(path, session=capture) as export:
        export.gpu(0)
        for number in range(told.get("processes", 1)):
            process = export.process(told.get("pid", 5_000) + number, "/usr/bin/python3.11")
            main = export.thread(process, process.pid, "main")
            device = told.get("devices", (0,) * 9)[number]
            export.kernel(process, device, 7, 1, 2, name="k", correlation_id=None)
            if "mpi" in told:
                export.mpi_rank(main, told["mpi"])
            if "nccl" in told:
                export.nvtx_domain(main, 0, 1, "NCCL")
            name = "ncclCommInitRank"
            for moment, (rank, ranks) in enumerate(told.get("nccl", ())):
                values = {RANK: rank, RANKS: ranks, CUDA_DEVICE: 0}
                payload = encode_payload(name, NcclPayloads.BEFORE_2_25, values, domain_id=1)
                export.nvtx_range(main, moment, moment + 1, name, domain_id=1, registered=True, payload=payload)
