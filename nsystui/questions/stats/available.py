"""Whether a report can be answered: which of its tables the open exports have."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from nsystui.exports import canonical
from nsystui.questions.stats.report import Report
from nsystui.store.session import Session

DEFAULT = (
    "nvtx_sum",
    "osrt_sum",
    "cuda_api_sum",
    "cuda_gpu_kern_sum",
    "cuda_gpu_mem_time_sum",
    "cuda_gpu_mem_size_sum",
    "openmp_sum",
    "um_sum",
    "um_total_sum",
    "um_cpu_page_faults_sum",
    "openacc_sum",
)
"""What ``nsys stats`` prints when nobody names a report, as far as we have it, in its order."""


def lacking(session: Session, report: Report) -> str:
    """A sentence on what the exports lack for ``report`` and what to record; empty where they have it."""
    groups = [group for group in report.needs if not any(_has(session, table) for table in group)]
    if not groups:
        return ""
    tables = [canonical.BY_NAME[table.name] for group in groups for table in group]
    what = _joined(" or ".join(canonical.BY_NAME[table.name].what for table in group) for group in groups)
    which = "this export" if len(session.reports) == 1 else "these exports"
    return f"no {what} in {which}: {_joined(table.record for table in tables)}"


def _has(session: Session, table: sa.Table) -> bool:
    return any(report.has(table) for report in session.reports)


def _joined(words: Iterable[str]) -> str:
    return " and ".join(dict.fromkeys(words))
