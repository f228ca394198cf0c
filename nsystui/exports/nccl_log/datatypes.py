"""The numbers that NCCL's log gives for data types (``ncclDataType_t`` in ``nccl.h``)."""

from __future__ import annotations

_DATATYPES: tuple[tuple[str, int], ...] = (
    ("int8", 1),
    ("uint8", 1),
    ("int32", 4),
    ("uint32", 4),
    ("int64", 8),
    ("uint64", 8),
    ("fp16", 2),
    ("fp32", 4),
    ("fp64", 8),
    ("bf16", 2),
    ("fp8_e4m3", 1),  # this and the next since NCCL 2.24
    ("fp8_e5m2", 1),
)
"""Name, as the scripts of ``nsys-profiling`` spell it, and bytes of one element, by number."""


def datatype_name(number: int) -> str:
    """``7`` → ``fp32``; a number that NCCL 2.30 does not have yet → ``datatype 12``."""
    return _DATATYPES[number][0] if number < len(_DATATYPES) else f"datatype {number}"


def datatype_size(number: int) -> int | None:
    """The bytes of one element; ``None`` for a data type that is not known."""
    return _DATATYPES[number][1] if number < len(_DATATYPES) else None
