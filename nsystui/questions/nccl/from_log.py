"""What an export does not record, from NCCL's debug log of the same run (sizes) and NCCL Inspector (also algorithms).

Log lines have no times: a process's calls of one collective on one communicator are aligned by order
(docs/nccl.md#debug-log), if log and export have equally many. NCCL Inspector's records may have gaps, but are numbered
from the communicator's beginning: the export must have the calls from there on, or verbose records show its first.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nsystui.base.text import counted
from nsystui.base.types import Flags
from nsystui.exports.metadata import pid_of
from nsystui.exports.nccl_calls import reduction_name
from nsystui.exports.nccl_log.files import open_log
from nsystui.exports.nccl_log.inspector import InspectedCall, InspectedKind, InspectedRank
from nsystui.exports.nccl_log.lines import Call, Damage, Line, LogProcess, LogReader, Signature, Unread, datatype_name
from nsystui.questions.nccl.communicators import CallSequence, call_sequences
from nsystui.questions.nccl.matching import INSPECTED_KEYS
from nsystui.questions.nccl.names import PairingState, Reason, collective_of_api
from nsystui.questions.nccl.units import MAKES_COMMUNICATOR, NONE, by_name, whole
from nsystui.questions.queries.tasks import RankedTask

if TYPE_CHECKING:
    import pandas as pd

SOURCE, INSPECTOR = "log", "inspector"
"""Values of ``size_source``: from the debug log or from NCCL Inspector, by order."""

_P2P = ("Send", "Recv")
_ROOTED = ("Broadcast", "Reduce", "Gather", "Scatter")

_Values = dict[str, Any]  # of a call by column
Objects = NDArray[np.object_]


class Inspected:
    """NCCL Inspector's records of collectives of the processes ``pids``: kind, number, time, bus bandwidth.

    ``kinds``: the number of each kind of call of a rank. ``others`` counts the other records by reason.
    """

    def __init__(self, pids: Collection[int]) -> None:
        self._pids = pids
        self.kinds: dict[tuple[InspectedRank, InspectedKind], int] = {}
        self.values = array("d")
        self.others: Counter[str] = Counter()
        self._last: InspectedRank | None = None
        self._damaged: Counter[InspectedRank | None] = Counter()
        """The damaged records after the last readable record of each rank."""

    def add(self, record: Line) -> None:
        """Add or count a record; ignore other lines."""
        if isinstance(record, Unread) and record.damage is Damage.RECORD:
            self.others["damaged or missing"] += record.number
            self._damaged[self._last] += record.number
            return
        if isinstance(record, InspectedCall):
            self._last = record.rank
            del self._damaged[self._last]
        if isinstance(record, InspectedCall) and record.rank.pid not in self._pids:
            self.others["of other processes"] += 1
        elif isinstance(record, InspectedCall) and record.number is None:
            self.others["of sends and receives" if record.kind.op in _P2P else "without a number"] += 1
        elif isinstance(record, InspectedCall):
            kind = self.kinds.setdefault((record.rank, record.kind), len(self.kinds))
            values = (kind, record.number, record.time, record.busbw, record.begun)
            self.values.extend(np.nan if value is None else value for value in values)

    def candidates(self, is_of: Callable[[InspectedRank], bool], collective: str) -> Iterator[_Candidate]:
        """Yield the records of each rank in a process."""
        kinds = {i: pair for pair, i in self.kinds.items() if pair[1].op == collective and is_of(pair[0])}
        for rank in {rank: None for rank, _ in kinds.values()}:
            shared = {
                i: {"algorithm": kind.algorithm, "protocol": kind.protocol, "message_size": kind.size}
                | {"communicator": rank.communicator, "ranks": rank.ranks}
                | ({} if kind.size is None else {"size_source": INSPECTOR})
                for i, (rank_of_kind, kind) in kinds.items()
                if rank_of_kind == rank
            }
            rows = np.frombuffer(self.values).reshape(-1, 5)
            rows = rows[np.isin(rows[:, 0], list(shared))]
            keys = ("inspected", "inspected_busbw", "begun")
            values = {int(n): shared[int(i)] | dict(zip(keys, row, strict=True)) for i, n, *row in rows.tolist()}
            problem = "" if len(values) == len(rows) else "some calls have several records"
            end, damaged = max(values) + 1, self._damaged[rank]
            yield _Candidate(rank.communicator, values, end, has_gaps=True, problem=problem, damaged=damaged)


class _Candidate(NamedTuple):
    """A log's calls of one collective on a communicator by number, from 0; ``has_gaps``: also after ``end``.

    ``damaged``: unreadable records after these.
    """

    communicator: str | None
    values: Mapping[int, _Values]
    end: int
    has_gaps: bool = False
    problem: str = ""
    damaged: int = 0


@dataclass(frozen=True)
class LogSizes:
    """The call sequences of the logs, the hosts of the open reports by index, and NCCL Inspector's records."""

    sequences: Sequence[CallSequence]
    hosts: Mapping[int, str]
    inspected: Inspected = field(default_factory=lambda: Inspected(()))

    def _candidates(self, call: Any, source: str) -> Iterator[_Candidate]:
        pid, host = pid_of(call["process"]), _short(self.hosts.get(call["report"], ""))

        def is_of(writer: LogProcess | InspectedRank | None) -> bool:
            return writer is not None and writer.pid == pid and (not host or _short(writer.host) == host)

        if source == INSPECTOR:
            yield from self.inspected.candidates(is_of, call["kind"])
            return
        for sequence in self.sequences:
            signatures, member = sequence.signatures, sequence.member
            kinds = [kind for kind in sequence.kinds if signatures[kind].op == call["kind"]]
            if kinds and is_of(member.process):
                is_folded = any(signature.is_folded for signature in signatures)
                values = [_value(signature, member.communicator, member.ranks) for signature in signatures]
                by_number = {number: values[kind] for number, kind in enumerate(kinds)}
                problem = "Ray left out lines of the log" if is_folded else ""
                yield _Candidate(member.communicator, by_number, len(kinds), problem=problem)

    def values_of(self, calls: pd.DataFrame, source: str) -> list[tuple[int, _Values]] | str:
        """Return indices of ``calls``, of one collective of a process in order, with the values that a log has.

        If the log's calls do not match, return the reason; it is empty if the log has no such calls.
        """
        first = calls.iloc[0]
        candidates = [
            item for item in self._candidates(first, source) if first["communicator"] in ("", item.communicator)
        ]
        if problem := next((item.problem for item in candidates if item.problem), ""):
            return f"{first['kind']}: {problem}"
        if not candidates:
            return ""
        parts: list[Sequence[int]] = [range(len(calls))]
        first_number, end = 0, candidates[0].end
        if len(candidates) > 1 and not (parts := _by_stream(calls, candidates)):
            problem = "communicators of one process, which the export does not distinguish"
            return f"{first['kind']} on {len(candidates)} {problem}"
        is_as_long = end <= len(calls) <= end + candidates[0].damaged
        if len(candidates) == 1 and not is_as_long and not (candidates[0].has_gaps and calls["is_whole"].all()):
            first_number = _first_number(candidates[0].values, calls)
        if first_number == NONE:
            return f"{counted(len(calls), 'call')} of {first['kind']}, but {end:,} in the log"
        pairs = [(item.values, part) for item, part in zip(candidates, parts, strict=True)]
        return [
            (index, values[n]) for values, part in pairs for n, index in enumerate(part, first_number) if n in values
        ]


