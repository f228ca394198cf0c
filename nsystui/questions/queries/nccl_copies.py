"""The copies by which NCCL communicates without a kernel, on the copy engines (docs/nccl.md#copies)."""

from __future__ import annotations

from typing import Any

import numpy as np

from nsystui.base.types import Condition, Query
from nsystui.exports import canonical
from nsystui.exports.nccl_calls import COMMUNICATION
from nsystui.questions.algebra.intervals import Times, union
from nsystui.questions.queries.derived import of_each_report
from nsystui.store.report import Report
from nsystui.store.results import Arrays
from nsystui.store.session import Session

_ON_DEVICE, _PEER = 8, 10
_CALLS = rf"^(?:{'|'.join(COMMUNICATION)})(?:\(\)|$)|^ncclGroupEnd$"


def nccl_copies(session: Session) -> dict[int, Arrays]:
    """Return the copies by report: ``row`` of `memory_ops`, and ``window``, a number of the calls that launched it.

    The calls of a window overlap on their thread. It launches no NCCL kernel, and at least one copy between GPUs.
    """
    table = canonical.MEMORY_OPS
    with_copies = [report for report in session.reports if report.count(table)]
    return of_each_report(session, with_copies, "nccl-copies", _copies, table=table, in_memory=True)


def _copies(part: Session, reports: list[Report]) -> dict[int, Arrays]:
    import sqlalchemy as sa

    from nsystui.questions.queries.conditions import is_launched_by, of_reports
    from nsystui.store import tables

    indices = {report.index for report in reports}
    work, calls, api = tables.memory_ops.c, tables.nccl_calls.c, tables.api_calls
    peers = sa.select(work.report).where(is_peer_copy(), of_reports(work.report, indices)).distinct()
    copying = {index for (index,) in part.rows(peers)}
    none: Times = np.zeros(0, np.int64)
    copies: dict[int, Arrays] = {index: {"row": none, "window": none} for index in indices}
    for index in copying if part.count(tables.nccl_calls) and part.count(api) else ():
        is_call = sa.func.regexp_matches(calls.name, _CALLS, "i", type_=sa.Boolean)
        query = sa.select(calls.thread, calls.start, calls.end).where(is_call, calls.end.is_not(None))
        windows = part.arrays(query.where(calls.report == index))
        launches = []
        for table, condition, is_peer in (
            (tables.kernels, tables.kernels.c.is_nccl == 1, sa.false()),
            (tables.memory_ops, work.copy_kind.in_((_ON_DEVICE, _PEER)), is_peer_copy()),
        ):
            launch = sa.select(api.c.thread, api.c.start, api.c.end, table.c.row, is_peer.label("is_peer"))
            launch = launch.select_from(table.join(api, is_launched_by(table, api)))
            launches.append(part.arrays(launch.where(table.c.report == index, condition)))
        kernel_windows, copy_windows = (_windows_of(windows, launch) for launch in launches)
        used = np.setdiff1d(copy_windows[launches[1]["is_peer"].astype(bool)], [*kernel_windows, -1])
        is_copy = np.isin(copy_windows, used)
        copies[index] = {"row": launches[1]["row"][is_copy], "window": copy_windows[is_copy]}
    return copies


def _windows_of(calls: dict[str, Any], launches: dict[str, Any]) -> Times:
    """Return the number of the window that contains each launch, or -1."""
    numbers, first = np.full(len(launches["start"]), -1, np.int64), 0
    for thread in np.unique(calls["thread"]).tolist():
        is_on_thread = calls["thread"] == thread
        windows = union(calls["start"][is_on_thread], calls["end"][is_on_thread])
        rows = np.flatnonzero(launches["thread"] == thread)
        index = np.searchsorted(windows.starts, launches["start"][rows], side="right") - 1
        is_inside = (index >= 0) & (launches["end"][rows] <= windows.ends[index])
        numbers[rows[is_inside]] = first + index[is_inside]
        first += len(windows)
    return numbers


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
    """Select ``report``, ``row`` and ``window`` of `nccl_copies`, if any."""
    from nsystui.questions.queries.conditions import given

    copies = {report: arrays for report, arrays in nccl_copies(session).items() if len(arrays["row"])}
    if not copies:
        return None
    reports = np.repeat([*copies], [len(arrays["row"]) for arrays in copies.values()])
    columns = {key: np.concatenate([arrays[key] for arrays in copies.values()]) for key in ("row", "window")}
    return given({key: values.tolist() for key, values in {"report": reports, **columns}.items()})
