"""Long idle gaps of the GPUs, between their first and last operation, and what the CPU did in them.

See docs/numbers.md#expert-rules.

The work of the profiler itself is no part of a gap: that is the finding of `profiler_overhead`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa

from nsystui.base.answer import Row, TableAnswer
from nsystui.base.columns import DEVICE, RANK, START, Column, Unit
from nsystui.base.selection import Task, Window
from nsystui.exports import canonical
from nsystui.questions.algebra.intervals import EMPTY, Intervals, merge, subtract, union
from nsystui.questions.conditions import job_start
from nsystui.questions.mpi import DOMAIN
from nsystui.questions.nvtx.loading import FOLDED_LABEL
from nsystui.questions.triage.case import Case, at_least, number_of, rank_words, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
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
    """The CPU's work in a span: ns by kind (their sum is its length), the longest call of the main kind, a range."""

    span: Span
    spent: Mapping[str, int]
    calls: Mapping[str, str]
    """The name of the call that took longest, by kind."""
    range_name: str | None

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
    return HostWork(span, spent, longest, min(around)[1] if around else None)


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


_LOOKED_AT = 40
"""The number of longest gaps in which the CPU's work is examined."""
_ADVICE = {
    SYNCHRONISING: Advice(
        "synchronise less often, or with events on the stream instead of the CPU",
        "after a synchronisation the GPU has nothing to do until the CPU has launched again",
    ),
    COPYING: Advice(
        "copy asynchronously from pinned memory, on a stream of its own",
        "a copy that blocks the CPU keeps it from launching the next work",
    ),
    ALLOCATING: Advice(
        "allocate before the loop, or from a pool (cudaMallocAsync, a caching allocator)",
        "cudaMalloc and cudaFree block the CPU, and cudaFree waits for the whole device",
    ),
    LAUNCHING: Advice(
        "capture the launches in a CUDA graph, or fuse kernels", "the CPU launches more slowly than the GPU works"
    ),
    OTHER_CALLS: Advice("look at the call on the Events screen", "the CPU was in it while the GPU had nothing to do"),
    IN_MPI: Advice(
        "overlap MPI with GPU work, or look for the rank that comes late", "the CPU waited in MPI and launched nothing"
    ),
    NOTHING: Advice(
        "look at what the program does on the CPU there: data loading, logging, checkpoints, Python",
        "it made no CUDA call, so nothing could be launched; with `-t osrt` and CPU sampling the export would say more",
    ),
}
_COLUMNS = (
    RANK,
    DEVICE.with_importance(2),
    START,
    Column("duration", header="Duration (ns)", label="idle", unit=Unit.DURATION),
    Column("kind", header="CPU", label="the CPU was"),
    Column("share", header="CPU (%)", label="for", unit=Unit.PERCENT, decimals=1, importance=2),
    Column("call", header="Call", label="longest call", importance=1),
    Column("range", header="NVTX Range", label="NVTX range", importance=1),
)


def check(case: Case) -> Sequence[Finding | NotChecked]:
    if not case.devices:
        return [NotChecked("idle-gaps", f"needs GPU work: {canonical.KERNELS.record}")]
    least = case.thresholds.gap_ms * 1e6
    spans: list[Span] = []
    for device in case.devices:
        gaps = at_least(case.gaps(device), least)
        place = device.device
        for start, end in zip(gaps.starts.tolist(), gaps.ends.tolist(), strict=True):
            spans.append(Span(place.task.task, place.device, Window(start, end)))
    cost = case.mean(span.length for span in spans)
    if case.percent(cost) < case.thresholds.gap_percent:
        return []
    spans.sort(key=lambda span: (-span.length, span.window.start, span.task, span.device))
    works = host_work(case.job.session, spans[:_LOOKED_AT])
    return [_finding(case, spans, works, cost)]


def _finding(case: Case, spans: Sequence[Span], works: Sequence[HostWork], cost: int) -> Finding:
    spent = {kind: sum(work.spent.get(kind, 0) for work in works) for kind in KINDS}
    kind = max(KINDS, key=lambda one: spent[one])
    looked = sum(span.length for span in spans[: len(works)])
    longest = spans[0]
    if not case.job.session.count(tables.api_calls):
        doing, advice = "", Advice("record CUDA API calls (-t cuda)", "they would say what the CPU did in the gaps")
    else:
        which = "them" if len(works) == len(spans) else f"the {len(works)} longest"
        doing = f"; for {100 * spent[kind] / looked:.0f} % of {which} the CPU was {kind}{_where(works, kind)}"
        advice = _ADVICE[kind]
    ranks = tuple(sorted({case.rank_of[span.task] for span in spans}))
    sentence = (
        f"GPUs are idle for {time_words(cost)} each in gaps of {case.thresholds.gap_ms:g} ms or more "
        f"({number_of(len(spans), 'gap')} on {number_of(len(case.devices), 'GPU')}; the longest, on "
        f"{rank_words([case.rank_of[longest.task]])}, takes {time_words(longest.length)}){doing}"
    )
    return Finding(
        "idle-gaps",
        Severity.WARNING,
        sentence,
        advice,
        Door("timeline", window=longest.window),
        cost,
        case.percent(cost),
        "time without any operation between the first one (of the first step) and the last one "
        "of each GPU, and without the profiler's own work, long gaps only; mean over the GPUs",
        _table(case, works, len(spans)),
        longest.window,
        ranks,
    )


def _where(works: Sequence[HostWork], kind: str) -> str:
    """The call and the range that hold most of the time of a kind."""
    calls: dict[str, int] = {}
    ranges: dict[str, int] = {}
    for work in works:
        time = work.spent.get(kind, 0)
        if kind in work.calls:
            calls[work.calls[kind]] = calls.get(work.calls[kind], 0) + time
        if work.range_name:
            ranges[work.range_name] = ranges.get(work.range_name, 0) + time
    call = f", mostly {max(sorted(calls), key=lambda one: calls[one])}" if calls else ""
    return call + (f", mostly in NVTX range `{max(sorted(ranges), key=lambda one: ranges[one])}`" if ranges else "")


def _table(case: Case, works: Sequence[HostWork], gaps: int) -> TableAnswer:
    rows: list[Row] = []
    for work in works:
        span, kind = work.span, work.kind
        share = 100 * work.spent[kind] / span.length
        place = (case.rank_of[span.task], span.device, span.window.start, span.length)
        rows.append((*place, kind, share, work.calls.get(kind), work.range_name))
    return TableAnswer("idle-gaps", _COLUMNS, rows, gaps)
