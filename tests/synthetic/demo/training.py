"""The demo job: data-parallel training of a small language model on two hosts, one report a rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import ClassVar, Final

from synthetic.demo.job import DemoJob, OpenRank, all_reduce, set_up
from synthetic.demo.model import (
    EMBEDDING,
    EMBEDDING_BACKWARD,
    HEAD_BACKWARD,
    HEAD_FORWARD,
    LAYER_BACKWARD,
    LAYER_FORWARD,
    LAYER_OPTIMIZER,
)
from synthetic.demo.nccl import MESSAGE_SIZE, PEER, REDUCTION, REDUCTIONS
from synthetic.demo.stacks import ALLOCATION, COLLATE, PIN_MEMORY, QUEUE
from synthetic.demo.timeline import COPY_STREAM, GPUS_PER_HOST, Communicator, DemoNcclCall, Program, RankTimeline
from synthetic.writing.host import UNINTERRUPTIBLE
from synthetic.writing.target import DEFAULT_STREAM
from synthetic.writing.writer import PINNED, START_END

BOUNDARY: Final = 512 * 1024
"""Bytes sent to, and received from, a neighbour each step (SendRecv)."""
LAYER_BUCKET: Final = 48 * 1024**2
"""Bytes of a gradient bucket: two layers (AllReduce, > 16 MB)."""
NORM_BUCKET: Final = 4 * 1024**2
"""Bytes of the last, small gradient bucket (AllReduce, 1–16 MB)."""
EMBEDDING_SHARD: Final = 8 * 1024**2
"""Bytes per rank, of up to 16, of the sharded embedding (ReduceScatter of gradients, AllGather of parameters)."""
GRADIENT_NORM: Final = 4
"""Bytes of the gradient norm (AllReduce, < 64 KB)."""
STATISTICS: Final = 192 * 1024
"""Bytes of the step's statistics (AllReduce, 64 KB–1 MB)."""
MEMORY: Final = (2 * 1024**3, 2 * 1024**3, 4 * 1024**3, 4 * 1024**3, 4 * 1024**3, 6 * 1024**3)
"""Bytes of the GPU's memory allocated at start-up: parameters, gradients, optimizer states, and activations."""
GROWN_MEMORY: Final = 12 * 1024**3
"""Bytes that the stalled step allocates."""
BATCH: Final = 512 * 1024
"""Bytes of pinned memory for the batch of a step."""


