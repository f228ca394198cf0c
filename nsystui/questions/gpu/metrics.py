"""GPU metrics over time: the sampled counters that say how well a busy GPU was used (docs/exports.md#gpu-metrics).

A sample belongs to a GPU by the machine's own number (``Device.gpu``), not by its CUDA ordinal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.selection import Selection, Window
from nsystui.questions.conditions import Condition, of_tasks, where
from nsystui.store import tables
from nsystui.store.session import Session

FAMILIES: tuple[tuple[str, str], ...] = (
    ("GR active", r"GR Active"),
    ("SM active", r"SMs? Active"),
    ("SM issue", r"SM Issue"),
    ("tensor active", r"Tensor Active"),
    ("DRAM read", r"DRAM Read (Throughput|Bandwidth)"),
    ("DRAM write", r"DRAM Write (Throughput|Bandwidth)"),
    ("NVLink TX", r"NVLink TX (Throughput|Bandwidth|(Requests|Responses) User Data)"),
    ("NVLink RX", r"NVLink RX (Throughput|Bandwidth|(Requests|Responses) User Data)"),
    ("PCIe TX", r"PCIe TX (Throughput|Bandwidth)"),
    ("PCIe RX", r"PCIe RX (Throughput|Bandwidth)"),
)
"""The metrics that get a lane, in order: our name, and the beginnings of NVIDIA's names on the various chips."""


@dataclass(frozen=True, order=True)
class MetricSource:
    """One metric of one GPU in one report (by index)."""

    report: int
    gpu: int
    place: int
    """The place of its family in ``FAMILIES``."""
    metric: str
    """The name that nsys gives it."""

    @property
    def family(self) -> str:
        return FAMILIES[self.place][0]

    @property
    def label(self) -> str:
        """The metric without its unit: ``SMs Active [Throughput %]`` is ``SMs Active``."""
        return self.metric.partition(" [")[0]


@dataclass(frozen=True, eq=False)
class MetricLane:
    """A metric over time, percent: ``values`` (shape ``(bins,)``) is the mean of the samples of each bin, NaN where
    there is none; ``mean`` is that of all samples in the window, ``None`` where there is none."""

    source: MetricSource
    values: NDArray[np.float64]
    mean: float | None


def metric_sources(session: Session, selection: Selection) -> list[MetricSource]:
    """The metrics of the selected GPUs that get a lane, by report, GPU and family; a scan over all samples."""
    table = tables.gpu_metrics
    if not session.count(table):
        return []
    query = (
        sa.select(table.c.report, table.c.gpu, table.c.metric)
        .where(*_of_gpus(session, selection), table.c.metric.is_not(None), table.c.gpu.is_not(None))
        .distinct()
    )
    found = [
        MetricSource(report, gpu, place, metric)
        for report, gpu, metric in session.rows(query)
        if (place := _family(metric)) is not None
    ]
    return sorted(found)


def metric_lanes(
    session: Session,
    selection: Selection,
    window: Window,
    bins: int,
    sources: Sequence[MetricSource] | None = None,
) -> list[MetricLane]:
    """Each metric of ``metric_sources`` over ``window`` in ``bins`` equal spans, percent.

    Give ``sources`` again when only the window changes: it saves a scan over all samples. Values below 0 count as 0
    and above 100 as 100, for the counters glitch (docs/exports.md#gpu-metrics). A sample says what was since the one
    before it, so bins shorter than the sampling period are mostly missing. Raises ``ValueError`` where ``bins < 1``.
    """
    if bins < 1:
        raise ValueError(f"at least one bin is needed, not {bins}")
    chosen = metric_sources(session, selection) if sources is None else sources
    places = {(source.report, source.gpu, source.metric): number for number, source in enumerate(chosen)}
    values = np.full((len(chosen), bins), np.nan)
    counts = np.zeros((len(chosen), bins), np.int64)
    for report, gpu, metric, number, value, samples in _binned(session, window, bins, chosen):
        place = places.get((report, gpu, metric))
        if place is not None:
            values[place, number], counts[place, number] = value, samples
    return [MetricLane(source, values[n], _mean(values[n], counts[n])) for n, source in enumerate(chosen)]


def _binned(session: Session, window: Window, bins: int, sources: Sequence[MetricSource]) -> Sequence[tuple[Any, ...]]:
    """(report, gpu, metric, bin, mean, samples) of every bin that has samples."""
    table = tables.gpu_metrics
    width = window.end - window.start
    if not sources or not width:
        return []
    since = table.c.time + table.c.clock_offset - window.start
    number = (since * bins).op("//")(width).label("number")  # SQLAlchemy's own // divides as floats in this dialect
    clamped = sa.func.least(sa.func.greatest(table.c.value, 0.0), 100.0)
    keys = (table.c.report, table.c.gpu, table.c.metric)
    query = (
        sa.select(*keys, number, sa.func.avg(clamped), sa.func.count())
        .where(
            *where(table, Selection(window=window)),
            table.c.report.in_(sorted({source.report for source in sources})),
            table.c.metric.in_(sorted({source.metric for source in sources})),
            table.c.value.is_not(None),
        )
        .group_by(*keys, number)
    )
    return session.rows(query)


def _mean(values: NDArray[np.float64], counts: NDArray[np.int64]) -> float | None:
    samples = int(counts.sum())
    return float(np.nansum(values * counts)) / samples if samples else None


def _family(metric: str) -> int | None:
    """The place of a metric in ``FAMILIES``; ``None`` for what has no lane or is no percentage."""
    name, bracket, unit = metric.partition(" [")
    if bracket and "%" not in unit:
        return None
    return next((place for place, (_, pattern) in enumerate(FAMILIES) if re.match(pattern, name)), None)


def _of_gpus(session: Session, selection: Selection) -> list[Condition]:
    """Samples of the GPUs that the selected tasks and devices used; all GPUs of a report that does not record it."""
    if selection.tasks is None and selection.devices is None:
        return []
    devices = tables.devices
    query = sa.select(devices.c.report, devices.c.gpu).where(devices.c.process.is_not(None))
    if selection.tasks is not None:
        query = query.where(of_tasks(devices, selection.tasks))
    if selection.devices is not None:
        query = query.where(devices.c.device.in_(sorted(selection.devices)))
    used: dict[int, set[int | None]] = {}
    for report, gpu in session.rows(query):
        used.setdefault(report, set()).add(gpu)
    table = tables.gpu_metrics
    choices: list[Condition] = []
    for report, gpus in sorted(used.items()):
        of_report: Condition = table.c.report == report
        known = sorted(gpu for gpu in gpus if gpu is not None)
        choices.append(of_report if None in gpus else sa.and_(of_report, table.c.gpu.in_(known)))
    return [sa.or_(*choices) if choices else sa.false()]
