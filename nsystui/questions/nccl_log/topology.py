"""NCCL's logged connections between the ranks of each communicator: rings, trees, channels, transports.

The lines of an initialisation do not name the communicator; ``Init START`` or ``Init COMPLETE`` of the same thread
does. Other threads make later connections: these belong to the communicator of their process that can have them, if
there is only one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from nsystui.base.types import grouped
from nsystui.exports.nccl_log import topology
from nsystui.exports.nccl_log.lines import CommunicatorLine, CommunicatorState
from nsystui.questions.nccl.communicators import CommunicatorRank

_PART_LIMIT = 1_000_000
"""Limit on the parts in memory: far more than jobs have, far less than a hostile log can make."""

Link = tuple[int, int, topology.Via]
"""Sending rank, receiving rank, and transport."""

HostProcess = tuple[str, int]
"""Host and process id."""


ChannelNumbers = tuple[topology.ChannelCounts | None, int | None, int | None]
"""A rank's numbers of channels by kind, of rings and of trees."""


@dataclass
class RankTopology:
    """The topology in a rank's lines, by channel; in ``links``, channels are bits.

    ``rings``: previous and next rank. ``trees``: parent (``None`` for the root) and children.
    """

    rings: dict[int, tuple[int, int]] = field(default_factory=dict)
    orders: dict[int, tuple[int, ...]] = field(default_factory=dict)
    trees: dict[int, tuple[int | None, tuple[int, ...]]] = field(default_factory=dict)
    links: dict[Link, int] = field(default_factory=dict)
    counts: topology.ChannelCounts | None = None
    times: topology.InitTimes | None = None


