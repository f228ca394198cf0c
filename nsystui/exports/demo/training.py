"""The demo job: data-parallel training of a small language model on two hosts, one report a rank."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from . import catalog
from .nccl import (
    CUDA_DEVICE,
    MESSAGE_SIZE,
    NCCL_DOMAIN,
    PEER,
    RANK,
    RANKS,
    REDUCTION,
    REDUCTIONS,
    NcclPayloads,
    payload_schema,
)
from .nvtx import START_END
from .ranks import JobLayout, OpenRank, open_rank, rank_session
from .system import WARNING
from .target import DEFAULT_STREAM
from .timeline import COPY_STREAM, NCCL_DOMAIN_ID, Arrival, Communicator, NcclCall, Program, RankTimeline
from .writer import ExportWriter

BOUNDARY: Final = 512 * 1024
"""Bytes sent to, and received from, a neighbour each step (SendRecv)."""
LAYER_BUCKET: Final = 48 * 1024**2
"""Bytes of a gradient bucket: two layers (AllReduce, > 16 MB)."""
NORM_BUCKET: Final = 4 * 1024**2
"""Bytes of the last, small gradient bucket (AllReduce, 1–16 MB)."""
EMBEDDING_SHARD: Final = 8 * 1024**2
"""Bytes per rank of the sharded embedding (ReduceScatter of gradients, AllGather of parameters)."""
GRADIENT_NORM: Final = 4
"""Bytes of the gradient norm (AllReduce, < 64 KB)."""
STATISTICS: Final = 192 * 1024
"""Bytes of the step's statistics (AllReduce, 64 KB–1 MB)."""

Payload = Literal["json", "binary"] | None


