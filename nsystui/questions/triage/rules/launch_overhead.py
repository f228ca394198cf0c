"""GPUs that wait for launches: short gaps that end when the CPU has launched the next operation.

See docs/numbers.md#launches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import DEVICE, RANK, Column, TableAnswer, Unit
from nsystui.questions.algebra.intervals import Intervals, Times, merge
from nsystui.questions.gpu.device_time import DeviceIntervals
from nsystui.questions.queries.conditions import is_launched_by, job_end, job_start, where
from nsystui.questions.triage.case import Case, Place, places_in, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.questions.triage.kernel_mix import by_framework
from nsystui.store import tables

_NAME = "launch-overhead"
_AT_ONCE = 1_000_000
_TIMES = ("launch", "called", "start", "end")
_COLUMNS = (
    RANK,
    DEVICE.with_importance(1),
    Column("launches", header="Launches", label="launches", unit=Unit.COUNT, importance=1),
    Column("late", header="Late Launches", label="late launches", unit=Unit.COUNT),
    Column("waited", header="GPU Waited (ns)", label="GPU waited", unit=Unit.DURATION),
    Column("queue", header="Queue Delay Med (ns)", label="queue med", unit=Unit.DURATION, decimals=0),
    Column("kernel", header="Kernel Med (ns)", label="kernel med", unit=Unit.DURATION, decimals=0),
    Column("tiny", header="Tiny Kernels", label="tiny", unit=Unit.COUNT, importance=1),
)


class _Row(NamedTuple):
    rank: int
    device: int
    launches: int
    late: int
    waited: int
    queue: float
    kernel: float
    tiny: int


def check(case: Case) -> Sequence[Finding | NotChecked]:
    session = case.job.session
    if not session.count(tables.kernels) or not session.count(tables.api_calls):
        return [NotChecked(_NAME, "needs kernels and CUDA API calls: record with `nsys profile -t cuda`")]
    idle = case.mean(part.length for device in case.devices for part in case.short_gaps(device))
    if case.percent(idle) < case.thresholds.launch_percent:
        return []  # cheaper than to read every launch
    rows = [row for devices in _portions(case) for row in _rows(case, devices)]
    if not rows:
        return [NotChecked(_NAME, "needs the launches of the kernels: their API calls are not in this export")]
    cost = case.mean(row.waited for row in rows)
    if case.percent(cost) < case.thresholds.launch_percent:
        return []
    late, launches = sum(row.late for row in rows), sum(row.launches for row in rows)
    tiny = sum(row.tiny for row in rows)
    sentence = (
        f"GPUs wait {time_words(cost)} each for kernels that were launched only after the GPU had gone idle "
        f"({late:,} of {launches:,} launches; {100 * tiny / launches:.0f} % of the kernels take less than "
        f"{case.thresholds.tiny_kernel_us:g} µs)"
    )
    how = by_framework(case, "", pytorch=" (torch.compile, fused optimizers)", jax=" (one jax.jit for the whole step)")
    advice = Advice(
        f"replay the work as a CUDA graph, or fuse kernels{how}",
        "a launch costs the CPU some µs whatever the kernel does, and these kernels end sooner "
        "than the next is launched",
    )
    door = Door("kernels", report="cuda_kern_exec_sum")
    measured = (
        f"gaps below {case.thresholds.gap_ms:g} ms at whose end a kernel starts that was launched after the GPU went "
        "idle; mean over the GPUs"
    )
    evidence = TableAnswer(_NAME, _COLUMNS, rows, len(rows))
    share = case.percent(cost)
    return [Finding(_NAME, Severity.WARNING, sentence, advice, door, cost, share, measured, evidence)]


def _portions(case: Case) -> Iterator[list[DeviceIntervals]]:
    """The GPUs, in portions of about so many kernels as fit in little memory: each portion is one question."""
    counts = {report.index: report.count(tables.kernels) for report in case.reports}
    portion: list[DeviceIntervals] = []
    kernels = 0
    for device in case.devices:
        portion.append(device)
        kernels += counts[device.device.task.task.report]
        if kernels >= _AT_ONCE:
            yield portion
            portion, kernels = [], 0
    if portion:
        yield portion


def _rows(case: Case, devices: Sequence[DeviceIntervals]) -> Iterator[_Row]:
    launches = launches_of(case, devices)
    for device in devices:
        place = device.device
        own = launches.get((place.task.task, place.device))
        if own is not None:
            yield _row(case, device, own)


def _row(case: Case, device: DeviceIntervals, own: Sequence[Times]) -> _Row:
    launch, called, start, end = own
    waits = late_gaps(case, device, own)
    late, waited = len(waits), waits.length
    length = end - start
    tiny = int((length < case.thresholds.tiny_kernel_us * 1e3).sum())
    queue = float(np.median(np.maximum(start - called, 0)))
    rank, ordinal = device.device.task.rank, device.device.device
    return _Row(rank, ordinal, len(launch), late, waited, queue, float(np.median(length)), tiny)


def late_gaps(case: Case, device: DeviceIntervals, own: Sequence[Times]) -> Intervals:
    """The short gaps of a GPU at whose end a kernel starts that was launched after they began."""
    launch, _, start, _ = own
    order = np.argsort(start, kind="stable")
    found = []
    for gaps in case.short_gaps(device):
        place = np.searchsorted(start[order], gaps.ends)
        is_there = place < len(order)
        first = order[np.minimum(place, len(order) - 1)]
        is_late = is_there & (start[first] == gaps.ends) & (launch[first] >= gaps.starts)
        found.append(Intervals(gaps.starts[is_late], gaps.ends[is_late]))
    return merge(*found)


def launches_of(case: Case, devices: Sequence[DeviceIntervals]) -> dict[Place, tuple[Times, ...]]:
    """Start and end of the launch call, start and end of the kernel, of every kernel of each device; job time, ns."""
    kernels, calls = tables.kernels, tables.api_calls
    tasks = frozenset(one.device.task.task for one in devices)
    reports = sorted({task.report for task in tasks})
    query = (
        sa.select(
            kernels.c.report,
            kernels.c.process,
            kernels.c.device,
            job_start(calls).label("launch"),
            job_end(calls).label("called"),
            job_start(kernels).label("start"),
            job_end(kernels).label("end"),
        )
        .join_from(kernels, calls, is_launched_by(kernels, calls))
        .where(
            *where(kernels, case.chosen.with_tasks(tasks)),
            # Said of the reports too: else those of every other one are read as well.
            kernels.c.report.in_(reports),
            calls.c.report.in_(reports),
            kernels.c.end.is_not(None),
            calls.c.end.is_not(None),
        )
    )
    begins = {(one.device.task.task, one.device.device): case.working(one).start for one in devices}
    parts: dict[Place, list[list[Times]]] = {}
    for batch in case.job.session.array_batches(query):
        for place, rows in places_in(batch):
            if place in begins:
                rows = rows & (batch["end"] > begins[place])
                parts.setdefault(place, []).append([batch[key][rows] for key in _TIMES])
    return {
        place: tuple(np.concatenate(column) for column in zip(*own, strict=True))
        for place, own in parts.items()
        if sum(len(part[0]) for part in own)
    }
