"""The tables of a debug log's topology (docs/nccl.md#topology)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple
from typing import TYPE_CHECKING

from nsystui.base.answer import HOST, RANK, Column, Row, TableAnswer, Unit
from nsystui.base.text import few
from nsystui.exports.nccl_log.topology import ChannelCounts, Via
from nsystui.questions.nccl_log.topology import Connected, Ring, numbers_of

if TYPE_CHECKING:
    from nsystui.questions.nccl_log.summary import LogSummary

COMMUNICATOR = Column("communicator", header="Communicator", label="communicator")
_CHANNELS = Column("channels", header="Channels", label="channels")
_RANKS = Column("ranks", header="Ranks", label="ranks", unit=Unit.COUNT, importance=1)
_CHANGES = (
    Column("host_changes", header="Host Changes", label="host changes", unit=Unit.COUNT),
    Column("needed", header="Host Changes Needed", label="needed", unit=Unit.COUNT),
)
_NS_PER_S = 1e9


def spans(numbers: Iterable[int | None]) -> str | None:
    """``0-3,6`` of {0, 1, 2, 3, 6}; ``None`` where no number is known."""
    known = sorted({number for number in numbers if number is not None})
    return ",".join(_runs(known, rising_only=True)) or None


def _runs(numbers: Sequence[int], rising_only: bool = False) -> list[str]:
    """Neighbours that count up, or down too, as one: ``0-3``, ``7-4``."""
    found: list[list[int]] = []
    for number in numbers:
        run = found[-1] if found else []
        step = number - run[-1] if run else 0
        fits = step == 1 or (step == -1 and not rising_only)
        if fits and (len(run) == 1 or step == run[1] - run[0]):
            run.append(number)
        else:
            found.append([number])
    return [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in found]


def _connected(summary: LogSummary) -> list[Connected]:
    return summary.topology.connected(summary.communicators.members)


def rings_table(summary: LogSummary) -> TableAnswer:
    """Every ring with the channels that share it, drawn by host, and how often it goes from one host to another.

    A ring over n hosts must change n times. Without the lines of rank 0, a ring is known only if enough others are
    there; the drawing is missing where it is not.
    """
    columns = (
        COMMUNICATOR,
        _CHANNELS,
        _RANKS,
        *_CHANGES,
        Column("ring", header="Ring", label="ring"),
    )
    rows: list[Row] = [
        (one.name, spans(numbers_of(ring.channels)), one.ranks, *one.ring_changes(ring), drawn_ring(one, ring))
        for one in _connected(summary)
        for ring in one.rings()
    ]
    return TableAnswer("nccl-log-rings", columns, rows, len(rows))


def drawn_ring(communicator: Connected, ring: Ring) -> str | None:
    """``n1: 0-3 → n2: 4-7 → n1``; the ranks in the order in which data goes round."""
    if ring.order is None:
        return None
    hosts = communicator.hosts
    stations: list[tuple[str, list[int]]] = []
    for rank in ring.order:
        host = hosts.get(rank, "?")
        if not stations or stations[-1][0] != host:
            stations.append((host, []))
        stations[-1][1].append(rank)
    drawn = [f"{host}: {' '.join(_runs(ranks))}" for host, ranks in stations]
    return " → ".join([*drawn, *([stations[0][0]] if len(stations) > 1 else [])])


_DEEPEST_DRAWN = 12


def trees_table(summary: LogSummary) -> TableAnswer:
    """Every tree with the channels that share it: a rank in a row, below its parent, and the transport between them."""
    columns = (
        COMMUNICATOR,
        _CHANNELS,
        Column("tree", header="Tree", label="tree"),
        RANK.with_importance(2),
        HOST,
        Column("depth", header="Depth", label="depth", unit=Unit.COUNT, importance=1),
        Column("via", header="Via", label="via"),
    )
    rows: list[Row] = []
    for one in _connected(summary):
        hosts, vias = one.hosts, one.vias()
        for tree in one.trees():
            channels = spans(numbers_of(tree.channels))
            for rank, depth in tree.walk():
                drawn = "  " * min(depth - 1, _DEEPEST_DRAWN) + "└ " * (depth > 0) + str(rank)
                parent = tree.parents.get(rank)
                ends = None if parent is None else vias.get((min(rank, parent), max(rank, parent)), {})
                used = [_words(via) for via, mask in (ends or {}).items() if mask & tree.channels]
                rows.append((one.name, channels, drawn, rank, hosts.get(rank), depth, ", ".join(sorted(used)) or None))
    return TableAnswer("nccl-log-trees", columns, rows, len(rows))


def _words(via: Via) -> str:
    """``NET/IB/0 GDR``, ``P2P/IPC``."""
    device = "" if via.device is None else f"/{via.device}"
    return f"{via.transport}/{via.way}{device}" + (" GDR" if via.gdr else "") + (" PXN" if via.pxn else "")


def channels_table(summary: LogSummary) -> TableAnswer:
    """The numbers of channels of each communicator; several rows where its ranks do not agree."""
    columns = (
        COMMUNICATOR,
        Column("of_ranks", header="Of Ranks", label="of ranks"),
        Column("collective", header="Collective Channels", label="collective", unit=Unit.COUNT),
        Column("collnet", header="CollNet Channels", label="CollNet", unit=Unit.COUNT),
        Column("nvls", header="NVLS Channels", label="NVLS", unit=Unit.COUNT),
        Column("p2p", header="P2P Channels", label="p2p", unit=Unit.COUNT),
        Column("per_peer", header="P2P Channels per Peer", label="per peer", unit=Unit.COUNT, importance=1),
        Column("rings", header="Rings", label="rings", unit=Unit.COUNT),
        Column("trees", header="Trees", label="trees", unit=Unit.COUNT),
    )
    rows: list[Row] = []
    for one in _connected(summary):
        for (counts, rings, trees), ranks in _agreeing(one).items():
            told = (None,) * 5 if counts is None else astuple(counts)
            rows.append((one.name, spans(ranks), *told, rings, trees))
    return TableAnswer("nccl-log-channels", columns, rows, len(rows))


_Agreed = tuple[ChannelCounts | None, int | None, int | None]


def _agreeing(communicator: Connected) -> dict[_Agreed, list[int]]:
    """The ranks by their numbers of channels, rings and trees, as far as they tell any."""
    found: dict[_Agreed, list[int]] = {}
    for rank, part in sorted(communicator.parts.items()):
        numbers = (part.counts, len(part.rings) or None, len(part.trees) or None)
        if any(number is not None for number in numbers):
            found.setdefault(numbers, []).append(rank)
    return found


def transports_table(summary: LogSummary) -> TableAnswer:
    """How the ranks of each communicator are connected: a connection is one channel from one rank to another."""
    columns = (
        COMMUNICATOR,
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
    rows: list[Row] = []
    for one in _connected(summary):
        found: dict[Via, list[tuple[tuple[int, int], int]]] = {}
        for (source, target, via), channels in one.links().items():
            found.setdefault(via, []).append(((source, target), channels))
        for via, links in sorted(found.items(), key=lambda item: (item[0].transport, item[0].way, item[0].device or 0)):
            pairs = [pair for pair, _ in links]
            used = 0
            for _, channels in links:
                used |= channels
            number = sum(channels.bit_count() for _, channels in links)
            who = (one.name, via.transport, via.way, via.device, _on(via.gdr), _on(via.pxn))
            rows.append((*who, number, len(pairs), one.host_changes(pairs), spans(numbers_of(used))))
    return TableAnswer("nccl-log-transports", columns, rows, len(rows))


def _on(state: bool | None) -> str | None:
    return None if state is None else "on" if state else "off"


def nics_table(summary: LogSummary) -> TableAnswer:
    """The network devices of each host by NCCL's number, with what the log tells about GPU Direct RDMA."""
    columns = (
        HOST,
        Column("device", header="Network Device", label="NIC", unit=Unit.NUMBER),
        Column("name", header="Name", label="name"),
        Column("link", header="Link Layer", label="link"),
        Column("speed", header="Speed (B/s)", label="speed", unit=Unit.RATE),
        Column("gdr", header="GPU Direct RDMA", label="GPU Direct RDMA"),
    )
    rows: list[Row] = [
        (host, number, nic.name, nic.link, None if nic.speed is None else nic.speed * 125_000, nic.gdr)
        for (host, number), nic in sorted(summary.topology.nics.items())
    ]
    return TableAnswer("nccl-log-nics", columns, rows, len(rows))


