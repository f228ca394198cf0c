"""The picture on the GPU screen: the lanes of the selected devices over a window of time, asked for in one go."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from nsystui.base.answer import TableAnswer
from nsystui.base.columns import Unit
from nsystui.base.selection import Selection, Window
from nsystui.base.text import safe_text
from nsystui.base.units import MISSING, format_value
from nsystui.questions.data_notes import missing_note
from nsystui.questions.gpu.device_time import NOTHING, Breakdown, Device, DeviceLanes
from nsystui.questions.gpu.metrics import MetricLane, MetricSource, metric_lanes, metric_sources
from nsystui.questions.gpu.utilisation import BusyIntervals, utilisation_table
from nsystui.questions.job import Job
from nsystui.questions.tasks import RankedTask
from nsystui.store import tables
from nsystui.ui.pictures.zoom import inside
from nsystui.ui.widgets.charts import Lane
from nsystui.ui.widgets.lines import Part, wrapped

Bins = tuple[float, ...]
"""0 to 1 for each column of the chart, NaN where nothing was recorded."""

PARTS = (("kernels", "compute", "compute"), ("nccl", "NCCL", "nccl"), ("memory", "memory", "memory"), ("graph",) * 3)
"""The parts of a busy device: name in ``DeviceLanes``, label, category."""


MOST_TELLING = ("SM active", "tensor active", "DRAM read", "NVLink TX", "PCIe RX")
"""The metric families shown first where there is not room for all."""


@dataclass(frozen=True)
class Wanted:
    """The request for a picture: the window in view (``None``: all of the selection), its columns and lines.

    ``metrics`` is whether to show lanes of GPU metrics, ``None`` where they fit.
    """

    view: Window | None
    columns: int
    lines: int
    metrics: bool | None


@dataclass(frozen=True)
class Metric:
    """A metric of one GPU over time; ``mean`` in percent, of all samples in the window."""

    label: str
    bins: Bins
    mean: float | None


@dataclass(frozen=True)
class GpuLanes:
    """One device, or (``device`` is ``None``) a GPU of which there are metrics but no work."""

    device: Device | None
    title: str
    parts: Mapping[str, Bins]
    """By name: ``busy``, ``exposed_nccl`` and those of ``PARTS``; empty without a device."""
    totals: Breakdown
    metrics: tuple[Metric, ...]

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
    has_metrics: bool
    shows_metrics: bool
    answer: TableAnswer
    """The utilisation table of ``window``, one row for each device."""
    notes: tuple[str, ...]
    ranks: tuple[RankedTask, ...]


def gpu_picture(job: Job, selection: Selection, wanted: Wanted) -> GpuPicture:
    """The picture of a selection. Blocks: call it in a thread."""
    base = job.extent(selection)
    window = inside(wanted.view, base) or base if wanted.view is not None else base
    busy = job.busy(selection)
    occurring = _occurring(busy, base)
    sources = job.once(
        ("metric-sources", selection.tasks, selection.devices), lambda: metric_sources(job.session, selection)
    )
    parts = _fitting(occurring, len(busy.devices), wanted.lines)
    lines_of_work = len(busy.devices) * (1 + len(parts))
    shown = _telling(sources, wanted.lines - lines_of_work) if parts == occurring else []
    if wanted.metrics is not None:
        shown = sources if wanted.metrics else []
    shows_metrics = bool(shown)
    gpus = _gpus(job, selection, busy, window, wanted.columns, shown)
    lanes, owners = _arranged(gpus, parts)
    answer = utilisation_table(busy, window)
    lacking = "" if lanes else missing_note(job.session, tables.gpu_metrics)
    notes = (*answer.notes, lacking) if lacking else answer.notes
    return GpuPicture(
        base, window, gpus, occurring, lanes, owners, bool(sources), shows_metrics, answer, notes, job.ranks
    )


def _occurring(busy: BusyIntervals, base: Window) -> tuple[str, ...]:
    """The parts that any device has anywhere in ``base``, largest first: the same for every device, and all zooms."""
    spent = sum((item.breakdown(base) for item in busy.devices), NOTHING)
    found = [name for name, *_ in PARTS if getattr(spent, name)]
    return tuple(sorted(found, key=lambda name: -getattr(spent, name)))


def _fitting(parts: tuple[str, ...], devices: int, lines: int) -> tuple[str, ...]:
    """The largest parts, as many as every device has a line for; all of them for a single device."""
    return parts if devices <= 1 else parts[: max(0, lines // devices - 1)]


def _telling(sources: list[MetricSource], lines: int) -> list[MetricSource]:
    """The metrics that ``lines`` have room for: all of them, or the most telling ones, the same for every GPU."""
    if len(sources) <= lines:
        return sources
    gpus = len({(source.report, source.gpu) for source in sources})
    families = [family for family in MOST_TELLING if any(source.family == family for source in sources)]
    chosen = families[: max(lines, 0) // gpus]
    return [source for source in sources if source.family in chosen]


# -- the numbers ------------------------------------------------------------------------------------------------------


def _gpus(
    job: Job,
    selection: Selection,
    busy: BusyIntervals,
    window: Window,
    columns: int,
    sources: Sequence[MetricSource],
) -> tuple[GpuLanes, ...]:
    """The devices by rank, then the GPUs that have only metrics."""
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
        title = f"rank {device.task.rank}" + (f" d{device.device}" if several else "")
        found.append(GpuLanes(device, title, _parts(lanes), lanes.totals, metrics.get(place, ())))
    for (report, gpu), own in metrics.items():
        if (report, gpu) not in used:
            found.append(GpuLanes(None, _gpu_title(job, report, gpu), {}, NOTHING, own))
    return tuple(found)


def _gpu_title(job: Job, report: int, gpu: int | None) -> str:
    """A GPU of a machine, with the file where there are several."""
    name = next(item.name for item in job.session.reports if item.index == report)
    return f"GPU {gpu}" if len(job.session.reports) == 1 else f"{name} GPU {gpu}"


def _parts(lanes: DeviceLanes) -> dict[str, Bins]:
    names = ("busy", "exposed_nccl", *(name for name, *_ in PARTS))
    return {name: tuple(getattr(lanes, name).tolist()) for name in names}


def _metrics(lanes: Sequence[MetricLane]) -> dict[tuple[int, int | None], tuple[Metric, ...]]:
    """The metrics of each (report, GPU); one that shares its family with another keeps nsys's name."""
    by_gpu: dict[tuple[int, int | None], list[MetricLane]] = {}
    for lane in lanes:
        by_gpu.setdefault((lane.source.report, lane.source.gpu), []).append(lane)
    found = {}
    for place, own in by_gpu.items():
        families = [lane.source.family for lane in own]
        found[place] = tuple(
            Metric(
                lane.source.family if families.count(lane.source.family) == 1 else lane.source.label,
                held_back(tuple(value / 100 for value in lane.values.tolist())),
                lane.mean,
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


def _arranged(gpus: Sequence[GpuLanes], parts: Sequence[str]) -> tuple[tuple[Lane, ...], tuple[int, ...]]:
    """The lanes of every GPU one below the other, and which GPU each belongs to."""
    lanes: list[Lane] = []
    owners: list[int] = []
    for number, gpu in enumerate(gpus):
        own = [*_work_lanes(gpu, parts), *_metric_lanes(gpu)]
        lanes += own
        owners += [number] * len(own)
    return tuple(lanes), tuple(owners)


def _work_lanes(gpu: GpuLanes, parts: Sequence[str]) -> list[Lane]:
    if gpu.device is None:
        return []
    lanes = [Lane(f"{gpu.title} busy", gpu.parts["busy"], _share(gpu, "busy"))]
    for name, label, category in PARTS:
        if name in parts:
            lanes.append(Lane(f"  {label}", gpu.parts[name], _share(gpu, name), category))
    return lanes


def _metric_lanes(gpu: GpuLanes) -> list[Lane]:
    indent = f"{gpu.title} " if gpu.device is None else "  "
    return [
        Lane(f"{indent}{metric.label}", metric.bins, format_value(Unit.PERCENT, metric.mean), "api")
        for metric in gpu.metrics
    ]


def _share(gpu: GpuLanes, name: str) -> str:
    return format_value(Unit.PERCENT, gpu.totals.percent(getattr(gpu.totals, name)))


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
    lines: list[Line] = [[(_place_of(gpu), "bold")], _time_line(times, marked)]
    lines += wrapped(_work_values(gpu, picture.parts, columns), width)
    lines += wrapped(_metric_values(gpu, columns), width)
    return (lines + _note_lines(picture.notes, width))[:most]


def _place_of(gpu: GpuLanes) -> str:
    """``rank 5 · device 0 · GPU 3 · H100 80GB HBM3 · host n05``."""
    device = gpu.device
    if device is None:
        return f"{gpu.title}: metrics only, no GPU work was recorded there"
    words = [f"rank {device.task.rank}", f"device {device.device}"]
    if device.gpu is not None:
        words.append(f"GPU {device.gpu}")
    words += [word for word in ((device.model or "").removeprefix("NVIDIA "), device.task.host) if word]
    return " · ".join([*words, device.task.report_name])


def _time_line(times: tuple[int, int], marked: bool) -> Line:
    start, length = format_value(Unit.TIME, times[0]), format_value(Unit.DURATION, times[1] - times[0])
    what = "marked " if marked else "column "
    return [(what, ""), (f"{start} + {length}", "bold"), ("   enter selects it for every screen", "dim")]


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
            values.append((f"{label} {_percent(share)}{exposed}", category))
    return values


def _metric_values(gpu: GpuLanes, columns: Columns) -> list[Part]:
    """Without decimals: the counters are not that exact, and ten of them must fit on two lines."""
    values = [(metric.label, mean(metric.bins, columns)) for metric in gpu.metrics]
    return [(f"{label} {MISSING if share is None else f'{100 * share:.0f} %'}", "api") for label, share in values]


def mean(bins: Bins, columns: Columns) -> float | None:
    """The mean of these columns, all equally wide; ``None`` where none has a value."""
    known = [value for value in bins[columns[0] : columns[1] + 1] if not math.isnan(value)]
    return sum(known) / len(known) if known else None


def _percent(share: float | None) -> str:
    return format_value(Unit.PERCENT, None if share is None else 100 * share)


def _note_lines(notes: Sequence[str], width: int) -> list[Line]:
    lines = [line for note in notes for line in textwrap.wrap(safe_text(note), max(20, width))]
    return [[(line, "dim")] for line in lines]
