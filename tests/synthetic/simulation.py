"""One rank of a simulation: MPI, OpenMP and OpenACC on the CPU, unified memory, and an InfiniBand network."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from synthetic.writing.target import DEFAULT_STREAM, CaptureSession, Process, Thread
from synthetic.writing.writer import MANAGED

from .writer import ExportWriter

SWITCH_GUID: Final = 0x9C63_C003_00AB_CDEF - (1 << 64)
"""The GUID of the demo's switch; its highest bit is set, so that SQLite's signed integers have it as negative."""

_NETWORK: Final = (("IB: Bytes sent", "bytes/ms"), ("IB: Send waits", "ticks/ms"))
_MEMORY: Final = 0x7F00_0000_0000
_PAGE: Final = 65_536


def simulation_export(path: str | Path, schema: str = "3.28.1", *, rank: int = 0) -> Path:
    """Write rank `rank` of a simulation, 9 ms long, except events for which the schema has no table.

    MPI: ``MPI_Init`` 1 ms, 2 sends of 1 and 3 MB to the next rank (100 and 300 µs), an ``MPI_Waitall`` of 200 µs and
    one that never ends, 2 ``MPI_Allreduce`` of 8 bytes (50 µs each), an ``MPI_Bcast`` from rank 0 of 4 MB (400 µs).
    OpenMP: 2 parallel regions of 1 ms; an implicit task of 0.9 ms, and a wait of 0.1 ms under the same name.
    OpenACC: 2 launches (20 and 30 µs) at solve.f90:42, an upload of 64 KiB (40 µs) at line 41, both in ``solve``, and a
    wait (10 µs) somewhere.
    Unified memory: 2 pages go to the GPU (10 µs each), the first moves back (20 µs); 3 CPU faults of 2 instructions
    and 2 groups of 12 and 5 GPU faults, all on the two pages.
    Network: samples of mlx5_0 and of a switch, 1 ms each; send waits 20,000 and 500 ticks/ms, and 30,000 of the switch.
    """
    session = CaptureSession(event_types=("Cuda", "MPI", "OpenMP", "OpenACC"), command=("./simulation", "input.nml"))
    with ExportWriter(path, schema, session=session) as export:
        process = export.process(7_000 + rank, "./simulation")
        main = export.thread(process, 7_000 + rank, "simulation")
        export.gpu(0)
        export.cuda_context(process)
        export.cuda_device(process, 0, 0)
        if export.has("MPI_RANKS"):
            _communicate(export, main, rank)
        _fork_and_join(export, main)
        _offload(export, main)
        _migrate(export, process)
        if export.has("NET_NIC_METRIC"):
            _sample_network(export)
    return Path(path)


def _communicate(export: ExportWriter, main: Thread, rank: int) -> None:
    export.mpi_rank(main, rank)
    export.mpi_other(main, 0, 1_000_000, "MPI_Init")
    export.mpi_p2p(main, 1_100_000, 1_200_000, "MPI_Send", peer=rank + 1, size=1_000_000, tag=7)
    export.mpi_p2p(main, 1_300_000, 1_600_000, "MPI_Send", peer=rank + 1, size=3_000_000, tag=8)
    export.mpi_wait(main, 1_700_000, 1_900_000, "MPI_Waitall")
    for start in (2_000_000, 3_000_000):
        export.mpi_collective(main, start, start + 50_000, "MPI_Allreduce", size=8, receive_size=8)
    export.mpi_collective(main, 4_000_000, 4_400_000, "MPI_Bcast", size=4_000_000, receive_size=0, root=0)
    export.mpi_wait(main, 9_000_000, None, "MPI_Waitall")


def _fork_and_join(export: ExportWriter, main: Thread) -> None:
    for start in (5_000_000, 7_000_000):
        export.openmp(main, start, start + 1_000_000, "Parallel region")
    export.openmp(main, 5_000_000, 5_900_000, "Implicit task", kind="TASK")
    export.openmp(main, 5_900_000, 6_000_000, "Implicit task", kind="SYNC_REGION_WAIT")


def _offload(export: ExportWriter, main: Thread) -> None:
    solve = "src/solve.f90"
    export.openacc(
        main, 6_000_000, 6_040_000, "Enqueue Upload", kind="DATA", file=solve, line=41,
        event_kind=5, function="solve", size=65_536,
    )  # fmt: skip
    for start, end in ((6_050_000, 6_070_000), (6_080_000, 6_110_000)):
        export.openacc(main, start, end, "Enqueue Launch", file=solve, line=42, event_kind=4, function="solve")
    export.openacc(main, 6_120_000, 6_130_000, "Wait", kind="OTHER", event_kind=7)


def _migrate(export: ExportWriter, process: Process) -> None:
    copies = ((6_060_000, 10_000, "UvmHtoD", 0), (6_075_000, 10_000, "UvmHtoD", 1), (6_200_000, 20_000, "UvmDtoH", 0))
    for start, length, kind, page in copies:
        export.memcpy(
            process, 0, DEFAULT_STREAM, start, start + length, size=_PAGE, kind=kind, correlation_id=None,
            source=MANAGED, destination=MANAGED, migration_cause=2, address=_MEMORY + _PAGE * page,
        )  # fmt: skip
    faults = ((4_500_000, 0, "fill_grid", 17), (4_510_000, 1, "fill_grid", 17), (6_190_000, 0, "write_grid", 80))
    for start, page, name, line in faults:
        export.cpu_page_fault(process, start, _MEMORY + _PAGE * page, instruction=name, file="src/grid.f90", line=line)
    for start, page, count in ((6_055_000, 0, 12), (6_072_000, 1, 5)):
        export.gpu_page_fault(process, 0, start, start + 3_000, address=_MEMORY + _PAGE * page, count=count)


def _sample_network(export: ExportWriter) -> None:
    export.nic(0, "mlx5_0", _NETWORK)
    for start, waits in ((1_000_000, 20_000), (2_000_000, 500)):
        export.nic_metric(0, start, start + 1_000_000, (1_000_000, waits))
    export.switch_metric(SWITCH_GUID, 1_500_000, 2_500_000, (2_000_000, 30_000))
