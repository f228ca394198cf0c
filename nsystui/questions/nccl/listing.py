"""The single kernels and calls of NCCL, each with what belongs to it on the other side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from nsystui.base.answer import FILES_ONLY, Column, TableAnswer, Unit
from nsystui.base.selection import Selection
from nsystui.questions.event_kinds import EventKind
from nsystui.questions.nccl.bandwidth import rate
from nsystui.questions.nccl.grouping import By, is_of, values_of
from nsystui.questions.nccl.notes import nccl_notes
from nsystui.questions.nccl.pairing import NcclPairing
from nsystui.questions.nccl.selected import selected
from nsystui.questions.nccl.table import (
    ALGORITHM_BANDWIDTH,
    BUS_BANDWIDTH,
    EXPOSED,
    KERNEL,
    OVERLAPPED,
    RANKS,
    What,
    without_empty,
)
from nsystui.questions.tasks import RankedTask
from nsystui.store.session import Session

if TYPE_CHECKING:
    import pandas as pd

COMMUNICATION: Final = "communication"
"""As a collective: of every one, but not the calls that manage groups, communicators and memory."""

_SHARED_COLUMNS = (
    Column("start", "Start (ns)", "start", Unit.TIME, None, 0),
    Column("duration", "Duration (ns)", "duration", Unit.DURATION, None, 0),
    Column("message_size", "Message Size (B)", "bytes", Unit.BYTES, None, 1),
    Column("bucket", "Message Size", "size", Unit.TEXT, None, 6),
    Column("collective", "Collective", "collective", Unit.TEXT, None, 3),
    Column("communicator", "Communicator", "comm", Unit.TEXT, None, 4),
    RANKS,
    Column("peer", "Peer/Root", "peer/root", Unit.NUMBER, None, 4),
    Column("datatype", "Datatype", "datatype", Unit.TEXT, None, 5),
    Column("reduction", "Reduction", "reduction", Unit.TEXT, None, 5),
    Column("rank", "Rank", "rank", Unit.NUMBER, None, 1),
)
_STEP = Column("step", "Step", "step", Unit.NUMBER, None, 1)
_PAIRING_COLUMNS = (
    Column("state", "Pairing", "pairing", Unit.TEXT, None, 3),
    Column("reason", "Unpaired Because", "unpaired because", Unit.TEXT, None, 6),
    Column("report", "Report", "report", Unit.NUMBER, None, FILES_ONLY),
    Column("kind", "Kind", "kind", Unit.TEXT, None, FILES_ONLY),
    Column("process", "Process", "process", Unit.NUMBER, None, FILES_ONLY),
    Column("row", "Row", "row", Unit.NUMBER, None, FILES_ONLY),
    Column("partner_report", "Partner Report", "partner report", Unit.NUMBER, None, FILES_ONLY),
    Column("partner_kind", "Partner Kind", "partner kind", Unit.TEXT, None, FILES_ONLY),
    Column("partner_row", "Partner Row", "partner row", Unit.NUMBER, None, FILES_ONLY),
    Column("partner_start", "Partner Start (ns)", "partner start", Unit.TIME, None, FILES_ONLY),
)
_BANDWIDTH = (ALGORITHM_BANDWIDTH, BUS_BANDWIDTH)
_KERNEL_COLUMNS = (
    Column("device", "Device", "dev", Unit.NUMBER, None, 3),
    Column("stream", "Strm", "strm", Unit.NUMBER, None, 2),
    *_BANDWIDTH,
    EXPOSED,
    OVERLAPPED,
    Column("partners", "Calls", "calls", Unit.COUNT, None, 5),
    Column("name", "Name", "name", Unit.TEXT, None, 2),
    *_PAIRING_COLUMNS,
)
_CALL_COLUMNS = (
    Column("tid", "Tid", "tid", Unit.NUMBER, None, 4),
    Column("kernel_start", "Kernel Start (ns)", "kernel start", Unit.TIME, None, 5),
    Column("kernel_duration", "Kernel Duration (ns)", "kernel time", Unit.DURATION, None, 1),
    *_BANDWIDTH,
    Column("partners", "Kernels", "kernels", Unit.COUNT, None, 6),
    Column("kernel", "Kernel", "kernel", Unit.TEXT, None, 2),
    Column("name", "Name", "name", Unit.TEXT, None, 3),
    *_PAIRING_COLUMNS,
)


def nccl_listing(
    session: Session,
    selection: Selection,
    ranks: Sequence[RankedTask],
    pairing: NcclPairing,
    row: Mapping[By, Any],
    what: What,
) -> TableAnswer:
    """The kernels or calls behind one row of the summary, by start (job time, ns).

    ``row`` has the values of that row by group (``None`` is "not known"); without a group, everything; `COMMUNICATION`
    as its collective leaves the management calls out. ``partners`` says how many calls belong to the kernel (or kernels
    to the call); the ``partner_…`` columns are the identity of the first: with ``report``, ``kind``, ``row`` and
    ``start`` they make the `EventKey` of it. A call has the name, start, duration and bandwidth of its first kernel,
    all of it, also where that ran other calls too; a kernel's name is not what ran. ``algbw``, ``busbw`` and
    ``exposed`` are of the single kernel, see `nccl_summary`. ``step`` is there where ``pairing`` is one of `in_steps`.
    """
    is_kernel = what == KERNEL
    everything = _rows(pairing.kernels if is_kernel else pairing.calls, row)
    listed = selected(everything, selection).sort_values(["start", "report", "row"], kind="stable")
    listed = listed.assign(
        duration=listed["end"] - listed["start"],
        bucket=values_of(listed, By.SIZE),
        collective=values_of(listed, By.COLLECTIVE),
        peer=listed["peer"].astype("Int64").fillna(listed["root"].astype("Int64")),
        **_partners(listed, pairing, is_kernel),
        **(_cost_of_kernels(listed) if is_kernel else _kernels_of_calls(listed, pairing.kernels)),
    )
    step = (_STEP,) if "step" in listed.columns else ()
    columns = (*_SHARED_COLUMNS, *step, *(_KERNEL_COLUMNS if is_kernel else _CALL_COLUMNS))
    listed = listed[[column.key for column in columns]].reset_index(drop=True)
    notes = nccl_notes(session, selection, ranks, pairing)
    return TableAnswer.of_frame("nccl-calls", without_empty(columns, listed), listed, len(everything), notes)


def _rows(frame: pd.DataFrame, row: Mapping[By, Any]) -> pd.DataFrame:
    if row.get(By.COLLECTIVE) == COMMUNICATION:
        row = {by: value for by, value in row.items() if by is not By.COLLECTIVE}
        if "thread" in frame.columns:
            frame = frame[frame["collective"].notna()]
    return frame[is_of(frame, row)]


def _partners(listed: pd.DataFrame, pairing: NcclPairing, is_kernel: bool) -> dict[str, Any]:
    """The identity of the first partner of each row."""
    kinds = (EventKind.NCCL.value, EventKind.NVTX.value)
    own_kind, other_kind = kinds if is_kernel else kinds[::-1]
    others = pairing.calls if is_kernel else pairing.kernels
    partner = listed["partner"].to_numpy()
    return {
        "kind": own_kind,
        "partner_kind": [other_kind if place >= 0 else None for place in partner.tolist()],
        **{f"partner_{key}": _at(others[key], partner, listed) for key in ("report", "row", "start")},
    }


def _cost_of_kernels(kernels: pd.DataFrame) -> dict[str, Any]:
    time = (kernels["end"] - kernels["start"]).astype("float64")
    overlapped = 100.0 * (1.0 - kernels["exposed"] / time.replace(0.0, np.nan))
    return {**_bandwidth_of(kernels), "overlapped": overlapped}


def _bandwidth_of(kernels: pd.DataFrame) -> dict[str, Any]:
    time = (kernels["end"] - kernels["start"]).astype("float64").to_numpy()
    sizes = {"algbw": kernels["algorithm_size"], "busbw": kernels["bus_size"]}
    return {key: rate(size.to_numpy(np.float64), time) for key, size in sizes.items()}


def _kernels_of_calls(calls: pd.DataFrame, kernels: pd.DataFrame) -> dict[str, Any]:
    """What the first kernel of each call was and took."""
    partner = calls["partner"].to_numpy()
    own = kernels.reindex(partner).set_axis(calls.index)
    return {
        "tid": calls["thread"] & 0xFFFFFF,
        "kernel": own["name"].astype(object),
        "kernel_start": _at(kernels["start"], partner, calls),
        "kernel_duration": _at(kernels["end"] - kernels["start"], partner, calls),
        **_bandwidth_of(own),
    }


def _at(column: pd.Series[Any], places: Any, frame: pd.DataFrame) -> pd.Series[Any]:
    """The values of ``column`` at ``places`` as a column of ``frame``, missing where a place is ``NONE``."""
    return column.astype("Int64").reindex(places).set_axis(frame.index)
