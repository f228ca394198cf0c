"""The rows of the canonical table of devices, which no native table has as such: who used which GPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nsystui.exports import canonical, metadata
from nsystui.exports.identifiers import pid_of
from nsystui.exports.metadata import Metadata

WORK_TABLES = (canonical.KERNELS.name, canonical.MEMORY_OPS.name, canonical.GRAPH_LAUNCHES.name)
"""The canonical tables whose rows a GPU worked on."""


def device_rows(facts: Metadata, used: Iterable[tuple[int, int]]) -> list[tuple[Any, ...]]:
    """A row for each (process, device) of ``used``, and one without a process for each other GPU."""
    by_number = {gpu.gpu: gpu for gpu in facts.gpus}
    by_ordinal = {gpu.cuda_device: gpu for gpu in facts.gpus if gpu.cuda_device is not None}
    told = {(device.pid, device.device): device.gpu for device in facts.cuda_devices}
    rows: list[tuple[Any, ...]] = []
    placed = set()
    for process, device in used:
        pid = pid_of(process)
        number = told.get((pid, device))
        gpu = by_number.get(number) if number is not None else by_ordinal.get(device) or by_number.get(device)
        number = gpu.gpu if gpu else number
        placed.add(number)
        rows.append((process, device, number, *_gpu_facts(gpu)))
    rows += [(None, None, gpu.gpu, *_gpu_facts(gpu)) for gpu in facts.gpus if gpu.gpu not in placed]
    return rows


def _gpu_facts(gpu: metadata.Gpu | None) -> tuple[Any, ...]:
    if gpu is None:
        return (None, None, None, None, None, None, None)
    names = (gpu.name or None, gpu.uuid or None, gpu.bus or None, gpu.chip or None)
    return (*names, gpu.sm_count, gpu.total_memory, gpu.numa)
