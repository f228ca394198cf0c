"""Steps: slow steps, drift, host-to-device copies, and phases of inference that the host bounds."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import DEVICE, RANK, Column, Unit
from nsystui.base.selection import Selection, Task
from nsystui.base.text import counted, few
from nsystui.base.types import Flags, Floats, Ints
from nsystui.questions.algebra.intervals import EMPTY, Intervals, Times, intersect, merge, union
from nsystui.questions.blocking.parts import PARTS
from nsystui.questions.host.causes import NOTHING
from nsystui.questions.host.host_work import host_work
from nsystui.questions.host.idle_spans import IdleSpan, longest_first, spans_of
from nsystui.questions.memory.host_copies import HOST_TO_DEVICE, PAGEABLE, PINNED, HostCopies, host_copies, mostly
from nsystui.questions.queries.conditions import job_end, job_start, where
from nsystui.questions.ranks.steps import StepTimes, steps_across_ranks
from nsystui.questions.steps.phases import PHASES
from nsystui.questions.steps.task_steps import NO_PHASE
from nsystui.questions.triage.case import Case, LateRank, Place, bytes_words, rank_words, spans, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.questions.triage.rule import BY_COPIES, BY_CPU, IDLE, WORK, FindingKind, rule
from nsystui.questions.triage.rules.copies import to_host
from nsystui.store import tables

_EVALUATION = r"(?:^|[^a-z:])(?:eval(?:uat\w*)?|val(?:id(?:at\w*)?)?)(?:[^a-z]|$)"
"""Names of ranges with an evaluation, not PyTorch's ``autograd::engine::evaluate_function``."""
_DOOR = Door("steps across", sort="duration_ns")
_FEWEST = 5
_SHARED = "Kernels of several processes take turns on a GPU, unless MPS or MIG divides it."
_MAX_GAPS = 40
"""The number of longest gaps whose CPU work is examined."""


@rule(
    100,
    IDLE | {"nvtx_ranges", "api_calls"},
    FindingKind("slow-steps", "slow steps", PARTS),
    FindingKind("warm-up", is_paid_once=True),
    FindingKind("drift", "steps that become slower", PARTS),
)
def step_times(case: Case) -> Sequence[Finding | NotChecked]:
    """Find slow steps, steps that become slower, and a slow start (docs/ranks.md#steps)."""
    warm_up = int(case.thresholds.warm_up_steps)
    min_steps = warm_up + _FEWEST
    judged = {task: times for task, times in case.steps.items() if len(times) >= min_steps}
    if not judged:
        why = f"needs at least {min_steps} steps of a rank (`nsystui steps` shows the steps that it finds)"
        return [NotChecked("slow-steps", why)]
    findings = [_slow(case, judged, warm_up), _warm_up(case, judged, warm_up), _drift(case, judged, warm_up)]
    return [finding for finding in findings if finding is not None]


def _mean(case: Case, costs: Mapping[Task, float]) -> int:
    """Return the mean over all GPUs of their processes' largest costs, ns."""
    largest = dict.fromkeys((gpu.device.key for gpu in case.devices), 0.0)
    for task, cost in costs.items():
        for key in _places(case, task):
            largest[key] = max(largest.get(key, 0.0), cost)
    return round(sum(largest.values()) / max(len(largest), 1))


def _places(case: Case, task: Task) -> list[Place]:
    return [gpu.device.key for gpu in case.devices if task in gpu.tasks] or [(task, 0)]


