"""Records of NCCL Inspector, NCCL's profiler plugin: JSON lines of the formats v4.0 to v4.3 (docs/nccl.md#inspector).

Since v4.3, only the line of a dump names communicator and process, and counts the lines after it that are its records.
"""

import re
from math import isfinite
from typing import Any, NamedTuple

from nsystui.base.files import json_in

RECORD = re.compile(rb'"(?:coll_perf|p2p_perf|proxy_trace|dump_stats)"\s*:')
"""The key of a record's content."""

_HIGHEST = 1 << 53
"""The plugin multiplies by -1 for data types that it does not know: the unsigned sizes are above this."""


class InspectedRank(NamedTuple):
    """A communicator's rank in its process; ``rank`` and ``ranks`` are of the communicator."""

    host: str
    pid: int
    communicator: str
    rank: int | None
    ranks: int | None
    nodes: int | None


class InspectedKind(NamedTuple):
    """The fields that many calls share. ``size``: bytes of one call. ``source`` of the time: ``kernel_gpu``, …"""

    op: str
    size: int | None
    algorithm: str | None
    protocol: str | None
    source: str | None


class InspectedCall(NamedTuple):
    """A call; ``time`` in ns, ``busbw`` in bytes/s, ``None`` if unknown; ``begun`` (UTC, ns) only in verbose records.

    ``number``: from 0, among the communicator's calls of this collective; ``None`` for sends and receives, of which the
    plugin numbers only the recorded calls.
    """

    rank: InspectedRank
    kind: InspectedKind
    number: int | None
    time: int | None
    busbw: float | None
    begun: int | None = None


class InspectorReader:
    """Reads the records of one file.

    ``is_open``: whether the file has records. ``damaged``: the number of unreadable or missing records. ``left``: the
    records of the last dump that are not read yet.
    """

    def __init__(self) -> None:
        self.is_open = False
        self.damaged = self.left = 0
        self._rank: InspectedRank | None = None

    def read(self, line: bytes) -> InspectedCall | None:
        """Return a call; ``None`` for other lines and records, and damaged records."""
        if not (RECORD.search(line) or (self.is_open and line.startswith(b"{"))):
            return None
        self.is_open = True
        record: Any = {}
        try:
            record = json_in(line)
            rank = _rank_of(record) if "header" in record else self._rank if self.left else None
            if rank is None:
                raise ValueError("no header")
            if "dump_stats" in record:
                numbers = [_number(record["dump_stats"].get(f"{kind}_records")) for kind in ("coll", "p2p", "proxy")]
                has_headers = record["metadata"]["inspector_output_format_version"] in ("v4.0", "v4.1", "v4.2")
                self.damaged += self.left
                self.left, self._rank = (0, None) if has_headers else (sum(filter(None, numbers)), rank)
            return _call_of(record, rank) if "coll_perf" in record or "p2p_perf" in record else None
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
            self.damaged += 1
            return None
        finally:
            if "header" not in record:
                self.left = max(self.left - 1, 0)


def _rank_of(record: dict[str, Any]) -> InspectedRank:
    header, metadata = record["header"], record["metadata"]
    host, pid = _text(metadata["hostname"]), _number(metadata["pid"])
    if host is None or pid is None:
        raise ValueError("no process")
    numbers = (_number(header.get(key)) for key in ("rank", "n_ranks", "nnodes"))
    return InspectedRank(host, pid, f"{int(header['id'], 16):#x}", *numbers)


def _call_of(record: dict[str, Any], rank: InspectedRank) -> InspectedCall:
    prefix = "coll" if "coll_perf" in record else "p2p"
    body = record[f"{prefix}_perf"]
    op = _text(body[prefix])
    if op is None:
        raise ValueError("no op")
    texts = (_text(body.get(f"{prefix}_{key}")) for key in ("algo", "proto", "timing_source"))
    size, time = (_number(body.get(f"{prefix}_{key}")) for key in ("msg_size_bytes", "exec_time_us"))
    busbw = body.get(f"{prefix}_busbw_gbs")
    is_measured = size is not None and isinstance(busbw, (int, float)) and isfinite(busbw) and busbw > 0
    number, begun = _number(body.get("coll_sn")), _number((body.get("event_trace_ts") or {}).get("coll_start_ts"))
    times = None if time is None else 1000 * time, 1e9 * busbw if is_measured else None
    return InspectedCall(rank, InspectedKind(op, size, *texts), number, *times, begun and 1000 * begun)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value not in ("", "unknown") else None


def _number(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < _HIGHEST else None
