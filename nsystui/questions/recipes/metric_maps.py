"""Sampled metrics over time: how GPUs were used, and what network adapters sent and received (docs/recipes.md#maps)."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.columns import Column, Unit
from nsystui.base.selection import Selection
from nsystui.base.text import few
from nsystui.questions.algebra.intervals import Times, covered_per_bin, union
from nsystui.questions.gpu.metrics import metric_lanes, metric_sources
from nsystui.questions.job import Job
from nsystui.questions.recipes.recipe import Draw, Figure, MapLine, Options, RecipeMap, clock_notes, percent
from nsystui.store import tables

Floats = NDArray[np.float64]

UNDOCUMENTED = (
    "EFA counters are shown under the names they were recorded with; NVIDIA documents neither these nor their units"
)
_UNREADABLE = "the EFA samples have no time in the session, or no field that is a number"
_SAMPLES = tables.efa_samples
_SECOND = 1e9


@dataclass(frozen=True, eq=False)
class Lane:
    """A counter of an adapter, job time, shapes ``(n,)``: from the sample before to each sample.

    ``values`` are what was recorded, or of a running total (``is_total``) its rise per second.
    """

    report: int
    adapter: str
    type_id: int
    counter: str
    is_total: bool
    starts: Times
    ends: Times
    values: Floats


@dataclass(frozen=True)
class Counters:
    """The counters of the EFA plugin: a lane for each counter of bytes, and notes on them."""

    lanes: tuple[Lane, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, order=True)
class _Key:
    """A field of an adapter: where the events name none, the type of the events identifies it."""

    report: int
    adapter: str
    type_id: int
    field: str


def counters(job: Job, reports: Collection[int]) -> Counters:
    """The counters of ``reports``; nothing, and no notes, where none has samples of EFA."""
    if not job.session.count(_SAMPLES):
        return Counters()
    series: dict[_Key, tuple[Times, Floats]] = {}
    fields: set[str] = set()
    for source in (_of_rows(job, fields), _of_json(job, reports, fields)):
        series.update((key, found) for key, found in source if key.report in reports)
    if not fields:
        having = {report for (report,) in job.session.rows(sa.select(_SAMPLES.c.report).distinct())}
        return Counters(notes=(UNDOCUMENTED, _UNREADABLE) if having.intersection(reports) else ())
    totals = _totals(series)
    lanes = tuple(_lane(key, *series[key], key.field in totals) for key in sorted(series))
    return Counters(lanes, tuple(_notes(fields, {key.field for key in series}, totals)))


def _of_rows(job: Job, fields: set[str]) -> Iterator[tuple[_Key, tuple[Times, Floats]]]:
    """The series of exports with a row for each value; adds the names of all fields to ``fields``."""
    keys = (_SAMPLES.c.report, _SAMPLES.c.type_id, _SAMPLES.c.source, _SAMPLES.c.type, _SAMPLES.c.field)
    known = [_SAMPLES.c.field.is_not(None), _SAMPLES.c.time.is_not(None), _SAMPLES.c.type_id.is_not(None)]
    for report, type_id, source, kind, field in job.session.rows(sa.select(*keys).where(*known).distinct()):
        fields.add(field)
        if not _says_bytes(field):
            continue
        own = [_SAMPLES.c.report == report, _SAMPLES.c.type_id == type_id, _SAMPLES.c.field == field]
        time = (_SAMPLES.c.time + _SAMPLES.c.clock_offset).label("time")
        rows = job.session.arrays(sa.select(time, _SAMPLES.c.value).where(*known, *own))
        yield _Key(report, _adapter(source, kind, "", type_id), type_id, field), (rows["time"], rows["value"])


def _of_json(job: Job, reports: Collection[int], fields: set[str]) -> Iterator[tuple[_Key, tuple[Times, Floats]]]:
    """The same of exports whose events are JSON."""
    time = (_SAMPLES.c.time + _SAMPLES.c.clock_offset).label("time")
    columns = (_SAMPLES.c.report, time, _SAMPLES.c.type_id, _SAMPLES.c.source, _SAMPLES.c.type, _SAMPLES.c.data)
    known = [_SAMPLES.c.data.is_not(None), _SAMPLES.c.time.is_not(None), _SAMPLES.c.type_id.is_not(None)]
    found: dict[_Key, list[tuple[int, float]]] = defaultdict(list)
    for report, at, type_id, source, kind, data in job.session.rows(sa.select(*columns).where(*known)):
        if report not in reports:
            continue
        numbers, texts = _decoded(data)
        fields.update(numbers)
        adapter = _adapter(source, kind, " ".join(texts.values()), type_id)
        for field, value in numbers.items():
            if _says_bytes(field):
                found[_Key(report, adapter, type_id, field)].append((at, value))
    for key, samples in found.items():
        times, values = zip(*samples, strict=True)
        yield key, (np.array(times, dtype=np.int64), np.array(values, dtype=np.float64))


def _decoded(data: str) -> tuple[dict[str, float], dict[str, str]]:
    """The numbers and the texts of an event by field: nsys writes numbers as texts, too (measured in schema 3.7.2)."""
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        return {}, {}
    numbers: dict[str, float] = {}
    texts: dict[str, str] = {}
    for field, value in _flat(event, "") if isinstance(event, dict) else ():
        number = _number(value)
        if number is not None:
            numbers[field] = number
        elif isinstance(value, str):
            texts[field] = value
    return numbers, texts


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _flat(event: dict[str, Any], within: str) -> Iterator[tuple[str, Any]]:
    for name, value in event.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{within}{name}.")
        else:
            yield f"{within}{name}", value


def _says_bytes(field: str) -> bool:
    return "bytes" in field.lower()


def _adapter(source: str | None, kind: str | None, device: str, type_id: int) -> str:
    names = dict.fromkeys(name for name in (source, kind) if name)
    return " ".join((*names, device or str(type_id & 0xFF)))


def _totals(series: dict[_Key, tuple[Times, Floats]]) -> frozenset[str]:
    """The fields that fall on no adapter and rise more than once on one; a rate by its name is none."""
    falling, rising = set(), set()
    for key, (times, values) in series.items():
        steps = np.diff(values[np.argsort(times, kind="stable")])
        if (steps < 0).any() or "per second" in key.field.lower():
            falling.add(key.field)
        if np.count_nonzero(steps > 0) > 1:
            rising.add(key.field)
    return frozenset(rising - falling)


def _lane(key: _Key, times: Times, values: Floats, is_total: bool) -> Lane:
    order = np.argsort(times, kind="stable")
    at, found = times[order], values[order].astype(np.float64)
    starts, ends = at[:-1], at[1:]
    lasts = ends > starts
    shown = np.diff(found)[lasts] / ((ends - starts)[lasts] / _SECOND) if is_total else found[1:][lasts]
    return Lane(key.report, key.adapter, key.type_id, key.field, is_total, starts[lasts], ends[lasts], shown)


def _notes(fields: set[str], shown: set[str], totals: frozenset[str]) -> Iterator[str]:
    yield UNDOCUMENTED
    if not shown:
        yield f"no field of the EFA samples says bytes; there are: {', '.join(sorted(fields))}"
        return
    if totals:
        names = few(sorted(totals))
        yield f"EFA counters that never fall are taken as running totals, and shown as their rise per second: {names}"
    if shown - totals:
        names = few(sorted(shown - totals))
        yield f"EFA counters that fall, stay or say per second are shown as recorded, as their mean in a bin: {names}"
    yield "an EFA sample counts from the sample before it, so the first one of each counter is not shown"


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
    window = job.extent(selection)
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
NETWORK = (
    ("received", "Received", ("bytes received", "rx bytes", "rx_bytes")),
    ("sent", "Sent", ("bytes sent", "tx bytes", "tx_bytes")),
    ("waits", "Send waits", ("send waits",)),
)


def _network_map(job: Job, selection: Selection, options: Options) -> RecipeMap:
    """A line for each adapter and switch of each report: the mean rate of each bin, over its sampled part.

    Ports of an adapter add up. Units are those of the samples. Each of EFA's counters is a figure of its own.
    """
    window = job.extent(selection)
    names = {report.index: report.name for report in job.session.reports}
    wanted = dict(network_metrics(job))
    units: dict[int, set[str]] = {}
    found: dict[tuple[int, int, int], Floats] = {}
    chosen = {task.report for task in selection.tasks} if selection.tasks is not None else set(names)
    for key, unit, samples in network_samples(job, sorted(wanted)):
        report, nic, is_switch, metric = key
        if report not in chosen:
            continue
        place = wanted[metric]
        units.setdefault(place, set()).add(unit)
        empty = np.full((len(NETWORK), options.bins), np.nan)
        rows = found.setdefault((report, is_switch, nic), empty)
        rate = mean_rate(*samples, window.start, window.end, options.bins)
        rows[place] = np.where(np.isnan(rows[place]), rate, rows[place] + np.nan_to_num(rate))
    known = adapter_names(job)
    lines = []
    for (report, is_switch, nic), values in sorted(found.items()):
        guid, name = known.get((report, nic), (None, None)) if not is_switch else (nic, "switch")
        hexadecimal = None if guid is None else f"0x{guid & 0xFFFF_FFFF_FFFF_FFFF:x}"
        title = name or hexadecimal or f"adapter {nic}"
        label = f"{names[report]} {title}" if len(names) > 1 else title
        lines.append(MapLine((names[report], title, hexadecimal), label, values))
    figures = tuple(
        Figure(_rate_column(key, title, units.get(place, set())), "memory")
        for place, (key, title, _) in enumerate(NETWORK)
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


def network_metrics(job: Job) -> Iterator[tuple[str, int]]:
    """The metrics that a figure is made of, with its place."""
    column = tables.nic_metrics.c.metric
    if not job.session.count(tables.nic_metrics):
        return
    for (metric,) in job.session.rows(sa.select(column).where(column.is_not(None)).distinct()):
        for place, (_, _, endings) in enumerate(NETWORK):
            if metric.lower().endswith(endings):
                yield metric, place


def network_samples(
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


def adapter_names(job: Job) -> dict[tuple[int, int], tuple[Any, Any]]:
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
    total: Floats = np.subtract(integral(starts - lo, values, moved), integral(ends - lo, values, moved))
    covered = covered_per_bin(union(starts, ends), lo, hi, bins)
    rate: Floats = np.diff(total) / np.where(covered > 0, covered, np.nan)
    return rate


def integral(times: Times, values: Floats, edges: NDArray[np.floating[Any]]) -> Floats:
    """Σ value · max(edge − time, 0) for each edge."""
    order = np.argsort(times, kind="stable")
    at, value = times[order].astype(np.float64), values[order].astype(np.float64)
    sums = np.concatenate(([0.0], np.cumsum(value)))
    moments = np.concatenate(([0.0], np.cumsum(value * at)))
    before = np.searchsorted(at, edges, side="left")
    found: Floats = sums[before] * edges - moments[before]
    return found


MAPS: dict[str, Draw] = {"gpu_metric_util_map": _gpu_map, "network_traffic_map": _network_map}
