r"""Exposed communication: NCCL time of a GPU that no other kernel hides, |U(C) \ U(K)|.

See docs/numbers.md#exposed-time.
"""

from __future__ import annotations

from collections.abc import Sequence

from nsystui.questions.nccl.grouping import By
from nsystui.questions.nccl.summary import nccl_summary
from nsystui.questions.triage.case import Case, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity


def check(case: Case) -> Sequence[Finding | NotChecked]:
    if not case.spent.nccl:
        return [NotChecked("exposed-communication", "needs NCCL kernels: this job has none")]
    cost = case.mean([case.spent.exposed_nccl])
    if case.percent(cost) < case.thresholds.exposed_percent:
        return []
    job = case.job
    evidence = nccl_summary(job.session, case.chosen, job.ranks, job.pairing(), (By.COLLECTIVE,))
    kernels = evidence.frame().loc[lambda frame: frame["what"] == "kernel"]
    most = kernels.sort_values("exposed", ascending=False, kind="stable").iloc[0]
    share = 100 * case.spent.exposed_nccl / case.spent.nccl
    sentence = (
        f"NCCL kernels run {time_words(cost)} on each GPU with no other kernel beside them: {share:.0f} % of all NCCL "
        f"time is exposed, most of it in {most['collective']}; waiting for ranks that come late is part of it"
    )
    advice = Advice(
        "overlap it with compute (gradient buckets during backward, prefetch of shards, a stream of its own); "
        "first mend any straggler",
        "communication costs time only where no kernel runs beside it",
    )
    measured = "NCCL kernels without what other kernels of the GPU overlap; mean over the GPUs"
    door = Door("nccl", by="collective", sort="exposed")
    percent = case.percent(cost)
    name = "exposed-communication"
    return [Finding(name, Severity.WARNING, sentence, advice, door, cost, percent, measured, evidence)]