@dataclass(frozen=True)
class TrainingJob:
    """What the demo job is like. Every number that follows from it is a property, so that tests can ask for it."""

    ranks: int = 4
    steps: int = 12
    layers: int = 24
    seed: int = 1
    straggler: int | None = 2
    """The rank whose GPU is slow; None (or a rank that does not exist): none."""
    straggler_factor: float = 1.15
    payload: Payload = "json"
    """The form in which NCCL's payloads are exported; None: not at all, as nsys does by default."""
    payload_layout: NcclPayloads = NcclPayloads.SINCE_2_25
    gpu_metrics: bool = True
    schema: str = "3.25.0"
    hosts: int = 2
    stall_step: int | None = None
    """The step in which every rank stands still in cudaMalloc; None: the one in the middle."""
    stall_ms: int = 120
    slow_host: int | None = None
    """The host (by number) all of whose GPUs are as slow as ``straggler_factor`` says."""
    small_messages: int = 0
    """So many AllReduce of `GRADIENT_NORM` bytes more in every step, one after the other."""
    uneven_ms: float = 0.0
    """So much longer one rank after the other computes in backward, in one kernel of its own."""

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.steps < 1 or self.layers < 1 or self.hosts < 1:
            raise ValueError("ranks, steps, layers and hosts must be at least 1")

    @property
    def layout(self) -> JobLayout:
        """Where the ranks are."""
        return JobLayout(self.ranks, min(self.hosts, self.ranks))

    @property
    def stalled_step(self) -> int:
        """Index of the step with the host stall."""
        return self.steps // 2 if self.stall_step is None else self.stall_step

    @property
    def step_collectives(self) -> tuple[tuple[str, int], ...]:
        """The NCCL operations of one step in order: operation and message size in bytes; none with a single rank."""
        if self.ranks == 1:
            return ()
        buckets = -(-self.layers // 2)
        return (
            ("SendRecv", BOUNDARY),
            *[("AllReduce", LAYER_BUCKET)] * buckets,
            ("AllReduce", NORM_BUCKET),
            ("ReduceScatter", EMBEDDING_SHARD),
            *[("AllReduce", GRADIENT_NORM)] * (1 + self.small_messages),
            ("AllGather", EMBEDDING_SHARD),
            ("AllReduce", STATISTICS),
        )

    @property
    def compute_kernels_per_step(self) -> int:
        """Kernels of one step that are not NCCL's: 36 a layer and 14 more."""
        per_layer = len(catalog.LAYER_FORWARD) + len(catalog.LAYER_BACKWARD) + len(catalog.LAYER_OPTIMIZER)
        once = (catalog.EMBEDDING, catalog.HEAD_FORWARD, catalog.HEAD_BACKWARD, catalog.EMBEDDING_BACKWARD)
        return per_layer * self.layers + sum(map(len, once))

    @property
    def kernels_per_rank(self) -> int:
        """Kernels in one report."""
        return self.steps * (self.compute_kernels_per_step + len(self.step_collectives))

    def write(self, directory: str | Path) -> list[Path]:
        """Write ``rank0.sqlite`` … to `directory` (created if need be) and return their paths in order of rank.

        The files depend on nothing but this description. After an error no half-written file remains.
        """
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"rank{rank}.sqlite" for rank in range(self.ranks)]
        with ExitStack() as stack:
            ranks = [self._open(stack, rank, path) for rank, path in enumerate(paths)]
            run([self._program(rank) for rank in ranks])
        return paths

    def _open(self, stack: ExitStack, rank: int, path: Path) -> OpenRank:
        json, blobs = self.payload == "json", self.payload == "binary"
        session = rank_session(self.layout, rank, include_json=json, include_blobs=blobs)
        export = stack.enter_context(ExportWriter(path, self.schema, session=session))
        return open_rank(
            export,
            self.layout,
            rank,
            seed=self.seed,
            speed=self.straggler_factor if self._is_slow(rank) else 1.0,
            payloads=self.payload_layout,
            gpu_metrics=self.gpu_metrics and export.has("GPU_METRICS"),
        )

    def _is_slow(self, rank: int) -> bool:
        return rank == self.straggler or self.layout.host(rank) == self.slow_host

    def _program(self, rank: OpenRank) -> Program:
        timeline = rank.timeline
        world = self.layout.world(self.seed)
        neighbours = self.layout.neighbours(timeline.rank, self.seed)
        yield from _set_up(timeline, [world, neighbours] if self.ranks > 1 else [])
        timeline.work(20)
        rank.finish_step()
        timeline.export.nvtx_mark(timeline.main, timeline.local(timeline.cpu), "epoch 0")
        for step in range(self.steps):
            with timeline.range(f"step {step}"):
                yield from self._step(timeline, step, world, neighbours)
            rank.finish_step()

    def _step(self, rank: RankTimeline, step: int, world: Communicator, neighbours: Communicator) -> Program:
        parallel = self.ranks > 1
        with rank.range("data loading"):
            self._load_data(rank, step)
        rank.fill(LAYER_BUCKET)
        rank.fill(NORM_BUCKET)
        with rank.range("forward"):
            rank.launch_all(catalog.EMBEDDING)
            rank.copy("DtoD", BOUNDARY)
            if parallel:
                yield from _exchange(rank, neighbours)
            for layer in range(self.layers):
                with rank.range(f"layer_{layer}"):
                    rank.launch_all(catalog.LAYER_FORWARD)
            rank.launch_all(catalog.HEAD_FORWARD)
        with rank.range("backward"), rank.on_autograd_thread():
            rank.work(60)
            rank.launch_all(catalog.HEAD_BACKWARD)
            if self.uneven_ms and step % self.ranks == rank.rank:
                rank.launch_all([replace(catalog.HEAD_BACKWARD[0], microseconds=1_000 * self.uneven_ms)])
            for layer in reversed(range(self.layers)):
                with rank.range(f"layer_{layer} backward"):
                    rank.launch_all(catalog.LAYER_BACKWARD)
                if parallel and layer % 2 == 0:
                    yield from _all_reduce(rank, world, LAYER_BUCKET)
            rank.launch_all(catalog.EMBEDDING_BACKWARD)
            if parallel:
                yield from _all_reduce(rank, world, NORM_BUCKET)
                yield from _reduce_scatter(rank, world)
        with rank.range("optimizer"):
            if parallel:
                rank.order(waiting=DEFAULT_STREAM, awaited=world.stream)
                for _message in range(1 + self.small_messages):
                    yield from _all_reduce(rank, world, GRADIENT_NORM)
                rank.order(waiting=DEFAULT_STREAM, awaited=world.stream)
            for _layer in range(self.layers):
                rank.launch_all(catalog.LAYER_OPTIMIZER)
            if parallel:
                yield from _all_gather(rank, world)
                yield from _all_reduce(rank, world, STATISTICS)
                rank.order(waiting=DEFAULT_STREAM, awaited=world.stream)
        with rank.range(rank.operator("aten::item")):
            rank.copy("DtoH", 4, pinned=False)
            rank.synchronize()

    def _load_data(self, rank: RankTimeline, step: int) -> None:
        start = rank.cpu
        rank.work(1_800)
        rank.export.osrt(rank.main, rank.local(start + 5_000), rank.local(rank.cpu), "sem_timedwait")
        if step == self.stalled_step:
            start = rank.cpu
            rank.block("cudaMalloc_v3020", until=start + 1_000_000 * self.stall_ms)
            rank.export.osrt(rank.main, rank.local(start + 9_000), rank.local(rank.cpu - 9_000), "ioctl")
        begin = rank.cpu
        for _tensor in ("input_ids", "labels"):
            rank.copy("HtoD", 256 * 1024, stream=COPY_STREAM)
        prefetched = rank.local(rank.cpu + 900_000)
        rank.export.nvtx_range(rank.main, rank.local(begin), prefetched, "prefetch", style=START_END, range_id=step + 1)
        rank.order(waiting=DEFAULT_STREAM, awaited=COPY_STREAM)


