"""Message sizes: how many calls have which, and of kernels of each size how long they take and how fast they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nsystui.base.answer import COUNT, RANK, Column, Row, TableAnswer, Unit
from nsystui.base.errors import UsageError
from nsystui.base.selection import Selection
from nsystui.base.text import few
from nsystui.base.units import format_value, size_label
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.nccl.bandwidth import rate
from nsystui.questions.nccl.grouping import (
    COLUMNS,
    NcclProperty,
    bucket_numbers,
    group_numbers,
    powers_of_two,
    selected,
    shared_values,
    values_of,
)
from nsystui.questions.nccl.names import BUCKETS
from nsystui.questions.nccl.pairing import NcclPairing
from nsystui.questions.nccl.summary import RANKS, WITHOUT_WAIT, nccl_notes, without_empty
from nsystui.questions.nccl.units import NONE, Ints, first_of_each, whole
from nsystui.questions.queries.distributions import distribution
from nsystui.questions.queries.tasks import RankedTask
from nsystui.store.session import Session

if TYPE_CHECKING:
    import pandas as pd

    from nsystui.exports.nccl_log.files import Reported


class SizeBin(NamedTuple):
    """The calls of one size: what it is called, how many calls, and their bytes.

    ``label`` is that of the bucket, or the power of two from which on the sizes are (``4MiB``: up to 8 MiB); ``None``,
    and so is ``bytes``, for sizes that are not known.
    """

    label: str | None
    calls: int
    bytes: int | None


def size_histogram(pairing: NcclPairing, selection: Selection, by: NcclProperty = NcclProperty.SIZE) -> list[SizeBin]:
    """The selected communication calls by message size, small ones first, empty bins between them too.

    ``by``: ``SIZE`` (the four buckets) or ``POW2`` (from the smallest to the largest power of two; messages of 0
    bytes stand before them). Calls whose size is not known come last, in a bin without label, if there are any.
    """
    calls = selected(pairing.calls, selection)
    calls = calls[calls["collective"].notna()]
    size = whole(calls["message_size"])
    if by is NcclProperty.SIZE:
        number, labels = bucket_numbers(calls["message_size"]), list(BUCKETS)
    else:
        number, labels = _powers(calls["message_size"])
    is_known = number != NONE
    count = np.bincount(number[is_known], minlength=len(labels))
    total = np.zeros(len(labels), np.int64)
    np.add.at(total, number[is_known], size[is_known])
    bins = [SizeBin(*one) for one in zip(labels, count.tolist(), total.tolist(), strict=True)]
    unknown = int((~is_known).sum())
    return [*bins, SizeBin(None, unknown, None)] if unknown else bins


def _powers(sizes: pd.Series[int]) -> tuple[Ints, list[str]]:
    """The bin of each size (``NONE`` where it is not known), and the labels of the bins."""
    power = whole(powers_of_two(sizes))
    there = np.unique(power[power >= 0]).tolist()
    positive = [edge for edge in there if edge]
    first, last = (positive[0].bit_length(), positive[-1].bit_length()) if positive else (1, 0)
    edges = [*([0] if 0 in there else []), *(1 << bits - 1 for bits in range(first, last + 1))]
    place = np.searchsorted(edges, power) if edges else power
    return np.where(power >= 0, place, NONE), [size_label(edge) for edge in edges]


_STATISTICS = (
    COUNT,
    Column("bytes", header="Total Bytes", label="bytes", unit=Unit.BYTES, importance=4),
    Column("total", header="Total Time (ns)", label="total", unit=Unit.DURATION, importance=3),
    Column("min", header="Min (ns)", label="min", unit=Unit.DURATION, importance=2),
    Column("p5", header="P5 (ns)", label="p5", unit=Unit.DURATION, decimals=1, importance=4),
    Column("median", header="Med (ns)", label="median", unit=Unit.DURATION, decimals=1),
    Column("p95", header="P95 (ns)", label="p95", unit=Unit.DURATION, decimals=1, importance=2),
    Column("max", header="Max (ns)", label="max", unit=Unit.DURATION, importance=3),
    Column("cv", header="CV (%)", label="CV", unit=Unit.PERCENT, decimals=1, importance=1),
    Column("algbw", header="Med AlgBW (B/s)", label="algbw", unit=Unit.RATE, decimals=1, importance=2),
    Column("busbw", header="Med BusBW (B/s)", label="busbw", unit=Unit.RATE, decimals=1),
    replace(WITHOUT_WAIT, header=f"Med {WITHOUT_WAIT.header}"),
)

_REPORTED = (
    Column("reported", header="nccl-tests Out of Place BusBW (B/s)", label="nccl-tests", unit=Unit.RATE, decimals=1),
    Column("reported_in_place", header="nccl-tests In Place BusBW (B/s)", label="in place", unit=Unit.RATE, decimals=1),
)


def bandwidth_by_size(
    session: Session,
    selection: Selection,
    ranks: Sequence[RankedTask],
    pairing: NcclPairing,
    by: NcclProperty = NcclProperty.BYTES,
    reported: Sequence[Reported] = (),
) -> TableAnswer:
    """The selected kernels of known size by collective and size (``by``: exact, power of two or bucket), small first.

    The bandwidth-against-size curve and the spread of the durations in one: ``median`` duration with ``min``, ``p5``,
    ``p95`` and ``max`` (ns; percentiles are interpolated), ``cv`` (standard deviation of the sample by the mean, %; 0
    of one kernel), and the medians of the kernels' ``algbw``, ``busbw`` and ``busbw_without_wait`` (bytes/s,
    `bandwidth`), beside those that nccl-tests ``reported`` of exactly this size. ``ranks`` is the size of the
    communicators where they agree. ``pairing`` is one that `measured` made. The size of a kernel is that of its calls
    together.
    """
    import pandas as pd

    everything = pairing.kernels[pairing.kernels["message_size"].notna()]
    kernels = selected(everything, selection)
    groups = (NcclProperty.COLLECTIVE, by)
    group = group_numbers(kernels, groups)
    count = int(group.max(initial=-1)) + 1
    firsts = kernels.iloc[first_of_each(group, count)]
    frame = pd.DataFrame(
        {
            **{COLUMNS[one].key: values_of(firsts, one).reset_index(drop=True) for one in groups},
            "ranks": shared_values(kernels["ranks"].astype("Int64"), group, count),
            **_spread(kernels, group),
        },
        index=range(count),
    )
    beside = _REPORTED if reported and by is NcclProperty.BYTES else ()
    if beside:
        tested = firsts["algorithm_size"].reset_index(drop=True)
        frame = frame.assign(
            reported=tested.map({one.size: one.out_of_place.busbw for one in reported}),
            reported_in_place=tested.map({one.size: one.in_place.busbw for one in reported}),
        )
    order = whole(firsts["message_size"])
    frame = frame.assign(order=order).sort_values(["collective", "order"], kind="stable").drop(columns="order")
    columns = (*(COLUMNS[one] for one in groups), RANKS, *_STATISTICS, *beside)
    total = len(np.unique(group_numbers(everything, groups)))
    notes = nccl_notes(session, selection, ranks, pairing)
    return TableAnswer.of_frame("nccl-sizes", without_empty(columns, frame), frame.reset_index(drop=True), total, notes)


def _spread(kernels: pd.DataFrame, group: Ints) -> dict[str, pd.Series[float]]:
    """The columns ``_STATISTICS`` of each group."""
    import pandas as pd

    time = (kernels["end"] - kernels["start"]).astype("Int64").reset_index(drop=True)
    spent = time.to_numpy(np.float64, na_value=np.nan)
    exact, durations = time.groupby(group), pd.Series(spent).groupby(group)
    sizes = {"algbw": kernels["algorithm_size"], "busbw": kernels["bus_size"]}
    rates = {key: pd.Series(rate(size.to_numpy(np.float64), spent)) for key, size in sizes.items()}
    bus, transfer = (kernels[key].to_numpy(np.float64) for key in ("bus_size", "transfer"))
    rates["busbw_without_wait"] = pd.Series(rate(bus, transfer))
    return {
        "count": exact.size(),
        "bytes": kernels["message_size"].astype("Int64").reset_index(drop=True).groupby(group).sum(),
        "total": exact.sum(min_count=1),
        "min": exact.min(),
        "p5": durations.quantile(0.05),
        "median": durations.median(),
        "p95": durations.quantile(0.95),
        "max": exact.max(),
        "cv": 100.0 * durations.std().mask(durations.count() == 1, 0.0) / durations.mean().replace(0.0, np.nan),
        **{key: values.groupby(group).median() for key, values in rates.items()},
    }


def bandwidth_curve(answer: TableAnswer, collective: str) -> tuple[Sequence[float], Sequence[float]]:
    """The sizes of a collective and their median bus bandwidths, where these are known: without the wait if told.

    ``answer`` is `bandwidth_by_size` by exact size. Shape ``(n,)`` each, bytes and bytes/s.
    """
    frame = answer.frame()
    frame = frame[frame["collective"] == collective]
    rates = frame["busbw_without_wait"].fillna(frame["busbw"]).astype(float)
    is_known = rates.notna()
    return frame["message_size"][is_known].astype(float).tolist(), rates[is_known].tolist()


_DURATION_COLUMNS = (
    RANK,
    Column("from", header="From (ns)", label="from", unit=Unit.DURATION, decimals=1),
    Column("to", header="To (ns)", label="to", unit=Unit.DURATION, compared="from", decimals=1),
    COUNT,
    Column("percent", header="Share (%)", label="share", unit=Unit.PERCENT, decimals=2, has_bar=True),
    Column("reported", header="nccl-tests", label="nccl-tests"),
)


def reported_times(kernels: pd.DataFrame, reported: Sequence[Reported]) -> list[tuple[str, float]]:
    """What nccl-tests reported of kernels of one size: out of place or in place, and ns."""
    sizes = set(kernels["algorithm_size"].dropna().tolist())
    own = [one for one in reported if one.size in sizes]
    return [pair for one in own for pair in (("out of place", one.out_of_place.time), ("in place", one.in_place.time))]


@dataclass(frozen=True)
class DurationsOfSize(TableAnswer):
    """A histogram of durations; ``subject`` says of which kernels: ``AllReduce of 48MiB``."""

    subject: str = "durations"


def durations_of_size(
    session: Session,
    selection: Selection,
    ranks: Sequence[RankedTask],
    pairing: NcclPairing,
    collective: str,
    size: int | None = None,
    is_linear: bool = False,
    reported: Sequence[Reported] = (),
) -> DurationsOfSize:
    """The histogram of the durations of a collective's selected kernels of one size: of all ranks, then of each rank.

    The spans are the same for all, see `distribution`; the shares of each add up to 100 %. Without ``size`` (bytes) it
    is the one whose kernels take the most time, and where no size is known, all kernels. The spans in which the times
    lie that nccl-tests ``reported`` of this size are marked. Raises UsageError for a size that no kernel has.
    """
    kernels = selected(pairing.kernels, selection)
    kernels = kernels[(kernels["collective"] == collective) & kernels["end"].notna()]
    sizes, spent = whole(kernels["message_size"]), whole(kernels["end"]) - whole(kernels["start"])
    there, number = np.unique(sizes, return_inverse=True)
    if size is None and len(there):
        size = int(there[np.argmax(np.bincount(number, weights=np.where(sizes == NONE, 0, spent)))])
    elif size is not None and size not in there:
        sized = [format_value(Unit.BYTES, one) for one in there[there != NONE].tolist()]
        there_are = few(sized) if sized else "none of known size"
        raise UsageError(f"no {collective} kernel of {format_value(Unit.BYTES, size)}: there are {there_are}")
    is_own = sizes == size
    spent, of_rank = spent[is_own], whole(kernels["rank"])[is_own]
    found = distribution(spent, is_linear)
    groups: list[tuple[int | None, Times]] = [(None, spent)]
    groups += [(rank, spent[of_rank == rank]) for rank in np.unique(of_rank[of_rank != NONE]).tolist()]
    known = reported_times(kernels[is_own], reported)
    marks = [
        ", ".join(dict.fromkeys(place for place, time in known if start <= time < end)) or None
        for start, end in pairwise(found.edges)
    ]
    rows: list[Row] = []
    for rank, own in groups if len(spent) else ():
        counts, _ = np.histogram(own, np.asarray(found.edges))
        spans = zip(found.edges[:-1], found.edges[1:], counts.tolist(), marks, strict=True)
        rows += [(rank, start, end, count, 100.0 * count / len(own), mark) for start, end, count, mark in spans]
    notes = nccl_notes(session, selection, ranks, pairing)
    subject = "durations"
    if size is not None:
        of_size = f"of {format_value(Unit.BYTES, size)}" if size != NONE else "of unknown message size"
        subject = f"{collective} {of_size}"
        notes = (f"{subject}; rows without a rank are of all ranks", *notes)
    if known:
        times = ", ".join(f"{format_value(Unit.DURATION, time)} {place}" for place, time in known)
        notes = (f"nccl-tests reported {times}", *notes)
    elif reported:
        notes = ("nccl-tests reported nothing of this size", *notes)
    durations = DurationsOfSize("nccl-durations", _DURATION_COLUMNS, rows, len(rows), notes, subject)
    return durations if reported else durations.with_columns(_DURATION_COLUMNS[:-1])


def durations_and_sizes(pairing: NcclPairing, selection: Selection, collective: str) -> tuple[Times, Times]:
    """Message size, bytes, and duration, ns, of each selected kernel of a collective whose size is known, by start.

    Two arrays of one shape, for a scatter of the one against the other.
    """
    kernels = selected(pairing.kernels, selection)
    is_own = (kernels["collective"] == collective) & kernels["message_size"].notna() & kernels["end"].notna()
    kernels = kernels[is_own].sort_values("start", kind="stable")
    return whole(kernels["message_size"]), whole(kernels["end"]) - whole(kernels["start"])
