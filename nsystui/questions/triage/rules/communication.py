"""Waiting for other ranks and for NCCL: stragglers, exposed communication, small messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import HOST, RANK, Column, Row, TableAnswer, Unit
from nsystui.base.kernel_families import COPIES_BACKEND
from nsystui.base.selection import Selection, Task, Window
from nsystui.base.text import counted, few
from nsystui.base.units import format_value, numbered
from nsystui.exports import canonical
from nsystui.questions.algebra.intervals import Times, union
from nsystui.questions.gpu.device_time import DeviceIntervals, total
from nsystui.questions.queries.recording import sizes_advice
from nsystui.questions.queries.tasks import world_size
from nsystui.questions.triage.case import (
    Case,
    LateCause,
    Place,
    by_framework,
    bytes_words,
    once,
    rank_words,
    time_words,
)
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.questions.triage.kernel_times import kernel_launches
from nsystui.questions.triage.lateness import late_rank
from nsystui.questions.triage.rule import BY_COMMUNICATION, WORK, FindingKind, rule
from nsystui.questions.triage.rules.input_pipeline import loader_advice
from nsystui.store import tables

if TYPE_CHECKING:
    import pandas as pd

    from nsystui.questions.collectives.matching import Member
    from nsystui.questions.collectives.waiting import Arrivals, Lateness
    from nsystui.questions.triage.case import LateRank, RankCompute


_COLUMNS = (
    RANK, HOST.with_importance(2), Column("late", header="Late", label="late", unit=Unit.COUNT),
    Column("collectives", header="Collectives", label="of", unit=Unit.COUNT, importance=1),
    Column("caused", header="Exposed Wait Caused (ns)", label="exposed wait caused", unit=Unit.DURATION),
    Column("suffered", header="Exposed Wait (ns)", label="exposed wait", unit=Unit.DURATION, compared="caused"),
    Column("wait_caused", header="Wait Caused (ns)", label="wait caused", unit=Unit.DURATION,
        compared="caused").with_importance(1),
    Column("kernels", header="Compute Kernels", label="compute kernels", unit=Unit.COUNT, importance=1),
    Column("compute", header="Compute Time (ns)", label="compute", unit=Unit.DURATION, importance=1),
)  # fmt: skip
_DOOR = Door("collectives", sort="late_by_ns")
_METHOD = (
    "Exposed NCCL time of the other GPUs in the collectives at which a rank arrives last, minus this rank's own "
    "exposed NCCL time in these collectives. The mean is over all GPUs; the GPUs of this rank count as 0."
)
_RARE = Advice(
    "Compare such a step with another step of this rank (`nsystui diff` with --time-a and --time-b).",
    "In its other steps this rank is not late, so its GPU is not slow.",
)
_VARIES = Advice(
    "Look at what the late rank does just before a long wait (Ranks screen, then Timeline; `nsystui gaps --by rank`).",
    "Waiting that moves from rank to rank comes from work that varies, not from one slow GPU.",
)
_LAUNCHED_LATE = Advice(
    "Look at what this rank does on the CPU before its collectives (Ranks screen, then Timeline).",
    "The GPU of this rank computes no longer than the others, so its work is launched late.",
)
_STARTS_LATE = Advice(
    "Look at what runs before its idle time (`nsystui gaps --by pair`): streams that wait for each other, page faults, "
    "another process on this GPU.",
    "The kernels of this rank are launched in time, but start late. The export does not show what they wait for.",
)
_BY_CAUSE = {
    LateCause.STALL: _LAUNCHED_LATE,
    LateCause.COPIES: Advice(
        "Look at the copies of this rank (`nsystui memory --by rank`): use pinned memory, or copy while kernels run.",
        "The kernels of this rank wait for its copies, and the other ranks for this rank.",
    ),
    LateCause.HOST_FUNCTIONS: Advice(
        "Move the work of its host functions (cudaLaunchHostFunc) to a thread of its own.",
        "A stream runs nothing while its host function runs, and the other ranks wait for this rank.",
    ),
}
_SEVERAL = Advice(
    "Mend all of these causes: `nsystui steps --budget --ranks N` shows where a rank loses its time.",
    "These ranks arrive together, so that the others wait as long if only one of them gets faster.",
)
_UNKNOWN_REASON = Advice(
    "Look at what this rank does before its collectives (Ranks screen, then Timeline).",
    "The last rank to arrive sets the pace of all ranks.",
)
_SAME_PACE = "If only one kernel takes longer, its inputs rather differ than that the GPU is slow."
_NONE = (None, None)
_LOW_CLOCK = Advice(
    "Look at power cap, temperature and cooling (nvidia-smi -q -d PERFORMANCE), or exclude the node.",
    "Kernels take longer at a lower clock.",
)
_DIFFERS = 0.03
"""The minimum relative difference of a rank's compute time or kernel count from other ranks'."""


@rule(
    30,
    WORK | {"nccl_calls", "nvtx_ranges", "api_calls"},
    FindingKind("straggler", "waiting for a late rank", BY_COMMUNICATION),
    FindingKind("imbalance", "ranks waiting for each other", BY_COMMUNICATION),
)
def stragglers(case: Case) -> Sequence[Finding | NotChecked]:
    r"""Find ranks for which other ranks wait at collectives (docs/ranks.md#waiting).

    Let E(r) be the exposed time, |C \ U(K)|, of the kernels of a GPU r in the collectives at which a rank L arrives
    last. Each other GPU r loses E(r) − E(L). The cost is their sum, divided by the number of all GPUs.
    """
    if len(case.job.ranks) < 2:
        return [NotChecked("straggler", "needs the exports of at least two ranks of one job")]
    from nsystui.questions.collectives.waiting import SYNCHRONOUS, Arrivals, late_together, lateness

    # The selection may lack the late rank.
    arrivals = [
        Arrivals.of(group, case.scope.window)
        for group in case.job.collectives().groups
        if any(member.task in case.tasks for member in group.members)
    ]
    lateness_by_task = lateness(arrivals)
    if not lateness_by_task:
        return [NotChecked("straggler", f"needs NCCL kernels ({', '.join(SYNCHRONOUS)}) that the ranks share")]
    from nsystui.questions.collectives.matching import Member

    members = sorted(set[Member]().union(*(arrival.group.members for arrival in arrivals)))
    lost = _lost(case, arrivals, members, late := late_together(arrivals))
    caused, suffered = (dict.fromkeys(lateness_by_task, 0) for _ in range(2))
    costs = {tasks[0]: case.mean(losses.values()) for tasks, losses in lost.items()}
    for tasks, losses in lost.items():
        waiting = len([gpu for gpu in case.devices if gpu.tasks.isdisjoint(tasks)])
        caused |= dict.fromkeys(tasks, sum(losses.values()) // max(waiting, 1))
        for (task, _), time in losses.items():
            suffered[task] += time
    limits, least = case.thresholds, case.thresholds.straggler_share * sum(costs.values()) / 100
    large = {task for task, time in caused.items() if case.percent(time) >= limits.straggler_percent}
    stragglers = {task for task in large if costs.get(task, 0) >= least}
    case.late_ranks.extend(late_rank(case, arrivals, tasks, tasks[0] in stragglers) for tasks in late)
    return _judged(case, lateness_by_task, caused, lost, suffered)


def _lost(
    case: Case, arrivals: Sequence[Arrivals], members: Sequence[Member], late: Sequence[Sequence[Task]]
) -> dict[Sequence[Task], dict[Place, int]]:
    """Return what each selected member that waits for late tasks loses, ns."""
    from nsystui.questions.collectives.matching import Member
    from nsystui.questions.collectives.waiting import NOBODY

    late_indices = {task: index for index, tasks in enumerate(late) for task in tasks}
    spans: dict[Member, list[tuple[Times, Times, Times]]] = {member: [] for member in members}
    for arrival in arrivals:
        has_last = arrival.last != NOBODY
        operations, last = arrival.operations[has_last], arrival.last[has_last]
        tasks = np.array([late_indices.get(member.task, NOBODY) for member in arrival.group.members], np.int64)[last]
        for index, member in enumerate(arrival.group.members):
            spans[member].append((arrival.group.start[index, operations], arrival.group.end[index, operations], tasks))
    devices = {Member(gpu.device.task.task, gpu.device.device): gpu for gpu in case.job.busy(Selection()).devices}
    exposed = np.zeros((len(late), len(members)), np.int64)
    took_part = np.zeros(exposed.shape, np.bool_)
    for column, member in enumerate(members):
        starts, ends, tasks = (np.concatenate(parts) for parts in zip(*spans[member], strict=True))
        took_part[tasks, column] = True
        exposed[:, column] = _exposed(starts, ends, tasks, len(late), devices.get(member))
    is_late = np.array([[member.task in tasks for member in members] for tasks in late], bool).reshape(exposed.shape)
    floor = np.where(is_late & took_part, exposed, np.iinfo(np.int64).max).min(axis=1, initial=np.iinfo(np.int64).max)
    is_selected = np.array([member.task in case.tasks for member in members], bool)
    lost = np.where(took_part & ~is_late & is_selected, np.maximum(exposed - floor[:, None], 0), -1)
    return {
        tasks: {(member.task, member.device): time for member, time in zip(members, times, strict=True) if time >= 0}
        for tasks, times in zip(late, lost.tolist(), strict=True)
    }


def _exposed(starts: Times, ends: Times, tasks: Times, count: int, device: DeviceIntervals | None) -> Times:
    """Return a member's kernel time that no other kernel hides, by late task, ns, shape ``(count,)``."""
    exposed = np.zeros(count, np.int64)
    order = np.argsort(starts, kind="stable")
    if (starts[order][1:] < ends[order][:-1]).any():  # concurrent kernels of several streams count once
        merged = {task: union(starts[tasks == task], ends[tasks == task]) for task in np.unique(tasks).tolist()}
        starts, ends = (np.concatenate([getattr(part, key) for part in merged.values()]) for key in ("starts", "ends"))
        tasks = np.repeat(list(merged), [len(part) for part in merged.values()])
    np.add.at(exposed, tasks, ends - starts)
    if device is not None:
        kernels = device.parts.kernels
        np.subtract.at(exposed, tasks, kernels.before(ends)[0] - kernels.before(starts)[0])
    return exposed


def _judged(
    case: Case, lateness_by_task: Mapping[Task, Lateness], caused: Mapping[Task, int],
    lost: Mapping[Sequence[Task], Mapping[Place, int]], suffered: Mapping[Task, int],
) -> list[Finding | NotChecked]:  # fmt: skip
    computed, parts = case.computed, case.job.model_parts(case.step_name).of_task
    evidence = _table(case, lateness_by_task, caused, suffered)
    late_ranks = {rank.tasks[0]: rank for rank in case.late_ranks if rank.is_straggler}
    findings: list[Finding | NotChecked] = [
        _straggler(case, late, lateness_by_task, lost[late.tasks], caused[item.task], evidence)
        for item in case.job.ranks
        if (late := late_ranks.get(item.task))
    ]
    cost = case.mean(suffered.values())
    if not findings and case.percent(cost) >= case.thresholds.imbalance_percent:
        costs = {tasks[0]: case.mean(losses.values()) for tasks, losses in lost.items()}
        text = (
            f"Waiting for late ranks costs {time_words(cost)} per GPU{_among(case)}. The late rank varies: "
            f"rank {max(case.job.ranks, key=lambda item: costs.get(item.task, 0)).rank} causes the largest part, "
            f"{time_words(max(costs.values()))}.{_division(computed, parts)}"
        )
        numbers = tuple(sorted(item.rank for item in case.ranks))
        findings.append(case.finding("imbalance", text, _VARIES, _DOOR, cost, _METHOD, evidence, ranks=numbers))
    return findings


def _among(case: Case) -> str:
    size = world_size(case.job.session)
    ranks = len(case.job.ranks)
    return f" ({counted(ranks, 'rank', 'are', size)} open)" if size and size > ranks else ""


def _straggler(
    case: Case, group: LateRank, lateness_by_task: Mapping[Task, Lateness], losses: Mapping[Place, int], loss: int,
    evidence: TableAnswer,
) -> Finding:  # fmt: skip
    """Return the finding on ranks that arrive together; ``losses`` of waiting GPUs, and their mean ``loss``, ns."""
    members = [rank for rank in case.job.ranks if rank.task in group.tasks]
    late, is_one = [lateness_by_task[task] for task in group.tasks], len(members) == 1
    why, advice = _reason(case, group)
    words = f": {group.words}" if group.words else ""
    wait, count = time_words(sum(rank.caused for rank in late)), sum(rank.late for rank in late)
    rival = max((rank.late for task, rank in lateness_by_task.items() if task not in group.tasks), default=0)
    often = f", another rank at {rival:,} for less time" * (rival >= count)
    who = rank_words(ranks := tuple(rank.rank for rank in members))
    hosts = few(sorted({rank.host or "host unknown" for rank in members}))
    hidden = f" ({wait} including waits that compute hides)" if wait != time_words(loss) else ""
    where = f"last at {count:,} of {counted(max(rank.operations for rank in late), 'collective')}"
    text = (
        f"{who.capitalize()} ({hosts}) arrive{'s' * is_one} {where}{often}{_among(case)}{words}. "
        f"{'Each other' if len(case.devices) - len(members) > 1 else 'The other'} GPU loses {time_words(loss)} "
        f"waiting{hidden}.{why}"
    )
    loader = "'s data loader" if group.cause is LateCause.LOADER and is_one else ""
    gist, line = f"waiting for {who}{loader}", f"{who} ({hosts}) {'is' if is_one else 'are'} {where}"
    cost = case.mean(losses.values())
    return case.finding(
        "straggler", text, advice, _DOOR, cost, _METHOD, evidence, ranks=ranks, gist=gist, line=line, losses=losses
    )


def _table(
    case: Case, lateness_by_task: Mapping[Task, Lateness], caused: Mapping[Task, int], suffered: Mapping[Task, int]
) -> TableAnswer:
    rows: list[Row] = []
    taking_part = [item for item in case.job.ranks if item.task in lateness_by_task]
    for item in sorted(taking_part, key=lambda item: (-caused[item.task], item.rank)):
        late, computed = lateness_by_task[item.task], case.computed.get(item.task)
        waits = (late.late, late.operations, caused[item.task], suffered[item.task], late.caused)
        rows.append((item.rank, item.host or None, *waits, *((computed.kernels, computed.time) if computed else _NONE)))
    return TableAnswer("stragglers", _COLUMNS, rows, len(rows))


def _division(computed: Mapping[Task, RankCompute], parts: Mapping[Task, str]) -> str:
    times: dict[str | None, list[int]] = {}
    for task, compute in computed.items():
        times.setdefault(parts.get(task), []).append(compute.time)
    if max(map(len, times.values()), default=0) < 2 or not all(map(min, times.values())):
        return ""
    longer = max(max(part_times) / min(part_times) for part_times in times.values()) - 1
    ranks = "ranks of a model part" if parts else "ranks"
    if longer <= _DIFFERS:
        return f" In total, all {ranks} compute equally long: only the timing of the work varies."
    return f" The {ranks} do not compute equally long: the longest {100 * longer:.0f} % longer than the shortest."


def _reason(case: Case, late: LateRank) -> tuple[str, Advice]:
    """Return why a rank may be late: its cause, or its kernels compared with other ranks of its model part."""
    if late.cause is LateCause.LOADER:
        who, whom = ("Its GPU waits", "its GPU") if len(late.tasks) == 1 else ("Their GPUs wait", "these GPUs")
        return "", Advice(loader_advice(case), f"{who} for the next batch, and the other ranks for {whom}.")
    if len({*late.causes.values()}) > 1:
        return "", _SEVERAL
    if late.cause in _BY_CAUSE:
        is_stalled = late.cause is LateCause.STALL and _longer(case, late, "stalled") > _longer(case, late, "starved")
        return "", _STARTS_LATE if is_stalled else _BY_CAUSE[late.cause]
    if late.is_rare:
        return "", _RARE
    computed, parts = case.computed, case.job.model_parts(case.step_name).of_task
    part, (rank, s) = parts.get(late.tasks[0]), ("rank", "s") if len(late.tasks) == 1 else ("ranks", "")
    of_part = [task for task in computed if parts.get(task) == part]
    of_late = [computed[task] for task in of_part if task in late.tasks]
    others = [computed[task] for task in of_part if task not in late.tasks]
    among = f" Among the {len(of_part)} ranks of part {part}, the" if part else " The"
    if not of_late or not others:
        return "", _UNKNOWN_REASON
    kernels, own_kernels = (float(np.median([item.kernels for item in items])) for items in (others, of_late))
    time, own_time = (float(np.median([item.time for item in items])) for items in (others, of_late))
    if not kernels or not time:
        return "", _UNKNOWN_REASON
    more, longer = own_kernels / kernels - 1, own_time / time - 1
    if longer < _DIFFERS:
        return f"{among} {rank}'{s} own kernels take no longer than the other ranks' kernels.", _UNKNOWN_REASON
    if abs(more) <= _DIFFERS:
        return _slower(case, late.tasks, of_part, f"{among} {rank} run{s} as many kernels as the others", longer)
    count = f"{100 * abs(more):.0f} % {'more' if more > 0 else 'fewer'} kernels than the others"
    return f"{among} {rank} run{s} {count} and compute{s} {100 * longer:.0f} % longer.", Advice(
        "Divide the work more evenly over the ranks.", "This rank has more to compute than the others."
    )


def _longer(case: Case, late: LateRank, part: str) -> float:
    """Return how much longer a part of the budget takes in an iteration of late ranks than of the others, ns."""
    groups: tuple[list[float], list[float]] = [], []
    for gpu in case.budgets:
        groups[gpu.of.task in late.tasks].append(float(gpu.of.part(part).mean()))
    others, of_late = (float(np.median(times or [0])) for times in groups)
    return of_late - others


def _slower(case: Case, late: Sequence[Task], part: Collection[Task], words: str, longer: float) -> tuple[str, Advice]:
    """Return why equally many kernels take ``longer`` on ``late`` tasks, with advice."""
    s = "s" * (len(late) == 1)
    gpu, nodes, slow = "this GPU", "its node", "the GPU is slow, or its"
    if not s:
        gpu, nodes, slow = "these GPUs", "their nodes", "they are slow, or their"
    clock = _clock_words(case, late, gpu)
    if (name := _slower_kernel(case, late, part)) and not clock:
        only = f" Only {name} takes longer there: the other kernels take as long as on the other ranks."
        return only, Advice(f"Compare the inputs of {name} with other ranks (`nsystui kernels --by rank`).", _SAME_PACE)
    advice = Advice(
        f"Check {gpu}'{s} clocks, power cap and temperature, or exclude {nodes}. Then compare the input shapes.",
        f"The same number of kernels takes longer on {gpu}: {slow} inputs are larger.",
    )
    return f"{words}, but they take {100 * longer:.0f} % longer.{clock}", _LOW_CLOCK if clock else advice


def _slower_kernel(case: Case, late: Sequence[Task], of_part: Collection[Task]) -> str:
    """Return the short name of the only kernel that takes longer on ``late`` tasks of a part, or nothing."""
    from nsystui.base.kernel_names import smart_name

    times: dict[str, Counter[Task]] = {}
    for launches in kernel_launches(case):
        times.setdefault(smart_name(launches.kernel.name), Counter())[launches.task] += launches.total
    usual = {name: float(np.median([of[task] for task in of_part if task not in late])) for name, of in times.items()}
    excess = {name: float(np.median([of[task] for task in late])) - usual[name] for name, of in times.items()}
    slowest = max(excess, key=lambda name: excess[name], default="")
    rest = sum(usual.values()) - usual.get(slowest, 0)
    is_alone = 11 * rest >= sum(usual.values()) > 0 and sum(excess.values()) - excess[slowest] < _DIFFERS * rest
    return slowest if is_alone else ""


def _clock_words(case: Case, late: Sequence[Task], gpu: str) -> str:
    """Return a sentence on the median clocks of the GPUs of ``late`` tasks and of the others, if lower."""
    table, clocks = tables.gpu_metrics.c, dict[tuple[int, int], float]()
    query = sa.select(table.report, table.gpu, sa.func.median(table.value)).group_by(table.report, table.gpu)
    if case.job.session.count(tables.gpu_metrics):
        rows = case.job.session.rows(query.where(table.metric.startswith("GPC Clock Frequency")))
        clocks = {(report, number): value / (1e6 if value > 1e6 else 1) for report, number, value in rows}  # once in Hz
    groups: tuple[list[float], list[float]] = [], []
    for device in (item.device for item in case.devices):
        clock = clocks.get((device.task.task.report, -1 if device.gpu is None else device.gpu), np.nan)
        groups[device.task.task not in late].append(clock)
    slow, usual = (float(np.median(group or [np.nan])) for group in groups)
    words = f" The clock of {gpu} is {slow:,.0f} MHz, of the others {usual:,.0f} MHz."
    return words if slow < (1 - _DIFFERS) * usual else ""


@rule(
    80,
    frozenset({"kernels", "nccl_calls", "nvtx_ranges", "api_calls"}),
    FindingKind("different-collectives", "ranks that run different collectives"),
)
def different_collectives(case: Case) -> Sequence[Finding | NotChecked]:
    """Find ranks that run fewer or more collectives than other ranks of their communicator (docs/ranks.md#matching)."""
    if len(case.job.busy(Selection()).devices) < 2:
        return []
    from nsystui.questions.ranks.partings import differences

    differing = [item for item in differences(case.job, case.step_name) if item[1] in case.rank_of.values()]
    if not differing:
        return []
    starts, ranks, words = zip(*differing, strict=True)
    more = f" {counted(len(differing) - _NAMED, 'other difference')}." if len(differing) > _NAMED else ""
    sentence = f"{'. '.join(words[:_NAMED])}.{more}"
    advice = Advice(
        "Find the branch in which this rank skips or repeats a collective, such as an uneven last batch or an error.",
        "NCCL pairs the collectives of a communicator by their order: different orders mix data, or hang.",
    )
    window, name, door = Window(starts[0], starts[0] + 1), "different-collectives", Door("collectives")
    return [Finding(name, Severity.WARNING, sentence, advice, door, window=window, ranks=tuple(sorted({*ranks})))]


_NAMED = 2
_LITTLE = 5.0
"""Below this cost, in %, exposed time needs no advice if compute hides most communication."""
_FEW, _MANY, _SHORT = 2, 100, 50_000
"""At most `_FEW` calls a step are large; at least `_MANY`, with a median below `_SHORT` ns, are small."""
_HIDDEN = Advice("No action needed.", "Overlapped communication costs little.")
_USUAL = Advice(
    "First fix any straggler. Then overlap communication with compute (gradient buckets during backward, prefetch of "
    "shards, a separate stream).",
    "Communication costs time only while no other kernel runs.",
)
_NOTHING_ELSE = "Only NCCL kernels run here, so there is no compute to hide them."
_SERIAL = 90
"""The minimum exposed share of communication, %, that a stream shared with compute explains."""
_ON_ONE_STREAM = "The operations of one stream run one after the other, so compute of that stream hides none of them."
_LARGE_BUCKETS = "The one or two calls of a step begin when nearly all compute is done, so little is left to hide them."
_SMALL_BUCKETS = "So many short calls in a step pay latency, not bandwidth."


_WAITING = ("straggler", "imbalance")
_EXPOSED = FindingKind("exposed-communication", "exposed communication", BY_COMMUNICATION, symptom_of=_WAITING)


_OF_KERNELS = "kernels", ", including waits for late ranks"
_OF_COPIES = "copies", ", and waits for late ranks before the copies are not recorded"


@rule(90, WORK, _EXPOSED, FindingKind("communication", parts=BY_COMMUNICATION))
def exposed_communication(case: Case) -> Sequence[Finding | NotChecked]:
    r"""Find NCCL time of a GPU that no other kernel hides, |U(C) \ U(K)| (docs/numbers.md#exposed-time)."""
    if not case.spent.nccl:
        return [NotChecked("exposed-communication", f"needs NCCL kernels: {case.absence}")]
    cost, limits, name, job = case.mean([case.spent.exposed_nccl]), case.thresholds, case.communication, case.job
    is_exposed = case.percent(cost) >= limits.exposed_percent and case.blocks(BY_COMMUNICATION, limits.exposed_percent)
    if not is_exposed and case.percent(case.mean([case.spent.nccl])) < limits.communication_percent:
        return []
    from nsystui.questions.nccl.grouping import NcclProperty
    from nsystui.questions.nccl.summary import nccl_summary

    evidence = nccl_summary(job, case.scope, job.pairing(), (NcclProperty.COLLECTIVE,))
    kernels = evidence.frame().loc[lambda frame: frame["what"] == "kernel"]
    top = kernels.sort_values("exposed" if is_exposed else "total", ascending=False, kind="stable")
    calls = ", ".join(_calls(case, row) for row in top.head(_NAMED).to_dict("records"))
    calls += " and others" * (len(top) > _NAMED)
    measured = f"Time of {name} kernels that no other kernel of the GPU overlaps. The mean is over the GPUs."
    share, door = 100 * case.spent.exposed_nccl / case.spent.nccl, Door("nccl", by="collective", sort="exposed_ns")
    if is_exposed:
        work, waits = _OF_COPIES if (top["backend"] == COPIES_BACKEND).all() else _OF_KERNELS
        most, main = "Most" if len(top) > 1 else "All", _collective(top["collective"].iloc[0])
        sentence = (
            f"Exposed {name} {work} cost {time_words(cost)} per GPU ({share:.0f} % of all {name} time){waits}."
            f"{case.blocking_words(BY_COMMUNICATION)} {most} of the exposed time is in {main} ({calls})."
        )
        line, advice = f"exposed {name} {work}, {most.lower()} in {main}", _advice(case, top, share)
        return [case.finding("exposed-communication", sentence, advice, door, cost, measured, evidence, line=line)]
    spent = total(device.breakdown(case.working(device)) for device in case.devices)
    if not spent.nccl:
        return []
    cost, share = case.mean([spent.exposed_nccl]), 100 * spent.exposed_nccl / spent.nccl
    gist = f"Compute hides {100 - share:.0f} % of {name} time."
    sentence = (
        f"{gist} {name[0].upper()}{name[1:]} runs {time_words(case.mean([spent.nccl]))} per GPU: {time_words(cost)} "
        f"exposed, {time_words(case.mean([spent.nccl_only]))} with no other kernel or copy running."
        f"{case.blocking_words(BY_COMMUNICATION)} Calls: {calls}."
    )
    advice = _HIDDEN if share < 50 and case.percent(cost) < _LITTLE else _advice(case, top, share)
    gist, severity = gist if share < 50 else "", Severity.INFO
    return [case.finding("communication", sentence, advice, door, cost, measured, evidence, severity, gist=gist)]


def _advice(case: Case, kernels: pd.DataFrame, share: float) -> Advice:
    if not case.spent.kernels and not case.spent.graph:
        first = "First fix any straggler" if len(case.ranks) > 1 else "Open all ranks to see which rank arrives late"
        return Advice(f"{first}. Then use larger messages or faster links (`nsystui nccl --by size`).", _NOTHING_ELSE)
    from nsystui.questions.timeline.streams import stream_times

    times = stream_times(case.job.session, case.scope)
    shared = {key: nccl for key, (_, compute, nccl, _) in times.items() if 20 * compute > nccl > 0}
    if share >= _SERIAL and 2 * sum(shared.values()) >= sum(nccl for _, _, nccl, _ in times.values()):
        (_, _, stream, _), _ = max(shared.items(), key=lambda item: item[1])
        return Advice(
            f"Run communication on its own stream: most runs on {numbered('stream', stream)}, which also computes.",
            _ON_ONE_STREAM,
        )
    first = kernels.iloc[0]
    per_step = _per_step(case, first["collective"])
    if per_step is not None and per_step <= _FEW and share >= 50 and first["collective"] == "AllReduce":
        buckets = by_framework(case, "", pytorch=" (bucket_cap_mb of DDP)")
        return Advice(
            f"Cut AllReduce into smaller buckets{buckets}, each sent when its gradients are ready.", _LARGE_BUCKETS
        )
    if per_step is not None and per_step >= _MANY and first["median"] < _SHORT:
        buckets = by_framework(case, "", pytorch="a larger bucket_cap_mb, ")
        return Advice(f"Put more data into one call ({buckets}coalesced or flattened tensors).", _SMALL_BUCKETS)
    return _USUAL


def _calls(case: Case, row: dict[str, object]) -> str:
    """Return ``8 AllReduce a step (25 MiB each, skew: rank 3)``; without steps, the number of all calls."""
    from nsystui.questions.nccl.verdict import UNKNOWN

    count = int(str(row["count"]))
    per_step = _per_step(case, row["collective"])
    name = _collective(row["collective"])
    words = f"{count:,} {name}" if per_step is None else f"{format_value(Unit.COUNT, per_step)} {name} a step"
    size = row.get("bytes")
    is_known = isinstance(size, int | float) and size == size and size > 0
    facts = [f"{bytes_words(float(str(size)) / count)} each"] if is_known else []
    facts += [str(row["verdict"])] if row["verdict"] not in (None, UNKNOWN) else []
    return f"{words} ({', '.join(facts)})" if facts else words


def _collective(name: object) -> str:
    return name if isinstance(name, str) else "kernels of unknown collective"


@once
def _calls_in_steps(case: Case) -> Mapping[str | None, int]:
    from nsystui.questions.nccl.bandwidth import launched_in_steps

    return launched_in_steps(case.job.pairing(), case.job.steps(case.step_name), case.scope)


def _per_step(case: Case, collective: object) -> float | None:
    """Return the mean number of a collective's kernels in a rank's step; ``None`` if unknown."""
    steps = sum(map(len, case.steps.values()))
    if not steps:
        return None
    return round(_calls_in_steps(case).get(collective if isinstance(collective, str) else None, 0) / steps, 1) or None


@rule(120, WORK | {"nccl_calls"}, FindingKind("small-messages", "small NCCL messages", BY_COMMUNICATION))
def small_messages(case: Case) -> Sequence[Finding | NotChecked]:
    """Find collectives with small messages, which pay latency, not bandwidth (docs/nccl.md#message-sizes)."""
    if not case.spent.nccl:
        return [NotChecked("small-messages", f"needs NCCL kernels: {case.absence}")]
    has_calls = case.job.session.count(tables.nccl_calls)
    how = sizes_advice(case.reports, case.job.nccl_log is not None) if has_calls else case.record(canonical.NCCL_CALLS)
    has_no_sizes = [NotChecked("small-messages", f"needs NCCL message sizes: {how}")]
    if not case.has_message_sizes:
        return has_no_sizes
    if case.percent(case.mean([case.spent.exposed_nccl])) < case.thresholds.small_message_percent:
        return []  # all exposed messages together cost less
    from nsystui.questions.nccl.grouping import NcclProperty, selected

    kernels = selected(case.job.pairing().kernels, case.scope)
    sizes = kernels["message_size"]
    if not sizes.notna().any():
        return has_no_sizes
    small = kernels[sizes.notna() & (sizes < case.thresholds.small_message_kib * 1024)]
    paid = small[["exposed", "transfer"]].astype("float64").min(axis=1, skipna=False)
    if len(small) and paid.isna().all():
        why = "needs the exports of all ranks of a communicator: otherwise waiting looks like transfer"
        return [NotChecked("small-messages", why)]
    cost = case.mean([int(paid.sum())])
    if case.percent(cost) < case.thresholds.small_message_percent:
        return []
    sentence = (
        f"{len(small):,} of {counted(len(kernels), 'NCCL kernel')} move less than "
        f"{case.thresholds.small_message_kib:g} KiB. The exposed transfers of these cost {time_words(cost)} per GPU."
    )
    advice = Advice(
        "Put small messages into larger buckets (ncclGroupStart/End, flattened tensors), or send them less often.",
        "A small message costs latency whatever its size: ten messages in one call cost as much as one message.",
    )
    job, keys = case.job, (NcclProperty.COLLECTIVE, NcclProperty.SIZE)
    from nsystui.questions.nccl.summary import nccl_summary

    evidence = nccl_summary(job, case.scope, job.pairing(), keys)
    measured = "The shortest duration of each kernel over the ranks (no waiting), as far as no other kernel hides it."
    door = Door("nccl", by="collective,size")
    return [case.finding("small-messages", sentence, advice, door, cost, measured, evidence)]
