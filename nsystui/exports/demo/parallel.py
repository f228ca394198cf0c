"""Parallel programming on the CPU: MPI calls, OpenMP and OpenACC events."""

from __future__ import annotations

from typing import Final

from .target import TargetInfo, Thread

_OPENMP_CLASS: Final = 78
_NVIDIA_DEVICE: Final = 4


class ParallelEvents(TargetInfo):
    """The part of the writer for MPI, OpenMP and OpenACC. Times are ns since the start."""

    def mpi_rank(self, thread: Thread, rank: int) -> None:
        """The rank of the process of `thread` in MPI_COMM_WORLD."""
        self.rows("MPI_RANKS").append((thread.global_id, rank))

    def mpi_p2p(
        self, thread: Thread, start: int, end: int | None, name: str, *, peer: int, size: int, tag: int = 0
    ) -> None:
        """A point-to-point call (``MPI_Send``) of `size` bytes with rank `peer`."""
        text = self.intern(name)
        self.rows("MPI_P2P_EVENTS").append((start, end, thread.global_id, text, 0, tag, peer, size, None))

    def mpi_collective(
        self,
        thread: Thread,
        start: int,
        end: int | None,
        name: str,
        *,
        size: int = 0,
        receive_size: int = 0,
        root: int | None = None,
    ) -> None:
        """A collective call (``MPI_Allreduce``); sizes in bytes."""
        text = self.intern(name)
        self.rows("MPI_COLLECTIVES_EVENTS").append(
            (start, end, thread.global_id, text, 0, root, size, receive_size, None)
        )

    def mpi_wait(self, thread: Thread, start: int, end: int | None, name: str) -> None:
        """A call that starts, tests or awaits requests (``MPI_Waitall``)."""
        self.rows("MPI_START_WAIT_EVENTS").append((start, end, thread.global_id, self.intern(name), None))

    def mpi_other(self, thread: Thread, start: int, end: int | None, name: str) -> None:
        """Any other MPI call (``MPI_Init``)."""
        self.rows("MPI_OTHER_EVENTS").append((start, end, thread.global_id, self.intern(name)))

    def ucx(self, thread: Thread, start: int, end: int | None, name: str) -> None:
        """A UCX call that submits nothing and moves nothing on (``ucp_worker_create``)."""
        self.rows("UCP_EVENTS").append((start, end, thread.global_id, self.intern(name)))

    def ucx_submit(self, thread: Thread, start: int, end: int | None, name: str, *, size: int = 0) -> None:
        """A UCX call that submits `size` bytes (``ucp_tag_send_nbx``)."""
        text = self.intern(name)
        self.rows("UCP_SUBMIT_EVENTS").append((start, end, thread.global_id, text, 0, size, 0, 0))

    def openmp(self, thread: Thread, start: int, end: int, name: str, *, kind: str = "PARALLEL") -> None:
        """An OpenMP event; `kind` is the end of its table's name (``TASK``, ``SYNC_REGION_WAIT``)."""
        self.add(
            f"OPENMP_EVENT_KIND_{kind}",
            start=start, end=end, eventClass=_OPENMP_CLASS, globalTid=thread.global_id, nameId=self.intern(name),
        )  # fmt: skip

    def openacc(
        self, thread: Thread, start: int, end: int, name: str, *, kind: str = "LAUNCH", file: str = "", line: int = 0
    ) -> None:
        """An OpenACC event at a line of a source file, if one is given; `kind` is the end of its table's name."""
        self.add(
            f"CUPTI_ACTIVITY_KIND_OPENACC_{kind}",
            start=start, end=end, nameId=self.intern(name), globalTid=thread.global_id, eventKind=0,
            DeviceType=_NVIDIA_DEVICE, lineNo=line, cuDeviceId=0, cuContextId=1, cuStreamId=7,
            srcFile=self.intern(file) if file else None,
        )  # fmt: skip
