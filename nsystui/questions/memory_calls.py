"""Memory operations by the calls that asked for them: synchronous and pageable copies, synchronous memsets.

Chosen as nsys's rules ``cuda_memcpy_sync``, ``cuda_memcpy_async`` and ``cuda_memset_sync`` choose them
(docs/numbers.md#expert-rules), but a call belongs to an operation by (report, process, correlation id).
"""

from __future__ import annotations

from enum import Enum

import sqlalchemy as sa

from nsystui.store import tables

_HOST_TO_DEVICE = 1
_STAGED = 64_000
"""A host-to-device copy of so many bytes or fewer returns before it is done, although its call is synchronous."""


class MemoryCalls(Enum):
    """What is looked for."""

    SYNCHRONOUS_COPIES = "synchronous copies"
    PAGEABLE_COPIES = "pageable copies"
    SYNCHRONOUS_MEMSETS = "synchronous memsets"


def with_calls() -> sa.Join:
    """The memory operations beside the calls that asked for them."""
    memory, calls = tables.memory_ops, tables.api_calls
    return memory.join(
        calls, sa.and_(*[calls.c[key] == memory.c[key] for key in ("report", "process", "correlation_id")])
    )


def are(kind: MemoryCalls) -> list[sa.ColumnElement[bool]]:
    """Which rows of `with_calls` are of this kind."""
    memory, name = tables.memory_ops.c, tables.api_calls.c.name
    is_async = sa.func.contains(sa.func.lower(name), "async", type_=sa.Boolean)
    is_set = sa.cast(memory.is_memset, sa.Boolean)
    if kind is MemoryCalls.SYNCHRONOUS_MEMSETS:
        return [
            is_set,
            name.startswith("cudaMemset"),
            sa.not_(is_async),
            memory.target_memory.in_(["Pinned", "Managed"]),
        ]
    is_copy = [sa.not_(is_set), name.startswith("cudaMemcpy")]
    if kind is MemoryCalls.PAGEABLE_COPIES:
        return [*is_copy, is_async, sa.or_(memory.source_memory == "Pageable", memory.target_memory == "Pageable")]
    is_staged = sa.and_(memory.copy_kind == _HOST_TO_DEVICE, memory.bytes <= _STAGED)
    inside = sa.and_(memory.source_device.is_not(None), memory.source_device == memory.target_device)
    return [
        *is_copy,
        sa.not_(is_async),
        sa.not_(sa.func.coalesce(is_staged, sa.false())),
        sa.not_(sa.func.coalesce(inside, sa.false())),
    ]
