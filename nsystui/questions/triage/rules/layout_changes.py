"""Kernels that only change the layout of tensors: between NCHW and NHWC around convolutions, and transposes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from nsystui.base.kernel_families import COPY
from nsystui.questions.triage.case import Case, number_of, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, Severity
from nsystui.questions.triage.kernel_mix import by_framework, kernel_mix, mix_table

_NAME = "layout-changes"
_CHANNELS = re.compile("nchw_?to_?nhwc|nhwc_?to_?nchw", re.IGNORECASE)
_LAYOUT = re.compile(f"{_CHANNELS.pattern}|transpose|permute", re.IGNORECASE)
_FILTER = f"/{_LAYOUT.pattern}/"


def check(case: Case) -> Sequence[Finding]:
    mix = kernel_mix(case)
    found = [one for one in mix if one.family == COPY and _LAYOUT.search(one.name)]
    cost = case.mean(one.time for one in found)
    share = case.percent(cost)
    if not found or share < case.thresholds.layout_percent:
        return []
    channels = sum(one.time for one in found if _CHANNELS.search(one.name))
    is_of_channels = 2 * channels >= sum(one.time for one in found)
    words = "between NCHW and NHWC" if is_of_channels else "(transposes)"
    of_kernels = 100 * sum(one.time for one in found) / sum(one.time for one in mix)
    launches = number_of(sum(one.launches for one in found), "launch")
    sentence = (
        f"changes of layout {words} take {time_words(cost)} on each GPU, {of_kernels:.0f} % of kernel time ({launches})"
    )
    if is_of_channels:
        layout = by_framework(case, "NHWC", pytorch="channels_last (channels_last_3d)")
        advice = Advice(
            f"keep model and inputs in one layout: {layout}",
            "tensor cores convolve NHWC, so cuDNN converts every tensor that comes in NCHW, and converts it back; "
            "all of this time at most can go",
        )
    else:
        advice = Advice(
            "let the next kernel read the transposed tensor (a GEMM takes either order), or store it in its order once",
            "a transpose only moves data; all of this time at most can go",
        )
    measured = "sum of the durations of these kernels, by their names: what could be gained at most; mean over the GPUs"
    door, evidence = Door("kernels", filter=_FILTER), mix_table(_NAME, found)
    return [Finding(_NAME, Severity.WARNING, sentence, advice, door, cost, share, measured, evidence)]
