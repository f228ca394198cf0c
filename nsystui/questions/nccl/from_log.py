"""Message sizes that an export does not record, from NCCL's debug log of the same run.

Nothing in a log line says when it was written, so calls are aligned by their order (docs/nccl.md#debug-log): what a
process calls in one collective on one communicator stands in the log in the order in which the export has it. They are
aligned only where the log has exactly as many of them as the export; a capture of a part of the run has fewer, and
stays as it is.
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
"""In ``size_source``: from the debug log, by order."""

_P2P = ("Send", "Recv")
_ROOTED = ("Broadcast", "Reduce", "Gather", "Scatter")

Place = tuple[int, int]
"""(report, process)"""


@dataclass(frozen=True)
class LogSizes:
    """The calls of the logs by process and collective; ``hosts`` are those of the open reports, by index.

    ``reported`` are the results of nccl-tests.
    """

    sequences: Sequence[CallSequence]
    hosts: Mapping[int, str]
    reported: Sequence[Reported] = ()

    def _candidates(self, place: Place, collective: str) -> list[tuple[CallSequence, list[Signature]]]:
        """A caller of collectives in a process of the export, and the signatures of its calls in order."""
        report, process = place
        pid, host = pid_of(process), _short(self.hosts.get(report, ""))
        found = []
        for sequence in self.sequences:
            writer = sequence.member.process
            if writer is None or writer.pid != pid or (host and _short(writer.host) != host):
                continue
            of_kind = [one.op == collective for one in sequence.signatures]
            calls = [sequence.signatures[kind] for kind in sequence.kinds if of_kind[kind]]
            if calls:
                found.append((sequence, calls))
        return found

    def records(
        self, place: Place, collective: str, streams: Sequence[int | None]
    ) -> list[dict[str, Any]] | str | None:
        """The log's records of the calls of a process, in order; ``streams``: that of each call's kernel, if known.

        A communicator keeps to its stream, so that several are distinguished by their numbers of calls. The reason for
        having none, where the log has other calls; ``None`` where it has none.
        """
        found = self._candidates(place, collective)
        if not found:
            return None
        if any(one.is_folded for sequence, _ in found for one in sequence.signatures):
            return f"{collective}: Ray left out lines of the log"
        if len(found) == 1:
            ((sequence, calls),) = found
            if len(calls) != len(streams):
                return f"{len(streams):,} calls of {collective}, but {len(calls):,} in the log"
            return _values(sequence, calls)
        by_count = {len(calls): (sequence, calls) for sequence, calls in found}
        of_stream = Counter(streams)
        fits = sorted(of_stream.values()) == sorted(len(calls) for _, calls in found) and None not in of_stream
        if not fits or len(by_count) < len(found):
            return f"{collective} on {len(found)} communicators of one process, which the export does not distinguish"
        by_stream = {stream: iter(_values(*by_count[count])) for stream, count in of_stream.items()}
        return [next(by_stream[stream]) for stream in streams]


def _short(host: str) -> str:
    """A host's name without its domain: logs cut it there."""
    return host.partition(".")[0].lower()


def _values(sequence: CallSequence, calls: Sequence[Signature]) -> list[dict[str, Any]]:
    """The log's values for each of the calls, by the columns of a pairing."""
    member = sequence.member
    values = {id(one): _value(one, member.communicator, member.ranks) for one in sequence.signatures}
    return [values[id(one)] for one in calls]


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
    """The calls that the logs ``names`` have of the processes of ``ranks``: 12 bytes of memory for each.

    Raises ExportError for a log that cannot be read.
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
    """Recorded calls with what the log says of those without a message size, and why it does not say it of others.

    ``calls`` has ``report``, ``process``, ``start``, ``row``, ``name`` and the columns that NCCL's payload fills;
    ``paired`` are the kernels and calls of a pairing without the log, which records the streams.
    """
    kernels, known = paired
    stream = kernels["stream"].astype("Int64").reindex(known["partner"].to_numpy()).set_axis(known.index)
    streams = known[["report", "row"]].assign(stream=stream)
    streams = calls[["report", "row"]].merge(streams, on=["report", "row"], how="left")["stream"].set_axis(calls.index)
    collectives = by_name(calls["name"], collective_of_api)
    filled, reasons = _filled(calls.assign(stream=streams), collectives, np.ones(len(calls), bool), log)
    return filled.drop(columns="stream"), reasons


def kernels_with_log_sizes(kernels: pd.DataFrame, log: LogSizes) -> tuple[pd.DataFrame, list[str]]:
    """The same for the ``kernels`` of a pairing, of those processes that have no NVTX calls.

    Then the kernels alone say what was called. A kernel of sends and receives stands for several calls: it stays.
    """
    collectives = kernels["collective"].astype(object).where(kernels["collective"].notna(), None).to_numpy()
    return _filled(kernels, collectives, (kernels["reason"] == Reason.NO_CALLS.value).to_numpy(bool), log)


def _filled(
    frame: pd.DataFrame, collectives: Any, may_be: NDArray[np.bool_], log: LogSizes
) -> tuple[pd.DataFrame, list[str]]:
    import pandas as pd

    is_collective = np.array([one is not None for one in collectives.tolist()], bool)
    chosen = np.flatnonzero(may_be & is_collective & frame["message_size"].isna().to_numpy(bool))
    keys = [key for key in (*_FILLED, "size_source") if key in frame]
    columns: dict[str, Any] = {key: frame[key].astype(object).to_numpy().copy() for key in keys}
    reasons: set[str] = set()
    # In order of start, so that each group is, too.
    columns_of_rows = ["report", "process", "start", "row", "stream"]
    rows = frame[columns_of_rows].iloc[chosen].assign(place=chosen, kind=collectives[chosen])
    rows = rows.sort_values(["start", "row"], kind="stable")
    for (report, process, kind), group in rows.groupby(["report", "process", "kind"], observed=True):
        streams = [None if one is pd.NA else int(one) for one in group["stream"].astype("Int64")]
        records = log.records((int(report), int(process)), str(kind), streams)
        if isinstance(records, str):
            reasons.add(records)
        elif records is not None:
            for key in keys:
                columns[key][group["place"].to_numpy()] = [one[key] for one in records]
    return frame.assign(**{key: _typed(frame[key], columns[key]) for key in keys}), sorted(reasons)


_FILLED = ("message_size", "communicator", "ranks", "peer", "root", "reduction", "datatype")
_NUMBERS = frozenset({"message_size", "ranks", "peer", "root"})


def _typed(before: pd.Series[Any], values: Any) -> Any:
    import pandas as pd

    return pd.Series(values, index=before.index, dtype="Int64" if before.name in _NUMBERS else object)


def log_notes(kernels: pd.DataFrame, calls: pd.DataFrame, reasons: Sequence[str]) -> tuple[str, ...]:
    """The notes of a table whose sizes may come from the log."""
    aligned = int((calls["size_source"] == SOURCE).sum())
    aligned += int((kernels["message_size"].notna() & (kernels["reason"] == Reason.NO_CALLS.value)).sum())
    aligned_note = f"message sizes from the debug log, by the order of the calls: {aligned:,}" if aligned else ""
    left = f"sizes stay unknown where the debug log does not match: {'; '.join(reasons)}" if reasons else ""
    if not aligned_note and not left and calls["message_size"].isna().any():
        left = "the debug log has no calls of these processes (host and pid are compared)"
    return tuple(text for text in (aligned_note, left) if text)
