"""Exchanges of messages between pairs of MPI ranks: how long the pair took, and how long one waited for the other.

The calls of two ranks that have as many blocking point-to-point calls are matched by their order; a match in which one
names the other as its peer is an exchange. It lasts from when both have called to when both have returned. What a rank
is in its call before the other one has called, it waits. See docs/triage.md#collectives-and-communication.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.selection import Selection, Task
from nsystui.questions.queries.conditions import job_end, job_start, where
from nsystui.store import tables
from nsystui.store.session import Session

_CALLS = tables.mpi_calls
_BLOCKING = "^MPI_(Send|Ssend|Rsend|Bsend|Recv|Mrecv|Sendrecv)(_replace)?$"


@dataclass(frozen=True)
class Pair:
    """The exchanges of two tasks: their number, bytes and time (ns) in sum, and what each waited for the other, ns."""

    tasks: tuple[Task, Task]
    count: int
    bytes: int
    time: int
    waits: tuple[int, int]

    @property
    def rate(self) -> float:
        """Bytes/s."""
        return self.bytes / self.time * 1e9 if self.time else 0.0

    @property
    def size(self) -> float:
        """The mean of the messages, bytes."""
        return self.bytes / self.count


def exchanges(session: Session, selection: Selection) -> list[Pair]:
    """Find every pair of open ranks that exchanged messages in blocking calls, whose peers and sizes are recorded.

    A rank that talks in several communicators is left out: in which of them a peer has its number is not recorded.
    """
    task_of = {
        rank: Task(report.index, process)
        for report in session.reports
        for process, rank in report.metadata.mpi_ranks.items()
    }
    calls = _calls(session, selection)
    ranks = [rank for rank, task in sorted(task_of.items()) if task in calls]
    pairs = (_pair(ranks, task_of, calls) for ranks in combinations(ranks, 2))
    return [pair for pair in pairs if pair is not None]


_Columns = Mapping[str, NDArray[np.int64]]


def _calls(session: Session, selection: Selection) -> dict[Task, _Columns]:
    """Start, end, peer and bytes of the calls of each task, by start; -1 where there is no peer."""
    own = _CALLS.c
    size = sa.func.greatest(sa.func.coalesce(own.send_bytes, 0), sa.func.coalesce(own.recv_bytes, 0))
    query = (
        sa.select(
            own.report, own.process, own.communicator, job_start(_CALLS), job_end(_CALLS),
            sa.func.coalesce(own.remote_rank, -1), size,
        )
        .where(
            *where(_CALLS, selection.with_name(None)), own.end.is_not(None),
            sa.func.regexp_matches(own.name, _BLOCKING, type_=sa.Boolean),
        )
        .order_by(own.report, own.process, own.start)
    )  # fmt: skip
    rows: dict[Task, list[tuple[Any, ...]]] = {}
    for report, process, *rest in session.rows(query) if session.count(_CALLS) else ():
        rows.setdefault(Task(report, process), []).append(tuple(rest))
    found: dict[Task, _Columns] = {}
    for task, of_task in rows.items():
        if len({row[0] for row in of_task}) == 1:
            table = np.array([row[1:] for row in of_task], np.int64)
            found[task] = {name: table[:, place] for place, name in enumerate(("start", "end", "peer", "bytes"))}
    return found


def _pair(ranks: tuple[int, int], task_of: Mapping[int, Task], calls_of: Mapping[Task, _Columns]) -> Pair | None:
    """The exchanges of two ranks, if there are any."""
    rank, peer = ranks
    tasks = task_of[rank], task_of[peer]
    calls, theirs = calls_of[tasks[0]], calls_of[tasks[1]]
    if len(calls["start"]) != len(theirs["start"]):
        return None
    both = (calls["peer"] == peer) | (theirs["peer"] == rank)
    begin = np.maximum(calls["start"], theirs["start"])
    end = np.maximum(calls["end"], theirs["end"])
    met = np.minimum(calls["end"], theirs["end"]) > begin  # else the message lay in a buffer: nobody met anybody
    chosen = both & met & (np.maximum(calls["bytes"], theirs["bytes"]) > 0)
    if not chosen.any():
        return None
    waits = [int((begin - side["start"])[chosen].sum()) for side in (calls, theirs)]
    size = int(np.maximum(calls["bytes"], theirs["bytes"])[chosen].sum())
    return Pair(tasks, int(chosen.sum()), size, int((end - begin)[chosen].sum()), (waits[0], waits[1]))
