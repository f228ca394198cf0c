"""Lanes of a chart as a drawing for a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nsystui.base.drawing import DrawnLane, DrawnLanes, Part
from nsystui.base.selection import Window

if TYPE_CHECKING:
    from nsystui.ui.widgets.strip_chart import Lane as Strip

_WORDS = {"nccl": "NCCL", "api": "API", "os": "OS, MPI", "cpu": "CPU"}


def strips(title: str, lanes: Sequence[Strip], window: Window, numbers: Sequence[int] = ()) -> DrawnLanes:
    """The lanes of a chart over ``window``; with ``numbers`` their columns are steps of these numbers."""
    stacks = [lane.stack or ((lane.category or "metric", lane.bins),) for lane in lanes]
    categories = list(dict.fromkeys(name for stack in stacks for name, _ in stack if name != "idle"))
    drawn = []
    for lane, stack in zip(lanes, stacks, strict=True):
        own = {name: tuple(map(float, values)) for name, values in stack}
        some = next(iter(own.values()), ())
        nothing = tuple(0.0 if value == value else value for value in some)
        values = tuple(own.get(name, nothing) for name in categories)
        drawn.append(DrawnLane(lane.label.strip(), values, lane.value.strip()))
    parts = tuple(Part(_WORDS.get(name, name), name) for name in categories)
    return DrawnLanes(title, window.start, window.end, parts, tuple(drawn), numbers=tuple(numbers))
