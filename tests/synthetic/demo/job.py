"""The common part of demo jobs: ranks on hosts, one report each; start-up and NCCL."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import ClassVar, Final, Literal

from synthetic.demo.nccl import (
    CUDA_DEVICE,
    MESSAGE_SIZE,
    NCCL_DOMAIN,
    RANK,
    RANKS,
    REDUCTION,
    REDUCTIONS,
    NcclPayloads,
    payload_schema,
)
from synthetic.demo.timeline import (
    COPY_STREAM,
    GPU_METRICS,
    NCCL_DOMAIN_ID,
    NIC_METRICS,
    OLD_GPU_METRICS,
    SAMPLING_PERIOD,
    Arrival,
    Communicator,
    DemoNcclCall,
    Program,
    RankTimeline,
)
from synthetic.writing.target import CaptureSession, Thread
from synthetic.writing.writer import WARNING, ExportWriter

PLANTED_SECRET: Final = "demo-secret"
"""Value of AWS_SECRET_ACCESS_KEY in every captured environment: it must never appear on a screen or in a report."""

JOB_START: Final = 1_780_000_000_000_000_000
"""UTC ns from which on the sessions of the ranks start."""
CLOCK_SKEW: Final = 85_000
"""ns by which the clock of each host is ahead of the previous host's, as under NTP; visible in ``utcEpochNs``."""

WORLD_STREAM: Final = 28
NEIGHBOUR_STREAM: Final = 32


@dataclass(frozen=True, slots=True)
class JobLayout:
    """Hosts, which ranks fill one after the other."""

    ranks: int
    hosts: int

    @property
    def ranks_per_host(self) -> int:
        """GPUs used on a (full) host."""
        return -(-self.ranks // self.hosts)

    def host(self, rank: int) -> int:
        """Return the index of the host of `rank`."""
        return rank // self.ranks_per_host

    def hostname(self, rank: int) -> str:
        """Return the name of the host of `rank`: ``gpu-a01``, ``gpu-a02`` …"""
        return f"gpu-a{self.host(rank) + 1:0{max(len(str(self.hosts)), 2)}}"

    def clock_ahead(self, rank: int) -> int:
        """ns by which the clock of the host of `rank` is ahead of the first host's."""
        return CLOCK_SKEW * (self.host(rank) % 8)

    def local_rank(self, rank: int) -> int:
        """Return the rank within the host, also the machine's number of its GPU: each process sees only its GPU."""
        return rank % self.ranks_per_host

    def world(self, seed: int) -> Communicator:
        """Return the communicator of all ranks; on more than one host the network limits it."""
        bandwidth = 60e9 if self.host(self.ranks - 1) else 320e9
        return Communicator(_hash(seed, "world"), tuple(range(self.ranks)), WORLD_STREAM, bandwidth)

    def neighbours(self, rank: int, seed: int) -> Communicator:
        """Return the communicator in which `rank` exchanges with neighbours: its host, or all if it is alone there."""
        start = self.host(rank) * self.ranks_per_host
        members = tuple(range(start, min(start + self.ranks_per_host, self.ranks)))
        lonely = 1 in (self.ranks_per_host, self.ranks % self.ranks_per_host)
        if lonely:
            members = tuple(range(self.ranks))
        bandwidth = 60e9 if lonely else 300e9
        return Communicator(_hash(seed, f"neighbours {members}"), members, NEIGHBOUR_STREAM, bandwidth)

    def environment(self, rank: int) -> dict[str, str]:
        """Return the captured environment of `rank`. HOSTNAME is the launch node's everywhere, as on real clusters."""
        return {
            "HOSTNAME": "gpu-a01",
            "AWS_SECRET_ACCESS_KEY": PLANTED_SECRET,
            "SLURM_JOB_ID": "4242",
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(self.local_rank(rank)),
            "SLURM_NTASKS": str(self.ranks),
            "SLURM_NODEID": str(self.host(rank)),
            "SLURMD_NODENAME": self.hostname(rank),
            "RANK": str(rank),
            "LOCAL_RANK": str(self.local_rank(rank)),
            "WORLD_SIZE": str(self.ranks),
            "CUDA_VISIBLE_DEVICES": str(self.local_rank(rank)),
            "MASTER_ADDR": "gpu-a01",
            "NCCL_VERSION": "2.27.7-1",
        }


@dataclass(slots=True)
class Watcher:
    """A thread that sleeps in consecutive OS calls."""

    thread: Thread
    call: str
    period: int
    time: int
    cpu: int

    def watch(self, export: ExportWriter, until: int) -> None:
        """Write its calls that end by `until` (ns since the session start)."""
        while self.time + self.period <= until:
            export.on_cpu(self.thread, self.time, self.time + 41_000, cpu=self.cpu)
            export.osrt(self.thread, self.time + 40_000, self.time + self.period, self.call)
            self.time += self.period


@dataclass(frozen=True, slots=True)
class OpenRank:
    """A rank whose report is being written."""

    timeline: RankTimeline
    watchers: tuple[Watcher, ...]
    gpu_id: int
    gpu_metrics: bool
    nic_metrics: bool

    def finish_step(self) -> None:
        """Write the events up to the CPU's present; later events cannot be earlier."""
        timeline = self.timeline
        now = timeline.local(timeline.cpu)
        for watcher in self.watchers:
            watcher.watch(timeline.export, now)
        if self.gpu_metrics:
            timeline.activity.sample_gpu(timeline.export, self.gpu_id, now)
        if self.nic_metrics:
            timeline.activity.sample_nic(timeline.export, 0, now)
        timeline.export.flush(until=now - 2 * max(watcher.period for watcher in self.watchers))


def _hash(seed: int, name: str) -> int:
    """Return a communicator's hash: 64 bits, often too large for SQLite's signed integers, as in reality."""
    digest = hashlib.md5(f"{seed}/{name}".encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:8], "little") | 1 << 63


