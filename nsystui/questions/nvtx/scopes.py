"""What stands above the paths: ranks and threads, where there is more than one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from nsystui.questions.nvtx.loading import Ints
from nsystui.questions.nvtx.node import NodeKind
from nsystui.questions.nvtx.ranges import Lane, NvtxRanges


class By(Enum):
    """What is kept apart: every thread, every rank with its threads merged, or nothing."""

    THREAD = "rank-thread"
    RANK = "rank"
    ALL = "all"


@dataclass(frozen=True)
class Group:
    """A rank or thread that stands above paths. ``parent`` is the place of the rank above a thread, or -1."""

    kind: NodeKind
    name: str
    parent: int
    lane: Lane


@dataclass(frozen=True, eq=False)
class Grouping:
    """``groups``, ranks before threads; ``of_range``, shape ``(n,)``: the place of each range's group, -1 for none.

    ``one_rank``, ``one_thread``: whether the ranges of a path are always of one rank, of one thread.
    """

    groups: tuple[Group, ...]
    of_range: Ints
    one_rank: bool
    one_thread: bool


def group_ranges(ranges: NvtxRanges, by: By) -> Grouping:
    """The groups of ``ranges``: ranks where they are of several processes, threads where a rank has several."""
    processes = _lanes_by_process(ranges)
    groups: list[Group] = []
    of_lane = np.full(len(ranges.lanes), -1, np.int64)
    if by is not By.ALL and len(processes) > 1:
        for lanes in processes:
            of_lane[lanes] = len(groups)
            first = ranges.lanes[lanes[0]]
            groups.append(Group(NodeKind.RANK, _rank_name(ranges, first), -1, first))
    if by is By.THREAD:
        for number in (number for lanes in processes if len(lanes) > 1 for number in lanes):
            lane = ranges.lanes[number]
            name = f"thread {lane.tid} {lane.name}".rstrip()
            groups.append(Group(NodeKind.THREAD, name, int(of_lane[number]), lane))
            of_lane[number] = len(groups) - 1
    one_rank = by is not By.ALL or len(processes) <= 1
    one_thread = by is By.THREAD or (one_rank and all(len(lanes) == 1 for lanes in processes))
    return Grouping(tuple(groups), of_lane[ranges.lane], one_rank, one_thread)


def _lanes_by_process(ranges: NvtxRanges) -> list[list[int]]:
    """The numbers of the lanes that have ranges, a list for each process, by rank; those without a rank are last."""
    found: dict[tuple[int, int], list[int]] = {}
    for number in np.unique(ranges.lane).tolist():
        lane = ranges.lanes[number]
        found.setdefault((lane.report, lane.process), []).append(number)

    def place(lanes: list[int]) -> tuple[bool, int]:
        rank = ranges.lanes[lanes[0]].rank
        return (rank is None, rank or 0)

    return sorted(found.values(), key=place)


def _rank_name(ranges: NvtxRanges, lane: Lane) -> str:
    if lane.rank is not None:
        return f"rank {lane.rank}"
    report = next(report for report in ranges.session.reports if report.index == lane.report)
    return f"process {lane.pid} of {report.name}"
