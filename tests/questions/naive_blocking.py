"""A naive computation of what blocked the GPUs of programs.

`Naive` reads the rows of an export with SQLite; its `Gpu` finds the work or the wait at each moment, from the
definitions alone (docs/path.md): loops without arrays, nothing of `nsystui.questions`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from support import native, native_count
from synthetic.gpu_program import BLOCKING, DEFAULT, Span


@dataclass(eq=False)
class _Operation:
    """An operation of a GPU; ``call``: (begin, end) of the call that launched it."""

    process: int
    device: int
    place: tuple[int, int]
    start: int
    end: int
    kind: str
    correlation: int | None
    call: Span | None
    node: int | None
    inside_graph: bool = False
    before: _Operation | None = None


_PROCESS = ~0xFFFFFF
_FOREVER = 10**18
NOTHING: frozenset[str] = frozenset()
_CUSTOM = re.compile("cross_device_reduce|allreduce_fusion|multimem_all_reduce")
_AT_END = (
    *("nccl", "communication", "to_device", "to_host", "on_device", "other_copies"),
    *("memsets", "migrations", "host_functions"),
)
_COPIES = {1: "to_device", 2: "to_host", 8: "on_device", **dict.fromkeys((11, 12, 13), "migrations")}


class Naive:
    def __init__(self, path: Path) -> None:
        def rows(table: str, columns: str) -> list[tuple[Any, ...]]:
            return native(path, f"SELECT {columns} FROM {table}") if native_count(path, table) else []

        def has(table: str, column: str) -> bool:
            return bool(native(path, f"SELECT 1 FROM pragma_table_info('{table}') WHERE name = '{column}'"))

        names = dict(rows("StringIds", "id, value"))
        runtime = rows("CUPTI_ACTIVITY_KIND_RUNTIME", "globalTid, correlationId, start, end, nameId")
        calls = {(thread & _PROCESS, number): (start, end, names[name]) for thread, number, start, end, name in runtime}
        capturing: set[int] = set()
        self._event_calls = defaultdict(list)
        for thread, number, start, _, name in sorted(runtime, key=lambda row: row[1]):
            if "BeginCapture" in names[name]:
                capturing.add(thread)
            elif "EndCapture" in names[name]:
                capturing.discard(thread)
            elif thread not in capturing and re.search("StreamWaitEvent|EventRecord", names[name]):
                self._event_calls[thread & _PROCESS].append((number, start, "Wait" in names[name]))
        self.operations: list[_Operation] = []

        def add(kind: str, row: Sequence[Any], node: int | None) -> None:
            process, device, context, stream, start, end, number = row
            call = calls.get((process, number))
            span = None if call is None else call[:2]
            self.operations.append(_Operation(process, device, (context, stream), start, end, kind, number, span, node))

        common = "globalPid, deviceId, contextId, streamId, start, end, correlationId"
        table = "CUPTI_ACTIVITY_KIND_KERNEL"
        node = "graphNodeId" if has(table, "graphNodeId") else "NULL"
        for *row, at, demangled, short in rows(table, f"{common}, {node}, demangledName, shortName"):
            is_nccl = names[short].lower().startswith("nccl")
            is_custom = _CUSTOM.search(names[demangled])
            add("nccl" if is_nccl else "communication" if is_custom else "compute", row, at)
        for *row, kind in rows("CUPTI_ACTIVITY_KIND_MEMCPY", f"{common}, copyKind"):
            add(_COPIES.get(kind, "other_copies"), row, None)
        for row in rows("CUPTI_ACTIVITY_KIND_MEMSET", common):
            add("memsets", row, None)
        for row in rows("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", common):
            add("compute", row, None)
        for row in rows("CUPTI_ACTIVITY_KIND_GRAPH_HOST_NODE_AND_HOST_LAUNCH", common):
            add("host_functions", row, None)
        self.operations.sort(key=lambda one: one.start)
        self._in_stream: dict[tuple[int, tuple[int, int]], list[_Operation]] = defaultdict(list)
        launched: set[tuple[int, int | None]] = set()
        for one in self.operations:
            one.inside_graph = one.node is not None and (one.process, one.correlation) in launched
            launched.add((one.process, one.correlation))
            if one.kind == "migrations":
                continue
            stream = self._in_stream[one.process, one.place]
            one.before = stream[-1] if stream else None
            stream.append(one)

        def events(table: str) -> list[tuple[Any, ...]]:
            """Return (call, correlation, process, place, event, eventSyncId) of each row."""
            sync = "eventSyncId" if has(table, "eventSyncId") else "0"
            columns = f"globalPid, correlationId, contextId, streamId, eventId, {sync}"
            return [
                (calls[process, number], number, process, (context, stream), event, eventsync)
                for process, number, context, stream, event, eventsync in rows(table, columns)
                if (process, number) in calls
            ]

        self._records = defaultdict(list)
        for record in events("CUPTI_ACTIVITY_KIND_CUDA_EVENT"):
            self._records[record[2]].append(record)
        self._has_events = bool(native_count(path, "CUPTI_ACTIVITY_KIND_CUDA_EVENT"))
        self._waits = defaultdict(list)
        for wait in events("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"):
            if "StreamWaitEvent" in wait[0][2]:
                self._waits[wait[2], wait[3]].append(wait)
        self._flags = defaultdict(dict)
        for pid, context, stream, flag in rows("TARGET_INFO_CUDA_STREAM", "processId, contextId, streamId, flag"):
            self._flags[pid, context][stream] = flag

    @staticmethod
    def _launched_before(one: _Operation, start: int, correlation: int) -> bool:
        """Return whether an operation was launched before a call, by time, else by correlation id."""
        if one.call is not None:
            return one.call[0] < start
        return one.correlation is not None and one.correlation < correlation

    def _last(self, process: int, place: tuple[int, int], start: int, correlation: int) -> _Operation | None:
        """Return the last operation that was launched into a stream before a call."""
        for one in reversed(self._in_stream.get((process, place), [])):
            if self._launched_before(one, start, correlation):
                return one
        return None

    def _record_of(self, wait: tuple[Any, ...]) -> tuple[Any, ...] | None:
        call, _, process, place, event, sync = wait
        best = None
        for record in self._records[process]:
            is_its = record[5] == sync if sync and record[5] else (record[3][0], record[4]) == (place[0], event)
            if is_its and record[0][0] < call[0] and (best is None or record[0][0] > best[0][0]):
                best = record
        if best is not None and not (sync and best[5]):
            lost = [number for number in self._lost(process) if best[1] < number < wait[1]]
            return None if lost else best
        return best

    def _lost(self, process: int) -> list[int]:
        """Return the calls that recorded an event without a row."""
        rows = {record[1] for record in self._records[process]}
        return [number for number, _, is_wait in self._event_calls[process] if not is_wait and number not in rows]

    def unseen(self, one: _Operation) -> int | None:
        """Return the id before which an operation must be launched to have held ``one`` by an unrecorded wait."""
        process, found = one.process, []
        waits = {wait[1]: wait for key, own in self._waits.items() if key[0] == process for wait in own}
        called = {number: start for number, start, is_wait in self._event_calls[process] if is_wait}
        called |= {number: wait[0][0] for number, wait in waits.items()}
        if not called and not self._has_events:
            return one.correlation
        for number, start in called.items():
            row = waits.get(number)
            if row is not None and (row[3] != one.place or self._record_of(row) is not None):
                continue
            if one.call[0] > start and not (one.before and not self._launched_before(one.before, start, number)):
                every = [called for called, _, is_wait in self._event_calls[process] if not is_wait]
                every += [record[1] for record in self._records[process]]
                records = every if row is None else self._lost(process)
                found.append(max((record for record in records if record < number), default=0) if every else number)
        return max(found, default=None)

    def ends(self, one: _Operation, unseen: float) -> dict[str, int]:
        """Return the last end, by kind, of the operations that may have held ``one``."""
        found: dict[str, int] = {}
        for other in self.operations:
            is_before = other.call is None or other.correlation < unseen
            is_before &= other.kind != "migrations" or unseen == _FOREVER
            if other.process == one.process and other.end <= one.start and is_before:
                found[other.kind] = max(found.get(other.kind, other.end), other.end)
        return found

    def producer(self, one: _Operation) -> _Operation | None:
        """Return the operation that ``one`` waited for: the last to end."""
        assert one.call is not None and one.correlation is not None
        found = [one.before]
        for wait in self._waits[one.process, one.place]:
            (called, *_), number = wait[0], wait[1]
            if called > one.call[0] or (one.before and not self._launched_before(one.before, called, number)):
                continue
            record = self._record_of(wait)
            if record is not None:
                found.append(self._last(one.process, record[3], record[0][0], record[1]))
        context, stream = one.place
        flags = self._flags[one.process >> 24 & 0xFFFFFF, context]
        own = flags.get(stream)
        for other, flag in flags.items():
            if {own, flag} == {BLOCKING, DEFAULT}:
                found.append(self._last(one.process, (context, other), one.call[0], one.correlation))
        return max((source for source in found if source is not None), key=lambda source: source.end, default=None)

    def migration(self, one: _Operation) -> _Operation | None:
        """Return the last migration to end before ``one`` began, except during kernels of its GPU."""
        found = []
        there = [other for other in self.operations if (other.process, other.device) == (one.process, one.device)]
        kernels = [(other.start, other.end) for other in there if other.kind in ("compute", "nccl", "communication")]
        for other in there:
            if other.kind == "migrations" and other.end <= one.start:
                found += [other] * (not any(start < other.end < end for start, end in kernels))
        return max(found, key=lambda source: source.end, default=None)

    def gpu(self, process: int, device: int) -> Gpu:
        return Gpu(self, [one for one in self.operations if (one.process, one.device) == (process, device)])


class Gpu:
    """The operations of a process on one of its GPUs."""

    def __init__(self, export: Naive, work: list[_Operation]) -> None:
        self.export, self.work = export, work
        self.compute = [one for one in work if one.kind == "compute"]
        self._starts = [one.start for one in self.compute]

    @property
    def span(self) -> Span:
        return self._busy[0][0], self._busy[-1][1]

    @cached_property
    def _busy(self) -> list[tuple[int, int]]:
        return joined([(one.start, one.end) for one in self.work if one.kind != "host_functions"])

    @cached_property
    def told(self) -> list[tuple[int, int, str, frozenset[str]]]:
        """Return the part of each moment, also before the first operation and after the last.

        An unresolved moment has the parts that it may belong to.
        """
        computing = joined([(one.start, one.end) for one in self.compute])
        found = [(start, end, "compute", NOTHING) for start, end in computing]
        edges = [-_FOREVER, *(edge for span in computing for edge in span), _FOREVER]
        for gap_start, gap_end in zip(edges[::2], edges[1::2], strict=True):
            if gap_end > gap_start:
                found += self._gap(gap_start, gap_end)
        return sorted(found)

    def _gap(self, start: int, end: int) -> list[tuple[int, int, str, frozenset[str]]]:
        """Cut a stretch without compute wherever anything could change; a piece has the part of its first moment."""
        place = bisect_right(self._starts, start)
        if place == len(self.compute):
            edges = {start, end, *(edge for one in self.work for edge in (one.start, one.end) if start < edge < end)}
            return [(low, high, self._at_end(low), NOTHING) for low, high in pairwise(sorted(edges))]
        kernel = self.compute[place]
        assert kernel.start == end
        is_lost, is_inside = kernel.call is None, kernel.call is not None and kernel.inside_graph
        rest = "in_graph" if is_inside else "stalled"
        returned, producer, migration = start, None, None
        ends: dict[str, int] = {}
        if is_lost or is_inside:
            ends = self.export.ends(kernel, _FOREVER)
        else:
            returned, producer = kernel.call[1], self.export.producer(kernel)
            migration = self.export.migration(kernel)
            unseen = self.export.unseen(kernel)
            ends = {} if unseen is None else self.export.ends(kernel, unseen)
        passed = start if producer is None else producer.end
        moved = start if migration is None else migration.end
        freed = max(passed, moved)
        held = end if is_lost else max([returned, *ends.values()])
        is_open = is_lost or held > max(freed, returned)
        if producer is not None and is_open:
            ends[producer.kind] = max(ends.get(producer.kind, passed), passed)
        if moved > passed and is_open:
            ends["migrations"] = moved
        moments = {start, end, returned, passed, freed, held, *ends.values()}
        found = []
        for moment, until in pairwise(sorted(moment for moment in moments if start <= moment <= end)):
            possible = NOTHING
            if moment < returned:
                part = "starved"
            elif is_open and moment < held:
                part = "unresolved"
                possible = frozenset(kind for kind, last in ends.items() if moment < last and kind != "compute")
                possible |= {rest, *(["starved"] if kernel.call is None else [])}
            elif moment < passed:
                part = producer.kind if producer.kind != "compute" else rest
            elif moment < moved:
                part = "migrations"
            else:
                part = rest
            found.append((moment, until, part, possible))
        return found

    def _at_end(self, moment: int) -> str:
        """Return the first kind that still runs after the last compute, or the tail."""
        running = {one.kind for one in self.work if one.start <= moment < one.end}
        return next((kind for kind in _AT_END if kind in running), "tail")

    def parts(self, low: int, high: int) -> Counter[str]:
        """Return the time of each part between two moments."""
        found: Counter[str] = Counter()
        for start, end, part, _ in self.told:
            found[part] += max(min(end, high) - max(start, low), 0)
        return +found

    def possible(self, low: int, high: int) -> Counter[str]:
        """Return how much of the unresolved time between two moments may belong to each part."""
        found: Counter[str] = Counter()
        for start, end, _, parts in self.told:
            found.update(dict.fromkeys(parts, max(min(end, high) - max(start, low), 0)))
        return +found

    def busy(self, low: int, high: int) -> int:
        return sum(max(min(end, high) - max(start, low), 0) for start, end in self._busy)


def joined(spans: list[Span]) -> list[Span]:
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found
