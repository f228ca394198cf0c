"""Sampled metrics over time: how GPUs were used, and what network adapters sent and received (docs/recipes.md#maps)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.columns import Column, Unit
from nsystui.base.selection import Selection
from nsystui.base.text import few
from nsystui.questions.algebra.intervals import Times, covered_per_bin, union
from nsystui.questions.gpu_metrics import metric_lanes, metric_sources
from nsystui.questions.job import Job
from nsystui.questions.recipes.asking import Draw, Options
from nsystui.questions.recipes.efa import Counters, counters
from nsystui.questions.recipes.maps import Figure, MapLine, RecipeMap, clock_notes, percent, window_of
from nsystui.store import tables

Floats = NDArray[np.float64]

_REPORT = Column("report", header="Report", label="report")
_GPU = Column("gpu", header="GPU", label="gpu", unit=Unit.NUMBER)
_RANKS = Column("ranks", header="Ranks", label="ranks", importance=1)
_GPU_FIGURES = (
    percent("sm_active", "SM Active", "SM active", "compute"),
    percent("sm_issue", "SM Issue", "SM issue", "compute"),
    percent("tensor_active", "Tensor Active", "tensor", "compute"),
)
_FAMILIES = ("SM active", "SM issue", "tensor active")


def _gpu_map(job: Job, selection: Selection, options: Options) -> RecipeMap:
    """A line for each GPU of each report: the mean of the samples of each bin."""
    window = window_of(job, selection)
    sources = [one for one in metric_sources(job.session, selection) if one.family in _FAMILIES]
    found: dict[tuple[int, int], Floats] = {}
    for lane in metric_lanes(job.session, selection, window, options.bins, sources):
        source = lane.source
        empty = np.full((len(_FAMILIES), options.bins), np.nan)
        rows = found.setdefault((source.report, source.gpu), empty)
        place = _FAMILIES.index(source.family)
        if np.isnan(rows[place]).all():  # the first of several metrics of one family
            rows[place] = lane.values
    users = _users(job)
    names = {report.index: report.name for report in job.session.reports}
    lines = []
    for (report, gpu), values in sorted(found.items()):
        ranks = users.get((report, gpu), [])
        label = f"rank {few(ranks)}" if ranks else f"GPU {gpu}"
        lines.append(MapLine((names[report], gpu, ", ".join(map(str, ranks)) or None), label, values))
    places = (_REPORT, _GPU, _RANKS)
    return RecipeMap(
        "gpu-metrics", window, options.bins, places, _GPU_FIGURES, tuple(lines), clock_notes(job, selection)
    )


def _users(job: Job) -> dict[tuple[int, int], list[int]]:
    """The ranks that used each GPU of each report."""
    found: dict[tuple[int, int], list[int]] = {}
    for item in job.busy(Selection()).devices:
        place = item.device
        if place.gpu is not None:
            found.setdefault((place.task.task.report, place.gpu), []).append(place.task.rank)
    return {key: sorted(set(ranks)) for key, ranks in found.items()}


# -- the network ------------------------------------------------------------------------------------------------------

_ADAPTER = Column("adapter", header="Adapter", label="adapter")
_GUID = Column("guid", header="GUID", label="guid", importance=3)
# What a figure is called, and how its metric's name ends, of InfiniBand and Ethernet alike.
_NETWORK = (
    ("received", "Received", ("bytes received", "rx bytes", "rx_bytes")),
    ("sent", "Sent", ("bytes sent", "tx bytes", "tx_bytes")),
    ("waits", "Send waits", ("send waits",)),
)


def _network_map(job: Job, selection: Selection, options: Options) -> RecipeMap:
    """A line for each adapter and switch of each report: the mean rate of each bin, over its sampled part.

    Ports of an adapter add up. Units are those of the samples. Each of EFA's counters is a figure of its own.
    """
    window = window_of(job, selection)
    names = {report.index: report.name for report in job.session.reports}
    wanted = dict(_metrics(job))
    units: dict[int, set[str]] = {}
    found: dict[tuple[int, int, int], Floats] = {}
    chosen = {task.report for task in selection.tasks} if selection.tasks is not None else set(names)
    for key, unit, samples in _samples(job, sorted(wanted)):
        report, nic, is_switch, metric = key
        if report not in chosen:
            continue
        place = wanted[metric]
        units.setdefault(place, set()).add(unit)
        empty = np.full((len(_NETWORK), options.bins), np.nan)
        rows = found.setdefault((report, is_switch, nic), empty)
        rate = mean_rate(*samples, window.start, window.end, options.bins)
        rows[place] = np.where(np.isnan(rows[place]), rate, rows[place] + np.nan_to_num(rate))
    known = _adapters(job)
    lines = []
    for (report, is_switch, nic), values in sorted(found.items()):
        guid, name = known.get((report, nic), (None, None)) if not is_switch else (nic, "switch")
        hexadecimal = None if guid is None else f"0x{guid & 0xFFFF_FFFF_FFFF_FFFF:x}"
        title = name or hexadecimal or f"adapter {nic}"
        label = f"{names[report]} {title}" if len(names) > 1 else title
        lines.append(MapLine((names[report], title, hexadecimal), label, values))
    figures = tuple(
        Figure(_rate_column(key, title, units.get(place, set())), "memory")
        for place, (key, title, _) in enumerate(_NETWORK)
    )
    notes = (*_network_notes(job, selection, wanted), *clock_notes(job, selection))
    shown = RecipeMap("network", window, options.bins, (_REPORT, _ADAPTER, _GUID), figures, tuple(lines), notes)
    return _with_efa(shown, counters(job, chosen), names)


def _with_efa(shown: RecipeMap, efa: Counters, names: dict[int, str]) -> RecipeMap:
    """The map with a line for each adapter of EFA's, and a figure for each of its counters."""
    own = {lane.counter: number for number, lane in enumerate({lane.counter: lane for lane in efa.lanes}.values())}
    if not own:
        return replace(shown, notes=(*efa.notes, *shown.notes))
    others = shown.figures if shown.lines else ()
    nothing = np.full((len(own), shown.bins), np.nan)
    lines = [replace(line, values=np.vstack((line.values, nothing))) for line in shown.lines]
    found: dict[tuple[int, str, int], Floats] = {}
    totals = {lane.counter for lane in efa.lanes if lane.is_total}
    for lane in efa.lanes:
        empty = np.full((len(others) + len(own), shown.bins), np.nan)
        rows = found.setdefault((lane.report, lane.adapter, lane.type_id), empty)
        edges = (shown.window.start, shown.window.end, shown.bins)
        rows[len(others) + own[lane.counter]] = mean_rate(lane.starts, lane.ends, lane.values, *edges)
    for (report, adapter, _), values in sorted(found.items(), key=lambda item: item[0]):
        label = f"{names[report]} {adapter}" if len(names) > 1 else adapter
        lines.append(MapLine((names[report], adapter, None), label, values))
    figures = (
        *others,
        *(Figure(_counter_column(number, counter, totals), "memory") for counter, number in own.items()),
    )
    return replace(shown, figures=figures, lines=tuple(lines), notes=(*efa.notes, *shown.notes))


