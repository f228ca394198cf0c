"""What an export does not record, from NCCL's debug log of the same run (sizes) and NCCL Inspector (also algorithms).

Log lines have no times, so calls are aligned by order (docs/nccl.md#debug-log): a process's calls of one collective on
one communicator have the same order in log and export. They are aligned only if log and export have equally many; an
export of a part of the run has fewer, and gets no sizes. NCCL Inspector's records may have gaps: they are numbered from
the communicator's beginning, so the export must have the calls from there on.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nsystui.exports.metadata import pid_of
from nsystui.exports.nccl_calls import reduction_name
from nsystui.exports.nccl_log.files import Reported, open_log
from nsystui.exports.nccl_log.inspector import InspectedCall, InspectedKind, InspectedRank
from nsystui.exports.nccl_log.lines import Call, Damage, Line, LogProcess, LogReader, Signature, Unread, datatype_name
from nsystui.questions.nccl.communicators import CallSequence, call_sequences
from nsystui.questions.nccl.matching import INSPECTED_KEYS
from nsystui.questions.nccl.names import MAKES_COMMUNICATOR, PairingState, Reason, collective_of_api
from nsystui.questions.nccl.units import by_name, whole
from nsystui.questions.queries.tasks import RankedTask

if TYPE_CHECKING:
    import pandas as pd

SOURCE, INSPECTOR = "log", "inspector"
"""Values of ``size_source``: from the debug log or from NCCL Inspector, by order."""

_P2P = ("Send", "Recv")
_ROOTED = ("Broadcast", "Reduce", "Gather", "Scatter")

ProcessKey = tuple[int, int]
"""(report, process)"""


class Inspected:
    """NCCL Inspector's records of collectives of the processes ``pids``: 32 bytes each.

    ``kinds``: the index of each rank's kind of call. ``values``: kind, number, time and bus bandwidth of each record.
    ``others`` counts the other records by reason.
    """

    def __init__(self, pids: Collection[int]) -> None:
        self._pids = pids
        self.kinds: dict[tuple[InspectedRank, InspectedKind], int] = {}
        self.values = array("d")
        self.others: Counter[str] = Counter()

    def add(self, record: Line) -> None:
        """Add or count a record; ignore other lines."""
        if isinstance(record, Unread) and record.damage is Damage.RECORD:
            self.others["damaged or missing"] += record.number
        elif isinstance(record, InspectedCall) and (record.rank.pid not in self._pids or record.number is None):
            self.others["of sends and receives" if record.rank.pid in self._pids else "of other processes"] += 1
        elif isinstance(record, InspectedCall):
            kind = self.kinds.setdefault((record.rank, record.kind), len(self.kinds))
            self.values.extend(np.nan if x is None else x for x in (kind, record.number, record.time, record.busbw))


@dataclass(frozen=True)
class LogSizes:
    """The call sequences of the logs, the hosts of the open reports by index, and the results of nccl-tests."""

    sequences: Sequence[CallSequence]
    hosts: Mapping[int, str]
    reported: Sequence[Reported] = ()
    inspected: Inspected = field(default_factory=lambda: Inspected(()))

    def is_of(self, process_key: ProcessKey, writer: LogProcess | InspectedRank | None) -> bool:
        report, process = process_key
        host = _short(self.hosts.get(report, ""))
        return writer is not None and writer.pid == pid_of(process) and (not host or _short(writer.host) == host)

    def _candidates(self, process_key: ProcessKey, collective: str) -> list[tuple[CallSequence, list[Signature]]]:
        candidates = []
        for sequence in self.sequences:
            if not self.is_of(process_key, sequence.member.process):
                continue
            is_wanted = [signature.op == collective for signature in sequence.signatures]
            calls = [sequence.signatures[kind] for kind in sequence.kinds if is_wanted[kind]]
            if calls:
                candidates.append((sequence, calls))
        return candidates

    def records(
        self, process_key: ProcessKey, collective: str, streams: Sequence[int | None]
    ) -> list[dict[str, Any]] | str | None:
        """Return the log's records of a process's calls, in order; ``streams``: the stream of each call's kernel.

        A communicator uses one stream, so that numbers of calls by stream distinguish communicators. Return the reason
        if the log's calls do not match, and ``None`` if it has no such calls.
        """
        pairs = self._candidates(process_key, collective)
        if not pairs:
            return None
        if any(signature.is_folded for sequence, _ in pairs for signature in sequence.signatures):
            return f"{collective}: Ray left out lines of the log"
        if len(pairs) == 1:
            ((sequence, calls),) = pairs
            if len(calls) != len(streams):
                return f"{len(streams):,} calls of {collective}, but {len(calls):,} in the log"
            return _values(sequence, calls)
        pair_by_count = {len(calls): (sequence, calls) for sequence, calls in pairs}
        counts = Counter(streams)
        is_match = sorted(counts.values()) == sorted(len(calls) for _, calls in pairs) and None not in counts
        if not is_match or len(pair_by_count) < len(pairs):
            return f"{collective} on {len(pairs)} communicators of one process, which the export does not distinguish"
        values = {stream: iter(_values(*pair_by_count[count])) for stream, count in counts.items()}
        return [next(values[stream]) for stream in streams]


def _short(host: str) -> str:
    """Return a host's name without its domain, as logs contain it."""
    return host.partition(".")[0].lower()


