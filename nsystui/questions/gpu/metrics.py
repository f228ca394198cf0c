"""GPU metrics: the sampled counters that say how well a busy GPU was used (docs/exports.md#gpu-metrics).

Over time they are lanes; `attributed` gives their means over any intervals, such as the launches of a kernel.

A sample belongs to a GPU by the machine's own number (``Device.gpu``), not by its CUDA ordinal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.selection import Selection, Window
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.queries.conditions import Condition, of_reports, of_tasks, where
from nsystui.questions.queries.derived import rows_by_report
from nsystui.store import tables
from nsystui.store.session import Session

FAMILIES: tuple[tuple[str, str], ...] = (
    ("GR active", r"GR Active"),
    ("SM active", r"SMs? Active"),
    ("SM issue", r"SM Issue"),
    ("tensor active", r"Tensor Active"),
    ("DRAM read", r"DRAM Read (Throughput|Bandwidth)"),
    ("DRAM write", r"DRAM Write (Throughput|Bandwidth)"),
    ("NVLink TX", r"NVLink TX (Throughput|Bandwidth|Responses User Data)"),
    ("NVLink RX", r"NVLink RX (Throughput|Bandwidth|Responses User Data)"),
    ("PCIe TX", r"PCIe TX (Throughput|Bandwidth)"),
    ("PCIe RX", r"PCIe RX (Throughput|Bandwidth)"),
)
"""The metrics that get a lane unasked, in order: our name, and the beginnings of NVIDIA's names on all chips.

Of NVLink's data those of the responses to reads and writes: requests hold the same bytes a second time, or none.
"""

_OF_WHAT = (
    (r"Warps", "warp slots"),
    (r"Active|Issue|in Flight", "cycles"),
    (r"Throughput|Bandwidth|User Data|Protocol Data", "peak rate"),
)
"""What a percentage is of, by what is in its name (NVIDIA's User Guide, GPU metrics)."""
_LONGEST_PERIODS = 2
"""A sample describes the time since the one before it, but no more than so many usual periods: what is longer was not
recorded."""


@dataclass(frozen=True, order=True)
class MetricSource:
    """One metric of one GPU in one report (by index)."""

    report: int
    gpu: int
    place: int
    """The place of its family in ``FAMILIES``, behind all of them where it has none."""
    metric: str
    """The name that nsys gives it."""

    @property
    def has_lane(self) -> bool:
        """Whether it gets a lane unasked."""
        return self.place < len(FAMILIES)

    @property
    def family(self) -> str:
        """Our name of what it measures, or its label where we have none."""
        return FAMILIES[self.place][0] if self.has_lane else self.label

    @property
    def label(self) -> str:
        """The metric without its unit: ``SMs Active [Throughput %]`` is ``SMs Active``."""
        return self.metric.partition(" [")[0]

    @property
    def unit(self) -> str:
        """The unit of its values: ``% of cycles``, ``MHz``; empty where nothing tells it."""
        return unit_of(self.metric)

    @property
    def is_percent(self) -> bool:
        """Whether its values are percentages."""
        return self.unit.startswith("%")


def unit_of(metric: str) -> str:
    """Return the unit of a metric by its name, in which nsys records it since 2024; earlier clocks are in Hz."""
    name, bracket, unit = metric.partition(" [")
    if bracket and "%" not in unit:
        return unit.removesuffix("]")
    if not bracket and "Clock" in name:
        return "Hz"
    what = next((what for pattern, what in _OF_WHAT if re.search(pattern, name, re.IGNORECASE)), "")
    return f"% of {what}" if what else "%" if bracket else ""


@dataclass(frozen=True, eq=False)
class MetricLane:
    """A metric over time, in its unit: ``values`` (shape ``(bins,)``) is the mean of the samples of each bin, NaN where
    there is none; ``mean`` is that of all samples in the window, ``None`` where there is none."""

    source: MetricSource
    values: NDArray[np.float64]
    mean: float | None


def metric_sources(session: Session, selection: Selection, every: bool = False) -> list[MetricSource]:
    """List the metrics of the selected GPUs that get a lane, or ``every`` one, by report, GPU and family.

    A scan over all samples.
    """
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
            place for place, (_, pattern) in enumerate(FAMILIES) if re.match(pattern, metric.partition(" [")[0])
        )
        place = next(matching, len(FAMILIES)) if unit_of(metric).startswith("%") else len(FAMILIES)
        sources.append(MetricSource(report, gpu, place, metric))
    return sorted(one for one in sources if every or one.has_lane)


