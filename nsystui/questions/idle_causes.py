"""The causes of idle GPU time: what the CPU of each process did in start-up, in the long gaps and in the tail.

See docs/numbers.md#budget. The time of each of the longest spans is split by cause (`host.causes`), all with the NVTX
range of that thread around the middle of the span, or where there is none the next one; the profiler's own work is a
cause of its own. Time of which nothing is recorded is located by that range, or else by the call beside it; without
either, and in the spans that are not among the longest, it is unexplained. A number in the name of a range is ``*``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from nsystui.base.answer import TableAnswer
from nsystui.base.columns import Unit
from nsystui.base.selection import Selection, Window
from nsystui.base.text import shorten
from nsystui.base.units import format_value
from nsystui.questions.algebra.intervals import EMPTY, subtract
from nsystui.questions.gpu.profiler_overhead import profiler_overhead
from nsystui.questions.host.causes import NOTHING
from nsystui.questions.host.causes import Cause as HostCause
from nsystui.questions.host_work import HostWork, Span, host_work
from nsystui.questions.job import Job
from nsystui.questions.time_budget import Budget, DeviceBudget, budget_table, device_budgets, in_sum

UNEXPLAINED = "unexplained"
PROFILER = "the profiler"

_NUMBER = re.compile(r"\b\d+\b")

_LONGEST_NAME, _LONGEST_CAUSE = 30, 50

_LOOKED_AT = 100
"""The number of longest spans of each part in which the CPU's work is examined."""


@dataclass(frozen=True)
class Cause:
    """A cause of idle time, and its time summed over the GPUs, ns."""

    name: str
    time: int


@dataclass(frozen=True)
class IdleCauses:
    """The causes of parts of a budget, the largest first, `UNEXPLAINED` last; they add up to their part exactly."""

    startup: tuple[Cause, ...] = ()
    long_gaps: tuple[Cause, ...] = ()
    short_gaps: tuple[Cause, ...] = ()
    """Only triage knows them."""
    tail: tuple[Cause, ...] = ()


def caused_budgets(
    job: Job, selection: Selection, step_name: str | None = None
) -> tuple[list[DeviceBudget], IdleCauses]:
    """The budget of each GPU, and the causes of the idle time of all."""

    def make() -> tuple[list[DeviceBudget], IdleCauses]:
        budgets = device_budgets(job, selection, step_name)
        return budgets, idle_causes(job, selection, budgets)

    return job.once(("idle causes", selection.with_name(None), step_name), make)


def idle_causes(job: Job, selection: Selection, budgets: Sequence[DeviceBudget]) -> IdleCauses:
    """The causes of the start-up, the long gaps and the tail of some GPUs."""
    own = profiler_overhead(job.session, selection.with_name(None))
    whole = in_sum(budgets)
    parts = (
        ([one.startup for one in budgets], whole.startup),
        ([one.long_gaps for one in budgets], whole.long_gaps),
        ([one.after for one in budgets], whole.tail),
    )
    found: list[dict[str, int]] = [{} for _ in parts]
    longest: list[list[Span]] = []
    for times, (idle, _) in zip(found, parts, strict=True):
        spans: list[Span] = []
        for one, intervals in zip(budgets, idle, strict=True):
            place = one.device
            free = subtract(intervals, own.get(place.task.task, EMPTY))
            _add(times, PROFILER, intervals.length - free.length)
            chosen = np.argsort(free.starts - free.ends, kind="stable")[:_LOOKED_AT]
            windows = map(Window, free.starts[chosen].tolist(), free.ends[chosen].tolist())
            spans += [Span(place.task.task, place.device, window) for window in windows]
        spans.sort(key=lambda span: (-span.length, span.window.start, span.task, span.device))
        longest.append(spans[:_LOOKED_AT])
    # All at once: what is recorded of the threads is read for each question.
    works = iter(host_work(job, [span for spans in longest for span in spans], with_calls=True))
    causes = []
    for times, spans, (_, time) in zip(found, longest, parts, strict=True):
        for work in islice(works, len(spans)):
            for cause, spent in work.causes.items():
                _add(times, _name(work, cause), spent)
        known = sorted(((name, spent) for name, spent in times.items() if name != UNEXPLAINED), key=_largest_first)
        rest = time - sum(spent for _, spent in known)
        causes.append(tuple(Cause(name, spent) for name, spent in [*known, *([(UNEXPLAINED, rest)] if rest else [])]))
    startup, long_gaps, tail = causes
    return IdleCauses(startup, long_gaps, tail=tail)