NCCL_BUFFERS: Final = 96 * 1024**2
"""Bytes of the GPU's memory that a communicator takes."""

Payload = Literal["json", "binary"] | None


@dataclass(frozen=True)
class DemoJob:
    """The properties of every demo job; its kind adds its own and the program of a rank."""

    command: ClassVar[tuple[str, ...]]
    gpu_metric_names: ClassVar[tuple[str, ...]] = GPU_METRICS

    ranks: int
    steps: int
    layers: int
    seed: int = 1
    payload: Payload = "json"
    """The form of NCCL's payloads; None: not exported, as nsys does by default."""
    payload_layout: NcclPayloads = NcclPayloads.SINCE_2_25
    gpu_metrics: bool = True
    schema: str = "3.25.0"
    hosts: int = 1
    start_up: float = 1.0
    """The factor on the time that contexts and communicators take."""

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.steps < 1 or self.layers < 1 or self.hosts < 1:
            raise ValueError("a job has at least one rank, step, layer and host")

    @property
    def layout(self) -> JobLayout:
        """The hosts of the ranks."""
        return JobLayout(self.ranks, min(self.hosts, self.ranks))

    def speed(self, rank: int) -> float:
        """Return the factor on the duration of the compute kernels of `rank`."""
        return 1.0

    def program(self, rank: OpenRank) -> Program:
        """Run `rank`: yield its arrivals at collectives."""
        raise NotImplementedError

    def write(self, directory: str | Path) -> list[Path]:
        """Write ``rank0.sqlite`` … to `directory` (created if need be) and return their paths in order of rank.

        The files depend only on this description. After an error no half-written file remains.
        """
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"rank{rank}.sqlite" for rank in range(self.ranks)]
        with ExitStack() as stack:
            opened = [self._open(stack, rank, path) for rank, path in enumerate(paths)]
            run({rank: self.program(one) for rank, one in enumerate(opened)})
        return paths

    def _session(self, rank: int) -> CaptureSession:
        """Return the session of one rank's report: sessions start up to 29 ms apart."""
        started = JOB_START + 1_000_000 * ((7 + 13 * rank) % 29)
        return CaptureSession(
            hostname=self.layout.hostname(rank),
            utc_epoch_ns=started + self.layout.clock_ahead(rank),
            command=self.command,
            environment=self.layout.environment(rank),
            include_json=self.payload == "json",
            include_blobs=self.payload == "binary",
            sampling_period=SAMPLING_PERIOD,
        )

    def _open(self, stack: ExitStack, rank: int, path: Path) -> OpenRank:
        """Declare machine, process and threads in the export of the rank, and return it ready to run."""
        layout = self.layout
        export = stack.enter_context(ExportWriter(path, self.schema, session=self._session(rank)))
        pid = 41_000 + 37 * rank
        process = export.process(pid, "python")
        names = {0: "python", 141: "pt_autograd_0", 97: "pt_nccl_watchdg", 23: "cuda-EvtHandlr", 63: "pt_data_worker"}
        main, autograd, watchdog, events, loader = (
            export.thread(process, pid + offset, name) for offset, name in names.items()
        )
        gpu_id = layout.local_rank(rank)
        for number in range(layout.ranks_per_host):
            export.gpu(number)
        export.cuda_context(process)
        export.cuda_device(process, cuda_id=0, gpu_id=gpu_id)
        export.cuda_stream(process, COPY_STREAM)
        export.cuda_stream(process, WORLD_STREAM, name="nccl world")
        export.cuda_stream(process, NEIGHBOUR_STREAM, name="nccl neighbours")
        gpu_metrics = self.gpu_metrics and export.has("GPU_METRICS")
        if gpu_metrics:
            export.gpu_metric_names(gpu_id, self.gpu_metric_names if export.version >= (3, 13) else OLD_GPU_METRICS)
        nic_metrics = gpu_metrics and self.hosts > 1 and export.has("NET_NIC_METRIC")
        if nic_metrics:
            export.nic(0, "mlx5_0", NIC_METRICS)
        origin = export.session.utc_epoch_ns - layout.clock_ahead(rank)
        timeline = RankTimeline(
            rank, export, process, main, autograd, loader, origin, self.speed(rank), self.payload_layout,
            Random(f"{self.seed}/{rank}"), self.start_up,
        )  # fmt: skip
        watchers = (
            Watcher(events, "poll", 100_000_000, 30_000_000, timeline.core + 3),
            Watcher(watchdog, "pthread_cond_timedwait", 50_000_000, 0, timeline.core + 4),
        )
        return OpenRank(timeline, watchers, gpu_id, gpu_metrics, nic_metrics)


