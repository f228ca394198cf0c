"""Parquet files that grow by the row groups of others, as they are.

Nothing is decoded: the bytes of a part's row groups are copied, and in the end a footer is written that tells where
they lie. A query then opens and looks into one file instead of dozens.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from nsystui.store import thrift
from nsystui.store.thrift import Struct

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


class Part(NamedTuple):
    """The bytes of a file's row groups, what its footer says of them, and its columns: only alike can be joined."""

    groups: memoryview
    footer: Struct
    columns: bytes


def read_part(path: Path) -> Part:
    """Reads a small Parquet file.

    Raises OSError, and ValueError where it is none, or its footer is in a form that is not known.
    """
    data = path.read_bytes()
    try:
        length, magic = _TAIL.unpack(data[-_TAIL.size :])
        end = len(data) - _TAIL.size - length
        footer = thrift.decoded(data[end : -_TAIL.size])
        known = _values(footer)
        columns = thrift.encoded([item for item in footer if item[0] in (_VERSION, _SCHEMA)])
        is_whole = magic == _MAGIC and end >= len(_MAGIC) and bool(known[_GROUPS][1]) and _ROWS in known
    except (IndexError, KeyError, TypeError, struct.error) as error:
        raise ValueError(f"{path}: not Parquet in a form that is known") from error
    if not is_whole:
        raise ValueError(f"{path}: not a whole Parquet file")
    return Part(memoryview(data)[len(_MAGIC) : end], footer, columns)


class _Group(NamedTuple):
    place: int
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

    def add(self, part: Part, place: int) -> None:
        """Appends the row groups of ``part``; the footer has them in the order of ``place``.

        Raises OSError; the file is of no use then.
        """
        known = _values(part.footer)
        with self.path.open("ab") as out:
            if not self._size:
                self._size = out.write(_MAGIC)
                self._footer = _changed(part.footer, {_GROUPS: lambda _: None})
            distance = self._size - len(_MAGIC)
            self._size += out.write(part.groups)
        self._rows += thrift.value_of(known[_ROWS])
        for group in known[_GROUPS][1]:
            moved = thrift.encoded(_moved(group, distance))
            self._groups.append(_Group(place, len(self._groups), moved))

    @property
    def first(self) -> int:
        """The place of its first row group."""
        return min(group.place for group in self._groups)

    def finish(self) -> None:
        """Writes the footer. Raises OSError."""
        groups = [group.encoded for group in sorted(self._groups)]
        changes = {_ROWS: lambda _: thrift.raw_of(self._rows), _GROUPS: lambda _: (thrift.STRUCT, groups)}
        footer = thrift.encoded(_changed(self._footer, changes))
        with self.path.open("ab") as out:
            out.write(footer + _TAIL.pack(len(footer), _MAGIC))


def _values(fields: Struct) -> dict[int, Any]:
    return {number: value for number, _, value in fields}


def _moved(group: Struct, distance: int) -> Struct:
    """A row group that lies ``distance`` bytes further on, in a file where its number (which may lack) is another."""

    def further(raw: int) -> int:
        offset = thrift.value_of(raw)
        return thrift.raw_of(offset + distance) if offset > 0 else raw  # 0 says that there is none

    def column(fields: Struct) -> Struct:
        return _changed(fields, {_META: pages, **dict.fromkeys(_CHUNK_OFFSETS, further)})

    def pages(fields: Struct) -> Struct:
        return _changed(fields, dict.fromkeys(_PAGE_OFFSETS, further))

    def each(columns: tuple[int, list[Struct]]) -> tuple[int, list[Struct]]:
        return columns[0], [column(fields) for fields in columns[1]]

    kept = [item for item in group if item[0] != _ORDINAL]
    return _changed(kept, {_COLUMNS: each, _GROUP_OFFSET: further})


def _changed(fields: Struct, changes: Mapping[int, Callable[[Any], Any]]) -> Struct:
    """The fields, each as the change for its number makes it."""
    return [(number, kind, changes[number](value) if number in changes else value) for number, kind, value in fields]