def _add(found: dict[str, int], name: str, time: int) -> None:
    if time:
        found[name] = found.get(name, 0) + time


def _name(work: HostWork, cause: HostCause) -> str:
    word, name = ("in", work.range_name) if work.range_name else ("before", work.next_range)
    where = f"`{shorten(_NUMBER.sub('*', name), _LONGEST_NAME)}`" if name else ""
    if cause.kind == NOTHING:
        place = f"{word} range {where}" if where else cause.what
        return f"nothing recorded, {place}" if place else UNEXPLAINED
    words = replace(cause, what=shorten(cause.what, _LONGEST_CAUSE)).words
    is_told = work.range_name and cause.what and work.range_name.endswith(cause.what)
    # The range of a library around the call of the same name tells no more.
    return f"{words} {word} {where}" if where and not is_told else words


def _largest_first(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]


def budget_with_causes(job: Job, selection: Selection, step_name: str | None = None) -> TableAnswer:
    """One row for each GPU, and a note on the causes of the idle time of all."""
    budgets, found = caused_budgets(job, selection, step_name)
    whole = in_sum(budgets).time
    parts = (("start-up", found.startup), ("long gaps", found.long_gaps), ("tail", found.tail))
    worded = [(part, cause_words(causes, whole)) for part, causes in parts]
    notes = [f"{part} by cause: {words}" for part, words in worded if words]
    return replace(budget_table(budgets), notes=(*notes, *job.busy(selection.with_name(None)).notes))


def cause_words(causes: Sequence[Cause], whole: int, most: int = 5) -> str:
    """``cudaMalloc in `data loading` 6.1 %, unexplained 1.6 %``, of ``whole`` ns; of more than ``most`` the largest.

    What rounds to 0.0 % is left out; nothing where that is all.
    """
    named = [cause for cause in causes if cause.name != UNEXPLAINED]
    most = min(most, sum(_is_seen(cause, whole) for cause in named))
    others = sum(cause.time for cause in named[most:])
    shown = [*named[:most], Cause("other causes", others), *causes[len(named) :]]
    return ", ".join(f"{one.name} {100 * one.time / whole:.1f} %" for one in shown if _is_seen(one, whole))


def idle_words(budget: Budget, causes: IdleCauses | None, most: int, least: float = 0) -> list[str]:
    """``start-up 18.2 % (cudaMalloc 6.1 %, …)``, for each part of the idle time, with so many causes of each.

    Parts of less than ``least`` percent are left out.
    """
    causes = causes or IdleCauses()
    parts = (
        ("start-up", budget.startup, causes.startup),
        ("gaps", budget.long_gaps, causes.long_gaps),
        ("gaps under 1 ms", budget.short_gaps, causes.short_gaps),
        ("tail", budget.tail, causes.tail),
    )
    found = []
    for name, time, why in parts:
        if 100 * time < least * budget.time:
            continue
        reasons = cause_words(why, budget.time, most) if time and most else ""
        share = format_value(Unit.PERCENT, 100 * time / budget.time)
        found.append(f"{name} {share}{f' ({reasons})' if reasons else ''}")
    if budget.unrecorded and 100 * budget.unrecorded >= least * budget.time:
        found.append(f"not recorded {format_value(Unit.PERCENT, 100 * budget.unrecorded / budget.time)}")
    return found


def _is_seen(cause: Cause, whole: int) -> bool:
    return 2000 * cause.time >= whole > 0
