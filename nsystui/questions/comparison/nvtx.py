"""NVTX ranges of two sides by name: their time on the CPU, and what they did on the GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nsystui.base.columns import Column, Unit
from nsystui.questions.algebra.statistics import frame_groups
from nsystui.questions.comparison.pairs import Compared, Extra, Key, Measured, compared
from nsystui.questions.comparison.side import Basis, Side, both
from nsystui.questions.nvtx.paths import FEWEST_VARIANTS, template

if TYPE_CHECKING:
    from nsystui.questions.nvtx.ranges import NvtxRanges

_RANGE = (Column("name", header="Range", label="range"),)
_GPU = Extra("gpu", "GPU Projected", "GPU", Unit.DURATION, None, 3, is_sum=True, difference="GPU B − A")


def nvtx(a: Side, b: Side, fold_numbers: bool = True) -> Compared:
    """NVTX ranges by name: durations on the CPU, and in sum the spans of GPU time projected from them.

    Names are without PyTorch's suffix. With ``fold_numbers`` those of both sides that differ in their numbers only are
    one, if they are three or more, as in the tree of the NVTX screen: two runs hardly count their steps alike. Ranges
    and times are those of that screen: each counts with all that it holds, so that rows overlap.
    """
    ranges = [_ranges(side) for side in (a, b)]
    numbered = _numbered({*ranges[0].names, *ranges[1].names}) if fold_numbers else frozenset()
    basis = Basis(a.nvtx_ranks, b.nvtx_ranks)
    has_gpu = basis == Basis(a.projected_ranks, b.projected_ranks)
    found = tuple(
        _measured(own, _labels(own.names, numbered, side), has_gpu) for own, side in zip(ranges, (a, b), strict=True)
    )
    notes = [*basis.note("ranks with NVTX"), *both(ranges[0].notes, ranges[1].notes)]
    if not has_gpu and (a.projected_ranks or b.projected_ranks):
        notes.append("GPU time is left out: not all ranks that have NVTX ranges tell what these launched")
    return compared("diff-nvtx", _RANGE, (found[0], found[1]), basis, notes, (_GPU,), "CPU")


def _ranges(side: Side) -> NvtxRanges:
    """The ranges of every name: the tree's filter would keep what is around and inside of those that pass it."""
    return side.job.nvtx_ranges(side.selection.with_name(None))


def _numbered(names: Collection[str]) -> frozenset[str]:
    """The templates that so many names share that they are one numbered name."""
    counts = Counter(template(name) for name in names)
    return frozenset(text for text, count in counts.items() if count >= FEWEST_VARIANTS)


def _labels(names: Sequence[str], numbered: frozenset[str], side: Side) -> list[str | None]:
    """What each name is called in the table; ``None`` where the side's filter leaves it out."""
    wanted = side.selection.name
    folded = [(name, template(name)) for name in names]
    return [
        None if wanted is not None and not wanted.matches(name) else text if text in numbered else name
        for name, text in folded
    ]


def _measured(ranges: NvtxRanges, labels: Sequence[str | None], has_gpu: bool) -> dict[Key, Measured]:
    import pandas as pd

    frame = pd.DataFrame(
        {
            "name": pd.Series(labels, dtype=object).to_numpy()[ranges.name] if len(ranges) else [],
            "duration": ranges.duration,
            "gpu": np.where(ranges.op_count > 0, ranges.gpu_duration, 0),
        }
    )
    frame = frame[frame["name"].notna()]
    projected = frame.groupby("name")["gpu"].sum().to_dict() if has_gpu else {}
    groups = frame_groups(frame, "duration", ["name"])
    rows = zip(groups["name"], groups["count"], groups["total"], groups["median"], strict=True)
    return {
        (name,): Measured(int(count), int(total), float(median), {"gpu": _whole(projected.get(name))})
        for name, count, total, median in rows
    }


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