def training_job(
    directory: str | Path,
    ranks: int = 4,
    steps: int = 12,
    *,
    seed: int = 1,
    layers: int = 24,
    straggler: int | None = 2,
    payload: Payload = "json",
    payload_layout: NcclPayloads = NcclPayloads.SINCE_2_25,
    gpu_metrics: bool = True,
    schema: str = "3.25.0",
    hosts: int = 2,
) -> list[Path]:
    """Write the demo job and return its reports, ``rank0.sqlite`` first; see `TrainingJob` for what it contains.

    Raises `ValueError` for an impossible description (no ranks, unknown schema, binary payloads before 3.16).
    """
    job = TrainingJob(
        ranks=ranks,
        steps=steps,
        layers=layers,
        seed=seed,
        straggler=straggler,
        payload=payload,
        payload_layout=payload_layout,
        gpu_metrics=gpu_metrics,
        schema=schema,
        hosts=hosts,
    )
    return job.write(directory)


def run(programs: Sequence[Program]) -> None:
    """Run the ranks' programs side by side: a collective ends when its last rank has arrived and the data has moved."""
    waiting: dict[int, Arrival] = {}

    def advance(rank: int, end: int | None) -> None:
        try:
            waiting[rank] = next(programs[rank]) if end is None else programs[rank].send(end)
        except StopIteration:
            waiting.pop(rank, None)

    for rank in range(len(programs)):
        advance(rank, None)
    while waiting:
        members = next(
            arrival.members
            for arrival in waiting.values()
            if all(other in waiting and waiting[other].members == arrival.members for other in arrival.members)
        )
        arrivals = [waiting[rank] for rank in members]
        end = max(arrival.ready for arrival in arrivals) + max(arrival.transfer for arrival in arrivals)
        for rank in members:
            advance(rank, end)


