"""The picture on the GPU screen: the lanes of the selected devices over a window of time, asked for in one go."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from nsystui.base.answer import END, RANK, START, UNKNOWN, Column, Row, TableAnswer, Unit
from nsystui.base.selection import Selection, Task, Window
from nsystui.base.text import safe_text
from nsystui.base.units import MISSING, format_value, numbered
from nsystui.questions.algebra.intervals import covered_per_bin, union
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
from nsystui.questions.queries.data_notes import missing_note
from nsystui.questions.queries.tasks import RankedTask
from nsystui.questions.queries.time_window import edges_of
from nsystui.questions.ranks.steps import step_times
from nsystui.questions.timeline.streams import queues
from nsystui.store import tables
from nsystui.ui.pictures.zoom import inside
from nsystui.ui.widgets.panels import Part, wrapped
from nsystui.ui.widgets.strip_chart import Lane

Bins = tuple[float, ...]
"""0 to 1 for each column of the chart, NaN where nothing was recorded."""

STACK = (
    ("kernels", "compute", "compute"),
    ("exposed_nccl", "exposed", "nccl"),
    ("memory_only", "memory", "memory"),
    ("graph_only", "graph", "graph"),
)
"""What a busy device is stacked of, from below: name in ``DeviceLanes``, label, category. Together they are busy."""

PARTS = (("kernels", "compute", "compute"), ("nccl", "NCCL", "nccl"), ("memory", "memory", "memory"), ("graph",) * 3)
"""The parts of a busy device, each whole: name in ``DeviceLanes``, label, category."""

MOST_TELLING = ("SM active", "tensor active", "DRAM read", "NVLink TX", "PCIe RX")
"""The metric families shown first where there is not room for all."""

FITTING, NO_METRICS, USUAL, EVERY, NETWORK, QUEUES = "as room", "none", "usual", "every", "network", "queues"
"""The lanes that may be chosen below those of the GPUs, besides a single metric: those that fit, none, one of each
family, all; what network adapters moved; or how many launches wait, stream by stream."""

MOST_QUEUES = 8
"""So many streams of a GPU have lanes of their queues: those in which most launches wait."""

_LOW, _FEWEST_STACKS = 3, 3
"""Rows of a stack before metrics get any; a stack is at most as high as so many would be on the whole screen."""


@dataclass(frozen=True)
class GpuPictureRequest:
    """The request for a picture: the window in view (``None``: all of the selection), its columns and lines.

    ``metrics``: ``FITTING``, ``NO_METRICS``, ``USUAL``, ``EVERY``, ``NETWORK``, ``QUEUES``, or the name of a metric;
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

    ``bins`` are shares of ``top``: of 100 %, or of the largest value of any GPU or adapter in view.
    """

    label: str
    bins: Bins
    mean: float | None
    top: float = 100.0
    unit: str = "%"
    category: str = "metric"

    def words(self, value: float | None) -> str:
        """A value in few cells: percentages without decimals, for the counters are not that exact."""
        if value is None:
            return MISSING
        if self.unit.startswith("%"):
            return f"{value:.0f} %"
        if self.unit == _WAITING:
            return f"{value:,.1f} waiting"
        number, unit = _scaled(value, self.unit)
        return f"{number:.3g} {unit}"

    def value(self) -> str:
        """The mean in the seven cells at the right of a lane."""
        if self.unit.startswith("%"):
            return format_value(Unit.PERCENT, self.mean)
        if self.mean is None:
            return MISSING
        if self.unit == _WAITING:
            return f"{self.mean:,.1f}"
        number, unit = _scaled(self.mean, self.unit.removeprefix("ticks"))
        digits = f"{number:.3g}" if self.unit != "B/s" else f"{number:.{1 if number < _TWO_DIGITS else 0}f}"
        return f"{digits}{unit}"


_WAITING = "launches"
"""The unit of a queue."""
_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_PREFIXED = {f"{prefix}Hz": size for size, prefix in _PREFIXES}
"""The units of clocks with a prefix of their own: 1,755 ``MHz`` are 1.76 ``GHz``."""
_ROUNDED, _TWO_DIGITS = 0.9995, 9.95
"""From what part on a value is one of the next prefix, and from what number on it has no decimals in few cells."""


def _scaled(value: float, unit: str) -> tuple[float, str]:
    """A value in the largest multiple of its unit of which it is one or more, and that multiple."""
    if unit in _PREFIXED:
        value, unit = value * _PREFIXED[unit], "Hz"
    size, prefix = next((one for one in _PREFIXES if value >= _ROUNDED * one[0]), (1.0, ""))
    return value / size, f"{prefix}{unit}"


@dataclass(frozen=True)
class GpuLanes:
    """One device, or (``device`` is ``None``) a GPU of which there are metrics but no work, or a host's network."""

    device: Device | None
    title: str
    parts: Mapping[str, Bins]
    """By name: ``busy`` and those of ``STACK`` and ``PARTS``; empty without a device."""
    totals: Breakdown
    metrics: tuple[Metric, ...]
    is_host: bool = False

    @property
    def key(self) -> Hashable:
        """The same for the same GPU in another picture."""
        return self.title if self.device is None else (self.device.task.task, self.device.device)