_CLOCK = 1_000_000  # the largest difference between the UTC times of nsys and NCCL Inspector on a machine, ns


def _first_number(values: Mapping[int, _Values], calls: pd.DataFrame) -> int:
    """Return the only number of the first of ``calls`` with which every record's call began inside it, or ``NONE``."""
    if calls["utc"].isna().any():
        return NONE
    numbers = np.array([number for number, value in values.items() if value.get("begun", 0) > 0], np.int64)
    begun = np.array([values[number]["begun"] for number in numbers.tolist()], np.int64)
    starts, ends = (whole(calls[key]) + int(calls["utc"].iloc[0]) for key in ("start", "end"))
    first, last = (np.searchsorted(starts, begun + difference) for difference in (-_CLOCK, _CLOCK))
    fitting = []
    for record in np.flatnonzero(last > first)[:1]:
        for number in (numbers[record] - np.arange(first[record], last[record])).tolist():
            is_here = (numbers >= number) & (numbers < number + len(calls))
            early, late = (edges[numbers[is_here] - number] - begun[is_here] for edges in (starts, ends))
            fitting += [number] * bool(number >= 0 and early.max(initial=-_CLOCK) <= late.min(initial=_CLOCK))
    return fitting[0] if len(fitting) == 1 else NONE


def _by_stream(calls: pd.DataFrame, candidates: Sequence[_Candidate]) -> list[Sequence[int]]:
    """Return the indices of each candidate's calls, if numbers of calls by stream distinguish the communicators."""
    streams = whole(calls["stream"])
    groups = [np.flatnonzero(streams == stream).tolist() for stream in np.unique(streams)]
    parts, ends = {len(group): group for group in groups}, [candidate.end for candidate in candidates]
    is_match = NONE not in streams and sum(parts) == len(calls) and sorted(parts) == sorted(ends)
    return [parts[end] for end in ends] if is_match else []