def _slow(case: Case, steps: Mapping[Task, StepTimes], warm_up: int) -> Finding | None:
    numbers, ranks, slow = dict[int, float](), set(), dict[Task, Ints]()
    window, longest, usual = None, 0, 0.0
    for task, times in steps.items():
        typical = times.typical
        indices = np.flatnonzero((times.duration > case.thresholds.slow_step * typical)[warm_up:]) + warm_up
        indices = slow[task] = indices[~_evaluates(case, times, indices, typical)]
        for index in indices.tolist():
            number, excess = int(times.numbers[index]), float(times.duration[index] - typical[index])
            numbers[number] = max(numbers.get(number, 0), excess)
            ranks.add(case.rank_of[task])
            if times.duration[index] > longest:
                window, longest, usual = times.window(index), int(times.duration[index]), float(typical[index])
    (cost, in_gaps, of_others), slow_times = _lost(case, steps, slow, warm_up)
    if case.percent(cost) < case.thresholds.slow_step_percent:
        return None
    delays = ((sum(late.by_step.get(number, 0) for number in numbers), late) for late in case.late_ranks)
    of_one = next((late for delay, late in delays if 2 * delay >= sum(numbers.values())), None)
    if of_one is not None and of_one.is_straggler:
        return None  # the finding `straggler` has its delays
    phase = " of the same phase" if any(times.has_phases for times in steps.values()) else ""
    sentence = (
        f"After the warm-up, {len(numbers):,} of {counted(max(map(len, steps.values())) - warm_up, 'step')} (number "
        f"{few(sorted(numbers))}) took more than {case.thresholds.slow_step:g} times the rank's median step{phase}. "
        f"The longest step took {time_words(longest)} instead of {time_words(usual)}."
    )
    sentence += f" Of the lost {time_words(cost)}, {time_words(in_gaps)} is idle time in long gaps." * bool(in_gaps)
    ranks, advice = _advice_on_slow(case, ranks, len(steps), of_one)
    if 2 * of_others >= cost:
        sentence += f" For {time_words(of_others)} of the lost time, the GPU works for another process."
        advice = Advice("Give each process a GPU of its own, or a share of the GPU (MPS, MIG).", _SHARED)
    finding = _finding(case, "slow-steps", Severity.WARNING, sentence, advice, cost, "the median step", ranks)
    which = f"step{'s' * (len(numbers) > 1)} {few(sorted(numbers))}" if len(numbers) < 3 else f"{len(numbers)} steps"
    line = f"{which} took {'up to ' * (len(numbers) > 1)}{time_words(longest)}, the others {time_words(usual)}"
    under = "idle-gaps" if 2 * in_gaps >= cost else ""
    return replace(finding, line=line, window=window, under=under, times=slow_times)


def _advice_on_slow(case: Case, ranks: set[int], judged: int, late: LateRank | None) -> tuple[set[int], Advice]:
    """Return the ranks that caused slow steps, as far as known, and advice; ``judged``: the number of judged ranks."""
    reason = f"Only {rank_words(ranks, case.ranks)} had slow steps, so the cause is no work that all ranks share."
    if judged == 1:
        reason = "One rank alone does not show whether the other ranks were slow, too."
    elif late is not None:
        ranks = {item.rank for item in case.job.ranks if item.task in late.tasks}
        arrive = f"arrive{'s' * (len(ranks) == 1)}"
        reason = f"{rank_words(ranks).capitalize()} {arrive} last in these steps, so the others wait."
    elif len(ranks) == judged:
        reason = "Every rank had slow steps, so the cause is work or waiting that all ranks share."
    text = "Compare the slow step with the step before it (Timeline, or `nsystui diff` with --time-a and --time-b)."
    return ranks, Advice(text, reason)


def _evaluates(case: Case, times: StepTimes, indices: Ints, typical: Floats) -> Flags:
    """Return whether an evaluation has half of the time, or more, that each slow step takes longer."""
    table = tables.nvtx_ranges
    if not len(indices) or not case.job.session.count(table):
        return np.zeros(len(indices), bool)
    is_own = [table.c.report == times.task.report, table.c.process == times.task.process, table.c.end.is_not(None)]
    is_named = sa.func.regexp_matches(table.c.name, _EVALUATION, "i", type_=sa.Boolean)
    query = sa.select(job_start(table), job_end(table)).where(*is_own, is_named)
    starts, ends = np.array(case.job.session.rows(query), np.int64).reshape(-1, 2).T
    edges = np.append(times.cpu_start, np.iinfo(np.int64).max)
    spent = union(starts, ends).covered(edges[indices], edges[indices + 1])
    return np.asarray(2 * spent >= (times.duration - typical)[indices], bool)


