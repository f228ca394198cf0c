"""Message exchanges between pairs of MPI ranks, and their durations.

If two ranks have equally many blocking point-to-point calls, the calls are matched by order; if one rank names the
other as its peer, a match is an exchange. It lasts from the later call to the later return.
See docs/triage.md#collectives-and-communication.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import sqlalchemy as sa

from nsystui.base.selection import Selection, Task
from nsystui.base.types import Ints
from nsystui.questions.queries.conditions import job_end, job_start, where
from nsystui.store import tables
from nsystui.store.session import Session

_CALLS = tables.mpi_calls
_BLOCKING = "^MPI_(Send|Ssend|Rsend|Bsend|Recv|Mrecv|Sendrecv)(_replace)?$"


@dataclass(frozen=True)
class Pair:
    """The exchanges of two tasks: count, total bytes and total time, ns."""

    tasks: tuple[Task, Task]
    count: int
    bytes: int
    time: int

    @property
    def rate(self) -> float:
        """Bytes/s."""
        return self.bytes / self.time * 1e9 if self.time else 0.0

    @property
    def size(self) -> float:
        """Mean message size, bytes."""
        return self.bytes / self.count


def exchanges(session: Session, selection: Selection) -> list[Pair]:
    """Find each pair of open ranks that exchanged messages in blocking calls with recorded peers and sizes.

    A rank in several communicators is left out: a peer's communicator is not recorded.
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


_Columns = Mapping[str, Ints]


def _calls(session: Session, selection: Selection) -> dict[Task, _Columns]:
    """Read start, end, peer and bytes of each task's calls, by start; -1 without a peer."""
    columns = _CALLS.c
    size = sa.func.greatest(sa.func.coalesce(columns.send_bytes, 0), sa.func.coalesce(columns.recv_bytes, 0))
    times, peer = (job_start(_CALLS), job_end(_CALLS)), sa.func.coalesce(columns.remote_rank, -1)
    query = sa.select(columns.report, columns.process, columns.communicator, *times, peer, size)
    is_blocking = sa.func.regexp_matches(columns.name, _BLOCKING, type_=sa.Boolean)
    query = query.where(*where(_CALLS, selection.with_name(None)), columns.end.is_not(None), is_blocking)
    query = query.order_by(columns.report, columns.process, columns.start)
    rows: dict[Task, list[tuple[Any, ...]]] = {}
    for report, process, *values in session.rows(query) if session.count(_CALLS) else ():
        rows.setdefault(Task(report, process), []).append(tuple(values))
    calls: dict[Task, _Columns] = {}
    for task, task_rows in rows.items():
        if len({row[0] for row in task_rows}) == 1:
            table = np.array([row[1:] for row in task_rows], np.int64)
            calls[task] = {name: table[:, index] for index, name in enumerate(("start", "end", "peer", "bytes"))}
    return calls


def _pair(ranks: tuple[int, int], task_of: Mapping[int, Task], calls_of: Mapping[Task, _Columns]) -> Pair | None:
    rank, peer = ranks
    tasks = task_of[rank], task_of[peer]
    calls, peer_calls = calls_of[tasks[0]], calls_of[tasks[1]]
    if len(calls["start"]) != len(peer_calls["start"]):
        return None
    names_peer = (calls["peer"] == peer) | (peer_calls["peer"] == rank)
    begin = np.maximum(calls["start"], peer_calls["start"])
    end = np.maximum(calls["end"], peer_calls["end"])
    overlaps = np.minimum(calls["end"], peer_calls["end"]) > begin  # else the message was buffered: neither rank waited
    is_exchange = names_peer & overlaps & (np.maximum(calls["bytes"], peer_calls["bytes"]) > 0)
    if not is_exchange.any():
        return None
    size = int(np.maximum(calls["bytes"], peer_calls["bytes"])[is_exchange].sum())
    return Pair(tasks, int(is_exchange.sum()), size, int((end - begin)[is_exchange].sum()))