@dataclass(frozen=True)
class GpuPicture:
    """Everything on the screen. ``lanes[i]`` belongs to ``gpus[owners[i]]``; ``base`` is what ``0`` views."""

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
    """The recorded names of all GPU metrics, those of the families first."""
    has_network: bool
    """Whether adapters were sampled."""
    has_queues: bool
    """Whether launches are known."""
    answer: TableAnswer
    """The utilisation table of ``window``, one row for each device."""
    notes: tuple[str, ...]
    ranks: tuple[RankedTask, ...]


def gpu_picture(job: OpenJob, selection: Selection, wanted: GpuPictureRequest) -> GpuPicture:
    """The picture of a selection. Blocks: call it in a thread."""
    base = job.extent(selection)
    window = inside(wanted.view, base) or base if wanted.view is not None else base
    busy = job.busy(selection)
    occurring = _occurring(busy, base)
    sources = job.once(
        ("metric-sources", selection.tasks, selection.devices), lambda: metric_sources(job.session, selection, True)
    )
    steps = _steps(job, busy, window)
    shown = _shown(sources, wanted.metrics, wanted.lines - bool(steps) - _LOW * len(busy.devices))
    queued = _queues(job, selection, window, wanted.columns) if wanted.metrics == QUEUES else {}
    gpus = _gpus(job, selection, busy, window, wanted.columns, shown, queued)
    hosts = _hosts(job, selection, window, wanted.columns) if wanted.metrics == NETWORK else ()
    gpus += hosts
    lines = wanted.lines - bool(steps) - len(hosts)
    heights = _heights(gpus, lines)
    halves = wanted.halves and not shown and not hosts and len(gpus) > lines
    lanes, owners = _arranged(gpus, occurring, heights, halves)
    answer = utilisation_table(busy, window)
    lacking = "" if lanes else missing_note(job.session, tables.gpu_metrics)
    notes = (*answer.notes, lacking) if lacking else answer.notes
    return GpuPicture(
        base=base,
        window=window,
        gpus=gpus,
        parts=occurring,
        lanes=lanes,
        owners=owners,
        halves=halves,
        steps=steps,
        metrics=tuple(dict.fromkeys(one.metric for one in sorted(sources, key=lambda one: one.place))),
        has_queues=bool(job.session.count(tables.api_calls)),
        has_network=any(job.session.count(table) for table in (tables.nic_metrics, tables.efa_samples)),
        answer=answer,
        notes=notes,
        ranks=job.ranks,
    )


def _steps(job: OpenJob, busy: BusyIntervals, window: Window) -> tuple[tuple[int, str], ...]:
    """The starts of the steps of the first task that has any."""
    times = step_times(job.steps(), window)
    own = next((times[item.device.task.task] for item in busy.devices if item.device.task.task in times), None)
    if own is None:
        return ()
    return tuple((start, str(number)) for start, number in zip(own.start.tolist(), own.numbers.tolist(), strict=True))


