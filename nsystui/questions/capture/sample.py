"""A first look at the kernels of exports that are not packed yet: a sample of rows, said to be one, that grows.

The columns and the condition for possible rows are those by which an export is packed. SQLite itself sums the rows up,
not the reader that packs, which would first read all strings. They come in spans from every part of a file: the first
round takes a few rows of each part, in a fraction of a second whatever the size; the next ones take whole spans in
bit-reversed order, so that every new span lies in the widest gap and any number of them is a fair sample of the run.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from nsystui.base.answer import NAME, Answer, Column, TableAnswer, Unit
from nsystui.base.errors import ExportError
from nsystui.exports import canonical, opening
from nsystui.exports.sources import Source, sources
from nsystui.store.opened import Opened

_STRATA = 64
_ROWS_PER_STRATUM = 64
_SPAN = 4096
_SHARES = (0.01, 0.05)
"""The shares of the rows that the later rounds reach."""

# More files add little to a first look, and each costs reads on a slow file system.
_MOST_FILES = 8
_KERNELS = canonical.KERNELS.name

SAMPLE_COLUMNS = (
    Column("share", header="Time (%)", label="time %", unit=Unit.PERCENT, decimals=1, has_bar=True),
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
        share = 100 * self.sampled / rows
        part = f"{share:.0f} %" if share >= 10 else f"{share:.2g} %"
        note = f"sample: {self.sampled:,} of {rows:,} kernels ({part}); exact numbers follow"
        return TableAnswer("kernel-sample", SAMPLE_COLUMNS, sorted(records, reverse=True), None, (note,))


def sampled_kernels(opened: Sequence[Opened]) -> Iterator[Answer]:
    """Yield share of time and mean duration (ns) of the sampled kernels by short name, once for each round.

    Nothing where there are no kernels. An export that cannot be read gives no sample: what is wrong with it, the
    packing says.
    """
    found = [(item, _source(item)) for item in opened[:_MOST_FILES]]
    chosen = [(item, source, item.native.last_rowid[source.table]) for item, source in found if source is not None]
    rows = sum(last for _, _, last in chosen)
    first = _Sums()
    for item, source, last in chosen:
        # A few rows from each of ``_STRATA`` parts of the rows.
        starts = sorted({1 + number * last // _STRATA for number in range(_STRATA)})
        width = min(_ROWS_PER_STRATUM, max(1, last // len(starts)))
        _add(first, item, source, [(start, start + width - 1) for start in starts])
    if first.sampled:
        yield first.answer(rows)
    sums, taken = _Sums(), 0.0
    for share in _SHARES:
        if first.sampled >= share * rows:
            continue
        for item, source, last in chosen:
            _add(sums, item, source, _spans(last, taken, share))
        taken = share
        if sums.sampled > first.sampled:
            yield sums.answer(rows)


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


def _source(item: Opened) -> Source | None:
    """Return the native table of the kernels, with the columns alone that a sample needs; ``None`` if it lacks them."""
    source = next((one for one in sources(item.native) if _KERNELS in one.makes), None)
    if source is None or not item.native.has(source.table) or not item.native.has_column(source.table, "shortName"):
        return None
    return source.of_fields({_KERNELS: ("start", "end", "short_name")}, first_choice=True)


def _add(sums: _Sums, item: Opened, source: Source, spans: Sequence[Span]) -> None:
    rows, possible = source.scan, source.makes[_KERNELS].condition
    query = f'SELECT short_id, count(*), sum("end" - "start") FROM ({rows}) c WHERE {possible} GROUP BY short_id'
    try:
        with item.file.unchanged(), closing(opening.connect(item.path)) as connection:
            found = [row for span in spans for row in connection.execute(query % span)]
            names = {identity: _name(connection, identity) for identity in {identity for identity, *_ in found}}
    except (ExportError, sqlite3.Error):
        return
    for identity, count, duration in found:
        sums.add(names[identity], count, duration or 0)


def _name(connection: sqlite3.Connection, identity: int | None) -> str:
    found = connection.execute("SELECT value FROM StringIds WHERE id = ?", (identity,)).fetchall()
    return next((text for (text,) in found), None) or ""
