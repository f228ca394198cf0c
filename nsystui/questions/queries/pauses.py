"""Pauses: times between the captures of a process, in several exports or in one (docs/ranks.md#captures)."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import groupby, pairwise

import numpy as np

from nsystui.base.answer import Unit
from nsystui.base.selection import Task
from nsystui.base.text import few, ranks_named
from nsystui.base.units import format_value
from nsystui.questions.algebra.intervals import EMPTY, Intervals, Times, intersect, merge, subtract, union
from nsystui.questions.queries.derived import of_each_report
from nsystui.questions.queries.tasks import GPU_TABLES, RankedTask
from nsystui.questions.queries.time_window import report_at
from nsystui.store.remember import Arrays
from nsystui.store.report import Report, spans_of
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


# Complete captures have `Not all … might have been collected`.
SURE_LOSS = re.compile(r"\blost\b|\bdropp|overflow|discarded|truncated", re.IGNORECASE)
LONG = 10_000_000
"""The least length of a hole, ns."""
_FEWEST_CALLS, _FEWEST_IDS = 50, 300


def unseen(session: Session, report: Report, process: int) -> Intervals:
    """Return pauses and `holes`; job time."""
    return merge(pauses(session, report), holes(session, report, process))


def holes(session: Session, report: Report, process: int) -> Intervals:
    """Return when nsys lost all events of a process (docs/numbers.md#holes), job time."""
    edges = of_each_report(session, [report], "holes", _holes, in_memory=True)[report.index]["edges"].reshape(-1, 3)
    starts, ends = edges[edges[:, 0] == process, 1:].T + report.clock_offset
    return Intervals(starts, ends).chosen(pauses(session, report).covered(starts, ends) == 0)


def _holes(session: Session, reports: Sequence[Report]) -> dict[int, Arrays]:
    import sqlalchemy as sa

    from nsystui.questions.queries.conditions import of_reports
    from nsystui.store import tables

    calls, edges = tables.api_calls.c, {report.index: list[tuple[int, ...]]() for report in reports}
    ids, bins, least, most = calls.correlation_id, calls.start.op("//")(LONG), sa.func.min, sa.func.max
    query = sa.select(least(calls.start), least(ids), most(calls.end), most(ids), sa.func.count())
    is_whole = (column.is_not(None) for column in (calls.process, calls.start, calls.end, ids))
    query = query.where(of_reports(calls.report, edges), *is_whole)
    grouped = query.add_columns(calls.report, calls.process).group_by(calls.report, calls.process, bins)
    rows = session.rows(grouped.order_by(calls.report, calls.process, bins)) if session.count(tables.api_calls) else ()
    for (index, process), group in groupby(rows, key=lambda row: row[5:]):
        for start, end in _without_calls(np.array([row[:5] for row in group], np.int64)):
            idle = subtract(union([start], [end]), _worked(session, Task(index, process), start, end))
            long = idle.chosen(idle.lengths >= LONG)
            edges[index] += [(process, *edge) for edge in zip(long.starts.tolist(), long.ends.tolist(), strict=True)]
    return {index: {"edges": np.array(values, np.int64).reshape(-1)} for index, values in edges.items()}


def _without_calls(bins: Times) -> Iterator[tuple[int, int]]:
    """Yield long stretches in which ids of calls are missing; a sleeping process uses none."""
    starts, low, ends, high, counts = bins.T
    before, after, calls = np.maximum.accumulate(ends)[:-1], starts[1:], np.cumsum(counts)
    lengths, missing = after - before, np.minimum.accumulate(low[::-1])[-2::-1] - np.maximum.accumulate(high)[:-1]
    expected = (high.max() - low.min() - missing) / np.maximum(ends.max() - starts[0] - lengths, 1) * lengths
    is_long = (lengths >= LONG) & (np.minimum(calls, calls[-1] - calls)[:-1] >= _FEWEST_CALLS)
    is_lost = is_long & (missing >= np.maximum(expected / 2, _FEWEST_IDS)) & (missing <= 10 * expected)
    yield from zip(before[is_lost].tolist(), after[is_lost].tolist(), strict=True)


def _worked(session: Session, task: Task, start: int, end: int) -> Intervals:
    """Return when a process's GPUs worked, on the report's clock."""
    import sqlalchemy as sa

    from nsystui.store import tables

    parts = [EMPTY]
    for columns in (tables.of(table).c for table in GPU_TABLES if session.count(table)):
        is_near = columns.report == task.report, columns.process == task.process
        query = sa.select(columns.start, columns.end).where(*is_near, columns.start < end, columns.end > start)
        parts.append(union(*np.array(session.rows(query), np.int64).reshape(-1, 2).T))
    return merge(*parts)


def hole_note(session: Session, ranks: Iterable[RankedTask]) -> str:
    """Return the note on `holes`, if any."""
    lost = {item.rank: holes(session, report_at(session, item.task.report), item.task.process).length for item in ranks}
    words = [f"{ranks_named([rank])}: {format_value(Unit.DURATION, time)}" for rank, time in lost.items() if time]
    return f"all events were lost for some time, which is unknown and does not count ({few(words)})" if words else ""


def capture_note(session: Session, reports: Sequence[Report]) -> str:
    """Return the note on pauses, or an empty text."""
    paused = []
    for report in reports:
        if time := pauses(session, report).length:
            captures = f" between {len(report.captures)} captures" if report.captures else ""
            paused.append(f"{report.name}: {format_value(Unit.DURATION, time)}{captures}")
    return f"pauses between captures of a process do not count ({few(paused)})" if paused else ""
