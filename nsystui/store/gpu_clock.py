"""Clocks of GPUs that differ from the CPU's by a constant, found when an export is read (docs/numbers.md#gpu-clock).

An operation starts after the call that launched it, and ends before a later wait for it returns. Where both bounds
meet, the difference is known, and `Schema.time` removes it from every time read.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nsystui.base.errors import ExportError
from nsystui.exports import opening
from nsystui.exports.metadata import process_of
from nsystui.exports.opening import ArrowReader
from nsystui.exports.schema import GPU_WORK, SYNCS, GpuClock, Schema

if TYPE_CHECKING:
    import duckdb

CLOCK_NOISE = 100_000
"""The tolerated error of converted GPU timestamps, ns; errors up to 64,000 were seen."""
_CALLS, _COPIES = "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_MEMCPY"
_DEVICE_TO_HOST = 2
_NONE = 0xFFFFFFFF
"""No event; no stream: the wait is for all streams of its context."""
_ALL_STREAMS = -2
_BLOCKS, _BLOCK_ROWS = 8, 128
"""Blocks of a table in a sample, and rows of a block."""


def gpu_clocks(path: Path, native: Schema, connection: duckdb.DuckDBPyConnection) -> tuple[GpuClock, ...] | None:
    """Return the clocks to correct; ``None`` if clocks differ by an unknown time.

    A sample of waits decides whether the calls are read: a few ms if clocks agree. A damaged export has no corrections:
    reading its rows reports the damage.
    """
    import duckdb

    work = [table for table in GPU_WORK if native.has(table)]
    if not work or not native.has(_CALLS) or not native.has_column(_CALLS, "globalTid"):
        return ()
    try:
        with closing(opening.connect(path)) as plain:
            is_suspect = (sample := _Sample(plain, native, work)).is_suspect()
            # A wrong clock is wrong for all work; other work from before the session is impossible.
            is_wrong = is_suspect and replace(sample, condition=f'"end" > {native.origin}').is_suspect()
        bounds = _bounds(path, native, work, connection) if is_suspect else []
    except (ExportError, OverflowError, *opening.READ_ERRORS, duckdb.InvalidInputException, duckdb.ConversionException):
        return ()
    clocks = [
        GpuClock(process, device, lead, abs(most - least), is_wait)
        for is_wait, process, device, least, most in bounds
        if (lead := _lead(least, most))
    ]
    corrected = {clock.process for clock in clocks if not clock.is_of_waits}
    known = tuple(clock for clock in clocks if clock.process in corrected)
    return None if is_wrong and not known else known


def _lead(least: int, most: int) -> int:
    """Return the roundest lead between a clock's bounds, ns; 0 if they are over 1 ms apart, or may be noise.

    If they contradict each other, timestamps are noisy: no operation may then be off by more than `CLOCK_NOISE`.
    """
    if most - least > 1_000_000 or (least <= CLOCK_NOISE and most >= -CLOCK_NOISE):
        return 0
    low, high = (least, most) if least <= most else (least - CLOCK_NOISE, most + CLOCK_NOISE)
    steps = (10**digits for digits in range(18, -1, -1))
    return next((multiple for step in steps if (multiple := -(-low // step) * step) <= high), 0)


@dataclass(frozen=True)
class _Sample:
    """A sample of GPU work, waits and their calls.

    Correlation ids count the calls of a process: work with a smaller id than a wait was launched before it.
    """

    connection: sqlite3.Connection
    native: Schema
    work: Sequence[str]
    condition: str = "true"

    def is_suspect(self) -> bool:
        """Return whether work or a wait is outside its call, or work on the wrong side of a wait."""
        is_wait = f"ifnull({self.native.integer(SYNCS, 'eventId')}, 0) IN (0, {_NONE})"
        conditions = {SYNCS: is_wait, _COPIES: f"{self.native.integer(_COPIES, 'copyKind')} = {_DEVICE_TO_HOST}"}
        for table in (SYNCS, *self.work):
            for row in self._rows(table, conditions.get(table, "true")):
                times = row["start"], row["end"]
                for start, end, name in self._call(row):
                    ends_inside = table == SYNCS or (table == _COPIES and "Async" not in name)
                    if times[0] < start - CLOCK_NOISE or (ends_inside and times[1] > end + CLOCK_NOISE):
                        return True
                    times = start, end
                if table == SYNCS and self._is_out_of_order(row, *times):
                    return True
        return False

    def _rows(self, table: str, condition: str) -> Iterator[dict[str, int]]:
        names = ("globalPid", "contextId", "streamId", "correlationId", "start", "end")
        columns = ", ".join(f"ifnull({self.native.integer(table, name)}, -1)" for name in names)
        query = f'SELECT {columns} FROM "{table}" WHERE rowid BETWEEN ? AND ?'
        query += f" AND {condition} AND {self.condition} GROUP BY 1, 2"
        last = self.native.last_rowid.get(table, 0)
        for first in range(0, last, max(-(-last // _BLOCKS), _BLOCK_ROWS)):
            for row in self.connection.execute(query, (first, first + _BLOCK_ROWS)):
                yield dict(zip(names, row, strict=True))

    def _is_out_of_order(self, wait: dict[str, int], start: int, end: int) -> bool:
        """Return whether work launched later starts before a wait, or earlier work of its stream ends later."""
        is_in_stream = f"contextId = :contextId AND :streamId IN (streamId, 0, {_NONE})"
        conditions = {
            start - CLOCK_NOISE: "start < :time AND correlationId > :correlationId",
            end + CLOCK_NOISE: f'"end" > :time AND correlationId < :correlationId AND {is_in_stream}',
        }
        for table, (time, condition) in itertools.product(self.work, conditions.items()):
            near = self._first(table, "start", time)
            query = f'SELECT 1 FROM "{table}" WHERE {self.condition} AND rowid BETWEEN :first AND :last'
            query += " AND globalPid = :globalPid"
            values = {**wait, "time": time, "first": near - _BLOCK_ROWS, "last": near + _BLOCK_ROWS}
            if self.connection.execute(f"{query} AND {condition}", values).fetchone():
                return True
        return False

    def _call(self, row: dict[str, int]) -> list[tuple[int, int, str]]:
        """Return start, end and name of a row's call, if the calls near it are in order."""
        number = row["correlationId"]
        near = self._first(_CALLS, "correlationId", number)
        columns = ", ".join(f"ifnull({self.native.integer(_CALLS, name)}, 0)" for name in ("globalTid", "start", "end"))
        query = f"""SELECT {columns}, value FROM {_CALLS} c JOIN StringIds s ON s.id = nameId
            WHERE c.rowid BETWEEN ? AND ? AND correlationId = ?"""
        rows = self.connection.execute(query, (near - _BLOCK_ROWS, near + _BLOCK_ROWS, number))
        return [(start, end, str(name)) for thread, start, end, name in rows if process_of(thread) == row["globalPid"]]

    def _first(self, table: str, column: str, value: int) -> int:
        """Return the first row from which on ``column`` is at least ``value``, if it ascends."""
        low, high = 0, self.native.last_rowid[table] + 1
        query = f'SELECT {self.native.integer(table, column)} FROM "{table}" WHERE rowid >= ? LIMIT 1'
        while low < high:
            middle = (low + high) // 2
            row = self.connection.execute(query, (middle,)).fetchone()
            low, high = (middle + 1, high) if row is not None and (row[0] or 0) < value else (low, middle)
        return low


