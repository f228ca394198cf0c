"""Idle GPUs whose launching thread waits for Python's GIL, or for a file that it or another thread reads.

The costs are sums over the host causes of all gaps, short ones too: see docs/numbers.md#gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import RANK, Column, Row, TableAnswer, Unit
from nsystui.base.selection import Task, Window
from nsystui.exports import canonical
from nsystui.exports.metadata import process_of
from nsystui.questions.algebra.intervals import EMPTY, Intervals, merge
from nsystui.questions.host.causes import GIL, READS, WAITING, Cause, IdleSpan, attribute
from nsystui.questions.host.gaps import CAUSE_COLUMNS, cause_cells
from nsystui.questions.host.segments import RECORD, Segments, gil_of, pairs
from nsystui.questions.triage.case import Case, number_of, spans, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.store import tables

_GIL, _READS = "gil-held", "blocking-reads"
_COLUMNS = (
    RANK,
    Column("time", header="Idle (ns)", label="idle", unit=Unit.DURATION),
    *CAUSE_COLUMNS,
)
_OTHER_PROCESS = Advice(
    "move what that thread does to another process, or into code that releases the GIL (NumPy, native code)",
    "of the threads of a process only the one that holds the GIL runs Python, and so launches",
)
_AHEAD = Advice(
    "read ahead on a thread that launches nothing, in larger pieces and from a local disk or a cache",
    "the GPU has nothing to do until the file is read",
)


def check(case: Case) -> Sequence[Finding | NotChecked]:
    if not case.devices:
        return [NotChecked(name, f"needs GPU work: {canonical.KERNELS.record}") for name in (_GIL, _READS)]
    return [*_gil_held(case), *_blocking_reads(case)]


@dataclass(frozen=True)
class _Blocked:
    """The time of each cause by rank, ns, the number of gaps with any, and the longest of these."""

    times: Mapping[tuple[int, Cause], int]
    gaps: int
    longest: Window | None

    @property
    def time(self) -> int:
        return sum(self.times.values())

    def most(self, words_of: Callable[[Cause], str]) -> tuple[str, float]:
        """The words with the most time, and their share of all of it, %."""
        found: dict[str, int] = {}
        for (_, cause), time in self.times.items():
            found[words_of(cause)] = found.get(words_of(cause), 0) + time
        words = max(sorted(found), key=lambda one: found[one])
        return words, 100 * found[words] / self.time


def _blocked(case: Case, during: Mapping[Task, Intervals], is_meant: Callable[[Cause], bool]) -> _Blocked:
    """The causes that are meant, in the gaps of the GPUs that overlap ``during`` of their process."""
    candidates: list[IdleSpan] = []
    for device in case.devices:
        task, number = device.device.task.task, device.device.device
        gaps, when = case.gaps(device).whole(), during.get(task, EMPTY)
        near = np.unique(pairs(gaps, Segments(when.starts, when.ends, when.starts)).span)
        edges = zip(gaps.starts[near].tolist(), gaps.ends[near].tolist(), strict=True)
        candidates += [IdleSpan(task, number, start, end) for start, end in edges]
    found = attribute(case.job, candidates)
    times: dict[tuple[int, Cause], int] = {}
    spent: list[tuple[int, IdleSpan]] = []
    for number, span in enumerate(candidates):
        own = {cause: time for cause, time in found.of_span(number).items() if is_meant(cause)}
        for cause, time in own.items():
            key = case.rank_of[span.task], cause
            times[key] = times.get(key, 0) + time
        spent += [(sum(own.values()), span)] if own else []
    longest = max(spent, key=lambda one: (one[0], -one[1].start), default=None)
    return _Blocked(times, len(spent), Window(longest[1].start, longest[1].end) if longest else None)


def _finding(
    case: Case, name: str, found: _Blocked, sentence: str, advice: Advice, measured: str, gist: str
) -> Finding:
    cost = case.mean([found.time])
    rows: list[Row] = [(rank, time, *cause_cells(cause)) for (rank, cause), time in found.times.items()]
    rows.sort(key=lambda row: (-int(str(row[1])), str(row)))
    return Finding(
        name, Severity.WARNING, sentence, advice, Door("gaps"), cost, case.percent(cost), measured,
        TableAnswer(name, _COLUMNS, rows, len(rows)), found.longest,
        tuple(sorted({rank for rank, _ in found.times})), gist=gist,
    )  # fmt: skip


def _gil_held(case: Case) -> Sequence[Finding | NotChecked]:
    gil = gil_of(case.job.session, case.chosen)
    if not gil:
        return [NotChecked(_GIL, f"needs the times of Python's GIL: {RECORD}")] if _has_python(case) else []
    during: dict[Task, Intervals] = {}
    for (report, thread), waited in gil.waited.items():
        task = Task(report, process_of(thread))
        during[task] = merge(during.get(task, EMPTY), waited)
    found = _blocked(case, during, lambda cause: cause.kind == GIL)
    cost = case.mean([found.time])
    if case.percent(cost) < case.thresholds.gil_percent:
        return []
    holder, share = found.most(lambda cause: cause.thread)
    held = f"{share:.0f} % of it thread {holder} holds it" if holder else "who holds it is not recorded"
    what, part = found.most(lambda cause: cause.what if cause.thread == holder else "")
    held += f", most of that in {what}" if holder and what and part > share / 2 else ""
    sentence = (
        f"GPUs are idle for {time_words(cost)} each while the thread that launches waits for Python's GIL "
        f"({number_of(found.gaps, 'gap')}); {held}"
    )
    measured = "idle time in which the launching thread waits for the GIL, in gaps of any length; mean over the GPUs"
    gist = f"{case.waiting(cost)} for Python's GIL" + (f" (held by {holder})" if holder else "")
    return [_finding(case, _GIL, found, sentence, _OTHER_PROCESS, measured, gist)]


def _has_python(case: Case) -> bool:
    """Whether a process of the job is Python's."""
    known = tables.processes.c
    tasks = {(one.task.report, one.task.process) for one in case.ranks}
    query = sa.select(known.report, known.process).where(sa.func.lower(known.name).contains("python"))
    return bool(case.job.session.count(tables.processes)) and not tasks.isdisjoint(case.job.session.rows(query))


