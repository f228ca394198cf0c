"""The recipes that list ranges one by one, with their ranks."""

from __future__ import annotations

from nsystui.analysis.answer import Answer
from nsystui.analysis.job import Job
from nsystui.analysis.recipes.asking import Ask, Options, of_each_rank
from nsystui.analysis.selection import Selection
from nsystui.analysis.stats import Options as ReportOptions
from nsystui.analysis.stats import report_named


def _projected(job: Job, selection: Selection, _: Options) -> Answer:
    report = report_named("nvtx_gpu_proj_trace")
    return of_each_rank(job, selection, lambda session, own: report.ask(session, own, ReportOptions()))


ASK: dict[str, Ask] = {"nvtx_gpu_proj_trace": _projected}