_BOUNDS = f"""
WITH calls AS MATERIALIZED (
    SELECT process, correlation_id, min(start) AS call_start, max("end") AS call_end, max(copies) AS copies
    FROM call_rows WHERE result = 0 GROUP BY process, correlation_id
), work AS MATERIALIZED (
    SELECT * FROM work_rows JOIN calls USING (process, correlation_id) WHERE start <= "end"
), waits AS MATERIALIZED (
    SELECT * FROM wait_rows JOIN calls USING (process, correlation_id) WHERE start <= "end"
), moments AS (
    SELECT process, device, context, unnest([stream, {_ALL_STREAMS}]) AS stream, call_end AS moment, "end",
        NULL AS wait_end
    FROM work
    UNION ALL SELECT process, NULL, context, stream, call_start, NULL, call_end FROM waits
        WHERE detail IN (0, {_NONE})
), waited AS (
    SELECT process, max(device) OVER before AS device, max("end") OVER before AS latest, wait_end
    FROM moments WINDOW before AS (PARTITION BY process, context, stream ORDER BY moment)
)
SELECT is_wait, process, device, max(least), min(most) FROM (
    SELECT false AS is_wait, process, device, NULL AS least, start - call_start AS most FROM work
    UNION ALL SELECT false, process, device, "end" - call_end, NULL FROM work
        WHERE copies AND detail = {_DEVICE_TO_HOST}
    UNION ALL SELECT false, process, device, latest - wait_end, NULL FROM waited WHERE device IS NOT NULL
    UNION ALL SELECT true, process, device, "end" - call_end, start - call_start FROM waits
) GROUP BY ALL HAVING max(least) IS NOT NULL AND min(most) IS NOT NULL ORDER BY ALL
"""
"""Bounds of the lead of each GPU's clock, and of its waits' clock; the end of all work that was launched before a wait
is the latest end. A wait for an event (``detail``) is not for a stream."""


