"""Steps that are slow, steps that become slower, and a start that is (docs/ranks.md#steps)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from nsystui.base.selection import Task, Window
from nsystui.base.text import few
from nsystui.questions.host.causes import NOTHING
from nsystui.questions.host.host_work import CpuSpan, host_work
from nsystui.questions.ranks.steps import StepTimes, steps_across_ranks
from nsystui.questions.triage.case import Case, covered, number_of, rank_words, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity

_DOOR = Door("steps across", sort="duration_ns")
_FEWEST = 5
_LOOKED_AT = 40
"""The number of longest gaps in which the CPU's work is examined."""


def check(case: Case) -> Sequence[Finding | NotChecked]:
    warm_up = int(case.thresholds.warm_up_steps)
    least = warm_up + _FEWEST
    judged = {task: one for task, one in case.steps.items() if len(one) >= least}
    if not judged:
        why = f"needs {least} steps or more of a rank: numbered NVTX ranges such as `step 7`, or --step-range REGEX"
        return [NotChecked("steps", why)]
    found = [_slow(case, judged, warm_up), _warm_up(case, judged, warm_up), _drift(case, judged, warm_up)]
    return [one for one in found if one is not None]


def _mean(values: Sequence[float]) -> int:
    return round(sum(values) / len(values))


def _slow(case: Case, steps: Mapping[Task, StepTimes], warm_up: int) -> Finding | None:
    lost, idle, numbers, ranks = [], [], set(), set()
    window, longest, usual = None, 0, 0.0
    for task, one in steps.items():
        places = np.flatnonzero(one.duration[warm_up:] > case.thresholds.slow_step * one.median) + warm_up
        lost.append(float((one.duration[places] - one.median).sum()))
        gaps = _long_gaps(case, one)
        idle.append(float(np.maximum(gaps[places] - np.median(gaps[warm_up:]), 0).sum()))
        for place in places.tolist():
            numbers.add(int(one.numbers[place]))
            ranks.add(case.rank_of[task])
            if one.duration[place] > longest:
                window, longest, usual = one.window(place), int(one.duration[place]), one.median
    cost = _mean(lost)
    if case.percent(cost) < case.thresholds.slow_step_percent:
        return None
    sentence = (
        f"after warm-up, {number_of(len(numbers), 'step')} of {max(map(len, steps.values())) - warm_up} "
        f"(number {few(sorted(numbers))}) took more than {case.thresholds.slow_step:g} times the rank's median step; "
        f"the longest {time_words(longest)} instead of {time_words(usual)}"
    )
    in_gaps = min(_mean(idle), cost)
    if in_gaps:
        sentence += f"; {time_words(cost)} lost, {time_words(in_gaps)} of it idle time in long gaps"
    if len(steps) == 1:
        reason = "one rank alone does not tell whether the others were slow, too"
    elif len(ranks) == len(steps):
        reason = "every rank was slow: what they wait for, or do, together"
    else:
        reason = f"only {rank_words(ranks, case.ranks)} had slow steps: it is no work that all ranks have in common"
    advice = Advice(
        "compare that step with the one before it (Timeline, or `nsystui diff` with --time-a and --time-b)", reason
    )
    found = _finding(
        case, "slow-steps", Severity.WARNING, sentence, advice, cost, "over the median step", window, ranks
    )
    return replace(found, under="idle-gaps") if 2 * in_gaps >= cost else found


def _long_gaps(case: Case, steps: StepTimes) -> NDArray[np.float64]:
    """The idle time in long gaps within each step, ns: the mean over the GPUs of its task."""
    own = [device for device in case.devices if steps.task in device.tasks]
    found = np.zeros(len(steps))
    for device in own:
        gaps = case.long_idle(device)
        found += covered(gaps, steps.start + steps.duration) - covered(gaps, steps.start)
    return found / max(len(own), 1)


