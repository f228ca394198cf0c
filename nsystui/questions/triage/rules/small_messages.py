"""Collectives with small messages, which pay latency and not bandwidth (docs/nccl.md#message-sizes)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nsystui.questions.algebra.intervals import Times
from nsystui.questions.nccl.grouping import NcclProperty, selected
from nsystui.questions.nccl.summary import nccl_summary
from nsystui.questions.nccl.units import whole
from nsystui.questions.triage.case import Case, number_of, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity

_NAME = "small-messages"


def check(case: Case) -> Sequence[Finding | NotChecked]:
    if not case.spent.nccl:
        return [NotChecked(_NAME, f"needs NCCL kernels: {case.has_none}")]
    if not case.has_message_sizes:
        return [_without_sizes()]
    if case.percent(case.mean([case.spent.exposed_nccl])) < case.thresholds.small_message_percent:
        return []  # what nothing hides of all messages together costs less
    kernels = selected(case.job.pairing().kernels, case.chosen)
    sizes = kernels["message_size"]
    if not sizes.notna().any():
        return [_without_sizes()]
    is_small = (sizes.notna() & (sizes < case.thresholds.small_message_kib * 1024)).to_numpy(bool)
    transfer, is_matched = _transfer(case, whole(kernels["report"]), whole(kernels["row"]))
    paid = np.minimum(whole(kernels["exposed"]), transfer)
    cost = case.mean([int(paid[is_small & is_matched].sum())])
    if not (is_small & is_matched).any() and is_small.any():
        return [NotChecked(_NAME, "needs the exports of two ranks or more: of one, waiting looks like a slow transfer")]
    if case.percent(cost) < case.thresholds.small_message_percent:
        return []
    count = int(is_small.sum())
    sentence = (
        f"{number_of(count, 'NCCL kernel')} of {len(kernels):,} move less than {case.thresholds.small_message_kib:g} "
        f"KiB each; their transfers that nothing hides take {time_words(cost)} on each GPU"
    )
    advice = Advice(
        "put small messages together (larger buckets, ncclGroupStart/End, flattened tensors), or send them less often",
        "a small message costs latency whatever its size: ten in one cost as much as one",
    )
    job = case.job
    evidence = nccl_summary(
        job.session, case.chosen, job.ranks, job.pairing(), (NcclProperty.COLLECTIVE, NcclProperty.SIZE)
    )
    measured = "of each kernel the shortest duration over the ranks (no waiting), as far as no other kernel hides it"
    door, share = Door("nccl", by="collective,size"), case.percent(cost)
    return [Finding(_NAME, Severity.WARNING, sentence, advice, door, cost, share, measured, evidence)]


def _without_sizes() -> NotChecked:
    how = "`nsys export --include-json=true --include-blobs=true`, or NCCL's log with --nccl-log"
    return NotChecked(_NAME, f"needs the message sizes of NCCL: {how}")


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