def _lost(
    case: Case, steps: Mapping[Task, StepTimes], slow: Mapping[Task, Ints], warm_up: int
) -> tuple[list[int], dict[Place, Intervals]]:
    """Return the time that slow steps lose, in long gaps, and to other processes: means, ns; and when, by GPU."""
    lost, when = {gpu.device.key: np.zeros(3) for gpu in case.devices}, dict[Place, Intervals]()
    for task, indices in slow.items():
        times = steps[task]
        excess = [(times.duration - times.typical)[indices].sum()]
        devices = [device for device in case.devices if times.task in device.tasks]
        idle, ends = np.zeros(len(times)), times.start + times.duration
        for device in devices:
            idle += case.long_idle(device).covered(times.start, ends)
        for spent in (idle / max(len(devices), 1), _of_others(case, times)):
            more = np.maximum(spent[indices] - np.median(spent[warm_up:]), 0).sum()
            excess.append(min(more, excess[0]))
        for key in _places(case, task):
            lost[key] = np.maximum(lost.get(key, np.zeros(3)), excess)
            when[key] = merge(when.get(key, EMPTY), union(times.start[indices], ends[indices]))
    return np.mean([*lost.values()], axis=0).round().astype(int).tolist(), when


def _of_others(case: Case, steps: StepTimes) -> Times:
    """Return how long other processes compute on a task's GPUs in each step, ns."""
    used = {item.key for gpu in case.devices if steps.task in gpu.tasks for item in gpu.devices}
    spent = np.zeros(len(steps), np.int64)
    for item in case.job.busy(case.scope).devices:
        if item.device.task.task != steps.task and item.device.key in used:
            spent += item.parts.kernels.covered(steps.start, steps.start + steps.duration)
    return spent


def _work_of(case: Case, steps: Mapping[Task, StepTimes], warm_up: int) -> str:
    """Return a sentence on the CPU's known work in the first steps' long gaps."""
    spans_in_steps: list[IdleSpan] = []
    for device in case.devices:
        gpu, of_gpu = device.device, [times.start for task, times in steps.items() if task in device.tasks]
        warming = union([start[0] for start in of_gpu], [start[warm_up] for start in of_gpu])
        # not `Case.long_gaps`: they begin in the steady state
        idle_intervals = intersect(case.idle_in(device, case.window_of(device)), warming)
        gaps = idle_intervals.chosen(idle_intervals.lengths >= case.thresholds.gap_ms * 1e6)
        spans_in_steps += spans_of(gpu.key, gaps)
    idle = case.mean(span.length for span in spans_in_steps)
    if not idle:
        return ""
    causes: dict[str, int] = {}
    for work in host_work(case.job, longest_first(spans_in_steps)[:_MAX_GAPS]):
        for cause, time in work.causes.items():
            if cause.kind != NOTHING:
                causes[cause.words] = causes.get(cause.words, 0) + time
    words = f" Long gaps in these steps leave the GPU idle for {time_words(idle)}"
    if not causes:
        return f"{words}. The CPU's work in the gaps was not recorded."
    longest = max(sorted(causes), key=lambda name: causes[name])
    return f"{words}, of which {time_words(case.mean([causes[longest]]))} is {longest}."


def _warm_up(case: Case, steps: Mapping[Task, StepTimes], warm_up: int) -> Finding | None:
    extra = {task: np.maximum(times.duration - times.typical, 0)[:warm_up].sum() for task, times in steps.items()}
    cost = _mean(case, extra)
    if not warm_up or case.percent(cost) < case.thresholds.warm_up_percent:
        return None
    until = max(int(times.start[warm_up]) for times in steps.values())
    work = _work_of(case, steps, warm_up)
    sentence = f"The warm-up ({counted(warm_up, 'step')}) takes {time_words(cost)} longer than median steps.{work}"
    advice = Advice(
        f"Judge the steady part alone with --time {until}ns: (or start the capture later, with -c cudaProfilerApi).",
        "Costs that a program pays once distort the shares of a short capture.",
    )
    ranks = {case.rank_of[task] for task in steps}
    return _finding(case, "warm-up", Severity.INFO, sentence, advice, cost, "the median step", ranks)


