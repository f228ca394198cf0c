"""NCCL's NVTX payloads in both layouts: before 2.25 without, since 2.25.1 with the communicator id.

Labels, types and schema numbers follow NCCL's ``nvtx_payload_schemas.h``; the reference is docs/nccl.md#payload.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Final

from synthetic.writing.writer import NvtxPayload, PayloadEntry, PayloadSchema

NCCL_DOMAIN: Final = "NCCL"
REDUCTIONS: Final = {"Sum": 0, "Prod": 1, "Max": 2, "Min": 3, "Avg": 4}

COMMUNICATOR: Final = "NCCL communicator ID"
MESSAGE_SIZE: Final = "Message size [bytes]"
OLD_MESSAGE_SIZE: Final = "Bytes"
REDUCTION: Final = "Reduction operation"
ROOT: Final = "Root"
PEER: Final = "Peer rank"
RANKS: Final = "No. of ranks"
RANK: Final = "Rank"
CUDA_DEVICE: Final = "CUDA device"

_STATIC_ID: Final = 1 << 24
"""The first of NVTX's statically assigned schema and enum ids."""


class NcclPayloads(Enum):
    """The payload layouts of NCCL releases; the value is the id of the enum of reduction operations."""

    BEFORE_2_25 = _STATIC_ID + 14
    SINCE_2_25 = _STATIC_ID + 16

    @property
    def reduction_enum(self) -> int:
        """Id of the enum that reduction entries refer to."""
        return self.value


_INT: Final = 5
_UINT64: Final = 18
_SIZE: Final = 22
_FORMATS: Final = {_INT: "i", _UINT64: "Q", _SIZE: "Q"}

_OLD_ENTRIES: Final = {
    "ncclCommInitRank": (0, (RANK, RANKS, CUDA_DEVICE)),
    "ncclCommDestroy": (2, (RANK, RANKS, CUDA_DEVICE)),
    "ncclAllGather": (4, (MESSAGE_SIZE,)),
    "ncclAllReduce": (5, (MESSAGE_SIZE, REDUCTION)),
    "ncclBroadcast": (6, (OLD_MESSAGE_SIZE, ROOT)),
    "ncclReduceScatter": (7, (MESSAGE_SIZE, REDUCTION)),
    "ncclReduce": (8, (MESSAGE_SIZE, ROOT, REDUCTION)),
    "ncclSend": (9, (OLD_MESSAGE_SIZE, PEER)),
    "ncclRecv": (10, (OLD_MESSAGE_SIZE, PEER)),
    "ncclCommInitRankConfig": (11, (RANK, RANKS, CUDA_DEVICE)),
}
_NEW_ENTRIES: Final = {
    "ncclCommInitRank": (0, (COMMUNICATOR, RANKS, RANK, CUDA_DEVICE)),
    "ncclCommDestroy": (2, (COMMUNICATOR, RANKS, RANK, CUDA_DEVICE)),
    "ncclAllGather": (4, (COMMUNICATOR, MESSAGE_SIZE)),
    "ncclAllReduce": (5, (COMMUNICATOR, MESSAGE_SIZE, REDUCTION)),
    "ncclBroadcast": (6, (COMMUNICATOR, MESSAGE_SIZE, ROOT)),
    "ncclReduceScatter": (7, (COMMUNICATOR, MESSAGE_SIZE, REDUCTION)),
    "ncclReduce": (8, (COMMUNICATOR, MESSAGE_SIZE, ROOT, REDUCTION)),
    "ncclSend": (9, (COMMUNICATOR, MESSAGE_SIZE, PEER)),
    "ncclRecv": (10, (COMMUNICATOR, MESSAGE_SIZE, PEER)),
    "ncclCommInitRankConfig": (11, (COMMUNICATOR, RANKS, RANK, CUDA_DEVICE)),
    "ncclCommFinalize": (14, (COMMUNICATOR,)),
    "ncclAlltoAll": (16, (COMMUNICATOR, MESSAGE_SIZE)),
    "ncclGather": (17, (COMMUNICATOR, MESSAGE_SIZE, ROOT)),
    "ncclScatter": (18, (COMMUNICATOR, MESSAGE_SIZE, ROOT)),
}


@cache
def payload_schema(function: str, layout: NcclPayloads) -> PayloadSchema:
    """Return the payload schema that NCCL registers for `function`. Raises `KeyError` if the layout lacks it."""
    number, labels = (_OLD_ENTRIES if layout is NcclPayloads.BEFORE_2_25 else _NEW_ENTRIES)[function]
    entries = []
    offset = 0
    for label in labels:
        kind = {COMMUNICATOR: _UINT64, MESSAGE_SIZE: _SIZE, OLD_MESSAGE_SIZE: _SIZE}.get(label, _INT)
        entries.append(PayloadEntry(label, layout.reduction_enum if label == REDUCTION else kind, offset))
        offset += 4 if kind == _INT else 8
    # A C struct's length is a multiple of its widest member's; only old init calls have no 8-byte member.
    alignment = 4 if all(entry.type == _INT for entry in entries) else 8
    return PayloadSchema(_STATIC_ID + number, tuple(entries), -(-offset // alignment) * alignment)


def encode_payload(function: str, layout: NcclPayloads, values: Mapping[str, int], *, domain_id: int) -> NvtxPayload:
    """Return the payload of an NCCL call; `values` by label, with ``"Message size [bytes]"`` also for the old "Bytes".

    Values without an entry in the layout are left out (an old NCCL has no communicator). Raises `KeyError` if a value
    is missing.
    """
    schema = payload_schema(function, layout)
    payload = bytearray(schema.size)
    by_label: dict[str, int | str] = {}
    for entry in schema.entries:
        value = values[MESSAGE_SIZE if entry.label == OLD_MESSAGE_SIZE else entry.label]
        struct.pack_into("<" + _FORMATS.get(entry.type, "i"), payload, entry.offset, value)
        is_reduction = entry.type == layout.reduction_enum
        by_label[entry.label] = next(name for name, n in REDUCTIONS.items() if n == value) if is_reduction else value
    header = struct.pack("<4Q", domain_id, schema.schema_id, schema.size, 32)
    return NvtxPayload(json.dumps(by_label), header + bytes(payload))