class Topology:
    """The topology from the lines of a log.

    ``lines``: their number. ``settings``: the processes with each setting (``None`` for a line without writer).
    ``nics``: by host and number. ``left_out``: the number of parts beyond the limit.
    """

    def __init__(self) -> None:
        self.lines = self.left_out = 0
        self.parts: dict[CommunicatorRank, RankTopology] = {}
        self.settings: dict[topology.Setting, set[HostProcess | None]] = {}
        self.nics: dict[tuple[str, int], topology.Nic] = {}
        self._part_count = 0
        self._open: dict[topology.LogThread, CommunicatorRank] = {}
        self._done: dict[topology.LogThread, CommunicatorRank] = {}
        self._pending: dict[topology.LogThread, list[topology.Said]] = {}
        self._later: dict[HostProcess, dict[Link, int]] = {}
        self._orders: dict[tuple[int, ...], tuple[int, ...]] = {}

    def hear_member(self, line: CommunicatorLine, member: CommunicatorRank) -> None:
        """Record that a thread begins or completes a rank's initialisation."""
        if line.thread is None:
            return
        if line.state is CommunicatorState.STARTED:
            self._part_count -= sum(map(_size, self._pending.pop(line.thread, ())))
            self._open[line.thread] = member
        elif line.state is CommunicatorState.COMPLETE:
            self._open.pop(line.thread, None)
            self._done[line.thread] = member
            for fact in self._pending.pop(line.thread, ()):
                self._part_count -= _size(fact)
                self._add(member, fact)

    def hear(self, line: topology.TopologyLine) -> None:
        """Record the facts in a line."""
        self.lines += 1
        for fact in line.facts:
            if self._part_count >= _PART_LIMIT:
                self.left_out += 1
            elif isinstance(fact, topology.Setting):
                processes = self.settings.setdefault(fact, set())
                process = None if line.thread is None else (line.thread.host, line.thread.pid)
                self._part_count += process not in processes
                processes.add(process)
            elif line.thread is not None:
                self._hear(line.thread, fact)

    def _hear(self, thread: topology.LogThread, fact: topology.Said) -> None:
        if isinstance(fact, topology.Nic):
            self._add_nic(thread.host, fact)
            return
        # The times of an initialisation follow its end.
        member = self._done.get(thread) if isinstance(fact, topology.InitTimes) else self._open.get(thread)
        if member is not None:
            self._add(member, fact)
        elif isinstance(fact, topology.ChannelConnection) and thread not in self._pending:
            links = self._later.setdefault((thread.host, thread.pid), {})
            self._add_link(links, fact)
        elif not isinstance(fact, topology.InitTimes):
            self._pending.setdefault(thread, []).append(fact)
            self._part_count += _size(fact)

    def _add_nic(self, host: str, nic: topology.Nic) -> None:
        previous = self.nics.get((host, nic.number))
        if previous is None:
            self._part_count += 1
            self.nics[host, nic.number] = nic
            return
        updates = {key: getattr(nic, key) for key in ("name", "link", "speed", "gdr") if getattr(previous, key) is None}
        if previous.gdr == "enabled" and nic.gdr is not None:  # it is off for some GPUs
            updates["gdr"] = nic.gdr
        self.nics[host, nic.number] = replace(previous, **updates)

    def _add(self, member: CommunicatorRank, fact: topology.Said) -> None:
        """Add a fact about a rank, unless it contradicts the rank or the communicator's size."""
        rank, ranks = member.rank, member.ranks
        if rank is None or ranks is None:
            return
        part = self.parts.setdefault(member, RankTopology())
        match fact:
            case topology.RingPart(rank=of) if of == rank and max(fact.previous, fact.next) < ranks:
                self._part_count += fact.channel not in part.rings
                part.rings[fact.channel] = fact.previous, fact.next
            case topology.RingOrder(ranks=order) if sorted(order) == list(range(ranks)):
                self._part_count += 1 if order in self._orders else len(order)
                part.orders[fact.channel] = self._orders.setdefault(order, order)
            case topology.TreePart(rank=of) if of == rank and max(fact.parent or 0, *fact.children, 0) < ranks:
                self._part_count += fact.channel not in part.trees
                part.trees[fact.channel] = fact.parent, fact.children
            case topology.ChannelConnection(source=source, target=target):
                if rank in (source, target) and max(source, target) < ranks:
                    self._add_link(part.links, fact)
            case topology.ChannelCounts():
                part.counts = fact
            case topology.InitTimes() if (fact.rank, fact.ranks) == (rank, ranks):
                part.times = fact

    def _add_link(self, links: dict[Link, int], connection: topology.ChannelConnection) -> None:
        link = connection.source, connection.target, connection.via
        self._part_count += link not in links
        links[link] = links.get(link, 0) | 1 << connection.channel

    def connected(self, members: Sequence[CommunicatorRank]) -> list[Connected]:
        """Return the communicators with a known topology, in the order of ``members``.

        The last may be an unnamed communicator, with the connections of unknown communicators.
        """
        communicators = [Connected(*group) for group in _groups(members)]
        by_process: dict[HostProcess, list[Connected]] = {}
        for communicator in communicators:
            for member in communicator.members.values():
                part = self.parts.get(member)
                if part is not None and member.rank is not None:
                    communicator.parts[member.rank] = replace(part, links=dict(part.links))
            for process in {process for process in map(_process, communicator.members.values()) if process is not None}:
                by_process.setdefault(process, []).append(communicator)
        unknown = Connected(None, None, {})
        for process, links in self._later.items():
            for (source, target, via), channels in links.items():
                candidates = [item for item in by_process.get(process, ()) if item.can_have(process, source, target)]
                communicator, rank = unknown, source
                if len(candidates) == 1:
                    communicator = candidates[0]
                    rank = source if _process(communicator.members.get(source)) == process else target
                links_of_rank = communicator.parts.setdefault(rank, RankTopology()).links
                links_of_rank[source, target, via] = links_of_rank.get((source, target, via), 0) | channels
        return [item for item in (*communicators, unknown) if item.parts]


def _size(fact: topology.Said) -> int:
    """Return the size of a fact in parts: a ring's order may be long."""
    return len(fact.ranks) if isinstance(fact, topology.RingOrder) else 1


def _process(member: CommunicatorRank | None) -> HostProcess | None:
    return None if member is None or member.process is None else (member.process.host, member.process.pid)


