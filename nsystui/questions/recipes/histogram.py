"""How the durations of kernels are spread: how many launches took 1 to 2, 2 to 5, 5 to 10 µs, and so on."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from nsystui.base.answer import Answer, Row, TableAnswer
from nsystui.base.columns import NAME, Column, Unit
from nsystui.base.selection import Selection
from nsystui.questions.conditions import Condition, duration, where
from nsystui.questions.job import Job
from nsystui.questions.kernels import Names, kernel_notes, name_of
from nsystui.questions.recipes.asking import Ask, Options, of_each_rank
from nsystui.questions.recipes.kernel_names import named_kernels
from nsystui.store import tables
from nsystui.store.session import Session

EDGES: tuple[int, ...] = (0, *(step * 10**decade for decade in range(13) for step in (1, 2, 5)))
"""The lower edges, ns: the same for every kernel and every rank, so that histograms compare."""

COLUMNS = (
    Column("low", header="From (ns)", label="from", unit=Unit.DURATION),
    Column("high", header="To (ns)", label="to", unit=Unit.DURATION),
    Column("count", header="Instances", label="count", unit=Unit.COUNT),
    Column("share", header="Instances (%)", label="of its launches", unit=Unit.PERCENT, decimals=1),
    Column("total", header="Total Time (ns)", label="total", unit=Unit.DURATION, importance=1),
    NAME,
)


def _asked(job: Job, selection: Selection, options: Options) -> Answer:
    """Raises UsageError where no kernel has the name that was asked for."""
    chosen: list[Condition] = []
    if options.name is not None and job.session.count(tables.kernels):
        chosen = [named_kernels(job.session, options.name, options.names).are_meant]
    if options.by_rank:
        return of_each_rank(job, selection, lambda session, own: _histogram(session, own, options.names, chosen))
    return _histogram(job.session, selection, options.names, chosen)


def _histogram(session: Session, selection: Selection, names: Names, chosen: Sequence[Condition]) -> TableAnswer:
    """A row for each kernel name and class of durations that has launches: kernels by total time, shortest first.

    The class includes its lower edge.
    """
    table = tables.kernels
    name = name_of(table, names)
    length = duration(table)
    # Which edge is the last one that is not above the value.
    place = sa.case(*[(length < edge, number) for number, edge in enumerate(EDGES[1:])], else_=len(EDGES) - 1).label(
        "place"
    )
    conditions = [*where(table, selection, name), length.is_not(None), *chosen]
    query = (
        sa.select(name.label("name"), place, sa.func.count(), sa.cast(sa.func.sum(length), sa.BigInteger))
        .where(*conditions)
        .group_by(name, place)
    )
    found = session.rows(query)
    totals: dict[str, list[int]] = {}
    for kernel, _, count, total in found:
        own = totals.setdefault(kernel, [0, 0])
        own[0] += total
        own[1] += count
    rows: list[Row] = []
    for kernel, number, count, total in sorted(found, key=lambda row: (-totals[row[0]][0], str(row[0]), row[1])):
        high = EDGES[number + 1] if number + 1 < len(EDGES) else None
        rows.append((EDGES[number], high, count, 100.0 * count / totals[kernel][1], total, kernel))
    return TableAnswer("kernel-histogram", COLUMNS, rows, None, kernel_notes(session))


ASK: dict[str, Ask] = {"cuda_gpu_kern_hist": _asked}
