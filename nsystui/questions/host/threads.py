"""The time of each thread in the selection, in parts that add up to its window (docs/numbers.md#threads).

In an MPI call, else in a CUDA call, else in an OS runtime call; outside of calls: running on a CPU, runnable, waiting,
off the CPU for an unrecorded reason; else not recorded. "On CPU" is all time on a CPU, in calls or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import PID, PROCESS_ID, RANK, REPORT_ID, TID, Column, Row, TableAnswer, Unit, Value
from nsystui.base.selection import Selection, Task, Window
from nsystui.base.types import Floats
from nsystui.exports.metadata import pid_of
from nsystui.questions.algebra.intervals import EMPTY, Intervals, Times, covered_per_bin, intersect, subtract, union
from nsystui.questions.host.functions import CpuSamples, SampleGroup, function_words, samples_of_job, top_function
from nsystui.questions.host.naming import HostThread, named_threads
from nsystui.questions.host.segments import (
    BLOCKED,
    NO_CALLS,
    NO_SEGMENTS,
    OFF,
    RUNNABLE,
    RUNNING,
    Calls,
    Gil,
    Scheduling,
    Thread,
    calls_of,
    gil_of,
    scheduling_of,
)
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.conditions import where
from nsystui.questions.queries.data_notes import missing_notes
from nsystui.questions.queries.mpi import mpi_rows, nvtx_reports
from nsystui.questions.queries.time_window import extents
from nsystui.store import tables
from nsystui.store.session import Session

_CALL_BYTES = 400
"""Memory per CUDA call, including the time around it."""


PARTS = ("mpi", "cuda", "os", "running", "runnable", "waiting", "off", "unknown")
"""The parts of a thread's time, which add up to its window."""
_Times = dict[str, int | None]
"""Times by key, ns; ``None`` if unrecorded."""


