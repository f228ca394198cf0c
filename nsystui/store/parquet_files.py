"""The Parquet files of a pack: the chunks of a table are joined into files of about a million rows.

A file for each chunk would be hundreds, and every query looks into the metadata of all. Larger chunks would need more
memory, and writing the rows once more the time that packing them takes. So nothing is decoded: the bytes of the chunks'
row groups are copied, and in the end a footer is written that tells where they lie. It is in Thrift's compact protocol
(``thrift-compact-protocol.md`` of Apache Thrift).
"""

from __future__ import annotations

import itertools
import os
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from nsystui.exports import canonical
from nsystui.exports.canonical import ColumnKind

ROWS_PER_FILE = 1 << 20
"""Rows of the native table that go into one file: as many as a program that reads a file at a time has memory for."""


class PackFiles:
    """The Parquet files of a pack while it is written: takes those of chunks; may be used by several threads."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._parts = itertools.count()
        self._joined: dict[tuple[str, int, bytes], JoinedFile] = {}
        self._first: dict[tuple[str, int], tuple[int, Path] | None] = {}
        self._alone: list[tuple[str, int, Path]] = []
        self._lock = threading.Lock()

    def new_part(self) -> Path:
        """Where the next chunk may be written."""
        return self._directory / f"part-{next(self._parts)}.parquet"

    def add(self, table: str, position: int, part: Path) -> None:
        """Takes the rows that a chunk has for ``table``, and whose ``position`` grows with them. Raises OSError."""
        which = (table, position // ROWS_PER_FILE)
        with self._lock:
            # The only part of a file is the file: it is not looked into before there is another.
            if which not in self._first:
                self._first[which] = (position, part)
                return
            first, self._first[which] = self._first[which], None
        for number, path in [*([first] if first else []), (position, part)]:
            self._join(table, number, path)

    def _join(self, table: str, position: int, part: Path) -> None:
        try:
            found = read_part(part)
        except ValueError:  # what another DuckDB writes is no worse for being a file of its own
            with self._lock:
                self._alone.append((table, position, part))
            return
        part.unlink()
        with self._lock:
            self._file(table, position, found).add(found, position)

    def _file(self, table: str, position: int, part: RowGroups) -> JoinedFile:
        """The file for the rows: columns in which nothing is missing in a chunk have another type in Parquet."""
        key = (table, position // ROWS_PER_FILE, part.columns)
        if key not in self._joined:
            self._joined[key] = JoinedFile(self.new_part())
        return self._joined[key]

    def finish(self) -> None:
        """Makes the files whole and gives them their names, in each table in the order of its rows. Raises OSError."""
        files = list(self._alone)
        files += [(table, *first) for (table, _), first in self._first.items() if first is not None]
        for (table, *_), file in self._joined.items():
            file.finish()
            files.append((table, file.first, file.path))
        for table, group in itertools.groupby(sorted(files), lambda file: file[0]):
            for number, (_, _, path) in enumerate(group):
                path.rename(self._directory / f"{table}-{number:06d}.parquet")


_MAGIC = b"PAR1"
_TAIL = struct.Struct("<I4s")  # length of the footer, and the magic bytes again

# The numbers of fields in parquet.thrift: FileMetaData,
_VERSION, _SCHEMA, _ROWS, _GROUPS = 1, 2, 3, 4
# RowGroup,
_COLUMNS, _GROUP_OFFSET, _ORDINAL = 1, 5, 7
# ColumnChunk: the deprecated file_offset, its metadata, offset_index_offset and column_index_offset;
_META, _CHUNK_OFFSETS = 3, frozenset({2, 4, 6})
# and ColumnMetaData: the offsets of data pages, index pages, the dictionary page and the bloom filter.
_PAGE_OFFSETS = frozenset({9, 10, 11, 14})


class RowGroups(NamedTuple):
    """The bytes of a file's row groups, what its footer says of them, and its columns: only alike can be joined."""

    groups: memoryview
    footer: Struct
    columns: bytes


