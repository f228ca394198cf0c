"""The reports of ``nsys stats`` by their names: same columns, same rows, same order, same rounding (domain §4.2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy as sa

from nsystui.analysis import statistics
from nsystui.analysis.answer import Answer, Column, FrameAnswer, Unit
from nsystui.analysis.kernels import GroupBy, Names, kernel_summary
from nsystui.analysis.missing import missing_note
from nsystui.analysis.selection import Selection
from nsystui.analysis.where import duration, where
from nsystui.analysis.work import MEMORY, OS, memory_sizes, work_summary
from nsystui.errors import UsageError
from nsystui.store import tables
from nsystui.store.session import Session

Ask = Callable[[Session, Selection, Names], Answer]


@dataclass(frozen=True)
class Report:
    """One report: what it shows, the tables it needs, and whether ``:base`` and ``:mangled`` apply."""

    name: str
    what: str
    ask: Ask
    takes_names: bool = False


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


REPORTS: dict[str, Report] = {
    report.name: report
    for report in (
        Report(
            "cuda_gpu_kern_sum",
            "kernels by name (:base short names, :mangled compiler's names)",
            lambda session, selection, names: kernel_summary(session, selection, names),
            takes_names=True,
        ),
        Report(
            "cuda_gpu_kern_gb_sum",
            "kernels by name, grid and block",
            lambda session, selection, names: kernel_summary(session, selection, names, (GroupBy.SHAPE,)),
            takes_names=True,
        ),
        Report(
            "cuda_gpu_mem_time_sum",
            "time of memory copies and memsets",
            lambda session, selection, names: work_summary(session, selection, MEMORY),
        ),
        Report(
            "cuda_gpu_mem_size_sum",
            "bytes of memory copies and memsets",
            lambda session, selection, names: memory_sizes(session, selection),
        ),
        Report(
            "cuda_api_sum", "CUDA API calls", lambda session, selection, names: api_summary_as_nsys(session, selection)
        ),
        Report("osrt_sum", "OS runtime calls", lambda session, selection, names: work_summary(session, selection, OS)),
    )
}
_SUFFIXES = {"base": Names.SHORT, "mangled": Names.MANGLED}


def report_of(text: str) -> tuple[Report, Names]:
    """``cuda_gpu_kern_sum:base`` as a report and its names; raises UsageError for what there is not."""
    name, *options = text.split(":")
    report = REPORTS.get(name)
    if report is None:
        raise UsageError(f"no report {name!r}: the reports are {', '.join(REPORTS)}")
    names = Names.FULL
    for option in options:
        if not report.takes_names or option not in _SUFFIXES:
            known = ", ".join(f":{suffix}" for suffix in _SUFFIXES) if report.takes_names else "none"
            raise UsageError(f"report {name} has no option {option!r}: its options are {known}")
        names = _SUFFIXES[option]
    return report, names