def _drift(case: Case, steps: Mapping[Task, StepTimes], warm_up: int) -> Finding | None:
    lost, shares, ranks = dict[Task, float](), [], set()
    for task, times in steps.items():
        # For inference servers, only steps of the most frequent phase count: later prefills are no drift.
        is_usual = times.phases == np.bincount(times.phases - NO_PHASE).argmax() + NO_PHASE
        later = times.duration[is_usual][warm_up:].astype(float)
        third = len(later) // 3
        if len(later) < max(case.thresholds.drift_steps, 3):
            continue
        # Medians, so that single slow steps are no drift; a steady drift has the middle third in between.
        first, middle, last = (float(np.median(part)) for part in (later[:third], later[third:-third], later[-third:]))
        lost[task] = float(np.maximum(later - first, 0).sum())
        shares.append(100 * (last / first - 1))
        if shares[-1] >= case.thresholds.drift_percent and first <= middle <= last:
            ranks.add(case.rank_of[task])
    if len(ranks) * 2 <= len(shares):
        return None
    sentence = (
        f"Steps become slower: the last third takes {float(np.median(shares)):.0f} % longer than the first third "
        "(medians, without the warm-up)."
    )
    advice = Advice(
        "Compare a late step with an early step (`nsystui diff` with --time-a and --time-b).",
        "The comparison shows whether kernels take longer, run more often, or leave more idle time between them.",
    )
    over = "the median of the first third"
    return _finding(case, "drift", Severity.WARNING, sentence, advice, _mean(case, lost), over, ranks)


def _finding(
    case: Case, name: str, severity: Severity, sentence: str, advice: Advice, cost: int, over: str, ranks: set[int]
) -> Finding:
    evidence = steps_across_ranks(list(case.ranks), case.job.steps(case.step_name), case.scope.window)
    measured, numbers = f"Time of these steps above {over}. The mean is over the GPUs.", tuple(sorted(ranks))
    return case.finding(name, sentence, advice, _DOOR, cost, measured, evidence, severity, ranks=numbers)


_COLUMNS = (
    RANK, DEVICE.with_importance(1), Column("steps", header="Steps", label="steps", unit=Unit.COUNT, importance=1),
    Column("count", header="Copies", label="copies", unit=Unit.COUNT, importance=1),
    Column("bytes", header="Bytes per Step", label="per step", unit=Unit.BYTES),
    Column("time", header="Copying (ns)", label="copying", unit=Unit.DURATION),
    Column("exposed", header="Not Hidden (ns)", label="not hidden", unit=Unit.DURATION),
)  # fmt: skip


_TRAFFIC = FindingKind("step-traffic", "host-to-device copies within steps", BY_COPIES + BY_CPU)


@rule(320, WORK | {"nvtx_ranges", "api_calls"}, _TRAFFIC)
def step_traffic(case: Case) -> Sequence[Finding | NotChecked]:
    r"""Find host-to-device traffic in steps that no kernel hides, |U(M, host to device) \ U(K)|."""
    if not case.job.session.count(tables.memory_ops):
        return [NotChecked("step-traffic", f"needs memory operations: {case.absence}")]
    devices = [device for device in case.devices if device.tasks & case.steps.keys()]
    if not devices:
        return [NotChecked("step-traffic", "needs steps (`nsystui steps` says why there are none)")]
    memory, with_steps = tables.memory_ops, Selection(tasks=frozenset(case.steps))
    copies = spans(case, memory, [memory.c.copy_kind == HOST_TO_DEVICE, *where(memory, with_steps)], by="device")
    sizes, rows = _sizes(case), list[tuple[int, ...]]()
    for device in devices:
        gpu, window = device.device, case.working(device)
        local = copies.of(*gpu.key).clip(window.start, window.end)
        exposed = local.length - device.parts.kernels.shared_with(local)
        steps = sum(len(times) for task, times in case.steps.items() if task in device.tasks)
        count, size = sizes.get(gpu.key, (0, 0))
        rows.append((gpu.task.rank, gpu.device, steps, count, round(size / max(steps, 1)), local.length, exposed))
    cost = case.mean(exposed for *_, exposed in rows)
    if case.percent(cost) < case.thresholds.traffic_percent:
        return []
    rows.sort(key=lambda row: (-row[-1], str(row[:2])))
    per_step, total = (float(np.mean([row[column] for row in rows])) for column in (4, 5))
    of_steps = host_copies(case.job.session, case.scope.with_tasks(frozenset(case.steps)))
    uploads = [group for group in of_steps if group.kind == HOST_TO_DEVICE]
    kinds = f" ({'; '.join(group.words for group in uploads[:2])})" if uploads else ""
    sentence = (
        f"Each step copies {bytes_words(per_step)} to {case.each_gpu[0].lower()}{case.each_gpu[1:]} from the host "
        f"(mean). The copies of all steps take {time_words(total)} per GPU, and no kernel hides {time_words(cost)} of "
        f"this{kinds}."
    )
    measured = (
        "Host-to-device copies in the steady state that no kernel of the GPU overlaps. The mean is over the GPUs."
    )
    advice, evidence = to_host(case, _advice(uploads)), (_COLUMNS, rows)
    return [case.finding("step-traffic", sentence, advice, Door("memory"), cost, measured, evidence)]


