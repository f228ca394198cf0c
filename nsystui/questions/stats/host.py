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
from nsystui.questions import statistics
from nsystui.questions.missing import absent_note
from nsystui.questions.query_rows import query_rows
from nsystui.questions.stats.report import Ask, Options
from nsystui.questions.where import duration, where
from nsystui.questions.work import OS, work_summary
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


ASK: dict[str, Ask] = {
    "openacc_sum": _openacc,
    "openmp_sum": _openmp,
    "osrt_sum": lambda s, w, _: work_summary(s, w, OS),
}
