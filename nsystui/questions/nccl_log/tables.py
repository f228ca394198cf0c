"""The tables of a debug log, by the names that users know: calls, communicators, ranks, rings, tuning, steps, lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nsystui.base.answer import COUNT, HOST, PID, RANK, Column, Row, TableAnswer, Unit
from nsystui.base.text import few
from nsystui.exports.nccl_log.lines import Damage, datatype_name
from nsystui.questions.nccl.communicators import CommunicatorRank
from nsystui.questions.nccl.names import BUCKETS, bucket_of
from nsystui.questions.nccl_log import topology_tables as topology
from nsystui.questions.nccl_log.summary import CallKind, Gpu, LogSummary, MemberCalls

_OP = Column("op", header="Op", label="op")
_CALLS = Column("calls", header="Calls", label="calls", unit=Unit.COUNT)
_PER_GPU = Column("calls_per_gpu", header="Calls per GPU", label="per GPU", unit=Unit.COUNT, decimals=3)
_TOTAL = Column("total_bytes", header="Total Bytes", label="total", unit=Unit.BYTES)


def ops_table(summary: LogSummary) -> TableAnswer:
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


def sizes_table(summary: LogSummary) -> TableAnswer:
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


def calls_table(summary: LogSummary) -> TableAnswer:
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


def _by_op(summary: LogSummary) -> list[tuple[str, Counter[CallKind]]]:
    """The kinds of calls of each op, the op with most bytes first."""
    found: dict[str, Counter[CallKind]] = {}
    for kind, number in summary.kinds.items():
        found.setdefault(kind.op, Counter())[kind] = number
    return sorted(found.items(), key=lambda item: (-(_bytes_of(item[1]) or 0), item[0]))


def _bytes_of(kinds: Mapping[CallKind, int]) -> int | None:
    """The bytes of all calls whose size is known; ``None`` where it is of none."""
    sizes = [kind.size * number for kind, number in kinds.items() if kind.size is not None]
    return sum(sizes) if sizes else None


def _mean(numbers: Sequence[int]) -> float | None:
    return sum(numbers) / len(numbers) if numbers else None


_SIZE = Column("ranks", header="Ranks", label="ranks", unit=Unit.COUNT, importance=2)
_GPU = (
    HOST,
    PID.with_importance(1),
    Column("device", header="CUDA Device", label="device", unit=Unit.NUMBER),
)
_NONE = MemberCalls()
_UNKNOWN = (None,) * 4


def communicators_table(summary: LogSummary) -> TableAnswer:
    """Every communicator: how many ranks it has, which of them the log knows, and how their calls spread.

    Ranks that called less than others are where a job hangs, or whose lines are missing. What no line gives a name that
    all ranks share is in one row for each size.
    """
    columns = (
        topology.COMMUNICATOR,
        _SIZE,
        Column("in_log", header="Ranks in Log", label="in the log"),
        _CALLS,
        Column("least_per_rank", header="Least per Rank", label="least", unit=Unit.COUNT),
        Column("most_per_rank", header="Most per Rank", label="most", unit=Unit.COUNT),
        _TOTAL,
    )
    rows: list[Row] = []
    for (name, ranks), members in _by_communicator(summary).items():
        made = [summary.members.get(member, _NONE) for member in members]
        calls = [each.calls for each in made]
        # Where no calls were recorded at all, none of a communicator is not 0.
        numbers = (sum(calls), min(calls), max(calls), sum(each.bytes for each in made)) if summary.calls else _UNKNOWN
        known = topology.spans(member.rank for member in members)
        rows.append((name or f"{len(members)} without a name", ranks, known, *numbers))
    return TableAnswer("nccl-log-communicators", columns, rows, len(rows))


def ranks_table(summary: LogSummary) -> TableAnswer:
    """Every rank of every communicator with its GPU, its calls and its last opCount (hexadecimal, as in the log)."""
    columns = (
        topology.COMMUNICATOR,
        RANK,
        _SIZE,
        *_GPU,
        _CALLS,
        Column("last_op_count", header="Last opCount", label="last opCount"),
        _TOTAL,
    )
    rows: list[Row] = []
    for members in _by_communicator(summary).values():
        for member in sorted(members, key=lambda member: (member.rank is None, member.rank or 0)):
            made = summary.members.get(member, _NONE)
            last = f"{made.last_op_count:x}" if made.last_op_count >= 0 else None
            who = (member.communicator, member.rank, member.ranks, *_gpu(member))
            rows.append((*who, made.calls, last, made.bytes) if summary.calls else (*who, None, None, None))
    return TableAnswer("nccl-log-ranks", columns, rows, len(rows))


def gpus_table(summary: LogSummary) -> TableAnswer:
    """The calls of each GPU over all communicators; calls whose line lost its process are in one row without a GPU.

    The rank is RCCL's global one, else that in the largest communicator of the GPU.
    """
    columns = (
        RANK,
        *_GPU,
        Column("communicators", header="Communicators", label="communicators", unit=Unit.COUNT),
        _CALLS,
        _TOTAL,
    )
    found: dict[Gpu | None, list[CommunicatorRank]] = {}
    for member in summary.members:
        key = None if member.process is None else (member.process, member.device)
        found.setdefault(key, []).append(member)
    rows: list[Row] = []
    for members in found.values():
        made = [summary.members[member] for member in members]
        named = len({member.communicator for member in members} - {None})
        totals = sum(each.calls for each in made), sum(each.bytes for each in made)
        rows.append((_job_rank(members), *_gpu(members[0]), named, *totals))
    answer = TableAnswer("nccl-log-gpus", columns, rows, len(rows))
    return answer.sorted_by("device", False).sorted_by("pid", False).sorted_by("rank", False)


def _job_rank(members: Sequence[CommunicatorRank]) -> int | None:
    told = next((member.global_rank for member in members if member.global_rank is not None), None)
    if told is not None:
        return told
    largest = max(members, key=lambda member: member.ranks or 0)
    return largest.rank


def _gpu(member: CommunicatorRank) -> tuple[str | None, int | None, int | None]:
    if member.process is None:
        return None, None, None
    return member.process.host, member.process.pid, member.device


def _by_communicator(summary: LogSummary) -> dict[tuple[str | None, int | None], list[CommunicatorRank]]:
    """The ranks of each communicator by its name and size, first ones first; under no name, what ranks do not share."""
    found: dict[tuple[str | None, int | None], list[CommunicatorRank]] = {}
    for member in summary.communicators.members:
        found.setdefault((member.communicator if member.is_shared else None, member.ranks), []).append(member)
    return dict(sorted(found.items(), key=lambda item: item[0][0] is None))


_NS_PER_S = 1e9


def tuning_table(summary: LogSummary) -> TableAnswer:
    """The algorithm and protocol that NCCL chose, by op and bytes as the tuner counts them.

    For AllGather, ReduceScatter and AlltoAll these are the bytes of all ranks together. The lines name no communicator:
    those are told whose rank 0 called that op with that many bytes.
    """
    callers = _callers(summary)
    columns = (
        Column("op", header="Op", label="op"),
        Column("bytes", header="Tuner Bytes", label="tuner bytes", unit=Unit.BYTES),
        Column("algorithm", header="Algorithm", label="algorithm"),
        Column("protocol", header="Protocol", label="protocol"),
        Column("channels", header="Channels", label="channels", unit=Unit.COUNT),
        Column("lines", header="Lines", label="lines", unit=Unit.COUNT),
        Column("communicators", header="Communicators", label="communicators", importance=2),
    )
    rows: list[Row] = [
        (
            line.op,
            line.size,
            line.algorithm,
            line.protocol,
            line.channels,
            number,
            few(callers.get((line.op, line.size), ())) or None,
        )
        for line, number in sorted(
            summary.tuning.items(), key=lambda item: (str(item[0].op or ""), -int(item[0].size or 0), -item[1])
        )
    ]
    return TableAnswer("nccl-log-tuning", columns, rows, len(rows))


# The tuner counts the bytes of all ranks of these.
_OF_ALL_RANKS = frozenset({"AllGather", "ReduceScatter", "AlltoAll"})


def _callers(summary: LogSummary) -> dict[tuple[str | None, int | None], list[str]]:
    """The communicators that called an op with a number of bytes as the tuner counts them."""
    found: dict[tuple[str | None, int | None], list[str]] = {}
    for member, made in summary.members.items():
        for op, size in sorted(made.sizes):
            if op in _OF_ALL_RANKS and member.ranks is None:
                continue
            names = found.setdefault((op, size * (member.ranks or 1) if op in _OF_ALL_RANKS else size), [])
            if member.communicator is not None and member.communicator not in names:
                names.append(member.communicator)
    return found


def steps_table(summary: LogSummary) -> TableAnswer:
    """Step time and TFLOPS per GPU over the training's lines, as ``avg_step_timing_tflops.awk``.

    Each is the mean over the lines that have it (the script leaves out lines without TFLOPS).
    """
    columns = (
        Column("lines", header="Training Lines", label="lines", unit=Unit.COUNT),
        Column("first", header="First Iteration", label="first", unit=Unit.NUMBER),
        Column("last", header="Last Iteration", label="last", unit=Unit.NUMBER),
        Column("avg_step", header="Avg Step Time (ns)", label="step avg", unit=Unit.DURATION, decimals=1),
        Column("min_step", header="Min Step Time (ns)", label="min", unit=Unit.DURATION, decimals=1),
        Column("max_step", header="Max Step Time (ns)", label="max", unit=Unit.DURATION, decimals=1),
        Column("avg_tflops", header="Avg TFLOPS per GPU", label="TFLOPS/GPU", unit=Unit.COUNT, decimals=6),
        Column("min_tflops", header="Min TFLOPS per GPU", label="min", unit=Unit.COUNT, decimals=6),
        Column("max_tflops", header="Max TFLOPS per GPU", label="max", unit=Unit.COUNT, decimals=6),
    )
    rows: list[Row] = []
    if summary.training_lines:
        seconds, tflops = summary.step_time, summary.tflops
        times = (None if each is None else each * _NS_PER_S for each in (seconds.mean, seconds.least, seconds.most))
        speeds = (tflops.mean, tflops.least, tflops.most)
        rows.append((summary.training_lines, summary.first_iteration, summary.last_iteration, *times, *speeds))
    return TableAnswer("nccl-log-steps", columns, rows, len(rows))


def iterations_table(summary: LogSummary) -> TableAnswer:
    """Every iteration that the training's lines report; what none of them prints is missing."""
    columns = (
        Column("epoch", header="Epoch", label="epoch", unit=Unit.NUMBER),
        Column("iteration", header="Iteration", label="iteration", unit=Unit.NUMBER),
        Column("step_time", header="Step Time (ns)", label="step time", unit=Unit.DURATION, decimals=1),
        Column("tflops", header="TFLOPS per GPU", label="TFLOPS/GPU", unit=Unit.COUNT, decimals=6),
        Column("loss", header="Loss", label="loss", unit=Unit.COUNT, decimals=6),
        Column("lines", header="Lines", label="lines", unit=Unit.COUNT),
    )
    rows: list[Row] = [
        (
            one.epoch,
            one.iteration,
            None if one.step_time is None else one.step_time * _NS_PER_S,
            one.tflops,
            one.loss,
            lines,
        )
        for one, lines in summary.iterations.values()
    ]
    return TableAnswer("nccl-log-iterations", columns, rows, len(rows))


