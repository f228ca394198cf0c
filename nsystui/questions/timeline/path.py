"""A step's critical path as a lane of consecutive pieces with their events, if any."""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from nsystui.base.answer import Row, Unit
from nsystui.base.errors import UsageError
from nsystui.base.selection import Task, Window
from nsystui.base.units import format_value
from nsystui.questions.algebra.intervals import union
from nsystui.questions.blocking import path as paths
from nsystui.questions.blocking.dependencies import NCCL, NONE
from nsystui.questions.events.kinds import EventKind
from nsystui.questions.events.listing import EventKey, event_row
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries.time_window import recorded, report_at
from nsystui.questions.ranks.steps import step_times
from nsystui.questions.timeline.events import longest_range_in
from nsystui.questions.timeline.lanes import LaneIdentity, LaneWork, ThreadEvents, Timeline

_CATEGORIES = {**paths.CATEGORIES, paths.CPU: "api"}


@dataclass(frozen=True, eq=False)
class PathEvents(ThreadEvents):
    """The pieces of a path, which are no events: their ``kind`` is ``None``."""

    pieces: tuple[paths.Named, ...] = ()

    def category_of(self, index: int) -> str:
        return _CATEGORIES.get(self.pieces[index].piece.kind, "idle")


def path_lane_at(job: OpenJob, lane: LaneIdentity, time: int, base: Window) -> tuple[LaneIdentity, str]:
    """Return the path lane of a rank's step at a time, or without steps of ``base``, and a sentence. Blocks.

    Raises UsageError if no step contains the time, or if it has too many operations.
    """
    steps = step_times(job.steps()).get(lane.task)
    window, name = base, ""
    if steps is not None and steps.on_gpu:
        step_indices = np.flatnonzero((steps.start <= time) & (time < steps.start + steps.duration))
        if not len(step_indices):
            raise UsageError(f"rank {lane.rank} has no step at this time: move the cursor into a step")
        window, name = steps.window(int(step_indices[0])), f"step {steps.numbers[step_indices[0]]}"
    path_lane = LaneIdentity(lane.task, lane.rank, path=window, name=name)
    return path_lane, f"critical path of {name or 'the selected time'}: {path_words(path_events(job, path_lane))}"


def path_words(events: PathEvents) -> str:
    """Return the largest parts of a path: ``CPU 52.8 %, compute 40.3 %, NCCL 5.8 %``."""
    times = Counter[str]()
    for named in events.pieces:
        times[paths.KINDS[named.piece.kind]] += named.piece.end - named.piece.start
    total = times.total()
    return ", ".join(f"{kind} {format_value(Unit.PERCENT, 100 * time / total)}" for kind, time in times.most_common(3))


def path_events(job: OpenJob, lane: LaneIdentity) -> PathEvents:
    """Return the pieces of a lane's path, cached in the job. Blocks."""
    task, window = lane.task, lane.path
    assert window is not None
    return job.once(("path lane", task, window), lambda: _events(job, task, window))


def _events(job: OpenJob, task: Task, window: Window) -> PathEvents:
    pieces = tuple(paths.named_pieces(job, task, window))
    start, end = (np.array([named.piece[edge] for named in pieces], np.int64) for edge in (0, 1))
    category = np.array([_CATEGORIES.get(named.piece.kind, "") for named in pieces], np.str_)
    parts = [(name, category == name) for name in dict.fromkeys(_CATEGORIES.values())]
    busy = tuple((name, union(start[is_part], end[is_part])) for name, is_part in parts if is_part.any())
    work = LaneWork(busy, tuple(intervals for _, intervals in busy), recorded(report_at(job.session, task.report)))
    names = {name: number for number, name in enumerate(dict.fromkeys(map(_words, pieces)))}
    name = np.array([names[_words(named)] for named in pieces], np.int32)
    return PathEvents(None, tuple(names), start, end, name, np.arange(len(pieces)), work, True, pieces)


def _words(named: paths.Named) -> str:
    return named.name or paths.KINDS[named.piece.kind]


def row_of_piece(timeline: Timeline, lane: LaneIdentity, piece: paths.PathPiece) -> Row | None:
    """Find the operation of a piece, or the call with the most time in it: a row of the event list."""
    window = Window(piece.start, piece.end)
    if piece.table != NONE:
        kind = EventKind.NCCL if (piece.kind, piece.table) == (NCCL, 0) else paths.EVENTS[piece.table]
        return event_row(timeline.session, EventKey(piece.task.report, kind, piece.row, piece.begun), timeline.ranks)
    calls = replace(lane, thread=piece.thread, calls=EventKind.API, path=None)
    has_lane = piece.task == lane.task and calls in timeline.lanes(frozenset({lane.task}))[0]
    return longest_range_in(timeline, calls, window)[0] if has_lane else None