def _values(sequence: CallSequence, calls: Sequence[Signature]) -> list[dict[str, Any]]:
    member = sequence.member
    values = {id(signature): _value(signature, member.communicator, member.ranks) for signature in sequence.signatures}
    return [values[id(signature)] for signature in calls]


def _value(call: Signature, communicator: str | None, ranks: int | None) -> dict[str, Any]:
    reduction = call.reduction if "Reduce" in call.op else None
    return {
        "size_source": SOURCE,
        "message_size": call.size,
        "communicator": communicator,
        "ranks": call.ranks if call.ranks is not None else ranks,
        "peer": call.root if call.op in _P2P else None,
        "root": call.root if call.op in _ROOTED else None,
        "reduction": None if reduction is None else reduction_name(reduction),
        "datatype": datatype_name(call.datatype),
    }


def read_log(names: Iterable[str], ranks: Iterable[RankedTask]) -> LogSizes:
    """Read the calls of the processes of ``ranks`` from the logs ``names``: 12 bytes per call, 32 per record.

    Raises ExportError if a log cannot be read.
    """
    ranks = list(ranks)
    pids = {item.pid for item in ranks if item.pid is not None}
    reader = LogReader()
    inspected = Inspected(pids)

    def lines(name: str) -> Iterator[Line]:
        with open_log(name) as log:
            for line in reader.read(log.read):
                inspected.add(line)
                writer = line.signature.writer if isinstance(line, Call) else None
                if writer is None or writer.process.pid in pids:
                    yield line

    sequences = call_sequences(chain.from_iterable(map(lines, names)))
    hosts = {item.task.report: item.host for item in ranks}
    return LogSizes(sequences, hosts, tuple(reader.reported), inspected)


def with_log_sizes(
    calls: pd.DataFrame, paired: tuple[pd.DataFrame, pd.DataFrame], log: LogSizes
) -> tuple[pd.DataFrame, list[str]]:
    """Fill in missing message sizes of calls from the log, and add the records of NCCL Inspector.

    Also return the reasons if values stay missing. ``calls`` has ``report``, ``process``, ``start``, ``row``, ``name``
    and the columns that NCCL's payload fills; ``paired`` are the kernels and calls of a pairing without the log, which
    show the stream of each call.
    """
    kernels, paired_calls = paired
    stream = kernels["stream"].astype("Int64").reindex(paired_calls["partner"].to_numpy()).set_axis(paired_calls.index)
    communication = paired_calls["operation"].where(
        paired_calls["collective"].notna() & (paired_calls["operation"] >= 0)
    )
    # NCCL may reorder the calls that it launches together.
    is_alone = (paired_calls["state"] == PairingState.PAIRED.value) & ~communication.duplicated(keep=False)
    added = paired_calls[["report", "row"]].assign(stream=stream, is_alone=is_alone)
    calls = calls.merge(added, on=["report", "row"], how="left").set_axis(calls.index)
    collectives, is_call = by_name(calls["name"], collective_of_api), calls["is_alone"].notna().to_numpy(bool)
    filled, reasons = _filled(calls, collectives, np.ones(len(calls), bool), log)
    if log.inspected.kinds:
        filled, more_reasons = _with_records(filled, collectives, is_call, log)
        reasons += more_reasons
    return filled.drop(columns=["stream", "is_alone"]), reasons


