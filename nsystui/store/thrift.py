"""Thrift's compact protocol, as far as the footer of a Parquet file needs it: read, changed and written again.

A struct is its fields in their order: (number, kind, value). Integers stay as they are written, zigzag; a flag has no
value, for it is in the kind. See ``thrift-compact-protocol.md`` of Apache Thrift.
"""

from __future__ import annotations

from typing import Any

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


def decoded(data: bytes) -> Struct:
    """The struct in ``data``. Raises ValueError or IndexError where that is none, or has maps."""
    return _struct(data, 0)[0]


def encoded(struct: Struct) -> bytes:
    """The inverse of ``decoded``; a struct in it may be there as it was encoded before."""
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
