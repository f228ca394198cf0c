"""Maps of sampled metrics: use of GPUs, and traffic of network adapters (docs/recipes.md#maps)."""

import re
from collections import Counter
from dataclasses import replace

import numpy as np

from nsystui.base.answer import HOST, Column, Unit
from nsystui.base.selection import Selection
from nsystui.base.text import few_numbers
from nsystui.base.types import Floats
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
from nsystui.questions.queries.time_window import selected_reports
from nsystui.questions.recipes.recipe import Draw, Figure, MapLine, RecipeMap, RecipeOptions, clock_notes, percent

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
    """Return a line per GPU of each report: the means of each bin's samples."""
    window = job.extent(selection)
    sources = [source for source in metric_sources(job.session, selection) if source.family in _FAMILIES]
    values_by_gpu: dict[tuple[int, int], tuple[Floats, Floats]] = {}
    for lane in metric_lanes(job.session, selection, window, options.bins, sources):
        source = lane.source
        empty = np.full((len(_FAMILIES), options.bins), np.nan), np.full(len(_FAMILIES), np.nan)
        gpu_values, gpu_means = values_by_gpu.setdefault((source.report, source.gpu), empty)
        row = _FAMILIES.index(source.family)
        if np.isnan(gpu_values[row]).all() and lane.mean is not None:  # a family's first metric
            gpu_values[row], gpu_means[row] = lane.values, lane.mean
    users = _users(job)
    names = {report.index: report.name for report in job.session.reports}
    lines = []
    for (report, gpu), (values, means) in sorted(values_by_gpu.items()):
        ranks = users.get((report, gpu), [])
        label = f"rank {few_numbers(ranks)}" if ranks else f"GPU {gpu}"
        lines.append(MapLine((names[report], gpu, ", ".join(map(str, ranks)) or None), label, values, means))
    key_columns = (_REPORT, _GPU, _RANKS)
    return RecipeMap(
        "gpu-metrics", window, options.bins, key_columns, _GPU_FIGURES, tuple(lines), clock_notes(job, selection)
    )


def _users(job: OpenJob) -> dict[tuple[int, int], list[int]]:
    ranks_by_gpu: dict[tuple[int, int], list[int]] = {}
    for item in job.busy(Selection()).devices:
        device = item.device
        if device.gpu is not None:
            ranks_by_gpu.setdefault((device.task.task.report, device.gpu), []).append(device.task.rank)
    return {key: sorted(set(ranks)) for key, ranks in ranks_by_gpu.items()}


# -- the network ------------------------------------------------------------------------------------------------------

_FIGURES = ((RECEIVED, RATES[1]), (SENT, RATES[0]), (WAITS, SEND_WAITS))
_KEY_COLUMNS = (HOST, ADAPTER, LINK, GUID)


def _network_map(job: OpenJob, selection: Selection, options: RecipeOptions) -> RecipeMap:
    """Return a line per adapter and switch (by host and GUID): mean rates over the sampled part of each bin.

    Each EFA counter is a separate figure.
    """
    window = job.extent(selection)
    adapter_list, notes = adapters(job, selection, with_efa=False)
    hosts = set(hosts_of(job).values())
    names = Counter((adapter.host, adapter.name) for adapter in adapter_list)
    lines = []
    for adapter in adapter_list:
        rates, means = (
            np.array([mean_rate(*adapter.figures[name], window.start, window.end, bins) for name, _ in _FIGURES])
            for bins in (options.bins, 1)
        )
        words = [adapter.host] if len(hosts) > 1 else []
        words += [adapter.name, *([adapter.link] if names[adapter.host, adapter.name] > 1 else [])]
        key = (adapter.host, adapter.name, adapter.link, adapter.guid)
        lines.append(MapLine(key, " ".join(filter(None, words)), rates, means[:, 0]))
    figures = tuple(Figure(column, "memory") for _, column in _FIGURES)
    notes = (*notes, *clock_notes(job, selection))
    shown = RecipeMap("network", window, options.bins, _KEY_COLUMNS, figures, tuple(lines), notes)
    return _with_efa(job, selection, shown)


def _with_efa(job: OpenJob, selection: Selection, shown: RecipeMap) -> RecipeMap:
    """Add a line per EFA adapter (by host and name) and a figure per EFA counter."""
    hosts = hosts_of(job)
    lanes, notes = counters(job, {report.index for report in selected_reports(job.session, selection)})
    numbers = {counter: number for number, counter in enumerate(dict.fromkeys(lane.counter for lane in lanes))}
    if not numbers:
        return replace(shown, notes=(*notes, *shown.notes))
    old = shown.figures if shown.lines else ()
    empty = np.full((len(numbers), shown.bins), np.nan)
    lines = [
        replace(
            line,
            values=np.vstack((line.values, empty)),
            means=None if line.means is None else np.append(line.means, empty[:, 0]),
        )
        for line in shown.lines
    ]
    by_adapter: dict[tuple[str, int, str], dict[str, list[Samples]]] = {}
    for lane in lanes:
        key = (hosts[lane.report], -1 if hosts[lane.report] else lane.report, lane.adapter)
        by_adapter.setdefault(key, {}).setdefault(lane.counter, []).append((lane.starts, lane.ends, lane.values))
    for (host, _, adapter), parts in sorted(by_adapter.items()):
        values = np.full((len(old) + len(numbers), shown.bins), np.nan)
        means = np.full(len(values), np.nan)
        for counter, samples in parts.items():
            number, rates, edges = len(old) + numbers[counter], once(samples), (shown.window.start, shown.window.end)
            values[number] = mean_rate(*rates, *edges, shown.bins)
            means[number] = mean_rate(*rates, *edges, 1)[0]
        label = f"{host} {adapter}".strip() if len(set(hosts.values())) > 1 else adapter
        lines.append(MapLine((host, adapter, EFA, None), label, values, means))
    totals = {lane.counter for lane in lanes if lane.is_total}
    figures = (
        *old,
        *(Figure(_counter_column(number, counter, totals), "memory") for counter, number in numbers.items()),
    )
    return replace(shown, figures=figures, lines=tuple(lines), notes=(*notes, *shown.notes))


def _counter_column(number: int, counter: str, totals: set[str]) -> Column:
    title = f"{counter} (rise per s)" if counter in totals else counter
    # Numbered, because counters' names may differ only in characters that a key cannot contain.
    key = f"efa_{number}_{re.sub('[^0-9a-z]+', '_', counter.lower()).strip('_')}"
    is_rate = counter in totals and counter.lower().endswith("bytes")
    if is_rate:
        key = key.removesuffix("_bytes")  # the unit shows it
    return Column(key, header=title, label=title, unit=Unit.RATE if is_rate else Unit.NUMBER, decimals=1)


MAPS: dict[str, Draw] = {"gpu_metric_util_map": _gpu_map, "network_traffic_map": _network_map}
