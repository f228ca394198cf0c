"""``nvtx_kern_sum``: kernels launched inside NVTX ranges, by range and kernel.

See docs/numbers.md#nsys-stats.

A kernel counts for all ranges of the launching thread that fully contain its API call, so overlapping ranges need no
tree: the calls inside a range are slices of the sorted calls. Kernels called outside of all ranges have rows without a
range; kernels with an unknown call also lack process and thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import PID, TID, Column, TableAnswer, Unit
from nsystui.base.selection import Selection
from nsystui.base.types import Flags, Ints
from nsystui.exports.metadata import pid_of, tid_of
from nsystui.questions.algebra.groups import Groups
from nsystui.questions.algebra.projection import Inside, are_outside, calls_inside
from nsystui.questions.kernels.summary import name_of
from nsystui.questions.nvtx.loading import Ranges, SmallInts, Texts, calls_as_nsys, joined, matching, ranges_as_nsys
from nsystui.questions.queries.conditions import duration, is_launched_by, where
from nsystui.questions.queries.data_notes import missing_notes
from nsystui.questions.queries.statistics import SPREAD
from nsystui.questions.stats.cuda_sums import Coded
from nsystui.questions.stats.nvtx_ranges import style
from nsystui.questions.stats.report import ReportOptions
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.session import Session

if TYPE_CHECKING:
    import pandas as pd


def distinct(group: Ints, member: Ints) -> Ints:
    """Return the number of distinct members of the groups 0, 1, …. Shapes ``(n,)``; no negative numbers."""
    width = int(member.max(initial=0)) + 1
    pairs = np.sort(group * width + member)
    is_new = np.diff(pairs, prepend=-1) != 0
    counts: Ints = np.bincount(pairs[is_new] // width)
    return counts


_COLUMNS = (
    Column("range", header="NVTX Range", label="range"),
    Column("style", header="Style", label="style", importance=4),
    PID.with_importance(4),
    TID.with_importance(3),
    Column("range_count", header="NVTX Inst", label="ranges", unit=Unit.COUNT, importance=2),
    Column("kernel_count", header="Kern Inst", label="kernels", unit=Unit.COUNT, importance=1),
    Column("total", header="Total Time (ns)", label="total", unit=Unit.DURATION),
    *SPREAD,
    Column("kernel", header="Kernel Name", label="kernel"),
)
_NONE = -1
"""The number of a missing range, process or thread; it sorts first."""
_PAIR_BYTES = 100
"""Memory for a pair of range and kernel while it is counted, bytes."""


@dataclass(frozen=True, eq=False)
class _KernelCalls:
    """m kernels with their launching API calls, in job time; shapes ``(m,)``, times in ns.

    A call with several kernels, and a kernel with several rows of its call, have a row per pair. A kernel whose call is
    unknown has a row with ``is_known`` false and meaningless values of the call.
    """

    start: Ints
    end: Ints
    thread: Ints
    is_known: Flags
    duration: Ints
    row: Ints
    name: SmallInts

    def only(self, rows: Flags) -> _KernelCalls:
        return _KernelCalls(**{item.name: getattr(self, item.name)[rows] for item in fields(self)})


def kernels_by_range(session: Session, selection: Selection, options: ReportOptions) -> TableAnswer:
    """Answer ``nvtx_kern_sum``: a row per range name, style, thread and kernel name, in this order, longest first.

    The statistics are over kernel durations. The name filter applies to ``domain:text`` of the range, which is empty
    for kernels outside of all ranges. Threads of different reports stay apart even with equal numbers.
    """
    import pandas as pd

    range_texts, kernel_texts = Texts(), Texts()
    parts = [
        _report_rows(session.part([report.index]), report, selection, options, range_texts, kernel_texts)
        for report in session.reports
    ]
    rows = pd.concat(parts, ignore_index=True)
    # lexsort sorts by the last key first; "PushPop" precedes "StartEnd".
    keys = (
        kernel_texts.ranks()[rows["kernel"]],
        -rows["total"].to_numpy(),
        rows["report"],
        rows["tid"],
        rows["pid"],
        ~rows["is_push_pop"].to_numpy(),
        np.append(range_texts.ranks(), _NONE)[rows["range"]],
    )
    frame = rows.iloc[np.lexsort(keys)].reset_index(drop=True)
    is_inside = frame["range"] != _NONE
    styles = pd.Series([style(flag) for flag in frame["is_push_pop"].tolist()], dtype="object")
    frame["style"] = styles.where(is_inside, None)
    for key, texts in (("range", [*range_texts.texts, None]), ("kernel", kernel_texts.texts)):
        frame[key] = pd.Series([texts[number] for number in frame[key].tolist()], dtype="object")
    for key in ("pid", "tid"):
        frame[key] = frame[key].astype("Int64").mask(frame[key] == _NONE)
    notes = missing_notes(session, tables.nvtx_ranges, tables.api_calls, tables.kernels)
    total = len(frame) if selection.is_everything else None
    return TableAnswer.of_arrays("nvtx-kern-sum", _COLUMNS, frame, total, notes)


def _report_rows(
    session: Session, report: Report, selection: Selection, options: ReportOptions, texts: Texts, kernel_texts: Texts
) -> pd.DataFrame:
    import pandas as pd

    ranges = ranges_as_nsys(session, report, selection, texts)
    all_calls = _read_kernel_calls(session, report, selection, options, kernel_texts)
    calls = all_calls.only(all_calls.is_known)
    inside = list(calls_inside(ranges.start, ranges.end, ranges.thread, calls.start, calls.end, calls.thread))
    is_selected = matching(texts, selection)[ranges.name]
    portions = _portions(ranges, inside, is_selected, session.limits.rows_at_once(_PAIR_BYTES))
    parts = [_counted(ranges, calls, inside, members) for members in portions]
    # As in nsys: an export without the NVTX table has no rows, an export with only marks in it has all kernels.
    if report.has(tables.nvtx_ranges) and (selection.name is None or selection.name.matches("")):
        launched_outside = calls.only(are_outside(inside, len(calls.row)))
        parts.append(_counted_outside(joined([launched_outside, all_calls.only(~all_calls.is_known)])))
    frame = pd.concat(parts, ignore_index=True)
    frame["report"] = report.index
    return frame


def _read_kernel_calls(
    session: Session, report: Report, selection: Selection, options: ReportOptions, texts: Texts
) -> _KernelCalls:
    kernels = tables.kernels
    conditions = [kernels.c.report == report.index, kernels.c.end.is_not(None), *where(kernels, selection)]
    calls = calls_as_nsys(selection, ("report", "process", "thread", "correlation_id", "start", "end"), report)
    is_known = sa.and_(is_launched_by(kernels, calls), calls.c.start.is_not(None), calls.c.end.is_not(None))
    names = Coded(name_of(kernels, options.names), *conditions)
    query = (
        sa.select(*(calls.c[key] for key in ("start", "end", "thread")), duration(kernels), kernels.c.row)
        .select_from(kernels.outerjoin(calls, is_known))
        .where(*conditions)
    )
    arrays = session.arrays(names.added_to(query, "name"))
    has_call = ~np.ma.getmaskarray(arrays["start"])
    # The arrays hold arbitrary values for unknown calls, whose threads must be equal.
    start, end, thread, length, row, name = (np.ma.filled(values, 0) for values in arrays.values())
    numbers = texts.coded(np.array(names.texts(session), object))
    offset = report.clock_offset
    return _KernelCalls(start + offset, end + offset, thread, has_call, length, row, numbers[name])


def _portions(ranges: Ranges, inside: Sequence[Inside], is_selected: Flags, max_pairs: int) -> list[Ints]:
    """Return the selected ranges with kernels in portions of about ``max_pairs`` pairs; a name is never split."""
    pairs = np.zeros(len(ranges), np.int64)
    for part in inside:
        pairs += np.maximum(part.until - part.since, 0)
    pairs[~is_selected] = 0
    pairs_by_name = np.bincount(ranges.name, pairs)
    portion = ((np.cumsum(pairs_by_name) - pairs_by_name) // max_pairs).astype(np.int64)[ranges.name]
    members = np.flatnonzero(pairs)
    members = members[np.argsort(portion[members], kind="stable")]
    return np.split(members, np.flatnonzero(np.diff(portion[members])) + 1)


def _counted(ranges: Ranges, calls: _KernelCalls, inside: Sequence[Inside], members: Ints) -> pd.DataFrame:
    """Pair each range of ``members`` (indices) with the kernels in it; return a row per group."""
    of_range, of_call = _pairs(inside, members)
    threads, lane = np.unique(ranges.thread, return_inverse=True)
    # One number for (name, style, thread), decoded below.
    outer = (ranges.name.astype(np.int64) * 2 + ranges.is_push_pop) * len(threads) + lane
    frame, outer, group = _grouped(outer[of_range], calls, of_call)
    frame["range"], frame["is_push_pop"] = outer // len(threads) // 2, outer // len(threads) % 2 == 1
    thread = threads[outer % len(threads)]
    frame["pid"], frame["tid"] = pid_of(thread), tid_of(thread)
    frame["range_count"] = distinct(group, of_range)
    return frame


def _counted_outside(calls: _KernelCalls) -> pd.DataFrame:
    """Return a row per thread and kernel name, without a range."""
    threads, lane = np.unique(calls.thread, return_inverse=True)
    frame, outer, _ = _grouped(lane * 2 + calls.is_known, calls, np.arange(len(lane)))
    thread, is_known = threads[outer // 2], outer % 2 == 1
    frame["range"], frame["is_push_pop"], frame["range_count"] = _NONE, False, 0
    frame["pid"], frame["tid"] = (np.where(is_known, ids_of(thread), _NONE) for ids_of in (pid_of, tid_of))
    return frame


def _grouped(outer: Ints, calls: _KernelCalls, of_call: Ints) -> tuple[pd.DataFrame, Ints, Ints]:
    """Group the kernels of ``of_call`` (indices of calls) by ``outer`` and name. Shapes ``(p,)``.

    Return a row per group, sorted; the number of ``outer`` for each row; and the row of each of the p kernels.
    """
    import pandas as pd

    kernels = int(calls.name.max(initial=0)) + 1
    keys, group = np.unique(outer * kernels + calls.name[of_call], return_inverse=True)
    frame = pd.DataFrame(Groups.of(group, calls.duration[of_call]).measures())
    frame["kernel"] = keys % kernels
    frame["kernel_count"] = distinct(group, np.unique(calls.row, return_inverse=True)[1][of_call])
    return frame, keys // kernels, group


def _pairs(inside: Sequence[Inside], members: Ints) -> tuple[Ints, Ints]:
    """Return indices of a range and a call for each call inside a range of ``members``."""
    of_range, of_call = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for part in inside:
        first = part.since[members]
        lengths = np.maximum(part.until[members] - first, 0)
        skipped = np.cumsum(lengths) - lengths
        positions = np.arange(int(lengths.sum())) + np.repeat(first - skipped, lengths)
        of_range.append(np.repeat(members, lengths))
        of_call.append(part.calls[positions])
    return np.concatenate(of_range), np.concatenate(of_call)
