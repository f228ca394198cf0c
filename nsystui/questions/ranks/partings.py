"""Ranks that differ in collectives from their communicator's ranks (docs/ranks.md#matching)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nsystui.base.answer import TableAnswer, Unit
from nsystui.base.selection import Selection
from nsystui.base.text import few_numbers, ranks_named
from nsystui.base.units import format_value
from nsystui.questions.capture.launch_account import launch_accounts
from nsystui.questions.collectives.matching import Matching, Member
from nsystui.questions.nccl.bandwidth import in_steps

if TYPE_CHECKING:
    from nsystui.questions.job.job import OpenJob


def noted(job: OpenJob, answer: TableAnswer, step_name: str | None) -> TableAnswer:
    """Return the answer with a note for each of the `differences`."""
    return replace(answer, notes=(*(words for _, _, words in differences(job, step_name)), *answer.notes))


def differences(job: OpenJob, step_name: str | None = None) -> list[tuple[int, int, str]]:
    """Return start (job time, ns), rank and words for each rank that lacks collectives or has more.

    A rank that lacks a collective ran earlier collectives and later kernels, which were all recorded.
    """
    devices = {Member(*gpu.device.key): gpu for gpu in job.busy(Selection()).devices}
    matching = job.collectives() if len(devices) > 1 else Matching(())
    parted = [group for group in (*matching.groups, *matching.alone) if group.members != group.open]
    if not parted:
        return []
    accounts, kernels = launch_accounts(job.session, job.session.reports), in_steps(job.pairing(), job.steps(step_name))
    columns = (kernels.kernels[key].astype(float).tolist() for key in ("report", "row", "step"))
    step_of = {(report, row): int(step) for report, row, step in zip(*columns, strict=True) if step == step}
    partings: dict[tuple[Member, bool, str, tuple[Member, ...]], list[tuple[int, int | None]]] = {}
    for group in parted:
        lacking = [member for member in group.open if member not in group.members]
        is_less = len(lacking) <= len(group.members)
        subjects, others = (lacking, group.members) if is_less else (group.members, lacking)
        alike = [item for item in matching.groups if item.open == group.open]
        first = max(min(int(item.start[:, 0].min()) for item in alike if who in item.members) for who in lacking)
        last = min(int(devices[who].parts.kernels.starts.max(initial=0)) for who in lacking)
        is_lost = any(who.task in accounts and accounts[who.task].lost_kernels for who in lacking)
        cells = (group.collective.tolist(), group.start[0].tolist(), group.row[0].tolist())
        for name, start, row in () if is_lost else zip(*cells, strict=True):
            for member in subjects if first < start < last else ():
                step = step_of.get((group.members[0].task.report, row))
                partings.setdefault((member, is_less, name, tuple(others)), []).append((start, step))
    ranks = {item.task: item.rank for item in job.ranks}
    rows = []
    for (member, is_less, name, others), places in partings.items():
        steps = sorted({step for _, step in places if step is not None})
        where = f"from {format_value(Unit.DURATION, places[0][0])} on"
        if steps:
            where = f"in step {steps[0]}" if len(steps) == 1 else f"in {len(steps)} steps ({few_numbers(steps)})"
        whom = ranks_named(ranks[who.task] for who in others)
        words = f"{len(places)} {name} {'less' if is_less else 'more'} {where} (compared with {whom})"
        rows.append((places[0][0], ranks[member.task], f"Rank {ranks[member.task]} runs {words}"))
    return sorted(rows)
