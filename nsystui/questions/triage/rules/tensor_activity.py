"""Tensor cores that hardly work although the GPU is busy, where GPU metrics were sampled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nsystui.base.answer import Column, Row, TableAnswer, Unit
from nsystui.base.selection import Window
from nsystui.exports import canonical
from nsystui.questions.gpu.metrics import MetricSource, metric_lanes, metric_sources
from nsystui.questions.triage.case import Case
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity

_NAME = "tensor-activity"
_BUSY = 50.0
_COLUMNS = (
    Column("report", header="Report", label="report"),
    Column("gpu", header="GPU", label="gpu", unit=Unit.NUMBER),
    Column("sm", header="SMs Active (%)", label="SM active", unit=Unit.PERCENT, decimals=1),
    Column("tensor", header="Tensor Active (%)", label="tensor active", unit=Unit.PERCENT, decimals=1),
)


def check(case: Case) -> Sequence[Finding | NotChecked]:
    session = case.job.session
    sources = metric_sources(session, case.chosen)
    by_gpu: dict[tuple[int, int], dict[str, float]] = {}
    by_window: dict[Window, list[MetricSource]] = {}
    for one in sources:
        if one.family in ("SM active", "tensor active"):
            by_window.setdefault(case.windows[one.report], []).append(one)
    for window, own in by_window.items():
        for lane in metric_lanes(session, case.chosen, window, 1, own):
            if lane.mean is not None:
                by_gpu.setdefault((lane.source.report, lane.source.gpu), {})[lane.source.family] = lane.mean
    known = {gpu: one for gpu, one in by_gpu.items() if len(one) == 2}
    if not known:
        return [NotChecked(_NAME, f"needs GPU metrics with tensor activity: {canonical.GPU_METRICS.record}")]
    busy = [one for one in known.values() if one["SM active"] >= _BUSY]
    if not busy or np.mean([one["tensor active"] for one in busy]) >= case.thresholds.tensor_percent:
        return []
    tensor, active = (float(np.mean([one[key] for one in busy])) for key in ("tensor active", "SM active"))
    sentence = f"tensor cores are active {tensor:.1f} % of the time, while SMs are active {active:.0f} %"
    advice = Advice(
        "if the work is matrix products: use BF16, FP16 or TF32, and sizes that are multiples of 8",
        "tensor cores do most of the FLOPs that a GPU can; other work does not need them",
    )
    names = {report.index: report.name for report in case.reports}
    rows: list[Row] = [
        (names.get(report), gpu, one["SM active"], one["tensor active"]) for (report, gpu), one in sorted(known.items())
    ]
    evidence = TableAnswer(_NAME, _COLUMNS, rows, len(rows))
    return [Finding(_NAME, Severity.INFO, sentence, advice, Door("gpu"), evidence=evidence)]
