"""The columns of lanes as a table: one row for each lane and column of time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from nsystui.base.answer import Answer, Row, TableAnswer
from nsystui.base.columns import DEVICE, DURATION, RANK, START, STREAM, Column, Unit
from nsystui.exports.identifiers import tid_of
from nsystui.questions.timeline.lane_work import CATEGORIES, UNSEEN
from nsystui.questions.timeline.picture import LanePicture

_SHARES = ("compute", "nccl", "memory", "graph", "nvtx")

TIMELINE_COLUMNS = (
    RANK,
    DEVICE,
    STREAM,
    Column("tid", header="Tid", label="tid", unit=Unit.NUMBER, importance=1),
    Column("level", header="NVTX Level", label="level", unit=Unit.NUMBER, importance=1),
    START,
    DURATION.with_importance(1),
    Column("category", header="Category", label="category"),
    Column("busy", header="Busy (%)", label="busy", unit=Unit.PERCENT, decimals=3),
    *(Column(name, header=f"{name} (%)", label=name, unit=Unit.PERCENT, decimals=3, importance=2) for name in _SHARES),
    Column("event", header="Event", label="event"),
)


def timeline_table(pictures: Sequence[LanePicture], notes: tuple[str, ...] = ()) -> Answer:
    """What dominates each column of each lane, and the shares of each category in percent.

    ``event`` is the single event that covers the column whole. Missing where the report was not recording.
    """
    rows = [row for picture in pictures for row in _rows(picture)]
    return TableAnswer("timeline", TIMELINE_COLUMNS, rows, notes=notes)


def _rows(picture: LanePicture) -> Iterator[Row]:
    lane, found = picture.lane, picture.columns
    count = len(found.category)
    lo, length = found.window.start, found.window.end - found.window.start
    thread = None if lane.thread is None else tid_of(lane.thread)
    place = (lane.rank, lane.device, lane.stream, thread, lane.level if lane.is_nvtx else None)
    for number, (category, busy) in enumerate(zip(found.category.tolist(), found.busy.tolist(), strict=True)):
        first, last = lo + number * length // count, lo + (number + 1) * length // count
        seen = category != UNSEEN
        shares = [
            100.0 * float(found.shares[name][number]) if seen and name in found.shares else None for name in _SHARES
        ]
        event = next((span.name for span in picture.spans if span.start <= first and span.end >= last), None)
        yield (
            *place,
            first,
            last - first,
            CATEGORIES[category] if seen else None,
            None if math.isnan(busy) else 100.0 * busy,
            *shares,
            event,
        )
