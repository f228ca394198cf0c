"""A first look at the kernels of exports that are not packed yet: a sample of rows, said to be one.

The rows are taken at even distances through the file (stratified by rowid), by the standard library's SQLite, in a
fraction of a second whatever the size.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing

from nsystui.analysis.answer import Column, FrameAnswer, Unit
from nsystui.errors import ExportError
from nsystui.exports import opening
from nsystui.store.session import Opened

_STRATA = 64
_ROWS_PER_STRATUM = 64
# More files add little to a first look, and each costs reads on a slow file system.
_MOST_FILES = 8
_TABLE = "CUPTI_ACTIVITY_KIND_KERNEL"

SAMPLE_COLUMNS = (
    Column("share", "Time (%)", "time %", Unit.PERCENT, 1, 0),
    Column("count", "Sampled Instances", "sampled", Unit.COUNT, None, 1),
    Column("avg", "Avg (ns)", "avg", Unit.DURATION, 1, 2),
    Column("name", "Name", "name", Unit.TEXT, None, 0),
)


def sampled_kernels(opened: Sequence[Opened]) -> FrameAnswer | None:
    """Share of time and mean duration (ns) of the sampled kernels by short name; ``None`` where there is none.

    An export that cannot be read gives no sample: what is wrong with it, the packing says.
    """
    import pandas as pd

    totals: dict[str, list[int]] = defaultdict(list)
    rows = sampled = 0
    for item in opened[:_MOST_FILES]:
        last = item.native.last_rowid.get(_TABLE, 0)
        rows += last
        try:
            found = _sample(item, last)
        except (ExportError, sqlite3.Error):
            continue
        for name, duration in found:
            totals[name].append(duration)
            sampled += 1
    if not sampled:
        return None
    everything = sum(sum(durations) for durations in totals.values()) or 1
    records = [
        (100 * sum(durations) / everything, len(durations), sum(durations) / len(durations), name)
        for name, durations in totals.items()
    ]
    frame = pd.DataFrame(sorted(records, reverse=True), columns=[column.key for column in SAMPLE_COLUMNS])
    note = f"sample: {sampled:,} of {rows:,} kernels ({100 * sampled / rows:.2g} %); exact numbers follow"
    return FrameAnswer("kernel-sample", SAMPLE_COLUMNS, frame, None, (note,))


def _sample(item: Opened, last: int) -> list[tuple[str, int]]:
    """(short name, duration in ns) of rows from every part of one export."""
    if not last:
        return []
    starts = sorted({1 + number * last // _STRATA for number in range(_STRATA)})
    query = (
        f'SELECT s.value, k."end" - k."start" FROM {_TABLE} k LEFT JOIN StringIds s ON s.id = k.shortName '
        "WHERE k.rowid BETWEEN ? AND ?"
    )
    found: dict[int, tuple[str, int]] = {}
    width = min(_ROWS_PER_STRATUM, max(1, last // len(starts)))
    with closing(opening.connect(item.path)) as connection:
        for start in starts:
            for number, row in enumerate(connection.execute(query, (start, start + width - 1))):
                found[start + number] = (row[0] or "", row[1] or 0)
    return list(found.values())