def _short(host: str) -> str:
    return host.partition(".")[0].lower()


def _value(call: Signature, communicator: str | None, ranks: int | None) -> _Values:
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
    return LogSizes(sequences, {item.task.report: item.host for item in ranks}, inspected)


def with_log_sizes(
    calls: pd.DataFrame, paired: tuple[pd.DataFrame, pd.DataFrame], log: LogSizes, utc: Mapping[int, int]
) -> tuple[pd.DataFrame, list[str]]:
    """Fill in missing message sizes of calls from the log, and add the records of NCCL Inspector.

    Also return the reasons if values stay missing. ``calls`` has ``report``, ``process``, ``start``, ``row``, ``name``
    and the columns that NCCL's payload fills; ``paired`` are the kernels and calls of a pairing without the log, which
    show the stream of each call. ``utc``: the UTC time of job time 0 by report, ns.
    """
    kernels, paired_calls = paired
    stream = kernels["stream"].astype("Int64").reindex(paired_calls["partner"].to_numpy()).set_axis(paired_calls.index)
    operation = paired_calls["operation"].where(paired_calls["collective"].notna())
    is_alone = (paired_calls["state"] == PairingState.PAIRED.value) & ~operation.duplicated(keep=False)
    added = paired_calls[["report", "row"]].assign(stream=stream, is_alone=is_alone)
    calls = calls.merge(added, on=["report", "row"], how="left").set_axis(calls.index)
    calls["utc"] = calls["report"].map(utc)
    collectives, is_call = by_name(calls["name"], collective_of_api), calls["is_alone"].notna().to_numpy(bool)
    filled, reasons = _filled(calls, collectives, is_call, log)
    return filled.drop(columns=["stream", "is_alone", "utc"]), reasons


def kernels_with_log_sizes(kernels: pd.DataFrame, log: LogSizes) -> tuple[pd.DataFrame, list[str]]:
    """Fill in ``kernels`` of processes without NVTX calls like `with_log_sizes`, by the collectives in their names.

    Kernels of sends and receives run several calls, so their sizes stay missing.
    """
    collectives = kernels["collective"].astype(object).where(kernels["collective"].notna(), None).to_numpy()
    is_candidate = (kernels["reason"] == Reason.NO_CALLS.value).to_numpy(bool)
    filled, reasons = _filled(kernels.assign(is_alone=True, utc=np.nan), collectives, is_candidate, log)
    return filled.drop(columns=["is_alone", "utc"]), reasons


_FILLED = ("message_size", "communicator", "ranks", "peer", "root", "reduction", "datatype", "size_source")
_TYPES = dict.fromkeys(("message_size", "ranks", "peer", "root", "inspected"), "Int64") | {"inspected_busbw": "float64"}


