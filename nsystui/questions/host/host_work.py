"""The work of the CPU in spans of time, by kind: what the launching thread did, and in which NVTX range.

The causes are those of `host.causes`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial

import sqlalchemy as sa

from nsystui.base.answer import Row
from nsystui.base.selection import Selection, Task, Window
from nsystui.questions.host import segments
from nsystui.questions.host.attribution import Attribution, attribute, over_ranks
from nsystui.questions.host.causes import KINDS, Cause, folded, shown_times
from nsystui.questions.host.idle_spans import IdleSpan
from nsystui.questions.job.job import OpenJob
from nsystui.questions.nvtx.loading import FOLDED_LABEL
from nsystui.questions.queries import mpi
from nsystui.questions.queries.conditions import job_end, job_start
from nsystui.questions.queries.derived import of_all_reports
from nsystui.questions.queries.time_window import report_at
from nsystui.store import tables
from nsystui.store.session import Session

_NO_RANGES = (f"{mpi.DOMAIN}:", f"{segments.DOMAIN}:")
"""What the names of ranges begin with that are causes themselves."""
_SPAN = ("number", "report", "process", "thread", "lo", "hi")
_UNKNOWN = -1


@dataclass(frozen=True)
class CpuSpan:
    """A span of time in which the CPU of a task is looked at; ``device`` is whose gap it was."""

    task: Task
    device: int
    window: Window

    @property
    def length(self) -> int:
        """Its length, ns."""
        return self.window.end - self.window.start


@dataclass(frozen=True)
class HostWork:
    """The CPU's work in a span: ns by cause (their sum is its length), and two NVTX ranges of the launching thread.

    ``range_name`` is the shortest range around the middle of the span, ``next_range`` the first that starts behind it.
    """

    span: CpuSpan
    causes: Mapping[Cause, int]
    range_name: str | None
    next_range: str | None = None

    @property
    def spent(self) -> dict[str, int]:
        """The time by kind, ns."""
        return {kind: sum(time for cause, time in self.causes.items() if cause.kind == kind) for kind in KINDS}

    @property
    def calls(self) -> dict[str, str]:
        """What took most of the time of each kind: a call, a function."""
        longest = sorted(self.causes.items(), key=lambda one: (one[1], one[0].words))
        return {cause.kind: cause.words for cause, _ in longest if cause.what}

    @property
    def kind(self) -> str:
        """The kind that took most of the time."""
        spent = self.spent
        return max(KINDS, key=lambda kind: spent[kind])


_Range = tuple[int, int, str]
"""Start, end and name."""


def host_work(job: OpenJob, spans: Sequence[CpuSpan], with_calls: bool = False) -> list[HostWork]:
    """Find the CPU's work in each of some spans (dozens: each range is compared with all of its process).

    Of a large job it is kept for the next question about the same spans.
    """
    starts = [one.window.start - report_at(job.session, one.task.report).clock_offset for one in spans]
    asked = [(one.task, one.device, start, one.length) for one, start in zip(spans, starts, strict=True)]
    question = f"host work {with_calls} {asked}"
    compute = partial(_rows, job, spans, with_calls)
    rows = of_all_reports(job.session, Selection(), tables.api_calls, question, compute)
    return [
        HostWork(span, {Cause(*words): time for time, *words in json.loads(causes)}, *ranges)
        for span, (causes, *ranges) in zip(spans, rows, strict=True)
    ]


def _rows(job: OpenJob, spans: Sequence[CpuSpan], with_calls: bool) -> list[Row]:
    """The causes in each span with their times, as JSON, and the two ranges of `HostWork`."""
    idle = [IdleSpan(one.task, one.device, one.window.start, one.window.end) for one in spans]
    attributed = attribute(job, idle, with_calls=with_calls)
    merged = over_ranks(attributed)
    causes = [merged.of_span(number) for number in range(len(spans))]
    whole: Counter[Cause] = Counter()
    for of_span in causes:
        whole.update(of_span)
    shown = folded(whole)
    rows: list[Row] = []
    for span, of_span, ranges in zip(spans, causes, _overlapping(job.session, attributed), strict=True):
        middle = (span.window.start + span.window.end) // 2
        named = [one for one in ranges if one[2] and not one[2].startswith(_NO_RANGES)]
        around = [(end - start, name) for start, end, name in named if start <= middle < end]
        behind = (name for start, _, name in named if start >= middle)
        times = [[time, *astuple(cause)] for cause, time in shown_times(of_span, shown).items()]
        rows.append((json.dumps(times), min(around)[1] if around else None, next(behind, None)))
    return rows


def _overlapping(session: Session, idle: Attribution) -> list[list[_Range]]:
    """The NVTX ranges of the launching thread that overlap each span, by start; of its task where none is known."""
    table = tables.nvtx_ranges
    found: list[list[_Range]] = [[] for _ in idle.spans]
    if not idle.spans or not session.count(table):
        return found
    columns, offset = table.c, table.c.clock_offset
    threads = [idle.launchers[which] for which in idle.launcher.tolist()]
    asked = sa.values(*(sa.column(key, sa.BigInteger) for key in _SPAN), name="asked").data(
        [
            (number, one.task.report, one.task.process, thread[1] if thread else _UNKNOWN, one.start, one.end)
            for number, (one, thread) in enumerate(zip(idle.spans, threads, strict=True))
        ]
    )
    # Given as values the spans are known to be few: the rows go past them, in one scan.
    wanted = sa.select(asked).cte("wanted")
    own = wanted.c
    query = (
        sa.select(
            own.number,
            job_start(table).label("start"),
            job_end(table).label("end"),
            sa.func.coalesce(FOLDED_LABEL, "").label("name"),
        )
        .join_from(table, wanted, sa.and_(columns.report == own.report, columns.process == own.process))
        .where(
            sa.or_(columns.thread == own.thread, own.thread == _UNKNOWN),
            columns.start < own.hi - offset,
            columns.end > own.lo - offset,
            segments.may_overlap(table, [(one.task, one.start, one.end) for one in idle.spans]),
        )
    )
    for number, start, end, label in sorted(session.rows(query)):
        found[number].append((start, end, label))
    return found
