"""Integer columns of a table, decoded by numpy from the pages of the file: in a third of the time that SQLite takes.

https://www.sqlite.org/fileformat2.html#b_tree_pages describes the pages. What is not exactly as SQLite writes it raises
UnusualPages, and SQLite reads the table instead. Pages that pass need no other check: these checks find all that
``PRAGMA quick_check`` finds in a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import numpy as np

from nsystui.base.inputs import opened
from nsystui.base.types import Array, Ints
from nsystui.exports import opening
from nsystui.exports.schema import LATEST, Column

_LEAF, _INTERIOR = 13, 5
_MAX_DEPTH = 20
_PAGES = 256
"""Pages decoded at once: 10,000 to 20,000 rows, so that a cancelled question ends soon."""
_GAP = 8
"""Pages of other tables that are read with those around them, because a larger read costs less than two."""
_REAL, _LAST_INTEGER, _RESERVED, _LONG = 7, 9, (10, 11), 128
_SIZES = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0, *((kind - 12) // 2 for kind in range(12, 256))], np.uint8)
"""Bytes of a value by serial type, for types of one byte."""
_SHIFTS = np.array([64 - 8 * int(size) if size else 0 for size in _SIZES[:7]] + [0] * 249, np.int64)
"""Bits to shift the eight bytes at a value, so that the value stays."""
_END = np.int64((1 << 63) - 1)


class UnusualPages(Exception):
    """Pages of a form that only SQLite should read, or damage."""


@dataclass(frozen=True)
class LeafPages:
    """The pages of a table whose columns are ``names``; ``integers`` and ``required`` are numbers of columns."""

    path: Path
    root: int
    page_size: int
    names: tuple[str, ...]
    integers: frozenset[str]
    required: tuple[int, ...]

    @cached_property
    def leaves(self) -> tuple[Ints, Ints]:
        """The numbers of the leaf pages, and the highest rowid that each may have, in the order of rows."""
        pages, highest = np.array([self.root], np.int64), np.array([_END])
        seen = pages
        with opened(self.path, 0) as file:
            for _ in range(_MAX_DEPTH):
                if self._read(file, pages[:1])[0, 0] == _LEAF:  # all are, or `rows` fails
                    return pages, highest
                level = zip(self._read(file, pages), highest, strict=True)
                parts = [self._children(page, bound) for page, bound in level]
                pages, highest = (np.concatenate(several) for several in zip(*parts, strict=True))
                if (highest[1:] <= highest[:-1]).any():
                    raise UnusualPages
                seen = np.concatenate([seen, pages])
                if len(np.unique(seen)) < len(seen):
                    raise UnusualPages
        raise UnusualPages

    def _children(self, page: Array, bound: np.int64) -> tuple[Ints, Ints]:
        """Return the pages below an interior page, and the highest rowid that each may have."""
        count = int(page[3]) << 8 | int(page[4])
        if page[0] != _INTERIOR or not count:
            raise UnusualPages
        buffer = np.concatenate([page, np.zeros(16, np.uint8)])
        cells = _words(buffer, 12 + 2 * np.arange(count), 2)
        if cells.min() < 12 + 2 * count or cells.max() > self.page_size - 5:
            raise UnusualPages
        keys, ends = _varints(buffer, cells + 4)
        self._check_interior(page, list(zip(cells.tolist(), ends.tolist(), strict=True)))
        children = np.append(_words(buffer, cells, 4), int.from_bytes(page[8:12].tobytes(), "big"))
        return children, np.append(keys, bound)

    def _check_interior(self, page: Array, used: list[tuple[int, int]]) -> None:
        """Raise UnusualPages unless each byte after the head of an interior page is in one cell or known to be free."""
        content, free = (int.from_bytes(page[at : at + 2].tobytes(), "big") for at in (5, 1))
        count = len(used)
        while free:
            following, size = (int.from_bytes(page[free + at : free + at + 2].tobytes(), "big") for at in (0, 2))
            used.append((free, free + size))
            if free + size > self.page_size or size < 4 or 0 < following <= free:
                raise UnusualPages
            free = following
        used.sort()
        ends = [content, *(end for _, end in used)]
        gaps = [start - end for (start, _), end in zip(used, ends, strict=False)]
        if min(gaps) < 0 or sum(gaps) + self.page_size - ends[-1] != page[7] or 12 + 2 * count > content:
            raise UnusualPages

    def _read(self, file: BinaryIO, pages: Ints) -> Array:
        """Return pages by number (from 1), shape (pages, page_size). Raises UnusualPages if the file is shorter."""
        if pages.min() < 1:
            raise UnusualPages
        result = np.empty((len(pages), self.page_size), np.uint8)
        steps = np.diff(pages)
        ends = [*(np.flatnonzero((steps < 1) | (steps > _GAP)) + 1).tolist(), len(pages)]
        start = 0
        for end in ends:
            first, last = int(pages[start]), int(pages[end - 1])
            file.seek((first - 1) * self.page_size)
            data = np.frombuffer(file.read((last - first + 1) * self.page_size), np.uint8)
            if len(data) < (last - first + 1) * self.page_size:
                raise UnusualPages
            result[start:end] = data.reshape(-1, self.page_size)[pages[start:end] - first]
            start = end
        return result

    def rows(self, first: int, last: int, columns: Mapping[str, str]) -> Iterator[dict[str, tuple[Ints, Array | None]]]:
        """Yield values, int64, and which of them are present (``None``: all) of rows ``first`` to ``last``, by name.

        ``row_id`` is added to the ``columns``.
        """
        pages, highest = self.leaves
        begin, end = int(np.searchsorted(highest, first)), int(np.searchsorted(highest, last)) + 1
        lowest = np.append(np.int64(-(1 << 63)), highest)
        with opened(self.path, 0) as file:
            for start in range(begin, min(end, len(pages)), _PAGES):
                part = slice(start, min(start + _PAGES, end, len(pages)))
                batch = self._decode(self._read(file, pages[part]), lowest[part], highest[part], columns)
                if batch is not None:
                    rowids, _ = batch["row_id"]
                    inside = slice(*np.searchsorted(rowids, [first, last + 1]).tolist())
                    if inside != slice(0, len(rowids)):
                        batch = {
                            name: (values[inside], None if present is None else present[inside])
                            for name, (values, present) in batch.items()
                        }
                    if len(batch["row_id"][0]):
                        yield batch

    def _decode(
        self, pages: Array, lowest: Ints, highest: Ints, columns: Mapping[str, str]
    ) -> dict[str, tuple[Ints, Array | None]] | None:
        """Return the rows of leaf pages, ``None`` without rows. Raises UnusualPages."""
        if (pages[:, 0] != _LEAF).any():
            raise UnusualPages
        counts = (pages[:, 3].astype(np.int64) << 8) | pages[:, 4]
        total, size = int(counts.sum()), self.page_size
        if not total:
            if len(self.leaves[0]) > 1:
                raise UnusualPages
            return None
        buffer = np.empty(pages.size + 16, np.uint8)
        buffer[: pages.size] = pages.ravel()
        page = np.repeat(np.arange(len(pages)), counts)
        base = page * size
        cells = base + _words(buffer, base + 8 + 2 * (np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)), 2)
        if (cells > base + size - 4).any():
            raise UnusualPages
        lengths, at = _varints(buffer, cells)
        rowids, header = _varints(buffer, at)
        body_end = header + lengths
        if (lengths > size - 35).any() or (body_end > base + size).any():
            raise UnusualPages
        _check_cells(pages, counts, cells - base, body_end - base, size)
        if (rowids[1:] <= rowids[:-1]).any() or (rowids <= lowest[page]).any() or (rowids > highest[page]).any():
            raise UnusualPages
        width = len(self.names)
        if (buffer[header] != width + 1).any():
            raise UnusualPages
        kinds = np.ndarray((len(buffer) - width,), f"V{width}", buffer, strides=(1,))[header + 1].view(np.uint8)
        kinds = np.ascontiguousarray(kinds.reshape(total, width).T)
        low, high = kinds.min(axis=1), kinds.max(axis=1)
        places, place = [], header + width + 1
        for kind, least, most in zip(kinds, low, high, strict=True):
            if most >= _LONG or (most >= _RESERVED[0] and np.isin(kind, _RESERVED).any()):
                raise UnusualPages
            places.append(place)
            size_of_value = _SIZES[kind] if least < most else _SIZES[most]
            place = place + size_of_value if most else place
        if (place != body_end).any() or not low[list(self.required)].all():
            raise UnusualPages
        eight = np.ndarray((len(buffer) - 8,), "V8", buffer, strides=(1,))

        def column(native: str) -> tuple[Ints, Array | None]:
            number = self.names.index(native)
            lowest_kind, highest_kind = int(low[number]), int(high[number])
            kind = kinds[number]
            if highest_kind > _LAST_INTEGER or (highest_kind >= _REAL and (kind == _REAL).any()):
                raise UnusualPages
            if lowest_kind == highest_kind and (not lowest_kind or lowest_kind > _REAL):
                present = None if lowest_kind else np.zeros(total, bool)
                return np.full(total, max(lowest_kind - 8, 0), np.int64), present
            values = eight[places[number]].view(">i8").astype(np.int64)
            values >>= _SHIFTS[kind] if lowest_kind < highest_kind else _SHIFTS[lowest_kind]
            if highest_kind > _REAL:
                values[kind == 8], values[kind == 9] = 0, 1
            if lowest_kind:
                return values, None
            values[kind == 0] = 0
            return values, kind != 0

        result: dict[str, tuple[Ints, Array | None]] = {"row_id": (rowids, None)}
        for name, item in columns.items():
            assert isinstance(item, Column)
            values, present = column(item.native)
            if item.possible is not None:
                earliest, latest = item.possible
                is_possible = (values >= earliest) & (values <= latest)
                if item.end:  # CUPTI writes 0 for both times if it has none
                    ends_at, end_present = column(item.end)
                    lacks = (values == item.origin) & (ends_at == item.origin)
                    lacks &= True if end_present is None else end_present
                    if lacks.any():
                        present = ~lacks if present is None else present & ~lacks
                values = np.where(is_possible, values - item.origin, LATEST + 1)
            result[name] = values, present
        return result


def leaf_pages(path: Path, table: str) -> LeafPages | None:
    """Return the pages of a table, or ``None`` if SQLite must read it: keys of its own, UTF-16, added columns, checks.

    Raises OSError and sqlite3.Error.
    """
    with closing(opening.connect(path)) as connection:
        entries = connection.execute(
            "SELECT rootpage, upper(sql) FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)
        ).fetchall()
        quoted = table.replace('"', '""')
        columns = connection.execute(f'PRAGMA table_xinfo("{quoted}")').fetchall()
    with opened(path, 0) as file:
        header = file.read(100)
    page_size = int.from_bytes(header[16:18], "big")
    # Reserved bytes, pointer maps of auto-vacuum, and the encoding of text.
    is_plain = page_size > 1 and not header[20] and not any(header[52:56]) and header[56:60] == b"\0\0\0\1"
    if not is_plain or len(entries) != 1 or not 0 < len(columns) < _LONG - 1:
        return None
    ((root, sql),) = entries
    if not isinstance(root, int) or not sql or "CHECK" in sql or "WITHOUT" in sql or any(hidden for *_, hidden in columns):
        return None
    integers = frozenset(name for _, name, kind, _, _, key, _ in columns if "INT" in kind.upper() and not key)
    required = tuple(number for number, _, _, is_required, *_ in columns if is_required)
    return LeafPages(path, root, page_size, tuple(name for _, name, *_ in columns), integers, required)


def _words(buffer: Array, at: Ints, size: int) -> Ints:
    """Return the big-endian integers of ``size`` bytes at places of a buffer."""
    values = buffer[at].astype(np.int64)
    for byte in range(1, size):
        values = (values << 8) | buffer[at + byte]
    return values


def _varints(buffer: Array, at: Ints) -> tuple[Ints, Ints]:
    """Return the varints at places of a buffer, and where each ends. Raises UnusualPages above 2⁵⁶."""
    byte = buffer[at]
    values, ends = (byte & 127).astype(np.int64), at + 1
    more = np.flatnonzero(byte >= _LONG)
    for _ in range(7):
        if not len(more):
            return values, ends
        byte = buffer[np.minimum(ends[more], len(buffer) - 1)]
        values[more] = (values[more] << 7) | (byte & 127)
        ends[more] += 1
        more = more[byte >= _LONG]
    raise UnusualPages


def _check_cells(pages: Array, counts: Ints, starts: Ints, ends: Ints, size: int) -> None:
    """Raise UnusualPages unless cells lie in their leaf one below the other, and no byte of its content is unknown.

    ``starts`` and ``ends`` are within the page. SQLite writes cells in this order unless rows were deleted or changed.
    """
    content = (pages[:, 5].astype(np.int64) << 8) | pages[:, 6]
    ends = np.maximum(ends, starts + 4)
    firsts = np.cumsum(counts) - counts
    above = np.empty_like(ends)
    above[1:] = starts[:-1]
    above[firsts[counts > 0]] = size
    used = np.add.reduceat(ends - starts, firsts[counts > 0])
    is_usual = (
        not pages[:, 1:3].any()  # no free blocks
        and (counts > 0).all()
        and (ends <= above).all()
        and (8 + 2 * counts <= content).all()
        and (starts >= np.repeat(content, counts)).all()
        and (used + pages[:, 7] == size - content).all()
    )
    if not is_usual:
        raise UnusualPages
