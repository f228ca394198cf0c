"""Sampled metrics over time: how GPUs were used, and what network adapters sent and received (docs/recipes.md#maps)."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from nsystui.base.answer import HOST, Column, Unit
from nsystui.base.selection import Selection
from nsystui.base.text import few_numbers
from nsystui.questions.counters.efa import counters
from nsystui.questions.counters.network import (
    ADAPTER,
    EFA,
    GUID,
    LINK,
    RATES,
    RECEIVED,
    SEND_WAITS,
    SENT,
    WAITS,
    Samples,
    adapters,
    hosts_of,
    mean_rate,
    once,
)
from nsystui.questions.gpu.metrics import metric_lanes, metric_sources
from nsystui.questions.job.job import OpenJob
from nsystui.questions.recipes.recipe import Draw, Figure, MapLine, RecipeMap, RecipeOptions, clock_notes, percent

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


def _gpu_map(job: OpenJob, selection: Selection, options: RecipeOptions) -> RecipeMap:
    """A line for each GPU of each report: the mean of the samples of each bin."""
    window = job.extent(selection)
    sources = [one for one in metric_sources(job.session, selection) if one.family in _FAMILIES]
    found: dict[tuple[int, int], tuple[Floats, Floats]] = {}
    for lane in metric_lanes(job.session, selection, window, options.bins, sources):
        source = lane.source
        empty = np.full((len(_FAMILIES), options.bins), np.nan), np.full(len(_FAMILIES), np.nan)
        rows, means = found.setdefault((source.report, source.gpu), empty)
        place = _FAMILIES.index(source.family)
        if np.isnan(rows[place]).all() and lane.mean is not None:  # the first of several metrics of one family
            rows[place], means[place] = lane.values, lane.mean
    users = _users(job)
    names = {report.index: report.name for report in job.session.reports}
    lines = []
    for (report, gpu), (values, means) in sorted(found.items()):
        ranks = users.get((report, gpu), [])
        label = f"rank {few_numbers(ranks)}" if ranks else f"GPU {gpu}"
        lines.append(MapLine((names[report], gpu, ", ".join(map(str, ranks)) or None), label, values, means))
    places = (_REPORT, _GPU, _RANKS)
    return RecipeMap(
        "gpu-metrics", window, options.bins, places, _GPU_FIGURES, tuple(lines), clock_notes(job, selection)
    )


def _users(job: OpenJob) -> dict[tuple[int, int], list[int]]:
    """The ranks that used each GPU of each report."""
    found: dict[tuple[int, int], list[int]] = {}
    for item in job.busy(Selection()).devices:
        place = item.device
        if place.gpu is not None:
            found.setdefault((place.task.task.report, place.gpu), []).append(place.task.rank)
    return {key: sorted(set(ranks)) for key, ranks in found.items()}


# -- the network ------------------------------------------------------------------------------------------------------

_FIGURES = ((RECEIVED, RATES[1]), (SENT, RATES[0]), (WAITS, SEND_WAITS))
_PLACES = (HOST, ADAPTER, LINK, GUID)


def _network_map(job: OpenJob, selection: Selection, options: RecipeOptions) -> RecipeMap:
    """A line for each adapter and switch, once by host and GUID: the mean rate of each bin, over its sampled part.

    Each of EFA's counters is a figure of its own.
    """
    window = job.extent(selection)
    found, notes = adapters(job, selection, with_efa=False)
    hosts = set(hosts_of(job).values())
    names = Counter((one.host, one.name) for one in found)
    lines = []
    for one in found:
        rates, means = (
            np.array([mean_rate(*one.figures[place], window.start, window.end, bins) for place, _ in _FIGURES])
            for bins in (options.bins, 1)
        )
        words = [one.host] if len(hosts) > 1 else []
        words += [one.name, *([one.link] if names[one.host, one.name] > 1 else [])]
        place = (one.host, one.name, one.link, one.guid)
        lines.append(MapLine(place, " ".join(filter(None, words)), rates, means[:, 0]))
    figures = tuple(Figure(column, "memory") for _, column in _FIGURES)
    notes = (*notes, *clock_notes(job, selection))
    shown = RecipeMap("network", window, options.bins, _PLACES, figures, tuple(lines), notes)
    return _with_efa(job, selection, shown)


def _with_efa(job: OpenJob, selection: Selection, shown: RecipeMap) -> RecipeMap:
    """The map with a line for each adapter of EFA's, once by host and name, and a figure for each of its counters."""
    hosts = hosts_of(job)
    chosen = {task.report for task in selection.tasks} if selection.tasks is not None else set(hosts)
    efa = counters(job, chosen)
    own = {counter: number for number, counter in enumerate(dict.fromkeys(lane.counter for lane in efa.lanes))}
    if not own:
        return replace(shown, notes=(*efa.notes, *shown.notes))
    others = shown.figures if shown.lines else ()
    nothing = np.full((len(own), shown.bins), np.nan)
    lines = [
        replace(
            line,
            values=np.vstack((line.values, nothing)),
            means=None if line.means is None else np.append(line.means, nothing[:, 0]),
        )
        for line in shown.lines
    ]
    found: dict[tuple[str, int, str], dict[str, list[Samples]]] = {}
    for lane in efa.lanes:
        place = (hosts[lane.report], -1 if hosts[lane.report] else lane.report, lane.adapter)
        found.setdefault(place, {}).setdefault(lane.counter, []).append((lane.starts, lane.ends, lane.values))
    for (host, _, adapter), parts in sorted(found.items()):
        values = np.full((len(others) + len(own), shown.bins), np.nan)
        means = np.full(len(values), np.nan)
        for counter, samples in parts.items():
            number, rates, edges = len(others) + own[counter], once(samples), (shown.window.start, shown.window.end)
            values[number] = mean_rate(*rates, *edges, shown.bins)
            means[number] = mean_rate(*rates, *edges, 1)[0]
        label = f"{host} {adapter}" if len(set(hosts.values())) > 1 and host else adapter
        lines.append(MapLine((host, adapter, EFA, None), label, values, means))
    totals = {lane.counter for lane in efa.lanes if lane.is_total}
    figures = (
        *others,
        *(Figure(_counter_column(number, counter, totals), "memory") for counter, number in own.items()),
    )
    return replace(shown, figures=figures, lines=tuple(lines), notes=(*efa.notes, *shown.notes))


def _counter_column(number: int, counter: str, totals: set[str]) -> Column:
    title = f"{counter} (rise per s)" if counter in totals else counter
    # The name is the file's own: two may differ in what no key can have.
    key = f"efa_{number}_{re.sub('[^0-9a-z]+', '_', counter.lower()).strip('_')}"
    is_rate = counter in totals and counter.lower().endswith("bytes")
    if is_rate:
        key = key.removesuffix("_bytes")  # which the unit says
    return Column(key, header=title, label=title, unit=Unit.RATE if is_rate else Unit.NUMBER, decimals=1)


MAPS: dict[str, Draw] = {"gpu_metric_util_map": _gpu_map, "network_traffic_map": _network_map}
