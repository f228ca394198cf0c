"""NCCL's API calls in NVTX ranges: which calls communicate, and their payload (message size, communicator, peer, …).

There are three forms. ``NVTX_EVENTS.binaryData`` (``nsys export --include-blobs=true``) is a 32-byte header and a C
struct that ``NVTX_PAYLOAD_SCHEMAS`` and ``NVTX_PAYLOAD_SCHEMA_ENTRIES`` describe. ``jsonText``
(``--include-json=true``) has the struct's labels as keys. An instrumented NCCL writes the values into the range's text.
Labels are from NCCL's ``src/include/nvtx_payload_schemas.h``; NCCL 2.25.1 changed the structs of 2.16.2 to 2.24.

Damaged data never raises: values that cannot be read with certainty are ``None``.
"""

from __future__ import annotations

import re
import sqlite3
import struct
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from nsystui.base.files import json_in
from nsystui.exports.integrity import check_pages

if TYPE_CHECKING:
    from pathlib import Path

    from nsystui.exports.schema import Schema

_Value = int | float | str
Labels = dict[str, _Value]

COMMUNICATOR, MESSAGE_SIZE, OLD_MESSAGE_SIZE = "NCCL communicator ID", "Message size [bytes]", "Bytes"
REDUCTION, ROOT, PEER = "Reduction operation", "Root", "Peer rank"
RANK, RANKS, DEVICES, CUDA_DEVICE = "Rank", "No. of ranks", "No. of devices", "CUDA device"
DATATYPE = "Data type"
"""Not NCCL's label: exports of PyTorch's traces have it (docs/exports.md#pytorch)."""
LABELS = frozenset(
    {COMMUNICATOR, MESSAGE_SIZE, OLD_MESSAGE_SIZE, REDUCTION, ROOT, PEER, RANK, RANKS, DEVICES, CUDA_DEVICE, DATATYPE}
)
"""The labels that `interpret` understands."""

_HEADER = struct.Struct("<QQQQ")  # domain id, schema id, payload size, and a field with several descriptions

# Entry types (nvtx3/nvToolsExtPayload.h) as struct formats on 64-bit Linux, with an 8-byte long.
_FORMATS = dict(enumerate("bBhHiIqQqQ", start=1))  # CHAR, UCHAR, SHORT … ULONGLONG
_FORMATS |= dict(enumerate("bBhHiIqQfd", start=11))  # INT8, UINT8 … UINT64, FLOAT, DOUBLE
_FORMATS |= {22: "Q", 23: "Q", 32: "B"}  # SIZE, ADDRESS, BYTE
_FORMATS |= {42: "e", 43: "f", 44: "d", 68: "I", 69: "I", 70: "Q"}  # FLOAT16 … FLOAT64, CATEGORY, COLOR, SCOPE_ID
_UNREAD_SIZES = {21: 16, 45: 16, 50: 2, 80: 8}  # LONGDOUBLE, FLOAT128, BF16, REGISTERED_STRING
_INT, _SIZE = 5, 22
_FIRST_ENUM = 1 << 24  # from this on: enumerations and structs of a library
_UNION_SCHEMAS = (3, 4)


class _Entry(NamedTuple):
    """A row of ``NVTX_PAYLOAD_SCHEMA_ENTRIES``."""

    label: str
    kind: int
    flags: int = 0
    offset: int = 0


class _Field(NamedTuple):
    """A value in a payload; its struct format is empty if it is not read."""

    label: str
    offset: int
    format: str

    @property
    def end(self) -> int:
        return self.offset + struct.calcsize("<" + self.format)


@dataclass(frozen=True)
class _Layout:
    """The fields of a payload, and its minimum size in bytes."""

    fields: tuple[_Field, ...]
    size: int