def _advice(uploads: Sequence[HostCopies]) -> Advice:
    first = "Keep constant data on the GPU, and copy less (smaller types, only what a step reads)."
    reason = "The link to the host is tens of times slower than GPU memory, and each step uses it again."
    if mostly(uploads, PAGEABLE):
        how = "Pin the host memory, and prefetch the rest on a separate stream."
        reason = f"CUDA stages every copy from pageable memory, so nothing overlaps these copies. {reason}"
    elif mostly(uploads, PINNED) and all(group.is_apart for group in uploads):
        how = "Issue the copies of the next step earlier."
        reason = f"The copies are from pinned memory and on a separate stream already. {reason}"
    elif mostly(uploads, PINNED):
        how = "Prefetch the rest on a separate stream: the memory is pinned already."
    else:
        how = "Prefetch the rest on a separate stream."
    return Advice(f"{first} {how}", reason)


def _sizes(case: Case) -> dict[Place, tuple[int, int]]:
    """Return number and bytes of the steady state's copies from the host, by GPU, of processes with steps."""
    memory = tables.memory_ops
    starts = {task: case.working(device).start for device in case.devices for task in device.tasks & case.steps.keys()}
    # A join, because conditions would compare every row with hundreds of processes.
    names = (sa.column(name, sa.BigInteger) for name in ("report", "process", "since"))
    given = [(task.report, task.process, start) for task, start in starts.items()]
    tasks = sa.select(sa.values(*names, name="given").data(given)).subquery("own")
    is_same = sa.and_(memory.c.report == tasks.c.report, memory.c.process == tasks.c.process)
    columns = (memory.c.report, memory.c.process, memory.c.device)
    query = (
        sa.select(*columns, sa.func.count(), sa.cast(sa.func.coalesce(sa.func.sum(memory.c.bytes), 0), sa.BigInteger))
        .join_from(memory, tasks, is_same)
        .where(*where(memory, case.scope), memory.c.copy_kind == HOST_TO_DEVICE, job_start(memory) >= tasks.c.since)
        .group_by(*columns)
    )
    sizes: dict[Place, tuple[int, int]] = {}
    for report, process, device, count, size in case.job.session.rows(query):
        user = Task(report, process), device
        gpu = case.gpu_of.get(user, user)
        earlier = sizes.get(gpu, (0, 0))
        sizes[gpu] = earlier[0] + int(count), earlier[1] + int(size)
    return sizes


_HOST_BOUND = FindingKind("host-bound", "a host that bounds inference", BY_CPU, symptom_of=("preempted",))


@rule(145, IDLE | {"nvtx_ranges", "api_calls"}, _HOST_BOUND)
def host_bound(case: Case) -> Sequence[Finding | NotChecked]:
    """Find phases whose steps the host bounds (docs/path.md#phases); the cost is their time of late launches."""
    codes = {PHASES[code]: code for gpu in case.budgets for code in set(gpu.phases.tolist()) if 0 <= code < len(PHASES)}
    if not codes:
        return []
    from nsystui.questions.blocking.phase_table import budget_of_phases, is_host_bound

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
