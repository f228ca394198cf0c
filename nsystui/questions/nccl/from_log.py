"""Message sizes that an export does not record, from NCCL's debug log of the same run.

Log lines have no times, so calls are aligned by order (docs/nccl.md#debug-log): a process's calls of one collective on
one communicator have the same order in log and export. They are aligned only if log and export have equally many; an
export of a part of the run has fewer, and gets no sizes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nsystui.exports.metadata import pid_of
from nsystui.exports.nccl_calls import reduction_name
from nsystui.exports.nccl_log.files import Reported, open_log
from nsystui.exports.nccl_log.lines import Call, Line, LogReader, Signature, datatype_name
from nsystui.questions.nccl.communicators import CallSequence, call_sequences
from nsystui.questions.nccl.names import Reason, collective_of_api
from nsystui.questions.nccl.units import by_name
from nsystui.questions.queries.tasks import RankedTask

if TYPE_CHECKING:
    import pandas as pd

SOURCE = "log"
"""Value of ``size_source``: from the debug log, by order."""

_P2P = ("Send", "Recv")
_ROOTED = ("Broadcast", "Reduce", "Gather", "Scatter")

ProcessKey = tuple[int, int]
"""(report, process)"""


@dataclass(frozen=True)
class LogSizes:
    """The call sequences of the logs, the hosts of the open reports by index, and the results of nccl-tests."""

    sequences: Sequence[CallSequence]
    hosts: Mapping[int, str]
    reported: Sequence[Reported] = ()

    def _candidates(self, process_key: ProcessKey, collective: str) -> list[tuple[CallSequence, list[Signature]]]:
        report, process = process_key
        pid, host = pid_of(process), _short(self.hosts.get(report, ""))
        candidates = []
        for sequence in self.sequences:
            writer = sequence.member.process
            if writer is None or writer.pid != pid or (host and _short(writer.host) != host):
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
    """Read the calls of the processes of ``ranks`` from the logs ``names``: 12 bytes of memory per call.

    Raises ExportError if a log cannot be read.
    """
    ranks = list(ranks)
    pids = {item.pid for item in ranks if item.pid is not None}
    reader = LogReader()

    def lines(name: str) -> Iterator[Line]:
        with open_log(name) as log:
            for line in reader.read(log.read):
                writer = line.signature.writer if isinstance(line, Call) else None
                if writer is None or writer.process.pid in pids:
                    yield line

    sequences = call_sequences(chain.from_iterable(map(lines, names)))
    return LogSizes(sequences, {item.task.report: item.host for item in ranks}, tuple(reader.reported))


def with_log_sizes(
    calls: pd.DataFrame, paired: tuple[pd.DataFrame, pd.DataFrame], log: LogSizes
) -> tuple[pd.DataFrame, list[str]]:
    """Fill in missing message sizes of calls from the log; also return the reasons if sizes stay missing.

    ``calls`` has ``report``, ``process``, ``start``, ``row``, ``name`` and the columns that NCCL's payload fills;
    ``paired`` are the kernels and calls of a pairing without the log, which show the stream of each call.
    """
    kernels, paired_calls = paired
    stream = kernels["stream"].astype("Int64").reindex(paired_calls["partner"].to_numpy()).set_axis(paired_calls.index)
    streams = paired_calls[["report", "row"]].assign(stream=stream)
    streams = calls[["report", "row"]].merge(streams, on=["report", "row"], how="left")["stream"].set_axis(calls.index)
    collectives = by_name(calls["name"], collective_of_api)
    filled, reasons = _filled(calls.assign(stream=streams), collectives, np.ones(len(calls), bool), log)
    return filled.drop(columns="stream"), reasons


def kernels_with_log_sizes(kernels: pd.DataFrame, log: LogSizes) -> tuple[pd.DataFrame, list[str]]:
    """Do the same for ``kernels`` of processes without NVTX calls, by the collectives in names.

    Kernels of sends and receives run several calls, so their sizes stay missing.
    """
    collectives = kernels["collective"].astype(object).where(kernels["collective"].notna(), None).to_numpy()
    return _filled(kernels, collectives, (kernels["reason"] == Reason.NO_CALLS.value).to_numpy(bool), log)


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
_NUMBERS = frozenset({"message_size", "ranks", "peer", "root"})


def _typed(column: pd.Series[Any], values: Any) -> Any:
    import pandas as pd

    return pd.Series(values, index=column.index, dtype="Int64" if column.name in _NUMBERS else object)


def log_notes(kernels: pd.DataFrame, calls: pd.DataFrame, reasons: Sequence[str]) -> tuple[str, ...]:
    """Return the notes of a table whose sizes may be from the log."""
    aligned = int((calls["size_source"] == SOURCE).sum())
    aligned += int((kernels["message_size"].notna() & (kernels["reason"] == Reason.NO_CALLS.value)).sum())
    aligned_note = f"message sizes from the debug log, by the order of the calls: {aligned:,}" if aligned else ""
    unknown_note = f"sizes are unknown if the debug log does not match: {'; '.join(reasons)}" if reasons else ""
    if not aligned_note and not unknown_note and calls["message_size"].isna().any():
        unknown_note = "the debug log has no calls of these processes (host and pid are compared)"
    return tuple(text for text in (aligned_note, unknown_note) if text)
