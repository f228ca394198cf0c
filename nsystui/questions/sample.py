"""A first look at the kernels of exports that are not packed yet: a sample of rows, said to be one, that grows.

Rows are summed up by SQLite itself, in spans taken from every part of a file: the first round takes a few rows of each
part, in a fraction of a second whatever the size; the next ones take whole spans in bit-reversed order, so that every
new span lies in the widest gap and any number of them is a fair sample of the whole run.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from nsystui.base.answer import Answer, TableAnswer
from nsystui.base.columns import NAME, Column, Unit
from nsystui.base.errors import ExportError
from nsystui.exports import opening
from nsystui.exports.sources import POSSIBLE_WORK
from nsystui.store.opened import Opened

_STRATA = 64
_ROWS_PER_STRATUM = 64
_SPAN = 4096
_SHARES = (0.01, 0.05)
"""The shares of the rows that the later rounds reach."""

# More files add little to a first look, and each costs reads on a slow file system.
_MOST_FILES = 8
_TABLE = "CUPTI_ACTIVITY_KIND_KERNEL"

SAMPLE_COLUMNS = (
    Column("share", header="Time (%)", label="time %", unit=Unit.PERCENT, decimals=1),
    Column("count", header="Sampled Instances", label="sampled", unit=Unit.COUNT, importance=1),
    Column("avg", header="Avg (ns)", label="avg", unit=Unit.DURATION, decimals=1, importance=2),
    NAME,
)

Span = tuple[int, int]


@dataclass
class _Sums:
    """The rows and summed durations (ns) sampled so far, by short name."""

    sampled: int = 0
    names: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, name: str, count: int, duration: int) -> None:
        before = self.names.get(name, (0, 0))
        self.names[name] = (before[0] + count, before[1] + duration)
        self.sampled += count

    def answer(self, rows: int) -> Answer:
        everything = sum(duration for _, duration in self.names.values()) or 1
        records = [
            (100 * duration / everything, count, duration / count, name)
            for name, (count, duration) in self.names.items()
        ]
        part = f"{100 * self.sampled / rows:.2g} %"
        note = f"sample: {self.sampled:,} of {rows:,} kernels ({part}); exact numbers follow"
        return TableAnswer("kernel-sample", SAMPLE_COLUMNS, sorted(records, reverse=True), None, (note,))


def sampled_kernels(opened: Sequence[Opened]) -> Iterator[Answer]:
    """Share of time and mean duration (ns) of the sampled kernels by short name, once for each round.

    Nothing where there are no kernels. An export that cannot be read gives no sample: what is wrong with it, the
    packing says.
    """
    chosen = [item for item in opened[:_MOST_FILES] if item.native.last_rowid.get(_TABLE, 0) > 0]
    rows = sum(item.native.last_rowid[_TABLE] for item in chosen)
    first = _Sums()
    for item in chosen:
        _add(first, item, _strata(item.native.last_rowid[_TABLE]))
    if first.sampled:
        yield first.answer(rows)
    sums, taken = _Sums(), 0.0
    for share in _SHARES:
        if first.sampled >= share * rows:
            continue
        for item in chosen:
            _add(sums, item, _spans(item.native.last_rowid[_TABLE], taken, share))
        taken = share
        if sums.sampled > first.sampled:
            yield sums.answer(rows)


def _strata(last: int) -> list[Span]:
    """A few rows from each of ``_STRATA`` parts of the rows 1 … ``last``."""
    starts = sorted({1 + number * last // _STRATA for number in range(_STRATA)})
    width = min(_ROWS_PER_STRATUM, max(1, last // len(starts)))
    return [(start, start + width - 1) for start in starts]


def _spans(last: int, before: float, share: float) -> list[Span]:
    """The spans that bring the sample from the share ``before`` of the rows to ``share``."""
    order = _bit_reversed(-(-last // _SPAN))
    chosen = order[round(len(order) * before) : max(round(len(order) * share), 1)]
    return [(1 + number * _SPAN, min((number + 1) * _SPAN, last)) for number in sorted(chosen)]


def _bit_reversed(count: int) -> list[int]:
    """The numbers below ``count`` in the order of their bits read backwards."""
    bits = max(count - 1, 0).bit_length()
    reversed_numbers = (int(f"{number:0{bits}b}"[::-1], 2) if bits else 0 for number in range(1 << bits))
    return [number for number in reversed_numbers if number < count]


def _add(sums: _Sums, item: Opened, spans: Sequence[Span]) -> None:
    times = ", ".join(f'{item.native.time(_TABLE, name)} AS "{name}"' for name in ("start", "end"))
    rows = f"SELECT shortName, {times} FROM {_TABLE} WHERE rowid BETWEEN ? AND ?"
    query = f'SELECT shortName, count(*), sum("end" - "start") FROM ({rows}) c WHERE {POSSIBLE_WORK} GROUP BY shortName'
    try:
        with closing(opening.connect(item.path)) as connection:
            found = [row for span in spans for row in connection.execute(query, span)]
            names = {identity: _name(connection, identity) for identity in {row[0] for row in found}}
    except (ExportError, sqlite3.Error):
        return
    for identity, count, duration in found:
        sums.add(names[identity], count, duration or 0)


def _name(connection: sqlite3.Connection, identity: int | None) -> str:
    row = connection.execute("SELECT value FROM StringIds WHERE id = ?", (identity,)).fetchone()
    return (row[0] if row else None) or ""
