"""The selection and grouping of NCCL's rows: by collective, message size, communicator, stream, rank, step, …

`selected` leaves the rows of a pairing that a selection leaves, by the rules that `conditions.where` has for SQL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from nsystui.base.answer import COLLECTIVE, RANK, STEP, STREAM, Column, Unit
from nsystui.base.errors import UsageError
from nsystui.base.kernel_families import NCCL_BACKEND
from nsystui.base.selection import NameFilter, Selection, Task, Window
from nsystui.questions.nccl.matching import common
from nsystui.questions.nccl.names import BUCKETS, EDGES
from nsystui.questions.nccl.units import NONE, Flags, Ints, codes, one_key, whole

if TYPE_CHECKING:
    import pandas as pd


def selected(frame: pd.DataFrame, selection: Selection) -> pd.DataFrame:
    """The rows of ``kernels`` or ``calls`` that are selected, with their old index.

    A call has no device and no stream, so those filters leave it in. The name filter looks at the name and at the
    collective: a ``SendRecv`` kernel that ran an AlltoAll is found by both.
    """
    chosen = np.ones(len(frame), bool)
    if selection.window is not None:
        chosen &= _in_window(frame, selection.window)
    if selection.tasks is not None:
        number = one_key(whole(frame["report"]), whole(frame["process"]))
        firsts = frame.iloc[np.unique(number, return_index=True)[1]]
        places = zip(firsts["report"].tolist(), firsts["process"].tolist(), strict=True)
        chosen &= np.array([Task(*place) in selection.tasks for place in places] or [False], bool)[number]
    for key, wanted in (("device", selection.devices), ("stream", selection.streams)):
        if wanted is not None and key in frame.columns:
            chosen &= frame[key].isin(wanted).to_numpy(bool)
    if selection.name is not None:
        chosen &= _named(frame, selection.name)
    return frame if chosen.all() else frame[chosen]


def _in_window(frame: pd.DataFrame, window: Window) -> Flags:
    start, end = whole(frame["start"]), whole(frame["end"])
    reaches: Flags = (start >= window.start) | (end > window.start) | frame["end"].isna().to_numpy(bool)
    return reaches & (start < window.end)


def _named(frame: pd.DataFrame, wanted: NameFilter) -> Flags:
    number = one_key(codes(frame["name"]), codes(frame["collective"]))
    firsts = np.unique(number, return_index=True)[1]
    passes = []
    for texts in frame[["name", "collective"]].iloc[firsts].astype(object).itertuples(index=False):
        matches = [wanted.matches(text) for text in texts if isinstance(text, str)]
        # An inverse filter has to hold for both: "!alltoall" leaves no AlltoAll in by its kernel's name.
        passes.append(all(matches) if wanted.inverse else any(matches))
    return np.array(passes or [False], bool)[number]


def bucket_numbers(sizes: pd.Series[Any]) -> Ints:
    """The place of each message size in `BUCKETS`; ``NONE`` where the size is not known."""
    size = whole(sizes)
    return np.where(size < 0, NONE, np.searchsorted(EDGES, size, side="right"))


def bucket_label(number: int) -> str | None:
    """The label of a bucket by its place; ``None`` for ``NONE``."""
    return BUCKETS[number] if number >= 0 else None


class NcclProperty(Enum):
    """A property by which rows are grouped."""

    COLLECTIVE = "collective"
    SIZE = "size"  # the bucket of the message size
    POW2 = "pow2"  # the power of two that a message size begins
    BYTES = "bytes"  # the message size itself
    COMMUNICATOR = "communicator"
    STREAM = "stream"
    RANK = "rank"
    STEP = "step"
    RANGE = "range"  # the innermost NVTX range around the launch that is not NCCL's
    DATATYPE = "datatype"
    REDUCTION = "reduction"
    BACKEND = "backend"  # the library: NCCL, NVSHMEM, …


USUAL: Final = (NcclProperty.COLLECTIVE, NcclProperty.SIZE)

COLUMNS: Mapping[NcclProperty, Column] = {
    NcclProperty.COLLECTIVE: COLLECTIVE,
    NcclProperty.SIZE: Column("bucket", header="Message Size", label="size"),
    NcclProperty.POW2: Column("size_from", header="Message Size From (B)", label="size from", unit=Unit.BYTES),
    NcclProperty.BYTES: Column("message_size", header="Message Size (B)", label="size", unit=Unit.BYTES),
    NcclProperty.COMMUNICATOR: Column("communicator", header="Communicator", label="comm", importance=5),
    NcclProperty.STREAM: STREAM,
    NcclProperty.RANK: RANK,
    NcclProperty.STEP: STEP,
    NcclProperty.RANGE: Column("range", header="NVTX Range", label="range"),
    NcclProperty.DATATYPE: Column("datatype", header="Datatype", label="datatype", importance=5),
    NcclProperty.REDUCTION: Column("reduction", header="Reduction", label="reduction", importance=5),
    NcclProperty.BACKEND: Column("backend", header="Backend", label="backend", importance=3),
}
"""The column of each group. A column that rows are grouped by never leaves a screen (importance 0)."""

SEVERAL: Final = "several"
"""In a column that rows are not grouped by: the rows behind this one differ."""

_SIZES = (NcclProperty.SIZE, NcclProperty.POW2, NcclProperty.BYTES)


def by_of(text: str) -> tuple[NcclProperty, ...]:
    """``collective,stream`` as groups. Raises UsageError for a word that is none, and for message sizes in two ways."""
    known = {by.value: by for by in NcclProperty}
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in known:
            raise UsageError(f"group {word!r}: the groups are {', '.join(known)}")
    found = tuple(dict.fromkeys(known[word] for word in words))
    if sum(by in _SIZES for by in found) > 1:
        raise UsageError(f"groups {text!r}: use only one of size, pow2 and bytes")
    return found


def label_of(frame: pd.DataFrame) -> pd.Series[Any]:
    """The collective of a row; a management call has its name instead, and a kernel may have neither."""
    collective = frame["collective"].astype(object)
    return collective.fillna(frame["name"].astype(object)) if "thread" in frame.columns else collective


def values_of(frame: pd.DataFrame, by: NcclProperty) -> pd.Series[Any]:
    """The value of a grouping for each row of ``kernels`` or ``calls``, else missing. Calls have no stream.

    Step and range need the columns that `bandwidth.grouped_pairing` adds.
    """
    import pandas as pd

    if by is NcclProperty.COLLECTIVE:
        return label_of(frame)
    if by is NcclProperty.SIZE:
        numbers = bucket_numbers(frame["message_size"]).tolist()
        return pd.Series([bucket_label(number) for number in numbers], index=frame.index, dtype=object)
    if by is NcclProperty.POW2:
        return powers_of_two(frame["message_size"])
    if by is NcclProperty.BACKEND and "backend" not in frame.columns:
        return pd.Series(NCCL_BACKEND, index=frame.index, dtype=object)
    if by is NcclProperty.STREAM and "stream" not in frame.columns:
        return pd.Series(pd.NA, index=frame.index, dtype="Int64")
    values = frame[COLUMNS[by].key]
    return values.astype(object if COLUMNS[by].unit is Unit.TEXT else "Int64")


def powers_of_two(sizes: pd.Series[Any]) -> pd.Series[Any]:
    """The largest power of two that is no more than each size, bytes; 0 for 0, missing where the size is."""
    import pandas as pd

    size = whole(sizes)
    exponent = np.frexp(np.maximum(size, 1).astype(np.float64))[1] - 1
    power = np.left_shift(np.int64(1), np.minimum(exponent, 62))
    # As a float, a size of more than 2⁵³ may have been rounded up to the next power.
    power = np.where(size > 0, np.where(power > size, power >> 1, power), size)
    return pd.Series(power, index=sizes.index, dtype="Int64").where(size >= 0)


def group_numbers(frame: pd.DataFrame, groups: Sequence[NcclProperty]) -> Ints:
    """The number of the group of each row, from 0 without gaps; all 0 without ``groups``."""
    parts = []
    for by in groups:  # sizes, ranks and steps keep their order; ``NONE`` is a missing value
        values = frame["message_size"] if by is NcclProperty.SIZE else values_of(frame, by)
        number = bucket_numbers if by is NcclProperty.SIZE else codes if COLUMNS[by].unit is Unit.TEXT else whole
        parts.append(number(values))
    return one_key(*parts) if parts else np.zeros(len(frame), np.int64)


def shared_values(values: pd.Series[Any], group: Ints, count: int) -> pd.Series[Any]:
    """The common value of each of ``count`` groups; where rows differ ``SEVERAL``, or missing for a number."""
    own = codes(values)
    lowest = common(group, own, count)
    first = np.full(count, 0)
    first[group[::-1]] = np.arange(len(group))[::-1]
    is_one = (lowest != NONE) | (np.bincount(group[own != NONE], minlength=count) == 0)
    shared = values.iloc[first].reset_index(drop=True)
    return shared.where(is_one, SEVERAL) if shared.dtype == object else shared.where(is_one)


def is_of(frame: pd.DataFrame, row: Mapping[NcclProperty, Any]) -> Flags:
    """Whether each row of ``frame`` belongs to a row of a table: has all its values (``None``: that is missing)."""
    own = np.ones(len(frame), bool)
    for by, wanted in row.items():
        values = values_of(frame, by)
        is_same = values.isna() if wanted is None else (values == wanted).fillna(False)
        own &= is_same.to_numpy(bool)
    return own
