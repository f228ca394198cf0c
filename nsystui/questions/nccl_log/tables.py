"""The tables of a debug log, by the names that users know; for the topology's tables, see docs/nccl.md#topology."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass

from nsystui.base.answer import COUNT, HOST, PID, RANK, Column, Row, TableAnswer, Unit
from nsystui.exports.nccl_log.lines import Damage, datatype_name
from nsystui.exports.nccl_log.topology import Via
from nsystui.questions.nccl.communicators import CommunicatorRank
from nsystui.questions.nccl.names import BUCKETS, bucket_of
from nsystui.questions.nccl_log.problems import mixed_versions, problems_of
from nsystui.questions.nccl_log.summary import CallKind, LogGpu, LogSummary, MemberCalls
from nsystui.questions.nccl_log.topology import Connected, numbers_of, spans


@dataclass(frozen=True)
class LogTable:
    """A table of a log: name, title, columns, and a function that makes its rows from a summary.

    ``is_usual``: shown by default, unlike tables with a row for each rank.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: Callable[[LogSummary], Iterator[Row]]
    is_usual: bool = True

    def make(self, summary: LogSummary) -> TableAnswer:
        """Return the table of ``summary``."""
        rows = list(self.rows(summary))
        return TableAnswer(f"nccl-log-{self.name}", self.columns, rows, len(rows))


def _table(
    name: str, title: str, *columns: Column, is_usual: bool = True
) -> Callable[[Callable[[LogSummary], Iterator[Row]]], LogTable]:
    """Declare a table, whose rows the decorated function makes."""
    return lambda rows: LogTable(name, title, columns, rows, is_usual)


_NS_PER_S = 1e9
_COMMUNICATOR = Column("communicator", header="Communicator", label="communicator")
_OP = Column("op", header="Op", label="op")
_CALLS = Column("calls", header="Calls", label="calls", unit=Unit.COUNT)
_PER_GPU = Column("calls_per_gpu", header="Calls per GPU", label="per GPU", unit=Unit.COUNT, decimals=3)
_TOTAL = Column("total_bytes", header="Total Bytes", label="total", unit=Unit.BYTES)


