"""Summaries by name of CUDA work and calls, as ``nsys stats`` has them (domain §4.2)."""

from __future__ import annotations

import sqlalchemy as sa

from nsystui.analysis import statistics
from nsystui.analysis.answer import Column, FrameAnswer, Unit
from nsystui.analysis.kernels import GroupBy, kernel_summary
from nsystui.analysis.missing import missing_note
from nsystui.analysis.selection import Selection
from nsystui.analysis.stats.report import KERNEL_NAMES, Options, Report
from nsystui.analysis.where import duration, where
from nsystui.analysis.work import MEMORY, memory_sizes, work_summary
from nsystui.store import tables
from nsystui.store.session import Session

_API_COLUMNS = (
    *statistics.duration_columns("Num Calls"),
    Column("name", "Name", "name", Unit.TEXT),
)


def api_summary_as_nsys(session: Session, selection: Selection) -> FrameAnswer:
    """``cuda_api_sum`` with the rows that ``--cudabacktrace`` writes a second time, as nsys counts them."""
    calls, doubles = tables.api_calls, tables.api_backtraces
    parts = [
        sa.select(
            table.c.name.label("name"), duration(table).label("duration"), sa.literal(double).label("double")
        ).where(*where(table, selection, table.c.name))
        for table, double in ((calls, 0), (doubles, 1))
    ]
    rows = sa.union_all(*parts).subquery()
    keys = [rows.c.double.label("double"), rows.c.name.label("name")]
    frame = session.frame(statistics.summary(rows, rows.c.duration, keys, []))
    note = missing_note(session, calls)
    return FrameAnswer("api", _API_COLUMNS, frame, len(frame), (note,) if note else ())


def _kernels(session: Session, selection: Selection, options: Options) -> FrameAnswer:
    return kernel_summary(session, selection, options.names)


def _shapes(session: Session, selection: Selection, options: Options) -> FrameAnswer:
    return kernel_summary(session, selection, options.names, (GroupBy.SHAPE,))


REPORTS = (
    Report("cuda_api_sum", "CUDA API calls", lambda s, w, _: api_summary_as_nsys(s, w), ((tables.api_calls,),)),
    Report("cuda_gpu_kern_gb_sum", "kernels by name, grid and block", _shapes, ((tables.kernels,),), KERNEL_NAMES),
    Report("cuda_gpu_kern_sum", "kernels by name", _kernels, ((tables.kernels,),), KERNEL_NAMES),
    Report(
        "cuda_gpu_mem_size_sum",
        "bytes of memory copies and memsets",
        lambda s, w, _: memory_sizes(s, w),
        ((tables.memory_ops,),),
    ),
    Report(
        "cuda_gpu_mem_time_sum",
        "time of memory copies and memsets",
        lambda s, w, _: work_summary(s, w, MEMORY),
        ((tables.memory_ops,),),
    ),
)
