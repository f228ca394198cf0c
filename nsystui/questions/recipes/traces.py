"""The recipes that list ranges one by one, with their ranks."""

from __future__ import annotations

from nsystui.base.answer import Answer
from nsystui.base.selection import Selection
from nsystui.questions.job import Job
from nsystui.questions.recipes.asking import Ask, Options, of_each_rank
from nsystui.questions.stats.nvtx_projected import projected_trace
from nsystui.questions.stats.report import Options as ReportOptions


def _projected(job: Job, selection: Selection, _: Options) -> Answer:
    return of_each_rank(job, selection, lambda session, own: projected_trace(session, own, ReportOptions()))


ASK: dict[str, Ask] = {"nvtx_gpu_proj_trace": _projected}
