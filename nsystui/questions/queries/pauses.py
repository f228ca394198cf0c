"""Pauses: times between the captures of a process, in several exports or in one (docs/ranks.md#captures)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, reduce
from itertools import groupby, pairwise

import numpy as np

from nsystui.base.answer import Unit
from nsystui.base.selection import Task
from nsystui.base.text import few, ranks_named
from nsystui.base.units import format_value
from nsystui.exports.canonical import BY_NAME
from nsystui.questions.algebra.intervals import EMPTY, Intervals, Times, intersect, merge, subtract, union
from nsystui.questions.queries.derived import of_each_report
from nsystui.questions.queries.tasks import GPU_TABLES, RankedTask
from nsystui.questions.queries.time_window import report_at
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


# Not `Not all … might have been collected`, which complete captures have.
SURE_LOSS = re.compile(r"\blost\b|\bdropp|overflow|discarded|truncated", re.IGNORECASE)
LONG = 10_000_000
_FEWEST_CALLS, _FEWEST_IDS, _FEWEST_ROWS = 50, 300, 20
_ON_CPU = ("host_samples", "sched_events")
_WORK = tuple(table.name for table in GPU_TABLES)
_ALL = (*_WORK, "os_calls", "mpi_calls", "library_calls", "nvtx_ranges", "nvtx_marks", *_ON_CPU)


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
    from nsystui.store.tables import api_calls

    calls, edges = api_calls.c, {report.index: list[int]() for report in reports}
    bins, columns = calls.start.op("//")(LONG), (calls.process, calls.start, calls.end, calls.correlation_id)
    query = sa.select(*map(sa.func.min, columns[1::2]), *map(sa.func.max, columns[2:]), sa.func.count())
    query = query.where(of_reports(calls.report, edges), *(column.is_not(None) for column in columns))
    grouped = query.add_columns(calls.report, calls.process).group_by(calls.report, calls.process, bins)
    rows = session.rows(grouped.order_by(calls.report, calls.process, bins)) if session.count(api_calls) else ()
    for (index, process), group in groupby(rows, key=lambda row: row[5:]):
        rows_of = partial(_recorded, session, Task(index, process))
        for start, end, is_proven in _stretches(np.array([row[:5] for row in group], np.int64)):
            idle = subtract(union([start], [end]), rows_of(_WORK if is_proven else _ALL, start, end))
            idle = idle.chosen(idle.lengths >= max(LONG, 0 if is_proven else (end - start) // 2))
            if is_proven or (len(idle) and _has_lost(session, index, rows_of, start, end)):
                for edge in zip(idle.starts.tolist(), idle.ends.tolist(), strict=True):
                    edges[index] += [process, *edge]
    return {index: {"edges": np.array(values, np.int64)} for index, values in edges.items()}


def _stretches(bins: Times) -> Iterator[tuple[int, int, bool]]:
    """Yield long stretches without calls: start, end, and whether ids of lost calls are missing.

    A sleeping process uses no ids: in real exports, 9 in 5 s, in which its usual calls use 20,000.
    """
    starts, low, ends, high, counts = bins.T
    before, after, calls = np.maximum.accumulate(ends)[:-1], starts[1:], np.cumsum(counts)
    lengths, missing = after - before, np.minimum.accumulate(low[::-1])[-2::-1] - np.maximum.accumulate(high)[:-1]
    expected = (high.max() - low.min() - missing) / np.maximum(ends.max() - starts[0] - lengths, 1) * lengths
    is_long = (lengths >= LONG) & (np.minimum(calls, calls[-1] - calls)[:-1] >= _FEWEST_CALLS)
    is_proven = (missing >= np.maximum(expected / 2, _FEWEST_IDS)) & (missing <= 10 * expected)
    usual = np.quantile(lengths[is_long], 0.9) if is_long.sum() >= _FEWEST_ROWS else 0
    for number in np.flatnonzero(is_long & (is_proven | (lengths > 5 * usual))).tolist():
        yield int(before[number]), int(after[number]), bool(is_proven[number])


def _recorded(session: Session, task: Task, names: Iterable[str], start: int, end: int) -> Intervals:
    import sqlalchemy as sa

    from nsystui.store import tables

    parts = [EMPTY]
    for table in (tables.of(BY_NAME[name]) for name in names if session.count(BY_NAME[name])):
        first = table.c.start if "start" in table.c else table.c.time
        last = sa.func.coalesce(table.c.end, first) if "end" in table.c else first
        is_near = table.c.report == task.report, table.c.process == task.process, first < end, last > start
        firsts, lasts = np.array(session.rows(sa.select(first, last).where(*is_near)), np.int64).reshape(-1, 2).T
        is_range = table is tables.nvtx_ranges
        parts += [union(firsts, (firsts if is_range else lasts) + 1), union(lasts, lasts + 1)]
    return merge(*parts)


def _has_lost(session: Session, index: int, rows_of: Callable[..., Intervals], start: int, end: int) -> bool:
    """Return whether nsys reports a loss, or traced OS calls and CPU before and after."""
    import sqlalchemy as sa

    from nsystui.store.tables import diagnostics

    texts = sa.select(diagnostics.c.text).where(diagnostics.c.report == index, diagnostics.c.severity > 1)
    if session.count(diagnostics) and any(SURE_LOSS.search(str(text)) for (text,) in session.rows(texts)):
        return True
    around = ((2 * start - end, start), (end, 2 * end - start))
    os_calls, *on_cpu = (min(len(rows_of([name], *edges)) for edges in around) for name in ("os_calls", *_ON_CPU))
    return os_calls >= _FEWEST_ROWS <= max(on_cpu)


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