@dataclass(frozen=True)
class PayloadSchemas:
    """The payload layouts of an export by (domain id, schema id); ``None`` for unreadable payloads."""

    layouts: Mapping[tuple[int, int], _Layout | None]

    @classmethod
    def from_rows(
        cls, schema_rows: Iterable[Mapping[str, Any]], entry_rows: Iterable[Mapping[str, Any]]
    ) -> PayloadSchemas:
        """Return the layouts in rows of ``NVTX_PAYLOAD_SCHEMAS`` and ``NVTX_PAYLOAD_SCHEMA_ENTRIES``, by column name.

        A missing column counts as NULL. nsys repeats rows for each process. If processes define an id differently, its
        payloads cannot be read, because nothing distinguishes them.
        """
        schemas: dict[tuple[int, int], set[tuple[int, int, int]]] = defaultdict(set)
        entries: dict[tuple[int, int], dict[int, set[_Entry]]] = defaultdict(lambda: defaultdict(set))
        for row in schema_rows:
            kind, size, align = _positive(row, "type"), _positive(row, "payloadSize"), _positive(row, "alignTo")
            schemas[_positive(row, "domainId"), _positive(row, "schemaId")].add((kind, size, align))
        for row in entry_rows:
            label = str(row.get("name") or "")
            entry = _Entry(label, _positive(row, "type"), _positive(row, "flags"), _positive(row, "offset"))
            entries[_positive(row, "domainId"), _positive(row, "schemaId")][_positive(row, "idx")].add(entry)

        layouts: dict[tuple[int, int], _Layout | None] = {}
        for key in schemas.keys() | entries.keys():
            by_index = entries[key]
            variants = schemas.get(key, {(0, 0, 0)})
            kind, size, align = min(variants)
            is_unique = len(variants) == 1 and all(len(versions) == 1 for versions in by_index.values())
            fields = _lay_out([min(by_index[index]) for index in sorted(by_index)], align)
            layouts[key] = _Layout(fields, size) if is_unique and kind not in _UNION_SCHEMAS else None
        return cls(layouts)


def _positive(row: Mapping[str, Any], column: str) -> int:
    """Return the number in a column; NULL and damage become 0, which is never valid."""
    value = row.get(column)
    return value if isinstance(value, int) and value > 0 else 0


