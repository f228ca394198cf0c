"""How NCCL connected the ranks of each communicator: rings, trees, channels, transports, as far as the log tells it.

The lines of an initialisation name no communicator. They belong to the one whose ``Init START`` or ``Init COMPLETE``
the same thread writes. Connections that are made later, by threads of their own, belong to the only communicator of
their process that can have them; where there are several, to none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from nsystui.exports.nccl_log.lines import CommunicatorLine, CommunicatorState
from nsystui.exports.nccl_log.topology import (
    ChannelConnection,
    ChannelCounts,
    InitTimes,
    LogThread,
    Nic,
    RingOrder,
    RingPart,
    Said,
    Setting,
    TopologyLine,
    TreePart,
    Via,
)
from nsystui.questions.nccl.communicators import CommunicatorRank

_MOST_PARTS = 1_000_000
"""How many parts of topologies are kept: far more than jobs have, far less than a hostile log can make."""

Link = tuple[int, int, Via]
"""Sending rank, receiving rank, and how."""

Place = tuple[str, int]
"""Host and process."""


ChannelNumbers = tuple[ChannelCounts | None, int | None, int | None]
"""The numbers of a rank: of its channels by kind, of its rings and of its trees."""


@dataclass
class RankTopology:
    """What one rank told. Channels of ``links`` are bits; ``trees``: parent (``None``: the root) and children."""

    rings: dict[int, tuple[int, int]] = field(default_factory=dict)
    orders: dict[int, tuple[int, ...]] = field(default_factory=dict)
    trees: dict[int, tuple[int | None, tuple[int, ...]]] = field(default_factory=dict)
    links: dict[Link, int] = field(default_factory=dict)
    counts: ChannelCounts | None = None
    times: InitTimes | None = None


class Topology:
    """What the lines tell about the topology.

    ``lines``: their number. ``settings``: who has which (``None`` where a line has no writer). ``nics`` by host and
    number. ``left_out``: parts that were too many to keep.
    """

    def __init__(self) -> None:
        self.lines = self.left_out = 0
        self.parts: dict[CommunicatorRank, RankTopology] = {}
        self.settings: dict[Setting, set[Place | None]] = {}
        self.nics: dict[tuple[str, int], Nic] = {}
        self._kept = 0
        self._open: dict[LogThread, CommunicatorRank] = {}
        self._done: dict[LogThread, CommunicatorRank] = {}
        self._pending: dict[LogThread, list[Said]] = {}
        self._later: dict[Place, dict[Link, int]] = {}
        self._orders: dict[tuple[int, ...], tuple[int, ...]] = {}

    def hear_member(self, line: CommunicatorLine, member: CommunicatorRank) -> None:
        """Takes in that a thread initialises a rank of a communicator, or has done so."""
        if line.thread is None:
            return
        if line.state is CommunicatorState.STARTED:
            self._kept -= sum(map(_size, self._pending.pop(line.thread, ())))
            self._open[line.thread] = member
        elif line.state is CommunicatorState.COMPLETE:
            self._open.pop(line.thread, None)
            self._done[line.thread] = member
            for said in self._pending.pop(line.thread, ()):
                self._kept -= _size(said)
                self._add(member, said)

    def hear(self, line: TopologyLine) -> None:
        """Takes in what a line says."""
        self.lines += 1
        for said in line.said:
            if self._kept >= _MOST_PARTS:
                self.left_out += 1
            elif isinstance(said, Setting):
                who = self.settings.setdefault(said, set())
                place = None if line.thread is None else (line.thread.host, line.thread.pid)
                self._kept += place not in who
                who.add(place)
            elif line.thread is not None:
                self._hear(line.thread, said)

    def _hear(self, thread: LogThread, said: Said) -> None:
        if isinstance(said, Nic):
            self._add_nic(thread.host, said)
            return
        # The times of an initialisation come after its end.
        member = self._done.get(thread) if isinstance(said, InitTimes) else self._open.get(thread)
        if member is not None:
            self._add(member, said)
        elif isinstance(said, ChannelConnection) and thread not in self._pending:
            links = self._later.setdefault((thread.host, thread.pid), {})
            self._add_link(links, said)
        elif not isinstance(said, InitTimes):
            self._pending.setdefault(thread, []).append(said)
            self._kept += _size(said)

    def _add_nic(self, host: str, nic: Nic) -> None:
        known = self.nics.get((host, nic.number))
        if known is None:
            self._kept += 1
            self.nics[host, nic.number] = nic
            return
        told = {key: getattr(nic, key) for key in ("name", "link", "speed", "gdr") if getattr(known, key) is None}
        if known.gdr == "enabled" and nic.gdr is not None:  # for some GPUs it is not
            told["gdr"] = nic.gdr
        self.nics[host, nic.number] = replace(known, **told)

    def _add(self, member: CommunicatorRank, said: Said) -> None:
        """Adds what was said of a rank, unless it cannot be of this one."""
        rank, ranks = member.rank, member.ranks
        if rank is None or ranks is None:
            return
        part = self.parts.setdefault(member, RankTopology())
        if isinstance(said, RingPart) and said.rank == rank and max(said.previous, said.next) < ranks:
            self._kept += said.channel not in part.rings
            part.rings[said.channel] = said.previous, said.next
        elif isinstance(said, RingOrder) and len(said.ranks) == ranks and set(said.ranks) == set(range(ranks)):
            self._kept += 1 if said.ranks in self._orders else len(said.ranks)
            part.orders[said.channel] = self._orders.setdefault(said.ranks, said.ranks)
        elif isinstance(said, TreePart) and said.rank == rank and max(said.parent or 0, *said.children, 0) < ranks:
            self._kept += said.channel not in part.trees
            part.trees[said.channel] = said.parent, said.children
        elif isinstance(said, ChannelConnection) and rank in (said.source, said.target):
            if max(said.source, said.target) < ranks:
                self._add_link(part.links, said)
        elif isinstance(said, ChannelCounts):
            part.counts = said
        elif isinstance(said, InitTimes) and (said.rank, said.ranks) == (rank, ranks):
            part.times = said

    def _add_link(self, links: dict[Link, int], said: ChannelConnection) -> None:
        link = said.source, said.target, said.via
        self._kept += link not in links
        links[link] = links.get(link, 0) | 1 << said.channel

    def connected(self, members: Sequence[CommunicatorRank]) -> list[Connected]:
        """The communicators of which the log tells something, in the order of ``members``.

        The last one, without a name, has the connections that no line gives to a communicator, if there are any.
        """
        found = [Connected(*each) for each in _groups(members)]
        by_process: dict[Place, list[Connected]] = {}
        for one in found:
            for member in one.members.values():
                part = self.parts.get(member)
                if part is not None and member.rank is not None:
                    one.parts[member.rank] = replace(part, links=dict(part.links))
            for place in {place for place in map(_place, one.members.values()) if place is not None}:
                by_process.setdefault(place, []).append(one)
        rest = Connected(None, None, {})
        for place, links in self._later.items():
            for (source, target, via), channels in links.items():
                may_have = [one for one in by_process.get(place, ()) if one.can_have(place, source, target)]
                one, rank = rest, source
                if len(may_have) == 1:
                    one = may_have[0]
                    rank = source if _place(one.members.get(source)) == place else target
                own = one.parts.setdefault(rank, RankTopology()).links
                own[source, target, via] = own.get((source, target, via), 0) | channels
        return [one for one in (*found, rest) if one.parts]


def _size(said: Said) -> int:
    """How much of what is kept this is: a ring's order may be long."""
    return len(said.ranks) if isinstance(said, RingOrder) else 1


