"""The kernels and copies that communicate (docs/numbers.md#communication, docs/nccl.md#copies)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nsystui.base.kernel_families import backend_of, is_communication
from nsystui.base.text import few
from nsystui.base.types import Condition, Query
from nsystui.exports import canonical
from nsystui.questions.queries.derived import JsonRow, of_each_report, rows_of_each_report
from nsystui.store.remember import Arrays
from nsystui.store.report import Report
from nsystui.store.session import Session

if TYPE_CHECKING:
    import sqlalchemy as sa

    from nsystui.questions.algebra.intervals import Times


def full_names(session: Session) -> list[str]:
    """Return the full names of the session's kernels; missing names are empty strings."""

    def read(part: Session, reports: list[Report]) -> Sequence[JsonRow]:
        import sqlalchemy as sa

        from nsystui.questions.queries.conditions import of_reports
        from nsystui.store import tables

        report, name = tables.kernels.c.report, sa.func.coalesce(tables.kernels.c.name, "")
        return part.rows(sa.select(report, name).distinct().where(of_reports(report, {item.index for item in reports})))

    with_kernels = [item for item in session.reports if item.count(canonical.KERNELS)]
    rows = rows_of_each_report(session, with_kernels, "kernel-names", read, table=canonical.KERNELS)
    return list(dict.fromkeys(name for _, name in rows))


def communicating(session: Session) -> list[str]:
    """List the names of kernels whose family communicates without NCCL."""
    return sorted(name for name in full_names(session) if is_communication(name, session.families))


def other_communication(session: Session) -> tuple[str, ...]:
    """Return a note on kernels that count as NCCL's in times by category, if any."""
    backends = list(dict.fromkeys(map(backend_of, communicating(session))))
    return (f"NCCL here means all communication, also kernels of {few(backends)}",) if backends else ()


def communicates(names: Collection[str]) -> Condition:
    """Select NCCL's kernels and kernels with ``names`` (see `communicating`)."""
    import sqlalchemy as sa

    from nsystui.store import tables

    columns = tables.kernels.c
    is_nccl: Condition = columns.is_nccl == 1
    return sa.or_(is_nccl, sa.func.coalesce(columns.name, "").in_(names)) if names else is_nccl


def is_communication_in(session: Session, table: sa.Table) -> Condition:
    """Select the rows of a table of GPU work that communicate: `communicating` kernels, and `nccl_copies`."""
    import sqlalchemy as sa

    from nsystui.store import tables

    if table is tables.kernels:
        return communicates(communicating(session))
    return is_nccl_copy(session) if table is tables.memory_ops else sa.false()


_ON_DEVICE, _PEER = 8, 10


def nccl_copies(session: Session) -> dict[int, Arrays]:
    """Return the copies by report: ``row`` of `memory_ops`, and ``window``, a number of the calls that launched it.

    The calls of a window overlap on their thread. It launches no NCCL kernel, and at least one copy between GPUs. Each
    replay of a CUDA graph has windows of its own; ``call`` is the row of the captured call, -1 without a graph.
    """
    table = canonical.MEMORY_OPS
    with_copies = [report for report in session.reports if report.count(table)]
    return of_each_report(session, with_copies, "nccl-copies", _copies, table=table, in_memory=True)


