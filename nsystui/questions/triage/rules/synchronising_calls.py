"""Synchronising API calls that let a GPU run dry: idle time that begins while the CPU waits in one.

See docs/numbers.md#expert-rules.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nsystui.base.selection import Window
from nsystui.questions.algebra.intervals import EMPTY, Intervals, merge
from nsystui.questions.gpu.device_time import DeviceIntervals
from nsystui.questions.kernels.activities import API, work_summary
from nsystui.questions.triage.case import Case, number_of, spans, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.questions.triage.kernel_mix import by_framework
from nsystui.store import tables

_NAME = "synchronising-calls"


def check(case: Case) -> Sequence[Finding | NotChecked]:
    if not case.job.session.count(tables.api_calls) or not case.devices:
        return [NotChecked(_NAME, "needs GPU work and CUDA API calls: record with `nsys profile -t cuda`")]
    name = tables.api_calls.c.name
    calls = spans(case, tables.api_calls, [name.contains("Synchronize")])
    # In a long gap the CPU did something else after it had synchronised: that is the finding of idle_gaps.
    waits = [
        merge(*(idle_after(part, calls.of(device.device.task.task)) for part in short))
        for device in case.devices
        for short in [case.short_gaps(device)]
    ]
    cost = case.mean(one.length for one in waits)
    if not cost or case.percent(cost) < case.thresholds.sync_percent:
        return []
    device, gaps = max(zip(case.devices, waits, strict=True), key=lambda pair: pair[1].length)
    longest = int(np.argmax(gaps.ends - gaps.starts))
    window = Window(int(gaps.starts[longest]), int(gaps.ends[longest]))
    sentence = (
        f"GPUs are idle for {time_words(cost)} each from when the CPU synchronised with them until work reached them "
        f"again ({number_of(calls.count, 'synchronising call')}; idle {number_of(sum(map(len, waits)), 'time')} so; "
        f"the longest on rank {_rank(device)}, {time_words(window.end - window.start)})"
    )
    named = by_framework(case, "", pytorch=".item(), ", jax="block_until_ready, ")
    advice = Advice(
        f"synchronise less often: no {named}print or timing in the loop, events on streams instead of the CPU",
        "while the CPU waits for the GPU nothing is launched, so the GPU is idle until the next launch arrives",
    )
    only = case.chosen.with_name("Synchronize")
    evidence = work_summary(case.job.session, only, API)
    measured = (
        f"idle gaps below {case.thresholds.gap_ms:g} ms that begin while the process is in a call named …Synchronize "
        "and outlast it; mean over the GPUs"
    )
    door, share = Door("api", filter="Synchronize"), case.percent(cost)
    return [Finding(_NAME, Severity.WARNING, sentence, advice, door, cost, share, measured, evidence, window)]


def _rank(device: DeviceIntervals) -> int:
    return device.device.task.rank


def idle_after(gaps: Intervals, calls: Intervals) -> Intervals:
    """The gaps that begin inside a call and outlast it: the GPU ran dry while the CPU waited for it."""
    if not len(gaps) or not len(calls):
        return EMPTY
    place = np.searchsorted(calls.starts, gaps.starts, side="right") - 1
    until = calls.ends[np.maximum(place, 0)]
    is_inside = (place >= 0) & (gaps.starts < until) & (gaps.ends > until)
    return Intervals(gaps.starts[is_inside], gaps.ends[is_inside])
