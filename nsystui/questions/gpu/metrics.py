"""GPU metrics: sampled counters of how well a busy GPU was used (docs/exports.md#gpu-metrics).

Lanes show them over time; `attributed` averages them over intervals such as kernel launches.

Samples identify their GPU by the machine's number (``Device.gpu``), not by the CUDA ordinal.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import sqlalchemy as sa

from nsystui.base.selection import Selection, Window
from nsystui.base.types import Condition, Expression, Floats
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.queries.conditions import of_reports, of_tasks, where
from nsystui.questions.queries.derived import rows_by_report
from nsystui.store import tables
from nsystui.store.session import Session

FAMILIES: tuple[tuple[str, str], ...] = (
    ("GR active", r"GR Active"), ("SM active", r"SMs? Active"), ("SM issue", r"SM Issue"),
    ("tensor active", r"Tensor Active"), ("DRAM read", r"DRAM Read (Throughput|Bandwidth)"),
    ("DRAM write", r"DRAM Write (Throughput|Bandwidth)"),
    ("NVLink TX", r"NVLink TX (Throughput|Bandwidth|Responses User Data)"),
    ("NVLink RX", r"NVLink RX (Throughput|Bandwidth|Responses User Data)"),
    ("PCIe TX", r"PCIe TX (Throughput|Bandwidth)"), ("PCIe RX", r"PCIe RX (Throughput|Bandwidth)"),
)  # fmt: skip
"""The metrics with a lane by default, in order: short name, and a pattern for NVIDIA's names on all chips.