def _heights(gpus: Sequence[GpuLanes], lines: int) -> tuple[int, int]:
    """The rows of every stack beside the lanes of metrics, and of every metric where the stacks leave some."""
    devices, metrics = sum(gpu.device is not None for gpu in gpus), sum(len(gpu.metrics) for gpu in gpus)
    height = max(1, min((lines - metrics) // devices, lines // _FEWEST_STACKS)) if devices else 1
    return height, max(1, min((lines - devices * height) // metrics, _LOW)) if metrics else 1


def _occurring(busy: BusyIntervals, base: Window) -> tuple[str, ...]:
    """The parts that any device has anywhere in ``base``, largest first: the same for every device, and all zooms."""
    spent = sum((item.breakdown(base) for item in busy.devices), NOTHING)
    found = [name for name, *_ in PARTS if getattr(spent, name)]
    return tuple(sorted(found, key=lambda name: -getattr(spent, name)))


def _shown(every: list[MetricSource], wanted: str, lines: int) -> list[MetricSource]:
    """The metrics that are wanted, or that ``lines`` have room for: the usual ones, or of them the most telling ones.

    They are the same for every GPU.
    """
    sources = [source for source in every if source.has_lane]
    if wanted != FITTING:
        named = [source for source in every if source.metric == wanted]
        return {NO_METRICS: [], NETWORK: [], QUEUES: [], USUAL: sources, EVERY: every}.get(wanted, named)
    if not sources or len(sources) <= lines:
        return sources
    gpus = len({(source.report, source.gpu) for source in sources})
    families = [family for family in MOST_TELLING if any(source.family == family for source in sources)]
    chosen = families[: max(lines, 0) // gpus]
    return [source for source in sources if source.family in chosen]


# -- the numbers ------------------------------------------------------------------------------------------------------


def _gpus(
    job: OpenJob,
    selection: Selection,
    busy: BusyIntervals,
    window: Window,
    columns: int,
    sources: Sequence[MetricSource],
    queued: Mapping[tuple[Task, int], tuple[Metric, ...]],
) -> tuple[GpuLanes, ...]:
    """The devices by rank, then the GPUs that have only metrics; a device has ``queued`` by its task and ordinal."""
    length = window.end - window.start
    if length <= 0:
        return ()
    bins = min(columns, length)  # a bin shorter than 1 ns would say nothing: the chart repeats blocks instead
    metrics = _metrics(metric_lanes(job.session, selection, window, bins, sources) if sources else [])
    several = any(len(item.device.task.devices) > 1 for item in busy.devices)
    found, used = [], set()
    for lanes in busy.lanes(window, bins):
        device = lanes.device
        place = (device.task.task.report, device.gpu)
        used.add(place)
        title = f"rank {device.task.rank}" + (f" {numbered('d', device.device)}" if several else "")
        part_names = ("busy", *dict.fromkeys(name for name, *_ in (*STACK, *PARTS)))
        parts = {name: tuple(getattr(lanes, name).tolist()) for name in part_names}
        own = queued.get((device.task.task, device.device), metrics.get(place, ()))
        found.append(GpuLanes(device, title, parts, lanes.totals, own))
    names = {report.index: f"{report.name} " for report in job.session.reports}
    for (report, gpu), own in metrics.items():
        if (report, gpu) not in used:
            title = f"{names[report] if len(names) > 1 else ''}GPU {gpu}"
            found.append(GpuLanes(None, title, {}, NOTHING, own))
    return tuple(found)


def _queues(
    job: OpenJob, selection: Selection, window: Window, columns: int
) -> Mapping[tuple[Task, int], tuple[Metric, ...]]:
    """How many launches wait in the streams of each device, as shares of the most of all; by task and ordinal."""
    length = window.end - window.start
    if length <= 0:
        return {}
    edges = np.array(edges_of(window, min(columns, length)))
    found: dict[tuple[Task, int], list[tuple[float, int, NDArray[np.float64]]]] = {}
    for (task, device, stream, _), queue in queues(job, selection).items():
        means = queue.mean(edges)
        found.setdefault((task, device), []).append((float(means.mean()), stream, means))
    top = max((float(means.max()) for own in found.values() for *_, means in own), default=0.0) or 1.0
    return {
        place: tuple(
            Metric(
                "queue of unknown stream" if stream == UNKNOWN else f"queue {stream}",
                tuple((means / top).tolist()),
                mean,
                top,
                _WAITING,
                "api",
            )
            for mean, stream, means in sorted(own, key=lambda one: (-one[0], one[1]))[:MOST_QUEUES]
        )
        for place, own in found.items()
    }


_Moved = tuple[str, NDArray[np.float64], float | None, str]
"""What an adapter moved: a label, the mean rate of each bin, that of the window, and their unit."""


def _hosts(job: OpenJob, selection: Selection, window: Window, columns: int) -> tuple[GpuLanes, ...]:
    """The network by host: when its slow collectives ran, and what each adapter sent, received and waited.

    Switches are on no host. Rates are shares of the largest one of all, and so are waits.
    """
    length = window.end - window.start
    if length <= 0:
        return ()
    bins = min(columns, length)
    by_host: dict[tuple[bool, str], list[Adapter]] = {}
    for one in adapters(job, selection)[0]:
        by_host.setdefault((one.link == SWITCH, one.host), []).append(one)
    moved = {host: list(_moved(own, window, bins)) for host, own in by_host.items()}
    tops: dict[str, float] = {}
    for _, values, _, unit in (lane for lanes in moved.values() for lane in lanes):
        tops[unit] = max(tops.get(unit, 0.0), float(np.fmax.reduce(values, initial=0.0)))
    slow, hosts = slow_collectives(job, selection), []
    for (is_switch, host), lanes in moved.items():
        metrics = [
            Metric(safe_text(label), tuple((values / (tops[unit] or 1.0)).tolist()), value, tops[unit], unit)
            for label, values, value, unit in lanes
        ]
        if host in slow and not is_switch:
            share = covered_per_bin(slow[host], window.start, window.end, bins) * (bins / length)
            metrics.insert(0, Metric("slow NCCL", tuple(share.tolist()), 100 * float(share.mean()), category="nccl"))
        title = "switches" if is_switch else safe_text(host) or "adapters"
        hosts.append(GpuLanes(None, title, {}, NOTHING, tuple(metrics), is_host=True))
    return tuple(hosts)


def _moved(own: Sequence[Adapter], window: Window, bins: int) -> Iterator[_Moved]:
    """The lanes of the adapters of a host, or of the switches; one that shares its name has its link or GUID, too."""
    names = Counter(one.name for one in own)
    times = union([window.start], [window.end])
    for one in own:
        name = one.name if names[one.name] == 1 else f"{one.name} {one.guid if one.link == SWITCH else one.link}"
        for place, word, unit in ((SENT, "sent", "B/s"), (RECEIVED, "recv", "B/s"), (WAITS, "wait", "ticks/ms")):
            samples = one.figures[place]
            if len(samples[0]):
                values = np.maximum(mean_rate(*samples, window.start, window.end, bins), 0.0)  # no -0.1 by rounding
                yield f"{word} {name}", values, moved_within(samples, times)[0], unit


def _metrics(lanes: Sequence[MetricLane]) -> dict[tuple[int, int | None], tuple[Metric, ...]]:
    """The metrics of each (report, GPU); one that shares its family with another keeps nsys's name."""
    by_gpu: dict[tuple[int, int | None], list[MetricLane]] = {}
    tops: dict[str, float] = {}
    for lane in lanes:
        by_gpu.setdefault((lane.source.report, lane.source.gpu), []).append(lane)
        largest = max((value for value in lane.values.tolist() if not math.isnan(value)), default=0.0)
        name = lane.source.metric
        tops[name] = 100.0 if lane.source.is_percent else max(tops.get(name, 0.0), largest)
    found = {}
    for place, own in by_gpu.items():
        families = [lane.source.family for lane in own]
        found[place] = tuple(
            Metric(
                safe_text(lane.source.family if families.count(lane.source.family) == 1 else lane.source.label),
                held_back(tuple(value / (tops[lane.source.metric] or 1.0) for value in lane.values.tolist())),
                lane.mean,
                tops[lane.source.metric],
                safe_text(lane.source.unit),
            )
            for lane in own
        )
    return found


def held_back(bins: Bins) -> Bins:
    """``bins`` with the gaps between samples filled, where a column is shorter than the sampling period.

    A sample says what was since the one before it, so that it fills the bins between the two. Longer gaps than usual
    stay: nothing was recorded there.
    """
    known = [place for place, value in enumerate(bins) if not math.isnan(value)]
    steps = list(pairwise(known))
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
    """The lanes of every GPU one below the other, and which GPU each belongs to; heights of stacks and of metrics."""
    lanes: list[Lane] = []
    owners: list[int] = []
    for number, gpu in enumerate(gpus):
        own = _work_lanes(gpu, parts, heights[0], halves)
        indent = f"{gpu.title} " if gpu.device is None and not gpu.is_host else "  "
        for place, metric in enumerate(gpu.metrics):
            stack = ((metric.category, metric.bins),)
            lane = Lane(f"{indent}{metric.label}", metric.bins, metric.value(), stack=stack, height=heights[1])
            if gpu.is_host and not place:  # the host's name stands at the first lane, and what that shows below
                notes = ((metric.category, metric.label),)
                lane = replace(lane, label=gpu.title, height=heights[1] + 1, notes=notes)
            own.append(lane)
        lanes += own
        owners += [number] * len(own)
    return tuple(lanes), tuple(owners)


def _work_lanes(gpu: GpuLanes, parts: Sequence[str], height: int, halves: bool) -> list[Lane]:
    """The stack of a device; the rows below its label tell what it is made of."""
    if gpu.device is None:
        return []
    # A part of every device in every view: else the colours below each other would mean other rows.
    occurring = [one for one in STACK if one[0].removeprefix("exposed_").removesuffix("_only") in parts]
    stack = tuple((category, gpu.parts[name]) for name, _, category in occurring or STACK[:1])
    shares = [gpu.totals.percent(getattr(gpu.totals, name)) for name, *_ in occurring]
    notes = tuple(
        (category, f"{label:<7}{MISSING if share is None else f'{share:.1f}':>6}")
        for (_, label, category), share in zip(occurring, shares, strict=True)
    )
    busy = gpu.totals.percent(gpu.totals.busy)
    value = "–" if busy is None else f"{busy:.0f}" if halves else format_value(Unit.PERCENT, busy)
    return [Lane(gpu.title, gpu.parts["busy"], value, stack=stack, height=height, notes=notes)]


# -- a rank beside the others -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ComparedLanes:
    """The lanes of a rank, and of the median rank, over the selected time; the steps as in ``GpuPicture``."""

    window: Window
    lanes: tuple[Lane, ...]
    steps: tuple[tuple[int, str], ...]


def compared_lanes(job: OpenJob, selection: Selection, rank: int, columns: int, height: int) -> ComparedLanes:
    """The lanes of a rank above those of the one whose share of compute is the median. Blocks: call it in a thread.

    Compute, for ranks that wait for a slow one are as busy as that one is.
    """
    window = job.extent(selection)
    busy = job.busy(selection)
    by_share = sorted(busy.devices, key=lambda item: item.breakdown(window).kernels)
    median = by_share[(len(by_share) - 1) // 2].device.task.rank if by_share else rank
    lanes: list[Lane] = []
    for number in dict.fromkeys((rank, median)):
        own = replace(busy, devices=tuple(item for item in busy.devices if item.device.task.rank == number))
        for gpu in _gpus(job, selection, own, window, columns, (), {}):
            label = gpu.title if number == rank else f"{gpu.title}, median"
            lanes += [replace(lane, label=label) for lane in _work_lanes(gpu, _occurring(busy, window), height, False)]
    return ComparedLanes(window, tuple(lanes), _steps(job, busy, window))


# -- the details ------------------------------------------------------------------------------------------------------

Line = list[Part]
Columns = tuple[int, int]
"""The first and last column in view."""


def detail_lines(
    picture: GpuPicture, lane: int, columns: Columns, times: tuple[int, int], marked: bool, width: int, most: int
) -> list[Line]:
    """The lines below the lanes: at most ``most`` lines of ``width`` cells.

    ``columns`` of ``times`` (ns) are under the cursor or ``marked``.
    """
    gpu = picture.gpus[picture.owners[lane]]
    start, length = format_value(Unit.TIME, times[0]), format_value(Unit.DURATION, times[1] - times[0])
    when = [("marked " if marked else "column ", ""), (f"{start} + {length}", "bold")]
    lines: list[Line] = [[(_place_of(gpu), "bold")], [*when, ("   enter selects it for every screen", "dim")]]
    lines += wrapped(_work_values(gpu, picture.parts, columns), width)
    shares = [(metric, mean(metric.bins, columns)) for metric in gpu.metrics]
    # In few words: ten metrics must fit on two lines.
    values = [(f"{one.label} {one.words(share and share * one.top)}", one.category) for one, share in shares]
    lines += wrapped(values, width)
    notes = [line for note in picture.notes for line in textwrap.wrap(safe_text(note), max(20, width))]
    return [*lines, *([(line, "dim")] for line in notes)][:most]


def _place_of(gpu: GpuLanes) -> str:
    """``rank 5 · device 0 · GPU 3 · H100 80GB HBM3 · host n05``."""
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


def _work_values(gpu: GpuLanes, occurring: Collection[str], columns: Columns) -> list[Part]:
    """How busy the device was in these columns, and with what."""
    if gpu.device is None:
        return []
    busy = mean(gpu.parts["busy"], columns)
    if busy is None:
        return [("not recorded here", "")]
    values: list[Part] = [(f"busy {_percent(busy)}", "bold")]
    for name, label, category in PARTS:
        share = mean(gpu.parts[name], columns) if name in occurring else None
        if share is not None:
            exposed = f" (exposed {_percent(mean(gpu.parts['exposed_nccl'], columns))})" if name == "nccl" else ""
            values.append((f"■ {label} {_percent(share)}{exposed}", category))
    values.append((f"idle {_percent(1.0 - busy)}", "idle"))
    return values


LANE_COLUMNS = (
    RANK,
    Column("device", header="Device", label="device", unit=Unit.DEVICE),
    Column("lane", header="Lane", label="lane"),
    START,
    END,
    Column("percent", header="Share (%)", label="%", unit=Unit.PERCENT, decimals=3),
    Column("value", header="Value", label="value", unit=Unit.COUNT, decimals=3),
    Column("unit", header="Unit", label="unit"),
)


def lanes_table(picture: GpuPicture) -> TableAnswer:
    """The lanes as they are shown: a row for each column of each part and metric of each GPU.

    The parts of a device are those of its stack, and ``idle``: together they are 100 %. A metric that is no percentage
    has a value instead. Where nothing was recorded there is neither.
    """
    rows: list[Row] = []
    for gpu in picture.gpus:
        place = (None, None) if gpu.device is None else (gpu.device.task.rank, gpu.device.device)
        lanes: list[tuple[str, Sequence[float], float, str]] = []
        if gpu.device is not None:
            lanes += [
                (label if name != "exposed_nccl" else "exposed NCCL", gpu.parts[name], 100.0, "%")
                for name, label, _ in STACK
            ]
            lanes.append(("idle", [1.0 - share for share in gpu.parts["busy"]], 100.0, "%"))
        prefix = f"{gpu.title} " if gpu.device is None else ""
        lanes += [(prefix + metric.label, metric.bins, metric.top, metric.unit) for metric in gpu.metrics]
        for name, bins, top, unit in lanes:
            edges = edges_of(picture.window, len(bins))
            for share, (start, end) in zip(bins, pairwise(edges), strict=True):
                value = None if math.isnan(share) else top * share
                values = (value, None) if unit.startswith("%") else (None, value)
                rows.append((*place, name, start, end, *values, unit))
    return TableAnswer("gpu-lanes", LANE_COLUMNS, rows, len(rows), picture.notes)


def mean(bins: Bins, columns: Columns) -> float | None:
    """The mean of these columns, all equally wide; ``None`` where none has a value."""
    known = [value for value in bins[columns[0] : columns[1] + 1] if not math.isnan(value)]
    return sum(known) / len(known) if known else None


def _percent(share: float | None) -> str:
    return format_value(Unit.PERCENT, None if share is None else 100 * share)