@dataclass(frozen=True, eq=False)
class HostTimes:
    """Calls, scheduling and GIL of a selection's threads, job time."""

    mpi: Calls
    cuda: Calls
    os: Calls
    scheduling: Scheduling
    gil: Gil
    lacking: Mapping[int, frozenset[str]]  # the parts that each report did not record

    @classmethod
    def load(cls, session: Session, selection: Selection) -> HostTimes:
        """Read the window, without CUDA calls, and the scheduling of all threads of its reports."""
        mpi, os = (calls_of(session, table, selection) for table in (mpi_rows(session), tables.os_calls))
        scheduling, gil = scheduling_of(session, selection), gil_of(session, selection)
        return cls(mpi, NO_CALLS, os, scheduling, gil, _lacking(session))

    def slices(
        self, session: Session, selection: Selection, windows: Mapping[int, Window]
    ) -> Iterator[tuple[HostTimes, Mapping[int, Window]]]:
        """Yield slices with CUDA calls that fit into memory, and each slice's part of the windows."""
        count = max(session.count(tables.api_calls), 1)
        for rows in session.slices(count, session.limits.rows_at_once(_CALL_BYTES), "threads", "calls"):
            slice_windows = {
                report: Window(
                    *(old.start + (old.end - old.start) * min(row, count) // count for row in (rows.start, rows.stop))
                )
                for report, old in windows.items()
            }
            slice_selection = replace(selection, window=None, windows=tuple(slice_windows.items()))
            yield replace(self, cuda=calls_of(session, tables.api_calls, slice_selection)), slice_windows

    def threads(self) -> set[Thread]:
        """Return all recorded threads, except threads with only CUDA calls."""
        recorded = (self.mpi, self.os, self.scheduling)
        return {thread for part in recorded for thread in part.threads} | {*self.gil.held, *self.gil.waited}


def _lacking(session: Session) -> dict[int, frozenset[str]]:
    with_mpi_ranges = {report.index for report in nvtx_reports(session)}
    lacking = {}
    for report in session.reports:
        recorded = {
            ("mpi",): report.count(tables.mpi_calls) or report.index in with_mpi_ranges,
            ("cuda",): report.count(tables.api_calls),
            ("os",): report.count(tables.os_calls),
            ("running", "runnable", "waiting", "off"): report.count(tables.sched_events),
        }
        lacking[report.index] = frozenset(part for parts, count in recorded.items() if not count for part in parts)
    return lacking


def _thread_time(thread: Thread, times: HostTimes, window: Window) -> tuple[_Times, Mapping[str, Intervals]]:
    """Split the window into `PARTS`: the length of each, and its intervals."""
    remaining = union([window.start], [window.end])
    intervals: dict[str, Intervals] = {}
    for part, calls in (("mpi", times.mpi), ("cuda", times.cuda), ("os", times.os)):
        covered = calls.threads.get(thread, NO_SEGMENTS).covered
        intervals[part] = intersect(remaining, covered)
        remaining = subtract(remaining, covered)
    states = times.scheduling.threads.get(thread, NO_SEGMENTS)
    for part, state in (("running", RUNNING), ("runnable", RUNNABLE), ("waiting", BLOCKED), ("off", OFF)):
        intervals[part] = intersect(remaining, states.labelled(state))
    intervals["unknown"] = subtract(remaining, states.covered)
    spent: _Times = {part: time.length for part, time in intervals.items()}
    if not np.isin(states.labels, (RUNNABLE, BLOCKED)).any():
        spent |= {"runnable": None, "waiting": None}
    return spent | dict.fromkeys(times.lacking[thread[0]]), intervals


def thread_over_time(
    job: OpenJob, selection: Selection, task: Task, tid: int, bins: int
) -> tuple[Window, dict[str, Floats]]:
    """Return a thread's window, and each part's share (0 to 1) of each of ``bins`` slices of it."""
    window = extents(job.session, selection).get(task.report, Window(0, 0))
    task_selection = selection.with_name(None).with_tasks(frozenset({task}))
    width = (window.end - window.start) / bins or 1
    shares = {part: np.zeros(bins) for part in PARTS}
    times = HostTimes.load(job.session, task_selection)
    for slice_times, windows in times.slices(job.session, task_selection, {task.report: window}):
        _, intervals = _thread_time((task.report, task.process | tid), slice_times, windows[task.report])
        for part, share in shares.items():
            share += covered_per_bin(intervals[part], window.start, window.end, bins) / width
    return window, shares


def _share(part: str, label: str, header: str, importance: int) -> Column:
    share = Column(f"{part}_percent", header=f"{header} (%)", label=label, unit=Unit.PERCENT, decimals=2)
    return replace(share, importance=importance, has_bar=part == "running")


def _idle_column(part: str, name: str, label: str) -> Column:
    header, label = f"GPU Idle, {name} (ns)", f"GPU idle: {label}"
    return Column(f"idle_{part}", header=header, label=label, unit=Unit.DURATION, compared="idle", importance=3)


_LABELS = {
    "running": ("running", "Running", 0),
    "cuda": ("in CUDA", "In CUDA", 0),
    "os": ("in OS", "In OS", 2),
    "mpi": ("in MPI", "In MPI", 2),
    "runnable": ("runnable", "Runnable", 2),
    "waiting": ("waiting", "Waiting", 2),
    "off": ("off CPU", "Off CPU", 2),
    "unknown": ("not recorded", "Not Recorded", 3),
}
GIL_COLUMNS = (
    Column("gil_held", header="GIL Held (ns)", label="holding the GIL", unit=Unit.DURATION, importance=1),
    Column("gil_waited", header="GIL Waited For (ns)", label="waiting for the GIL", unit=Unit.DURATION, importance=1),
)
"""Shown if the global interpreter lock was recorded."""
COLUMNS = (
    RANK,
    Column("thread", header="Thread", label="thread"),
    *(_share(part, *words) for part, words in _LABELS.items()),
    Column("cpu", header="On CPU (ns)", label="on CPU", unit=Unit.DURATION, importance=3),
    Column("switches", header="Context Switches", label="switches", unit=Unit.COUNT, importance=3),
    Column("migrations", header="Migrations", label="migrations", unit=Unit.COUNT, importance=3),
    Column(
        "idle_running", header="GPU Idle, Running (ns)", label="ran while GPU idle", unit=Unit.DURATION, compared="idle"
    ),
    _idle_column("calls", "In Calls", "in calls"),
    _idle_column("off", "Off CPU", "off CPU"),
    Column("idle", header="GPU Idle (ns)", label="GPU idle", unit=Unit.DURATION, importance=3),
    *GIL_COLUMNS,
    Column("top", header="Top Function", label="top function", importance=1),
    Column("samples", header="Samples", label="samples", unit=Unit.COUNT, importance=3),
    PID.with_importance(4),
    TID.with_importance(4),
    *(
        Column(part, header=f"{header} (ns)", label=label, unit=Unit.DURATION, importance=9)
        for part, (label, header, _) in _LABELS.items()
    ),
    Column("window", header="Window (ns)", label="window", unit=Unit.DURATION, importance=9),
    REPORT_ID,
    PROCESS_ID,
)


def threads_table(job: OpenJob, selection: Selection) -> TableAnswer:
    """Tabulate each recorded thread in the selection, by rank and process."""
    session = job.session
    times, samples = HostTimes.load(session, selection), samples_of_job(job, selection)
    windows = extents(session, selection)
    named = named_threads(job, {*times.threads(), *samples.threads, *_calling(session, selection)})
    threads = [it for it in named if selection.tasks is None or it.task in selection.tasks]
    times_by_thread = _sums(job, selection, times, windows, threads)
    columns = tuple(column for column in COLUMNS if times.gil or column not in GIL_COLUMNS)
    rows: list[Row] = []
    total_rows = 0
    for thread in threads:
        report, spent = thread.thread[0], times_by_thread[thread.thread]
        window, total = windows[report], sum(spent[part] or 0 for part in PARTS)
        gil_times = (times.gil.held, times.gil.waited) if times.gil else ()
        gil_lengths = [part.get(thread.thread, EMPTY).clip(window.start, window.end).length for part in gil_times]
        if spent["unknown"] == total and thread.thread not in samples.threads and not any(gil_lengths):
            continue
        total_rows += 1
        if selection.name is not None and not selection.name.matches(thread.name):
            continue
        cells: dict[str, Value] = {**spent, "rank": thread.rank, "thread": thread.shown, "window": total}
        for part in PARTS:
            cells[f"{part}_percent"] = None if (time := spent[part]) is None or not total else 100.0 * time / total
        cells |= zip((column.key for column in GIL_COLUMNS), gil_lengths, strict=False)
        cells |= _scheduled(thread.thread, times.scheduling, window, spent["running"] is not None)
        cells["top"], cells["samples"] = _top(thread, samples)
        cells |= {"pid": pid_of(thread.thread[1]), "tid": thread.tid, "report": report, "process": thread.task.process}
        rows.append(tuple(cells[column.key] for column in columns))
    missing = missing_notes(session, tables.sched_events, tables.host_samples, tables.os_calls)
    return TableAnswer("threads", columns, rows, total_rows, missing + job.busy(selection.with_name(None)).notes)


def _calling(session: Session, selection: Selection) -> set[Thread]:
    calls = tables.api_calls
    if not session.count(calls):
        return set()
    in_selection = where(calls, selection.with_name(None))
    query = sa.select(calls.c.report, calls.c.thread).where(calls.c.thread.is_not(None), *in_selection).distinct()
    return {(report, thread) for report, thread in session.rows(query)}


def _top(thread: HostThread, samples: CpuSamples) -> tuple[str | None, int | None]:
    """Return the function with most samples of a thread, and the number of the thread's samples, if recorded."""
    report, sampled = thread.thread[0], samples.threads.get(thread.thread)
    if sampled is None:
        return None, 0 if report in samples.stacks else None
    node_counts = {report: np.bincount(sampled.nodes, minlength=len(samples.stacks[report].tree))}
    function = top_function(samples, SampleGroup((thread,), node_counts))
    return function_words(function) if function is not None else None, len(sampled.times)


def _sums(
    job: OpenJob, selection: Selection, times: HostTimes, windows: Mapping[int, Window], threads: Sequence[HostThread]
) -> dict[Thread, _Times]:
    """Sum the parts and `_while_idle` of each thread over slices of time."""
    sums: dict[Thread, _Times] = {}
    for slice_times, slice_windows in times.slices(job.session, selection, windows):
        idle: dict[Task, list[Intervals]] = {}
        for gpu in job.busy(selection).devices:
            task = gpu.device.task.task
            idle.setdefault(task, []).append(gpu.idle(slice_windows[task.report]))
        for thread in threads:
            spent, intervals = _thread_time(thread.thread, slice_times, slice_windows[thread.thread[0]])
            spent |= _while_idle(intervals, idle.get(thread.task), spent)
            before = sums.get(thread.thread, dict.fromkeys(spent, 0))
            pairs = ((key, before[key], time) for key, time in spent.items())
            sums[thread.thread] = {key: None if old is None or new is None else old + new for key, old, new in pairs}
    return sums


def _scheduled(thread: Thread, scheduling: Scheduling, window: Window, is_scheduled: bool) -> _Times:
    """Return time on a CPU, context switches and migrations in the window."""
    if not is_scheduled:
        return dict.fromkeys(("cpu", "switches", "migrations"))
    on_cpu = scheduling.cpus.get(thread, NO_SEGMENTS).covered.clip(window.start, window.end).length
    events = (by_thread.get(thread, _NO_TIMES) for by_thread in (scheduling.switches, scheduling.moves))
    switches, moves = (int(((times >= window.start) & (times < window.end)).sum()) for times in events)
    return {"cpu": on_cpu, "switches": switches, "migrations": moves}


_NO_TIMES: Times = np.empty(0, np.int64)


_WHILE_IDLE = {
    "idle_running": ("running",), "idle_calls": ("mpi", "cuda", "os"), "idle_off": ("runnable", "waiting", "off"),
}  # fmt: skip
"""The parts of each column of time while a GPU was idle."""


def _while_idle(intervals: Mapping[str, Intervals], idle: Sequence[Intervals] | None, spent: _Times) -> _Times:
    """Return a thread's time by `_WHILE_IDLE` and in total while its GPUs were idle, summed over them."""
    if idle is None:
        return dict.fromkeys((*_WHILE_IDLE, "idle"))
    overlap = {
        key: sum(intersect(gaps, intervals[part]).length for gaps in idle for part in parts)
        for key, parts in _WHILE_IDLE.items()
        if any(spent[part] is not None for part in parts)
    }
    return {**dict.fromkeys(_WHILE_IDLE), **overlap, "idle": sum(gaps.length for gaps in idle)}
