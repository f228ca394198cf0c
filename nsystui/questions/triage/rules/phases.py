"""Phases of inference in which the host bounds the GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from nsystui.base.text import counted
from nsystui.questions.blocking.phase_table import budget_of_phases, is_host_bound
from nsystui.questions.steps.phases import PHASES
from nsystui.questions.triage.case import Case, spans, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked
from nsystui.questions.triage.rule import BY_CPU, IDLE, FindingKind, rule
from nsystui.store import tables


@rule(
    145,
    IDLE | {"nvtx_ranges", "api_calls"},
    FindingKind("host-bound", "a host that bounds inference", BY_CPU, symptom_of=("preempted",)),
)
def host_bound(case: Case) -> Sequence[Finding | NotChecked]:
    """Find phases whose steps the host bounds (docs/path.md#phases); the cost is their time of late launches."""
    codes = {PHASES[code]: code for gpu in case.budgets for code in set(gpu.phases.tolist()) if 0 <= code < len(PHASES)}
    if not codes:
        return []
    table = budget_of_phases(case.job, case.scope, case.step_name)
    rows = {str(row["phase"]): row for row in table.records()}
    bound = {phase: rows[phase] for phase in codes if phase in rows and is_host_bound(rows[phase], phase)}
    starved = {
        phase: case.mean(int(gpu.of.part("starved")[gpu.phases == codes[phase]].sum()) for gpu in case.budgets)
        for phase in bound
    }
    cost = sum(starved.values())
    if not bound or case.percent(cost) < case.thresholds.launch_percent:
        return []
    worst = max(starved, key=lambda phase: starved[phase])
    row, count = bound[worst], sum(int((gpu.phases == codes[worst]).sum()) for gpu in case.budgets)
    sentence = (
        f"The host bounds {' and '.join(bound)}: GPUs wait {time_words(cost)} for launches there, and are idle for "
        f"{row['idle']:.0f} % of the time of {counted(count, f'{worst} step')}."
    )
    if row["of_time"] is not None:
        sentence += f" Preparation on the host takes {row['of_time']:.0f} % of it while the GPUs are idle."
    is_replay = tables.api_calls.c.name.contains("GraphLaunch")
    replay = f", and replay {worst} steps as CUDA graphs" * (spans(case, tables.api_calls, [is_replay]).count < count)
    advice = Advice(
        "Prepare the next step while the GPU runs this one (the overlap scheduler of TensorRT-LLM, async scheduling of "
        f"vLLM){replay}.",
        "Such steps are as long as the host takes for them; a faster GPU changes nothing.",
    )
    measured = "Time of late launches in the steps of these phases. The mean is over the GPUs."
    return [case.finding("host-bound", sentence, advice, Door("steps by phase"), cost, measured, table)]