def _groups(
    members: Sequence[CommunicatorRank],
) -> Iterator[tuple[str | None, int | None, dict[int, CommunicatorRank]]]:
    """Yield the members of each communicator.

    Communicators without a shared name count as one if their sizes are equal and each rank appears once.
    """
    named: dict[tuple[str | None, int | None], list[CommunicatorRank]] = {}
    for member in members:
        if member.rank is not None:
            named.setdefault((member.communicator if member.is_shared else None, member.ranks), []).append(member)
    for (name, ranks), group in named.items():
        by_rank = {member.rank: member for member in group if member.rank is not None}
        if len(by_rank) == len(group) or name is not None:
            yield name, ranks, by_rank
        else:
            for member in group:
                yield member.communicator, ranks, {member.rank or 0: member}


@dataclass(frozen=True)
class Ring:
    """Channels that share a ring: its ranks in order, from the lowest, or ``None`` if the log lacks some."""

    channels: int
    order: tuple[int, ...] | None


@dataclass(frozen=True)
class ChannelTree:
    """Channels that share a tree: the parent of each rank, if known, and all known ranks."""

    channels: int
    parents: Mapping[int, int]
    ranks: frozenset[int]

    def walk(self) -> Iterator[tuple[int, int]]:
        """Yield rank and depth, parents before their children, except ranks below no root."""
        children = grouped((parent, child) for child, parent in sorted(self.parents.items(), reverse=True))
        waiting = [(rank, 0) for rank in sorted(self.ranks - self.parents.keys(), reverse=True)]
        while waiting:
            rank, depth = waiting.pop()
            yield rank, depth
            waiting.extend((child, depth + 1) for child in children.get(rank, ()))