def results_table(summary: LogSummary) -> TableAnswer:
    """What nccl-tests reported of each size, as it prints it: size, times, and rates of 10⁹ bytes per second."""
    columns = [Column("bytes", header="Bytes", label="size", unit=Unit.BYTES)]
    for key, header, label in (("out", "Out of Place", ""), ("in", "In Place", "in place ")):
        time = Column(f"{key}_time", header=f"{header} Time (ns)", label=f"{label}time", unit=Unit.DURATION, decimals=1)
        algbw, busbw = (
            Column(f"{key}_{rate}", header=f"{header} {rate} (B/s)", label=f"{label}{rate}", unit=Unit.RATE, decimals=1)
            for rate in ("algbw", "busbw")
        )
        wrong = Column(f"{key}_wrong", header=f"{header} Wrong", label=f"{label}wrong", unit=Unit.COUNT)
        columns += [time, algbw.with_importance(1), busbw, wrong.with_importance(2)]
    rows: list[Row] = [(one.size, *one.out_of_place, *one.in_place) for one in summary.results]
    return TableAnswer("nccl-log-results", tuple(columns), rows, len(rows))


def lines_table(summary: LogSummary) -> TableAnswer:
    """The lines of the logs by what they hold, and those that could not be read."""
    columns = (
        Column("what", header="What", label="what"),
        Column("number", header="Number", label="number", unit=Unit.COUNT),
    )
    rows: list[Row] = [
        ("lines read", summary.lines),
        ("calls", summary.calls),
        ("lines of communicators (Init, Destroy, Abort)", summary.communicator_lines),
        ("lines of the tuner", summary.tuning.total()),
        ("lines of the topology", summary.topology.lines),
        ("lines of training iterations", summary.training_lines),
        *((f"unread calls, {damage.value}", summary.unread[damage]) for damage in Damage),
    ]
    return TableAnswer("nccl-log-lines", columns, rows, len(rows))