def _blocking_reads(case: Case) -> Sequence[Finding | NotChecked]:
    session = case.job.session
    if not session.count(tables.os_calls):
        return [NotChecked(_READS, f"needs OS runtime calls: {canonical.OS_CALLS.record}")]
    is_read = sa.func.regexp_full_match(tables.os_calls.c.name, READS.pattern, type_=sa.Boolean)
    calls = spans(case, tables.os_calls, [is_read])
    tells_files = session.count(tables.file_accesses) > 0

    def is_meant(cause: Cause) -> bool:
        # Where files are recorded, a call without one is of something else.
        return cause.reads and (bool(cause.file) or not tells_files)

    found = _blocked(case, {task: own for (task, _), own in calls.merged.items()}, is_meant)
    cost = case.mean([found.time])
    if case.percent(cost) < case.thresholds.read_percent:
        return []
    call, share = found.most(lambda cause: cause.what)
    caller, of_caller = found.most(lambda cause: cause.caller)
    by_others = sum(time for (_, cause), time in found.times.items() if cause.kind == WAITING)
    words = [f"{share:.0f} % of it in {call}"]
    words += [f"{of_caller:.0f} % of it called by {caller}"] if caller else []
    words += [f"{100 * by_others / found.time:.0f} % of it by threads that it waits for"] if by_others else []
    files = found.most(lambda cause: cause.file)[0]
    words += [f"most of it of {files}"] if files else []
    advice = _AHEAD
    if not tells_files:
        words.append("which files is not recorded, and `read` may be of a pipe or a socket")
        advice = Advice(
            f"see who calls it (`nsystui gaps`), and {canonical.FILES.record}; then {_AHEAD.text}", _AHEAD.reason
        )
    sentence = (
        f"GPUs are idle for {time_words(cost)} each while the thread that launches, or one that it waits for, reads "
        f"({number_of(found.gaps, 'gap')}; {'; '.join(words)})"
    )
    measured = (
        "idle time in which the launching thread is in a call that reads or opens a file, or waits while another "
        "thread of its process reads one, in gaps of any length; mean over the GPUs"
    )
    gist = f"{case.waiting(cost)} for reads ({call})"
    return [_finding(case, _READS, found, sentence, advice, measured, gist)]
