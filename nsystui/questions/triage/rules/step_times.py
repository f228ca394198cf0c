"""Steps that are slow, steps that become slower, and a start that is (docs/ranks.md#steps)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from nsystui.base.selection import Task, Window
from nsystui.base.text import few
from nsystui.questions.ranks.steps import StepTimes, steps_across_ranks
from nsystui.questions.triage.case import Case, number_of, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity

_DOOR = Door("steps across", sort="median")
_FEWEST = 5


def check(case: Case) -> Sequence[Finding | NotChecked]:
    warm_up = int(case.thresholds.warm_up_steps)
    least = warm_up + _FEWEST
    judged = {task: one for task, one in case.steps.items() if len(one) >= least}
    if not judged:
        why = f"needs {least} steps of a rank or more: numbered NVTX ranges such as `step 7`, or --step-range REGEX"
        return [NotChecked("steps", why)]
    found = [_slow(case, judged, warm_up), _warm_up(case, judged, warm_up), _drift(case, judged, warm_up)]
    return [one for one in found if one is not None]


def _mean(values: Sequence[float]) -> int:
    return round(sum(values) / len(values))


def _slow(case: Case, steps: Mapping[Task, StepTimes], warm_up: int) -> Finding | None:
    lost, numbers, ranks = [], set(), set()
    window, longest, usual = None, 0, 0.0
    for task, one in steps.items():
        later = one.duration[warm_up:]
        middle = float(np.median(later))
        places = np.flatnonzero(later > case.thresholds.slow_step * middle) + warm_up
        lost.append(float((one.duration[places] - middle).sum()))
        for place in places.tolist():
            numbers.add(int(one.numbers[place]))
            ranks.add(case.rank_of[task])
            if one.duration[place] > longest:
                window, longest, usual = one.window(place), int(one.duration[place]), middle
    cost = _mean(lost)
    if case.percent(cost) < case.thresholds.slow_step_percent:
        return None
    sentence = (
        f"{number_of(len(numbers), 'step')} of {max(map(len, steps.values()))} (number {few(sorted(numbers))}) "
        f"took more than {case.thresholds.slow_step:g} times the rank's median after warm-up; the longest "
        f"{time_words(longest)} instead of {time_words(usual)}"
    )
    whose = "on every rank" if len(ranks) == len(steps) else "on some ranks only"
    advice = Advice(
        "compare that step with the one before it (Timeline, or `nsystui diff` with --time-a and --time-b)",
        f"it was slow {whose}: "
        + ("checkpoints, data loading or allocations" if len(ranks) == len(steps) else "a host"),
    )
    return _finding(case, "slow-steps", Severity.WARNING, sentence, advice, cost, "over the median step", window, ranks)


def _warm_up(case: Case, steps: Mapping[Task, StepTimes], warm_up: int) -> Finding | None:
    lost = []
    for one in steps.values():
        usual = float(np.median(one.duration[warm_up:]))
        lost.append(float(np.maximum(one.duration[:warm_up] - usual, 0).sum()))
    cost = _mean(lost)
    if not warm_up or case.percent(cost) < case.thresholds.warm_up_percent:
        return None
    first = next(iter(steps.values()))
    until = int(first.start[warm_up])
    sentence = f"the first {warm_up} steps take {time_words(cost)} more than as many later ones"
    advice = Advice(
        f"judge the steady part alone: --time {until}ns: (or capture later, with -c cudaProfilerApi)",
        "compilation, autotuning, allocation and NCCL's connections are paid once, and distort "
        "shares of a short capture",
    )
    ranks = {case.rank_of[task] for task in steps}
    return _finding(
        case, "warm-up", Severity.INFO, sentence, advice, cost, "over the median of the later steps", None, ranks
    )


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
        "look for what grows: memory in use and its fragmentation, sequence lengths, logging; and for clocks that sink",
        "single slow steps would leave the median alone",
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