@dataclass(frozen=True)
class Connected:
    """A communicator with its ranks' topology; ``name`` and ``ranks`` are ``None`` if it is unknown."""

    name: str | None
    ranks: int | None
    members: Mapping[int, CommunicatorRank]
    parts: dict[int, RankTopology] = field(default_factory=dict)

    @property
    def hosts(self) -> dict[int, str]:
        """The host of each rank, if known."""
        return {rank: process[0] for rank, member in self.members.items() if (process := _process(member)) is not None}

    def can_have(self, process: HostProcess, source: int, target: int) -> bool:
        """Return whether a process can have connected these ranks for this communicator."""
        ends = (self.members.get(source), self.members.get(target))
        return self.ranks is not None and max(source, target) < self.ranks and process in map(_process, ends)

    def rings(self) -> list[Ring]:
        """Return the rings, each with its channels."""
        channels_by_order: dict[tuple[int, ...] | None, int] = {}
        for channel in sorted({channel for part in self.parts.values() for channel in (*part.rings, *part.orders)}):
            order = self._order(channel)
            channels_by_order[order] = channels_by_order.get(order, 0) | 1 << channel
        return [Ring(mask, order) for order, mask in channels_by_order.items()]

    def _order(self, channel: int) -> tuple[int, ...] | None:
        for part in self.parts.values():
            if channel in part.orders:
                return part.orders[channel]
        following: dict[int, int] = {}
        for rank, part in self.parts.items():
            if channel in part.rings:
                previous, next_rank = part.rings[channel]
                following[previous], following[rank] = rank, next_rank
        order, seen, rank = [], set[int](), min(following)
        while rank not in seen:
            seen.add(rank)
            order.append(rank)
            rank = following.get(rank, rank)
        return tuple(order) if rank == order[0] and len(order) == self.ranks else None

    def trees(self) -> list[ChannelTree]:
        """Return the trees, each with its channels; only the known part if ranks are missing."""
        channels_by_tree: dict[tuple[frozenset[tuple[int, int]], frozenset[int]], int] = {}
        for channel in sorted({channel for part in self.parts.values() for channel in part.trees}):
            parents: dict[int, int] = {}
            ranks: set[int] = set()
            for rank, part in self.parts.items():
                if channel in part.trees:
                    parent, children = part.trees[channel]
                    parents.update(dict.fromkeys(children, rank))
                    parents.update({} if parent is None else {rank: parent})
                    ranks.update((rank, *children, *(() if parent is None else (parent,))))
            key = frozenset(parents.items()), frozenset(ranks)
            channels_by_tree[key] = channels_by_tree.get(key, 0) | 1 << channel
        return [ChannelTree(mask, dict(parents), ranks) for (parents, ranks), mask in channels_by_tree.items()]

    def links(self) -> dict[Link, int]:
        """Return each connection once, with its channels as bits: NCCL prints both ends of network connections.

        The receiver's line counts only if the log lacks the sender's.
        """
        sent: dict[Link, int] = {}
        received: dict[Link, int] = {}
        for rank, part in self.parts.items():
            for link, channels in part.links.items():
                ends = sent if link[0] == rank else received
                ends[link] = ends.get(link, 0) | channels
        pairs = {link[:2] for link in sent}
        return sent | {link: channels for link, channels in received.items() if link[:2] not in pairs}

    def vias(self) -> dict[tuple[int, int], Mapping[topology.Via, int]]:
        """Return the transports between each two ranks, in either direction, with the channels as bits."""
        vias_by_pair: dict[tuple[int, int], dict[topology.Via, int]] = {}
        for (source, target, via), channels in self.links().items():
            pair_vias = vias_by_pair.setdefault((min(source, target), max(source, target)), {})
            pair_vias[via] = pair_vias.get(via, 0) | channels
        return dict(vias_by_pair)

    def agreeing(self) -> dict[ChannelNumbers, list[int]]:
        """Return the ranks by their numbers of channels, rings and trees, if they log any."""
        by_numbers: dict[ChannelNumbers, list[int]] = {}
        for rank, part in sorted(self.parts.items()):
            numbers = (part.counts, len(part.rings) or None, len(part.trees) or None)
            if any(number is not None for number in numbers):
                by_numbers.setdefault(numbers, []).append(rank)
        return by_numbers

    def host_changes(self, pairs: Iterable[tuple[int, int]]) -> int | None:
        """Count the pairs of ranks on different hosts; ``None`` if a host is unknown."""
        hosts, changes = self.hosts, 0
        for first, second in pairs:
            if first not in hosts or second not in hosts:
                return None
            changes += hosts[first] != hosts[second]
        return changes

    def ring_changes(self, ring: Ring) -> tuple[int | None, int | None]:
        """Return a ring's changes from host to host, and the number that it needs."""
        if ring.order is None:
            return None, None
        changes = self.host_changes(zip(ring.order, (*ring.order[1:], ring.order[0]), strict=True))
        number = len(set(self.hosts.values()))
        return changes, None if changes is None else number if number > 1 else 0

    def drawn(self, ring: Ring) -> str | None:
        """Draw a ring as ``n1: 0-3 → n2: 4-7 → n1``, with the ranks in the order of the data."""
        if ring.order is None:
            return None
        hosts = self.hosts
        stations = [(host, list(ranks)) for host, ranks in groupby(ring.order, key=lambda rank: hosts.get(rank, "?"))]
        stops = [f"{host}: {' '.join(_runs(ranks))}" for host, ranks in stations]
        return " → ".join([*stops, *([stations[0][0]] if len(stations) > 1 else [])])

    def tree_changes(self, tree: ChannelTree) -> tuple[int | None, int | None]:
        """Return a tree's edges between hosts, and the number that it needs."""
        if self.ranks is None or len(tree.ranks) < self.ranks:
            return None, None
        changes = self.host_changes(tree.parents.items())
        return changes, None if changes is None else len(set(self.hosts.values())) - 1


def numbers_of(channels: int) -> list[int]:
    """Return the channels whose bits are set."""
    return [bit for bit in range(channels.bit_length()) if channels >> bit & 1]


def spans(numbers: Iterable[int | None]) -> str | None:
    """Return ``0-3,6`` for {0, 1, 2, 3, 6}, or ``None`` without numbers."""
    distinct = sorted({number for number in numbers if number is not None})
    return ",".join(_runs(distinct, rising_only=True)) or None


def _runs(numbers: Sequence[int], rising_only: bool = False) -> list[str]:
    runs: list[list[int]] = []
    for number in numbers:
        run = runs[-1] if runs else []
        step = number - run[-1] if run else 0
        is_neighbour = step == 1 or (step == -1 and not rising_only)
        if is_neighbour and (len(run) == 1 or step == run[1] - run[0]):
            run.append(number)
        else:
            runs.append([number])
    return [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