def _place(member: CommunicatorRank | None) -> Place | None:
    return None if member is None or member.process is None else (member.process.host, member.process.pid)


def _groups(
    members: Sequence[CommunicatorRank],
) -> Iterator[tuple[str | None, int | None, dict[int, CommunicatorRank]]]:
    """Members by communicator.

    Where no line gives their communicator a name, those of one size are one communicator, if each rank is there once.
    """
    named: dict[tuple[str | None, int | None], list[CommunicatorRank]] = {}
    for member in members:
        if member.rank is not None:
            named.setdefault((member.communicator if member.is_shared else None, member.ranks), []).append(member)
    for (name, ranks), own in named.items():
        by_rank = {member.rank: member for member in own if member.rank is not None}
        if len(by_rank) == len(own) or name is not None:
            yield name, ranks, by_rank
        else:
            for member in own:
                yield member.communicator, ranks, {member.rank or 0: member}


@dataclass(frozen=True)
class Ring:
    """Channels that share a ring: the ranks in its order from the lowest on, ``None`` where the log lacks some."""

    channels: int
    order: tuple[int, ...] | None


@dataclass(frozen=True)
class ChannelTree:
    """Channels that share a tree: the parent of each rank that is known to have one, and all known ranks."""

    channels: int
    parents: Mapping[int, int]
    ranks: frozenset[int]

    def walk(self) -> Iterator[tuple[int, int]]:
        """Rank and depth, parents before their children; what no root leads to is left out."""
        children: dict[int, list[int]] = {}
        for child, parent in sorted(self.parents.items(), reverse=True):
            children.setdefault(parent, []).append(child)
        waiting = [(rank, 0) for rank in sorted(self.ranks - self.parents.keys(), reverse=True)]
        while waiting:
            rank, depth = waiting.pop()
            yield rank, depth
            waiting.extend((child, depth + 1) for child in children.get(rank, ()))