def init_table(summary: LogSummary) -> TableAnswer:
    """How long the ranks took to initialise each communicator, by phase. NCCL prints hundredths of a second."""
    columns = (
        COMMUNICATOR,
        Column("phase", header="Phase", label="phase"),
        Column("in_log", header="Ranks in Log", label="ranks", unit=Unit.COUNT),
        Column("avg", header="Avg (ns)", label="avg", unit=Unit.DURATION, decimals=1),
        Column("min", header="Min (ns)", label="min", unit=Unit.DURATION, decimals=1),
        Column("max", header="Max (ns)", label="max", unit=Unit.DURATION, decimals=1),
        Column("slowest", header="Slowest Rank", label="slowest rank", unit=Unit.NUMBER),
    )
    rows: list[Row] = []
    for one in _connected(summary):
        phases: dict[str, list[tuple[float, int]]] = {}
        for rank, part in sorted(one.parts.items()):
            for phase, seconds in () if part.times is None else (("total", part.times.total), *part.times.phases):
                phases.setdefault(phase, []).append((seconds * _NS_PER_S, -rank))
        for phase, times in phases.items():
            most, rank = max(times)
            spent = [time for time, _ in times]
            rows.append((one.name, phase, len(spent), sum(spent) / len(spent), min(spent), most, -rank))
    return TableAnswer("nccl-log-init", columns, rows, len(rows))


