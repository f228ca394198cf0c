"""What the thread that launched an operation did while its GPU was idle before it, in words."""

from __future__ import annotations

import sqlalchemy as sa

from nsystui.base.columns import Unit
from nsystui.base.selection import Task
from nsystui.base.units import format_value
from nsystui.questions.host.causes import (
    ALLOCATING,
    COPYING,
    IN_MPI,
    IN_OS,
    LAUNCHING,
    NOTHING,
    OTHER_CALLS,
    RUNNING_CODE,
    SYNCHRONISING,
    WAITING,
    Cause,
    IdleSpan,
    attribute,
    shown_times,
)
from nsystui.questions.job import Job
from nsystui.questions.tasks import GPU_TABLES
from nsystui.questions.time_window import report_at
from nsystui.store import tables

LEAST = 10_000
"""The shortest idle time before an operation that is looked into, ns: in less a thread does nothing but launch."""
_MOST = 3
_LEAST_SHARE = 0.05
_CALLS = (SYNCHRONISING, COPYING, ALLOCATING, LAUNCHING, OTHER_CALLS, IN_MPI, IN_OS)


def before_launch(job: Job, task: Task, device: int, start: int) -> str:
    """The causes of the idle time before an operation that began at ``start`` (job time); empty of none, or little.

    ``the GPU was idle for 12.30 ms before: 61 % running direct_copy_kernel, 30 % in poll``
    """
    end = _end_before(job, task, device, start)
    if end is None or start - end < LEAST:
        return ""
    length = format_value(Unit.DURATION, start - end)
    return f"the GPU was idle for {length} before: {causes_in(job, task, device, end, start)}"


def causes_in(job: Job, task: Task, device: int, start: int, end: int) -> str:
    """The largest causes of idle time of a GPU, ``61 % running direct_copy_kernel, 30 % in poll``."""
    found = shown_times(attribute(job, [IdleSpan(task, device, start, end)]).of_span(0))
    length = end - start
    ordered = sorted(found, key=lambda cause: (-found[cause], cause.words))
    shown = [cause for cause in ordered if found[cause] >= _LEAST_SHARE * length][:_MOST]
    return ", ".join(f"{100 * found[cause] / length:.0f} % {_words(cause)}" for cause in shown)


def _words(cause: Cause) -> str:
    if cause.kind == NOTHING:
        return "not recorded"
    if cause.kind == RUNNING_CODE:
        return f"running {cause.words}"
    if cause.kind == WAITING:
        return f"waiting for {cause.words}"
    return f"in {cause.words}" if cause.kind in _CALLS else cause.words


def _end_before(job: Job, task: Task, device: int, start: int) -> int | None:
    """When the last of the operations was over that began before ``start``; ``None`` where there is none."""
    session = job.session.part([task.report])
    local = start - report_at(job.session, task.report).clock_offset
    ends = []
    for table in map(tables.of, GPU_TABLES):
        columns = table.c
        if session.count(table):
            query = sa.select(sa.func.max(columns.end)).where(
                columns.report == task.report,
                columns.process == task.process,
                columns.device == device,
                columns.start < local,
            )
            ends.append(session.scalar(query))
    known = [int(end) for end in ends if end is not None]
    return max(known) + start - local if known else None