def read_part(path: Path) -> RowGroups:
    """Reads a small Parquet file.

    Raises OSError, and ValueError where it is none, or its footer is in a form that is not known.
    """
    data = path.read_bytes()
    try:
        length, magic = _TAIL.unpack(data[-_TAIL.size :])
        end = len(data) - _TAIL.size - length
        footer = decode_struct(data[end : -_TAIL.size])
        known = _values(footer)
        columns = encode_struct([item for item in footer if item[0] in (_VERSION, _SCHEMA)])
        is_whole = magic == _MAGIC and end >= len(_MAGIC) and bool(known[_GROUPS][1]) and _ROWS in known
    except (IndexError, KeyError, TypeError, struct.error) as error:
        raise ValueError(f"{path}: not Parquet in a form that is known") from error
    if not is_whole:
        raise ValueError(f"{path}: not a whole Parquet file")
    return RowGroups(memoryview(data)[len(_MAGIC) : end], footer, columns)


_TYPES: dict[ColumnKind | None, list[tuple[int, int | None]]] = {
    ColumnKind.INT: [(4, 36), (4, None)],
    ColumnKind.FLOAT: [(10, None)],
    ColumnKind.TEXT: [(12, 0)],
    None: [],
}
"""The physical and converted types of parquet.thrift for each kind, as they are encoded."""
_correct: dict[str, tuple[bytes, ...]] = {}
"""How footers with the columns of a table begin: most files of a table are alike, and need no decoding."""


def wrong_column(path: Path, table: str, renamed: tuple[str, str]) -> str:
    """Return what is wrong with the columns of a file of a canonical table, or an empty text. Raises OSError.

    ``renamed`` is a field of the table, and its name in the file.
    """
    with path.open("rb", 0) as file:
        end = file.seek(-_TAIL.size, os.SEEK_END)
        file.seek(max(end - _TAIL.unpack(file.read())[0], 0))
        footer = file.read()
    if footer.startswith(_correct.get(table, ())):
        return ""
    kinds = {renamed[1] if one.name == renamed[0] else one.name: one.kind for one in canonical.BY_NAME[table].fields}
    try:
        _, at = _varint(footer, 1)  # the first field is the version, the second the schema
        (_, (_, *columns)), end = _list(footer, at + 1)
        types = {str(one[4], "utf-8"): (one.get(1), one.get(6, one.get(10))) for one in map(_values, columns)}
    except (IndexError, KeyError, TypeError, ValueError, RecursionError):
        return " is not Parquet in a known form"
    for name in {**kinds, **types}:
        if types.get(name) not in _TYPES[kinds.get(name)]:
            what = "missing" if name not in types else "of another type" if name in kinds else "unknown"
            return f": the column {name} of {table} is {what}"
    _correct[table] = (*_correct.get(table, ())[-7:], footer[:end])
    return ""


class _Group(NamedTuple):
    position: int
    number: int
    encoded: bytes


@dataclass
class JoinedFile:
    """A Parquet file being made. Without ``finish`` it has no footer, and is none."""

    path: Path
    _size: int = 0
    _rows: int = 0
    _groups: list[_Group] = field(default_factory=list)
    _footer: Struct = field(default_factory=list)

    def add(self, part: RowGroups, position: int) -> None:
        """Appends the row groups of ``part``; the footer has them in the order of ``position``.

        Raises OSError; the file is of no use then.
        """
        known = _values(part.footer)
        with self.path.open("ab") as out:
            if not self._size:
                self._size = out.write(_MAGIC)
                self._footer = _changed(part.footer, {_GROUPS: lambda _: None})
            distance = self._size - len(_MAGIC)
            self._size += out.write(part.groups)
        self._rows += value_of(known[_ROWS])
        for group in known[_GROUPS][1]:
            moved = encode_struct(_moved(group, distance))
            self._groups.append(_Group(position, len(self._groups), moved))

    @property
    def first(self) -> int:
        """The place of its first row group."""
        return min(group.position for group in self._groups)

    def finish(self) -> None:
        """Writes the footer. Raises OSError."""
        groups = [group.encoded for group in sorted(self._groups)]
        changes = {_ROWS: lambda _: raw_of(self._rows), _GROUPS: lambda _: (STRUCT, groups)}
        footer = encode_struct(_changed(self._footer, changes))
        with self.path.open("ab") as out:
            out.write(footer + _TAIL.pack(len(footer), _MAGIC))


def _values(fields: Struct) -> dict[int, Any]:
    return {number: value for number, _, value in fields}