@dataclass(frozen=True)
class TrainingJob(DemoJob):
    """The properties of the demo job. Every number that follows from it is a property, so that tests can ask for it."""

    command: ClassVar = ("python", "train.py", "--model", "demo-1b", "--global-batch", "512")

    ranks: int = 4
    steps: int = 12
    layers: int = 24
    hosts: int = 2
    straggler: int | None = 2
    """The rank whose GPU is slow; None (or a rank that does not exist): no slow rank."""
    straggler_factor: float = 1.15
    stall_step: int | None = None
    """The step in which every rank waits in cudaMalloc; None: the middle step."""
    stall_ms: int = 120
    slow_host: int | None = None
    """The number of a host whose GPUs are all slower by ``straggler_factor``."""
    small_messages: int = 0
    """The number of additional consecutive AllReduce of `GRADIENT_NORM` bytes in every step."""
    uneven_ms: float = 0.0
    """The time of an additional kernel in backward, on each rank in turn."""

    @classmethod
    def of_any_size(cls, ranks: int, steps: int) -> TrainingJob:
        """Return a job with hosts and a model size that fit its ranks: 13 MB for 4, below 1 GB for 1,024."""
        hosts = max(2, -(-ranks // GPUS_PER_HOST))
        layers = min(cls.layers, max(2, cls.layers * 2 * GPUS_PER_HOST // max(ranks, 1)))
        return cls(ranks=ranks, steps=steps, layers=layers, hosts=hosts)

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
            ("ReduceScatter", embedding_shard(self.ranks)),
            *[("AllReduce", GRADIENT_NORM)] * (1 + self.small_messages),
            ("AllGather", embedding_shard(self.ranks)),
            ("AllReduce", STATISTICS),
        )

    @property
    def compute_kernels_per_step(self) -> int:
        """Kernels of one step that are not NCCL's: 36 a layer and 14 more."""
        per_layer = len(LAYER_FORWARD) + len(LAYER_BACKWARD) + len(LAYER_OPTIMIZER)
        once = (EMBEDDING, HEAD_FORWARD, HEAD_BACKWARD, EMBEDDING_BACKWARD)
        return per_layer * self.layers + sum(map(len, once))

    def speed(self, rank: int) -> float:
        is_slow = rank == self.straggler or self.layout.host(rank) == self.slow_host
        return self.straggler_factor if is_slow else 1.0

    def program(self, rank: OpenRank) -> Program:
        timeline = rank.timeline
        world = self.layout.world(self.seed)
        neighbours = self.layout.neighbours(timeline.rank, self.seed)
        yield from set_up(timeline, [world, neighbours] if self.ranks > 1 else [], MEMORY)
        timeline.compute_for(20)
        rank.finish_step()
        timeline.export.nvtx_mark(timeline.main, timeline.local(timeline.cpu), "epoch 0")
        # Scripts print their environment, which must not be shown.
        printed = [f"{name}={value}" for name, value in timeline.export.session.environment.items()]
        printed.append(f"{_clock_time(timeline)} INFO training demo-1b on {self.ranks} ranks")
        for step in range(self.steps):
            with timeline.range(f"step {step}"):
                yield from self._step(timeline, step, world, neighbours)
            printed.append(f"{_clock_time(timeline)} INFO step {step} loss {11 / (1 + 0.1 * step):.3f}")
            if step == self.steps - 1:
                timeline.sleep(timeline.main, timeline.cpu)
            rank.finish_step()
        timeline.export.output(timeline.process, "\n".join([*printed, ""]))

    def _step(self, rank: RankTimeline, step: int, world: Communicator, neighbours: Communicator) -> Program:
        parallel = self.ranks > 1
        with rank.range("data loading"):
            self._load_data(rank, step)
        rank.fill(LAYER_BUCKET)
        rank.fill(NORM_BUCKET)
        with rank.range("forward"):
            rank.launch_all(EMBEDDING)
            rank.copy("DtoD", BOUNDARY)
            if parallel:
                yield from _exchange(rank, neighbours)
            for layer in range(self.layers):
                with rank.range(f"layer_{layer}"):
                    rank.launch_all(LAYER_FORWARD)
            rank.launch_all(HEAD_FORWARD)
        with rank.range("backward"), rank.on_autograd_thread():
            rank.compute_for(60)
            rank.launch_all(HEAD_BACKWARD)
            if self.uneven_ms and step % self.ranks == rank.rank:
                rank.launch_all([replace(HEAD_BACKWARD[0], microseconds=1_000 * self.uneven_ms)])
            for layer in reversed(range(self.layers)):
                with rank.range(f"layer_{layer} backward"):
                    rank.launch_all(LAYER_BACKWARD)
                if parallel and layer % 2 == 0:
                    yield from all_reduce(rank, world, LAYER_BUCKET)
            rank.launch_all(EMBEDDING_BACKWARD)
            if parallel:
                yield from all_reduce(rank, world, NORM_BUCKET)
                yield from _exchange_shards(rank, world, "ReduceScatter", **{REDUCTION: REDUCTIONS["Sum"]})
        with rank.range("optimizer"):
            if parallel:
                rank.order(waiting=DEFAULT_STREAM, awaited=world.stream)
                for _message in range(1 + self.small_messages):
                    yield from all_reduce(rank, world, GRADIENT_NORM)
                rank.order(waiting=DEFAULT_STREAM, awaited=world.stream)
            for _layer in range(self.layers):
                rank.launch_all(LAYER_OPTIMIZER)
            if parallel:
                yield from _exchange_shards(rank, world, "AllGather")
                yield from all_reduce(rank, world, STATISTICS)
                rank.order(waiting=DEFAULT_STREAM, awaited=world.stream)
        with rank.range(rank.operator("aten::item")):
            rank.copy("DtoH", 4, pinned=False)
            rank.synchronize()

    def _load_data(self, rank: RankTimeline, step: int) -> None:
        start = rank.cpu
        with rank.asleep():
            rank.compute_for(1_800)
        rank.export.osrt(rank.main, rank.local(start + 5_000), rank.local(rank.cpu), "sem_timedwait", stack=QUEUE)
        rank.load(start + 12_000, rank.cpu - 20_000, COLLATE)
        self._pin_batch(rank, step)
        if step == self.stalled_step:
            start = rank.cpu
            with rank.asleep(UNINTERRUPTIBLE):
                correlation = rank.block("cudaMalloc_v3020", until=start + 1_000_000 * self.stall_ms)
            rank.allocate(GROWN_MEMORY, correlation)
            begin, end = rank.local(start + 9_000), rank.local(rank.cpu - 9_000)
            rank.export.osrt(rank.main, begin, end, "ioctl", stack=ALLOCATION)
            rank.load(start + 30_000, rank.cpu - 30_000, PIN_MEMORY)
        begin = rank.cpu
        for _tensor in ("input_ids", "labels"):
            rank.copy("HtoD", 256 * 1024, stream=COPY_STREAM)
        prefetched = rank.local(rank.cpu + 900_000)
        rank.export.nvtx_range(rank.main, rank.local(begin), prefetched, "prefetch", style=START_END, range_id=step + 1)
        rank.order(waiting=DEFAULT_STREAM, awaited=COPY_STREAM)

    def _pin_batch(self, rank: RankTimeline, step: int) -> None:
        """Free the data loader's pinned buffer of the previous step, and allocate a new buffer."""
        time = rank.local(rank.cpu - 30_000)
        buffers = [0x7F10_0000_0000 + number % 2 * BATCH for number in (step - 1, step)]
        for address, is_free in zip(buffers, (True, False), strict=True):
            if step or not is_free:
                rank.export.gpu_memory(
                    rank.process, rank.device, time, BATCH, address=address, is_free=is_free, memory=PINNED
                )
                time += 5_000


def _clock_time(rank: RankTimeline) -> str:
    """Return the present as a log prints it."""
    seconds, rest = divmod(rank.export.session.utc_epoch_ns + rank.local(rank.cpu), 10**9)
    moment = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return f"{moment},{rest // 10**6:03d}"


def _exchange(rank: RankTimeline, communicator: Communicator) -> Program:
    position, count = communicator.members.index(rank.rank), len(communicator.members)
    calls = [
        DemoNcclCall("ncclSend", {MESSAGE_SIZE: BOUNDARY, PEER: (position + 1) % count}),
        DemoNcclCall("ncclRecv", {MESSAGE_SIZE: BOUNDARY, PEER: (position - 1) % count}),
    ]
    yield from rank.collective("SendRecv", "coalesced", communicator, calls, moved=BOUNDARY)


def embedding_shard(ranks: int) -> int:
    """Return the bytes of each rank's part of the embedding."""
    return EMBEDDING_SHARD * 16 // max(ranks, 16)


def _exchange_shards(rank: RankTimeline, communicator: Communicator, operation: str, **values: int) -> Program:
    """Run an AllGather or a ReduceScatter of the sharded embedding; `values`: its payload except the size."""
    shard = embedding_shard(len(communicator.members))
    label = {"AllGather": "_all_gather_base", "ReduceScatter": "_reduce_scatter_base"}[operation]
    calls = [DemoNcclCall(f"nccl{operation}", {MESSAGE_SIZE: shard, **values})]
    yield from rank.collective(operation, label, communicator, calls, moved=shard * (len(communicator.members) - 1))