def metric_lanes(
    session: Session, selection: Selection, window: Window, bins: int, sources: Sequence[MetricSource] | None = None
) -> list[MetricLane]:
    """Average each metric of ``metric_sources`` over ``window`` in ``bins`` equal spans.

    Give ``sources`` again when only the window changes: it saves a scan over all samples. Values are `_plausible`
    ones. A sample says what was since the one before it, so bins shorter than the sampling period are mostly missing.
    Raises ``ValueError`` where ``bins < 1``.
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
    lanes = []
    for source, own, weights in zip(chosen, values, counts, strict=True):
        samples = int(weights.sum())
        lanes.append(MetricLane(source, own, float(np.nansum(own * weights)) / samples if samples else None))
    return lanes


def _binned(session: Session, window: Window, bins: int, sources: Sequence[MetricSource]) -> Sequence[tuple[Any, ...]]:
    """(report, gpu, metric, bin, mean, samples) of every bin that has samples."""
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


def _plausible(sources: Sequence[MetricSource]) -> sa.ColumnElement[Any]:
    """The value of a sample, as counters glitch (docs/exports.md#gpu-metrics): a percentage is cut to 0…100, and any
    other value below 0 is missing."""
    table = tables.gpu_metrics
    percent = sorted({source.metric for source in sources if source.is_percent})
    cut = sa.func.least(sa.func.greatest(table.c.value, 0.0), 100.0)
    return sa.case((table.c.metric.in_(percent), cut), (table.c.value >= 0, table.c.value), else_=sa.null())


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


# -- samples and intervals --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class MetricSamples:
    """The n samples of a metric of a GPU by time, job time; arrays of shape ``(n,)``.

    Each describes the time from ``starts`` to ``ends``, ns. ``values`` are `_plausible` ones, in the metric's unit;
    ``implausible`` is how many samples were cut or left out.
    """

    source: MetricSource
    starts: Times
    ends: Times
    values: NDArray[np.float64]
    implausible: int = 0

    @cached_property
    def until(self) -> Times:
        """The time described before each sample, and by all; shape ``(n + 1,)``, ns."""
        return np.append(0, np.cumsum(self.ends - self.starts))

    @cached_property
    def integral(self) -> NDArray[np.float64]:
        """The metric's integral before each sample, and over all; shape ``(n + 1,)``."""
        return np.append(0.0, np.cumsum((self.ends - self.starts) * self.values))


def samples_of(session: Session, sources: Sequence[MetricSource]) -> Iterator[list[MetricSamples]]:
    """Read the samples of ``sources``, those of one GPU at a time."""
    table = tables.gpu_metrics
    for (report, gpu), group in groupby(sorted(sources), lambda one: (one.report, one.gpu)):
        of_gpu = list(group)
        metric = sa.case({one.metric: number for number, one in enumerate(of_gpu)}, value=table.c.metric)
        value = _plausible(of_gpu)
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
                table.c.metric.in_([one.metric for one in of_gpu]),
                table.c.time.is_not(None),
                table.c.value.is_not(None),
            )
            .order_by("time")
        )
        read = session.part([report]).arrays(query)
        found: list[MetricSamples] = []
        for number, source in enumerate(of_gpu):
            rows = read["metric"] == number
            starts, ends = _spans(read["time"][rows].astype(np.int64))
            values = np.ma.filled(read["value"][rows].astype(np.float64), np.nan)
            plausible = read["is_plausible"][rows].astype(bool)
            known = ~np.isnan(values)
            starts, ends = starts[known], ends[known]
            if found and np.array_equal(starts, found[0].starts) and np.array_equal(ends, found[0].ends):
                starts, ends = found[0].starts, found[0].ends  # as is usual: see `attributed`
            found.append(MetricSamples(source, starts, ends, values[known], int((~plausible).sum())))
        yield found


def _spans(times: Times) -> tuple[Times, Times]:
    """The time that each sample describes; the first one's is a usual period, and so is one after a long gap."""
    if not len(times):
        return times, times
    gaps = np.diff(times)
    usual = int(np.median(gaps[gaps > 0])) if (gaps > 0).any() else 0
    periods = np.concatenate(([usual], np.where(gaps <= _LONGEST_PERIODS * usual, gaps, usual)))
    return times - periods, times


def attributed(
    every: Sequence[MetricSamples], starts: Times, ends: Times
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Yield for each metric: of each interval the time that samples describe, ns, and the metric's integral over it.

    Shapes ``(n,)``. The mean over some intervals is the sum of their integrals by that of their times: each sample is
    weighted by the overlap of its period. O(n log m) for m samples; intervals may be in any order and overlap. Metrics
    that share the array of their times cost one search.
    """
    ends = np.maximum(starts, ends)
    known: MetricSamples | None = None
    for samples in every:
        if known is None or samples.ends is not known.ends:
            known, begins = samples, np.append(samples.starts, np.iinfo(np.int64).max)
            places = [np.searchsorted(samples.ends, times, side="right") for times in (starts, ends)]
            begun = [
                times - np.minimum(begins[place], times) for place, times in zip(places, (starts, ends), strict=True)
            ]
            time = (samples.until[places[1]] + begun[1] - samples.until[places[0]] - begun[0]).astype(np.float64)
        values = np.append(samples.values, 0.0)
        first, last = (
            samples.integral[place] + part * values[place] for place, part in zip(places, begun, strict=True)
        )
        yield time, last - first


def samples_in(samples: MetricSamples, starts: Times, ends: Times) -> Times:
    """Count the samples that were taken in each interval, its end included; shape ``(n,)``."""
    count: Times = np.searchsorted(samples.ends, ends, "right") - np.searchsorted(samples.ends, starts, "right")
    return count
