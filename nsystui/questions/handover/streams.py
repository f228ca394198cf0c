"""The streams of a trace, and the lanes of those whose work overlaps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import sqlalchemy as sa

from nsystui.base.selection import Selection, Task
from nsystui.questions.event_kinds import EventKind
from nsystui.questions.events import ByTable
from nsystui.questions.handover.slices import slices
from nsystui.store.session import Session

Crossing = dict[tuple[int, int, int | None, int | None, int | None, int], int]
"""The lane of every operation that is not on the first one, by report, process, device, stream, correlation id and
start: few, for seldom does work of one stream overlap."""
_Place = tuple[int, int, int, int]
_UNKNOWN = -1  # a process, device or stream that the export does not tell


@dataclass(frozen=True)
class Stream:
    """A stream of a process on which something ran; ``lanes`` says how much of it at once, at most."""

    task: Task
    device: int | None
    stream: int | None
    lanes: int = 1

    def label(self, lane: int = 0) -> str:
        """``device 0 stream 7``, further lanes with their number."""
        return f"device {_word(self.device)} stream {_word(self.stream)}" + (f" ({lane + 1})" if lane else "")


def _word(number: int | None) -> str:
    return "?" if number is None else str(number)


class Lanes:
    """Which lane of its stream the next slice goes to: the first in which the one before has ended."""

    def __init__(self) -> None:
        self._ends: dict[object, list[int]] = {}

    def lane(self, place: object, start: int, end: int) -> int:
        """The lane of a slice; slices come by their start. Never more than `Stream.lanes`."""
        ends = self._ends.get(place)
        if ends is None:
            ends = self._ends[place] = []
        end = max(end, start + 1)
        for number, last in enumerate(ends):
            if last <= start:
                ends[number] = end
                return number
        ends.append(end)
        return len(ends) - 1


def streams_of(
    session: Session, selection: Selection, kinds: Sequence[EventKind], parts: Sequence[ByTable]
) -> tuple[list[Stream], Crossing]:
    """Every stream on which work of ``kinds`` ran, with as many lanes as it needs, and what is on further lanes."""
    if not kinds:
        return [], {}
    last: dict[_Place, int] = {}
    crowded: set[_Place] = set()
    for part in parts:
        for place, start, end in _by_place(session, selection, kinds, part):
            before = np.maximum.accumulate(np.concatenate(([last.get(place, start[0])], end)))
            if (start < before[:-1]).any():
                crowded.add(place)
            last[place] = int(before[-1])
    lanes, crossing = _lanes(session, selection, kinds, parts, crowded) if crowded else ({}, {})
    return [
        Stream(Task(place[0], place[1]), _known(place[2]), _known(place[3]), lanes.get(place, 1))
        for place in sorted(last)
    ], crossing


def _known(number: int) -> int | None:
    return None if number == _UNKNOWN else number


def _rows(
    session: Session, selection: Selection, kinds: Sequence[EventKind], part: ByTable
) -> tuple[list[sa.ColumnElement[Any]], Any]:
    """Report, process, device and stream of the work of a band, and its rows."""
    fields = ("report", "process", "device", "stream", "correlation_id", "start", "end", "kind_order", "row")
    rows = slices(session, selection, kinds, fields, extra=part).subquery()
    return [sa.func.coalesce(rows.c[name], _UNKNOWN).label(name) for name in fields[:4]], rows.c


def _by_place(
    session: Session, selection: Selection, kinds: Sequence[EventKind], part: ByTable
) -> Iterator[tuple[_Place, np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Starts and ends by start, of each place; a slice takes a nanosecond at least."""
    place, columns = _rows(session, selection, kinds, part)
    end = sa.func.greatest(columns.end, columns.start + 1).label("end")
    query = sa.select(*place, columns.start.label("start"), end).order_by(*place, columns.start)
    found = session.arrays(query)
    names = ("report", "process", "device", "stream")
    if not len(found["start"]):
        return
    changes = np.zeros(len(found["start"]) - 1, np.bool_)
    for name in names:
        changes |= np.diff(found[name]) != 0
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(found["start"])]
    for first, after in pairwise(edges):
        report, process, device, stream = (int(found[name][first]) for name in names)
        yield (report, process, device, stream), found["start"][first:after], found["end"][first:after]


def _lanes(
    session: Session, selection: Selection, kinds: Sequence[EventKind], parts: Sequence[ByTable], crowded: set[_Place]
) -> tuple[dict[_Place, int], Crossing]:
    """How many lanes each crowded place needs, and what is not on the first."""
    lanes, numbers, crossing = Lanes(), dict.fromkeys(crowded, 1), Crossing()
    for part in parts:
        place, columns = _rows(session, selection, kinds, part)
        is_crowded = [
            sa.and_(*(column == number for column, number in zip(place, one, strict=True))) for one in sorted(crowded)
        ]
        query = sa.select(*place, columns.correlation_id, columns.start, columns.end).where(sa.or_(*is_crowded))
        order = (columns.start, columns.end.desc(), columns.kind_order, columns.report, columns.row)
        for batch in session.batches(query.order_by(*order), 20_000):
            for report, process, device, stream, correlation, start, end in batch:
                where = (report, process, device, stream)
                lane = lanes.lane(where, start, end)
                if lane:
                    numbers[where] = max(numbers[where], lane + 1)
                    crossing[report, process, _known(device), _known(stream), correlation, start] = lane
    return numbers, crossing