def kernels_with_log_sizes(kernels: pd.DataFrame, log: LogSizes) -> tuple[pd.DataFrame, list[str]]:
    """Do the same for ``kernels`` of processes without NVTX calls, by the collectives in names.

    Kernels of sends and receives run several calls, so their sizes stay missing.
    """
    collectives = kernels["collective"].astype(object).where(kernels["collective"].notna(), None).to_numpy()
    is_candidate = (kernels["reason"] == Reason.NO_CALLS.value).to_numpy(bool)
    filled, reasons = _filled(kernels, collectives, is_candidate, log)
    if not log.inspected.kinds:
        return filled, reasons
    filled, more_reasons = _with_records(filled.assign(is_alone=True), collectives, is_candidate, log)
    return filled.drop(columns="is_alone"), reasons + more_reasons


def _with_records(
    frame: pd.DataFrame, collectives: Any, is_candidate: NDArray[np.bool_], log: LogSizes
) -> tuple[pd.DataFrame, list[str]]:
    """Add `INSPECTED_KEYS` to calls or kernels, and fill in missing sizes, communicators and ranks."""
    import pandas as pd

    keys = ("message_size", "communicator", "ranks", *INSPECTED_KEYS)
    starts, task = frame["start"].astype("Int64"), [frame["report"], frame["process"]]
    is_collective = pd.Series(is_candidate & pd.notna(collectives), index=frame.index)
    is_creation = frame["name"].str.match(MAKES_COMMUNICATOR)
    first, first_creation = (
        starts.where(chosen).groupby(task).transform("min") for chosen in (is_collective, is_creation)
    )
    rows = frame.assign(kind=collectives, is_whole=(first_creation < first).fillna(False))[is_collective]
    groups = rows.sort_values(["start", "row"], kind="stable").groupby(
        ["report", "process", "kind", "communicator"], observed=True, dropna=False
    )
    parts = [_records_of(group, log) for _, group in groups]
    joined = pd.concat([part for part in parts if not isinstance(part, str)] or [pd.DataFrame(columns=list(keys))])
    columns = {}
    for key in keys:
        old = frame[key].astype(object) if key in frame else pd.Series(None, index=frame.index, dtype=object, name=key)
        columns[key] = _typed(old, old.where(old.notna(), joined[key].reindex(frame.index)))
    if "size_source" in frame:
        is_new = frame["message_size"].isna() & columns["message_size"].notna()
        columns["size_source"] = frame["size_source"].astype(object).mask(is_new, INSPECTOR)
    return frame.assign(**columns), sorted({part for part in parts if isinstance(part, str) and part})


def _records_of(calls: pd.DataFrame, log: LogSizes) -> pd.DataFrame | str:
    """Return the records of a process's calls of one collective on a communicator, or why they are unknown."""
    import pandas as pd

    first = calls.iloc[0]
    collective, communicator = str(first["kind"]), first["communicator"]
    is_known = isinstance(communicator, str) and communicator.startswith("0x")
    kinds = {
        index: (rank, kind)
        for (rank, kind), index in log.inspected.kinds.items()
        if kind.op == collective
        and log.is_of((int(first["report"]), int(first["process"])), rank)
        and (not is_known or rank.communicator == communicator)
    }
    if not kinds:
        return ""
    ranks = {rank for rank, _ in kinds.values()}
    if len(ranks) > 1:
        return f"{collective} on {len(ranks)} communicators of one process, which the export does not distinguish"
    values = np.array(log.inspected.values).reshape(-1, 4)
    values = values[np.isin(values[:, 0], list(kinds))]
    numbers = values[:, 1].astype(np.int64)
    end = int(numbers.max()) + 1
    if end != len(calls) and not (is_known and first["is_whole"] and end < len(calls)):
        return f"{len(calls):,} calls of {collective}, but {end:,} in the records"
    if len(np.unique(numbers)) < len(numbers):
        return f"several records of one {collective}"
    cells = [(*kinds[int(kind)], time, busbw) for kind, _, time, busbw in values.tolist()]
    rows = [
        (kind.size, rank.communicator, rank.ranks, kind.algorithm, kind.protocol, *times)
        for rank, kind, *times in cells
    ]
    records = pd.DataFrame(
        rows,
        index=calls.index[numbers],
        columns=["message_size", "communicator", "ranks", *INSPECTED_KEYS],
        dtype=object,
    )
    sizes, recorded = whole(calls["message_size"])[numbers], whole(records["message_size"])
    is_alone, is_other = calls["is_alone"].to_numpy(bool)[numbers], (sizes >= 0) & (recorded >= 0) & (sizes != recorded)
    if (is_alone & is_other).any():
        return f"{collective}: other sizes than the export's"
    # The order of calls that NCCL launched together is unknown, except that their sizes differ.
    return records[is_alone | ((sizes >= 0) & (sizes == recorded))]


