"""Pairings of some reports each as one pairing of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

    Frames = tuple["pd.DataFrame", "pd.DataFrame"]


def joined(parts: Sequence[Frames]) -> Frames:
    """The ``kernels`` and ``calls`` of all parts, in their order, with operations and partners numbered over all.

    What one report tells of a communicator (how many ranks it has) holds for the others too.
    """
    if len(parts) == 1:
        return parts[0]
    every_kernels, every_calls = [], []
    operations = first_kernel = first_call = 0
    for kernels, calls in parts:
        every_kernels.append(_moved(kernels, operations, first_call))
        every_calls.append(_moved(calls, operations, first_kernel))
        operations += 1 + max((int(frame["operation"].max()) for frame in (kernels, calls) if len(frame)), default=-1)
        first_kernel += len(kernels)
        first_call += len(calls)
    kernels, calls = _below_each_other(every_kernels), _below_each_other(every_calls)
    known = calls.groupby("communicator", observed=True)["ranks"].max()
    return tuple(frame.assign(ranks=_filled(frame, known)) for frame in (kernels, calls))


def _moved(frame: pd.DataFrame, operations: int, others: int) -> pd.DataFrame:
    """With its numbers behind those of the parts before: so many operations, and rows of the other frame."""
    numbers = {"operation": operations, "partner": others}
    return frame.assign(
        **{key: np.where(frame[key] >= 0, frame[key] + before, frame[key]) for key, before in numbers.items()}
    )


def _below_each_other(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """One frame; texts are stored once, which pandas gives up where two frames have others."""
    import pandas as pd
    from pandas.api.types import union_categoricals

    texts = [key for key in frames[0].columns if isinstance(frames[0][key].dtype, pd.CategoricalDtype)]
    numbers = pd.concat([frame.drop(columns=texts) for frame in frames], ignore_index=True)
    coded: dict[str, Any] = {key: union_categoricals([frame[key] for frame in frames]) for key in texts}
    return numbers.assign(**coded)[list(frames[0].columns)]


def _filled(frame: pd.DataFrame, known: pd.Series[Any]) -> pd.Series[Any]:
    ranks = frame["ranks"].astype("Int64")
    told = known.reindex(frame["communicator"].astype(object)).astype("Int64").set_axis(frame.index)
    return ranks.fillna(told)