def _moved(group: Struct, distance: int) -> Struct:
    """A row group that lies ``distance`` bytes further on, in a file where its number (which may lack) is another."""

    def further(raw: int) -> int:
        offset = value_of(raw)
        return raw_of(offset + distance) if offset > 0 else raw  # 0 says that there is none

    def column(fields: Struct) -> Struct:
        return _changed(fields, {_META: pages, **dict.fromkeys(_CHUNK_OFFSETS, further)})

    def pages(fields: Struct) -> Struct:
        return _changed(fields, dict.fromkeys(_PAGE_OFFSETS, further))

    def each(columns: tuple[int, list[Struct]]) -> tuple[int, list[Struct]]:
        return columns[0], [column(fields) for fields in columns[1]]

    unnumbered = [item for item in group if item[0] != _ORDINAL]
    return _changed(unnumbered, {_COLUMNS: each, _GROUP_OFFSET: further})


def _changed(fields: Struct, changes: Mapping[int, Callable[[Any], Any]]) -> Struct:
    """The fields, each as the change for its number makes it."""
    return [(number, kind, changes[number](value) if number in changes else value) for number, kind, value in fields]


STRUCT = 12

Struct = list[tuple[int, int, Any]]

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET = range(1, 11)
_LONG_LIST = 15


def value_of(raw: int) -> int:
    """The integer that is written as ``raw``."""
    return (raw >> 1) ^ -(raw & 1)


def raw_of(value: int) -> int:
    """How an integer is written; the inverse of ``value_of``."""
    return (value << 1) ^ (value >> 63)


def decode_struct(data: bytes) -> Struct:
    """The struct in ``data``. Raises ValueError or IndexError where that is none, or has maps."""
    return _struct(data, 0)[0]


def encode_struct(struct: Struct) -> bytes:
    """The inverse of ``decode_struct``; a struct in it may be there as it was encoded before."""
    out = bytearray()
    _put_struct(out, struct)
    return bytes(out)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    byte = data[at]
    at += 1
    if byte < 128:
        return byte, at
    number, shift = byte & 127, 7
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7


def _struct(data: bytes, at: int) -> tuple[Struct, int]:
    fields: Struct = []
    number = 0
    while True:
        head = data[at]
        at += 1
        if not head:
            return fields, at
        kind = head & 15
        if head >> 4:
            number += head >> 4
        else:
            raw, at = _varint(data, at)
            number = value_of(raw)
        value, at = _value(data, at, kind)
        fields.append((number, kind, value))


def _value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind in (_I16, _I32, _I64):
        return _varint(data, at)
    if kind == _BINARY:
        length, at = _varint(data, at)
        return data[at : at + length], at + length
    if kind == STRUCT:
        return _struct(data, at)
    if kind in (_TRUE, _FALSE):
        return None, at
    if kind in (_LIST, _SET):
        return _list(data, at)
    if kind in (_BYTE, _DOUBLE):
        length = 1 if kind == _BYTE else 8
        return data[at : at + length], at + length
    raise ValueError(f"a field of kind {kind}")


def _list(data: bytes, at: int) -> tuple[tuple[int, list[Any]], int]:
    """(kind of its items, items)."""
    head = data[at]
    kind, length = head & 15, head >> 4
    at += 1
    if length == _LONG_LIST:
        length, at = _varint(data, at)
    items = []
    for _ in range(length):
        # In a list a flag is a byte of its own.
        item, at = _value(data, at, _BYTE if kind in (_TRUE, _FALSE) else kind)
        items.append(item)
    return (kind, items), at


def _put_varint(out: bytearray, number: int) -> None:
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)


def _put_struct(out: bytearray, struct: Struct) -> None:
    before = 0
    for number, kind, value in struct:
        if 0 < number - before < 16:
            out.append((number - before) << 4 | kind)
        else:
            out.append(kind)
            _put_varint(out, raw_of(number))
        before = number
        _put_value(out, kind, value)
    out.append(0)


def _put_value(out: bytearray, kind: int, value: Any) -> None:
    if kind in (_I16, _I32, _I64):
        _put_varint(out, value)
    elif kind == _BINARY:
        _put_varint(out, len(value))
        out += value
    elif kind == STRUCT and isinstance(value, bytes):
        out += value
    elif kind == STRUCT:
        _put_struct(out, value)
    elif kind in (_LIST, _SET):
        item_kind, items = value
        out.append(min(len(items), _LONG_LIST) << 4 | item_kind)
        if len(items) >= _LONG_LIST:
            _put_varint(out, len(items))
        for item in items:
            _put_value(out, _BYTE if item_kind in (_TRUE, _FALSE) else item_kind, item)
    elif kind in (_BYTE, _DOUBLE):
        out += value
