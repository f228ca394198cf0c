"""Message sizes in four buckets, with the edges of the ``nsys-profiling`` workflow (``4-histogram.awk``).

The size is that of one call, count × size of the data type, as NCCL's payload has it, not multiplied by the ranks.
"""

from __future__ import annotations

from bisect import bisect_right

from nsystui.base.units import size_label

EDGES: tuple[int, ...] = (64 * 1024, 1024**2, 16 * 1024**2)
"""Where the second, third and fourth bucket begin, bytes (inclusive)."""

_FIRST, _SECOND, _THIRD = map(size_label, EDGES)
BUCKETS: tuple[str, ...] = (f"<{_FIRST}", f"{_FIRST}–{_SECOND}", f"{_SECOND}–{_THIRD}", f">{_THIRD}")
"""The labels, small messages first: ``<64KiB`` …"""


def bucket_of(size: int | None) -> str | None:
    """The bucket of a message of ``size`` bytes; ``None`` where the size is not known."""
    return None if size is None or size < 0 else BUCKETS[bisect_right(EDGES, size)]
