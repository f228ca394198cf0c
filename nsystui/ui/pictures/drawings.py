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
    """Return the lanes of a chart over ``window`` for a file; with ``numbers``, each column is a step."""
    stacks = [lane.stack or ((lane.category or "metric", lane.bins),) for lane in lanes]
    categories = list(dict.fromkeys(name for stack in stacks for name, _ in stack if name != "idle"))
    drawn = []
    for lane, stack in zip(lanes, stacks, strict=True):
        values_by_category = {name: tuple(map(float, values)) for name, values in stack}
        example = next(iter(values_by_category.values()), ())
        zeros = tuple(0.0 if value == value else value for value in example)
        values = tuple(values_by_category.get(name, zeros) for name in categories)
        drawn.append(DrawnLane(lane.label.strip(), values, lane.value.strip()))
    parts = tuple(Part(_WORDS.get(name, name), name) for name in categories)
    return DrawnLanes(title, window.start, window.end, parts, tuple(drawn), numbers=tuple(numbers))
