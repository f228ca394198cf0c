"""The drawings of a job, from the numbers of tables and screens."""

import math
from collections.abc import Sequence

import numpy as np

from nsystui.base.answer import Answer, Record, TableAnswer, Unit, iter_rows, record
from nsystui.base.drawing import Bar, Bars, Curves, DrawnLane, DrawnLanes, LaneName, Part, Series
from nsystui.base.selection import Selection
from nsystui.base.types import grouped
from nsystui.base.units import MISSING, format_value, numbered
from nsystui.questions.blocking.budget import LABELS, RankIterations
from nsystui.questions.counters.metric_tables import metrics_over_time
from nsystui.questions.gpu.device_time import Device
from nsystui.questions.gpu.utilisation import BusyIntervals
from nsystui.questions.host.time_budget import PARTS, Budget, DeviceBudget
from nsystui.questions.job.job import OpenJob
from nsystui.questions.memory.gpu_memory import memory_over_time
from nsystui.questions.nccl.bandwidth import link_rate
from nsystui.questions.nccl.sizes import DurationsOfSize, bandwidth_curve
from nsystui.questions.queries.tasks import selected_ranks
from nsystui.questions.queries.time_window import extent
from nsystui.questions.recipes.recipe import RecipeMap
from nsystui.questions.timeline.lanes import CATEGORIES, IDLE
from nsystui.questions.timeline.picture import LanePicture, lane_label, lane_text
from nsystui.questions.timeline.streams import queues_over_time

MAX_LANES = 512
LANE_COLUMNS = 380
_LANE_COLUMNS = ((8, LANE_COLUMNS), (96, 190), (10**9, 95))
"""Maximum lanes, and their columns: a drawing of 512 lanes stays below two megabytes."""

BUDGET_PARTS = (
    Part("compute", "compute"), Part("exposed NCCL", "nccl"), Part("memory", "memory"), Part("graphs", "graph"),
    Part("start-up", "idle", 1.0), Part("long gaps", "idle", 0.7), Part("short gaps", "idle", 0.45),
    Part("in graphs", "idle", 0.35), Part("tail", "idle", 0.25), Part("not recorded", "idle", 0.1),
)  # fmt: skip
"""The parts of a budget, in the order of `time_budget.PARTS`."""

_BUSY = (
    ("kernels", Part("compute", "compute")), ("exposed_nccl", Part("exposed NCCL", "nccl")),
    ("memory_only", Part("memory", "memory")), ("graph_only", Part("graphs", "graph")),
)  # fmt: skip


def budget_bars(budgets: Sequence[tuple[str, Budget]], title: str = "budget of time") -> Bars:
    """Return a bar for each labelled budget, in percent of its time."""
    bars = []
    for label, budget in budgets:
        total = max(budget.time, 1)
        shares = tuple(100.0 * getattr(budget, part) / total for part in PARTS)
        busy = format_value(Unit.PERCENT, 100.0 * (total - budget.idle - budget.unrecorded) / total)
        bars.append(Bar(label, shares, f"busy {busy}"))
    used = [number for number, _ in enumerate(PARTS) if any(bar.values[number] for bar in bars)]
    used_bars = tuple(Bar(bar.label, tuple(bar.values[number] for number in used), bar.words) for bar in bars)
    return Bars(title, tuple(BUDGET_PARTS[number] for number in used), used_bars, Unit.PERCENT, 100.0)


def device_bars(budgets: Sequence[DeviceBudget], limit: int = MAX_LANES) -> Bars | None:
    """Return a bar for each GPU; ``None`` without GPUs."""
    if not budgets:
        return None
    return budget_bars([(device_label(gpu.device), gpu.budget) for gpu in budgets[:limit]], "budget of time by GPU")


