"""NCCL's calls in ``record_param_comms``, PyTorch's own record of a collective."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from nsystui.exports.forms.kineto.reading import to_integer
from nsystui.exports.nccl_calls import COMMUNICATOR, DATATYPE, MESSAGE_SIZE, PEER, RANKS, ROOT

RECORD = "record_param_comms"

_IN, _OUT, _PER_PEER, _EITHER, _UNKNOWN = range(5)
"""Which of a record's two element counts NCCL's call has."""
# Longer beginnings first: "reduce" also begins "reduce_scatter". The spelling changed over time: _all_gather_base,
# allgather_into_tensor_coalesced. A barrier is an AllReduce of one element, which is not recorded.
_FUNCTIONS = (
    ("allreduce", "ncclAllReduce", _IN), ("allgather", "ncclAllGather", _IN), ("alltoall", "ncclAlltoAll", _PER_PEER),
    ("reducescatter", "ncclReduceScatter", _OUT), ("reduce", "ncclReduce", _IN), ("broadcast", "ncclBroadcast", _IN),
    ("gather", "ncclGather", _IN), ("scatter", "ncclScatter", _OUT), ("send", "ncclSend", _EITHER),
    ("recv", "ncclRecv", _EITHER), ("barrier", "ncclAllReduce", _UNKNOWN),
)  # fmt: skip
# PyTorch's "rank" is the root of _ROOTED calls, and the peer of _BETWEEN_TWO calls.
_ROOTED = frozenset({"ncclReduce", "ncclBroadcast", "ncclGather", "ncclScatter"})
_BETWEEN_TWO = frozenset({"ncclSend", "ncclRecv"})

_DATATYPES = {
    "Byte": ("uint8", 1), "Char": ("int8", 1), "Bool": ("bool", 1), "Short": ("int16", 2), "UInt16": ("uint16", 2),
    "Int": ("int32", 4), "UInt32": ("uint32", 4), "Long": ("int64", 8), "UInt64": ("uint64", 8), "Half": ("fp16", 2),
    "BFloat16": ("bf16", 2), "Float": ("fp32", 4), "Double": ("fp64", 8), "ComplexFloat": ("complex64", 8),
    "ComplexDouble": ("complex128", 16), "Float8_e4m3fn": ("fp8_e4m3", 1), "Float8_e4m3fnuz": ("fp8_e4m3fnuz", 1),
    "Float8_e5m2": ("fp8_e5m2", 1), "Float8_e5m2fnuz": ("fp8_e5m2fnuz", 1),
}  # fmt: skip
"""PyTorch's scalar types: the name, as for NCCL's logs, and the bytes of an element."""


@dataclass(frozen=True, slots=True)
class Collective:
    """A call of NCCL: its function, and JSON with its facts by the labels of NCCL's payload."""

    function: str
    payload: str


def collective_of(arguments: Mapping[str, Any]) -> Collective | None:
    """Return the call in a ``record_param_comms``; ``None`` if it moves no data, such as ``wait``."""
    spelled = str(arguments.get("Collective name", "")).replace("_", "").replace(" ", "").lower()
    if spelled.startswith("broadcastuniquencclid"):
        return None
    match = next(((name, counts) for start, name, counts in _FUNCTIONS if spelled.startswith(start)), None)
    if match is None:
        return None
    function, counts = match
    labels: dict[str, int | str] = {}
    datatype = _DATATYPES.get(str(arguments.get("dtype")))
    ranks, rank = to_integer(arguments.get("Group size")), to_integer(arguments.get("Rank"))
    elements = _elements(arguments, counts, ranks)
    if datatype is not None and counts != _UNKNOWN:
        labels[DATATYPE] = datatype[0]
        if elements is not None:
            labels[MESSAGE_SIZE] = elements * datatype[1]
    if ranks:
        labels[RANKS] = ranks
    if rank is not None and rank >= 0 and function in _ROOTED | _BETWEEN_TWO:
        labels[ROOT if function in _ROOTED else PEER] = rank
    group = arguments.get("Process Group Name"), arguments.get("Process Group Ranks")
    if any(group):
        labels[COMMUNICATOR] = _communicator(str(group[0]), str(group[1]))
    return Collective(function, json.dumps(labels))


def _elements(arguments: Mapping[str, Any], counts: int, ranks: int | None) -> int | None:
    """Return the elements of a call as NCCL counts them; the mean over ranks if an AlltoAll divides unevenly."""
    inputs, outputs = (to_integer(arguments.get(name)) for name in ("In msg nelems", "Out msg nelems"))
    if counts == _PER_PEER:
        return inputs // ranks if inputs is not None and ranks else None
    if counts == _EITHER:
        return max((count for count in (inputs, outputs) if count is not None), default=None)
    return {_IN: inputs, _OUT: outputs}.get(counts)


@lru_cache(maxsize=4096)
def _communicator(name: str, ranks: str) -> int:
    """Return a number equal on all ranks of a process group, because traces lack the communicator's."""
    digest = hashlib.md5(f"{name} of {ranks}".encode("utf-8", "replace"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:8], "little") | 1 << 63
