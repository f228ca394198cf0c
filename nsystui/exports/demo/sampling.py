"""Sampled metrics that agree with what ran: GPU metrics from the activity of the GPU, network metrics from NCCL."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from .writer import ExportWriter

GPU_PERIOD: Final = 5_000_000
"""ns between GPU samples: 200 Hz."""
NIC_PERIOD: Final = 10_000_000
"""ns between network samples."""

GPU_METRICS: Final = (
    "GPC Clock Frequency [MHz]",
    "GR Active [Throughput %]",
    "SMs Active [Throughput %]",
    "SM Issue [Throughput %]",
    "Tensor Active [Throughput %]",
    "DRAM Read Bandwidth [Throughput %]",
    "DRAM Write Bandwidth [Throughput %]",
    "NVLink TX Bandwidth [Throughput %]",
    "NVLink RX Bandwidth [Throughput %]",
    "PCIe TX Throughput [Throughput %]",
    "PCIe RX Throughput [Throughput %]",
)
OLD_GPU_METRICS: Final = (
    "GPC Clock Frequency",
    "GR Active",
    "SM Active",
    "SM Issue",
    "Tensor Active",
    "DRAM Read Throughput",
    "DRAM Write Throughput",
    "NVLink TX Responses User Data",
    "NVLink RX Responses User Data",
    "PCIe TX Throughput",
    "PCIe RX Throughput",
)
"""The same metrics as nsys called them until 2023 (schema < 3.13)."""

NIC_METRICS: Final = (
    ("IB: Bytes sent", "bytes/ms"),
    ("IB: Bytes received", "bytes/ms"),
    ("IB: Send waits", "ticks/ms"),
)
_NIC_BYTES_PER_MS: Final = 45_000_000
"""A 400 Gb/s card at 90 %."""
_NCCL_SHARE_OF_SMS: Final = 0.16
"""24 of the 132 multiprocessors run NCCL's channels, also while they only wait."""


@dataclass(slots=True)
class _Bin:
    """Busy ns of each kind in one sampling period, weighted by how much of the unit is used."""

    compute: float = 0.0
    tensor: float = 0.0
    dram: float = 0.0
    nccl: float = 0.0
    link: float = 0.0
    pcie_in: float = 0.0


@dataclass
class Activity:
    """What one GPU did, by sampling period. Times are ns since the session start."""

    bins: defaultdict[int, _Bin] = field(default_factory=lambda: defaultdict(_Bin))
    link: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    sampled: int = 0
    nic_sampled: int = 0

    def compute(self, start: int, end: int, tensor: float, dram: float) -> None:
        """A kernel ran; `tensor` and `dram` are the shares of the units that it used."""
        for number, length in _periods(start, end, GPU_PERIOD):
            found = self.bins[number]
            found.compute += length
            found.tensor += length * tensor
            found.dram += length * dram

    def communicate(self, start: int, end: int, transfer: int) -> None:
        """An NCCL kernel ran; data moved only in its last `transfer` ns, before that it waited for its peers."""
        for number, length in _periods(start, end, GPU_PERIOD):
            self.bins[number].nccl += length
        for number, length in _periods(end - transfer, end, GPU_PERIOD):
            self.bins[number].link += length
        for number, length in _periods(end - transfer, end, NIC_PERIOD):
            self.link[number] += length

    def receive(self, start: int, end: int) -> None:
        """A copy from the host ran."""
        for number, length in _periods(start, end, GPU_PERIOD):
            self.bins[number].pcie_in += length

    def sample_gpu(self, export: ExportWriter, gpu_id: int, until: int) -> None:
        """Write the GPU samples of all periods that end by `until`, and forget those periods."""
        while (self.sampled + 1) * GPU_PERIOD <= until:
            found = self.bins.pop(self.sampled, None) or _Bin()
            self.sampled += 1
            compute, nccl = found.compute / GPU_PERIOD, found.nccl / GPU_PERIOD
            tensor, dram = found.tensor / GPU_PERIOD, found.dram / GPU_PERIOD
            link, pcie = found.link / GPU_PERIOD, found.pcie_in / GPU_PERIOD
            busy = max(compute, nccl)
            clock = 1980 if busy < 0.5 else 1755  # a power limit lowers the clock under load
            if export.version < (3, 13):
                clock *= 1_000_000  # measured in an export of 2023: Hz, although nothing says so
            percentages = (
                100 * busy,
                100 * (0.97 * compute + _NCCL_SHARE_OF_SMS * nccl * (1 - compute)),
                42 * compute + 3 * nccl,
                100 * tensor,
                62 * dram + 4 * link,
                38 * dram + 4 * link,
                78 * link,
                78 * link,
                2 * link + busy,
                3 * link + 85 * pcie,
            )
            values = [clock, *(min(int(percentage), 100) for percentage in percentages)]
            export.gpu_metric(gpu_id, self.sampled * GPU_PERIOD, values)

    def sample_nic(self, export: ExportWriter, nic_id: int, until: int) -> None:
        """Write the network samples of all periods that end by `until`, and forget those periods."""
        while (self.nic_sampled + 1) * NIC_PERIOD <= until:
            share = self.link.pop(self.nic_sampled, 0.0) / NIC_PERIOD
            rate = int(share * _NIC_BYTES_PER_MS)
            start = self.nic_sampled * NIC_PERIOD
            export.nic_metric(nic_id, start, start + NIC_PERIOD, (rate, rate, int(share * 900)))
            self.nic_sampled += 1


def _periods(start: int, end: int, period: int) -> list[tuple[int, int]]:
    """The part of [start, end) in each sampling period: (number of the period, ns)."""
    first, last = start // period, (end - 1) // period
    if first == last:
        return [(first, end - start)]
    return [
        (number, min(end, (number + 1) * period) - max(start, number * period)) for number in range(first, last + 1)
    ]