def _set_up(rank: RankTimeline, communicators: Sequence[Communicator]) -> Program:
    """Start-up: context, streams, NCCL domain and communicators, parameters to the GPU, profiler noise."""
    export = rank.export
    export.diagnostic(0, "Profiling has started.")
    export.diagnostic(rank.local(rank.cpu), "CUDA injection initialized successfully.", process=rank.process)
    warning = "Not all NVTX events might have been collected."
    export.diagnostic(rank.local(rank.cpu) + 50_000, warning, severity=WARNING, process=rank.process)
    for name, microseconds in (("openat", 35), ("read", 220), ("mmap", 60), ("ioctl", 900)):
        start = rank.cpu
        rank.work(microseconds)
        export.osrt(rank.main, rank.local(start), rank.local(rank.cpu), name)
        rank.work(300)
    start = rank.cpu
    rank.call("cudaFree_v3020", 80_000)
    flush = rank.local(start + 2_000_000)
    export.profiler_overhead(rank.main, flush, flush + 29_000_000, "CUDA profiling data flush overhead")
    for _stream in range(3):
        rank.call("cudaStreamCreateWithFlags_v5000", 45)
    for _buffer in range(6):
        rank.call("cudaMalloc_v3020", 480)
        rank.copy("HtoD", 24 * 1024**2, pinned=False)
    rank.synchronize()
    if communicators:
        export.nvtx_domain(rank.main, rank.local(rank.cpu), NCCL_DOMAIN_ID, NCCL_DOMAIN)
        export.nvtx_thread_name(rank.autograd, rank.local(rank.cpu) + 900, "NCCL Progress 0")
        _register_payloads(rank)
    for communicator in communicators:
        yield from _init_communicator(rank, communicator)


def _register_payloads(rank: RankTimeline) -> None:
    functions = ("CommInitRankConfig", "AllReduce", "AllGather", "ReduceScatter", "Send", "Recv")
    rank.export.payload_schemas(
        NCCL_DOMAIN_ID, [payload_schema(f"nccl{function}", rank.payloads) for function in functions]
    )
    rank.export.payload_enum(NCCL_DOMAIN_ID, rank.payloads.reduction_enum, REDUCTION, REDUCTIONS)


def _init_communicator(rank: RankTimeline, communicator: Communicator) -> Program:
    """All ranks leave ncclCommInitRankConfig together."""
    values = {
        RANK: communicator.members.index(rank.rank),
        RANKS: len(communicator.members),
        CUDA_DEVICE: rank.device,
    }
    with rank.nccl("ncclCommInitRankConfig", communicator, **values):
        rank.work(60_000)
        rank.cpu = yield Arrival(communicator.members, rank.cpu, 40_000_000)


def _exchange(rank: RankTimeline, communicator: Communicator) -> Program:
    place, count = communicator.members.index(rank.rank), len(communicator.members)
    calls = [
        NcclCall("ncclSend", {MESSAGE_SIZE: BOUNDARY, PEER: (place + 1) % count}),
        NcclCall("ncclRecv", {MESSAGE_SIZE: BOUNDARY, PEER: (place - 1) % count}),
    ]
    yield from rank.collective("SendRecv", "coalesced", communicator, calls, moved=BOUNDARY)


def _all_reduce(rank: RankTimeline, communicator: Communicator, size: int) -> Program:
    calls = [NcclCall("ncclAllReduce", {MESSAGE_SIZE: size, REDUCTION: REDUCTIONS["Sum"]})]
    count = len(communicator.members)
    moved = 2 * size * (count - 1) / count
    yield from rank.collective("AllReduce", "all_reduce", communicator, calls, moved)


def _reduce_scatter(rank: RankTimeline, communicator: Communicator) -> Program:
    calls = [NcclCall("ncclReduceScatter", {MESSAGE_SIZE: EMBEDDING_SHARD, REDUCTION: REDUCTIONS["Sum"]})]
    moved = EMBEDDING_SHARD * (len(communicator.members) - 1)
    yield from rank.collective("ReduceScatter", "_reduce_scatter_base", communicator, calls, moved)


def _all_gather(rank: RankTimeline, communicator: Communicator) -> Program:
    calls = [NcclCall("ncclAllGather", {MESSAGE_SIZE: EMBEDDING_SHARD})]
    moved = EMBEDDING_SHARD * (len(communicator.members) - 1)
    yield from rank.collective("AllGather", "_all_gather_base", communicator, calls, moved)
