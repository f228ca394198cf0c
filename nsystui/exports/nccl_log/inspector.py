"""Records of NCCL Inspector, NCCL's profiler plugin: JSON lines of the formats v4.0 to v4.3 (docs/nccl.md#inspector).

Since v4.3, only the line of a dump names communicator and process, and counts the lines after it that are its records.
"""

from __future__ import annotations

import re
from math import isfinite
from typing import Any, NamedTuple

from nsystui.base.inputs import json_in

RECORD = re.compile(rb'"(coll_perf|p2p_perf|proxy_trace|dump_stats)"\s*:')
"""The key of a record's content. NCCL writes a record without line ends."""

_WITH_HEADERS = ("v4.0", "v4.1", "v4.2")
"""Formats in which each record has its communicator and process."""

_UNKNOWN_SIZE = 1 << 62
"""NCCL multiplies by -1 for data types that the plugin does not know, which makes unsigned sizes above this."""


class InspectedRank(NamedTuple):
    """A communicator's rank in its process. ``rank`` and ``ranks`` are of the communicator, ``name`` is the user's."""

    host: str
    pid: int
    communicator: str
    name: str | None
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
    """A call: ns, and bytes per second; ``None`` is a value that the record lacks.

    ``number``: of a collective, from 0, among the communicator's calls of this op; ``None`` for sends and receives,
    which the plugin counts without the calls that it leaves out.
    """

    rank: InspectedRank
    kind: InspectedKind
    number: int | None
    time: int | None
    algbw: float | None
    busbw: float | None


class InspectorDump(NamedTuple):
    """The number of records that a rank's rings dropped since the start."""

    rank: InspectedRank
    dropped: int


class InspectorReader:
    """Reads the records of one file.

    ``is_open``: whether the file has records. ``damaged``: unreadable records, and records without their dump.
    ``left``: records of the last dump that are not read yet.
    """

    def __init__(self) -> None:
        self.is_open = False
        self.damaged = self.left = 0
        self._rank: InspectedRank | None = None

    def accepts(self, line: bytes) -> bool:
        """Return whether a line is a record, or in a file of records a damaged record."""
        return (self.is_open and line.startswith(b"{")) or RECORD.search(line) is not None

    def read(self, line: bytes) -> InspectedCall | InspectorDump | None:
        """Return a record; ``None`` if it is damaged, or of another kind (``proxy_trace``)."""
        self.is_open = True
        record: Any = {}
        try:
            record = json_in(line)
            rank = _rank_of(record) if "header" in record else self._rank if self.left else None
            if rank is None:
                raise ValueError("no header")
            if "dump_stats" in record:
                return self._dump(record, rank)
            return None if "proxy_trace" in record else _call_of(record, rank)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
            self.damaged += 1
            return None
        finally:
            if "header" not in record:
                self.left = max(self.left - 1, 0)

    def _dump(self, record: dict[str, Any], rank: InspectedRank) -> InspectorDump:
        stats, version = record["dump_stats"], record["metadata"]["inspector_output_format_version"]
        self.damaged += self.left
        self._rank = rank
        kinds = ("coll", "p2p", "proxy")
        records = 0 if version in _WITH_HEADERS else sum(_number(stats.get(f"{kind}_records")) or 0 for kind in kinds)
        self.left = records
        return InspectorDump(rank, sum(_number(stats.get(f"{kind}_dropped_total")) or 0 for kind in kinds[:2]))


def _rank_of(record: dict[str, Any]) -> InspectedRank:
    header, metadata = record["header"], record["metadata"]
    host, pid = _text(metadata["hostname"]), _number(metadata["pid"])
    if host is None or pid is None:
        raise ValueError("no process")
    numbers = (_number(header.get(key)) for key in ("rank", "n_ranks", "nnodes"))
    return InspectedRank(host, pid, f"{int(header['id'], 16):#x}", _text(header.get("comm_name")), *numbers)


def _call_of(record: dict[str, Any], rank: InspectedRank) -> InspectedCall:
    prefix = "coll" if "coll_perf" in record else "p2p"
    values = {key.removeprefix(f"{prefix}_"): value for key, value in record[f"{prefix}_perf"].items()}
    op, size, time = _text(values[prefix]), _number(values.get("msg_size_bytes")), _number(values.get("exec_time_us"))
    if op is None:
        raise ValueError("no op")
    kind = InspectedKind(op, size, *(_text(values.get(key)) for key in ("algo", "proto", "timing_source")))
    rates = (_rate(values.get(f"{key}_gbs")) if size is not None else None for key in ("algobw", "busbw"))
    number = _number(values.get("sn")) if prefix == "coll" else None
    return InspectedCall(rank, kind, number, None if time is None else 1000 * time, *rates)


def _text(value: object) -> str | None:
    """Return a text; ``None`` if it is missing or ``unknown``."""
    return value if isinstance(value, str) and value not in ("", "unknown") else None


def _number(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < _UNKNOWN_SIZE else None


def _rate(value: object) -> float | None:
    """Return bytes per second from 10⁹ bytes per second; ``None`` if no time or size was measured."""
    return 1e9 * value if isinstance(value, (int, float)) and isfinite(value) and value > 0 else None
