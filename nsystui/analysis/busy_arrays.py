"""The busy intervals of a report's devices as flat arrays, on the report's own clock, to be kept beside its pack.

The edges of an interval set ascend, so it is its first edge and the steps from there: these fit in 32 bits wherever no
gap is longer than four seconds, half of what the edges take.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING

import numpy as np

from nsystui.analysis.device_time import BusyParts
from nsystui.analysis.intervals import EMPTY, Intervals, Times

if TYPE_CHECKING:
    from nsystui.store.kept import Arrays

Place = tuple[int, int]
"""A device of a report: (process, CUDA ordinal)."""

_PARTS = len(fields(BusyParts))


def to_arrays(found: Mapping[Place, BusyParts]) -> Arrays:
    """``of_arrays`` is the inverse. Shapes for m devices: ``(m,)``, ``(m * parts,)`` and one for all steps."""
    sets = [part for parts in found.values() for part in parts.all()]
    edges = [np.column_stack((one.starts, one.ends)).ravel() for one in sets]
    return {
        "process": np.array([process for process, _ in found], np.int64),
        "device": np.array([device for _, device in found], np.int64),
        "sizes": np.array([len(one) for one in sets], np.int64),
        "firsts": np.array([int(one[0]) if len(one) else 0 for one in edges], np.int64),
        "steps": np.concatenate([np.empty(0, np.int64), *(np.diff(one) for one in edges)]),
    }


def of_arrays(arrays: Arrays, clock_offset: int) -> dict[Place, BusyParts]:
    """The intervals of each device in job time: ``clock_offset`` (ns) is added to the report's own."""
    sets, place = [], 0
    for size, first in zip(arrays["sizes"].tolist(), arrays["firsts"].tolist(), strict=True):
        steps = arrays["steps"][place : place + max(2 * size - 1, 0)]
        place += len(steps)
        sets.append(_intervals(first + clock_offset, steps) if size else EMPTY)
    places = zip(arrays["process"].tolist(), arrays["device"].tolist(), strict=True)
    return {key: BusyParts(*sets[number * _PARTS : (number + 1) * _PARTS]) for number, key in enumerate(places)}


def _intervals(first: int, steps: Times) -> Intervals:
    edges = np.empty(len(steps) + 1, np.int64)
    edges[0] = first
    np.cumsum(steps, out=edges[1:])
    edges[1:] += first
    return Intervals(np.ascontiguousarray(edges[::2]), np.ascontiguousarray(edges[1::2]))
