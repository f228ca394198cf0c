"""Pauses: times between the captures of a process, in several exports or in one (docs/ranks.md#captures)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from nsystui.questions.algebra.intervals import EMPTY, Intervals, intersect, merge, union
from nsystui.questions.queries.derived import of_each_report
from nsystui.store.report import Report
from nsystui.store.session import Session

if TYPE_CHECKING:
    from nsystui.store.results import Arrays


def pauses(session: Session, *reports: Report) -> Intervals:
    """Return the times in which all of ``reports`` recorded nothing because of a pause; job time."""
    may_pause = [report for report in reports if any(source.metadata.may_pause for source in report.sources)]
    stopped = of_each_report(session, may_pause, "pauses", _stopped, in_memory=True)
    sets = []
    for report in reports:
        edges = [report.job_time(edge) for pause in report.pauses for edge in pause]
        between = union(edges[::2], edges[1::2]) if edges else EMPTY
        if report.index in stopped:
            arrays = stopped[report.index]
            between = merge(between, Intervals(arrays["start"], arrays["end"]).shifted(report.clock_offset))
        sets.append(between)
    return reduce(intersect, sets) if sets else EMPTY


def _stopped(session: Session, reports: Sequence[Report]) -> dict[int, Arrays]:
    """Return the times from cudaProfilerStop to cudaProfilerStart without any kernel or call, own clock."""
    import sqlalchemy as sa

    from nsystui.store import tables

    calls = tables.api_calls.c
    found: dict[int, list[tuple[int, int]]] = {report.index: [] for report in reports}
    is_profiler = calls.name.like("cu%ProfilerSt%")
    for index, spans in found.items():
        query = sa.select(calls.name, calls.start, calls.end).where(calls.report == index, is_profiler)
        for (before, _, start), (after, end, _) in pairwise(session.rows(query.order_by(calls.start))):
            if "Stop" in before and "Start" in after and start is not None and start < end:
                counts = (
                    sa.select(sa.func.count())
                    .select_from(table)
                    .where(table.c.report == index, table.c.start > start, table.c.start < end)
                    for table in (tables.kernels, tables.api_calls)
                )
                spans += [(start, end)] * (not any(map(session.scalar, counts)))
    return {
        index: {"start": np.array([s for s, _ in spans], np.int64), "end": np.array([e for _, e in spans], np.int64)}
        for index, spans in found.items()
    }
