"""Where the ranks of the demo job live: hosts, GPUs, processes, threads, clocks, environment."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from random import Random
from typing import Final

from .nccl import NcclPayloads
from .sampling import GPU_METRICS, NIC_METRICS, OLD_GPU_METRICS
from .target import Session, Thread
from .timeline import COPY_STREAM, Communicator, RankTimeline
from .writer import ExportWriter

PLANTED_SECRET: Final = "demo-secret"
"""Value of AWS_SECRET_ACCESS_KEY in every captured environment: it must never appear on a screen or in a report."""

JOB_START: Final = 1_780_000_000_000_000_000
"""UTC ns around which the sessions of the ranks start."""
CLOCK_SKEW: Final = 85_000
"""ns by which each further host's clock is ahead, as NTP leaves it; it shows up in ``utcEpochNs``."""

WORLD_STREAM: Final = 28
NEIGHBOUR_STREAM: Final = 32


@dataclass(frozen=True, slots=True)
class JobLayout:
    """Ranks fill the hosts one after the other."""

    ranks: int
    hosts: int

    @property
    def ranks_per_host(self) -> int:
        """GPUs used on a (full) host."""
        return -(-self.ranks // self.hosts)

    def host(self, rank: int) -> int:
        """Index of the host of `rank`."""
        return rank // self.ranks_per_host

    def hostname(self, rank: int) -> str:
        """Name of the host of `rank`: ``gpu-a01``, ``gpu-a02`` …"""
        return f"gpu-a{self.host(rank) + 1:02}"

    def local_rank(self, rank: int) -> int:
        """Rank within the host; also the system's number of its GPU, for each process sees only that one."""
        return rank % self.ranks_per_host

    def world(self, seed: int) -> Communicator:
        """The communicator of all ranks; on more than one host the network limits it."""
        bandwidth = 60e9 if self.host(self.ranks - 1) else 320e9
        return Communicator(_hash(seed, "world"), tuple(range(self.ranks)), WORLD_STREAM, bandwidth)

    def neighbours(self, rank: int, seed: int) -> Communicator:
        """The communicator in which `rank` exchanges with its neighbours: its host, or all if it is alone there."""
        host = self.host(rank)
        members = tuple(other for other in range(self.ranks) if self.host(other) == host)
        lonely = any(self._alone(other) for other in range(self.ranks))
        if lonely:
            members = tuple(range(self.ranks))
        bandwidth = 60e9 if lonely else 300e9
        return Communicator(_hash(seed, f"neighbours {members}"), members, NEIGHBOUR_STREAM, bandwidth)

    def _alone(self, rank: int) -> bool:
        host = self.host(rank)
        return sum(self.host(other) == host for other in range(self.ranks)) == 1

    def environment(self, rank: int) -> dict[str, str]:
        """The captured environment of `rank`. HOSTNAME is the launch node's on every rank, as on real clusters."""
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
    """A thread that sleeps in one OS call after the other."""

    thread: Thread
    call: str
    period: int
    time: int

    def watch(self, export: ExportWriter, until: int) -> None:
        """Write its calls that end by `until` (ns since the session start)."""
        while self.time + self.period <= until:
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
        """Write what is known up to the CPU's present: nothing earlier can be added any more."""
        timeline = self.timeline
        now = timeline.local(timeline.cpu)
        for watcher in self.watchers:
            watcher.watch(timeline.export, now)
        if self.gpu_metrics:
            timeline.activity.sample_gpu(timeline.export, self.gpu_id, now)
        if self.nic_metrics:
            timeline.activity.sample_nic(timeline.export, 0, now)
        timeline.export.flush(until=now - 2 * max(watcher.period for watcher in self.watchers))


def rank_session(layout: JobLayout, rank: int, *, include_json: bool, include_blobs: bool) -> Session:
    """The session of one rank's report: sessions start up to 29 ms apart."""
    started = JOB_START + 1_000_000 * ((7 + 13 * rank) % 29)
    return Session(
        hostname=layout.hostname(rank),
        utc_epoch_ns=started + CLOCK_SKEW * layout.host(rank),
        command=("python", "train.py", "--model", "demo-1b", "--global-batch", "512"),
        environment=layout.environment(rank),
        include_json=include_json,
        include_blobs=include_blobs,
    )


def open_rank(
    export: ExportWriter,
    layout: JobLayout,
    rank: int,
    *,
    seed: int,
    speed: float,
    payloads: NcclPayloads,
    gpu_metrics: bool,
) -> OpenRank:
    """Declare machine, process and threads in `export` and return the rank, ready to run."""
    pid = 41_000 + 37 * rank
    process = export.process(pid, "python")
    main, autograd, watchdog, events = (
        export.thread(process, pid + offset, name)
        for offset, name in ((0, "python"), (141, "pt_autograd_0"), (97, "pt_nccl_watchdg"), (23, "cuda-EvtHandlr"))
    )
    gpu_id = layout.local_rank(rank)
    for number in range(layout.ranks_per_host):
        export.gpu(number)
    export.cuda_context(process)
    export.cuda_device(process, cuda_id=0, gpu_id=gpu_id)
    export.cuda_stream(process, COPY_STREAM)
    export.cuda_stream(process, WORLD_STREAM, name="nccl world")
    export.cuda_stream(process, NEIGHBOUR_STREAM, name="nccl neighbours")
    if gpu_metrics:
        export.gpu_metric_names(gpu_id, GPU_METRICS if export.version >= (3, 13) else OLD_GPU_METRICS)
    nic_metrics = gpu_metrics and export.has("NET_NIC_METRIC")
    if nic_metrics:
        export.nic(0, "mlx5_0", NIC_METRICS)
    timeline = RankTimeline(
        rank=rank,
        export=export,
        process=process,
        main=main,
        autograd=autograd,
        origin=export.session.utc_epoch_ns - CLOCK_SKEW * layout.host(rank),
        speed=speed,
        payloads=payloads,
        random=Random(f"{seed}/{rank}"),
    )
    watchers = (
        Watcher(events, "poll", 100_000_000, 30_000_000),
        Watcher(watchdog, "pthread_cond_timedwait", 50_000_000, 0),
    )
    return OpenRank(timeline, watchers, gpu_id, gpu_metrics, nic_metrics)


def _hash(seed: int, name: str) -> int:
    """A communicator's hash: 64 bits, often too large for SQLite's signed integers, as in reality."""
    digest = hashlib.md5(f"{seed}/{name}".encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:8], "little") | 1 << 63