_BLOCKING = {
    "compute": ("compute", 1.0), "starved": ("api", 1.0), "nccl": ("nccl", 1.0), "communication": ("nccl", 0.6),
    "to_device": ("memory", 1.0), "to_host": ("memory", 0.8), "on_device": ("memory", 0.6),
    "other_copies": ("memory", 0.4), "memsets": ("memory", 0.25), "migrations": ("memory", 0.15),
    "host_functions": ("cpu", 1.0), "stalled": ("idle", 1.0), "in_graph": ("idle", 0.75), "unresolved": ("idle", 0.5),
    "tail": ("idle", 0.25),
}  # fmt: skip
"""The category of each part of an iteration, and its strength."""


def iteration_bars(gpus: Sequence[RankIterations], limit: int = MAX_LANES) -> Bars | None:
    """Return a bar for each GPU: the parts of its iterations, in percent; ``None`` without GPUs."""
    used = [part for part in _BLOCKING if any(gpu.of.part(part).any() for gpu in gpus)]
    bars = []
    for gpu in gpus[:limit]:
        shares = tuple(100.0 * int(gpu.of.part(part).sum()) / max(int(gpu.of.time.sum()), 1) for part in used)
        has_several = len({other.rank for other in gpus}) < len(gpus)
        label = f"rank {gpu.rank}" + f" {numbered('GPU', gpu.of.device)}" * has_several
        bars.append(Bar(label, shares, f"median {format_value(Unit.DURATION, float(np.median(gpu.of.time)))}"))
    parts = tuple(Part(LABELS[part], *_BLOCKING[part]) for part in used)
    return Bars("what blocked the GPUs, of all iterations", parts, tuple(bars), Unit.PERCENT, 100.0) if bars else None


def utilisation_lanes(job: OpenJob, selection: Selection, columns: int | None = None) -> DrawnLanes | None:
    """Return a lane for each GPU: compute, exposed NCCL, and memory and graphs that nothing else hides.

    ``None`` without a GPU or a shared clock; by default, ``columns`` suits the number of lanes.
    """
    busy: BusyIntervals = job.busy(selection)
    window = extent(job.session, selection)
    if not busy.devices or not busy.shares_clock or window.end <= window.start:
        return None
    columns = columns or next(columns for limit, columns in _LANE_COLUMNS if len(busy.devices) <= limit)
    parts = [(name, part) for name, part in _BUSY if any(len(getattr(device.parts, name)) for device in busy.devices)]
    lanes = []
    for item in busy.devices[:MAX_LANES]:
        spent = item.breakdown(window)
        values = tuple(tuple(item.share(name, window, columns).tolist()) for name, _ in parts)
        label = device_label(item.device)
        lanes.append(DrawnLane(label, values, f"busy {format_value(Unit.PERCENT, spent.percent(spent.busy))}"))
    more = len(busy.devices) - len(lanes)
    return DrawnLanes("GPU utilisation", window.start, window.end, tuple(part for _, part in parts), tuple(lanes), more)


def device_label(device: Device) -> str:
    """Return ``rank 3``, or ``rank 3 GPU 1`` for a rank with several GPUs."""
    return f"rank {device.task.rank}" + f" {numbered('GPU', device.device)}" * (len(device.task.devices) > 1)


def bandwidth_curves(job: OpenJob, selection: Selection, sizes: TableAnswer) -> Curves | None:
    """Return a curve of known median bus bandwidths per collective; ``sizes`` is by exact message size."""
    names = sorted(set(map(str, filter(None, sizes.cells("collective")))))
    curves = [(name, tuple(zip(*bandwidth_curve(sizes, name), strict=True))) for name in names]
    series = tuple(Series(name, "nccl", points) for name, points in curves if points)
    if not series:
        return None
    link = link_rate(selected_ranks(job.ranks, selection))
    level = None
    if link is not None:
        level = f"{link.link}, nominal {format_value(Unit.RATE, link.rate)} a GPU and direction", link.rate
    kind = "w/o wait (where known) " if any(value is not None for value in sizes.cells("busbw_without_wait")) else ""
    return Curves(f"median bus bandwidth {kind}against message size", Unit.BYTES, Unit.RATE, series, level)


