"""Stretches of work that are bound by launches, where waiting for late ones is too little for `launch_overhead`.

A stretch is time of a GPU without a long gap. Between tiny kernels the GPU also idles for a µs or two though the next
was launched in time: that is its own cost of starting one. See docs/numbers.md#launches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from nsystui.base.answer import DEVICE, DURATION, RANK, START, Column, TableAnswer, Unit
from nsystui.base.selection import Window
from nsystui.questions.algebra.intervals import Times, merge
from nsystui.questions.gpu.device_time import DeviceIntervals
from nsystui.questions.host.host_work import CpuSpan, host_work
from nsystui.questions.triage.case import Case, below, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.questions.triage.rules.launch_overhead import late_gaps, launches_of
from nsystui.store import tables

_NAME = "launch-bound"
_FEWEST = 100
"""Fewest kernels of a stretch."""
_COLUMNS = (
    RANK,
    DEVICE.with_importance(1),
    START,
    DURATION,
    Column("kernels", header="Kernels", label="kernels", unit=Unit.COUNT),
    Column("median", header="Kernel Med (ns)", label="kernel med", unit=Unit.DURATION, decimals=0),
    Column("busy", header="Busy (ns)", label="busy", unit=Unit.DURATION, importance=1),
    Column("waited", header="GPU Waited (ns)", label="GPU waited", unit=Unit.DURATION),
    Column("late", header="For Late Launches (ns)", label="for late ones", unit=Unit.DURATION, importance=1),
)


class _Stretch(NamedTuple):
    rank: int
    device: int
    start: int
    duration: int
    kernels: int
    median: float
    busy: int
    waited: int
    late: int


def check(case: Case) -> Sequence[Finding | NotChecked]:
    session = case.job.session
    if not session.count(tables.kernels) or not session.count(tables.api_calls):
        return []  # that is said by `launch_overhead`
    least, stretches, devices, worked = case.thresholds.launch_bound_percent / 100, [], [], 0
    for device in case.devices:
        own = [one for one in _stretches(case, device) if one.busy < (1 - least) * one.duration]
        worked += device.busy_in(case.working(device))
        if own:
            stretches.append(own)
            devices.append(device)
    if not worked or sum(one.busy for own in stretches for one in own) < least * worked:
        return []  # cheaper than to read every launch
    launches = launches_of(case, devices)
    found: list[_Stretch] = []
    for device, own in zip(devices, stretches, strict=True):
        place = device.device
        times = launches.get((place.task.task, place.device))
        if times is not None:
            found += _bound(case, device, own, times)
    cost = case.mean(one.waited for one in found)
    late = case.percent(case.mean(one.late for one in found))
    if late >= case.thresholds.launch_percent or sum(one.busy for one in found) < least * worked:
        return []
    return [_finding(case, found, cost, sum(one.busy for one in found) / worked)]


def _stretches(case: Case, device: DeviceIntervals) -> Iterator[_Stretch]:
    """The time of a GPU between its long gaps, which kernels are in it not yet counted."""
    worked = device.worked(case.working(device))
    if worked is None:
        return
    between = case.long_gaps(device).gaps(worked.start, worked.end)
    for start, end in zip(between.starts.tolist(), between.ends.tolist(), strict=True):
        busy = device.busy_in(Window(start, end))
        yield _Stretch(device.device.task.rank, device.device.device, start, end - start, 0, 0.0, busy, 0, 0)


def _bound(
    case: Case, device: DeviceIntervals, own: Sequence[_Stretch], launches: Sequence[Times]
) -> Iterator[_Stretch]:
    """The stretches of many kernels in which the GPU waits long enough for launches."""
    _, _, start, end = launches
    tiny = case.thresholds.tiny_kernel_us * 1e3
    late = late_gaps(case, device, launches)
    waits = merge(late, *below(case.gaps(device), tiny))
    for one in own:
        until = one.start + one.duration
        inside = (start >= one.start) & (start < until)
        kernels = int(inside.sum())
        if kernels < _FEWEST:
            continue
        median, waited_late = float(np.median((end - start)[inside])), late.clip(one.start, until).length
        waited = waits.clip(one.start, until).length if median < tiny else waited_late
        if 100 * waited >= case.thresholds.launch_bound_percent * one.duration:
            yield one._replace(kernels=kernels, waited=waited, late=waited_late, median=median)


def _finding(case: Case, found: Sequence[_Stretch], cost: int, share: float) -> Finding:
    worst = max(found, key=lambda one: (one.waited, -one.start))
    window = Window(worst.start, worst.start + worst.duration)
    device = next(
        one.device for one in case.devices if (one.device.task.rank, one.device.device) == (worst.rank, worst.device)
    )
    (work,) = host_work(case.job, [CpuSpan(device.task.task, device.device, window)])
    where = f", in NVTX range `{work.range_name}`" if work.range_name else ""
    whole, waited, late, kernels = (
        sum(getattr(one, key) for one in found) for key in ("duration", "waited", "late", "kernels")
    )
    idle, is_late = (round(100 * part / whole) for part in (waited, late))
    stretches = "a stretch" if len(found) == 1 else f"{len(found):,} stretches"
    sentence = (
        f"launch-bound in {stretches} of {time_words(whole)} with {100 * share:.0f} % of the GPU work: GPUs are idle "
        f"for {idle} % of that time between {kernels:,} kernels: for {is_late} % because the next was launched late, "
        f"for {idle - is_late} % by what each start costs the GPU "
        f"(median of a kernel {time_words(worst.median)}{where})"
    )
    advice = Advice(
        "replay the loop as a CUDA graph, fuse kernels, or give each more work",
        "a launch costs the CPU some µs and the GPU one or two, whatever the kernel does, and these kernels do little",
    )
    severity = Severity.WARNING if share >= 0.5 else Severity.INFO
    measured = (
        f"stretches of {_FEWEST} kernels or more without a gap of {case.thresholds.gap_ms:g} ms: gaps at whose end a "
        "kernel starts that was launched after the GPU went idle, and between tiny kernels all gaps as short as these; "
        "mean over the GPUs"
    )
    rows = sorted(found, key=lambda one: (-one.waited, one))
    ranks = tuple(sorted({one.rank for one in found}))
    return Finding(
        _NAME, severity, sentence, advice, Door("timeline", window=window), cost, case.percent(cost), measured,
        TableAnswer(_NAME, _COLUMNS, rows, len(rows)), window, ranks,
    )  # fmt: skip