def _work_of(case: Case, steps: Mapping[Task, StepTimes], warm_up: int) -> str:
    """What the CPU did in the long gaps of the first steps, as far as it is known."""
    spans: list[CpuSpan] = []
    for device in case.devices:
        place, one = device.device, steps.get(device.device.task.task)
        if one is None:
            continue
        first, until = int(one.start[0]), int(one.start[warm_up])
        gaps = case.long_idle(device).clip(first, until)
        windows = map(Window, gaps.starts.tolist(), gaps.ends.tolist())
        spans += [CpuSpan(place.task.task, place.device, window) for window in windows if window.end > window.start]
    idle = case.mean(span.length for span in spans)
    if not idle:
        return ""
    spans.sort(key=lambda span: (-span.length, span.window.start, span.task, span.device))
    causes: dict[str, int] = {}
    for work in host_work(case.job, spans[:_LOOKED_AT]):
        for cause, time in work.causes.items():
            if cause.kind != NOTHING:
                causes[cause.words] = causes.get(cause.words, 0) + time
    words = f"; GPUs are idle for {time_words(idle)} of them in long gaps"
    if not causes:
        return f"{words}, and nothing is recorded of what the CPU did"
    longest = max(sorted(causes), key=lambda one: causes[one])
    return f"{words}, {time_words(case.mean([causes[longest]]))} of it in {longest}"


def _warm_up(case: Case, steps: Mapping[Task, StepTimes], warm_up: int) -> Finding | None:
    lost = []
    for one in steps.values():
        lost.append(float(np.maximum(one.duration[:warm_up] - one.median, 0).sum()))
    cost = _mean(lost)
    if not warm_up or case.percent(cost) < case.thresholds.warm_up_percent:
        return None
    first = next(iter(steps.values()))
    until = int(first.start[warm_up])
    work = _work_of(case, steps, warm_up)
    sentence = f"the first {warm_up} steps take {time_words(cost)} more than the median step would{work}"
    advice = Advice(
        f"judge the steady part alone: --time {until}ns: (or capture later, with -c cudaProfilerApi)",
        "what a program pays once distorts the shares of a short capture",
    )
    ranks = {case.rank_of[task] for task in steps}
    return _finding(case, "warm-up", Severity.INFO, sentence, advice, cost, "over the median step", None, ranks)


def _drift(case: Case, steps: Mapping[Task, StepTimes], warm_up: int) -> Finding | None:
    lost, shares, ranks = [], [], set()
    for task, one in steps.items():
        later = one.duration[warm_up:].astype(float)
        third = len(later) // 3
        if len(later) < max(case.thresholds.drift_steps, 3):
            continue
        # Medians, so that single slow steps are no drift; the middle lies between where it goes on.
        first, middle, last = (float(np.median(part)) for part in (later[:third], later[third:-third], later[-third:]))
        lost.append(float(np.maximum(later - first, 0).sum()))
        shares.append(100 * (last / first - 1))
        if shares[-1] >= case.thresholds.drift_percent and first <= middle <= last:
            ranks.add(case.rank_of[task])
    if len(ranks) * 2 <= len(shares):
        return None
    sentence = (
        f"steps become slower: the last third takes {float(np.median(shares)):.0f} % longer than the first "
        "(medians, without the warm-up)"
    )
    advice = Advice(
        "compare a late step with an early one (`nsystui diff` with --time-a and --time-b)",
        "kernels that take longer, more of them, or more idle time: that tells where to look; single slow steps would "
        "leave the median alone",
    )
    measured = "over the median of the first third"
    return _finding(case, "drift", Severity.WARNING, sentence, advice, _mean(lost), measured, None, ranks)


def _finding(
    case: Case,
    name: str,
    severity: Severity,
    sentence: str,
    advice: Advice,
    cost: int,
    over: str,
    window: Window | None,
    ranks: set[int],
) -> Finding:
    evidence = steps_across_ranks(list(case.ranks), case.job.steps(case.step_name), case.chosen.window)
    measured = f"time of these steps {over}; mean over the ranks"
    numbers = tuple(sorted(ranks))
    share = case.percent(cost)
    return Finding(name, severity, sentence, advice, _DOOR, cost, share, measured, evidence, window, numbers)