def duration_bars(answer: Answer) -> Bars | None:
    """Return a bar for each range of ``nccl --durations`` over all ranks; ``None`` without durations."""
    rows = [values for values in (record(answer.columns, row) for row in iter_rows(answer)) if values["rank"] is None]
    if not rows:
        return None
    counts = [float(row["count"] or 0) for row in rows]
    labels = (f"from {format_value(Unit.DURATION, row['from'])}" for row in rows)
    bars = [Bar(label, (count,), f"{count:,.0f}") for label, count in zip(labels, counts, strict=True)]
    largest = max(counts)
    subject = answer.subject if isinstance(answer, DurationsOfSize) else "durations"
    return Bars(f"{subject}: kernels by duration", (Part("kernels", "nccl"),), tuple(bars), Unit.COUNT, largest)


_STEP_PARTS = (Part("step time", "compute"), Part("slow step (over 1.5 times the rank's median)", "warning"))


def step_lanes(answer: Answer, limit: int = MAX_LANES) -> DrawnLanes | None:
    """Return a lane of step times for each rank, scaled to the longest; ``None`` without steps."""
    steps: dict[int, dict[int, tuple[int, bool]]] = {}
    for row in iter_rows(answer):
        values = record(answer.columns, row)
        rank, step, duration = values["rank"], values["step"], values["duration"]
        if isinstance(rank, int) and isinstance(step, int) and isinstance(duration, int):
            steps.setdefault(rank, {})[step] = duration, values["slow"] is not None
    if not steps:
        return None
    axis = sorted(set().union(*steps.values()))
    full = max(duration for times in steps.values() for duration, _ in times.values())
    lanes = []
    for rank, times in sorted(steps.items())[:limit]:
        usual, slow = (
            tuple(times[step][0] / full * (times[step][1] is is_slow) if step in times else math.nan for step in axis)
            for is_slow in (False, True)
        )
        median = float(np.median([duration for duration, _ in times.values()]))
        lanes.append(DrawnLane(f"rank {rank}", (usual, slow), f"median {format_value(Unit.DURATION, median)}"))
    title = f"time of each step; a full lane is {format_value(Unit.DURATION, full)}"
    return DrawnLanes(title, 0, 0, _STEP_PARTS, tuple(lanes), len(steps) - len(lanes), tuple(axis))


def metric_lanes(job: OpenJob, selection: Selection, columns: int) -> DrawnLanes | None:
    """Return a lane per metric and GPU, scaled to 100 % or its maximum, as in ``metrics --over-time``."""
    answer = metrics_over_time(job, selection, columns)
    return _over_time("GPU metrics", answer, columns, ("metric", "value"), "metric")


def memory_lanes(job: OpenJob, selection: Selection, columns: int) -> DrawnLanes | None:
    """Return a lane per memory and GPU, scaled to the largest peak, as in ``gpu-memory --over-time``."""
    answer = memory_over_time(job, selection, columns)
    peaks = (record(answer.columns, row)["peak"] for row in iter_rows(answer))
    full = max((float(peak) for peak in peaks if isinstance(peak, int | float)), default=0.0)
    return _over_time("GPU memory in use", answer, columns, ("memory", "peak"), "memory", Unit.BYTES, full)


def queue_lanes(job: OpenJob, selection: Selection, columns: int) -> DrawnLanes | None:
    """Return a lane for each stream, scaled to its largest queue, as in ``streams --over-time``."""
    answer = queues_over_time(job, selection, columns)
    return _over_time("launches that wait, stream by stream", answer, columns, ("stream", "queued_mean"), "api")


def _drawn(label: str, rows: list[Record], key: str, unit: Unit, full: float) -> DrawnLane:
    values = [float(value) if isinstance(value := row[key], int | float) else math.nan for row in rows]
    largest = max((value for value in values if value == value), default=None)
    if largest is None:
        return DrawnLane(label, (tuple(values),), MISSING)
    if str(rows[0].get("unit") or "").startswith("%"):
        unit, full = Unit.PERCENT, 100.0
    words = format_value(unit, round(largest) if unit is Unit.BYTES else largest)
    return DrawnLane(label, (tuple(value / (full or largest or 1.0) for value in values),), f"≤ {words}")