Only NVLink responses count: requests contain the same bytes again, or no data.
"""

_OF_WHAT = (
    (r"Warps", "warp slots"),
    (r"Active|Issue|in Flight", "cycles"),
    (r"Throughput|Bandwidth|User Data|Protocol Data", "peak rate"),
)
"""Patterns in metric names, and the unit of 100 % (NVIDIA's User Guide, GPU metrics)."""
_LONGEST_PERIODS = 2
"""The longest gap that the next sample describes, as a multiple of the usual period."""


@dataclass(frozen=True, order=True)
class MetricSource:
    """One metric of one GPU in one report (by index)."""

    report: int
    gpu: int
    order: int  # the index of its family in ``FAMILIES``; ``len(FAMILIES)`` without a family
    metric: str  # the name in the export

    @property
    def has_lane(self) -> bool:
        """Whether it has a lane by default."""
        return self.order < len(FAMILIES)

    @property
    def family(self) -> str:
        """The short name of its family, or else its label."""
        return FAMILIES[self.order][0] if self.has_lane else self.label

    @property
    def label(self) -> str:
        """The metric without its unit: ``SMs Active [Throughput %]`` is ``SMs Active``."""
        return self.metric.partition(" [")[0]

    @property
    def unit(self) -> str:
        """The unit of its values: ``% of cycles``, ``MHz``; empty if unknown."""
        return unit_of(self.metric)

    @property
    def is_percent(self) -> bool:
        return self.unit.startswith("%")


def unit_of(metric: str) -> str:
    """Return the unit of a metric. Its name contains the unit since nsys 2024; clocks without it are in Hz."""
    name, bracket, unit = metric.partition(" [")
    if bracket and "%" not in unit:
        return unit.removesuffix("]")
    if not bracket and "Clock" in name:
        return "Hz"
    base = next((base for pattern, base in _OF_WHAT if re.search(pattern, name, re.IGNORECASE)), "")
    return f"% of {base}" if base else "%" if bracket else ""


@dataclass(frozen=True, eq=False)
class MetricLane:
    """A metric over time, in its unit: ``values``, shape ``(bins,)``, are the means of each bin's samples, else NaN;
    ``mean`` is the mean of all samples in the window."""

    source: MetricSource
    values: Floats
    mean: float | None


def metric_sources(session: Session, selection: Selection, every: bool = False) -> list[MetricSource]:
    """Scan all samples for the selected GPUs' metrics with a lane (``every``: all), by report, GPU and family."""
    table = tables.gpu_metrics
    if not session.count(table):
        return []
    query = (
        sa.select(table.c.report, table.c.gpu, table.c.metric)
        .where(*_of_gpus(session, selection), table.c.metric.is_not(None), table.c.gpu.is_not(None))
        .distinct()
    )
    sources = []
    for report, gpu, metric in rows_by_report(session, query):
        matching = (
            index for index, (_, pattern) in enumerate(FAMILIES) if re.match(pattern, metric.partition(" [")[0])
        )
        index = next(matching, len(FAMILIES)) if unit_of(metric).startswith("%") else len(FAMILIES)
        sources.append(MetricSource(report, gpu, index, metric))
    return sorted(source for source in sources if every or source.has_lane)


def metric_lanes(
    session: Session, selection: Selection, window: Window, bins: int, sources: Sequence[MetricSource] | None = None
) -> list[MetricLane]:
    """Average each metric of ``metric_sources`` over ``window`` in ``bins`` equal spans.

    ``sources``, if given, save a scan over all samples. Values are `_plausible`, missing in bins without samples.
    Raises ValueError if ``bins < 1``.
    """
    if bins < 1:
        raise ValueError(f"at least one bin is needed, not {bins}")
    lane_sources = metric_sources(session, selection) if sources is None else sources
    indices = {(source.report, source.gpu, source.metric): index for index, source in enumerate(lane_sources)}
    values = np.full((len(lane_sources), bins), np.nan)
    counts = np.zeros((len(lane_sources), bins), np.int64)
    for report, gpu, metric, bin_index, value, samples in _binned(session, window, bins, lane_sources):
        index = indices.get((report, gpu, metric))
        if index is not None:
            values[index, bin_index], counts[index, bin_index] = value, samples
    lanes = []
    for source, means, weights in zip(lane_sources, values, counts, strict=True):
        samples = int(weights.sum())
        lanes.append(MetricLane(source, means, float(np.nansum(means * weights)) / samples if samples else None))
    return lanes


def _binned(session: Session, window: Window, bins: int, sources: Sequence[MetricSource]) -> Sequence[tuple[Any, ...]]:
    table = tables.gpu_metrics
    width = window.end - window.start
    if not sources or not width:
        return []
    since = table.c.time + table.c.clock_offset - window.start
    number = (since * bins).op("//")(width).label("number")  # SQLAlchemy's own // divides as floats in this dialect
    value = _plausible(sources)
    keys = (table.c.report, table.c.gpu, table.c.metric)
    query = (
        sa.select(*keys, number, sa.func.avg(value), sa.func.count(value))
        .where(
            *where(table, Selection(window=window)),
            of_reports(table.c.report, {source.report for source in sources}),
            table.c.metric.in_(sorted({source.metric for source in sources})),
            value.is_not(None),
        )
        .group_by(*keys, number)
    )
    return list(rows_by_report(session, query))


def _plausible(sources: Sequence[MetricSource]) -> Expression:
    """Return the corrected value of a sample, because counters glitch (docs/exports.md#gpu-metrics): percentages are
    clipped to 0…100, other values below 0 are missing."""
    table = tables.gpu_metrics
    percent = sorted({source.metric for source in sources if source.is_percent})
    clipped = sa.func.least(sa.func.greatest(table.c.value, 0.0), 100.0)
    return sa.case((table.c.metric.in_(percent), clipped), (table.c.value >= 0, table.c.value), else_=sa.null())


def _of_gpus(session: Session, selection: Selection) -> list[Condition]:
    """Return conditions for samples of the selected GPUs; of all GPUs if a report does not identify them."""
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
    conditions: list[Condition] = []
    for report, gpus in sorted(used.items()):
        is_of_report: Condition = table.c.report == report
        numbers = sorted(gpu for gpu in gpus if gpu is not None)
        conditions.append(is_of_report if None in gpus else sa.and_(is_of_report, table.c.gpu.in_(numbers)))
    return [sa.or_(*conditions) if conditions else sa.false()]


# -- samples and intervals --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class MetricSamples:
    """The n samples of a metric of a GPU by time, job time; arrays of shape ``(n,)``.

    Each describes the time from ``starts`` to ``ends``, ns. ``values`` are `_plausible`, in the metric's unit;
    ``implausible`` counts samples clipped or left out.
    """

    source: MetricSource
    starts: Times
    ends: Times
    values: Floats
    implausible: int = 0

    @cached_property
    def until(self) -> Times:
        """The time described before each sample, then in total; ns, shape ``(n + 1,)``."""
        return np.append(0, np.cumsum(self.ends - self.starts))

    @cached_property
    def integral(self) -> Floats:
        """The metric's integral before each sample, then in total; shape ``(n + 1,)``."""
        return np.append(0.0, np.cumsum((self.ends - self.starts) * self.values))


def samples_of(session: Session, sources: Sequence[MetricSource]) -> Iterator[list[MetricSamples]]:
    """Read the samples of ``sources``, one GPU at a time."""
    table = tables.gpu_metrics
    for (report, gpu), group in groupby(sorted(sources), lambda source: (source.report, source.gpu)):
        gpu_sources = list(group)
        metric = sa.case({source.metric: number for number, source in enumerate(gpu_sources)}, value=table.c.metric)
        value = _plausible(gpu_sources)
        is_plausible = sa.func.coalesce(value == table.c.value, sa.false())
        query = (
            sa.select(
                (table.c.time + table.c.clock_offset).label("time"),
                metric.label("metric"),
                sa.cast(value, sa.Double).label("value"),
                is_plausible.label("is_plausible"),
            )
            .where(
                table.c.report == report,
                table.c.gpu == gpu,
                table.c.metric.in_([source.metric for source in gpu_sources]),
                table.c.time.is_not(None),
                table.c.value.is_not(None),
            )
            .order_by("time")
        )
        arrays = session.part([report]).arrays(query)
        samples: list[MetricSamples] = []
        for number, source in enumerate(gpu_sources):
            rows = arrays["metric"] == number
            starts, ends = _spans(arrays["time"][rows].astype(np.int64))
            values = np.ma.filled(arrays["value"][rows].astype(np.float64), np.nan)
            plausible = arrays["is_plausible"][rows].astype(bool)
            has_value = ~np.isnan(values)
            starts, ends = starts[has_value], ends[has_value]
            if samples and np.array_equal(starts, samples[0].starts) and np.array_equal(ends, samples[0].ends):
                starts, ends = samples[0].starts, samples[0].ends  # usual, and faster in `attributed`
            samples.append(MetricSamples(source, starts, ends, values[has_value], int((~plausible).sum())))
        yield samples


def _spans(times: Times) -> tuple[Times, Times]:
    """Return start and end of each sample's period: of usual length for the first sample and after a long gap."""
    if not len(times):
        return times, times
    gaps = np.diff(times)
    usual = int(np.median(gaps[gaps > 0])) if (gaps > 0).any() else 0
    periods = np.concatenate(([usual], np.where(gaps <= _LONGEST_PERIODS * usual, gaps, usual)))
    return times - periods, times


def attributed(metrics: Sequence[MetricSamples], starts: Times, ends: Times) -> Iterator[tuple[Floats, Floats]]:
    """Yield, for each metric, how much of each interval samples describe, ns, and the metric's integral over that time.

    Shapes ``(n,)``. The mean over intervals is the sum of integrals divided by the sum of times: samples are weighted
    by the overlap of their periods. Intervals may overlap, in any order. O(n log m) for m samples.
    """
    ends = np.maximum(starts, ends)
    searched: MetricSamples | None = None
    for samples in metrics:
        if searched is None or samples.ends is not searched.ends:
            searched, period_starts = samples, np.append(samples.starts, np.iinfo(np.int64).max)
            positions = [np.searchsorted(samples.ends, times, side="right") for times in (starts, ends)]
            partial = [
                times - np.minimum(period_starts[position], times)
                for position, times in zip(positions, (starts, ends), strict=True)
            ]
            time = (samples.until[positions[1]] + partial[1] - samples.until[positions[0]] - partial[0]).astype(
                np.float64
            )
        values = np.append(samples.values, 0.0)
        first, last = (
            samples.integral[position] + part * values[position]
            for position, part in zip(positions, partial, strict=True)
        )
        yield time, last - first


def samples_in(samples: MetricSamples, starts: Times, ends: Times) -> Times:
    """Count the samples in each interval, including its end but not its start; shape ``(n,)``."""
    count: Times = np.searchsorted(samples.ends, ends, "right") - np.searchsorted(samples.ends, starts, "right")
    return count