@dataclass(frozen=True)
class LogTable:
    """A table: its title, how it is made, and whether it is shown unasked (what has a row for each rank is not)."""

    title: str
    make: Callable[[LogSummary], TableAnswer]
    is_usual: bool = True


TABLES = {
    "steps": LogTable("Step time and TFLOPS per GPU, from the training's own lines", steps_table),
    "iterations": LogTable("Iterations one by one, from the training's own lines", iterations_table, is_usual=False),
    "results": LogTable("Results of nccl-tests", results_table),
    "ops": LogTable("Calls and message sizes by op", ops_table),
    "sizes": LogTable("Calls by op and message size", sizes_table),
    "calls": LogTable("Calls by op, count and datatype", calls_table),
    "communicators": LogTable("Communicators, and which of their ranks are in the log", communicators_table),
    "ranks": LogTable("Ranks of each communicator, with their last opCount", ranks_table, is_usual=False),
    "gpus": LogTable("Calls of each GPU", gpus_table, is_usual=False),
    "tuning": LogTable("Algorithm and protocol, as NCCL chose them", tuning_table, is_usual=False),
    "problems": LogTable("What looks wrong in the topology", topology.problems_table),
    "rings": LogTable("Rings by host", topology.rings_table),
    "trees": LogTable("Trees, a row for each rank", topology.trees_table, is_usual=False),
    "channels": LogTable("Channels of the ranks", topology.channels_table, is_usual=False),
    "transports": LogTable("Transports of the connections", topology.transports_table),
    "nics": LogTable("Network devices, and GPU Direct RDMA", topology.nics_table, is_usual=False),
    "init": LogTable("Initialisation times by phase", topology.init_table, is_usual=False),
    "settings": LogTable("Versions, environment, network", topology.settings_table, is_usual=False),
    "lines": LogTable("Lines of the log", lines_table),
}
"""The tables in the order in which they are printed."""