def _over_time(
    title: str, answer: Answer, columns: int, keys: tuple[str, str], category: str, unit: Unit = Unit.COUNT,
    full: float = 0.0,
) -> DrawnLanes | None:  # fmt: skip
    """Return lanes of an answer by rank, device, name and column; ``keys``: columns of name and value.

    ``full``: the value at full height, 0 for the largest of each lane; percentages have 100 % there.
    """
    rows: list[Record] = [record(answer.columns, row) for row in iter_rows(answer)]
    lanes = grouped(((row["rank"], row["device"], row[keys[0]], row.get("context")), row) for row in rows)
    if not lanes:
        return None
    starts = [int(row["start"] or 0) for row in rows[:columns]]
    step = starts[1] - starts[0] if len(starts) > 1 else 1
    has_several = len({key[:2] for key in lanes}) > len({key[0] for key in lanes})
    drawn = []
    for (rank, device, name, _), lane_rows in list(lanes.items())[:MAX_LANES]:
        rank_words = "no rank" if rank is None else f"rank {rank}"
        subject = f"{keys[0]} {name}" if isinstance(name, int) else str(name).partition(" [")[0]
        label = " ".join((rank_words, *([numbered("GPU", device)] if has_several else []), subject))
        drawn.append(_drawn(label, lane_rows, keys[1], unit, full))
    more = len(lanes) - len(drawn)
    return DrawnLanes(title, starts[0], starts[-1] + step, (Part(category, category),), tuple(drawn), more)


def timeline_lanes(pictures: Sequence[LanePicture], title: str = "timeline") -> DrawnLanes | None:
    """Return timeline lanes: columns in the colour of their largest category, as high as they are busy."""
    if not pictures:
        return None
    used = sorted({int(number) for picture in pictures for number in picture.columns.category if number > IDLE})
    window = pictures[0].columns.window
    lanes = []
    for picture in pictures[:MAX_LANES]:
        category, busy = picture.columns.category, picture.columns.busy
        values = tuple(
            tuple(np.where(np.isnan(busy), np.nan, np.where(category == number, busy, 0.0)).tolist()) for number in used
        )
        words = "–" if picture.busy is None else format_value(Unit.PERCENT, 100 * picture.busy)
        names = tuple(LaneName(name.first, name.last, name.text) for name in lane_text(picture).names)
        lanes.append(DrawnLane(lane_label(picture.lane).strip(), values, words, names))
    words_of = {"nccl": "NCCL", "nvtx": "NVTX", "api": "API", "os": "OS, MPI", "cpu": "CPU"}
    parts = tuple(Part(words_of.get(CATEGORIES[number], CATEGORIES[number]), CATEGORIES[number]) for number in used)
    return DrawnLanes(title, window.start, window.end, parts, tuple(lanes), len(pictures) - len(lanes))


def map_lanes(shown: RecipeMap) -> DrawnLanes | None:
    """Return a lane for each figure of each line of a map."""
    if not shown.lines:
        return None
    lanes: list[DrawnLane] = []
    parts: dict[str, Part] = {}
    for figure in shown.figures:
        category = figure.category or "metric"
        parts.setdefault(category, Part(figure.title.removesuffix(" (%)"), category))
    for number, figure in enumerate(shown.figures):
        for line, shares in zip(shown.lines, shown.shares(number), strict=True):
            heights = tuple(shares.tolist())
            zeros = tuple(0.0 if share == share else share for share in heights)
            values = tuple(heights if name == (figure.category or "metric") else zeros for name in parts)
            label = f"{line.label} {figure.title.removesuffix(' (%)')}" if len(shown.figures) > 1 else line.label
            mean = line.mean(number)
            lanes.append(DrawnLane(label, values, figure.words(mean) if mean == mean else "–"))
    more = max(0, len(lanes) - MAX_LANES)
    return DrawnLanes(
        shown.name, shown.window.start, shown.window.end, tuple(parts.values()), tuple(lanes[:MAX_LANES]), more
    )
