"""Matrix products, convolutions and attention in FP32 or TF32 on GPUs whose tensor cores are faster at half precision.

The cost is a limit: the time that would go if each such kernel ran at the peak of the faster precision relative to its
own. The factors are those of dense peaks in NVIDIA's data sheets (see docs/numbers.md#kernel-families).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import sqlalchemy as sa

from nsystui.base.kernel_families import ATTENTION, CONVOLUTION, GEMM
from nsystui.questions.triage.case import Case, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.questions.triage.kernel_mix import NameWork, by_framework, kernel_mix, mix_table, shares
from nsystui.store import tables

_NAME = "precision"
_ARITHMETIC = (GEMM, CONVOLUTION, ATTENTION)
_FASTER = (
    (r"GB[12]00|GB10[02]|\bB[123]00", "BF16", {"TF32": 2.0, "FP32": 28.0}),
    (r"\bH20\b", "BF16", {"TF32": 2.0, "FP32": 3.4}),
    (r"GeForce RTX [345]0|A10G\b|\bL(?:20|40)\b", "BF16", {"TF32": 2.0, "FP32": 2.0}),
    (r"GeForce RTX 20", "FP16", {"FP32": 4.0}),
    (r"GH100|GH200|\bH[128]00", "BF16", {"TF32": 2.0, "FP32": 14.8}),
    (r"GA100|A100|\bA30\b|A800", "BF16", {"TF32": 2.0, "FP32": 16.0}),
    (r"GA10\d|AD10\d|GB20\d|\bA(?:2|10|16|40)\b|\bL(?:4|40S)\b|RTX A\d", "BF16", {"TF32": 2.0, "FP32": 4.0}),
    (r"GV100|V100|TU10\d|\bT4\b", "FP16", {"FP32": 8.0}),
    (r"^(?=.*(?:sm(?:8\d|9\d|1\d\d)_|ampere|hopper|tf32))", "BF16", {"TF32": 2.0, "FP32": 16.0}),
)
"""Pattern of a GPU (its name or its chip, else of a kernel built for it), the faster precision, its peak by theirs."""


def check(case: Case) -> Sequence[Finding | NotChecked]:
    mix = kernel_mix(case)
    works = [one for one in mix if one.family in _ARITHMETIC]
    slow = [one for one in works if one.precision in ("TF32", "FP32")]
    if not slow or case.percent(case.mean(one.time for one in slow)) < case.thresholds.precision_percent:
        return []
    gpu, faster, factors = _faster(case, slow)
    if not faster:
        return [NotChecked(_NAME, "needs the names of the GPUs: this export does not tell whether they are faster")]
    slow = [one for one in slow if one.precision in factors]
    cost = case.mean(one.time * (1.0 - 1.0 / factors[str(one.precision)]) for one in slow)
    share = case.percent(cost)
    if not slow or share < case.thresholds.precision_percent:
        return []
    how = by_framework(case, f"do this work in {faster}", pytorch=f"let torch.autocast do this work in {faster}")
    advice = Advice(
        f"{how}, or keep its data in {faster}, where its accuracy allows that",
        f"the peak of {faster} on {gpu} is {_times(factors, slow)}; a limit, as memory and other work stay",
    )
    measured = (
        "time of these kernels, by their names, less the part that is left at the peak of the faster precision: what "
        "could be gained at most; mean over the GPUs"
    )
    severity, evidence = Severity.WARNING, mix_table(_NAME, slow)
    sentence = _sentence(case, mix, works, slow, cost)
    return [
        Finding(_NAME, severity, sentence, advice, Door("kernels", by="precision"), cost, share, measured, evidence)
    ]


def _faster(case: Case, works: Sequence[NameWork]) -> tuple[str, str, dict[str, float]]:
    """The GPU, the precision in which it is faster, and by which factors; empty where that is not known."""
    table = tables.devices
    named = [(str(name or chip), f"{chip} {name}") for name, chip in case.job.session.rows(
        sa.select(table.c.name, table.c.chip).distinct().order_by(table.c.name, table.c.chip)
    )]  # fmt: skip
    for gpu, text in named or [("this GPU", one.name) for one in works]:
        for pattern, faster, factors in _FASTER:
            if re.search(pattern, text):
                return gpu, faster, factors
    return "", "", {}


def _times(factors: dict[str, float], works: Sequence[NameWork]) -> str:
    known = [one for one in factors if any(work.precision == one for work in works)]
    return " and ".join(f"{factors[one]:g} times that of {one}" for one in known)


def _sentence(
    case: Case, mix: Sequence[NameWork], works: Sequence[NameWork], slow: Sequence[NameWork], cost: int
) -> str:
    whole = sum(one.time for one in mix)

    def percent(own: Sequence[NameWork]) -> str:
        return f"{100 * sum(one.time for one in own) / whole:.0f} %"

    def told(precision: str) -> str:
        own = [one for one in slow if one.precision == precision]
        kinds = [word for word, share in shares(own, lambda one: one.family) if share >= 1.0]
        return f"{percent(own)} is {precision} {' and '.join(kinds)}"

    parts = [told(word) for word, share in shares(slow, lambda one: str(one.precision)) if share >= 1.0]
    half = [one for one in works if one.precision not in ("TF32", "FP32", "FP64", None)]
    other = f"{percent(half)} does such work in fewer bits" if half else "no FP16 or BF16 kernel does such work"
    untold = [one for one in works if one.precision is None]
    hidden = f" (the names of {percent(untold)} do not tell)" if percent(untold) != percent([]) else ""
    limit = f"a faster precision could save {time_words(cost)} on each GPU at most"
    return f"of the kernel time {', '.join(parts)}; {other}{hidden}; {limit}"
