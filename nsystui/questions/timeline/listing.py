"""The operations of some lanes as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nsystui.base.answer import Answer
from nsystui.base.selection import Window
from nsystui.questions.event_kinds import EventKind
from nsystui.questions.events import EventList
from nsystui.questions.timeline.lanes import Lane, Timeline
from nsystui.store import tables

_GPU_KINDS = (EventKind.KERNEL, EventKind.NCCL, EventKind.MEMORY, EventKind.GRAPH)


def lane_events(timeline: Timeline, lanes: Sequence[Lane], window: Window) -> Answer:
    """The events of the ranks, devices and streams of ``lanes`` that overlap ``window``, in order of start.

    A lane of a GPU stands for all of its streams; NVTX ranges are in it where one of the lanes is of NVTX, of every
    level and thread of the ranks.
    """
    gpu = [lane for lane in lanes if not lane.is_nvtx]
    streams = {lane.stream for lane in gpu}
    whole = timeline.selection.streams
    chosen = frozenset(stream for stream in streams if stream is not None)
    selection = replace(
        timeline.selection,
        window=window,
        tasks=frozenset(lane.task for lane in lanes),
        devices=frozenset(lane.device for lane in gpu if lane.device is not None)
        if gpu
        else timeline.selection.devices,
        streams=whole if None in streams or not streams else chosen,
    )
    kinds = [EventKind.NVTX] if len(gpu) < len(lanes) and timeline.session.count(tables.nvtx_ranges) else []
    if gpu:
        kinds = [*_GPU_KINDS, *kinds]
    return replace(EventList.build(timeline.session, selection, timeline.ranks, kinds), name="timeline")
