"""The tables of the calls in a debug log: by op, by message size, and one by one as far as they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from nsystui.base.answer import Row, TableAnswer
from nsystui.base.columns import COUNT, Column, Unit
from nsystui.exports.nccl_log.lines import datatype_name
from nsystui.questions.nccl.buckets import BUCKETS, bucket_of
from nsystui.questions.nccl_log.summary import Kind, Summary

_OP = Column("op", header="Op", label="op")
_CALLS = Column("calls", header="Calls", label="calls", unit=Unit.COUNT)
_PER_GPU = Column("calls_per_gpu", header="Calls per GPU", label="per GPU", unit=Unit.COUNT, decimals=3)
_TOTAL = Column("total_bytes", header="Total Bytes", label="total", unit=Unit.BYTES)


def ops_table(summary: Summary) -> TableAnswer:
    """Calls and message sizes (exact bytes) by op, as ``3-per-op-stats.awk``; most bytes first.

    Calls of a data type that is not known count as calls, and for no bytes. Calls per GPU are the mean over the GPUs
    that called anything.
    """
    columns = (
        _OP,
        _CALLS,
        _PER_GPU,
        Column("min_bytes", header="Min Bytes", label="min", unit=Unit.BYTES),
        Column("avg_bytes", header="Avg Bytes", label="avg", unit=Unit.BYTES, decimals=1),
        Column("max_bytes", header="Max Bytes", label="max", unit=Unit.BYTES),
        _TOTAL,
    )
    gpus = summary.gpus().values()
    rows: list[Row] = []
    for op, kinds in _by_op(summary):
        sized = {kind.size: kind for kind in kinds if kind.size is not None}
        total = _bytes_of(kinds)
        calls = sum(number for kind, number in kinds.items() if kind.size is not None)
        mean = total / calls if total is not None else None
        per_gpu = _mean([sum(number for (name, _), number in made.items() if name == op) for made in gpus])
        ends = min(sized, default=None), max(sized, default=None)
        rows.append((op, sum(kinds.values()), per_gpu, ends[0], mean, ends[1], total))
    return TableAnswer("nccl-log-ops", columns, rows, len(rows))


def sizes_table(summary: Summary) -> TableAnswer:
    """Calls by op and bucket of message size, as ``4-histogram.awk``, and how they spread over the GPUs."""
    columns = (
        _OP,
        Column("bucket", header="Message Size", label="message size"),
        _CALLS,
        _PER_GPU,
        Column("least_per_gpu", header="Least per GPU", label="least", unit=Unit.COUNT),
        Column("most_per_gpu", header="Most per GPU", label="most", unit=Unit.COUNT),
        _TOTAL,
    )
    gpus = summary.gpus().values()
    rows: list[Row] = []
    for op, kinds in _by_op(summary):
        for bucket in (*BUCKETS, None):
            own = {kind: number for kind, number in kinds.items() if bucket_of(kind.size) == bucket}
            if own:
                on_gpus = [made[op, bucket] for made in gpus]
                spread = (_mean(on_gpus), min(on_gpus, default=None), max(on_gpus, default=None))
                rows.append((op, bucket or "unknown", sum(own.values()), *spread, _bytes_of(own)))
    return TableAnswer("nccl-log-sizes", columns, rows, len(rows))


def calls_table(summary: Summary) -> TableAnswer:
    """Calls by op, count (of elements) and data type, as ``5-aggregate_comms.awk``; in an op, most bytes first."""
    columns = (
        _CALLS,
        _OP,
        COUNT,
        Column("datatype", header="Datatype", label="datatype"),
        Column("bytes", header="Bytes per Call", label="per call", unit=Unit.BYTES),
        _TOTAL,
    )
    rows: list[Row] = []
    for _, kinds in _by_op(summary):
        for kind in sorted(kinds, key=lambda kind: (-(kind.size or 0) * kinds[kind], -kind.elements, kind.datatype)):
            name, number = datatype_name(kind.datatype), kinds[kind]
            rows.append((number, kind.op, kind.elements, name, kind.size, _bytes_of({kind: number})))
    return TableAnswer("nccl-log-calls", columns, rows, len(rows))


def _by_op(summary: Summary) -> list[tuple[str, Counter[Kind]]]:
    """The kinds of calls of each op, the op with most bytes first."""
    found: dict[str, Counter[Kind]] = {}
    for kind, number in summary.kinds.items():
        found.setdefault(kind.op, Counter())[kind] = number
    return sorted(found.items(), key=lambda item: (-(_bytes_of(item[1]) or 0), item[0]))


def _bytes_of(kinds: Mapping[Kind, int]) -> int | None:
    """The bytes of all calls whose size is known; ``None`` where it is of none."""
    sizes = [kind.size * number for kind, number in kinds.items() if kind.size is not None]
    return sum(sizes) if sizes else None


def _mean(numbers: Sequence[int]) -> float | None:
    return sum(numbers) / len(numbers) if numbers else None
