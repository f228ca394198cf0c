"""Pauses: times between the captures of a process, in several exports or in one (docs/ranks.md#captures)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import pairwise

import numpy as np

from nsystui.base.answer import Unit
from nsystui.base.text import few
from nsystui.base.units import format_value
from nsystui.questions.algebra.intervals import EMPTY, Intervals, intersect, union
from nsystui.questions.queries.derived import of_each_report
from nsystui.store.report import Report, spans_of
from nsystui.store.results import Arrays
from nsystui.store.session import Session


def pauses(session: Session, *reports: Report) -> Intervals:
    """Return the times in which all of ``reports`` recorded nothing because of a pause; job time."""
    may_pause = [report for report in reports if any(source.metadata.may_pause for source in report.sources)]
    stopped = of_each_report(session, may_pause, "pauses", _stopped, in_memory=True)
    sets = []
    for report in reports:
        spans = [(report.job_time(first), report.job_time(last)) for first, last in spans_of(report.captures)]
        edges = [edge for (_, last), (first, _) in pairwise(spans) for edge in (last, first)]
        if report.index in stopped:
            edges += (stopped[report.index]["edges"] + report.clock_offset).tolist()
        sets.append(union(edges[::2], edges[1::2]) if edges else EMPTY)
    return reduce(intersect, sets) if sets else EMPTY


def _stopped(session: Session, reports: Sequence[Report]) -> dict[int, Arrays]:
    """Return start and end of each time from cudaProfilerStop to cudaProfilerStart without a kernel or call."""
    import sqlalchemy as sa

    from nsystui.store import tables

    calls = tables.api_calls.c
    edges: dict[int, list[int]] = {report.index: [] for report in reports}
    for index in edges:
        query = sa.select(calls.name, calls.start, calls.end).where(calls.report == index)
        rows = session.rows(query.where(calls.name.like("cu%ProfilerSt%")).order_by(calls.start))
        for (before, _, start), (after, end, _) in pairwise(rows):
            if "Stop" in before and "Start" in after and start is not None and start < end:
                work = (table.c for table in (tables.kernels, tables.api_calls))
                inside = (sa.and_(c.report == index, c.start > start, c.start < end) for c in work)
                if not any(session.scalar(sa.select(sa.func.count()).where(condition)) for condition in inside):
                    edges[index] += [start, end]
    return {index: {"edges": np.array(times, np.int64)} for index, times in edges.items()}


def capture_note(session: Session, reports: Sequence[Report]) -> str:
    """Return the note on pauses, or an empty text."""
    paused = []
    for report in reports:
        if time := pauses(session, report).length:
            captures = f" between {len(report.captures)} captures" if report.captures else ""
            paused.append(f"{report.name}: {format_value(Unit.DURATION, time)}{captures}")
    return f"pauses between captures of a process do not count ({few(paused)})" if paused else ""
