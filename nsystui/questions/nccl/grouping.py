"""Selection and grouping of NCCL's rows: by collective, message size, communicator, stream, rank, step, …

`selected` applies a selection to the rows of a pairing, by the rules of `conditions.where` for SQL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from nsystui.base.answer import COLLECTIVE, RANK, STEP, STREAM, Column, Unit
from nsystui.base.errors import UsageError, members_of
from nsystui.base.kernel_families import NCCL_BACKEND
from nsystui.base.selection import NameFilter, Selection, Task, Window
from nsystui.base.types import DataSeries, Flags, Ints
from nsystui.questions.algebra.groups import one_key
from nsystui.questions.nccl.matching import common
from nsystui.questions.nccl.names import BUCKETS, EDGES
from nsystui.questions.nccl.units import NONE, codes, whole
from nsystui.questions.queries.tasks import ROLE

if TYPE_CHECKING:
    import pandas as pd


def selected(frame: pd.DataFrame, selection: Selection) -> pd.DataFrame:
    """Return the selected rows of ``kernels`` or ``calls``, with their old index.

    Calls have no device and no stream, so these filters keep all calls. The name filter matches name or collective:
    both find a ``SendRecv`` kernel that ran an AlltoAll.
    """
    is_selected = np.ones(len(frame), bool)
    if selection.window is not None:
        is_selected &= _in_window(frame, selection.window)
    if selection.tasks is not None:
        task_indices = one_key(whole(frame["report"]), whole(frame["process"]))
        firsts = frame.iloc[np.unique(task_indices, return_index=True)[1]]
        tasks = zip(firsts["report"].tolist(), firsts["process"].tolist(), strict=True)
        is_selected &= np.array([Task(*task) in selection.tasks for task in tasks] or [False], bool)[task_indices]
    for key, numbers in (("device", selection.devices), ("stream", selection.streams)):
        if numbers is not None and key in frame.columns:
            is_selected &= frame[key].isin(numbers).to_numpy(bool)
    if selection.name is not None:
        is_selected &= _named(frame, selection.name)
    return frame if is_selected.all() else frame[is_selected]


def _in_window(frame: pd.DataFrame, window: Window) -> Flags:
    start, end, report = (whole(frame[key]) for key in ("start", "end", "report"))
    low, high = (np.full(len(frame), edge) for edge in (window.start, window.end))
    for number, *span in window.spans:
        low[report == number], high[report == number] = span
    reaches: Flags = (start >= low) | (end > low) | frame["end"].isna().to_numpy(bool)
    return reaches & (start < high)


def _named(frame: pd.DataFrame, name_filter: NameFilter) -> Flags:
    indices = one_key(codes(frame["name"]), codes(frame["collective"]))
    firsts = np.unique(indices, return_index=True)[1]
    passes = []
    for texts in frame[["name", "collective"]].iloc[firsts].astype(object).itertuples(index=False):
        matches = [name_filter.matches(text) for text in texts if isinstance(text, str)]
        # An inverse filter must hold for both: "!alltoall" excludes an AlltoAll whatever its kernel's name.
        passes.append(all(matches) if name_filter.inverse else any(matches))
    return np.array(passes or [False], bool)[indices]


def bucket_numbers(sizes: DataSeries) -> Ints:
    """Return the index of each message size in `BUCKETS`, ``NONE`` if unknown."""
    size = whole(sizes)
    return np.where(size < 0, NONE, np.searchsorted(EDGES, size, side="right"))


def bucket_label(number: int) -> str | None:
    """Return the label of the bucket at an index; ``None`` for ``NONE``."""
    return BUCKETS[number] if number >= 0 else None


class NcclProperty(Enum):
    """A property by which rows are grouped."""

    COLLECTIVE = "collective"
    SIZE = "size"  # bucket of the message size
    POW2 = "pow2"  # largest power of two up to the message size
    BYTES = "bytes"  # exact message size
    COMMUNICATOR = "communicator"
    STREAM = "stream"
    RANK = "rank"
    ROLE = "role"  # of the process, by its name
    STEP = "step"
    RANGE = "range"  # innermost NVTX range around the launch, except NCCL's
    DATATYPE = "datatype"
    REDUCTION = "reduction"
    BACKEND = "backend"  # library: NCCL, NVSHMEM, …


USUAL: Final = (NcclProperty.COLLECTIVE, NcclProperty.SIZE)

COLUMNS: Mapping[NcclProperty, Column] = {
    NcclProperty.COLLECTIVE: COLLECTIVE,
    NcclProperty.SIZE: Column("bucket", header="Message Size", label="size"),
    NcclProperty.POW2: Column("size_from", header="Message Size From (B)", label="size from", unit=Unit.BYTES),
    NcclProperty.BYTES: Column("message_size", header="Message Size (B)", label="size", unit=Unit.BYTES),
    NcclProperty.COMMUNICATOR: Column("communicator", header="Communicator", label="comm", importance=5),
    NcclProperty.STREAM: STREAM,
    NcclProperty.RANK: RANK,
    NcclProperty.ROLE: ROLE,
    NcclProperty.STEP: STEP,
    NcclProperty.RANGE: Column("range", header="NVTX Range", label="range"),
    NcclProperty.DATATYPE: Column("datatype", header="Datatype", label="datatype", importance=5),
    NcclProperty.REDUCTION: Column("reduction", header="Reduction", label="reduction", importance=5),
    NcclProperty.BACKEND: Column("backend", header="Backend", label="backend", importance=3),
}
"""The column of each property; in a table grouped by it, its importance becomes 0, which screens always show."""

SEVERAL: Final = "several"
"""Value of a column that rows are not grouped by, if the rows of a group differ."""

SIZES = (NcclProperty.SIZE, NcclProperty.POW2, NcclProperty.BYTES)


def by_of(text: str) -> tuple[NcclProperty, ...]:
    """Parse ``collective,stream``. Raises UsageError for an unknown property, and for message sizes in two ways."""
    groups = members_of(text, NcclProperty, "group")
    if sum(item in SIZES for item in groups) > 1:
        raise UsageError(f"groups {text!r}: use only one of size, pow2 and bytes")
    return groups


def label_of(frame: pd.DataFrame) -> DataSeries:
    """Return the collective of each row, or a management call's name; missing if a kernel's name hides it."""
    collective = frame["collective"].astype(object)
    return collective.fillna(frame["name"].astype(object)) if "thread" in frame.columns else collective


def values_of(frame: pd.DataFrame, grouping: NcclProperty) -> DataSeries:
    """Return a property of each row of ``kernels`` or ``calls``, or missing.

    Calls have no stream. Step and range need the columns of `bandwidth.in_steps` and `bandwidth.in_ranges`.
    """
    import pandas as pd

    if grouping is NcclProperty.COLLECTIVE:
        return label_of(frame)
    if grouping is NcclProperty.SIZE:
        numbers = bucket_numbers(frame["message_size"]).tolist()
        return pd.Series([bucket_label(number) for number in numbers], index=frame.index, dtype=object)
    if grouping is NcclProperty.POW2:
        return powers_of_two(frame["message_size"])
    if grouping is NcclProperty.BACKEND and "backend" not in frame.columns:
        return pd.Series(NCCL_BACKEND, index=frame.index, dtype=object)
    if grouping is NcclProperty.STREAM and "stream" not in frame.columns:
        return pd.Series(pd.NA, index=frame.index, dtype="Int64")
    values = frame[COLUMNS[grouping].key]
    return values.astype(object if COLUMNS[grouping].unit is Unit.TEXT else "Int64")


def powers_of_two(sizes: DataSeries) -> DataSeries:
    """Return the largest power of two up to each size, bytes; 0 for 0, missing for a missing size."""
    import pandas as pd

    size = whole(sizes)
    exponent = np.frexp(np.maximum(size, 1).astype(np.float64))[1] - 1
    power = np.left_shift(np.int64(1), np.minimum(exponent, 62))
    # The float of a size above 2⁵³ may be rounded up to the next power.
    power = np.where(size > 0, np.where(power > size, power >> 1, power), size)
    return pd.Series(power, index=sizes.index, dtype="Int64").where(size >= 0)


def group_numbers(frame: pd.DataFrame, groups: Sequence[NcclProperty]) -> Ints:
    """Return the number of each row's group, from 0 without gaps; all 0 without ``groups``."""
    keys = []
    for prop in groups:  # sizes, ranks and steps keep their order; ``NONE`` is a missing value
        values = frame["message_size"] if prop is NcclProperty.SIZE else values_of(frame, prop)
        encode = bucket_numbers if prop is NcclProperty.SIZE else codes if COLUMNS[prop].unit is Unit.TEXT else whole
        keys.append(encode(values))
    return one_key(*keys) if keys else np.zeros(len(frame), np.int64)


def shared_values(values: DataSeries, group: Ints, count: int) -> DataSeries:
    """Return the common value of each of ``count`` groups, else ``SEVERAL``, or missing for a number."""
    value_codes = codes(values)
    lowest = common(group, value_codes, count)
    first = np.full(count, 0)
    first[group[::-1]] = np.arange(len(group))[::-1]
    is_shared = (lowest != NONE) | (np.bincount(group[value_codes != NONE], minlength=count) == 0)
    shared = values.iloc[first].reset_index(drop=True)
    return shared.where(is_shared, SEVERAL) if shared.dtype == object else shared.where(is_shared)


def is_of(frame: pd.DataFrame, row: Mapping[NcclProperty, Any]) -> Flags:
    """Return whether each row has all the values of a table's ``row``; ``None`` is a missing value."""
    is_match = np.ones(len(frame), bool)
    for grouping, expected in row.items():
        values = values_of(frame, grouping)
        is_same = values.isna() if expected is None else (values == expected).fillna(False)
        is_match &= is_same.to_numpy(bool)
    return is_match
