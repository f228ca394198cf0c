"""Calls, and time and bandwidth of kernels, by message size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nsystui.base.answer import COUNT, RANK, Column, Row, TableAnswer, Unit
from nsystui.base.errors import UsageError
from nsystui.base.selection import Selection
from nsystui.base.text import few
from nsystui.base.types import Ints
from nsystui.base.units import format_value
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.nccl.bandwidth import rate, sizes_and_times
from nsystui.questions.nccl.grouping import COLUMNS, NcclProperty, bucket_numbers, group_numbers, selected
from nsystui.questions.nccl.names import BUCKETS
from nsystui.questions.nccl.pairing import NcclPairing
from nsystui.questions.nccl.summary import FASTEST, KERNEL, RANKS, WITHOUT_WAIT, block, nccl_notes, without_empty
from nsystui.questions.nccl.units import NONE, whole
from nsystui.questions.nccl.verdict import VERDICT
from nsystui.questions.queries.distributions import distribution

if TYPE_CHECKING:
    import pandas as pd

    from nsystui.questions.job.job import OpenJob


class SizeBin(NamedTuple):
    """The calls of a bucket of sizes: its label, number and bytes; ``label`` and ``bytes`` are ``None`` if unknown."""

    label: str | None
    calls: int
    bytes: int | None


def size_histogram(pairing: NcclPairing, selection: Selection) -> list[SizeBin]:
    """Count the selected communication calls in each bucket of sizes; calls of unknown size, if any, are last."""
    calls = selected(pairing.calls, selection)
    calls = calls[calls["collective"].notna()]
    size = whole(calls["message_size"])
    bin_indices = bucket_numbers(calls["message_size"])
    is_known = bin_indices != NONE
    count = np.bincount(bin_indices[is_known], minlength=len(BUCKETS))
    sums = np.zeros(len(BUCKETS), np.int64)
    np.add.at(sums, bin_indices[is_known], size[is_known])
    bins = [SizeBin(*values) for values in zip(BUCKETS, count.tolist(), sums.tolist(), strict=True)]
    unknown = int((~is_known).sum())
    return [*bins, SizeBin(None, unknown, None)] if unknown else bins


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
    replace(WITHOUT_WAIT, header=f"Med {WITHOUT_WAIT.header}", importance=1),
    FASTEST,
    VERDICT,
)


def bandwidth_by_size(
    job: OpenJob, selection: Selection, pairing: NcclPairing, by: NcclProperty = NcclProperty.BYTES
) -> TableAnswer:
    """Tabulate the selected kernels by collective and known size (``by``: exact, power of two or bucket), small first.

    This is the curve of bandwidth over size, and the spread of the durations, ns (percentiles are interpolated; ``cv``:
    standard deviation of the sample / mean, %; 0 for one kernel). ``pairing`` is from `measured`. A kernel's size is
    the sum over its calls.
    """
    sized_kernels = pairing.kernels[pairing.kernels["message_size"].notna()]
    kernels = selected(sized_kernels, selection)
    groups = (NcclProperty.COLLECTIVE, by)
    group = group_numbers(kernels, groups)
    frame = block(KERNEL, kernels, groups, pairing.together).assign(**_distribution(kernels, group))
    frame = frame.sort_values(["collective", "least_size"], kind="stable")
    columns = (*(COLUMNS[grouping] for grouping in groups), RANKS, *_STATISTICS)
    total = len(np.unique(group_numbers(sized_kernels, groups)))
    notes = nccl_notes(job, selection, pairing)
    return TableAnswer.of_arrays("nccl-sizes", without_empty(columns, frame), frame, total, notes)


def _distribution(kernels: pd.DataFrame, group: Ints) -> dict[str, pd.Series[float]]:
    """Return percentiles and variation of the durations, and median rates, of each group; and the least size."""
    import pandas as pd

    spent = (kernels["end"] - kernels["start"]).astype("Int64").to_numpy(np.float64, na_value=np.nan)
    durations = pd.Series(spent).groupby(group)
    rates = {key: pd.Series(rate(*parts)) for key, parts in sizes_and_times(kernels).items()}
    return {
        "least_size": pd.Series(whole(kernels["message_size"])).groupby(group).min(),
        "p5": durations.quantile(0.05),
        "p95": durations.quantile(0.95),
        "cv": 100.0 * durations.std().mask(durations.count() == 1, 0.0) / durations.mean().replace(0.0, np.nan),
        **{key: values.groupby(group).median() for key, values in rates.items()},
    }


def bandwidth_curve(answer: TableAnswer, collective: str) -> tuple[Sequence[float], Sequence[float]]:
    """Return a collective's sizes and their known median bus bandwidths, without the wait if possible.

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
)


@dataclass(frozen=True)
class DurationsOfSize(TableAnswer):
    """A histogram of durations; ``subject`` names the kernels: ``AllReduce of 48MiB``."""

    subject: str = "durations"


def durations_of_size(
    job: OpenJob, selection: Selection, pairing: NcclPairing, collective: str, size: int | None = None
) -> DurationsOfSize:
    """Tabulate the durations of a collective's selected kernels of one size: of all ranks, then of each rank.

    All histograms have the same spans, see `distribution`, and shares that add up to 100 %. Without ``size`` (bytes),
    the size whose kernels take the most time counts, or all kernels if no size is known. Raises UsageError if no kernel
    has the size.
    """
    kernels = selected(pairing.kernels, selection)
    kernels = kernels[(kernels["collective"] == collective) & kernels["end"].notna()]
    sizes, spent = whole(kernels["message_size"]), whole(kernels["end"]) - whole(kernels["start"])
    distinct, size_indices = np.unique(sizes, return_inverse=True)
    if size is None and len(distinct):
        size = int(distinct[np.argmax(np.bincount(size_indices, weights=np.where(sizes == NONE, 0, spent)))])
    elif size is not None and size not in distinct:
        sized = [format_value(Unit.BYTES, value) for value in distinct[distinct != NONE].tolist()]
        known_sizes = few(sized) if sized else "none of known size"
        raise UsageError(f"no {collective} kernel of {format_value(Unit.BYTES, size)}: there are {known_sizes}")
    spent, kernel_ranks = spent[sizes == size], whole(kernels["rank"])[sizes == size]
    bins = distribution(spent)
    groups: list[tuple[int | None, Times]] = [(None, spent)]
    groups += [(rank, spent[kernel_ranks == rank]) for rank in np.unique(kernel_ranks[kernel_ranks != NONE]).tolist()]
    rows: list[Row] = []
    for rank, values in groups if len(spent) else ():
        counts, _ = np.histogram(values, np.asarray(bins.edges))
        spans = zip(bins.edges[:-1], bins.edges[1:], counts.tolist(), strict=True)
        rows += [(rank, start, end, count, 100.0 * count / len(values)) for start, end, count in spans]
    notes = nccl_notes(job, selection, pairing)
    subject = "durations"
    if size is not None:
        subject = f"{collective} of {format_value(Unit.BYTES, size) if size != NONE else 'unknown message size'}"
        notes = (f"{subject}; rows without a rank cover all ranks", *notes)
    return DurationsOfSize("nccl-durations", _DURATION_COLUMNS, rows, len(rows), notes, subject)