def _filled(
    frame: pd.DataFrame, collectives: Any, is_candidate: Flags, log: LogSizes
) -> tuple[pd.DataFrame, list[str]]:
    """Fill in missing values of the candidates, and with records of NCCL Inspector add `INSPECTED_KEYS`."""
    import pandas as pd

    starts, task = frame["start"].astype("Int64"), [frame["report"], frame["process"]]
    is_call = pd.Series(is_candidate & pd.notna(collectives), index=frame.index)
    is_creation = frame["name"].str.match(MAKES_COMMUNICATOR, na=False)
    creation, first = (starts.where(chosen).groupby(task).transform("min") for chosen in (is_creation, is_call))
    # Calls without a kernel, as in a CUDA graph, may run never or often; without a communicator, they may have several.
    communicators = frame["communicator"].astype(object).fillna("")
    is_known = (communicators != "") | (is_creation.groupby(task).transform("sum") == 1)
    is_whole = is_known & (creation < first).fillna(False) & frame["stream"].notna()
    rows = frame.assign(index=np.arange(len(frame)), kind=collectives, communicator=communicators, is_whole=is_whole)
    # ``groupby`` keeps the order by start in each group.
    rows = rows[is_call].sort_values(["start", "row"], kind="stable")
    columns: dict[str, Objects] = {key: frame[key].astype(object).to_numpy().copy() for key in _FILLED if key in frame}
    reasons: set[str] = set()
    for source in (SOURCE, INSPECTOR) if log.inspected.kinds else (SOURCE,):
        if source == INSPECTOR:
            old = frame.reindex(columns=INSPECTED_KEYS).astype(object)
            columns |= {key: old[key].to_numpy().copy() for key in INSPECTED_KEYS}
        rows["message_size"] = columns["message_size"][rows["index"]]
        chosen = rows if source == INSPECTOR else rows[rows["message_size"].isna()]
        for _, group in chosen.groupby(["report", "process", "kind", "communicator"], observed=True):
            reasons.add(_add(columns, group, log, source))
    filled = {key: pd.Series(column, frame.index).astype(_TYPES.get(key, object)) for key, column in columns.items()}
    return frame.assign(**filled), sorted(reasons - {""})


def _add(columns: Mapping[str, Objects], calls: pd.DataFrame, log: LogSizes, source: str) -> str:
    """Fill in missing values of a process's ``calls`` of one collective, or return the reason if they stay missing.

    NCCL may reorder calls that it launches together: they take only records of their size.
    """
    import pandas as pd

    matched = log.values_of(calls, source)
    if isinstance(matched, str):
        return matched
    calls, values = calls.iloc[[index for index, _ in matched]], [call_values for _, call_values in matched]
    sizes = whole(calls["message_size"])
    recorded = np.array([NONE if (size := value["message_size"]) is None else size for value in values], np.int64)
    is_same, is_unknown = (sizes == recorded) & (sizes >= 0), (sizes < 0) | (recorded < 0)
    is_alone = calls["is_alone"].to_numpy(bool) | (source == SOURCE)
    if (is_alone & ~is_same & ~is_unknown).any():
        return f"{calls['kind'].iloc[0]}: other sizes than the export's"
    is_kept = is_same | (is_alone & is_unknown)
    index = calls["index"].to_numpy()[is_kept]
    for key, column in columns.items():
        new = np.array([value.get(key) for value in values], object)[is_kept]
        column[index] = np.where(pd.isna(column[index]), new, column[index])
    return ""


def log_notes(kernels: pd.DataFrame, calls: pd.DataFrame, log: LogSizes, reasons: Sequence[str]) -> tuple[str, ...]:
    """Return the notes of a table with sizes from the log."""
    others, records = log.inspected.others, ""
    if total := len(log.inspected.values) // 5 + others.total():
        frames = (calls, kernels[kernels["reason"] == Reason.NO_CALLS.value])
        keys = list(INSPECTED_KEYS)
        joined = sum(int(frame.reindex(columns=keys).notna().any(axis=1).sum()) for frame in frames)
        counts = {**others, "without a call": total - others.total() - joined}
        words = "".join(f", {number:,} {why}" for why, number in counts.items() if number)
        records = f"NCCL Inspector: {joined:,} of {counted(total, 'record')} joined with calls here, by order{words}"
    aligned = int((calls["size_source"] == SOURCE).sum())
    aligned += int((kernels["datatype"].notna() & (kernels["reason"] == Reason.NO_CALLS.value)).sum())
    aligned_note = f"message sizes from the debug log, by the order of the calls: {aligned:,}" if aligned else ""
    what, source = ("values", "log") if records else ("sizes", "debug log")
    unknown_note = f"{what} are unknown if the {source} does not match: {'; '.join(reasons)}" if reasons else ""
    if not (records or aligned_note or unknown_note) and calls["message_size"].isna().any():
        unknown_note = "the debug log has no calls of these processes (host and pid are compared)"
    return tuple(text for text in (records, aligned_note, unknown_note) if text)