@dataclass(frozen=True)
class Connected:
    """A communicator with what its ranks told; ``name`` and ``ranks`` are ``None`` for what belongs to no known one."""

    name: str | None
    ranks: int | None
    members: Mapping[int, CommunicatorRank]
    parts: dict[int, RankTopology] = field(default_factory=dict)

    @property
    def hosts(self) -> dict[int, str]:
        """The host of each rank, as far as it is known."""
        return {rank: place[0] for rank, member in self.members.items() if (place := _place(member)) is not None}

    def can_have(self, place: Place, source: int, target: int) -> bool:
        """Whether a process can have made a connection of these ranks for this communicator."""
        ends = (self.members.get(source), self.members.get(target))
        return self.ranks is not None and max(source, target) < self.ranks and place in map(_place, ends)

    def rings(self) -> list[Ring]:
        """The rings, each with its channels."""
        found: dict[tuple[int, ...] | None, int] = {}
        channels = {channel for part in self.parts.values() for channel in (*part.rings, *part.orders)}
        for channel in sorted(channels):
            order = self._order(channel)
            found[order] = found.get(order, 0) | 1 << channel
        return [Ring(mask, order) for order, mask in found.items()]

    def _order(self, channel: int) -> tuple[int, ...] | None:
        for part in self.parts.values():
            if channel in part.orders:
                return part.orders[channel]
        following: dict[int, int] = {}
        for rank, part in self.parts.items():
            if channel in part.rings:
                previous, after = part.rings[channel]
                following[previous], following[rank] = rank, after
        order, seen, rank = [], set[int](), min(following)
        while rank not in seen:
            seen.add(rank)
            order.append(rank)
            rank = following.get(rank, rank)
        return tuple(order) if rank == order[0] and len(order) == self.ranks else None

    def trees(self) -> list[ChannelTree]:
        """The trees, each with its channels; of those that some ranks did not tell, the part that is known."""
        found: dict[tuple[frozenset[tuple[int, int]], frozenset[int]], int] = {}
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
            found[key] = found.get(key, 0) | 1 << channel
        return [ChannelTree(mask, dict(parents), ranks) for (parents, ranks), mask in found.items()]

    def links(self) -> dict[Link, int]:
        """Each connection once, with its channels as bits: NCCL prints both ends of those over a network.

        The sender's line counts, the receiver's where the sender's is not in the log.
        """
        sent: dict[Link, int] = {}
        received: dict[Link, int] = {}
        for rank, part in self.parts.items():
            for link, channels in part.links.items():
                ends = sent if link[0] == rank else received
                ends[link] = ends.get(link, 0) | channels
        pairs = {link[:2] for link in sent}
        return sent | {link: channels for link, channels in received.items() if link[:2] not in pairs}

    def vias(self) -> dict[tuple[int, int], Mapping[Via, int]]:
        """How two ranks are connected, whichever of them sends, with the channels as bits."""
        found: dict[tuple[int, int], dict[Via, int]] = {}
        for (source, target, via), channels in self.links().items():
            own = found.setdefault((min(source, target), max(source, target)), {})
            own[via] = own.get(via, 0) | channels
        return dict(found)

    def agreeing(self) -> dict[ChannelNumbers, list[int]]:
        """The ranks by their numbers of channels, rings and trees, as far as they tell any."""
        by_numbers: dict[ChannelNumbers, list[int]] = {}
        for rank, part in sorted(self.parts.items()):
            numbers = (part.counts, len(part.rings) or None, len(part.trees) or None)
            if any(number is not None for number in numbers):
                by_numbers.setdefault(numbers, []).append(rank)
        return by_numbers

    def host_changes(self, pairs: Iterable[tuple[int, int]]) -> int | None:
        """How many of these pairs of ranks are on two hosts; ``None`` where a host is not known."""
        hosts, changes = self.hosts, 0
        for first, second in pairs:
            if first not in hosts or second not in hosts:
                return None
            changes += hosts[first] != hosts[second]
        return changes

    def ring_changes(self, ring: Ring) -> tuple[int | None, int | None]:
        """How often a ring goes from a host to another one, and how often a ring over these hosts must."""
        if ring.order is None:
            return None, None
        changes = self.host_changes(zip(ring.order, (*ring.order[1:], ring.order[0]), strict=True))
        number = len(set(self.hosts.values()))
        return changes, None if changes is None else number if number > 1 else 0

    def drawn(self, ring: Ring) -> str | None:
        """Draw a ring as ``n1: 0-3 → n2: 4-7 → n1``, the ranks in the order in which data goes round."""
        if ring.order is None:
            return None
        hosts = self.hosts
        stations = [(host, list(ranks)) for host, ranks in groupby(ring.order, key=lambda rank: hosts.get(rank, "?"))]
        stops = [f"{host}: {' '.join(_runs(ranks))}" for host, ranks in stations]
        return " → ".join([*stops, *([stations[0][0]] if len(stations) > 1 else [])])

    def tree_changes(self, tree: ChannelTree) -> tuple[int | None, int | None]:
        """The same of a tree's edges."""
        if self.ranks is None or len(tree.ranks) < self.ranks:
            return None, None
        changes = self.host_changes(tree.parents.items())
        return changes, None if changes is None else len(set(self.hosts.values())) - 1


def numbers_of(channels: int) -> list[int]:
    """The channels whose bits are set."""
    return [place for place in range(channels.bit_length()) if channels >> place & 1]


def spans(numbers: Iterable[int | None]) -> str | None:
    """``0-3,6`` of {0, 1, 2, 3, 6}; ``None`` where no number is known."""
    known = sorted({number for number in numbers if number is not None})
    return ",".join(_runs(known, rising_only=True)) or None


def _runs(numbers: Sequence[int], rising_only: bool = False) -> list[str]:
    """Neighbours that count up, or down too, as one: ``0-3``, ``7-4``."""
    spans_of: list[list[int]] = []
    for number in numbers:
        run = spans_of[-1] if spans_of else []
        step = number - run[-1] if run else 0
        is_neighbour = step == 1 or (step == -1 and not rising_only)
        if is_neighbour and (len(run) == 1 or step == run[1] - run[0]):
            run.append(number)
        else:
            spans_of.append([number])
    return [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in spans_of]
