"""A first look at the kernels of exports not packed yet: a sample of rows, marked as a sample.

The columns, and the condition for possible rows, are as in packing. SQLite sums up the rows, because the packing reader
would first read all strings. A few rows from many parts of each file take a fraction of a second for any size.
"""

import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing

from nsystui.base.answer import NAME, Answer, Column, TableAnswer, Unit
from nsystui.base.errors import ExportError
from nsystui.exports import canonical, opening
from nsystui.exports.metadata import Opened
from nsystui.exports.sources import Source, sources

_STRATA = 64
_ROWS_PER_STRATUM = 64

# More files add little, and cost reads on a slow file system.
_MAX_FILES = 8
_KERNELS = canonical.KERNELS.name

SAMPLE_COLUMNS = (
    Column("share", header="Time (%)", label="time %", unit=Unit.PERCENT, decimals=1, has_bar=True),
    Column("count", header="Sampled Instances", label="sampled", unit=Unit.COUNT, importance=1),
    Column("avg", header="Avg (ns)", label="avg", unit=Unit.DURATION, decimals=1, importance=2),
    NAME,
)


def sampled_kernels(opened: Sequence[Opened]) -> Answer | None:
    """Return the sampled kernels' share of time and mean duration (ns) by short name, or ``None`` without kernels.

    An unreadable export has no sample: its errors are reported when it is packed.
    """
    counts, times, rows = Counter[str](), Counter[str](), 0
    for item in opened[:_MAX_FILES]:
        source = _source(item)
        if source is not None:
            rows += item.native.last_rowid[source.table]
            for name, count, duration in _sample(item, source):
                counts[name] += count
                times[name] += duration
    if not counts:
        return None
    total_time, sampled = times.total() or 1, counts.total()
    records = [(100 * times[name] / total_time, count, times[name] / count, name) for name, count in counts.items()]
    share = 100 * sampled / rows
    percent = f"{share:.0f} %" if share >= 10 else f"{share:.2g} %"
    note = f"sample: {sampled:,} of {rows:,} kernels ({percent}); exact numbers follow"
    return TableAnswer("kernel-sample", SAMPLE_COLUMNS, sorted(records, reverse=True), None, (note,))


def _source(item: Opened) -> Source | None:
    """Return the kernels' native table with only the columns that a sample needs, or ``None`` if it lacks them."""
    source = next((source for source in sources(item.native) if _KERNELS in source.makes), None)
    if source is None or not item.native.has(source.table) or not item.native.has_column(source.table, "shortName"):
        return None
    return source.of_fields({_KERNELS: ("start", "end", "short_name")}, first_choice=True)


def _sample(item: Opened, source: Source) -> list[tuple[str, int, int]]:
    """Return short names with the number and summed durations (ns) of their sampled kernels, unordered."""
    last = item.native.last_rowid[source.table]
    starts = sorted({1 + number * last // _STRATA for number in range(_STRATA)})
    width = min(_ROWS_PER_STRATUM, max(1, last // len(starts)))
    rows, possible = source.scan, source.makes[_KERNELS].condition
    query = f'SELECT short_id, count(*), sum("end" - "start") FROM ({rows}) c WHERE {possible} GROUP BY short_id'
    try:
        with item.file.unchanged(), closing(opening.connect(item.path)) as connection:
            groups = [row for start in starts for row in connection.execute(query % (start, start + width - 1))]
            strings = "SELECT value FROM StringIds WHERE id = ?"
            names = {key: connection.execute(strings, (key,)).fetchone() for key in {key for key, *_ in groups}}
    except (ExportError, sqlite3.Error):
        return []
    return [((names[key] or ("",))[0] or "", count, duration or 0) for key, count, duration in groups]
