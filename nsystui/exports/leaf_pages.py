"""Columns of integers and texts, decoded by numpy from the pages of the file: in a third of the time SQLite takes.

https://www.sqlite.org/fileformat2.html#b_tree_pages describes the pages. What is not exactly as SQLite writes it raises
UnusualPages, and SQLite reads the table instead. Pages that pass need no other check: these checks find all that
``PRAGMA quick_check`` finds in a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import numpy as np

from nsystui.base.files import opened
from nsystui.base.types import Array, Ints
from nsystui.exports import opening
from nsystui.exports.schema import LATEST, NativeColumn, NativeText

_LEAF, _INTERIOR = 13, 5
_MAX_DEPTH = 20
_PAGES = 256
"""Pages decoded at once, some 10,000 rows: a cancelled question ends soon."""
_GAP = 8
"""Pages in between that are read, too, because one larger read costs less than two."""
_REAL, _ZERO, _LAST_NUMBER, _FIRST_TEXT, _LONG = 7, 8, 9, 12, 128
_LAST_KIND = (1 << 14) - 1
"""The largest serial type of two bytes."""
_NUMBERS = "INT", "REAL", "FLOA", "DOUB"
_SIZES = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0, *((kind - 12) // 2 for kind in range(12, 1 << 14))], np.int16)
"""Bytes of a value by serial type."""
_SHIFTS = np.array([64 - 8 * int(size) if size else 0 for size in _SIZES[:12]], np.int64)
"""Bits to shift the eight bytes at a number, so that the number stays."""
_INLINE = 12
"""The most bytes of a text that are in its view."""
_MASKS = np.where(np.arange(_INLINE) < np.arange(_INLINE + 1)[:, None], 255, 0).astype(np.uint8).view(np.int32)
"""The bits of a text in its first twelve bytes, by length."""
_MARGIN = 256
"""Zeros after an interior page."""
_END = np.int64((1 << 63) - 1)
_Batch = dict[str, tuple[Array, Array | None]]


class UnusualPages(Exception):
    """Pages of a form that only SQLite should read, or damage."""


@dataclass(frozen=True)
class LeafPages:
    """The pages of a table with the columns ``names``.

    ``integers`` and ``texts`` are names of columns, ``required`` numbers of columns without NULL.
    """

    path: Path
    table: str
    root: int
    page_size: int
    names: tuple[str, ...]
    integers: frozenset[str]
    texts: frozenset[str]
    required: tuple[int, ...]
    declared: tuple[str, ...]

    @cached_property
    def usual(self) -> list[tuple[int, int]]:
        """The first and last serial type of each column."""
        are_numbers = (any(word in kind.upper() for word in _NUMBERS) for kind in self.declared)
        return [(0, _LAST_NUMBER) if is_number else (_FIRST_TEXT, _LAST_KIND) for is_number in are_numbers]

    def contain(self, sql: str) -> bool:
        """Return whether `rows` can return a column."""
        if isinstance(sql, NativeText):
            return sql.native in self.texts
        return isinstance(sql, NativeColumn) and sql.native in self.integers

    @cached_property
    def leaves(self) -> tuple[Ints, Ints]:
        """The numbers of the leaf pages, and the highest rowid that each may have, in the order of rows."""
        pages, highest = np.array([self.root], np.int64), np.array([_END])
        seen = pages
        with _opened(self.path) as file:
            for _ in range(_MAX_DEPTH):
                if self._read(file, pages[:1])[0, 0] == _LEAF:  # all are, or `rows` fails
                    return pages, highest
                level = zip(self._read(file, pages)[:-1], highest, strict=True)
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
        if page[0] != _INTERIOR or not 0 < count <= (self.page_size - 12) // 2:
            raise UnusualPages
        buffer = np.concatenate([page, np.zeros(_MARGIN, np.uint8)])
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
        """Return pages by number (from 1) and a page of zeros, so that no index into a damaged page fails.

        Shape (pages + 1, page_size). Raises UnusualPages if the file is shorter.
        """
        if pages.min() < 1:
            raise UnusualPages
        result = np.empty((len(pages) + 1, self.page_size), np.uint8)
        result[-1] = 0
        steps = np.diff(pages)
        ends = [*(np.flatnonzero((steps < 1) | (steps > _GAP)) + 1).tolist(), len(pages)]
        start = 0
        for end in ends:
            first, last = int(pages[start]), int(pages[end - 1])
            count = last - first + 1
            read = result[start:end] if count == end - start else np.empty((count, self.page_size), np.uint8)
            file.seek((first - 1) * self.page_size)
            if file.readinto(read) < read.nbytes:  # type: ignore[attr-defined]
                raise UnusualPages
            if count > end - start:
                result[start:end] = read[pages[start:end] - first]
            start = end
        return result

    def rows(self, first: int, last: int, columns: Mapping[str, str]) -> Iterator[_Batch]:
        """Yield columns of the rows ``first`` to ``last``, by name; ``row_id`` is added to the ``columns``.

        A column of integers is its values, int64, and which of them are present (``None``: all). A column of texts is
        Arrow's binary views of its bytes, int32, shape (rows, 4), and the buffer that they point into.
        """
        pages, highest = self.leaves
        begin, end = int(np.searchsorted(highest, first)), int(np.searchsorted(highest, last)) + 1
        lowest = np.append(np.int64(-(1 << 63)), highest)
        with _opened(self.path) as file:
            for start in range(begin, min(end, len(pages)), _PAGES):
                part = slice(start, min(start + _PAGES, end, len(pages)))
                rows = self._decode(self._read(file, pages[part]), lowest[part], highest[part])
                inside = slice(*np.searchsorted(rows.rowids, [first, last + 1]).tolist())
                batch: _Batch = {"row_id": (rows.rowids[inside], None)}
                for name, sql in columns.items():
                    if isinstance(sql, NativeText):
                        batch[name] = rows.texts(sql.native)[inside], rows.buffer
                        continue
                    assert isinstance(sql, NativeColumn)
                    values, present = rows.column(sql)
                    batch[name] = values[inside], None if present is None else present[inside]
                if inside.start < inside.stop:
                    yield batch

    def _decode(self, pages: Array, lowest: Ints, highest: Ints) -> _Rows:
        """Return the rows of leaf pages from `_read`, whose rowids are above ``lowest`` and at most ``highest``."""
        buffer, pages = pages.reshape(-1), pages[:-1]
        counts = (pages[:, 3].astype(np.int64) << 8) | pages[:, 4]
        total, size, width = int(counts.sum()), self.page_size, len(self.names)
        _require((pages[:, 0] == _LEAF).all(), counts.all(), (8 + 2 * counts <= size).all())
        page = np.repeat(np.arange(len(pages)), counts)
        start = page * size
        within = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
        cells = start + _words(buffer, start + 8 + 2 * within, 2)
        _require((cells <= start + size - 4).all())
        lengths, at = _varints(buffer, cells)
        rowids, header = _varints(buffer, at)
        end = header + lengths
        # From this length on, SQLite writes a part of a row to other pages.
        _require((lengths <= size - 35).all(), (end <= start + size).all())
        _check_cells(pages, counts, cells - start, end - start, size)
        _require((rowids[1:] > rowids[:-1]).all(), (rowids > lowest[page]).all(), (rowids <= highest[page]).all())
        kinds = np.ndarray((len(buffer) - width,), f"V{width}", buffer, strides=(1,))[header + 1].view(np.uint8)
        kinds = np.ascontiguousarray(kinds.reshape(total, width).T)
        heads = buffer[header]
        wide = np.flatnonzero(heads != width + 1)  # rows with types of two bytes
        kinds[:, wide] = 0
        least, most = kinds.min(axis=1), kinds.max(axis=1)
        _require((most < _LONG).all())
        if len(wide):
            kinds = kinds.astype(np.int16)
            kinds[:, wide] = _wide_kinds(buffer, header[wide], width)
            least, most = kinds.min(axis=1), kinds.max(axis=1)
        position, offset, positions = header + heads, 0, []
        for kind, low, high, (first, last) in zip(kinds, least, most, self.usual, strict=True):
            _require(high <= last, low >= first or not ((kind > 0) & (kind < first)).any())
            positions.append((position, offset))
            if low < high:
                position = position + _SIZES[kind]
            else:
                offset += int(_SIZES[high])
        _require((position + offset == end).all(), least[list(self.required)].all())
        return _Rows(self.names, rowids, kinds, positions, buffer)


@dataclass(frozen=True)
class _Rows:
    """Rows of leaf pages: ``kinds`` are serial types, shape (columns, rows).

    ``positions`` are, for each column, indices into ``buffer``, and an offset to add.
    """

    names: tuple[str, ...]
    rowids: Ints
    kinds: Array
    positions: list[tuple[Ints, int]]
    buffer: Array

    def column(self, item: NativeColumn) -> tuple[Ints, Array | None]:
        """Return the values of a column as its SQL gives them, and which are present. Raises UnusualPages."""
        values, present = self.integers(item.native)
        if item.possible is None:
            return values, present
        if item.end:
            ends, ends_present = self.integers(item.end)
            has_times = (values != item.origin) | (ends != item.origin)
            has_times |= False if ends_present is None else ~ends_present
            if not has_times.all():
                present = has_times if present is None else present & has_times
        earliest, latest = item.possible
        return np.where((values >= earliest) & (values <= latest), values - item.origin, LATEST + 1), present

    def integers(self, native: str) -> tuple[Ints, Array | None]:
        """Return the values of a column of integers, and which are present (``None``: all). Raises UnusualPages."""
        number = self.names.index(native)
        kind = self.kinds[number]
        least, most = int(kind.min()), int(kind.max())
        if most >= _REAL and (kind == _REAL).any():
            raise UnusualPages
        if least == most and (not least or least > _REAL):
            return np.full(len(kind), max(least - _ZERO, 0), np.int64), None if least else np.zeros(len(kind), bool)
        position, offset = self.positions[number]
        values = self._bytes(8, offset)[position].view(">i8").astype(np.int64)
        values >>= _SHIFTS[kind if least < most else least]
        if most > _REAL:
            values[kind == _ZERO], values[kind == _ZERO + 1] = 0, 1
        return values, None if least else kind != 0

    def texts(self, native: str) -> Array:
        """Return views of the values of a column of texts; NULL has no bytes."""
        number = self.names.index(native)
        lengths, (position, offset) = _SIZES[self.kinds[number]], self.positions[number]
        views = np.empty((len(lengths), 4), np.int32)
        views[:, 0] = lengths
        views[:, 1:] = self._bytes(_INLINE, offset)[position].view(np.int32).reshape(-1, 3)
        views[:, 1:] &= _MASKS[np.minimum(lengths, _INLINE)]
        is_long = lengths > _INLINE
        views[is_long, 2], views[is_long, 3] = 0, position[is_long] + offset
        return views

    def _bytes(self, size: int, offset: int) -> Array:
        """Return the ``size`` bytes that begin at each byte of the buffer from ``offset`` on."""
        return np.ndarray((len(self.buffer) - size,), f"V{size}", self.buffer, strides=(1,))[offset:]


def leaf_pages(path: Path, table: str) -> LeafPages | None:
    """Return the pages of a table, or ``None`` if SQLite must read it: generated columns, UTF-16, checks."""
    header = b""
    with closing(opening.connect(path)) as connection, opening.sqlite_errors(path):
        query = (
            "SELECT rootpage, upper(sql) FROM sqlite_master WHERE type = 'table' AND name = ? AND rootpage AND sql > ''"
        )
        entries = connection.execute(query, (table,)).fetchall()
        quoted = table.replace('"', '""')
        columns = connection.execute(f'PRAGMA table_xinfo("{quoted}")').fetchall()
    with suppress(UnusualPages), _opened(path) as file:
        header = file.read(100)
    page_size = int.from_bytes(header[16:18], "big")
    # Reserved bytes, pointer maps of auto-vacuum, and the encoding of text.
    is_plain = page_size > 1 and not header[20] and not any(header[52:56]) and header[56:60] == b"\0\0\0\1"
    if not is_plain or len(entries) != 1 or not 0 < len(columns) < _LONG - 1:
        return None
    ((root, sql),) = entries
    if "CHECK" in sql or "WITHOUT" in sql or any(hidden for *_, hidden in columns):
        return None
    integers = frozenset(name for _, name, kind, _, _, key, _ in columns if "INT" in kind.upper() and not key)
    texts = frozenset(name for _, name, kind, *_ in columns if kind.upper() == "TEXT")
    required = tuple(number for number, _, _, is_required, *_ in columns if is_required)
    _, names, declared, *_ = zip(*columns, strict=True)
    return LeafPages(path, table, root, page_size, names, integers, texts, required, declared)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file. Raises UnusualPages instead of OSError: then SQLite reads the table, and fails with the reason."""
    try:
        with opened(path, 0) as file:
            yield file
    except OSError:
        raise UnusualPages from None


