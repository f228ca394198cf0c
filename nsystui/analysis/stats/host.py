"""Summaries of what ran on the CPU beside CUDA and NVTX, as ``nsys stats`` has them (domain §4.2)."""

from __future__ import annotations

from nsystui.analysis.stats.report import Report
from nsystui.analysis.work import OS, work_summary
from nsystui.store import tables

REPORTS = (
    Report("osrt_sum", "OS runtime calls", lambda s, w, _: work_summary(s, w, OS), ((tables.os_calls,),)),
)
