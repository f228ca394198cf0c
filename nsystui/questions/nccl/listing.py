"""Single NCCL kernels and calls with their partners: a kernel's calls, or a call's kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from nsystui.base.answer import (
    COLLECTIVE,
    DEVICE,
    DURATION,
    FILES_ONLY,
    NAME,
    PROCESS_ID,
    RANK,
    REPORT_ID,
    ROW_ID,
    START,
    STEP,
    STREAM,
    Column,
    TableAnswer,
    Unit,
)
from nsystui.base.selection import Selection
from nsystui.base.types import DataSeries
from nsystui.exports.metadata import tid_of
from nsystui.questions.events.kinds import EventKind
from nsystui.questions.nccl import summary
from nsystui.questions.nccl.bandwidth import rate, sizes_and_times
from nsystui.questions.nccl.grouping import NcclProperty, is_of, selected, values_of
from nsystui.questions.nccl.pairing import NcclPairing
from nsystui.questions.nccl.units import whole

if TYPE_CHECKING:
    import pandas as pd

    from nsystui.questions.job.job import OpenJob

COMMUNICATION: Final = "communication"
"""A collective of `nccl_listing` that matches all collectives, but not the calls that manage groups and memory."""

_SHARED_COLUMNS = (
    START,
    DURATION,
    Column("message_size", header="Message Size (B)", label="bytes", unit=Unit.BYTES, importance=1),
    Column("bucket", header="Message Size", label="size", importance=6),
    COLLECTIVE.with_importance(3),
    Column("communicator", header="Communicator", label="comm", importance=4),
    summary.RANKS,
    Column("peer", header="Peer/Root", label="peer/root", unit=Unit.NUMBER, importance=4),
    Column("datatype", header="Datatype", label="datatype", importance=5),
    Column("reduction", header="Reduction", label="reduction", importance=5),
    RANK.with_importance(1),
)
_STEP = STEP.with_importance(1)
_INSPECTED = (
    Column("algorithm", header="Algorithm", label="algorithm", importance=2),
    Column("protocol", header="Protocol", label="protocol", importance=2),
    Column("inspected", header="Inspector Time (ns)", label="inspector time", unit=Unit.DURATION, importance=2),
    Column("inspected_busbw", header="Inspector BusBW (B/s)", label="inspector busbw", unit=Unit.RATE, importance=2),
)
_PAIRING_COLUMNS = (
    Column("state", header="Pairing", label="pairing", importance=3),
    Column("reason", header="Unpaired Because", label="unpaired because", importance=6),
    REPORT_ID,
    Column("kind", header="Kind", label="kind", importance=FILES_ONLY),
    PROCESS_ID,
    ROW_ID,
    Column("partner_report", header="Partner Report", label="partner report", unit=Unit.NUMBER, importance=FILES_ONLY),
    Column("partner_kind", header="Partner Kind", label="partner kind", importance=FILES_ONLY),
    Column("partner_row", header="Partner Row", label="partner row", unit=Unit.NUMBER, importance=FILES_ONLY),
    Column("partner_start", header="Partner Start (ns)", label="partner start", unit=Unit.TIME, importance=FILES_ONLY),
)
_BANDWIDTH = (summary.ALGORITHM_BANDWIDTH, summary.BUS_BANDWIDTH)
_KERNEL_COLUMNS = (
    DEVICE.with_importance(3),
    STREAM.with_importance(2),
    *_BANDWIDTH,
    summary.EXPOSED,
    summary.OVERLAPPED,
    Column("partners", header="Calls", label="calls", unit=Unit.COUNT, importance=5),
    NAME.with_importance(2),
    *_PAIRING_COLUMNS,
)
_CALL_COLUMNS = (
    Column("tid", header="Tid", label="tid", unit=Unit.NUMBER, importance=4),
    Column("kernel_start", header="Kernel Start (ns)", label="kernel start", unit=Unit.TIME, importance=5),
    Column("kernel_duration", header="Kernel Duration (ns)", label="kernel time", unit=Unit.DURATION, importance=1),
    *_BANDWIDTH,
    Column("partners", header="Kernels", label="kernels", unit=Unit.COUNT, importance=6),
    Column("kernel", header="Kernel", label="kernel", importance=2),
    NAME.with_importance(3),
    *_PAIRING_COLUMNS,
)


def nccl_listing(
    job: OpenJob, selection: Selection, pairing: NcclPairing, row: Mapping[NcclProperty, Any], what: summary.What
) -> TableAnswer:
    """Return the kernels or calls behind one row of the summary, by start (job time, ns).

    ``row``: the summary row's values by group (``None``: unknown), or empty to select everything. ``partners`` counts
    the calls of the kernel, or the kernels of the call; the ``partner_…`` columns make the `EventKey` of the first. A
    call's row has the name, time and bandwidth of its first kernel, which may also have run other calls; a kernel's
    name is not the operation that ran. ``step`` needs `in_steps`.
    """
    is_kernel = what == summary.KERNEL
    matching = _rows(pairing.kernels if is_kernel else pairing.calls, row)
    listed = selected(matching, selection).sort_values(["start", "report", "row"], kind="stable")
    listed = listed.assign(
        duration=listed["end"] - listed["start"],
        bucket=values_of(listed, NcclProperty.SIZE),
        collective=values_of(listed, NcclProperty.COLLECTIVE),
        peer=listed["peer"].astype("Int64").fillna(listed["root"].astype("Int64")),
        **_partners(listed, pairing, is_kernel),
        **(_bandwidth_of(listed) if is_kernel else _kernels_of_calls(listed, pairing.kernels)),
    )
    if is_kernel:
        time = (listed["end"] - listed["start"]).astype("float64")
        listed["overlapped"] = 100.0 * (1.0 - listed["exposed"] / time.replace(0.0, np.nan))
    step = (_STEP,) if "step" in listed.columns else ()
    inspected = _INSPECTED if "inspected" in listed.columns else ()
    columns = (*_SHARED_COLUMNS, *step, *inspected, *(_KERNEL_COLUMNS if is_kernel else _CALL_COLUMNS))
    listed = listed[[column.key for column in columns]].reset_index(drop=True)
    notes = summary.nccl_notes(job, selection, pairing)
    return TableAnswer.of_arrays("nccl-calls", summary.without_empty(columns, listed), listed, len(matching), notes)


def _rows(frame: pd.DataFrame, row: Mapping[NcclProperty, Any]) -> pd.DataFrame:
    if row.get(NcclProperty.COLLECTIVE) == COMMUNICATION:
        row = {grouping: value for grouping, value in row.items() if grouping is not NcclProperty.COLLECTIVE}
        if "thread" in frame.columns:
            frame = frame[frame["collective"].notna()]
    return frame[is_of(frame, row)]


def _partners(listed: pd.DataFrame, pairing: NcclPairing, is_kernel: bool) -> dict[str, Any]:
    partner_frame = pairing.calls if is_kernel else pairing.kernels
    partner = listed["partner"].to_numpy()
    partners = {f"partner_{key}": _at(partner_frame[key], partner, listed) for key in ("report", "row", "start")}
    kind, partner_kind = (
        [
            (EventKind.MEMORY if row < 0 else EventKind.NCCL if are_kernels else EventKind.NVTX).value
            for row in whole(rows)
        ]
        for rows, are_kernels in ((listed["row"], is_kernel), (partners["partner_row"], not is_kernel))
    )
    return {
        "row": listed["row"].abs(),
        "kind": kind,
        "partner_kind": [
            word if index >= 0 else None for word, index in zip(partner_kind, partner.tolist(), strict=True)
        ],
        **partners,
        "partner_row": partners["partner_row"].abs(),
    }


def _bandwidth_of(kernels: pd.DataFrame) -> dict[str, Any]:
    return {key: rate(*parts) for key, parts in sizes_and_times(kernels).items()}


def _kernels_of_calls(calls: pd.DataFrame, kernels: pd.DataFrame) -> dict[str, Any]:
    partner = calls["partner"].to_numpy()
    first_kernels = kernels.reindex(partner).set_axis(calls.index)
    return {
        "tid": tid_of(calls["thread"]),
        "kernel": first_kernels["name"].astype(object),
        "kernel_start": _at(kernels["start"], partner, calls),
        "kernel_duration": _at(kernels["end"] - kernels["start"], partner, calls),
        **_bandwidth_of(first_kernels),
    }


def _at(column: DataSeries, indices: Any, frame: pd.DataFrame) -> DataSeries:
    """Return values of ``column`` with the index of ``frame``; missing at ``NONE``."""
    return column.astype("Int64").reindex(indices).set_axis(frame.index)
