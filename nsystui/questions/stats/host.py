"""Summaries of what ran on the CPU beside CUDA, NVTX and MPI, as ``nsys stats`` has them.

See docs/numbers.md#nsys-stats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from nsystui.base.answer import TableAnswer
from nsystui.base.columns import NAME
from nsystui.base.selection import Selection
from nsystui.questions.activities import OS, work_summary
from nsystui.questions.algebra import statistics
from nsystui.questions.algebra.statistics import query_rows
from nsystui.questions.conditions import duration, where
from nsystui.questions.data_notes import absent_note
from nsystui.questions.stats.report import Options, Report
from nsystui.store import tables
from nsystui.store.session import Session


def _openmp(session: Session, selection: Selection, _: Options) -> TableAnswer:
    """``openmp_sum``: by kind and name, for nsys sums each native table by itself; the kind is not shown."""
    table = tables.openmp_events
    keys = [table.c.kind.label("kind"), table.c.name.label("name")]
    return _events(session, selection, table, keys, "openmp", "Count")


def _openacc(session: Session, selection: Selection, _: Options) -> TableAnswer:
    """``openacc_sum``: by name over all kinds."""
    table = tables.openacc_events
    return _events(session, selection, table, [table.c.name.label("name")], "openacc", "Num Calls")


def _events(
    session: Session, selection: Selection, table: sa.Table, keys: Sequence[sa.Label[Any]], name: str, count: str
) -> TableAnswer:
    columns = (*statistics.duration_columns(count), NAME)
    query = statistics.summary(table, duration(table), keys, where(table, selection, table.c.name))
    groups = sa.select(*keys).distinct().subquery()
    total = session.scalar(sa.select(sa.func.count()).select_from(groups))
    note = absent_note(session, table)
    return TableAnswer(name, columns, query_rows(session, query, columns), int(total), (note,) if note else ())


REPORTS = (
    Report("openacc_sum", "OpenACC events by name", _openacc, ((tables.openacc_events,),)),
    Report("openmp_sum", "OpenMP events by name", _openmp, ((tables.openmp_events,),)),
    Report("osrt_sum", "OS runtime calls", lambda s, w, _: work_summary(s, w, OS), ((tables.os_calls,),)),
)
