"""Utilisation as tables: the totals of each device, and each device over time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nsystui.base.answer import Row, TableAnswer
from nsystui.base.columns import DEVICE, RANK, START, Column, Unit
from nsystui.base.selection import Window
from nsystui.base.text import few
from nsystui.questions.device_time import Breakdown, Device, DeviceLanes
from nsystui.questions.utilisation import BusyIntervals

_DEVICE = (
    RANK,
    DEVICE,
)
# The name in ``Breakdown`` and ``DeviceLanes``, the key of the columns, the headings in a file and on a screen, the
# importance.
_PARTS = (
    ("busy", "busy", "Busy", "busy", 0),
    ("kernels", "compute", "Compute", "compute", 1),
    ("nccl", "nccl", "NCCL", "NCCL", 1),
    ("exposed_nccl", "exposed_nccl", "Exposed NCCL", "exposed", 1),
    ("memory", "memory", "Memory", "memory", 2),
    ("graph", "graph", "Graph", "graph", 3),
    ("idle", "idle", "Idle", "idle", 1),
)
SHARE_COLUMNS = tuple(
    Column(
        f"{key}_percent",
        header=f"{title} (%)",
        label=f"{label} %",
        unit=Unit.PERCENT,
        decimals=2,
        importance=importance,
    )
    for _, key, title, label, importance in _PARTS
)
"""Percentages of the window, in the order of ``shares``."""
COLUMNS = (
    *_DEVICE,
    Column("gpu", header="GPU", label="gpu", unit=Unit.NUMBER, importance=4),
    Column("model", header="GPU Model", label="model", importance=5),
    *SHARE_COLUMNS,
    *(
        Column(f"{key}_ns", header=f"{title} (ns)", label=label, unit=Unit.DURATION, importance=6)
        for _, key, title, label, _ in _PARTS
    ),
    Column("overlap_ns", header="NCCL over Compute (ns)", label="NCCL over compute", unit=Unit.DURATION, importance=7),
    Column("exposed_memory_ns", header="Exposed Memory (ns)", label="exposed memory", unit=Unit.DURATION, importance=7),
    Column("recorded_ns", header="Recorded (ns)", label="recorded", unit=Unit.DURATION, importance=8),
    Column("window_ns", header="Window (ns)", label="window", unit=Unit.DURATION, importance=8),
)
TIME_COLUMNS = (
    *_DEVICE,
    START,
    *(column for column in SHARE_COLUMNS if column.key != "idle_percent"),
)
_NEARLY_ALL = 0.99  # the sessions of one job begin and end some ms apart


def shares(spent: Breakdown | None) -> list[float | None]:
    """The percentages of ``SHARE_COLUMNS``; all missing where there is no GPU."""
    if spent is None:
        return [None] * len(SHARE_COLUMNS)
    return [spent.percent(part) for part in _parts(spent)]


def utilisation_table(busy: BusyIntervals, window: Window) -> TableAnswer:
    """One row for each device: what it was busy with in ``window``, in percent of it and in ns.

    See docs/numbers.md#gpu-time and docs/numbers.md#exposed-time.

    The parts are unions, so they overlap and add up to more than busy where compute (kernels but
    NCCL's), NCCL and copies run side by side.
    """
    rows: list[Row] = []
    for item in busy.devices:
        spent = item.breakdown(window)
        rest = (spent.overlap, spent.exposed_memory, spent.recorded, spent.time)
        rows.append((*_place(item.device), item.device.gpu, item.device.model, *shares(spent), *_parts(spent), *rest))
    return TableAnswer("gpu", COLUMNS, rows, len(rows), _notes(busy, window))


def utilisation_over_time(busy: BusyIntervals, window: Window, bins: int) -> TableAnswer:
    """One row for each device and each of ``bins`` equal spans of ``window``: percentages of the span.

    ``start`` is the span's begin in job time, ns (rounded down). Spans outside the report's session are missing.
    Raises ``ValueError`` where ``bins < 1``.
    """
    width = window.end - window.start
    starts = [window.start + number * width // bins for number in range(bins)] if bins > 0 else []
    rows: list[Row] = []
    for lanes in busy.lanes(window, bins):
        percent = _percentages(lanes)
        rows += [(*_place(lanes.device), start, *values) for start, values in zip(starts, percent, strict=True)]
    return TableAnswer("gpu-time", TIME_COLUMNS, rows, len(rows), _notes(busy, window))


def _notes(busy: BusyIntervals, window: Window) -> tuple[str, ...]:
    if busy.shares_clock:
        return (*busy.notes, *recording_notes(busy, window))
    return (*busy.notes, "these reports share no clock: select the ranks of one to see it over its own time")


def recording_notes(busy: BusyIntervals, window: Window) -> tuple[str, ...]:
    """Which ranks were not recorded for all of ``window``: their totals count what is missing as idle."""
    width = window.end - window.start
    partly = dict.fromkeys(
        item.device.task.rank for item in busy.devices if item.recorded_in(window) < _NEARLY_ALL * width
    )
    if not partly:
        return ()
    who = f"rank {few(list(partly))} was" if len(partly) == 1 else f"ranks {few(list(partly))} were"
    return (f"{who} not recorded for all of this time: what is missing counts as idle in totals",)


def _parts(spent: Breakdown) -> list[int]:
    return [getattr(spent, name) for name, *_ in _PARTS]


def _place(device: Device) -> tuple[int, int]:
    return device.task.rank, device.device


def _percentages(lanes: DeviceLanes) -> Sequence[Sequence[float]]:
    """A row for each bin, in the order of ``TIME_COLUMNS``."""
    parts = [getattr(lanes, name) for name, *_ in _PARTS if name != "idle"]
    values: list[list[float]] = (100.0 * np.column_stack(parts)).tolist()
    return values