def settings_table(summary: LogSummary) -> TableAnswer:
    """Versions of NCCL and driver, NCCL's environment and the network in use, with how many processes have which."""
    columns = (
        Column("name", header="Name", label="name"),
        Column("value", header="Value", label="value"),
        Column("processes", header="Processes", label="processes", unit=Unit.COUNT),
        Column("hosts", header="Hosts", label="hosts", unit=Unit.COUNT),
    )
    rows: list[Row] = []
    for setting, places in sorted(summary.topology.settings.items(), key=lambda item: (item[0].name, item[0].value)):
        known = places - {None}
        hosts = {place[0] for place in places if place is not None}
        rows.append((setting.name, setting.value, *((len(known), len(hosts)) if known else (None, None))))
    return TableAnswer("nccl-log-settings", columns, rows, len(rows))


def problems_table(summary: LogSummary) -> TableAnswer:
    """What looks wrong, each with the numbers that show it and what to look at next."""
    columns = (
        COMMUNICATOR,
        Column("problem", header="Problem", label="problem"),
        Column("evidence", header="Evidence", label="evidence"),
        Column("advice", header="Next Step", label="next step", importance=1),
    )
    rows: list[Row] = [*_mixed_versions(summary)]
    for one in _connected(summary):
        rows += [(one.name, *words) for words in (*_detours(one), *_network(one, summary), *_disagreement(one))]
    return TableAnswer("nccl-log-problems", columns, rows, len(rows))


_Words = tuple[str, str, str]


def _mixed_versions(summary: LogSummary) -> Iterator[Row]:
    versions = {setting.value: places for setting, places in summary.topology.settings.items()
                if setting.name == "NCCL version"}  # fmt: skip
    if len(versions) > 1:
        told = [f"{version} in {len(places):,}" for version, places in sorted(versions.items())]
        advice = "use one NCCL in all processes: --tables settings, LD_LIBRARY_PATH, torch.cuda.nccl.version()"
        yield None, "several versions of NCCL", f"processes by version: {few(told)}", advice


