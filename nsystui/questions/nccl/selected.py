"""The rows of a pairing that a selection leaves, by the rules that `where.where` has for SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nsystui.base.selection import NameFilter, Selection, Task, Window
from nsystui.questions.nccl.buckets import BUCKETS, EDGES
from nsystui.questions.nccl.lines import codes, one_key, whole
from nsystui.questions.nccl.units import NONE, Flags, Ints

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
        chosen &= _of_tasks(frame, selection.tasks)
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


def _of_tasks(frame: pd.DataFrame, tasks: frozenset[Task]) -> Flags:
    number = one_key(whole(frame["report"]), whole(frame["process"]))
    firsts = np.unique(number, return_index=True)[1]
    places = zip(frame["report"].iloc[firsts].tolist(), frame["process"].iloc[firsts].tolist(), strict=True)
    return np.array([Task(*place) in tasks for place in places] or [False], bool)[number]


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
