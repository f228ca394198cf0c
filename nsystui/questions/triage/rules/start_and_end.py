"""Idle time before the steady state and after the last operation, and what the CPU did (docs/numbers.md#gaps).

What a program pays once is stated, not scolded: both are remarks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nsystui.base.answer import Column, TableAnswer, Unit
from nsystui.base.selection import Window
from nsystui.questions.algebra.intervals import Intervals, intersect
from nsystui.questions.host.causes import NOTHING, OFF_CPU, PROFILER
from nsystui.questions.host.gaps import STARTUP, TAIL, idle_time
from nsystui.questions.host.time_budget import LONG_GAP, device_budgets, in_sum
from nsystui.questions.triage.case import Case, Place, by_place, time_words, worked_by
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.questions.triage.rules.idle_gaps import what_to_record

_TOLD = 3
_SEEN = 0.02
"""A cause with less of the time is not told."""
_COLUMNS = (
    Column("cause", header="Cause", label="cause"),
    Column("what", header="What", label="call or function"),
    Column("time", header="Idle (ns)", label="idle", unit=Unit.DURATION),
)
_PARTS = {
    STARTUP: ("start-up", "before the steady state", "start_up_percent"),
    TAIL: ("tail", "after their last operation", "tail_percent"),
}
_ONCE = "a program pays it once: in a long run it does not matter"


def check(case: Case) -> Sequence[Finding | NotChecked]:
    budget = in_sum(device_budgets(case.job, case.chosen, case.step_name))
    costs = {STARTUP: case.mean([budget.startup]), TAIL: case.mean([budget.tail])}
    parts = [
        part
        for part, (*_, least) in _PARTS.items()
        if costs[part] and case.percent(costs[part]) >= getattr(case.thresholds, least)
    ]
    return [_finding(case, part, costs[part]) for part in parts]


def _finding(case: Case, part: str, cost: int) -> Finding:
    found = idle_time(case.job, case.chosen, case.step_name, wanted=(part,), least=LONG_GAP)
    times: dict[tuple[str, str], int] = {}
    kinds: dict[str, int] = {}
    one = found.attribution
    for number, time in zip(one.cause.tolist(), one.time.tolist(), strict=True):
        cause = one.causes[number]
        key = (cause.kind, cause.words if cause.what else "")
        times[key] = times.get(key, 0) + time
        kinds[cause.kind] = kinds.get(cause.kind, 0) + time
    rows = sorted(((kind, what or None, time) for (kind, what), time in times.items() if time), key=lambda row: -row[2])
    told = [_words(case, *row) for row in rows[:_TOLD] if case.mean([row[2]]) >= _SEEN * cost]
    name, where, _ = _PARTS[part]
    when = by_place((span.task, span.device, span.start, span.end) for span in one.spans)
    sentence = f"GPUs are idle for {time_words(cost)} each {where}{_beside(case, when)}: {'; '.join(told)}"
    longest = max(kinds, key=lambda kind: kinds[kind], default=NOTHING)
    flags = what_to_record(case, longest) if longest in (NOTHING, OFF_CPU) else ""
    if flags:
        advice = Advice(f"record with `nsys profile {flags}`: it would say what the CPU did then", _ONCE)
    elif longest == PROFILER:
        advice = Advice("leave it out of timings", "most of it is the profiler's own work: without nsys there is none")
    else:
        advice = Advice("leave it out of timings; in a run as short as this, shorten it (`nsystui gaps`)", _ONCE)
    measured = "idle time by part of the budget, without gaps below 1 ms among the causes; mean over the GPUs"
    evidence = TableAnswer(name, _COLUMNS, rows, len(rows))
    percent = case.percent(cost)
    return Finding(name, Severity.INFO, sentence, advice, Door("gaps"), cost, percent, measured, evidence, times=when)


def _beside(case: Case, when: Mapping[Place, Intervals]) -> str:
    """For how much of the time another GPU of the process works: what the CPU did then is that GPU's affair."""
    beside = 0
    for (task, device), own in when.items():
        others = [one for one in case.devices if task in one.tasks and one.device.device != device]
        if others:
            hull = Window(int(own.starts[0]), int(own.ends[-1]))
            beside += intersect(own, worked_by(others, hull)).length
    share = beside / max(sum(own.length for own in when.values()), 1)
    return f", for {100 * share:.0f} % of that while another GPU of the process works" if share >= _SEEN else ""


def _words(case: Case, kind: str, what: str | None, time: int) -> str:
    """``7.718 s in calls that allocate or free memory (cudaMallocHost)``."""
    words = "in which nothing is recorded of the CPU" if kind == NOTHING else kind
    return f"{time_words(case.mean([time]))} {words}{f' ({what})' if what else ''}"
