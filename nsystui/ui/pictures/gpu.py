"""The picture on the GPU screen: the lanes of the selected devices over a time window."""

import math
import textwrap
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from nsystui.base.answer import TableAnswer, Unit
from nsystui.base.selection import Selection, Window
from nsystui.base.text import fit, safe_text
from nsystui.base.types import Floats, grouped
from nsystui.base.units import MISSING, format_value, numbered
from nsystui.questions.algebra.intervals import covered_per_bin, union
from nsystui.questions.capture.launch_account import with_lost_work
from nsystui.questions.counters.network import (
    RECEIVED,
    SENT,
    SWITCH,
    WAITS,
    Adapter,
    adapters,
    mean_rate,
    moved_within,
    slow_collectives,
)
from nsystui.questions.gpu.device_time import NOTHING, Breakdown, Device
from nsystui.questions.gpu.metrics import MetricLane, MetricSource, metric_lanes, metric_sources
from nsystui.questions.gpu.utilisation import BusyIntervals, utilisation_table
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.data_notes import missing_notes
from nsystui.questions.queries.tasks import RankedTask
from nsystui.questions.ranks.steps import step_times
from nsystui.store import tables
from nsystui.ui.pictures.selection import inside, span_words
from nsystui.ui.widgets.panels import PartLine, TextPart, wrapped
from nsystui.ui.widgets.strip_chart import Lane

Bins = tuple[float, ...]
"""0 to 1 for each column of the chart, NaN if nothing was recorded."""

STACK = (
    ("kernels", "compute", "compute"), ("exposed_nccl", "exposed", "nccl"), ("memory_only", "memory", "memory"),
    ("graph_only", "graph", "graph"),
)  # fmt: skip
"""The parts that add up to a busy device, from below: name in `DeviceIntervals.share`, label, category."""

PARTS = (("kernels", "compute", "compute"), ("nccl", "NCCL", "nccl"), ("memory", "memory", "memory"), ("graph",) * 3)
"""The parts of a busy device, with overlaps: name in `DeviceIntervals.share`, label, category."""

MOST_TELLING = ("SM active", "tensor active", "DRAM read", "NVLink TX", "PCIe RX")
"""The metric families shown first if not all fit."""

FITTING, NO_METRICS, USUAL, EVERY, NETWORK = "auto", "none", "usual", "every", "network"
"""Choices for the lanes below the GPUs, in addition to a metric's name: as many metrics as fit, none, one per family,
all; network rates."""

_LOW_ROWS, _MIN_STACKS = 3, 3
"""Rows of a stack before metrics get any; a stack takes at most one ``_MIN_STACKS``th of the screen."""


@dataclass(frozen=True)
class GpuPictureRequest:
    """The request for a picture: the window in view (``None``: all of the selection), its columns and lines.

    ``metrics``: ``FITTING``, ``NO_METRICS``, ``USUAL``, ``EVERY``, ``NETWORK``, or a metric's name;
    ``halves``: whether two devices may share a line.
    """

    view: Window | None
    columns: int
    lines: int
    metrics: str = FITTING
    halves: bool = False


@dataclass(frozen=True)
class Metric:
    """A metric of one GPU or host over time; ``mean`` in its ``unit``, of all samples in the window.

    ``bins`` are shares of ``top``: 100 %, or the largest value of any GPU or adapter in view.
    """

    label: str
    bins: Bins
    mean: float | None
    top: float = 100.0
    unit: str = "%"
    category: str = "metric"

    def words(self, value: float | None) -> str:
        """Return a value in few cells: percentages without decimals, because the counters are not that exact."""
        if value is None:
            return MISSING
        if self.unit.startswith("%"):
            return f"{value:.0f} %"
        number, unit = _scaled(value, self.unit)
        return f"{number:.3g} {unit}"

    def value(self) -> str:
        """Return the mean for the seven cells at the right of a lane."""
        if self.unit.startswith("%"):
            return format_value(Unit.PERCENT, self.mean)
        if self.mean is None:
            return MISSING
        number, unit = _scaled(self.mean, self.unit.removeprefix("ticks"))
        digits = f"{number:.3g}" if self.unit != "B/s" else f"{number:.{1 if number < _TWO_DIGITS else 0}f}"
        return f"{digits}{unit}"


_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_PREFIXED = {f"{prefix}Hz": size for size, prefix in _PREFIXES}
"""Clock units with a prefix: 1,755 ``MHz`` are 1.76 ``GHz``."""
_ROUNDED, _TWO_DIGITS = 0.9995, 9.95
"""The multiple of a prefix at which it is used; the number at which decimals no longer fit."""


