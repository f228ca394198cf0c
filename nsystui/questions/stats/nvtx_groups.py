"""Statistics of numbers in groups, as every summary of ``nsys stats`` has them (docs/numbers.md#statistics)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nsystui.questions.nvtx.loading import Ints

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


def quartiles(group: Ints, value: Ints) -> pd.DataFrame:
    """``q1`` and ``q3`` of ``value`` for each number in ``group``, as `statistics.quartiles` has them."""
    import pandas as pd

    order = np.lexsort((value, group))
    values = value[order]
    numbers, first, count = np.unique(group[order], return_index=True, return_counts=True)
    found = {}
    for key, share in (("q1", 1), ("q3", 3)):
        below = first + np.maximum(-(-share * count // 4), 1) - 1
        above = first + np.minimum(share * count // 4, count - 1)
        found[key] = (values[below] + values[above]) / 2.0
    return pd.DataFrame(found, index=numbers)


def distinct(group: Ints, member: Ints) -> Ints:
    """How many different members each of the groups 0, 1, … has. Shapes ``(n,)``; no number may be negative."""
    width = int(member.max(initial=0)) + 1
    pairs = np.sort(group * width + member)
    is_new = np.diff(pairs, prepend=-1) != 0
    counts: Ints = np.bincount(pairs[is_new] // width)
    return counts
