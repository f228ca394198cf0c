"""What is drawn of some lanes over a window: columns, names of what is wide enough, and where a name occurs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nsystui.base.selection import NameFilter, Window
from nsystui.questions.timeline.gpu_events import Span, long_events, matching_columns
from nsystui.questions.timeline.lane_work import Columns, columns
from nsystui.questions.timeline.lanes import Lane, Timeline
from nsystui.questions.timeline.nvtx_lane import matching_ranges, nvtx_spans
from nsystui.store import tables

NAMED_COLUMNS = 5
"""An event of so many columns is drawn with its name."""

# Above this many operations in sight, about, no single one is looked for: the columns say enough, and at once.
_MOST_OPERATIONS = 150_000


@dataclass(frozen=True, eq=False)
class LanePicture:
    """One lane over a window. ``spans`` are its widest events by start; ``marked`` the columns with a name looked for.

    ``busy`` is the share of the window in which anything ran, 0 to 1; ``None`` of no time, or outside the recording.
    """

    lane: Lane
    columns: Columns
    busy: float | None
    spans: tuple[Span, ...] = ()
    marked: frozenset[int] = frozenset()


def lane_pictures(
    timeline: Timeline, lanes: Sequence[Lane], window: Window, count: int, wanted: NameFilter | None = None
) -> list[LanePicture]:
    """The pictures of ``lanes`` in ``count`` columns, with the events of at least ``NAMED_COLUMNS`` and the matches."""
    spans, marked = _names(timeline, lanes, window, count), _matches(timeline, lanes, window, count, wanted)
    return [
        LanePicture(one.lane, one.columns, one.busy, tuple(spans[one.lane]), frozenset(marked.get(one.lane, ())))
        for one in plain_pictures(timeline, lanes, window, count)
    ]


def plain_pictures(timeline: Timeline, lanes: Sequence[Lane], window: Window, count: int) -> list[LanePicture]:
    """The same without names and matches: no query, milliseconds a lane at any length. NVTX ranges have their names."""
    found = []
    for lane in lanes:
        work = timeline.work(lane)
        length = window.end - window.start
        seen = window.start < work.recorded.end and window.end > work.recorded.start
        busy = min(work.busy_within(window) / length, 1.0) if length > 0 and seen else None
        spans = tuple(nvtx_spans(timeline, lane, window, count)) if lane.is_nvtx else ()
        found.append(LanePicture(lane, columns(work, window, count), busy, spans))
    return found


def has_names(timeline: Timeline, lanes: Sequence[Lane], window: Window) -> bool:
    """Whether the window is short enough to look for single operations of GPU lanes."""
    return len(lanes) > 0 and operations(timeline, lanes, window) <= _MOST_OPERATIONS


def operations(timeline: Timeline, lanes: Sequence[Lane], window: Window) -> int:
    """About how many operations of the lanes' reports lie in ``window``."""
    total = 0.0
    for report in timeline.session.reports:
        lane = next((lane for lane in lanes if lane.task.report == report.index and not lane.is_nvtx), None)
        if lane is not None:
            seen = timeline.work(lane).recorded
            rows = sum(report.count(table) for table in (tables.kernels, tables.memory_ops, tables.graph_launches))
            first = seen.start if report.packed.first_event is None else report.packed.first_event + report.clock_offset
            last = seen.end if report.packed.last_event is None else report.packed.last_event + report.clock_offset
            inside = max(0, min(window.end, last) - max(window.start, first))
            total += rows * inside / max(last - first, 1)
    return int(total)


def _names(timeline: Timeline, lanes: Sequence[Lane], window: Window, count: int) -> dict[Lane, list[Span]]:
    gpu = [lane for lane in lanes if not lane.is_nvtx]
    found: dict[Lane, list[Span]] = {lane: [] for lane in gpu}
    if has_names(timeline, gpu, window):
        least = -(-(window.end - window.start) * (NAMED_COLUMNS - 1) // count)
        found = long_events(timeline, gpu, window, least)
    for lane in lanes:
        if lane.is_nvtx:
            found[lane] = nvtx_spans(timeline, lane, window, count)
    return found


def _matches(
    timeline: Timeline, lanes: Sequence[Lane], window: Window, count: int, wanted: NameFilter | None
) -> dict[Lane, set[int]]:
    if wanted is None:
        return {}
    found = matching_columns(timeline, [lane for lane in lanes if not lane.is_nvtx], window, count, wanted)
    for lane in lanes:
        if lane.is_nvtx:
            found[lane] = matching_ranges(timeline, lane, window, count, wanted)
    return found
