"""The CPU's work in spans of time: the launching thread's causes (`host.causes`) and NVTX ranges."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import sqlalchemy as sa

from nsystui.base.answer import Row
from nsystui.base.selection import Selection
from nsystui.questions.host import segments
from nsystui.questions.host.attribution import attribute
from nsystui.questions.host.causes import KINDS, Cause, folded, shown_times
from nsystui.questions.host.idle_spans import Attribution, IdleSpan, over_ranks
from nsystui.questions.host.segments import NO_THREAD
from nsystui.questions.job.job import OpenJob
from nsystui.questions.nvtx.loading import FOLDED_LABEL
from nsystui.questions.queries import mpi
from nsystui.questions.queries.conditions import given, job_end, job_start
from nsystui.questions.queries.derived import of_all_reports
from nsystui.questions.queries.time_window import report_at
from nsystui.store import tables
from nsystui.store.session import Session

_CAUSE_PREFIXES = (f"{mpi.DOMAIN}:", f"{segments.DOMAIN}:")
"""Prefixes of the names of ranges that are causes themselves."""
_SPAN_KEYS = ("number", "report", "process", "thread", "lo", "hi")


@dataclass(frozen=True)
class HostWork:
    """The CPU's work in a span: ns by cause (their sum is its length), and two NVTX ranges of the launching thread.

    ``range_name``: the shortest around the span's middle; ``next_range``: the first to start after it.
    """

    span: IdleSpan
    causes: Mapping[Cause, int]
    range_name: str | None
    next_range: str | None = None

    @property
    def spent(self) -> dict[str, int]:
        """The time by kind, ns."""
        return {kind: sum(time for cause, time in self.causes.items() if cause.kind == kind) for kind in KINDS}

    @property
    def calls(self) -> dict[str, str]:
        """The longest call or function of each kind."""
        longest = sorted(self.causes.items(), key=lambda item: (item[1], item[0].words))
        return {cause.kind: cause.words for cause, _ in longest if cause.what}

    @property
    def kind(self) -> str:
        """The kind with the most time."""
        spent = self.spent
        return max(KINDS, key=lambda kind: spent[kind])


_Range = tuple[int, int, str]
"""Start, end and name."""


def host_work(
    job: OpenJob, spans: Sequence[IdleSpan], with_calls: bool = False, idle: Attribution | None = None
) -> list[HostWork]:
    """Find the CPU's work in some spans (at most thousands: each is compared with all ranges of its process).

    For a large job, the result is cached. ``idle``: the causes in the spans, if known.
    """
    offsets = [report_at(job.session, span.task.report).clock_offset for span in spans]
    keys = [(*span[:2], span.start - offset, span.length) for span, offset in zip(spans, offsets, strict=True)]
    compute = partial(_rows, job, spans, with_calls, idle)
    rows = of_all_reports(job.session, Selection(), tables.api_calls, f"host work {with_calls} {keys}", compute)
    return [
        HostWork(span, {Cause(*words): time for time, *words in json.loads(causes)}, *ranges)
        for span, (causes, *ranges) in zip(spans, rows, strict=True)
    ]


def _rows(job: OpenJob, spans: Sequence[IdleSpan], with_calls: bool, idle: Attribution | None) -> list[Row]:
    attribution = idle or attribute(job, spans, with_calls=with_calls)
    merged = over_ranks(attribution)
    causes = [merged.of_span(index) for index in range(len(spans))]
    totals: Counter[Cause] = Counter()
    for span_causes in causes:
        totals.update(span_causes)
    shown_causes = folded(totals)
    rows: list[Row] = []
    for span, span_causes, ranges in zip(spans, causes, _overlapping(job.session, attribution), strict=True):
        middle = (span.start + span.end) // 2
        named = [item for item in ranges if item[2] and not item[2].startswith(_CAUSE_PREFIXES)]
        enclosing = [(end - start, name) for start, end, name in named if start <= middle < end]
        following = (name for start, _, name in named if start >= middle)
        times = [[time, *vars(cause).values()] for cause, time in shown_times(span_causes, shown_causes).items()]
        rows.append((json.dumps(times), min(enclosing)[1] if enclosing else None, next(following, None)))
    return rows


def _overlapping(session: Session, idle: Attribution) -> list[list[_Range]]:
    """Return the launching thread's NVTX ranges that overlap each span, by start; none if it is unknown."""
    table = tables.nvtx_ranges
    ranges: list[list[_Range]] = [[] for _ in idle.spans]
    if not idle.spans or not session.count(table):
        return ranges
    threads = [idle.launchers[launcher] for launcher in idle.launcher.tolist()]
    tasks = [idle.task(index) for index in range(len(threads))]
    asked = (
        (index, task.report, task.process, thread[1] if thread else NO_THREAD, gap.start, gap.end)
        for index, (gap, task, thread) in enumerate(zip(idle.spans, tasks, threads, strict=True))
    )
    span = given(dict(zip(_SPAN_KEYS, zip(*asked, strict=True), strict=True))).cte("wanted").c
    keys = [table.c[key] for key in ("report", "process", "thread")]
    name = sa.func.coalesce(FOLDED_LABEL, "").label("name")
    times = job_start(table).label("start"), job_end(table).label("end")
    is_near = segments.near(table, [(task, gap.start, gap.end) for gap, task in zip(idle.spans, tasks, strict=True)])
    # Else DuckDB compares each span with all ranges.
    ranges_near = sa.select(*keys, *times, name).where(is_near).cte("near").prefix_with("MATERIALIZED").c
    is_of_thread = (ranges_near[key.name] == span[key.name] for key in keys)
    query = sa.select(span.number, ranges_near.start, ranges_near.end, ranges_near.name)
    query = query.where(*is_of_thread, ranges_near.start < span.hi, ranges_near.end > span.lo)
    for index, start, end, label in sorted(session.rows(query)):
        ranges[index].append((start, end, label))
    return ranges
