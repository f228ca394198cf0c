r"""Ranks for which the others wait at collectives (docs/ranks.md#waiting).

All kernels of a synchronous collective end together, so the one that ran shortest began last, whatever the clocks say:
its rank is the late one. With E(r) the time of r's kernels in the collectives to which a rank L came last that no other
kernel of r hides, |C \ U(K)|, each other GPU r loses

    E(r) − E(L)

That is the waiting (duration less the shortest, docs/ranks.md#waiting) that r has nothing to do in, and the transfers
that r sits through idle while L still computes beside them: r would wait for L anyway. Waiting beside a kernel costs
nothing, and E(L) is what the transfer costs even a late rank. It is never more than r's exposed time in these
collectives.

Held against how much longer whole jobs of the demo take for a slow GPU (2 to 8 ranks, slower by 15 to 100 %) it is by 1
to 12 % too large, for the late rank hides transfers behind the very time by which it is late. The waiting alone would
be by 6 to 11 % too small in most of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from nsystui.base.answer import Row, TableAnswer
from nsystui.base.columns import HOST, RANK, Column, Unit
from nsystui.base.selection import Selection, Task
from nsystui.questions.algebra.intervals import Intervals, Times, union
from nsystui.questions.collectives.matching import Member
from nsystui.questions.collectives.waiting import SYNCHRONOUS, Arrivals, Lateness, lateness
from nsystui.questions.gpu.device_time import DeviceIntervals
from nsystui.questions.tasks import world_size
from nsystui.questions.triage.case import Case, Computed, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity

_COLUMNS = (
    RANK,
    HOST.with_importance(2),
    Column("late", header="Late", label="late", unit=Unit.COUNT),
    Column("collectives", header="Collectives", label="of", unit=Unit.COUNT, importance=1),
    Column("caused", header="Exposed Wait Caused (ns)", label="exposed wait caused", unit=Unit.DURATION),
    Column("suffered", header="Exposed Wait (ns)", label="exposed wait", unit=Unit.DURATION),
    Column("wait_caused", header="Wait Caused (ns)", label="wait caused", unit=Unit.DURATION, importance=1),
    Column("kernels", header="Compute Kernels", label="compute kernels", unit=Unit.COUNT, importance=1),
    Column("compute", header="Compute Time (ns)", label="compute", unit=Unit.DURATION, importance=1),
)
_METHOD = (
    "NCCL time of the other GPUs that no kernel hides, in the collectives to which it came last, "
    "less its own such time; "
    "mean over the GPUs that wait"
)
_DIFFERS = 0.03
"""A rank's compute time, or number of kernels, is another one if it differs by this share."""


@dataclass
class _Waiting:
    """By who was late: when each member was in those collectives. And what the table of ranks says of each."""

    spans: dict[tuple[Task, Member], list[tuple[Times, Times]]] = field(default_factory=dict)
    arrivals: list[Arrivals] = field(default_factory=list)

    @cached_property
    def lateness(self) -> Mapping[Task, Lateness]:
        return lateness(self.arrivals)

    def add(self, arrivals: Arrivals) -> None:
        self.arrivals.append(arrivals)
        group = arrivals.group
        starts, ends = group.start[:, arrivals.operations], group.end[:, arrivals.operations]
        for place, member in enumerate(group.members):
            task = member.task
            is_last = arrivals.last == place
            for other, anyone in enumerate(group.members if is_last.any() else ()):
                self.spans.setdefault((task, anyone), []).append((starts[other, is_last], ends[other, is_last]))


def check(case: Case) -> Sequence[Finding | NotChecked]:
    if len(case.job.ranks) < 2:
        return [NotChecked("stragglers", "needs the exports of two ranks or more of one job")]
    waiting = _Waiting()
    for group in case.job.collectives().groups:
        # Whom the selected ranks wait for need not be selected itself.
        if any(member.task in case.tasks for member in group.members):
            waiting.add(Arrivals.of(group, case.chosen.window))
    if not waiting.lateness:
        return [
            NotChecked("stragglers", f"needs NCCL kernels ({', '.join(SYNCHRONOUS)}) that the ranks have in common")
        ]
    everyone = case.job.busy(Selection()).devices
    devices = {Member(one.device.task.task, one.device.device): one for one in everyone}
    own = [Member(one.device.task.task, one.device.device) for one in case.devices]
    exposed = {pair: _exposed(spans, devices.get(pair[1])) for pair, spans in waiting.spans.items()}
    lost = {
        (late, member): max(
            time - min(its for (who, one), its in exposed.items() if who == late and one.task == late), 0
        )
        for (late, member), time in exposed.items()
        if member.task != late and member.task in case.tasks
    }
    caused = {task: _caused(task, lost, own) for task in waiting.lateness}
    suffered = {task: _suffered(task, lost) for task in waiting.lateness}
    return _findings(case, waiting, caused, suffered)


def _exposed(spans: Sequence[tuple[Times, Times]], device: DeviceIntervals | None) -> int:
    whole: Intervals = union(np.concatenate([one for one, _ in spans]), np.concatenate([one for _, one in spans]))
    if device is None:
        return whole.length
    return whole.length - device.parts.kernels.shared_with(whole)


def _caused(task: Task, lost: Mapping[tuple[Task, Member], int], devices: Sequence[Member]) -> int:
    others = max(sum(member.task != task for member in devices), 1)
    return sum(time for (late, _), time in lost.items() if late == task) // others


