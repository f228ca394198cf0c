"""The lanes inside one report: when each of its streams worked, and the NVTX ranges of each thread.

Push/pop ranges have a lane for each nesting level; the start/end ranges of a thread, which need not nest, share one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.questions.algebra.interval_blocks import blocks_of
from nsystui.questions.algebra.intervals import Times, union
from nsystui.questions.derived import of_each_report
from nsystui.questions.device_time import STREAM_KEYS, busy_parts, of_arrays, to_arrays
from nsystui.questions.nvtx.ranges import ranges_of
from nsystui.questions.time_window import recorded
from nsystui.questions.timeline.lane_work import LaneWork
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.results import json_of
from nsystui.store.session import Session

if TYPE_CHECKING:
    from nsystui.store.results import Arrays

_WORK = (tables.kernels, tables.memory_ops, tables.graph_launches)

LEVELS = 4
"""So many of the outermost levels of push/pop ranges have lanes: what is deeper is a matter of the NVTX tree."""
_LANES = LEVELS + 1

Stream = tuple[int, int, int]
"""(process, CUDA ordinal of the device, stream)."""


@dataclass(frozen=True, eq=False)
class NvtxLevel:
    """The push/pop ranges of a thread at one nesting level, or its start/end ranges.

    There are n of them by start, in job time (ns); arrays have the shape ``(n,)``. ``name``: index into the
    names of the report; ``row``: the row in ``nvtx_ranges``. ``work`` is their union.
    """

    start: Times
    end: Times
    name: NDArray[np.int32]
    row: NDArray[np.int64]
    work: LaneWork
    follow: bool
    """Whether no range starts before the one before it ends (start/end ranges may)."""


@dataclass(frozen=True, eq=False)
class ReportLanes:
    """What a report has on its lanes. ``threads`` has the levels of each thread (globalTid), outermost first, and
    last, as level ``None``, its start/end ranges."""

    streams: Mapping[Stream, LaneWork]
    threads: Mapping[int, Mapping[int | None, NvtxLevel]]
    names: tuple[str, ...]
    thread_names: Mapping[int, str]

    @property
    def size(self) -> int:
        """How many intervals are held: about eight bytes each, of ranges three times that."""
        held = sum(len(blocks) for work in self.streams.values() for blocks in work.apart)
        return held + 3 * sum(len(level.start) for levels in self.threads.values() for level in levels.values())

    @classmethod
    def load(cls, session: Session, report: Report) -> ReportLanes:
        """Reads the lanes of ``report``; what is expensive of it is kept beside the pack."""
        names, threads = _threads(session, report)
        return cls(_streams(session, report), threads, names, _thread_names(session, report))


def _streams(session: Session, report: Report) -> dict[Stream, LaneWork]:
    def compute(part: Session, reports: list[Report]) -> dict[int, Arrays]:
        return {one.index: _stream_arrays(part, one) for one in reports}

    kept = of_each_report(session, [report], "streams", compute)[report.index]
    found = of_arrays(kept, report.clock_offset, STREAM_KEYS)
    seen = recorded(report)
    return {(place[0], place[1], place[2]): LaneWork.of_device(parts, seen) for place, parts in found.items()}


def _stream_arrays(session: Session, report: Report) -> Arrays:
    used: set[tuple[int, ...]] = set()
    for table in _WORK:
        if report.count(table):
            columns = [table.c[key] for key in STREAM_KEYS]
            has_all = [column.is_not(None) for column in columns]
            query = sa.select(*columns).where(table.c.report == report.index, *has_all).distinct()
            used |= {tuple(row) for row in session.rows(query)}
    places = sorted(used)
    parts = busy_parts(session, STREAM_KEYS, places)
    return to_arrays({place[1:]: found for place, found in zip(places, parts, strict=True)}, STREAM_KEYS)


def _threads(session: Session, report: Report) -> tuple[tuple[str, ...], dict[int, Mapping[int | None, NvtxLevel]]]:
    if not report.count(tables.nvtx_ranges):
        return (), {}
    ranges = ranges_of(session, report)
    found: dict[int, Mapping[int | None, NvtxLevel]] = {}
    is_outer = np.flatnonzero(ranges["level"] < LEVELS)
    # One sort by thread and level; ranges lie by start already, and a stable sort leaves them so.
    level_of = np.where(ranges["is_push_pop"], ranges["level"], LEVELS)[is_outer]
    place = ranges["lane"][is_outer].astype(np.int64) * _LANES + level_of
    order = is_outer[np.argsort(place, kind="stable")]
    edges = np.searchsorted(np.sort(place, kind="stable"), np.arange(len(ranges["threads"]) * _LANES + 1))
    for number, thread in enumerate(ranges["threads"].tolist()):
        levels: dict[int | None, NvtxLevel] = {}
        for level in range(_LANES):
            rows = order[edges[number * _LANES + level] : edges[number * _LANES + level + 1]]
            if len(rows):
                levels[level if level < LEVELS else None] = _level(ranges, rows, report)
        found[thread] = levels
    return tuple(json_of(ranges["names"])), found


def _level(ranges: Arrays, rows: NDArray[np.int64], report: Report) -> NvtxLevel:
    start = ranges["start"][rows] + report.clock_offset
    end = start + ranges["length"][rows]
    blocks = blocks_of(union(start, end))
    work = LaneWork((("nvtx", blocks),), (blocks,), recorded(report))
    follow = bool((start[1:] >= end[:-1]).all())
    return NvtxLevel(start, end, ranges["name"][rows].astype(np.int32), ranges["row"][rows], work, follow)


def _thread_names(session: Session, report: Report) -> dict[int, str]:
    known = tables.threads.c
    query: sa.Select[Any] = sa.select(known.thread, known.name).where(
        known.report == report.index, known.name.is_not(None)
    )
    return dict(session.rows(query)) if report.count(tables.threads) else {}