def _scaled(value: float, unit: str) -> tuple[float, str]:
    """Return a value in the largest multiple of its unit that does not exceed it, and that multiple."""
    if unit in _PREFIXED:
        value, unit = value * _PREFIXED[unit], "Hz"
    size, prefix = next((pair for pair in _PREFIXES if value >= _ROUNDED * pair[0]), (1.0, ""))
    return value / size, f"{prefix}{unit}"


@dataclass(frozen=True)
class GpuLanes:
    """A device; or, without ``device``, a GPU with metrics but no work, or a host's network."""

    device: Device | None
    title: str
    parts: Mapping[str, Bins]
    """Keys: ``busy`` and the names of ``STACK`` and ``PARTS``; empty without a device."""
    totals: Breakdown
    metrics: tuple[Metric, ...]
    is_host: bool = False

    @property
    def key(self) -> Hashable:
        """Return a key for the GPU in all pictures."""
        return self.title if self.device is None else self.device.key


@dataclass(frozen=True)
class GpuPicture:
    """Everything on the screen. ``lanes[i]`` belongs to ``gpus[owners[i]]``; key ``0`` shows ``base``."""

    base: Window
    window: Window
    gpus: tuple[GpuLanes, ...]
    parts: tuple[str, ...]
    """The parts that occur anywhere in ``base``."""
    lanes: tuple[Lane, ...]
    owners: tuple[int, ...]
    halves: bool
    steps: tuple[tuple[int, str], ...]
    """The starts of the steps of the first device in view, ns, and their numbers."""
    metrics: tuple[str, ...]
    """The recorded names of all GPU metrics; metrics with a family first."""
    has_network: bool
    """Whether adapters were sampled."""
    answer: TableAnswer
    """The utilisation table of ``window`` by device."""
    notes: tuple[str, ...]
    ranks: tuple[RankedTask, ...]


def gpu_picture(job: OpenJob, selection: Selection, request: GpuPictureRequest) -> GpuPicture:
    """Return the picture of a selection. Blocks."""
    base = job.extent(selection)
    window = inside(request.view, base) or base if request.view is not None else base
    busy = job.busy(selection)
    occurring = _occurring(busy, base)
    sources = job.once(
        ("metric-sources", selection.tasks, selection.devices), lambda: metric_sources(job.session, selection, True)
    )
    steps = _steps(job, busy, window)
    shown_sources = _shown(sources, request.metrics, request.lines - bool(steps) - _LOW_ROWS * len(busy.devices))
    bins = _bins_in(window, request.columns)
    gpus = _gpus(job, selection, busy, window, bins, shown_sources)
    hosts = _hosts(job, selection, window, bins) if request.metrics == NETWORK else ()
    gpus += hosts
    lines = request.lines - bool(steps) - len(hosts)
    heights = _heights(gpus, lines)
    halves = request.halves and not shown_sources and not hosts and len(gpus) > lines
    lanes, owners = _arranged(gpus, occurring, heights, halves)
    answer = with_lost_work(job, selection, utilisation_table(busy, window))
    notes = answer.notes if lanes else (*answer.notes, *missing_notes(job.session, tables.gpu_metrics))
    return GpuPicture(
        base=base, window=window, gpus=gpus, parts=occurring, lanes=lanes, owners=owners, halves=halves, steps=steps,
        metrics=tuple(dict.fromkeys(source.metric for source in sorted(sources, key=lambda source: source.order))),
        has_network=any(job.session.count(table) for table in (tables.nic_metrics, tables.efa_samples)),
        answer=answer, notes=notes, ranks=job.ranks,
    )  # fmt: skip


def _steps(job: OpenJob, busy: BusyIntervals, window: Window) -> tuple[tuple[int, str], ...]:
    times = step_times(job.steps(), window)
    steps = next((times[device.device.task.task] for device in busy.devices if device.device.task.task in times), None)
    if steps is None:
        return ()
    return tuple((start, str(step)) for start, step in zip(steps.start.tolist(), steps.numbers.tolist(), strict=True))