@_table(
    "steps",
    "Step time and TFLOPS per GPU, from the training's own lines",
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
def steps_table(summary: LogSummary) -> Iterator[Row]:
    """Yield step time and TFLOPS per GPU over the training's lines, as ``avg_step_timing_tflops.awk``.

    Each mean is over the lines with the value (the script omits lines without TFLOPS).
    """
    lines, step, tflops = summary.training_lines, summary.step_time, summary.tflops
    if lines.number:
        times = (None if value is None else value * _NS_PER_S for value in (step.mean, step.minimum, step.maximum))
        speeds = (tflops.mean, tflops.minimum, tflops.maximum)
        yield lines.number, lines.minimum, lines.maximum, *times, *speeds


@_table(
    "iterations",
    "Iterations one by one, from the training's own lines",
    Column("epoch", header="Epoch", label="epoch", unit=Unit.NUMBER),
    Column("iteration", header="Iteration", label="iteration", unit=Unit.NUMBER),
    Column("step_time", header="Step Time (ns)", label="step time", unit=Unit.DURATION, decimals=1),
    Column("tflops", header="TFLOPS per GPU", label="TFLOPS/GPU", unit=Unit.COUNT, decimals=6),
    Column("loss", header="Loss", label="loss", unit=Unit.COUNT, decimals=6),
    Column("lines", header="Lines", label="lines", unit=Unit.COUNT),
    is_usual=False,
)
def iterations_table(summary: LogSummary) -> Iterator[Row]:
    """Yield every iteration that the training's lines report."""
    for step, lines in summary.iterations.values():
        time = None if step.step_time is None else step.step_time * _NS_PER_S
        yield step.epoch, step.iteration, time, step.tflops, step.loss, lines


def _results_columns(key: str, header: str, label: str) -> Iterator[Column]:
    yield Column(f"{key}_time", header=f"{header} Time (ns)", label=f"{label}time", unit=Unit.DURATION, decimals=1)
    for rate, importance in (("algbw", 1), ("busbw", 0)):
        yield Column(
            f"{key}_{rate}", header=f"{header} {rate} (B/s)", label=f"{label}{rate}", unit=Unit.RATE, decimals=1,
            importance=importance,
        )  # fmt: skip
    yield Column(f"{key}_wrong", header=f"{header} Wrong", label=f"{label}wrong", unit=Unit.COUNT, importance=2)


@_table(
    "results",
    "Results of nccl-tests",
    Column("bytes", header="Bytes", label="size", unit=Unit.BYTES),
    *_results_columns("out", "Out of Place", ""),
    *_results_columns("in", "In Place", "in place "),
)
def results_table(summary: LogSummary) -> Iterator[Row]:
    """Yield nccl-tests' results for each size, as printed: size, times, and rates of 10⁹ bytes per second."""
    for result in summary.results:
        yield result.size, *result.out_of_place, *result.in_place


@_table(
    "ops",
    "Calls and message sizes by op",
    _OP,
    _CALLS,
    _PER_GPU,
    Column("min_bytes", header="Min Bytes", label="min", unit=Unit.BYTES),
    Column("avg_bytes", header="Avg Bytes", label="avg", unit=Unit.BYTES, decimals=1),
    Column("max_bytes", header="Max Bytes", label="max", unit=Unit.BYTES),
    _TOTAL,
)
def ops_table(summary: LogSummary) -> Iterator[Row]:
    """Yield calls and message sizes (exact bytes) by op, as ``3-per-op-stats.awk``; most bytes first.

    Calls of an unknown data type count without bytes. Calls per GPU are the mean over the GPUs that called anything.
    """
    gpus = summary.gpus().values()
    for op, kinds in _by_op(summary):
        sized = {kind.size: kind for kind in kinds if kind.size is not None}
        total = _bytes_of(kinds)
        calls = sum(number for kind, number in kinds.items() if kind.size is not None)
        mean = total / calls if total is not None else None
        per_gpu = _mean([sum(number for (name, _), number in counts.items() if name == op) for counts in gpus])
        ends = min(sized, default=None), max(sized, default=None)
        yield op, sum(kinds.values()), per_gpu, ends[0], mean, ends[1], total


@_table(
    "sizes",
    "Calls by op and message size",
    _OP,
    Column("bucket", header="Message Size", label="message size"),
    _CALLS,
    _PER_GPU,
    Column("least_per_gpu", header="Least per GPU", label="least", unit=Unit.COUNT),
    Column("most_per_gpu", header="Most per GPU", label="most", unit=Unit.COUNT),
    _TOTAL,
)
def sizes_table(summary: LogSummary) -> Iterator[Row]:
    """Yield calls by op and bucket of message size, as ``4-histogram.awk``, and their spread over the GPUs."""
    gpus = summary.gpus().values()
    for op, kinds in _by_op(summary):
        for bucket in (*BUCKETS, None):
            kinds_in_bucket = {kind: number for kind, number in kinds.items() if bucket_of(kind.size) == bucket}
            if kinds_in_bucket:
                on_gpus = [calls_of_gpu[op, bucket] for calls_of_gpu in gpus]
                spread = (_mean(on_gpus), min(on_gpus, default=None), max(on_gpus, default=None))
                yield op, bucket or "unknown", sum(kinds_in_bucket.values()), *spread, _bytes_of(kinds_in_bucket)


@_table(
    "calls",
    "Calls by op, count and datatype",
    _CALLS,
    _OP,
    COUNT,
    Column("datatype", header="Datatype", label="datatype"),
    Column("bytes", header="Bytes per Call", label="per call", unit=Unit.BYTES),
    _TOTAL,
)
def calls_table(summary: LogSummary) -> Iterator[Row]:
    """Yield calls by op, count (of elements) and data type, as ``5-aggregate_comms.awk``; per op, most bytes first."""
    for _, kinds in _by_op(summary):
        for kind in sorted(kinds, key=lambda kind: (-(kind.size or 0) * kinds[kind], -kind.elements, kind.datatype)):
            name, number = datatype_name(kind.datatype), kinds[kind]
            yield number, kind.op, kind.elements, name, kind.size, _bytes_of({kind: number})


def _by_op(summary: LogSummary) -> list[tuple[str, Counter[CallKind]]]:
    kinds_by_op: dict[str, Counter[CallKind]] = {}
    for kind, number in summary.kinds.items():
        kinds_by_op.setdefault(kind.op, Counter())[kind] = number
    return sorted(kinds_by_op.items(), key=lambda item: (-(_bytes_of(item[1]) or 0), item[0]))


def _bytes_of(kinds: Mapping[CallKind, int]) -> int | None:
    """Return the bytes of calls of known size; ``None`` without such calls."""
    sizes = [kind.size * number for kind, number in kinds.items() if kind.size is not None]
    return sum(sizes) if sizes else None


def _mean(numbers: Sequence[int]) -> float | None:
    return sum(numbers) / len(numbers) if numbers else None


_SIZE = Column("ranks", header="Ranks", label="ranks", unit=Unit.COUNT, importance=2)
_GPU = (HOST, PID.with_importance(1), Column("device", header="CUDA Device", label="device", unit=Unit.NUMBER))
_NO_CALLS = MemberCalls()


@_table(
    "communicators",
    "Communicators, and which of their ranks are in the log",
    _COMMUNICATOR,
    _SIZE,
    Column("in_log", header="Ranks in Log", label="in the log"),
    _CALLS,
    Column("least_per_rank", header="Least per Rank", label="least", unit=Unit.COUNT),
    Column("most_per_rank", header="Most per Rank", label="most", unit=Unit.COUNT),
    _TOTAL,
)
def communicators_table(summary: LogSummary) -> Iterator[Row]:
    """Yield every communicator: its size, its ranks in the log, and the spread of their calls.

    Ranks with fewer calls show where a job hangs, or that lines are missing. Communicators without a shared name are in
    one row for each size.
    """
    for (name, ranks), members in _by_communicator(summary).items():
        sums = [summary.members.get(member, _NO_CALLS) for member in members]
        calls = [item.calls for item in sums]
        # If the log has no calls at all, a communicator's number of calls is unknown, not 0.
        numbers = sum(calls), min(calls), max(calls), sum(item.bytes for item in sums)
        cells = name or f"{len(members)} without a name", ranks, spans(member.rank for member in members)
        yield *cells, *(numbers if summary.calls else (None,) * 4)


@_table(
    "ranks",
    "Ranks of each communicator, with their last opCount",
    _COMMUNICATOR,
    RANK,
    _SIZE,
    *_GPU,
    _CALLS,
    Column("last_op_count", header="Last opCount", label="last opCount"),
    _TOTAL,
    is_usual=False,
)
def ranks_table(summary: LogSummary) -> Iterator[Row]:
    """Yield every rank of every communicator: GPU, calls and last opCount (hexadecimal, as in the log)."""
    for members in _by_communicator(summary).values():
        for member in sorted(members, key=lambda member: (member.rank is None, member.rank or 0)):
            member_calls = summary.members.get(member, _NO_CALLS)
            last = f"{member_calls.last_op_count:x}" if member_calls.last_op_count >= 0 else None
            numbers = (member_calls.calls, last, member_calls.bytes) if summary.calls else (None, None, None)
            yield member.communicator, member.rank, member.ranks, *_gpu(member), *numbers


@_table(
    "gpus",
    "Calls of each GPU",
    RANK,
    *_GPU,
    Column("communicators", header="Communicators", label="communicators", unit=Unit.COUNT),
    _CALLS,
    _TOTAL,
    is_usual=False,
)
def gpus_table(summary: LogSummary) -> Iterator[Row]:
    """Yield the calls of each GPU over all communicators; calls of unknown processes have one row."""
    by_gpu: dict[LogGpu | None, list[CommunicatorRank]] = {}
    for member in summary.members:
        gpu = None if member.process is None else (member.process, member.device)
        by_gpu.setdefault(gpu, []).append(member)
    rows: list[Row] = []
    for members in by_gpu.values():
        member_calls = [summary.members[member] for member in members]
        communicators = len({member.communicator for member in members} - {None})
        # RCCL's global rank, else the rank in the largest communicator.
        largest = max(members, key=lambda member: member.ranks or 0)
        rank = next((member.global_rank for member in members if member.global_rank is not None), largest.rank)
        totals = sum(item.calls for item in member_calls), sum(item.bytes for item in member_calls)
        rows.append((rank, *_gpu(members[0]), communicators, *totals))
    by_rank = TableAnswer("", gpus_table.columns, rows)
    yield from by_rank.sorted_by("device", False).sorted_by("pid", False).sorted_by("rank", False).rows


def _gpu(member: CommunicatorRank) -> tuple[str | None, int | None, int | None]:
    if member.process is None:
        return None, None, None
    return member.process.host, member.process.pid, member.device


def _by_communicator(summary: LogSummary) -> dict[tuple[str | None, int | None], list[CommunicatorRank]]:
    """Return the ranks by their communicator's shared name, or ``None``, and size, in order of appearance."""
    groups: dict[tuple[str | None, int | None], list[CommunicatorRank]] = {}
    for member in summary.communicators.members:
        groups.setdefault((member.communicator if member.is_shared else None, member.ranks), []).append(member)
    return dict(sorted(groups.items(), key=lambda item: item[0][0] is None))


@_table(
    "tuning",
    "Algorithm and protocol, as NCCL chose them",
    Column("op", header="Op", label="op"),
    Column("bytes", header="Tuner Bytes", label="tuner bytes", unit=Unit.BYTES),
    Column("algorithm", header="Algorithm", label="algorithm"),
    Column("protocol", header="Protocol", label="protocol"),
    Column("channels", header="Channels", label="channels", unit=Unit.COUNT),
    Column("lines", header="Lines", label="lines", unit=Unit.COUNT),
    is_usual=False,
)
def tuning_table(summary: LogSummary) -> Iterator[Row]:
    """Yield the algorithm and protocol that NCCL chose, by op and bytes as the tuner counts them.

    For AllGather, ReduceScatter and AlltoAll, these are the bytes of all ranks together. The lines do not name the
    communicator.
    """
    for line, number in sorted(
        summary.tuning.items(), key=lambda item: (str(item[0].op or ""), -int(item[0].size or 0), -item[1])
    ):
        yield line.op, line.size, line.algorithm, line.protocol, line.channels, number


@_table(
    "inspector",
    "Calls as NCCL Inspector measured them",
    _OP,
    Column("bytes", header="Bytes per Call", label="per call", unit=Unit.BYTES),
    Column("algorithm", header="Algorithm", label="algorithm"),
    Column("protocol", header="Protocol", label="protocol"),
    _SIZE.with_importance(0),
    Column("nodes", header="Nodes", label="nodes", unit=Unit.COUNT, importance=2),
    Column("source", header="Timing Source", label="timed by", importance=3),
    _CALLS,
    Column("avg", header="Avg (ns)", label="avg", unit=Unit.DURATION, decimals=1),
    Column("min", header="Min (ns)", label="min", unit=Unit.DURATION, importance=2),
    Column("max", header="Max (ns)", label="max", unit=Unit.DURATION, importance=1),
    Column("busbw", header="Avg BusBW (B/s)", label="busbw", unit=Unit.RATE, decimals=1),
    Column("min_busbw", header="Min BusBW (B/s)", label="min", unit=Unit.RATE, decimals=1, importance=1),
)
def inspector_table(summary: LogSummary) -> Iterator[Row]:
    """Yield calls by op, size, algorithm, protocol, ranks and nodes of the communicator; most time first."""
    by_time = sorted(summary.inspected.items(), key=lambda item: (-item[1].time.total, str(item[0])))
    for (ranks, nodes, kind), calls in by_time:
        time, busbw = calls.time, calls.busbw
        cells = kind.op, kind.size, kind.algorithm, kind.protocol, ranks, nodes, kind.source, calls.number
        yield *cells, time.mean, time.minimum, time.maximum, busbw.mean, busbw.minimum


_CHANNELS = Column("channels", header="Channels", label="channels")
_RANKS = Column("ranks", header="Ranks", label="ranks", unit=Unit.COUNT, importance=1)
_CHANGES = (
    Column("host_changes", header="Host Changes", label="host changes", unit=Unit.COUNT),
    Column("needed", header="Host Changes Needed", label="needed", unit=Unit.COUNT),
)


def _connected(summary: LogSummary) -> list[Connected]:
    return summary.topology.connected(summary.communicators.members)


@_table(
    "problems",
    "What looks wrong in the topology",
    _COMMUNICATOR,
    Column("problem", header="Problem", label="problem"),
    Column("evidence", header="Evidence", label="evidence"),
    Column("advice", header="Next Step", label="next step", importance=1),
)
def problems_table(summary: LogSummary) -> Iterator[Row]:
    """Yield problems with their evidence and next steps."""
    yield from ((None, *words) for words in mixed_versions(summary))
    for communicator in _connected(summary):
        yield from ((communicator.name, *words) for words in problems_of(communicator, summary))


@_table(
    "rings", "Rings by host", _COMMUNICATOR, _CHANNELS, _RANKS, *_CHANGES, Column("ring", header="Ring", label="ring")
)
def rings_table(summary: LogSummary) -> Iterator[Row]:
    """Yield every ring with its channels, drawn by host, and its changes of host.

    A ring over n hosts must change n times. Without rank 0's lines, a ring is known, and drawn, only if the log has
    enough other ranks.
    """
    for communicator in _connected(summary):
        for ring in communicator.rings():
            channels, changes = spans(numbers_of(ring.channels)), communicator.ring_changes(ring)
            yield communicator.name, channels, communicator.ranks, *changes, communicator.drawn(ring)


_DRAWN_DEPTH = 12


@_table(
    "trees",
    "Trees, a row for each rank",
    _COMMUNICATOR,
    _CHANNELS,
    Column("tree", header="Tree", label="tree"),
    RANK.with_importance(2),
    HOST,
    Column("depth", header="Depth", label="depth", unit=Unit.COUNT, importance=1),
    Column("via", header="Via", label="via"),
    is_usual=False,
)
def trees_table(summary: LogSummary) -> Iterator[Row]:
    """Yield each rank of each tree, below its parent, with the tree's channels and the transport to the parent."""
    for group in _connected(summary):
        hosts, vias = group.hosts, group.vias()
        for tree in group.trees():
            channels = spans(numbers_of(tree.channels))
            for rank, depth in tree.walk():
                text = "  " * min(depth - 1, _DRAWN_DEPTH) + "└ " * (depth > 0) + str(rank)
                parent = tree.parents.get(rank)
                link_vias = None if parent is None else vias.get((min(rank, parent), max(rank, parent)), {})
                names = [_words(via) for via, mask in (link_vias or {}).items() if mask & tree.channels]
                yield (group.name, channels, text, rank, hosts.get(rank), depth, ", ".join(sorted(names)) or None)


def _words(via: Via) -> str:
    """Return a transport as ``NET/IB/0 GDR`` or ``P2P/IPC``."""
    device = "" if via.device is None else f"/{via.device}"
    return f"{via.transport}/{via.way}{device}" + (" GDR" if via.gdr else "") + (" PXN" if via.pxn else "")


@_table(
    "channels",
    "Channels of the ranks",
    _COMMUNICATOR,
    Column("of_ranks", header="Of Ranks", label="of ranks"),
    Column("collective", header="Collective Channels", label="collective", unit=Unit.COUNT),
    Column("collnet", header="CollNet Channels", label="CollNet", unit=Unit.COUNT),
    Column("nvls", header="NVLS Channels", label="NVLS", unit=Unit.COUNT),
    Column("p2p", header="P2P Channels", label="p2p", unit=Unit.COUNT),
    Column("per_peer", header="P2P Channels per Peer", label="per peer", unit=Unit.COUNT, importance=1),
    Column("rings", header="Rings", label="rings", unit=Unit.COUNT),
    Column("trees", header="Trees", label="trees", unit=Unit.COUNT),
    is_usual=False,
)
def channels_table(summary: LogSummary) -> Iterator[Row]:
    """Yield the numbers of channels of each communicator; several rows if its ranks disagree."""
    for communicator in _connected(summary):
        for (counts, rings, trees), ranks in communicator.agreeing().items():
            numbers = (None,) * 5 if counts is None else astuple(counts)
            yield communicator.name, spans(ranks), *numbers, rings, trees


@_table(
    "transports",
    "Transports of the connections",
    _COMMUNICATOR,
    Column("transport", header="Transport", label="transport"),
    Column("way", header="Way", label="way"),
    Column("device", header="Network Device", label="NIC", unit=Unit.NUMBER),
    Column("gdr", header="GPU Direct RDMA", label="GDR"),
    Column("pxn", header="PXN", label="PXN", importance=1),
    Column("connections", header="Connections", label="connections", unit=Unit.COUNT),
    Column("pairs", header="Pairs of Ranks", label="pairs", unit=Unit.COUNT, importance=1),
    Column("between_hosts", header="Pairs between Hosts", label="between hosts", unit=Unit.COUNT, importance=2),
    _CHANNELS.with_importance(1),
)
def transports_table(summary: LogSummary) -> Iterator[Row]:
    """Yield the transports of each communicator: a connection is one channel from one rank to another."""
    for communicator in _connected(summary):
        ways: dict[Via, list[tuple[tuple[int, int], int]]] = {}
        for (source, target, via), channels in communicator.links().items():
            ways.setdefault(via, []).append(((source, target), channels))
        for via, links in sorted(ways.items(), key=lambda item: (item[0].transport, item[0].way, item[0].device or 0)):
            pairs = [pair for pair, _ in links]
            used_channels = 0
            for _, channels in links:
                used_channels |= channels
            number = sum(channels.bit_count() for _, channels in links)
            cells = (communicator.name, via.transport, via.way, via.device, _on(via.gdr), _on(via.pxn))
            yield (*cells, number, len(pairs), communicator.host_changes(pairs), spans(numbers_of(used_channels)))


def _on(state: bool | None) -> str | None:
    return None if state is None else "on" if state else "off"


@_table(
    "nics",
    "Network devices, and GPU Direct RDMA",
    HOST,
    Column("device", header="Network Device", label="NIC", unit=Unit.NUMBER),
    Column("name", header="Name", label="name"),
    Column("link", header="Link Layer", label="link"),
    Column("speed", header="Speed (B/s)", label="speed", unit=Unit.RATE),
    Column("gdr", header="GPU Direct RDMA", label="GPU Direct RDMA"),
    is_usual=False,
)
def nics_table(summary: LogSummary) -> Iterator[Row]:
    """Yield the network devices of each host by NCCL's number, with the state of GPU Direct RDMA."""
    for (host, number), nic in sorted(summary.topology.nics.items()):
        yield host, number, nic.name, nic.link, None if nic.speed is None else nic.speed * 125_000, nic.gdr


@_table(
    "init",
    "Initialisation times by phase",
    _COMMUNICATOR,
    Column("phase", header="Phase", label="phase"),
    Column("in_log", header="Ranks in Log", label="ranks", unit=Unit.COUNT),
    Column("avg", header="Avg (ns)", label="avg", unit=Unit.DURATION, decimals=1),
    Column("min", header="Min (ns)", label="min", unit=Unit.DURATION, decimals=1),
    Column("max", header="Max (ns)", label="max", unit=Unit.DURATION, decimals=1),
    Column("slowest", header="Slowest Rank", label="slowest rank", unit=Unit.NUMBER),
    is_usual=False,
)
def init_table(summary: LogSummary) -> Iterator[Row]:
    """Yield the ranks' times to initialise each communicator, by phase. NCCL prints hundredths of a second."""
    for communicator in _connected(summary):
        phases: dict[str, list[tuple[float, int]]] = {}
        for rank, part in sorted(communicator.parts.items()):
            for phase, seconds in () if part.times is None else (("total", part.times.total), *part.times.phases):
                phases.setdefault(phase, []).append((seconds * _NS_PER_S, -rank))
        for phase, times in phases.items():
            longest, rank = max(times)
            values = [time for time, _ in times]
            yield communicator.name, phase, len(values), sum(values) / len(values), min(values), longest, -rank


@_table(
    "settings",
    "Versions, environment, network",
    Column("name", header="Name", label="name"),
    Column("value", header="Value", label="value"),
    Column("processes", header="Processes", label="processes", unit=Unit.COUNT),
    Column("hosts", header="Hosts", label="hosts", unit=Unit.COUNT),
    is_usual=False,
)
def settings_table(summary: LogSummary) -> Iterator[Row]:
    """Yield versions of NCCL and driver, NCCL's environment and the network, with the processes that use each."""
    for setting, processes in sorted(summary.topology.settings.items(), key=lambda item: (item[0].name, item[0].value)):
        known_processes = processes - {None}
        hosts = {process[0] for process in processes if process is not None}
        yield (setting.name, setting.value, *((len(known_processes), len(hosts)) if known_processes else (None, None)))


@_table(
    "lines",
    "Lines of the log",
    Column("what", header="What", label="what"),
    Column("number", header="Number", label="number", unit=Unit.COUNT),
)
def lines_table(summary: LogSummary) -> Iterator[Row]:
    """Yield the numbers of lines by content, and of unread calls."""
    damages = [damage for damage in Damage if damage is not Damage.RECORD or summary.unread[damage]]
    yield from (
        ("lines read", summary.lines),
        ("calls", summary.calls),
        *((("calls of NCCL Inspector", summary.inspected_calls),) if summary.inspected_calls else ()),
        ("lines of communicators (Init, Destroy, Abort)", summary.communicator_lines),
        ("lines of the tuner", summary.tuning.total()),
        ("lines of the topology", summary.topology.lines),
        ("lines of training iterations", summary.training_lines.number),
        *((f"unread calls, {damage.value}", summary.unread[damage]) for damage in damages),
    )


TABLES = {table.name: table for table in list(globals().values()) if isinstance(table, LogTable)}
"""The tables in the order of printing."""
