"""The union of the operations of each place, a device or a stream, read from one table in one pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.selection import Selection, Task
from nsystui.questions.device_time import BusyParts
from nsystui.questions.interval_blocks import IntervalBlocks, UnionBuilder
from nsystui.questions.intervals import Times
from nsystui.questions.where import where
from nsystui.store import tables
from nsystui.store.session import Session

DEVICE = ("report", "process", "device")
STREAM = (*DEVICE, "stream")


def busy_parts(
    session: Session, keys: Sequence[str], places: Sequence[tuple[int, ...]], streams: frozenset[int] | None = None
) -> list[BusyParts]:
    """When each category kept each of ``places`` busy, on the clocks of the reports.

    A place is a value for each of ``keys`` (``DEVICE`` or ``STREAM``). Of ``streams`` only, where some are given.
    """
    kernels = _merged(session, tables.kernels, keys, places, streams)
    memory = _merged(session, tables.memory_ops, keys, places, streams)
    graph = _merged(session, tables.graph_launches, keys, places, streams)
    return [
        BusyParts.of(kernels[number, 0], kernels[number, 1], memory[number, 0], graph[number, 0])
        for number in range(len(places))
    ]


def _merged(
    session: Session,
    table: sa.Table,
    keys: Sequence[str],
    places: Sequence[tuple[int, ...]],
    streams: frozenset[int] | None,
) -> dict[tuple[int, int], IntervalBlocks]:
    """The union of the operations of a table, by (index into ``places``, 1 for NCCL kernels and else 0); own clock."""
    builders = [UnionBuilder() for _ in range(2 * len(places))]
    if places and session.count(table):
        columns = table.c
        given = _given(keys, places)
        is_nccl = columns.is_nccl if "is_nccl" in columns else sa.literal(0)
        lane = sa.cast(2 * given.c.place + is_nccl, sa.Integer).label("lane")
        is_same = [columns[key] == given.c[key] for key in keys]
        chosen = Selection(tasks=frozenset(Task(place[0], place[1]) for place in places), streams=streams)
        is_whole = (columns.start.is_not(None), columns.end.is_not(None))
        query = (
            sa.select(lane, columns.start, columns.end)
            .join_from(table, given, sa.and_(*is_same))
            .where(*where(table, chosen), *is_whole)
        )
        for batch in session.array_batches(query):
            _add(builders, batch["lane"], batch["start"], batch["end"])
    return {divmod(number, 2): builder.blocks() for number, builder in enumerate(builders)}


def _add(builders: Sequence[UnionBuilder], lane: NDArray[np.int32], starts: Times, ends: Times) -> None:
    """Gives each operation to the builder of its lane."""
    order = np.argsort(lane, kind="stable")
    used, firsts = np.unique(lane[order], return_index=True)
    for number, of_lane in zip(used.tolist(), np.split(order, firsts[1:]), strict=True):
        builders[number].add(starts[of_lane], ends[of_lane])


def _given(keys: Sequence[str], places: Sequence[tuple[int, ...]]) -> sa.Subquery:
    """The index of each place, as a table to join with."""
    columns = [sa.column(key, sa.BigInteger) for key in (*keys, "place")]
    rows = [(*place, number) for number, place in enumerate(places)]
    return sa.select(sa.values(*columns, name="given").data(rows)).subquery("places")
