"""Pauses: times between the captures of a process, in several exports or in one (docs/ranks.md#captures)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

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
from nsystui.store.session import Session

if TYPE_CHECKING:
    from nsystui.store.results import Arrays


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


SURE_LOSS = re.compile(r"\blost\b|\bdropp|overflow|discarded|truncated", re.IGNORECASE)
"""Messages of nsys that report a loss for certain; complete captures have `Not all … might have been collected`."""
LONG = 10_000_000
"""The shortest time that counts as lost, ns."""
_FEWEST_CALLS, _FEWEST_IDS, _FEWEST_ROWS = 50, 300, 20
_ON_CPU = ("host_samples", "sched_events")
_WORK = tuple(table.name for table in GPU_TABLES)
_ALL = (*_WORK, "os_calls", "mpi_calls", "library_calls", "nvtx_ranges", "nvtx_marks", *_ON_CPU)


def unseen(session: Session, report: Report, process: int) -> Intervals:
    """Return the pauses of a report, and when nsys lost all events of a process (docs/numbers.md#holes); job time."""
    return merge(pauses(session, report), holes(session, report, process))


def holes(session: Session, report: Report, process: int) -> Intervals:
    """Return when nsys lost all events of a process, without pauses; job time."""
    edges = of_each_report(session, [report], "holes", _holes, in_memory=True)[report.index]["edges"].reshape(-1, 3)
    starts, ends = edges[edges[:, 0] == process, 1:].T + report.clock_offset
    return subtract(Intervals(starts, ends), pauses(session, report))


def _holes(session: Session, reports: Sequence[Report]) -> dict[int, Arrays]:
    """Return process, start and end of each hole."""
    import sqlalchemy as sa

    from nsystui.questions.queries.conditions import of_reports
    from nsystui.store import tables

    calls, edges = tables.api_calls.c, {report.index: list[int]() for report in reports}
    bins = calls.report, calls.process, calls.start.op("//")(LONG)
    columns = (calls.process, calls.start, calls.end, calls.correlation_id)
    query = sa.select(*bins, *map(sa.func.min, columns[1::2]), *map(sa.func.max, columns[2:]), sa.func.count())
    query = query.where(of_reports(calls.report, edges), *(column.is_not(None) for column in columns))
    rows = session.rows(query.group_by(*bins).order_by(*bins)) if session.count(tables.api_calls) else ()
    for (index, process), group in groupby(rows, key=lambda row: row[:2]):
        task = Task(index, process)
        for start, end, is_proven in _stretches(np.array([row[3:] for row in group], np.int64)):
            stretch = union([start], [end])
            idle = subtract(stretch, _recorded(session, task, _WORK if is_proven else _ALL, start, end))
            is_lost = idle.lengths >= (LONG if is_proven else max(LONG, stretch.length // 2))
            if is_proven or (is_lost.any() and _has_lost(session, task, start, end)):
                for interval in zip(idle.starts[is_lost].tolist(), idle.ends[is_lost].tolist(), strict=True):
                    edges[index] += [process, *interval]
    return {index: {"edges": np.array(values, np.int64)} for index, values in edges.items()}


def _stretches(bins: Times) -> Iterator[tuple[int, int, bool]]:
    """Yield unusually long stretches without calls: start, end, and whether the ids of lost calls are missing.

    ``bins``: by time, first start and id, last end and id, and number of calls. A sleeping process uses no ids: in real
    exports, 9 in 5 s, in which its usual calls use 20,000.
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
    """Return when a process has rows of some tables; of a range only when it opens and closes."""
    import sqlalchemy as sa

    from nsystui.store import tables

    parts = [EMPTY]
    for table in (tables.of(BY_NAME[name]) for name in names if session.count(BY_NAME[name])):
        first = table.c.start if "start" in table.c else table.c.time
        last = sa.func.coalesce(table.c.end, first) if "end" in table.c else first
        is_of_task = table.c.report == task.report, table.c.process == task.process
        rows = session.rows(sa.select(first, last).where(*is_of_task, first < end, last > start))
        firsts, lasts = np.array(rows, np.int64).reshape(-1, 2).T
        if table is tables.nvtx_ranges:
            parts.append(union(lasts, lasts + 1))
        parts.append(union(firsts, (firsts if table is tables.nvtx_ranges else lasts) + 1))
    return merge(*parts)


def _has_lost(session: Session, task: Task, start: int, end: int) -> bool:
    """Return whether nsys lost events of a process, or traced all that it does: OS calls, and what runs on the CPU."""
    import sqlalchemy as sa

    from nsystui.store import tables

    messages = tables.diagnostics.c
    texts = sa.select(messages.text).where(messages.report == task.report, messages.severity > 1)
    if session.count(tables.diagnostics) and any(SURE_LOSS.search(str(text)) for (text,) in session.rows(texts)):
        return True
    length, regular = end - start, set()
    for name in ("os_calls", *_ON_CPU):
        around = [(start - length, start), (end, end + length)]
        if all(len(_recorded(session, task, [name], *edges)) >= _FEWEST_ROWS for edges in around):
            regular.add(name)
    return "os_calls" in regular and len(regular) > 1


def hole_note(session: Session, ranks: Iterable[RankedTask]) -> str:
    """Return the note on times for which nsys lost all events of ranks, or an empty text."""
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