def _heights(gpus: Sequence[GpuLanes], lines: int) -> tuple[int, int]:
    """Return the rows of each stack, and of each metric: more than one only if stacks leave room."""
    devices, metrics = sum(gpu.device is not None for gpu in gpus), sum(len(gpu.metrics) for gpu in gpus)
    height = max(1, min((lines - metrics) // devices, lines // _MIN_STACKS)) if devices else 1
    return height, max(1, min((lines - devices * height) // metrics, _LOW_ROWS)) if metrics else 1


def _occurring(busy: BusyIntervals, base: Window) -> tuple[str, ...]:
    """Return the parts in ``base``, largest first: the same for all devices and zooms."""
    devices = [device.breakdown(base) for device in busy.devices]
    times = {name: sum(device.known(name) or 0 for device in devices) for name, *_ in PARTS}
    return tuple(sorted((name for name, time in times.items() if time), key=lambda name: -times[name]))


def _shown(sources: list[MetricSource], choice: str, lines: int) -> list[MetricSource]:
    """Return the chosen metrics: as ``FITTING``, the usual metrics if they fit, else their first families."""
    usual = [source for source in sources if source.has_lane]
    if choice != FITTING:
        named = [source for source in sources if source.metric == choice]
        return {NO_METRICS: [], NETWORK: [], USUAL: usual, EVERY: sources}.get(choice, named)
    if not usual or len(usual) <= lines:
        return usual
    gpus = len({(source.report, source.gpu) for source in usual})
    families = [family for family in MOST_TELLING if any(source.family == family for source in usual)]
    shown_families = families[: max(lines, 0) // gpus]
    return [source for source in usual if source.family in shown_families]


# -- the numbers ------------------------------------------------------------------------------------------------------


def _bins_in(window: Window, columns: int) -> int:
    """Return the number of bins: never shorter than 1 ns, the chart repeats blocks instead; 0 without time."""
    return max(0, min(columns, window.end - window.start))


def _gpus(
    job: OpenJob, selection: Selection, busy: BusyIntervals, window: Window, bins: int, sources: Sequence[MetricSource]
) -> tuple[GpuLanes, ...]:
    """Return the devices by rank, then GPUs without work."""
    if not bins:
        return ()
    metrics = _metrics(metric_lanes(job.session, selection, window, bins, sources) if sources else [])
    several = any(len(item.device.task.devices) > 1 for item in busy.devices)
    gpus, gpus_with_work = [], set()
    part_names = ("busy", *dict.fromkeys(name for name, *_ in (*STACK, *PARTS)))
    for item in busy.devices:
        device = item.device
        gpu_key = (device.task.task.report, device.gpu)
        gpus_with_work.add(gpu_key)
        title = f"rank {device.task.rank}" + (f" {numbered('d', device.device)}" if several else "")
        parts = {name: tuple(item.share(name, window, bins).tolist()) for name in part_names}
        gpus.append(GpuLanes(device, title, parts, item.breakdown(window), metrics.get(gpu_key, ())))
    names = {report.index: f"{report.name} " for report in job.session.reports}
    for (report, gpu), gpu_metrics in metrics.items():
        if (report, gpu) not in gpus_with_work:
            title = f"{names[report] if len(names) > 1 else ''}GPU {gpu}"
            gpus.append(GpuLanes(None, title, {}, NOTHING, gpu_metrics))
    return tuple(gpus)


def _hosts(job: OpenJob, selection: Selection, window: Window, bins: int) -> tuple[GpuLanes, ...]:
    """Return each host's network: times of slow collectives; bytes sent and received, and waits, of each adapter.

    Switches belong to no host. Rates, and waits, are shares of the largest in view.
    """
    if not bins:
        return ()
    by_host = grouped(((adapter.link == SWITCH, adapter.host), adapter) for adapter in adapters(job, selection)[0])
    lanes_by_host = {host: list(_adapter_lanes(host_adapters, window, bins)) for host, host_adapters in by_host.items()}
    tops: dict[str, float] = {}
    for _, values, _, unit in (lane for lanes in lanes_by_host.values() for lane in lanes):
        tops[unit] = max(tops.get(unit, 0.0), float(np.fmax.reduce(values, initial=0.0)))
    slow, hosts = slow_collectives(job, selection), []
    for (is_switch, host), lanes in lanes_by_host.items():
        metrics = [
            Metric(safe_text(label), tuple((values / (tops[unit] or 1.0)).tolist()), value, tops[unit], unit)
            for label, values, value, unit in lanes
        ]
        if host in slow and not is_switch:
            share = covered_per_bin(slow[host], window.start, window.end, bins) * (bins / (window.end - window.start))
            metrics.insert(0, Metric("slow NCCL", tuple(share.tolist()), 100 * float(share.mean()), category="nccl"))
        title = "switches" if is_switch else safe_text(host) or "adapters"
        hosts.append(GpuLanes(None, title, {}, NOTHING, tuple(metrics), is_host=True))
    return tuple(hosts)


def _adapter_lanes(
    host_adapters: Sequence[Adapter], window: Window, bins: int
) -> Iterator[tuple[str, Floats, float | None, str]]:
    """Yield label, mean rate of each bin and of the window, and unit of the lanes of a host's adapters, or of switches.

    Repeated names get the link or GUID.
    """
    names = Counter(nic.name for nic in host_adapters)
    times = union([window.start], [window.end])
    for nic in host_adapters:
        name = nic.name if names[nic.name] == 1 else f"{nic.name} {nic.guid if nic.link == SWITCH else nic.link}"
        for figure, word, unit in ((SENT, "sent", "B/s"), (RECEIVED, "recv", "B/s"), (WAITS, "wait", "ticks/ms")):
            samples = nic.figures[figure]
            if len(samples[0]):
                values = np.maximum(mean_rate(*samples, window.start, window.end, bins), 0.0)  # no -0.1 from rounding
                yield f"{word} {name}", values, moved_within(samples, times)[0], unit


def _metrics(lanes: Sequence[MetricLane]) -> dict[tuple[int, int | None], tuple[Metric, ...]]:
    """Return the metrics by (report, GPU); metrics that share a family keep nsys's names."""
    by_gpu: dict[tuple[int, int | None], list[MetricLane]] = {}
    tops: dict[str, float] = {}
    for lane in lanes:
        by_gpu.setdefault((lane.source.report, lane.source.gpu), []).append(lane)
        largest = max((value for value in lane.values.tolist() if not math.isnan(value)), default=0.0)
        name = lane.source.metric
        tops[name] = 100.0 if lane.source.is_percent else max(tops.get(name, 0.0), largest)
    metrics = {}
    for gpu_key, gpu_lanes in by_gpu.items():
        families = [lane.source.family for lane in gpu_lanes]
        metrics[gpu_key] = tuple(
            Metric(
                safe_text(lane.source.family if families.count(lane.source.family) == 1 else lane.source.label),
                held_back(tuple(value / (tops[lane.source.metric] or 1.0) for value in lane.values.tolist())),
                lane.mean,
                tops[lane.source.metric],
                safe_text(lane.source.unit),
            )
            for lane in gpu_lanes
        )
    return metrics


def held_back(bins: Bins) -> Bins:
    """Return ``bins`` with gaps between samples filled, if a column is shorter than the sampling period.

    A sample covers the bins since the previous sample. Unusually long gaps remain: nothing was recorded there.
    """
    steps = list(pairwise([index for index, value in enumerate(bins) if not math.isnan(value)]))
    usual = sorted(later - earlier for earlier, later in steps)[len(steps) // 2] if steps else 0
    filled = list(bins)
    for earlier, later in steps:
        if later - earlier <= usual + 1:
            filled[earlier + 1 : later] = [bins[later]] * (later - earlier - 1)
    return tuple(filled)


# -- the lanes --------------------------------------------------------------------------------------------------------


def _arranged(
    gpus: Sequence[GpuLanes], parts: Sequence[str], heights: tuple[int, int], halves: bool
) -> tuple[tuple[Lane, ...], tuple[int, ...]]:
    """Return the lanes of all GPUs, and each lane's GPU; ``heights``: of stacks and of metrics."""
    lanes: list[Lane] = []
    owners: list[int] = []
    for number, gpu in enumerate(gpus):
        gpu_lanes = _work_lanes(gpu, parts, heights[0], halves)
        indent = f"{gpu.title} " if gpu.device is None and not gpu.is_host else "  "
        for metric_index, metric in enumerate(gpu.metrics):
            stack = ((metric.category, metric.bins),)
            lane = Lane(f"{indent}{metric.label}", metric.bins, metric.value(), stack=stack, height=heights[1])
            if gpu.is_host and not metric_index:  # the first lane shows the host's name, and below it the metric
                lane = replace(lane, label=gpu.title, height=heights[1] + 1, notes=((metric.category, metric.label),))
            gpu_lanes.append(lane)
        lanes += gpu_lanes
        owners += [number] * len(gpu_lanes)
    return tuple(lanes), tuple(owners)


def _work_lanes(gpu: GpuLanes, parts: Sequence[str], height: int, halves: bool) -> list[Lane]:
    if gpu.device is None:
        return []
    # The parts are the same for all devices and views, so that rows of two devices are comparable.
    occurring = [part for part in STACK if part[0].removeprefix("exposed_").removesuffix("_only") in parts]
    drawn = [part for part in occurring or STACK[:1] if gpu.totals.known(part[0]) is not None]
    stack = tuple((category, gpu.parts[name]) for name, _, category in drawn)
    shares = [gpu.totals.percent(gpu.totals.known(name)) for name, *_ in occurring]
    notes = tuple(
        (category, f"{label:<7}{MISSING if share is None else f'{share:.1f}':>6}")
        for (_, label, category), share in zip(occurring, shares, strict=True)
    )
    busy = gpu.totals.percent(gpu.totals.busy)
    value = "–" if busy is None else f"{busy:.0f}" if halves else format_value(Unit.PERCENT, busy)
    return [Lane(gpu.title, gpu.parts["busy"], value, stack=stack, height=height, notes=notes)]


# -- a rank and the median rank ---------------------------------------------------------------------------------------


def compared_lanes(
    job: OpenJob, selection: Selection, rank: int, columns: int, height: int
) -> tuple[Window, list[Lane], Sequence[tuple[int, str]]]:
    """Return the selected time, the lanes of a rank and of the rank with median compute, and the steps. Blocks."""
    window = job.extent(selection)
    busy = job.busy(selection)
    lanes: list[Lane] = []
    for number in dict.fromkeys((rank, busy.median_rank(window))):
        rank_busy = replace(busy, devices=tuple(device for device in busy.devices if device.device.task.rank == number))
        for gpu in _gpus(job, selection, rank_busy, window, _bins_in(window, columns), ()):
            label = gpu.title if number == rank else f"{gpu.title}, median"
            lanes += [replace(lane, label=label) for lane in _work_lanes(gpu, _occurring(busy, window), height, False)]
    return window, lanes, _steps(job, busy, window)


# -- the details ------------------------------------------------------------------------------------------------------

_Columns = tuple[int, int]
"""The first and last column in view."""


def detail_lines(
    picture: GpuPicture, lane: int, columns: _Columns, times: tuple[int, int], marked: bool, width: int, max_lines: int
) -> list[PartLine]:
    """Return the lines below the lanes: at most ``max_lines`` lines of ``width`` cells.

    ``columns`` of ``times`` (ns) are under the cursor or ``marked``.
    """
    gpu = picture.gpus[picture.owners[lane]]
    when = [("marked " if marked else "column ", ""), (span_words(Window(*times)), "bold")]
    lines: list[PartLine] = [[(_device_words(gpu), "bold")], [*when, ("   enter selects it for every screen", "dim")]]
    lines += wrapped(_work_values(gpu, picture.parts, columns), width)
    shares = [(metric, mean(metric.bins, columns)) for metric in gpu.metrics]
    # Short: ten metrics must fit on two lines.
    parts = [(f"{item.label} {item.words(share and share * item.top)}", item.category) for item, share in shares]
    lines += wrapped(parts, width)
    notes = [line for note in picture.notes for line in textwrap.wrap(safe_text(note), max(20, width))]
    room = max_lines - len(lines)
    if 0 < room < len(notes):
        notes[room - 1] = fit(f"{notes[room - 1]} …", width)
    return [*lines, *([(line, "dim")] for line in notes)][:max_lines]


def _device_words(gpu: GpuLanes) -> str:
    device = gpu.device
    if gpu.is_host:
        return f"{gpu.title}: network adapters; rates as shares of the largest in view"
    if device is None:
        return f"{gpu.title}: metrics only, no GPU work was recorded there"
    words = [f"rank {device.task.rank}", numbered("device", device.device)]
    if device.gpu is not None:
        words.append(f"GPU {device.gpu}")
    words += [word for word in ((device.model or "").removeprefix("NVIDIA "), device.task.host) if word]
    return " · ".join([*words, device.task.report_name])


def _work_values(gpu: GpuLanes, occurring: Collection[str], columns: _Columns) -> list[TextPart]:
    if gpu.device is None:
        return []
    busy = mean(gpu.parts["busy"], columns)
    if busy is None:
        return [("not recorded here", "")]
    values: list[TextPart] = [(f"busy {_percent(busy)}", "bold")]
    for name, label, category in PARTS:
        share = mean(gpu.parts[name], columns) if name in occurring else None
        if share is not None:
            exposed = f" (exposed {_percent(mean(gpu.parts['exposed_nccl'], columns))})" if name == "nccl" else ""
            values.append((f"■ {label} {_percent(share)}{exposed}", category))
    values.append((f"idle {_percent(1.0 - busy)}", "idle"))
    return values


def mean(bins: Bins, columns: _Columns) -> float | None:
    """Return the mean of these columns, all equally wide; ``None`` if no column has a value."""
    values = [value for value in bins[columns[0] : columns[1] + 1] if not math.isnan(value)]
    return sum(values) / len(values) if values else None


def _percent(share: float | None) -> str:
    return format_value(Unit.PERCENT, None if share is None else 100 * share)
