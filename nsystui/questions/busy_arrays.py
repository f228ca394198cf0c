"""The busy intervals of a report's devices or streams as flat arrays, on its own clock, to be kept beside its pack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nsystui.questions.device_time import BusyParts
from nsystui.questions.interval_blocks import IntervalBlocks, Steps

if TYPE_CHECKING:
    from nsystui.store.results import Arrays

Place = tuple[int, ...]
"""A device of a report, (process, CUDA ordinal), or a stream of it: what `DEVICE_KEYS` or `STREAM_KEYS` name."""

DEVICE_KEYS = ("process", "device")
STREAM_KEYS = (*DEVICE_KEYS, "stream")

_PARTS = tuple(item.name for item in fields(BusyParts))


def to_arrays(found: Mapping[Place, BusyParts], keys: Sequence[str] = DEVICE_KEYS) -> Arrays:
    """``of_arrays`` is the inverse: the places, and for each part of each device its blocks, their steps in a row."""
    arrays: dict[str, NDArray[Any]] = {
        key: np.array([place[number] for place in found], np.int64) for number, key in enumerate(keys)
    }
    for number, parts in enumerate(found.values()):
        for part in _PARTS:
            put_blocks(arrays, f"{number}.{part}", getattr(parts, part))
    return arrays


def of_arrays(arrays: Arrays, clock_offset: int, keys: Sequence[str] = DEVICE_KEYS) -> dict[Place, BusyParts]:
    """The intervals of each place in job time: ``clock_offset`` (ns) is added to the report's own."""
    places = zip(*(arrays[key].tolist() for key in keys), strict=True)
    return {
        place: BusyParts(**{part: blocks_at(arrays, f"{number}.{part}").shifted(clock_offset) for part in _PARTS})
        for number, place in enumerate(places)
    }


def put_blocks(arrays: dict[str, NDArray[Any]], key: str, blocks: IntervalBlocks) -> None:
    """Adds a set of intervals to ``arrays``, under names that begin with ``key``; ``blocks_at`` is the inverse."""
    arrays[f"{key}.firsts"], arrays[f"{key}.covered"] = blocks.firsts, blocks.covered
    for name in Steps._fields:
        parts = [getattr(steps, name) for steps in blocks.steps]
        arrays[f"{key}.{name}"] = np.concatenate([np.empty(0, np.uint16), *parts])
        arrays[f"{key}.{name}.sizes"] = np.array([len(part) for part in parts], np.int64)


def blocks_at(arrays: Arrays, key: str) -> IntervalBlocks:
    """The set of intervals that ``put_blocks`` added."""
    parts = [_split(arrays[f"{key}.{name}"], arrays[f"{key}.{name}.sizes"]) for name in Steps._fields]
    return IntervalBlocks(
        arrays[f"{key}.firsts"], arrays[f"{key}.covered"], tuple(map(Steps._make, zip(*parts, strict=True)))
    )


def _split(joined: NDArray[Any], sizes: NDArray[Any]) -> list[NDArray[Any]]:
    return np.split(joined, np.cumsum(sizes)[:-1]) if len(sizes) else []
