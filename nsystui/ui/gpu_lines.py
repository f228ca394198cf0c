"""The lines below the lanes of the GPU screen: which GPU, when, and every value under the cursor."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Collection, Sequence

from nsystui.base.columns import Unit
from nsystui.base.text import safe_text
from nsystui.base.units import MISSING, format_value
from nsystui.ui.gpu_lanes import PARTS, Bins, GpuLanes, GpuPicture
from nsystui.ui.widgets.part_lines import Part, wrapped

Line = list[Part]
Columns = tuple[int, int]
"""First and last column of what is looked at."""


def detail_lines(
    picture: GpuPicture, lane: int, columns: Columns, times: tuple[int, int], marked: bool, width: int, most: int
) -> list[Line]:
    """What stands below the lanes, in at most ``most`` lines of ``width`` cells.

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