def _filled(
    frame: pd.DataFrame, collectives: Any, is_candidate: NDArray[np.bool_], log: LogSizes
) -> tuple[pd.DataFrame, list[str]]:
    import pandas as pd

    is_collective = np.array([collective is not None for collective in collectives.tolist()], bool)
    indices = np.flatnonzero(is_candidate & is_collective & frame["message_size"].isna().to_numpy(bool))
    keys = [key for key in (*_FILLED, "size_source") if key in frame]
    columns: dict[str, Any] = {key: frame[key].astype(object).to_numpy().copy() for key in keys}
    reasons: set[str] = set()
    # ``groupby`` keeps the order by start in each group.
    row_columns = ["report", "process", "start", "row", "stream"]
    rows = frame[row_columns].iloc[indices].assign(place=indices, kind=collectives[indices])
    rows = rows.sort_values(["start", "row"], kind="stable")
    for (report, process, kind), group in rows.groupby(["report", "process", "kind"], observed=True):
        streams = [None if stream is pd.NA else int(stream) for stream in group["stream"].astype("Int64")]
        records = log.records((int(report), int(process)), str(kind), streams)
        if isinstance(records, str):
            reasons.add(records)
        elif records is not None:
            for key in keys:
                columns[key][group["place"].to_numpy()] = [record[key] for record in records]
    return frame.assign(**{key: _typed(frame[key], columns[key]) for key in keys}), sorted(reasons)


_FILLED = ("message_size", "communicator", "ranks", "peer", "root", "reduction", "datatype")
_NUMBERS = frozenset({"message_size", "ranks", "peer", "root", "inspected"})


def _typed(column: pd.Series[Any], values: Any) -> Any:
    import pandas as pd

    number = "float64" if column.name == "inspected_busbw" else object
    return pd.Series(values, index=column.index, dtype="Int64" if column.name in _NUMBERS else number)


def log_notes(kernels: pd.DataFrame, calls: pd.DataFrame, log: LogSizes, reasons: Sequence[str]) -> tuple[str, ...]:
    """Return the notes of a table whose sizes may be from the log."""
    records = ""
    others = log.inspected.others
    total = len(log.inspected.values) // 4 + others.total()
    if total:
        frames = [
            frame for frame in (calls, kernels[kernels["reason"] == Reason.NO_CALLS.value]) if "inspected" in frame
        ]
        joined = sum(int(frame["inspected"].notna().sum()) for frame in frames)
        counts = {**others, "without a call": total - others.total() - joined}
        words = "".join(f", {number:,} {why}" for why, number in counts.items() if number)
        records = f"NCCL Inspector: {joined:,} of {total:,} records are of calls here, by order{words}"
    aligned = int((calls["size_source"] == SOURCE).sum())
    aligned += int((kernels["message_size"].notna() & (kernels["reason"] == Reason.NO_CALLS.value)).sum())
    aligned_note = f"message sizes from the debug log, by the order of the calls: {aligned:,}" if aligned else ""
    unknown_note = f"values are unknown if the log does not match: {'; '.join(reasons)}" if reasons else ""
    if not (records or aligned_note or unknown_note) and calls["message_size"].isna().any():
        unknown_note = "the debug log has no calls of these processes (host and pid are compared)"
    return tuple(text for text in (records, aligned_note, unknown_note) if text)
