"""Waiting for other ranks and for NCCL: stragglers, exposed communication, small messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nsystui.base.answer import HOST, RANK, Column, Row, TableAnswer, Unit
from nsystui.base.selection import Selection, Task
from nsystui.base.text import counted
from nsystui.base.units import format_value
from nsystui.questions.algebra.intervals import Times, union
from nsystui.questions.collectives.matching import Matrix, Member
from nsystui.questions.collectives.waiting import NOBODY, SYNCHRONOUS, Arrivals, Lateness, lateness
from nsystui.questions.gpu.device_time import DeviceIntervals, total
from nsystui.questions.nccl.bandwidth import launched_in_steps
from nsystui.questions.nccl.grouping import NcclProperty, selected
from nsystui.questions.nccl.summary import nccl_summary
from nsystui.questions.nccl.units import whole
from nsystui.questions.queries.tasks import world_size
from nsystui.questions.triage.case import Case, RankCompute, bytes_words, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.questions.triage.kernel_mix import by_framework
from nsystui.questions.triage.rule import BY_COMMUNICATION, WORK, FindingKind, rule

if TYPE_CHECKING:
    import pandas as pd


_COLUMNS = (
    RANK,
    HOST.with_importance(2),
    Column("late", header="Late", label="late", unit=Unit.COUNT),
    Column("collectives", header="Collectives", label="of", unit=Unit.COUNT, importance=1),
    Column("caused", header="Exposed Wait Caused (ns)", label="exposed wait caused", unit=Unit.DURATION),
    Column("suffered", header="Exposed Wait (ns)", label="exposed wait", unit=Unit.DURATION, compared="caused"),
    Column(
        "wait_caused",
        header="Wait Caused (ns)",
        label="wait caused",
        unit=Unit.DURATION,
        compared="caused",
        importance=1,
    ),
    Column("kernels", header="Compute Kernels", label="compute kernels", unit=Unit.COUNT, importance=1),
    Column("compute", header="Compute Time (ns)", label="compute", unit=Unit.DURATION, importance=1),
)
_METHOD = (
    "Exposed NCCL time of the other GPUs in the collectives at which a rank arrives last, minus this rank's own "
    "exposed NCCL time in these collectives. The mean is over all GPUs; the GPUs of this rank count as 0."
)
_NONE = (None, None)
_DIFFERS = 0.03
"""The share from which on the compute time or the kernel count of a rank differs from that of the others."""


@rule(
    30,
    reads=WORK | {"nccl_calls", "nvtx_ranges", "api_calls"},
    finds={
        "straggler": FindingKind("waiting for a late rank", parts=BY_COMMUNICATION),
        "imbalance": FindingKind("ranks waiting for each other", parts=BY_COMMUNICATION),
    },
)
def stragglers(case: Case) -> Sequence[Finding | NotChecked]:
    r"""Ranks for which the others wait at collectives (docs/ranks.md#waiting).

    All kernels of a synchronous collective end together, so the kernel that ran shortest began last, whatever the
    clocks say: its rank is the late rank. Let E(r) be the exposed time, |C \ U(K)|, of the kernels of a GPU r in the
    collectives at which a rank L arrives last. Each other GPU r loses

        E(r) − E(L)

    This is the waiting (duration minus the shortest, docs/ranks.md#waiting) in which r has no other work, and the
    transfers in which r idles while L still computes: r would wait for L anyway. Waiting while a kernel runs costs
    nothing, and E(L) is what the transfer costs even the late rank. The loss is at most r's exposed time in these
    collectives. The cost of a straggler is the sum over the GPUs that wait, divided by the number of all GPUs, as of
    every finding; the sentence says what each GPU that waits loses.

    Compared with how much longer whole jobs of the demo take with a slow GPU (2 to 8 ranks, slower by 15 to 100 %),
    the loss is 1 to 12 % too large: the late rank hides transfers behind the time by which it is late. The waiting
    alone would be 6 to 11 % too small in most of these jobs.
    """
    if len(case.job.ranks) < 2:
        return [NotChecked("straggler", "needs the exports of at least two ranks of one job")]
    # Whom the selected ranks wait for need not be selected itself.
    arrivals = [
        Arrivals.of(group, case.chosen.window)
        for group in case.job.collectives().groups
        if any(member.task in case.tasks for member in group.members)
    ]
    known = lateness(arrivals)
    if not known:
        return [NotChecked("straggler", f"needs NCCL kernels ({', '.join(SYNCHRONOUS)}) that the ranks share")]
    members = sorted({member for one in arrivals for member in one.group.members})
    late, lost = _lost(case, arrivals, members)
    of_task = Counter(task for one in case.devices for task in one.tasks)
    caused, costs, suffered = (dict.fromkeys(known, 0) for _ in range(3))
    for task, time in zip(late, lost.sum(axis=1).tolist(), strict=True):
        caused[task], costs[task] = time // max(len(case.devices) - of_task[task], 1), case.mean([time])
    for member, time in zip(members, lost.sum(axis=0).tolist(), strict=True):
        suffered[member.task] += time
    return _judged(case, known, caused, costs, suffered)


def _lost(case: Case, arrivals: Sequence[Arrivals], members: Sequence[Member]) -> tuple[list[Task], Matrix]:
    """The tasks that were late, and the time that each of them cost each member, ns, shape ``(tasks, members)``."""
    late = sorted({one.group.members[place].task for one in arrivals for place in set(one.last.tolist()) - {NOBODY}})
    number = {task: place for place, task in enumerate(late)}
    spans: dict[Member, list[tuple[Times, Times, Times]]] = {member: [] for member in members}
    for one in arrivals:
        has_last = one.last != NOBODY
        operations, last = one.operations[has_last], one.last[has_last]
        tasks = np.array([number.get(member.task, NOBODY) for member in one.group.members], np.int64)[last]
        for place, member in enumerate(one.group.members):
            spans[member].append((one.group.start[place, operations], one.group.end[place, operations], tasks))
    devices = {Member(one.device.task.task, one.device.device): one for one in case.job.busy(Selection()).devices}
    exposed = np.zeros((len(late), len(members)), np.int64)
    took_part = np.zeros(exposed.shape, np.bool_)
    for place, member in enumerate(members):
        starts, ends, tasks = (np.concatenate(parts) for parts in zip(*spans[member], strict=True))
        took_part[tasks, place] = True
        exposed[:, place] = _exposed(starts, ends, tasks, len(late), devices.get(member))
    is_own = np.array([[member.task == task for member in members] for task in late], bool).reshape(exposed.shape)
    least = np.where(is_own & took_part, exposed, np.iinfo(np.int64).max).min(axis=1, initial=np.iinfo(np.int64).max)
    is_selected = np.array([member.task in case.tasks for member in members], bool)
    lost = np.where(took_part & ~is_own & is_selected, np.maximum(exposed - least[:, None], 0), 0)
    return late, lost


def _exposed(starts: Times, ends: Times, tasks: Times, count: int, device: DeviceIntervals | None) -> Times:
    """The time of a member's kernels that no other kernel hides, by the task that was late, shape ``(count,)``."""
    found = np.zeros(count, np.int64)
    order = np.argsort(starts, kind="stable")
    if (starts[order][1:] < ends[order][:-1]).any():  # kernels side by side on several streams count once
        merged = {task: union(starts[tasks == task], ends[tasks == task]) for task in np.unique(tasks).tolist()}
        starts, ends = (np.concatenate([getattr(one, key) for one in merged.values()]) for key in ("starts", "ends"))
        tasks = np.repeat(list(merged), [len(one) for one in merged.values()])
    np.add.at(found, tasks, ends - starts)
    if device is not None:
        kernels = device.parts.kernels
        np.subtract.at(found, tasks, kernels.before(ends)[0] - kernels.before(starts)[0])
    return found


def _judged(
    case: Case,
    known: Mapping[Task, Lateness],
    caused: Mapping[Task, int],
    costs: Mapping[Task, int],
    suffered: Mapping[Task, int],
) -> list[Finding | NotChecked]:
    """Return the stragglers by the exposed waits (ns) that each task caused and suffered, else the imbalance."""
    computed, parts = case.computed, case.job.model_parts(case.step_name).of_task
    evidence = _table(case, known, caused, suffered)
    door = Door("collectives", sort="late_by_ns")
    whole, limits, size = sum(costs.values()), case.thresholds, world_size(case.job.session)
    among = f" ({len(case.job.ranks)} of {size} ranks are open)" if size and size > len(case.job.ranks) else ""
    found: list[Finding | NotChecked] = []
    for item in case.job.ranks:
        cost, loss = costs.get(item.task, 0), caused.get(item.task, 0)
        if case.percent(loss) < limits.straggler_percent or 100 * cost < limits.straggler_share * whole:
            continue
        late_one, other = known[item.task], "Each other" if len(case.devices) > 2 else "The other"
        why, advice = _reason(item.task, computed, parts)
        wait = time_words(late_one.caused)
        hidden = f" ({wait} including waits that compute hides)" if wait != time_words(loss) else ""
        sentence = (
            f"Rank {item.rank} ({item.host or 'host unknown'}) arrives last at {late_one.late:,} of "
            f"{counted(late_one.operations, 'collective')}{among}. "
            f"{other} GPU loses {time_words(loss)} waiting{hidden}.{why}"
        )
        gist, ranks = f"waiting for rank {item.rank}", (item.rank,)
        found.append(case.finding("straggler", sentence, advice, door, cost, _METHOD, evidence, ranks=ranks, gist=gist))
    cost = case.mean(suffered.values())
    if not found and case.percent(cost) >= limits.imbalance_percent:
        most = max(case.job.ranks, key=lambda item: costs.get(item.task, 0))
        sentence = (
            f"Waiting at collectives for late ranks costs {time_words(cost)} per GPU{among}. The late "
            f"rank varies: rank {most.rank} causes the largest part, {time_words(costs.get(most.task, 0))}."
            f"{_division(computed, parts)}"
        )
        advice = Advice(
            "Look at what the late rank does just before a long wait (Ranks screen, then Timeline; "
            "`nsystui gaps --by rank`).",
            "Waiting that moves from rank to rank comes from work that varies, not from one slow GPU.",
        )
        numbers = tuple(sorted(item.rank for item in case.ranks))
        found.append(case.finding("imbalance", sentence, advice, door, cost, _METHOD, evidence, ranks=numbers))
    return found


def _table(
    case: Case, known: Mapping[Task, Lateness], caused: Mapping[Task, int], suffered: Mapping[Task, int]
) -> TableAnswer:
    rows: list[Row] = []
    taking_part = [item for item in case.job.ranks if item.task in known]
    for item in sorted(taking_part, key=lambda item: (-caused[item.task], item.rank)):
        late, computed = known[item.task], case.computed.get(item.task)
        waits = (late.late, late.operations, caused[item.task], suffered[item.task], late.caused)
        rows.append((item.rank, item.host or None, *waits, *((computed.kernels, computed.time) if computed else _NONE)))
    return TableAnswer("stragglers", _COLUMNS, rows, len(rows))


def _division(computed: Mapping[Task, RankCompute], parts: Mapping[Task, str]) -> str:
    """Whether the ranks of each part compute for equally long in total."""
    times: dict[str | None, list[int]] = {}
    for task, one in computed.items():
        times.setdefault(parts.get(task), []).append(one.time)
    if max(map(len, times.values()), default=0) < 2 or not all(map(min, times.values())):
        return ""
    longer = max(max(own) / min(own) for own in times.values()) - 1
    ranks = "ranks of a model part" if parts else "ranks"
    if longer <= _DIFFERS:
        return f" In total, all {ranks} compute equally long: only the timing of the work varies."
    return f" The {ranks} do not compute equally long: the longest {100 * longer:.0f} % longer than the shortest."


def _reason(task: Task, computed: Mapping[Task, RankCompute], parts: Mapping[Task, str]) -> tuple[str, Advice]:
    """The reason why a rank may be late, as far as its own kernels show it next to those of its model part."""
    own, part = computed.get(task), parts.get(task)
    others = [one for other, one in computed.items() if other != task and parts.get(other) == part]
    among = f" Among the {len(others) + 1} ranks of part {part}, the" if part else " The"
    unknown = Advice(
        "Look at what this rank does before its collectives (Ranks screen, then Timeline).",
        "The last rank to arrive sets the pace of all ranks.",
    )
    if own is None or not others:
        return "", unknown
    kernels, time = (np.median([getattr(one, key) for one in others]) for key in ("kernels", "time"))
    usual = Advice(
        "Look at what this rank does on the CPU before its collectives (Ranks screen, then Timeline).",
        "The GPU of this rank computes no longer than the others, so its work is launched late.",
    )
    if not kernels or not time:
        return "", unknown
    more, longer = own.kernels / kernels - 1, own.time / time - 1
    if longer < _DIFFERS:
        return f"{among} rank's own kernels take no longer than those of the other ranks.", usual
    if abs(more) <= _DIFFERS:
        return f"{among} rank runs as many kernels as the others, but they take {100 * longer:.0f} % longer.", Advice(
            "Check this GPU's clocks, power cap and temperature, or exclude its node. Then compare the input shapes.",
            "The same number of kernels takes longer on this GPU: the GPU is slow, or its inputs are larger.",
        )
    count = f"{100 * abs(more):.0f} % {'more' if more > 0 else 'fewer'} kernels than the others"
    return f"{among} rank runs {count} and computes {100 * longer:.0f} % longer.", Advice(
        "Divide the work more evenly over the ranks.", "This rank has more to compute than the others."
    )


_TOLD = 2
_LITTLE = 5.0
"""Exposed time below this cost, in %, needs no advice where compute hides most of the communication."""
_FEW, _MANY, _SHORT = 2, 100, 50_000
"""So many calls of a step are few, or many if the median call takes less than so many ns."""
_USUAL = Advice(
    "First fix any straggler. Then overlap communication with compute (gradient buckets during backward, prefetch of "
    "shards, a separate stream).",
    "Communication costs time only while no other kernel runs.",
)
_NOTHING_ELSE = Advice(
    "First fix any straggler. Then use larger messages or faster links (`nsystui nccl --by size`).",
    "Only NCCL kernels run here, so there is no compute to hide them.",
)
_LARGE_BUCKETS = "The one or two calls of a step begin when nearly all compute is done, so little is left to hide them."
_SMALL_BUCKETS = "So many short calls in a step pay latency, not bandwidth."


@rule(
    90,
    reads=WORK,
    finds={
        "exposed-communication": FindingKind(
            "exposed communication", symptom_of=("straggler", "imbalance"), parts=BY_COMMUNICATION
        ),
        "communication": FindingKind(parts=BY_COMMUNICATION),
    },
)
def exposed_communication(case: Case) -> Sequence[Finding | NotChecked]:
    r"""Exposed communication: NCCL time of a GPU that no other kernel hides, |U(C) \ U(K)|; a remark if it is little.

    See docs/numbers.md#exposed-time. The remark counts time in the steady state.
    """
    if not case.spent.nccl:
        return [NotChecked("exposed-communication", f"needs NCCL kernels: {case.absence}")]
    cost, limits, what = case.mean([case.spent.exposed_nccl]), case.thresholds, case.communication
    is_exposed = case.percent(cost) >= limits.exposed_percent and case.blocks(BY_COMMUNICATION, limits.exposed_percent)
    if not is_exposed and case.percent(case.mean([case.spent.nccl])) < limits.communication_percent:
        return []
    job = case.job
    evidence = nccl_summary(job.session, case.chosen, job.ranks, job.pairing(), (NcclProperty.COLLECTIVE,))
    kernels = evidence.frame().loc[lambda frame: frame["what"] == "kernel"]
    most = kernels.sort_values("exposed" if is_exposed else "total", ascending=False, kind="stable")
    share = 100 * case.spent.exposed_nccl / case.spent.nccl
    calls = ", ".join(_calls(case, row) for row in most.head(_TOLD).to_dict("records"))
    measured = f"Time of {what} kernels that no other kernel of the GPU overlaps. The mean is over the GPUs."
    door = Door("nccl", by="collective", sort="exposed_ns")
    if is_exposed:
        sentence = (
            f"Exposed {what} kernels cost {time_words(cost)} per GPU ({share:.0f} % of all {what} time), including "
            f"waits for late ranks.{case.blocking_words(BY_COMMUNICATION)} {'Most' if len(most) > 1 else 'All'} of the "
            f"exposed time is in {_collective(most['collective'].iloc[0])} ({calls})."
        )
        advice = _advice(case, most, share)
        return [case.finding("exposed-communication", sentence, advice, door, cost, measured, evidence)]
    spent = total(one.breakdown(case.working(one)) for one in case.devices)
    if not spent.nccl:
        return []
    cost, share = case.mean([spent.exposed_nccl]), 100 * spent.exposed_nccl / spent.nccl
    gist = f"Compute hides {100 - share:.0f} % of {what} time."
    sentence = (
        f"{gist} {what[0].upper()}{what[1:]} runs {time_words(case.mean([spent.nccl]))} per GPU: {time_words(cost)} "
        f"exposed, {time_words(case.mean([spent.nccl_only]))} with no other kernel or copy running."
        f"{case.blocking_words(BY_COMMUNICATION)} Calls: {calls}."
    )
    hidden = Advice("No action needed.", "Overlapped communication costs little.")
    advice = hidden if share < 50 and case.percent(cost) < _LITTLE else _advice(case, most, share)
    gist, severity = gist if share < 50 else "", Severity.INFO
    return [case.finding("communication", sentence, advice, door, cost, measured, evidence, severity, gist=gist)]


def _advice(case: Case, most: pd.DataFrame, share: float) -> Advice:
    if not case.spent.kernels and not case.spent.graph:
        return _NOTHING_ELSE
    first = most.iloc[0]
    each = _per_step(case, first["collective"])
    if each is not None and each <= _FEW and share >= 50 and first["collective"] == "AllReduce":
        buckets = by_framework(case, "", pytorch=" (bucket_cap_mb of DDP)")
        return Advice(
            f"Cut AllReduce into smaller buckets{buckets}, each sent when its gradients are ready.", _LARGE_BUCKETS
        )
    if each is not None and each >= _MANY and first["median"] < _SHORT:
        buckets = by_framework(case, "", pytorch="a larger bucket_cap_mb, ")
        return Advice(f"Put more data into one call ({buckets}coalesced or flattened tensors).", _SMALL_BUCKETS)
    return _USUAL


def _calls(case: Case, row: dict[str, object]) -> str:
    """``8 AllReduce a step (25 MiB each)``; without steps the number of all calls."""
    count = int(str(row["count"]))
    each = _per_step(case, row["collective"])
    name = _collective(row["collective"])
    words = f"{count:,} {name}"
    if each is not None:
        words = f"{format_value(Unit.COUNT, each)} {name} a step"
    size = row.get("bytes")
    known = isinstance(size, int | float) and size == size and size > 0
    return f"{words} ({bytes_words(float(str(size)) / count)} each)" if known else words


def _collective(name: object) -> str:
    """The name of a collective in a sentence; kernels may hide it."""
    return name if isinstance(name, str) else "kernels of unknown collective"


def _per_step(case: Case, collective: object) -> float | None:
    """The mean number of kernels of a collective that a rank launches in a step; ``None`` without any."""
    steps = sum(map(len, case.steps.values()))
    if not steps:
        return None
    steps_of_job = case.job.steps(case.step_name)
    calls = case.once("calls of a step", lambda: launched_in_steps(case.job.pairing(), steps_of_job, case.chosen))
    return round(calls.get(collective if isinstance(collective, str) else None, 0) / steps, 1) or None


@rule(
    120,
    reads=WORK | {"nccl_calls"},
    finds={"small-messages": FindingKind("small NCCL messages", parts=BY_COMMUNICATION)},
)
def small_messages(case: Case) -> Sequence[Finding | NotChecked]:
    """Collectives with small messages, which pay latency and not bandwidth (docs/nccl.md#message-sizes)."""
    if not case.spent.nccl:
        return [NotChecked("small-messages", f"needs NCCL kernels: {case.absence}")]
    how = "export with `nsys export --include-json=true --include-blobs=true`, or add NCCL's log with --nccl-log"
    has_no_sizes = [NotChecked("small-messages", f"needs NCCL message sizes: {how}")]
    if not case.has_message_sizes:
        return has_no_sizes
    if case.percent(case.mean([case.spent.exposed_nccl])) < case.thresholds.small_message_percent:
        return []  # all exposed messages together cost less
    kernels = selected(case.job.pairing().kernels, case.chosen)
    sizes = kernels["message_size"]
    if not sizes.notna().any():
        return has_no_sizes
    is_small = (sizes.notna() & (sizes < case.thresholds.small_message_kib * 1024)).to_numpy(bool)
    transfer, is_matched = _transfer(case, whole(kernels["report"]), whole(kernels["row"]))
    paid = np.minimum(whole(kernels["exposed"]), transfer)
    cost = case.mean([int(paid[is_small & is_matched].sum())])
    if not (is_small & is_matched).any() and is_small.any():
        why = "needs the exports of at least two ranks: with one, waiting looks like transfer"
        return [NotChecked("small-messages", why)]
    if case.percent(cost) < case.thresholds.small_message_percent:
        return []
    count = int(is_small.sum())
    sentence = (
        f"Messages are below {case.thresholds.small_message_kib:g} KiB in {count:,} of "
        f"{counted(len(kernels), 'NCCL kernel')}. The exposed transfers of these cost {time_words(cost)} per GPU."
    )
    advice = Advice(
        "Put small messages into larger buckets (ncclGroupStart/End, flattened tensors), or send them less often.",
        "A small message costs latency whatever its size: ten messages in one call cost as much as one message.",
    )
    job, keys = case.job, (NcclProperty.COLLECTIVE, NcclProperty.SIZE)
    evidence = nccl_summary(job.session, case.chosen, job.ranks, job.pairing(), keys)
    measured = "The shortest duration of each kernel over the ranks (no waiting), as far as no other kernel hides it."
    door = Door("nccl", by="collective,size")
    return [case.finding("small-messages", sentence, advice, door, cost, measured, evidence)]


def _transfer(case: Case, reports: Times, rows: Times) -> tuple[Times, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """The shortest duration of each kernel's collective over its ranks, ns, and whether it is known."""
    shortest: dict[tuple[int, int], int] = {}
    for group in case.job.collectives().groups:
        least = group.duration.min(axis=0).tolist()
        for place, member in enumerate(group.members):
            for row, time in zip(group.row[place].tolist(), least, strict=True):
                shortest[member.task.report, row] = time
    found = [shortest.get(key) for key in zip(reports.tolist(), rows.tolist(), strict=True)]
    is_known = np.array([one is not None for one in found], np.bool_)
    return np.array([one or 0 for one in found], np.int64), is_known
