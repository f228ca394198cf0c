"""Stretches in which a GPU is mostly idle in short gaps: ``gpu_time_util`` of nsys, but with unions.

See docs/numbers.md#expert-rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nsystui.base.answer import DEVICE, DURATION, RANK, START, Column, TableAnswer, Unit
from nsystui.base.selection import Window
from nsystui.questions.algebra.intervals import covered_per_bin
from nsystui.questions.triage.case import Case, number_of, rank_words, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity

_CHUNKS = 30
_COLUMNS = (
    RANK,
    DEVICE.with_importance(1),
    START,
    DURATION,
    Column("idle", header="Idle in Short Gaps (ns)", label="short gaps", unit=Unit.DURATION),
)


class _Row(NamedTuple):
    rank: int
    device: int
    start: int
    duration: int
    idle: int


def check(case: Case) -> Sequence[Finding | NotChecked]:
    rows: list[_Row] = []
    for device in case.devices:
        gaps = case.gaps(device)
        window = case.working(device)
        if not len(gaps):
            continue
        width = max((window.end - window.start) / _CHUNKS, 1)
        # What lies in long gaps is another finding's.
        idle = gaps.covered_per_bin(window.start, window.end, _CHUNKS)
        short = np.zeros(_CHUNKS)
        for part in case.short_gaps(device):
            short += covered_per_bin(part, window.start, window.end, _CHUNKS)
        is_low = (100 * (width - idle) < case.thresholds.low_busy_percent * width) & (short * 2 > idle)
        place = device.device
        for first, last in _runs(is_low):
            start = round(window.start + first * width)
            length, idle_time = round((last - first) * width), round(float(short[first:last].sum()))
            rows.append(_Row(place.task.rank, place.device, start, length, idle_time))
    cost = case.mean(row.idle for row in rows)
    if not rows or case.percent(cost) < case.thresholds.low_percent:
        return []
    rows.sort(key=lambda row: -row.idle)
    worst = rows[0]
    window = Window(worst.start, worst.start + worst.duration)
    ranks = tuple(sorted({row.rank for row in rows}))
    sentence = (
        f"in {number_of(len(rows), 'stretch').replace('stretchs', 'stretches')} GPUs are busy less than "
        f"{case.thresholds.low_busy_percent:g} % of the time, idle in many short gaps of "
        f"{time_words(cost)} together on each GPU "
        f"(the worst on {rank_words([worst.rank])}, {time_words(worst.duration)} long)"
    )
    advice = Advice(
        "launch larger or fewer kernels there, or replay them as a CUDA graph; and look at what "
        "the CPU does between launches",
        "short gaps that come all the time are the pace of the CPU, not single events",
    )
    door = Door("gpu", window=window)
    measured = (
        f"gaps below {case.thresholds.gap_ms:g} ms in 30ths of each GPU's time that are mostly idle; mean over the GPUs"
    )
    evidence = TableAnswer("low-utilisation", _COLUMNS, rows, len(rows))
    name, share = "low-utilisation", case.percent(cost)
    return [Finding(name, Severity.WARNING, sentence, advice, door, cost, share, measured, evidence, window, ranks)]


def _runs(flags: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> list[tuple[int, int]]:
    """The runs of consecutive set flags, as (first, after the last)."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