def _detours(communicator: Connected) -> Iterator[_Words]:
    """Rings and trees that change hosts more often than they must, unless NVLink joins the hosts."""
    hosts = communicator.hosts
    over_nvlink = any(
        hosts.get(source) != hosts.get(target) and via.transport == "P2P"
        for source, target, via in communicator.links()
        if source in hosts and target in hosts
    )
    if over_nvlink:
        return
    found: tuple[tuple[str, list[tuple[int, tuple[int | None, int | None]]]], ...] = (
        ("ring", [(ring.channels, communicator.ring_changes(ring)) for ring in communicator.rings()]),
        ("tree", [(tree.channels, communicator.tree_changes(tree)) for tree in communicator.trees()]),
    )
    for what, made in found:
        for channels, (changes, needed) in made:
            if changes is not None and needed is not None and changes > needed:
                yield (
                    f"a {what} changes hosts too often",
                    f"channels {spans(numbers_of(channels))}: {changes:,} changes of host, {needed:,} are needed",
                    "give neighbouring ranks to one host (block placement of srun or mpirun), or see NCCL_GRAPH_FILE",
                )


def _network(communicator: Connected, summary: LogSummary) -> Iterator[_Words]:
    links = {
        link: channels.bit_count() for link, channels in communicator.links().items() if link[2].transport == "NET"
    }
    total = sum(links.values())
    tcp = sum(number for link, number in links.items() if link[2].way == "Socket")
    if tcp:
        nics = {
            nic.name for nic in summary.topology.nics.values() if nic.link in ("IB", "InfiniBand", "RoCE") and nic.name
        }
        there = f", though there is {few(sorted(nics))}" if nics else ""
        yield (
            "it runs over TCP",
            f"{tcp:,} of {total:,} network connections use NET/Socket{there}",
            "look for NET/IB or plugin lines in the log, NCCL_IB_DISABLE, NCCL_NET, libibverbs in the container",
        )
    without = sum(number for link, number in links.items() if link[2].way != "Socket" and not link[2].gdr)
    if without:
        hosts = set(communicator.hosts.values())
        reasons = {
            f"{nic.name or number}: {nic.gdr}"
            for (host, number), nic in summary.topology.nics.items()
            if nic.gdr is not None and nic.gdr.startswith("disabled") and (host in hosts or not hosts)
        }
        reasons |= {setting.value for setting in summary.topology.settings if setting.name == "GPU Direct RDMA"}
        why = f"; {few(sorted(reasons))}" if reasons else ""
        yield (
            "GPU Direct RDMA is off",
            f"{without:,} of {total:,} network connections go through host memory{why}",
            "load nvidia-peermem or use DMA-BUF; GPU and NIC on one PCIe switch, or NCCL_NET_GDR_LEVEL",
        )


def _disagreement(communicator: Connected) -> Iterator[_Words]:
    agreeing = _agreeing(communicator)
    # A rank may tell less than another one, by its NCCL_DEBUG_SUBSYS: that is no difference.
    if any(len(set(column) - {None}) > 1 for column in zip(*agreeing, strict=True)):
        told = [f"ranks {spans(ranks)}: {_numbers(numbers)}" for numbers, ranks in agreeing.items()]
        yield (
            "the ranks differ in their channels",
            few(told),
            "compare NCCL_* of the ranks (--tables settings), and whether the log of each rank is whole",
        )


def _numbers(agreed: _Agreed) -> str:
    counts, rings, trees = agreed
    words = ("coll", "CollNet", "NVLS", "p2p")
    numbers = [] if counts is None else list(zip(astuple(counts), words, strict=False))
    return ", ".join(f"{number} {what}" for number, what in (*numbers, (rings, "rings"), (trees, "trees")) if number)
