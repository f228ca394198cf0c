"""Sentences on ranks that run other collectives than the other ranks of a communicator (docs/ranks.md#matching)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from nsystui.base.answer import Unit
from nsystui.base.selection import Selection
from nsystui.base.text import few_numbers
from nsystui.base.units import format_value
from nsystui.questions.capture.launch_account import launch_accounts
from nsystui.questions.collectives.matching import Member, Parting
from nsystui.questions.job.job import OpenJob
from nsystui.questions.nccl.bandwidth import in_steps


@dataclass(frozen=True)
class Difference:
    """A rank whose collectives differ, from job time ``start``, ns; ``words`` name the collectives and steps."""

    rank: int
    start: int
    words: str


def differences(job: OpenJob, step_name: str | None = None) -> list[Difference]:
    """Return the ranks that lack collectives, or have more, while the ranks without them ran later kernels.

    Leaves out ranks of which kernels were not recorded.
    """
    partings: dict[tuple[Member, tuple[Member, ...]], list[Parting]] = {}
    for parting in job.collectives().partings:
        partings.setdefault((parting.member, parting.others), []).append(parting)
    if not partings:
        return []
    devices = {(gpu.device.task.task, gpu.device.device): gpu.parts.kernels for gpu in job.busy(Selection()).devices}
    last = {Member(*key): int(kernels.starts.max(initial=0)) for key, kernels in devices.items()}
    reports = [item for item in job.session.reports if item.index in {member.task.report for member, _ in partings}]
    lost = {task for task, account in launch_accounts(job.session, reports).items() if account.lost_kernels}
    found = []
    for (member, others), group in partings.items():
        proven = [
            item
            for item in group
            if all(last.get(who, 0) > item.start for who in (others if item.is_extra else [member]))
        ]
        if member.task not in lost and proven and (words := ", ".join(_words(job, proven, step_name))):
            ranks = {item.task: item.rank for item in job.ranks}
            numbers = [ranks[other.task] for other in others]
            whom = f"rank{'s' * (len(numbers) > 1)} {few_numbers(numbers)}"
            text = f"Rank {ranks[member.task]} runs {words}, compared with {whom}"
            found.append(Difference(ranks[member.task], min(item.start for item in proven), text))
    return sorted(found, key=lambda item: (item.start, item.rank))


def _words(job: OpenJob, partings: list[Parting], step_name: str | None) -> Iterator[str]:
    """Yield ``1 AllReduce less in step 10``, by collective; the time of the first if no step contains it."""
    kernels = in_steps(job.pairing(), job.steps(step_name)).kernels
    rows = zip(*(kernels[key].astype(float).tolist() for key in ("report", "row", "step")), strict=True)
    step_of = {(report, row): int(step) for report, row, step in rows if step == step}
    counts: Counter[tuple[str, int | None]] = Counter()
    for item in partings:
        ran = item.member if item.is_extra else item.others[0]
        counts[item.collective, step_of.get((ran.task.report, item.row))] += 1 if item.is_extra else -1
    for collective in dict.fromkeys(name for name, _ in counts):
        for sign, word in ((-1, "less"), (1, "more")):
            steps = [step for (name, step), count in counts.items() if name == collective and sign * count > 0]
            number = sum(abs(counts[collective, step]) for step in steps)
            known = [step for step in steps if step is not None]
            start = min(item.start for item in partings if item.collective == collective)
            where = f"step {known[0]}" if len(known) == 1 else f"{len(known)} steps ({few_numbers(known)})"
            where = f"in {where}" if known else f"from {format_value(Unit.DURATION, start)} on"
            if number:
                yield f"{number} {collective} {word} {where}"