def _require(*usual: object) -> None:
    """Raise UnusualPages unless everything is usual."""
    if not all(usual):
        raise UnusualPages


def _words(buffer: Array, at: Ints, size: int) -> Ints:
    """Return the big-endian integers of ``size`` bytes at positions of a buffer."""
    values = buffer[at].astype(np.int64)
    for byte in range(1, size):
        values = (values << 8) | buffer[at + byte]
    return values


def _varints(buffer: Array, at: Ints) -> tuple[Ints, Ints]:
    """Return the varints at positions of a buffer, and where each ends. Raises UnusualPages above 2⁵⁶."""
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


def _wide_kinds(buffer: Array, header: Ints, width: int) -> Array:
    """Return the serial types, of one or two bytes, of rows whose header begins there; shape (width, rows)."""
    at, kinds = header + 1, np.empty((width, len(header)), np.int16)
    for number in range(width):
        byte = buffer[at].astype(np.int16)
        is_wide = byte >= _LONG
        following = buffer[at + 1]
        _require(not (is_wide & (following >= _LONG)).any())
        kinds[number] = np.where(is_wide, (byte & 127) << 7 | following, byte)
        at += 1 + is_wide
    _require((buffer[header] < _LONG).all(), (at == header + buffer[header]).all())
    return kinds


def _check_cells(pages: Array, counts: Ints, starts: Ints, ends: Ints, size: int) -> None:
    """Raise UnusualPages unless cells lie in their leaf one below the other, and no byte of its content is unknown.

    ``starts`` and ``ends`` are within the page. SQLite writes cells in this order unless rows were deleted or changed.
    """
    content = (pages[:, 5].astype(np.int64) << 8) | pages[:, 6]
    ends = np.maximum(ends, starts + 4)
    firsts = np.cumsum(counts) - counts
    above = np.empty_like(ends)
    above[1:] = starts[:-1]
    above[firsts] = size
    used = np.add.reduceat(ends - starts, firsts)
    _require(
        not pages[:, 1:3].any(),  # no free blocks
        (ends <= above).all(),
        (8 + 2 * counts <= content).all(),
        (starts >= np.repeat(content, counts)).all(),
        (used + pages[:, 7] == size - content).all(),
    )