def _suffered(task: Task, lost: Mapping[tuple[Task, Member], int]) -> int:
    return sum(time for (_, member), time in lost.items() if member.task == task)


def _findings(
    case: Case, waiting: _Waiting, caused: Mapping[Task, int], suffered: Mapping[Task, int]
) -> list[Finding | NotChecked]:
    whole = sum(caused.values())
    computed = case.computed
    evidence = _table(case, waiting, caused, suffered, computed)
    limits = case.thresholds
    found: list[Finding | NotChecked] = []
    for item in case.job.ranks:
        cost = caused.get(item.task, 0)
        if case.percent(cost) < limits.straggler_percent or 100 * cost < limits.straggler_share * whole:
            continue
        own = waiting.lateness[item.task]
        why, advice = _reason(item.task, computed)
        sentence = (
            f"rank {item.rank} ({item.host or 'host unknown'}) is the last at {own.late:,} of "
            f"{own.operations:,} collectives{_among(case)}; "
            f"each other GPU loses {time_words(cost)} waiting for it (exposed wait; {time_words(own.caused)} with what "
            f"compute hides){why}"
        )
        found.append(_finding(case, "straggler", sentence, advice, cost, evidence, (item.rank,)))
    cost = case.mean(suffered.values())
    if not found and case.percent(cost) >= limits.imbalance_percent:
        most = max(case.job.ranks, key=lambda item: caused.get(item.task, 0))
        sentence = (
            f"each GPU waits {time_words(cost)} at collectives for ranks that come "
            f"later{_among(case)}, with nothing else "
            f"to run; it is not always the same one (rank {most.rank} causes most: "
            f"{time_words(caused.get(most.task, 0))}){_division(computed)}"
        )
        advice = Advice(
            "look at what the late rank of a long wait does just before it (Ranks screen, then Timeline; "
            "`nsystui gaps --by rank`)",
            "waiting that changes from rank to rank comes from work that varies, not from one slow GPU",
        )
        ranks = tuple(sorted(item.rank for item in case.ranks))
        found.append(_finding(case, "imbalance", sentence, advice, cost, evidence, ranks))
    return found


def _finding(
    case: Case, name: str, sentence: str, advice: Advice, cost: int, evidence: TableAnswer, ranks: tuple[int, ...]
) -> Finding:
    door = Door("collectives", sort="late_by")
    share = case.percent(cost)
    return Finding(name, Severity.WARNING, sentence, advice, door, cost, share, _METHOD, evidence, ranks=ranks)


def _among(case: Case) -> str:
    size = world_size(case.job.session)
    there = len(case.job.ranks)
    return f" (of the {there} open ranks of {size})" if size and size > there else ""


def _division(computed: Mapping[Task, Computed]) -> str:
    """Whether the ranks compute for as long as each other, in sum."""
    times = [one.time for one in computed.values()]
    if len(times) < 2 or not min(times):
        return ""
    longer = max(times) / min(times) - 1
    if longer <= _DIFFERS:
        return "; in sum all ranks compute for as long: what they do varies in time alone"
    return f"; the ranks do not compute for as long: the longest {100 * longer:.0f} % more than the shortest"


def _reason(task: Task, computed: Mapping[Task, Computed]) -> tuple[str, Advice]:
    """The reason why a rank may be late, as far as its own kernels show it."""
    others = [one for other, one in computed.items() if other != task]
    own = computed.get(task)
    unknown = Advice(
        "look at what this rank does before its collectives (Ranks screen, then Timeline)",
        "the last one to come sets the pace of all",
    )
    if own is None or not others:
        return "", unknown
    kernels, time = (np.median([getattr(one, key) for one in others]) for key in ("kernels", "time"))
    usual = Advice(
        "look at what this rank does on the CPU before its collectives (Ranks screen, then Timeline)",
        "its GPU computes no longer than the others, so it is the work reaching the GPU that is late",
    )
    if not kernels or not time:
        return "", unknown
    more, longer = own.kernels / kernels - 1, own.time / time - 1
    if longer < _DIFFERS:
        return "; its own kernels take no longer than those of the others", usual
    if abs(more) <= _DIFFERS:
        return f"; its kernels, as many as elsewhere, take {100 * longer:.0f} % longer", Advice(
            "check this GPU's clocks, power cap and temperature, or exclude its node; then its input shapes",
            "the same number of kernels takes longer there: a slow GPU, or larger inputs",
        )
    return f"; it runs {100 * more:+.0f} % kernels, for {100 * longer:.0f} % longer", Advice(
        "divide the work more evenly over the ranks", "this rank has more to compute than the others"
    )


def _table(
    case: Case,
    waiting: _Waiting,
    caused: Mapping[Task, int],
    suffered: Mapping[Task, int],
    computed: Mapping[Task, Computed],
) -> TableAnswer:
    rows: list[Row] = []
    taking_part = [item for item in case.job.ranks if item.task in waiting.lateness]
    for item in sorted(taking_part, key=lambda item: (-caused.get(item.task, 0), item.rank)):
        task, own = item.task, computed.get(item.task)
        late = waiting.lateness[task]
        waits = (late.late, late.operations, caused.get(task), suffered.get(task), late.caused)
        rows.append((item.rank, item.host or None, *waits, own.kernels if own else None, own.time if own else None))
    return TableAnswer("stragglers", _COLUMNS, rows, len(rows))