def _counter_column(number: int, counter: str, totals: set[str]) -> Column:
    title = f"{counter} (rise per s)" if counter in totals else counter
    # The name is the file's own: two may differ in what no key can have.
    key = f"efa_{number}_{re.sub('[^0-9a-z]+', '_', counter.lower()).strip('_')}"
    return Column(key, header=title, label=title, unit=Unit.NUMBER, decimals=1)


def _rate_column(key: str, title: str, units: set[str]) -> Column:
    unit = f" ({', '.join(sorted(units))})" if any(units) else ""
    return Column(
        key,
        header=f"{title}{unit}",
        label=f"{title.lower()}{unit.replace('(', '').replace(')', '')}",
        unit=Unit.NUMBER,
        decimals=1,
    )


def _network_notes(job: Job, selection: Selection, wanted: dict[str, int]) -> tuple[str, ...]:
    notes = []
    if job.session.count(tables.nic_metrics) and not wanted:
        notes.append("none of the metrics sampled are bytes received, bytes sent or send waits")
    if selection.tasks is not None and wanted:
        notes.append("adapters are those of the reports of the selected ranks")
    return tuple(notes)


def _metrics(job: Job) -> Iterator[tuple[str, int]]:
    """The metrics that a figure is made of, with its place."""
    column = tables.nic_metrics.c.metric
    if not job.session.count(tables.nic_metrics):
        return
    for (metric,) in job.session.rows(sa.select(column).where(column.is_not(None)).distinct()):
        for place, (_, _, endings) in enumerate(_NETWORK):
            if metric.lower().endswith(endings):
                yield metric, place