def _bounds(
    path: Path, native: Schema, work: Sequence[str], connection: duckdb.DuckDBPyConnection
) -> list[tuple[bool, int, int, int, int]]:
    """Return, for each GPU of a process, whether it is the clock of waits, process, device, least and most lead, ns."""
    is_copy = "value LIKE '%Memcpy%' AND value NOT LIKE '%Async%'"
    calls = f"""SELECT {native.optional_time(_CALLS, "start")} AS start, {native.optional_time(_CALLS, "end")} AS "end",
        {native.integer(_CALLS, "globalTid")} & -16777216 AS process, ifnull(correlationId, -1) AS correlation_id,
        ifnull({native.integer(_CALLS, "returnValue")}, 0) AS result,
        nameId IN (SELECT id FROM StringIds WHERE {is_copy}) AS copies FROM {_CALLS}"""
    work_query = " UNION ALL ".join(_timed(native, table, "copyKind", "streamId") for table in work)
    stream = f"CASE WHEN streamId IN (0, {_NONE}) THEN {_ALL_STREAMS} ELSE streamId END"
    waits = _timed(native, SYNCS, "eventId", stream) if native.has(SYNCS) else f"{work_query} LIMIT 0"
    with ExitStack() as stack:
        cursor = stack.enter_context(closing(connection.cursor()))
        for name, query in (("call_rows", calls), ("work_rows", work_query), ("wait_rows", waits)):
            cursor.register(name, cursor.from_arrow(stack.enter_context(ArrowReader(path)).stream(query)))
        return cursor.execute(_BOUNDS).fetchall()


def _timed(native: Schema, table: str, detail: str, stream: str) -> str:
    names = {"process": "globalPid", "device": "deviceId", "context": "contextId", "correlation_id": "correlationId"}
    columns = {
        **{name: native.optional_time(table, name) for name in ("start", "end")},
        **{name: f"ifnull({native.integer(table, column)}, -1)" for name, column in names.items()},
        "stream": f"ifnull({stream}, {_ALL_STREAMS})",
        "detail": f"ifnull({native.integer(table, detail)}, 0)",
    }
    selected = ", ".join(f'{sql} AS "{name}"' for name, sql in columns.items())
    return f'SELECT {selected} FROM "{table}" WHERE NOT (start = {native.origin} AND "end" = {native.origin})'
