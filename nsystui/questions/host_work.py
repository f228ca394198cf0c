"""The work of the CPU in spans of time: which CUDA or MPI calls a process was in, and in which NVTX range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa

from nsystui.base.selection import Task, Window
from nsystui.questions.algebra.intervals import EMPTY, Intervals, merge, subtract, union
from nsystui.questions.conditions import job_start
from nsystui.questions.mpi import DOMAIN
from nsystui.questions.nvtx.loading import FOLDED_LABEL
from nsystui.store import tables
from nsystui.store.session import Session

SYNCHRONISING = "in synchronising CUDA calls"
COPYING = "in calls that copy or set memory"
ALLOCATING = "in calls that allocate or free memory"
LAUNCHING = "launching"
OTHER_CALLS = "in other CUDA calls"
IN_MPI = "in MPI"
NOTHING = "in no CUDA or MPI call"
KINDS = (ALLOCATING, SYNCHRONISING, COPYING, IN_MPI, LAUNCHING, OTHER_CALLS, NOTHING)
"""In this order where two threads are in calls of different kinds at once."""


_MPI_PREFIX = f"{DOMAIN}:"
_SPAN = ("number", "report", "process", "lo", "hi")


@dataclass(frozen=True)
class Span:
    """A span of time in which the CPU of a task is looked at; ``device`` is whose gap it was."""

    task: Task
    device: int
    window: Window

    @property
    def length(self) -> int:
        return self.window.end - self.window.start


@dataclass(frozen=True)
class HostWork:
    """The CPU's work in a span: ns by kind (their sum is its length), the longest call of each kind, two NVTX ranges.

    ``range_name`` is the shortest range around the middle of the span, ``next_range`` the first that starts behind it.
    """

    span: Span
    spent: Mapping[str, int]
    calls: Mapping[str, str]
    """The name of the call that took longest, by kind."""
    range_name: str | None
    next_range: str | None = None

    @property
    def kind(self) -> str:
        """The kind that took most of the time."""
        return max(KINDS, key=lambda kind: self.spent.get(kind, 0))


class _Call(NamedTuple):
    start: int
    end: int
    name: str


def kind_of(name: str) -> str:
    """The kind of a CUDA call, by its name."""
    if "Synchronize" in name:
        return SYNCHRONISING
    if "Launch" in name:
        return LAUNCHING
    if "Memcpy" in name or "Memset" in name or "cuMemset" in name:
        return COPYING
    if any(word in name for word in ("Malloc", "Free", "MemAlloc", "MemCreate", "MemMap", "HostAlloc", "HostRegister")):
        return ALLOCATING
    return OTHER_CALLS


def host_work(session: Session, spans: Sequence[Span]) -> list[HostWork]:
    """The CPU's work in each of some spans (dozens: each row is compared with all of its process)."""
    cuda = _overlapping(session, tables.api_calls, tables.api_calls.c.name, spans)
    mpi = _overlapping(session, tables.mpi_calls, tables.mpi_calls.c.name, spans)
    ranges = _overlapping(session, tables.nvtx_ranges, FOLDED_LABEL, spans)
    found = []
    for number, span in enumerate(spans):
        by_kind: dict[str, list[_Call]] = {}
        for call in cuda[number]:
            by_kind.setdefault(kind_of(call.name), []).append(call)
        # Before it had a table of its own, nsys wrote MPI as NVTX ranges.
        in_mpi = [*mpi[number], *(one for one in ranges[number] if one.name.startswith(_MPI_PREFIX))]
        if in_mpi:
            by_kind[IN_MPI] = in_mpi
        found.append(_work(span, by_kind, ranges[number]))
    return found


def _work(span: Span, by_kind: Mapping[str, Sequence[_Call]], ranges: Sequence[_Call]) -> HostWork:
    spent: dict[str, int] = {}
    longest: dict[str, str] = {}
    seen: Intervals = EMPTY
    lo, hi = span.window.start, span.window.end
    for kind in KINDS[:-1]:
        calls = by_kind.get(kind, ())
        if calls:
            covered = union([one.start for one in calls], [one.end for one in calls]).clip(lo, hi)
            spent[kind] = subtract(covered, seen).length
            longest[kind] = max(calls, key=lambda one: (min(one.end, hi) - max(one.start, lo), one.name)).name
            seen = merge(seen, covered)
    spent[NOTHING] = span.length - seen.length
    middle = (lo + hi) // 2
    around = [
        (end - start, name)
        for start, end, name in ranges
        if start <= middle < end and name and not name.startswith(_MPI_PREFIX)
    ]
    behind = (name for start, _, name in ranges if start >= middle and name and not name.startswith(_MPI_PREFIX))
    return HostWork(span, spent, longest, min(around)[1] if around else None, next(behind, None))


def _overlapping(
    session: Session, table: sa.Table, name: sa.ColumnElement[str], spans: Sequence[Span]
) -> list[list[_Call]]:
    """The rows of each span's task that overlap it: start, end (job time, ns) and name, by start."""
    found: list[list[_Call]] = [[] for _ in spans]
    if not spans or not session.count(table):
        return found
    columns, offset = table.c, table.c.clock_offset
    asked = sa.values(*(sa.column(key, sa.BigInteger) for key in _SPAN), name="asked").data(
        [
            (number, span.task.report, span.task.process, span.window.start, span.window.end)
            for number, span in enumerate(spans)
        ]
    )
    # Given as values the spans are known to be few: the rows go past them, in one scan.
    wanted = sa.select(asked).cte("wanted")
    own = wanted.c
    query = (
        sa.select(
            own.number,
            job_start(table).label("start"),
            sa.func.coalesce(columns.end + offset, own.hi).label("end"),
            sa.func.coalesce(name, "").label("name"),
        )
        .join_from(table, wanted, sa.and_(columns.report == own.report, columns.process == own.process))
        .where(
            columns.start < own.hi - offset,
            sa.or_(columns.end > own.lo - offset, columns.end.is_(None)),
        )
    )
    for number, start, end, label in sorted(session.rows(query)):
        found[number].append(_Call(start, end, label))
    return found