def _lay_out(entries: Sequence[_Entry], align: int = 0) -> tuple[_Field, ...]:
    """Return the fields of a struct from its entries in order.

    Offset 0 (NULL in the export) means C's offset: after the previous entry, aligned to the entry's size or to
    ``align``, if set and smaller. After an entry of unknown size, only entries with an offset are read.
    """
    fields = []
    end: int | None = 0
    for entry in entries:
        # The only type that NCCL defines in a struct is ncclRedOp_t, a C enum.
        text = "i" if entry.kind >= _FIRST_ENUM else _FORMATS.get(entry.kind, "")
        size = struct.calcsize("<" + text) or _UNREAD_SIZES.get(entry.kind, 0)
        if entry.flags & 0b111110:  # a pointer, an offset or an array
            text, size = "", 0
        offset = entry.offset
        if not offset and end is not None:
            step = max(1, min(size, align or size))
            offset = -(-end // step) * step
        if offset or end is not None:
            fields.append(_Field(entry.label, offset, text))
            end = offset + size if size else None
    return tuple(fields)


def _fixed_layouts() -> dict[tuple[int, int], _Layout]:
    """Return NCCL's structs by (number of the call, bytes), for exports without the schema tables."""
    comm, size, old_size = _Entry(COMMUNICATOR, _SIZE), _Entry(MESSAGE_SIZE, _SIZE), _Entry(OLD_MESSAGE_SIZE, _SIZE)
    root, peer, reduction = _Entry(ROOT, _INT), _Entry(PEER, _INT), _Entry(REDUCTION, _FIRST_ENUM)
    rank, ranks, devices = _Entry(RANK, _INT), _Entry(RANKS, _INT), _Entry(DEVICES, _INT)
    device, other = _Entry(CUDA_DEVICE, _INT), _Entry("", _INT)
    parent = _Entry("Parent NCCL communicator ID", _SIZE)
    structs: tuple[tuple[tuple[int, ...], tuple[_Entry, ...]], ...] = (
        # NCCL 2.16.2 to 2.24
        ((0, 2, 3, 11, 12), (rank, ranks, device)),  # CommInitRank, Destroy, Abort, InitRankConfig, InitRankScalable
        ((1,), (devices,)),  # CommInitAll
        ((4,), (size,)),  # AllGather
        ((5, 7), (size, reduction)),  # AllReduce, ReduceScatter
        ((6,), (old_size, root)),  # Broadcast
        ((8,), (size, root, reduction)),  # Reduce
        ((9, 10), (old_size, peer)),  # Send, Recv
        # NCCL 2.25.1 and later
        ((0, 2, 3, 11, 12, 19), (comm, ranks, rank, device)),  # as above, and Revoke
        ((1,), (comm, devices)),
        ((4, 16), (comm, size)),  # AllGather, AlltoAll
        ((5, 7), (comm, size, reduction)),
        ((6, 17, 18), (comm, size, root)),  # Broadcast, Gather, Scatter
        ((8,), (comm, size, root, reduction)),
        ((9, 10), (comm, size, peer)),
        ((13,), (comm, parent, ranks, rank, device, other, other)),  # CommSplit; then color and key
        ((14,), (comm,)),  # CommFinalize
        ((15,), (comm, ranks, rank, device, other)),  # CommShrink; then the number of ranks left out
    )
    layouts: dict[tuple[int, int], _Layout] = {}
    for calls, members in structs:
        fields = _lay_out(members)
        widest = max(field.end - field.offset for field in fields)
        total = -(-fields[-1].end // widest) * widest  # sizeof: C pads a struct to its widest member
        layouts |= {(call, total): _Layout(fields, total) for call in calls}
    return layouts


_FIXED_LAYOUTS = _fixed_layouts()


def decode_blob(schemas: PayloadSchemas, domain_id: int, blob: bytes) -> Labels | None:
    """Return the values of a ``binaryData`` blob by label, or ``None`` if it cannot be read with certainty.

    ``domain_id`` is the row's NVTX domain, which must be NCCL's: a payload without a schema in ``schemas`` is read as
    NCCL's if call and size fit one of its structs.
    """
    if not isinstance(blob, bytes | bytearray) or len(blob) < _HEADER.size:
        return None
    header_domain, schema_id, size, _ = _HEADER.unpack_from(blob)
    payload = bytes(blob[_HEADER.size : _HEADER.size + size])
    if len(payload) < size:
        return None
    keys = ((domain_id, schema_id), (header_domain, schema_id))
    key = next((key for key in keys if key in schemas.layouts), None)
    layout = schemas.layouts[key] if key else _FIXED_LAYOUTS.get((schema_id - _FIRST_ENUM, size))
    if layout is None or size < layout.size or any(field.end > size for field in layout.fields):
        return None
    labels: Labels = {}
    for field in layout.fields:
        if field.label and field.format and field.label not in labels:
            (labels[field.label],) = struct.unpack_from("<" + field.format, payload, field.offset)
    return labels or None


def decode_json(text: str) -> Labels:
    """Return NCCL's labels at any depth of a ``jsonText``; empty if it has no labels or is not JSON.

    The nesting is not documented. An outer label takes precedence over an inner label.
    """
    try:
        root = json_in(text)
    except (TypeError, ValueError):
        return {}
    labels: Labels = {}
    pending = deque([root])
    while pending:
        node = pending.popleft()
        if isinstance(node, dict):
            for label, value in node.items():
                if label in LABELS and isinstance(value, int | float | str) and not isinstance(value, bool):
                    labels.setdefault(label, value)
            pending.extend(node.values())
        elif isinstance(node, list):
            pending.extend(node)
    return labels


@dataclass(frozen=True)
class NcclCall:
    """The facts of an NCCL API call; ``None`` if its payload does not have them.

    ``message_size`` (bytes) is count × size of the data type of the API call: per rank for AllGather and ReduceScatter,
    per peer for AlltoAll, Gather and Scatter. ``communicator`` is NCCL's commHash as ``0x1a2b…``, the same on all its
    ranks. ``rank`` and ``ranks``, in the communicator, are from calls that make or end it. ``source`` is ``payload``,
    ``instrumented``, or ``None`` if nothing is known. NCCL's payload has no data type: ``datatype`` is PyTorch's
    (``bf16``), or the width of an element from an instrumented call (``4-byte``).
    """

    message_size: int | None
    communicator: str | None
    peer: int | None
    root: int | None
    reduction: str | None
    rank: int | None
    ranks: int | None
    cuda_device: int | None
    source: str | None
    datatype: str | None = None


def interpret(labels: Mapping[str, _Value]) -> NcclCall:
    """Return the call that ``labels`` of either generation describe; impossible values are ``None``."""
    size = labels.get(MESSAGE_SIZE, labels.get(OLD_MESSAGE_SIZE))
    return NcclCall(
        message_size=_count(size, 1 << 63),
        communicator=_communicator(labels.get(COMMUNICATOR)),
        peer=_count(labels.get(PEER)),
        root=_count(labels.get(ROOT)),
        reduction=_reduction(labels.get(REDUCTION)),
        rank=_count(labels.get(RANK)),
        # ncclCommInitAll makes a communicator with a rank for each device.
        ranks=_count(labels.get(RANKS, labels.get(DEVICES))),
        cuda_device=_count(labels.get(CUDA_DEVICE)),
        source="payload" if LABELS & labels.keys() else None,
        datatype=text if isinstance(text := labels.get(DATATYPE), str) else None,
    )


_INSTRUMENTED = re.compile(r"nccl[A-Z]\w*\(\): (?P<values>.*)", re.DOTALL)


def parse_instrumented(text: str) -> NcclCall | None:
    """Return the call in the range text of an instrumented NCCL (ATLAHS, ``ENABLE_API_NVTX``), or ``None``.

    ``ncclAllReduce(): commHash 0x1a2b, stream 0x5, data_size 4096, type_size 4, red_op 0, pid 7``. ``data_size`` is in
    bytes: count × size of the type.
    """
    match = _INSTRUMENTED.match(text) if isinstance(text, str) else None
    values = dict(re.findall(r"(\w+) ([^\s,]+)", match["values"])) if match else {}
    if not values.keys() & {"commHash", "data_size"}:
        return None
    return NcclCall(
        message_size=_count(values.get("data_size"), 1 << 63),
        communicator=_communicator(values.get("commHash")),
        peer=_count(values.get("receiver_rank", values.get("sender_rank"))),
        root=_count(values.get("root")),
        reduction=_reduction(_count(values.get("red_op"))),
        rank=None,
        ranks=None,
        cuda_device=None,
        source="instrumented",
        datatype=_width(values.get("type_size")),
    )


_WIDEST = 16  # bytes of an element; damaged texts may have any number


def _width(type_size: str | None) -> str | None:
    size = _count(type_size, _WIDEST + 1)
    return f"{size}-byte" if size else None


def _integer(value: object) -> int | None:
    """Return an integer, also from text: decimal, with thousands separators, or hexadecimal with ``0x``."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and len(value) <= 40:
        digits = value.strip().replace(",", "")
        try:
            return int(digits, 16 if digits[:2].lower() == "0x" else 10)
        except ValueError:
            return None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _count(value: object, limit: int = 1 << 31) -> int | None:
    """Return a number from 0 to below ``limit``; NCCL's -1 for "none" and damage become ``None``."""
    number = _integer(value)
    return number if number is not None and 0 <= number < limit else None


def _communicator(value: object) -> str | None:
    """Return the 64-bit commHash as text; ``None`` for 0, a communicator not yet made."""
    number = None if isinstance(value, float) else _integer(value)  # a float has lost bits of the hash
    if number is None or not -(1 << 63) <= number < 1 << 64 or number == 0:
        return None
    return f"0x{number & 0xFFFF_FFFF_FFFF_FFFF:x}"  # SQLite and JSON may hold it as a negative number


_REDUCTIONS = ("Sum", "Prod", "Max", "Min", "Avg")  # ncclRedOp_t; higher numbers are registered by the program


def reduction_name(number: int) -> str:
    """Return the name of an ``ncclRedOp_t``."""
    return _REDUCTIONS[number] if number < len(_REDUCTIONS) else "User"


def _reduction(value: object) -> str | None:
    """Return a reduction's name from its number or text (NVTX's enumeration has ``Product``)."""
    if (number := _count(value)) is not None:
        return reduction_name(number)
    if not isinstance(value, str) or not value.strip() or _integer(value) is not None:
        return None
    name = value.strip().removeprefix("nccl")
    return "Prod" if name == "Product" else name


_NAMES = ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "Send", "Recv", "AlltoAll", "Gather",
          "Scatter", "AllGatherV", "PutSignal", "Signal", "WaitSignal")  # fmt: skip
COMMUNICATION = {f"nccl{name}": name for name in _NAMES} | {"ncclBcast": "Broadcast"}
"""The calls that move or await data (docs/nccl.md#calls); others manage communicators, groups or memory."""
STARTS_WORK = rf"^(?:{'|'.join(COMMUNICATION)})(?:\(\)|$)|^ncclGroupEnd$"
"""The pattern for names of calls in which NCCL may start work."""

_NOTHING = NcclCall(None, None, None, None, None, None, None, None, None)


def payload_schemas(path: Path, connection: sqlite3.Connection, schema: Schema) -> PayloadSchemas:
    """Return an export's layouts of extended NVTX payloads. Raises ExportError if their pages are damaged."""
    schemas, entries = "NVTX_PAYLOAD_SCHEMAS", "NVTX_PAYLOAD_SCHEMA_ENTRIES"
    if schemas not in schema.columns or entries not in schema.columns:
        return PayloadSchemas.from_rows([], [])
    for table in (schemas, entries):
        check_pages(path, connection, table)
    return PayloadSchemas.from_rows(
        _rows(connection, schema, schemas, ("domainId", "schemaId", "type", "payloadSize", "alignTo")),
        _rows(connection, schema, entries, ("domainId", "schemaId", "idx", "flags", "type", "name", "offset")),
    )


def _rows(
    connection: sqlite3.Connection, schema: Schema, table: str, columns: Sequence[str]
) -> Iterator[dict[str, Any]]:
    existing = [column for column in columns if schema.has_column(table, column)]
    if not existing:
        return
    names = ", ".join(f'"{column}"' for column in existing)
    for row in connection.execute(f'SELECT DISTINCT {names} FROM "{table}"'):
        yield dict(zip(existing, row, strict=True))


def decode(schemas: PayloadSchemas, domain_id: int | None, name: str, json_text: str, blob: bytes) -> NcclCall:
    """Return a call's facts from the first readable form: binary payload, JSON, instrumented name."""
    if blob:
        labels = decode_blob(schemas, domain_id or 0, blob)
        if labels:
            return interpret(labels)
    if json_text:
        labels = decode_json(json_text)
        if labels:
            return interpret(labels)
    return parse_instrumented(name) or _NOTHING


_COLLECTIVE = " ".join(f"WHEN name = '{name}' THEN '{collective}'" for name, collective in COMMUNICATION.items())
_HAS_PAYLOAD = "(json_text <> '' OR octet_length(blob) > 0 OR contains(name, '('))"
CALLS_WITH_PAYLOAD = f"""
    SELECT row, "start", "end", thread, process, domain_id, name, json_text, blob
    FROM nccl_chunk WHERE {_HAS_PAYLOAD} ORDER BY "start", row"""
"""Selects calls for `row_of` in DuckDB."""
OTHER_CALLS = f"""
    SELECT row, "start", "end", thread, process, name, CASE {_COLLECTIVE} END AS collective, NULL AS message_size,
        NULL AS communicator, NULL AS peer, NULL AS root, NULL AS reduction, NULL AS datatype, NULL AS rank,
        NULL AS ranks, NULL AS cuda_device, NULL AS size_source
    FROM nccl_chunk WHERE NOT {_HAS_PAYLOAD}"""
"""Selects the calls that record only a name in DuckDB, as rows of the canonical table."""


def row_of(schemas: PayloadSchemas, row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Convert an NVTX range with a payload to a row of the canonical table."""
    number, start, end, thread, process, domain_id, name, json_text, blob = row
    call = decode(schemas, domain_id, name, json_text, blob)
    bare = name.partition("(")[0]
    event = (number, start, end, thread, process, bare, COMMUNICATION.get(bare))
    size = (call.message_size, call.communicator, call.peer, call.root, call.reduction, call.datatype)
    return (*event, *size, call.rank, call.ranks, call.cuda_device, call.source)