def _copies(part: Session, reports: list[Report]) -> dict[int, Arrays]:
    import sqlalchemy as sa

    from nsystui.exports.nccl_calls import STARTS_WORK
    from nsystui.questions.queries.conditions import is_launched_by, of_reports
    from nsystui.store import tables

    none: Times = np.zeros(0, np.int64)
    copies: dict[int, Arrays] = {report.index: {"row": none, "window": none, "call": none} for report in reports}
    work, calls, api = tables.memory_ops.c, tables.nccl_calls.c, tables.api_calls
    peers = sa.select(work.report).where(is_peer_copy(), of_reports(work.report, copies)).distinct()
    copying = {index for (index,) in part.rows(peers)}
    if not (copying and part.count(tables.nccl_calls) and part.count(api)):
        return copies
    from nsystui.questions.queries.captures import NO_NODE, Captures

    for index in copying:
        is_call = sa.func.regexp_matches(calls.name, STARTS_WORK, "i", type_=sa.Boolean)
        query = sa.select(calls.thread, calls.start, calls.end, calls.row).where(is_call, calls.end.is_not(None))
        windows = part.arrays(query.where(calls.report == index).order_by(calls.start))
        (report,), launches = (item for item in reports if item.index == index), []
        kernels = tables.kernels, tables.kernels.c.is_nccl == 1, sa.false()
        memory_ops = tables.memory_ops, work.copy_kind.in_((_ON_DEVICE, _PEER)), is_peer_copy()
        for table, condition, is_peer in (kernels, memory_ops):
            node = sa.func.coalesce(table.c.graph_node_id, NO_NODE).label("node")
            launch = sa.select(api.c.thread, api.c.start, api.c.end, table.c.row, is_peer.label("is_peer"))
            launch = launch.add_columns(table.c.process, node, table.c.correlation_id.label("replay"))
            launch = launch.join_from(table, api, is_launched_by(table, api)).where(table.c.report == index)
            rows = part.arrays(launch.where(condition))
            thread, time = Captures.of(part, report).at(rows["process"], rows["node"])
            rows["replay"] = np.where(thread < 0, -1, rows["replay"])
            captured = {"thread": thread, "start": time, "end": time}
            launches.append(rows | {key: np.where(thread < 0, rows[key], captured[key]) for key in captured})
        (kernel_windows, _), (copy_windows, call) = (_windows_of(windows, launch) for launch in launches)
        used = np.setdiff1d(copy_windows[launches[1]["is_peer"].astype(bool)], [*kernel_windows, -1])
        is_copy, replay = np.isin(copy_windows, used), launches[1]["replay"]
        _, window = np.unique(np.stack((copy_windows, replay))[:, is_copy], axis=1, return_inverse=True)
        call = np.where(replay < 0, -1, call)[is_copy]
        copies[index] = {"row": launches[1]["row"][is_copy], "window": window.reshape(-1), "call": call}
    return copies


def _windows_of(calls: dict[str, Any], launches: dict[str, Any]) -> tuple[Times, Times]:
    """Return the number of the window that contains each launch, and the row of its last call, or -1."""
    from nsystui.questions.algebra.intervals import union

    numbers, first = np.full(len(launches["start"]), -1, np.int64), 0
    call = numbers.copy()
    for thread in np.unique(calls["thread"]).tolist():
        is_on_thread = calls["thread"] == thread
        windows = union(calls["start"][is_on_thread], calls["end"][is_on_thread])
        rows = np.flatnonzero(launches["thread"] == thread)
        index = np.searchsorted(windows.starts, launches["start"][rows], side="right") - 1
        is_inside = (index >= 0) & (launches["end"][rows] <= windows.ends[index])
        numbers[rows[is_inside]] = first + index[is_inside]
        last = np.searchsorted(calls["start"][is_on_thread], launches["start"][rows[is_inside]], side="right") - 1
        call[rows[is_inside]] = calls["row"][is_on_thread][last]
        first += len(windows)
    return numbers, call


def is_peer_copy() -> Condition:
    """Select the copies from one GPU to another."""
    import sqlalchemy as sa

    from nsystui.store import tables

    work = tables.memory_ops.c
    is_between = sa.and_(work.copy_kind == _ON_DEVICE, work.source_device != work.target_device)
    return sa.func.coalesce(sa.or_(work.copy_kind == _PEER, is_between), sa.false(), type_=sa.Boolean)


def is_nccl_copy(session: Session) -> Condition:
    """Select the memory operations in `nccl_copies`."""
    import sqlalchemy as sa

    from nsystui.store import tables

    given_rows = rows_of_nccl_copies(session)
    if given_rows is None:
        return sa.false()
    work, rows = tables.memory_ops.c, given_rows.subquery("nccl_copies")
    return sa.tuple_(work.report, work.row).in_(sa.select(rows.c.report, rows.c.row))


def rows_of_nccl_copies(session: Session) -> Query | None:
    """Select ``report``, ``row``, ``window`` and ``call`` of `nccl_copies`, if any."""
    from nsystui.questions.queries.conditions import given

    copies = {report: arrays for report, arrays in nccl_copies(session).items() if len(arrays["row"])}
    if not copies:
        return None
    reports = np.repeat([*copies], [len(arrays["row"]) for arrays in copies.values()])
    columns = {key: np.concatenate([arrays[key] for arrays in copies.values()]) for key in ("row", "window", "call")}
    return given({key: values.tolist() for key, values in {"report": reports, **columns}.items()})
