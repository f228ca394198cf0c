"""The NCCL table: GPU kernels and CPU calls by collective and message size, and the single rows behind each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np
import sqlalchemy as sa

from nsystui.analysis.answer import Column, FrameAnswer, Unit
from nsystui.analysis.event_kinds import EventKind
from nsystui.analysis.nccl.buckets import BUCKETS
from nsystui.analysis.nccl.lines import codes, one_key, whole
from nsystui.analysis.nccl.notes import nccl_notes
from nsystui.analysis.nccl.pairing import NcclPairing
from nsystui.analysis.nccl.selected import bucket_label, bucket_numbers, selected
from nsystui.analysis.nccl.units import NONE
from nsystui.analysis.selection import Selection
from nsystui.analysis.tasks import RankedTask
from nsystui.analysis.where import duration, where
from nsystui.store import tables
from nsystui.store.session import Session

if TYPE_CHECKING:
    import pandas as pd

What = Literal["kernel", "call"]
KERNEL: Final = "kernel"
CALL: Final = "call"
ALL_SIZES: Final = "all sizes"
"""As a bucket: rows of every message size, known or not (``None`` is "not known")."""

_BUCKET = Column("bucket", "Message Size", "size", Unit.TEXT, None, 0)
SUMMARY_COLUMNS = (
    Column("what", "What", "what", Unit.TEXT, None, 0),
    Column("collective", "Collective", "collective", Unit.TEXT, None, 0),
    _BUCKET,
    Column("count", "Count", "count", Unit.COUNT, None, 0),
    Column("bytes", "Total Bytes", "bytes", Unit.BYTES, None, 2),
    Column("share", "Time (%)", "time %", Unit.PERCENT, 1, 1),
    Column("total", "Total Time (ns)", "total", Unit.DURATION, None, 0),
    Column("avg", "Avg (ns)", "avg", Unit.DURATION, 1, 4),
    Column("median", "Med (ns)", "median", Unit.DURATION, 1, 2),
    Column("min", "Min (ns)", "min", Unit.DURATION, None, 6),
    Column("max", "Max (ns)", "max", Unit.DURATION, None, 3),
    Column("stddev", "StdDev (ns)", "stddev", Unit.DURATION, 1, 7),
)
_SHARED_COLUMNS = (
    Column("start", "Start (ns)", "start", Unit.TIME, None, 0),
    Column("duration", "Duration (ns)", "duration", Unit.DURATION, None, 0),
    Column("message_size", "Message Size (B)", "bytes", Unit.BYTES, None, 0),
    Column("bucket", "Message Size", "size", Unit.TEXT, None, 5),
    Column("communicator", "Communicator", "comm", Unit.TEXT, None, 3),
    Column("ranks", "Ranks", "ranks", Unit.NUMBER, None, 4),
    Column("peer", "Peer/Root", "peer/root", Unit.NUMBER, None, 4),
    Column("reduction", "Reduction", "reduction", Unit.TEXT, None, 5),
    Column("rank", "Rank", "rank", Unit.NUMBER, None, 1),
)
_PAIRING_COLUMNS = (
    Column("state", "Pairing", "pairing", Unit.TEXT, None, 3),
    Column("reason", "Unpaired Because", "unpaired because", Unit.TEXT, None, 6),
    Column("report", "Report", "report", Unit.NUMBER, None, 9),
    Column("kind", "Kind", "kind", Unit.TEXT, None, 9),
    Column("process", "Process", "process", Unit.NUMBER, None, 9),
    Column("row", "Row", "row", Unit.NUMBER, None, 9),
    Column("partner_report", "Partner Report", "partner report", Unit.NUMBER, None, 9),
    Column("partner_kind", "Partner Kind", "partner kind", Unit.TEXT, None, 9),
    Column("partner_row", "Partner Row", "partner row", Unit.NUMBER, None, 9),
    Column("partner_start", "Partner Start (ns)", "partner start", Unit.TIME, None, 9),
)
KERNEL_COLUMNS = (
    *_SHARED_COLUMNS,
    Column("device", "Device", "dev", Unit.NUMBER, None, 2),
    Column("stream", "Strm", "strm", Unit.NUMBER, None, 2),
    Column("partners", "Calls", "calls", Unit.COUNT, None, 5),
    Column("name", "Name", "name", Unit.TEXT, None, 2),
    *_PAIRING_COLUMNS,
)
CALL_COLUMNS = (
    *_SHARED_COLUMNS,
    Column("tid", "Tid", "tid", Unit.NUMBER, None, 2),
    Column("partners", "Kernels", "kernels", Unit.COUNT, None, 5),
    Column("name", "Name", "name", Unit.TEXT, None, 2),
    *_PAIRING_COLUMNS,
)


def nccl_summary(
    session: Session,
    selection: Selection,
    ranks: Sequence[RankedTask],
    pairing: NcclPairing,
    by_bucket: bool = True,
) -> FrameAnswer:
    """One row for each collective and message size: first of the GPU kernels, then of the CPU calls.

    Each block is sorted by total time. ``bucket`` is that of a kernel's calls together, or of a call; it is missing
    where the size is not known, and the column is left out without ``by_bucket``. ``bytes`` are those that are known.
    Management calls such as ``ncclGroupEnd`` stand under their own name. ``share`` is a kernel row's share of the time
    of all selected kernels, NCCL's or not, whatever the name filter (for ``nsys stats -r cuda_gpu_kern_sum``, the
    ``Time (%)`` of its table); calls have none. A call that never returned counts without a duration.
    """
    import pandas as pd

    blocks = []
    total = 0
    for what, frame in ((KERNEL, pairing.kernels), (CALL, pairing.calls)):
        chosen = selected(frame, selection)
        blocks.append(_block(what, chosen, by_bucket))
        total += len(np.unique(_groups(frame, by_bucket)))
    blocks[0]["share"] = 100.0 * blocks[0]["total"].astype("float64") / (_kernel_time(session, selection) or np.nan)
    columns = tuple(column for column in SUMMARY_COLUMNS if by_bucket or column is not _BUCKET)
    notes = nccl_notes(session, selection, ranks, pairing)
    return FrameAnswer("nccl", columns, pd.concat(blocks, ignore_index=True), total, notes)


def _label(frame: pd.DataFrame) -> pd.Series[Any]:
    """What a row is filed under: its collective; a management call its name; a kernel may have neither."""
    collective = frame["collective"].astype(object)
    return collective.fillna(frame["name"].astype(object)) if "thread" in frame.columns else collective


def _groups(frame: pd.DataFrame, by_bucket: bool) -> Any:
    label = codes(_label(frame))
    return one_key(label, bucket_numbers(frame["message_size"])) if by_bucket else one_key(label)


def _block(what: str, frame: pd.DataFrame, by_bucket: bool) -> pd.DataFrame:
    """The rows of kernels, or of calls, largest total first."""
    import pandas as pd

    group = _groups(frame, by_bucket)
    first = np.unique(group, return_index=True)[1]
    durations = (frame["end"] - frame["start"]).astype("Int64").groupby(group)
    buckets = bucket_numbers(frame["message_size"])[first]
    stddev = durations.std().astype("float64").mask(durations.count() == 1, 0.0)
    block = pd.DataFrame(
        {
            "what": what,
            "collective": _label(frame).iloc[first].to_numpy(object),
            "bucket": pd.Series([bucket_label(number) for number in buckets.tolist()], dtype=object),
            "count": durations.size(),
            "bytes": frame["message_size"].astype("Int64").groupby(group).sum(min_count=1),
            "share": pd.Series(np.nan, index=range(len(first))),
            "total": durations.sum(min_count=1),
            "avg": durations.mean().astype("float64"),
            "median": durations.median().astype("float64"),
            "min": durations.min(),
            "max": durations.max(),
            "stddev": stddev,
            "order": buckets,
        }
    )
    block = block.sort_values(["total", "collective", "order"], ascending=[False, True, True], kind="stable")
    return block.drop(columns="order")


def _kernel_time(session: Session, selection: Selection) -> int | None:
    """The durations of all selected kernels together, ns."""
    table = tables.kernels
    query = sa.select(sa.cast(sa.func.sum(duration(table)), sa.BigInteger)).where(*where(table, selection))
    time: int | None = session.scalar(query)
    return time


def nccl_listing(
    session: Session,
    selection: Selection,
    ranks: Sequence[RankedTask],
    pairing: NcclPairing,
    collective: str | None,
    bucket: str | None,
    what: What,
) -> FrameAnswer:
    """The kernels or calls behind one row of the summary, by start (job time, ns).

    ``collective`` and ``bucket`` are the values of that row (``None`` is "not known"); ``ALL_SIZES`` is every bucket.
    ``partners`` says how many calls belong to the kernel (or kernels to the call); the ``partner_…`` columns are the
    identity of the first: with ``report``, ``kind``, ``row`` and ``start`` they make the `EventKey` of it.
    """
    is_kernel = what == KERNEL
    frame, others = (pairing.kernels, pairing.calls) if is_kernel else (pairing.calls, pairing.kernels)
    everything = _of_row(frame, collective, bucket)
    chosen = selected(everything, selection).sort_values(["start", "report", "row"], kind="stable")
    partner = chosen["partner"].to_numpy()
    kinds = (EventKind.NCCL.value, EventKind.NVTX.value)
    own_kind, other_kind = kinds if is_kernel else kinds[::-1]
    listed = chosen.assign(
        duration=chosen["end"] - chosen["start"],
        bucket=[bucket_label(number) for number in bucket_numbers(chosen["message_size"]).tolist()],
        peer=chosen["peer"].astype("Int64").fillna(chosen["root"].astype("Int64")),
        kind=own_kind,
        partner_kind=[other_kind if place >= 0 else None for place in partner.tolist()],
        **{f"partner_{key}": _at(others[key], partner, chosen) for key in ("report", "row", "start")},
    )
    if not is_kernel:
        listed["tid"] = listed["thread"] & 0xFFFFFF
    columns = KERNEL_COLUMNS if is_kernel else CALL_COLUMNS
    listed = listed[[column.key for column in columns]].reset_index(drop=True)
    return FrameAnswer("nccl-calls", columns, listed, len(everything), nccl_notes(session, selection, ranks, pairing))


def _of_row(frame: pd.DataFrame, collective: str | None, bucket: str | None) -> pd.DataFrame:
    label = _label(frame)
    is_own = (label.isna() if collective is None else label == collective).to_numpy(bool)
    if bucket != ALL_SIZES:
        wanted = NONE if bucket is None else BUCKETS.index(bucket)
        is_own = is_own & (bucket_numbers(frame["message_size"]) == wanted)
    return frame[is_own]


def _at(column: pd.Series[Any], places: Any, frame: pd.DataFrame) -> pd.Series[Any]:
    """The values of ``column`` at ``places`` as a column of ``frame``, missing where a place is ``NONE``."""
    return column.astype("Int64").reindex(places).set_axis(frame.index)


class SizeBin(NamedTuple):
    """The calls of one size: the bucket's label, how many calls, and their bytes; ``None`` for sizes not known."""

    bucket: str | None
    calls: int
    bytes: int | None


def size_histogram(pairing: NcclPairing, selection: Selection) -> list[SizeBin]:
    """The selected communication calls by message size, small ones first, empty buckets too.

    Calls whose size is not known come last, in a bin without bucket, if there are any.
    """
    calls = selected(pairing.calls, selection)
    calls = calls[calls["collective"].notna()]
    number, size = bucket_numbers(calls["message_size"]), whole(calls["message_size"])
    bins = [
        SizeBin(label, int((number == place).sum()), int(size[number == place].sum()))
        for place, label in enumerate(BUCKETS)
    ]
    unknown = int((number == NONE).sum())
    return [*bins, SizeBin(None, unknown, None)] if unknown else bins
