r"""Exposed communication: NCCL time of a GPU that no other kernel hides, |U(C) \ U(K)|; a remark where that is little.

See docs/numbers.md#exposed-time. The remark is on the time from the first step on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nsystui.base.answer import Unit
from nsystui.base.units import format_value
from nsystui.questions.gpu.device_time import total
from nsystui.questions.nccl.bandwidth import launched_in_steps
from nsystui.questions.nccl.grouping import NcclProperty
from nsystui.questions.nccl.summary import nccl_summary
from nsystui.questions.triage.case import Case, bytes_words, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.questions.triage.kernel_mix import by_framework

if TYPE_CHECKING:
    import pandas as pd

_NAME, _REMARK = "exposed-communication", "communication"
_TOLD = 2
_LITTLE = 5.0
"""Exposed time that costs less, in %, needs no advice where compute hides most of the communication."""
_FEW, _MANY, _SHORT = 2, 100, 50_000
"""So many calls of a step are few, or many if a usual one takes less than so many ns."""
_USUAL = Advice(
    "overlap it with compute (gradient buckets during backward, prefetch of shards, a stream of its own); "
    "first mend any straggler",
    "communication costs time only where no kernel runs beside it",
)
_NOTHING_ELSE = Advice(
    "first mend any straggler; then larger messages, faster links (`nsystui nccl --by size`)",
    "nothing but NCCL ran here, so that there is no compute to hide it behind",
)
_LARGE_BUCKETS = (
    "one or two calls of a step begin when nearly all of it is computed, and then nothing is left to hide them"
)
_SMALL_BUCKETS = "so many short calls of a step pay latency, not bandwidth"


def check(case: Case) -> Sequence[Finding | NotChecked]:
    if not case.spent.nccl:
        return [NotChecked(_NAME, f"needs NCCL kernels: {case.has_none}")]
    cost, limits = case.mean([case.spent.exposed_nccl]), case.thresholds
    is_exposed = case.percent(cost) >= limits.exposed_percent
    if not is_exposed and case.percent(case.mean([case.spent.nccl])) < limits.communication_percent:
        return []
    job = case.job
    evidence = nccl_summary(job.session, case.chosen, job.ranks, job.pairing(), (NcclProperty.COLLECTIVE,))
    kernels = evidence.frame().loc[lambda frame: frame["what"] == "kernel"]
    most = kernels.sort_values("exposed" if is_exposed else "total", ascending=False, kind="stable")
    share = 100 * case.spent.exposed_nccl / case.spent.nccl
    calls = ", ".join(_calls(case, row) for row in most.head(_TOLD).to_dict("records"))
    measured = "NCCL kernels without what other kernels of the GPU overlap; mean over the GPUs"
    door, percent = Door("nccl", by="collective", sort="exposed_ns"), case.percent(cost)
    if is_exposed:
        sentence = (
            f"NCCL kernels run {time_words(cost)} on each GPU with no other kernel beside them: {share:.0f} % of all "
            f"NCCL time is exposed, {'most' if len(most) > 1 else 'all'} of it in {most['collective'].iloc[0]} "
            f"({calls}); waiting for ranks that come "
            "late is part of it"
        )
        advice = _advice(case, most, share)
        return [Finding(_NAME, Severity.WARNING, sentence, advice, door, cost, percent, measured, evidence)]
    spent = total(one.breakdown(case.working(one)) for one in case.devices)
    if not spent.nccl:
        return []
    cost, share = case.mean([spent.exposed_nccl]), 100 * spent.exposed_nccl / spent.nccl
    percent = case.percent(cost)
    gist = f"compute hides {100 - share:.0f} % of NCCL's time"
    sentence = (
        f"{gist} ({time_words(case.mean([spent.nccl]))} on each GPU, "
        f"{time_words(cost)} exposed, {time_words(case.mean([spent.nccl_only]))} with no copy beside it either): "
        f"{calls}"
    )
    hidden = Advice("nothing: it is overlapped", "what compute hides costs no time, but for what it takes from kernels")
    advice = hidden if share < 50 and percent < _LITTLE else _advice(case, most, share)
    told = gist if share < 50 else ""
    return [Finding(_REMARK, Severity.INFO, sentence, advice, door, cost, percent, measured, evidence, gist=told)]


def _advice(case: Case, most: pd.DataFrame, share: float) -> Advice:
    if not case.spent.kernels and not case.spent.graph:
        return _NOTHING_ELSE
    first = most.iloc[0]
    each = _per_step(case, first["collective"])
    if each is not None and each <= _FEW and share >= 50 and first["collective"] == "AllReduce":
        buckets = by_framework(case, "", pytorch=" (bucket_cap_mb of DDP)")
        return Advice(f"cut it into smaller buckets{buckets}, each sent when its gradients are ready", _LARGE_BUCKETS)
    if each is not None and each >= _MANY and first["median"] < _SHORT:
        buckets = by_framework(case, "", pytorch="a larger bucket_cap_mb, ")
        return Advice(f"put more into one call ({buckets}coalesced or flattened tensors)", _SMALL_BUCKETS)
    return _USUAL


def _calls(case: Case, row: dict[str, object]) -> str:
    """``8 AllReduce a step of 25 MiB``; without steps their number."""
    count = int(str(row["count"]))
    each = _per_step(case, row["collective"])
    words = (
        f"{count:,} {row['collective']}"
        if each is None
        else f"{format_value(Unit.COUNT, each)} {row['collective']} a step"
    )
    size = row.get("bytes")
    known = isinstance(size, int | float) and size == size and size > 0
    return f"{words}, {bytes_words(float(str(size)) / count)} each" if known else words


def _per_step(case: Case, collective: object) -> float | None:
    """The mean number of kernels of a collective that a rank launches in a step; ``None`` without any."""
    steps = sum(map(len, case.steps.values()))
    if not steps:
        return None
    calls = case.once(
        f"{_NAME} calls",
        lambda: launched_in_steps(case.job.pairing(), case.job.steps(case.step_name), case.chosen),
    )
    return round(calls.get(str(collective), 0) / steps, 1) or None
