"""Statistics of numbers in groups, as every summary of ``nsys stats`` has them (domain §4.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nsystui.analysis.nvtx.ranges import Ints

if TYPE_CHECKING:
    import pandas as pd

MEASURES = ("total", "count", "avg", "median", "min", "max", "stddev")


def measured(group: Ints, value: Ints) -> pd.DataFrame:
    """``MEASURES`` of ``value`` (ns) for each number in ``group``, which is the index, ascending. Shapes ``(n,)``."""
    import pandas as pd

    found = pd.Series(value).groupby(group, sort=True)
    frame = found.agg(["sum", "count", "median", "min", "max", "std"])
    frame = frame.rename(columns={"sum": "total", "std": "stddev"})
    frame["avg"] = frame["total"] / frame["count"]
    frame["stddev"] = frame["stddev"].fillna(0.0)
    return frame[list(MEASURES)]


def distinct(group: Ints, member: Ints) -> Ints:
    """How many different members each of the groups 0, 1, … has. Shapes ``(n,)``; no number may be negative."""
    width = int(member.max(initial=0)) + 1
    pairs = np.sort(group * width + member)
    is_new = np.diff(pairs, prepend=-1) != 0
    counts: Ints = np.bincount(pairs[is_new] // width)
    return counts