def run(programs: Mapping[int, Program]) -> None:
    """Run the ranks' programs side by side: a collective ends when its last rank has arrived and the data has moved."""
    waiting: dict[int, dict[int, Arrival]] = {}

    def advance(rank: int, end: int | None) -> None:
        with suppress(StopIteration):
            arrival = next(programs[rank]) if end is None else programs[rank].send(end)
            waiting.setdefault(arrival.communicator.hash, {})[rank] = arrival

    for rank in programs:
        advance(rank, None)
    while waiting:
        whole = (
            one
            for one, arrivals in waiting.items()
            if len(arrivals) == len(next(iter(arrivals.values())).communicator.members)
        )
        arrivals = waiting.pop(next(whole))
        end = max(arrival.ready for arrival in arrivals.values())
        end += max(arrival.transfer for arrival in arrivals.values())
        for rank in arrivals:
            advance(rank, end)


def set_up(rank: RankTimeline, communicators: Sequence[Communicator], memory: Sequence[int]) -> Program:
    """Start-up: context, streams, NCCL domain and communicators, parameters to the GPU, profiler noise.

    `memory`: the bytes of each allocation.
    """
    export = rank.export
    export.diagnostic(0, "Profiling has started.")
    export.diagnostic(rank.local(rank.cpu), "CUDA injection initialized successfully.", process=rank.process)
    warning = "Not all NVTX events might have been collected."
    export.diagnostic(rank.local(rank.cpu) + 50_000, warning, severity=WARNING, process=rank.process)
    for name, microseconds in (("openat", 35), ("read", 220), ("mmap", 60), ("ioctl", 900)):
        start = rank.cpu
        rank.compute_for(microseconds)
        export.osrt(rank.main, rank.local(start), rank.local(rank.cpu), name)
        rank.compute_for(300)
    start = rank.cpu
    rank.call("cudaFree_v3020", 80_000 * rank.start_up)
    flush = rank.local(start + 2_000_000)
    export.profiler_overhead(rank.main, flush, flush + 29_000_000, "CUDA profiling data flush overhead")
    for _stream in range(3):
        rank.call("cudaStreamCreateWithFlags_v5000", 45)
    for size in memory:
        correlation = rank.call("cudaMalloc_v3020", 480)
        rank.allocate(size, correlation)
        rank.copy("HtoD", 24 * 1024**2, pinned=False)
    rank.synchronize()
    if communicators:
        export.nvtx_domain(rank.main, rank.local(rank.cpu), NCCL_DOMAIN_ID, NCCL_DOMAIN)
        export.nvtx_thread_name(rank.autograd, rank.local(rank.cpu) + 900, "NCCL Progress 0")
        functions = ("CommInitRankConfig", "AllReduce", "AllGather", "ReduceScatter", "Send", "Recv")
        schemas = [payload_schema(f"nccl{function}", rank.payloads) for function in functions]
        export.payload_schemas(NCCL_DOMAIN_ID, schemas)
        export.payload_enum(NCCL_DOMAIN_ID, rank.payloads.reduction_enum, REDUCTION, REDUCTIONS)
    for communicator in communicators:
        yield from _init_communicator(rank, communicator)


def _init_communicator(rank: RankTimeline, communicator: Communicator) -> Program:
    """Create a communicator: all ranks leave ncclCommInitRankConfig together."""
    values = {RANK: communicator.members.index(rank.rank), RANKS: len(communicator.members), CUDA_DEVICE: rank.device}
    with rank.nccl("ncclCommInitRankConfig", communicator, **values):
        rank.compute_for(60_000 * rank.start_up)
        with rank.asleep():
            rank.cpu = yield Arrival(communicator, rank.cpu, int(40_000_000 * rank.start_up))
        rank.allocate(NCCL_BUFFERS)


def all_reduce(rank: RankTimeline, communicator: Communicator, size: int) -> Program:
    calls = [DemoNcclCall("ncclAllReduce", {MESSAGE_SIZE: size, REDUCTION: REDUCTIONS["Sum"]})]
    count = len(communicator.members)
    moved = 2 * size * (count - 1) / count
    yield from rank.collective("AllReduce", "all_reduce", communicator, calls, moved)