def _samples(
    job: Job, metrics: list[str]
) -> Iterator[tuple[tuple[int, int, int, str], str, tuple[Times, Times, Floats]]]:
    """The samples of each (report, adapter, whether it is a switch, metric) with their unit, job time."""
    table = tables.nic_metrics
    if not metrics:
        return
    keys = (table.c.report, table.c.nic, table.c.is_switch, table.c.metric)
    known = [
        table.c.metric.in_(metrics),
        table.c.end.is_not(None),
        table.c.value.is_not(None),
        table.c.nic.is_not(None),
    ]
    groups = sa.select(*keys, sa.func.min(table.c.unit)).where(*known).group_by(*keys).order_by(*keys)
    for *key, unit in job.session.rows(groups):
        moved = [(table.c[name] + table.c.clock_offset).label(name) for name in ("start", "end")]
        is_own = [column == value for column, value in zip(keys, key, strict=True)]
        rows = job.session.arrays(sa.select(*moved, table.c.value).where(*known, *is_own))
        yield (key[0], key[1], key[2], key[3]), unit or "", (rows["start"], rows["end"], rows["value"])


def _adapters(job: Job) -> dict[tuple[int, int], tuple[Any, Any]]:
    """GUID and name of each (report, adapter)."""
    table = tables.nic_devices
    if not job.session.count(table):
        return {}
    rows = job.session.rows(sa.select(table.c.report, table.c.nic, table.c.guid, table.c.name))
    return {(report, nic): (guid, name) for report, nic, guid, name in rows}


def mean_rate(starts: Times, ends: Times, values: Floats, lo: int, hi: int, bins: int) -> Floats:
    """The mean of a rate over the sampled part of each of ``bins`` equal spans of ``[lo, hi)``; NaN where none is.

    Each sample is a rate from its start to its end, shapes ``(n,)``; samples that overlap, of several ports, add up.
    """
    edges = lo + np.arange(bins + 1) * ((hi - lo) / bins)
    moved = edges - lo
    total: Floats = np.subtract(_integral(starts - lo, values, moved), _integral(ends - lo, values, moved))
    covered = covered_per_bin(union(starts, ends), lo, hi, bins)
    rate: Floats = np.diff(total) / np.where(covered > 0, covered, np.nan)
    return rate


def _integral(times: Times, values: Floats, edges: NDArray[np.floating[Any]]) -> Floats:
    """Σ value · max(edge − time, 0) for each edge."""
    order = np.argsort(times, kind="stable")
    at, value = times[order].astype(np.float64), values[order].astype(np.float64)
    sums = np.concatenate(([0.0], np.cumsum(value)))
    moments = np.concatenate(([0.0], np.cumsum(value * at)))
    before = np.searchsorted(at, edges, side="left")
    found: Floats = sums[before] * edges - moments[before]
    return found


MAPS: dict[str, Draw] = {"gpu_metric_util_map": _gpu_map, "network_traffic_map": _network_map}
