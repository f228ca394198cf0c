"""The lines in which NCCL tells how it connects the ranks: rings, trees, transports, network devices, settings, times.

These lines name no communicator: the thread that initialises one writes them until its ``Init COMPLETE``. Each is read
only if it has the form that NCCL prints up to its end, so that a torn line is none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

_INFO = b"NCCL INFO "
MOST_CHANNELS = 256
"""Channel numbers from here on are none of NCCL's, which has 64."""


class LogThread(NamedTuple):
    """Who wrote a line, from ``host:pid:tid``."""

    host: str
    pid: int
    tid: int


class Via(NamedTuple):
    """The transport of a connection (``P2P``, ``SHM``, ``NET``) and which way of it (``direct pointer/read``, ``IB``).

    Of a network: its ``device``, whether it reads GPU memory itself (``gdr``) and whether another rank's NIC is used
    (``pxn``); of others ``None``.
    """

    transport: str
    way: str
    device: int | None = None
    gdr: bool | None = None
    pxn: bool | None = None


@dataclass(frozen=True, slots=True)
class RingPart:
    """The neighbours of a rank in the ring of a channel: it receives of ``previous`` and sends to ``next``."""

    channel: int
    previous: int
    rank: int
    next: int


@dataclass(frozen=True, slots=True)
class RingOrder:
    """The whole ring of a channel, as rank 0 tells it."""

    channel: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TreePart:
    """A rank in the tree of a channel; ``parent`` is ``None`` for the root."""

    channel: int
    rank: int
    parent: int | None
    children: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChannelConnection:
    """A channel's connection of two ranks."""

    channel: int
    source: int
    target: int
    via: Via


@dataclass(frozen=True, slots=True)
class ChannelCounts:
    """The numbers of channels that a rank uses; ``per_peer`` those of one peer of Send and Recv.

    Older versions do not tell those of CollNet and NVLS.
    """

    collective: int
    collnet: int | None
    nvls: int | None
    p2p: int
    per_peer: int


@dataclass(frozen=True, slots=True)
class InitTimes:
    """The times that a rank took to initialise: seconds, printed with two decimals; ``phases`` in NCCL's order."""

    rank: int
    ranks: int
    total: float
    phases: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting or a fact of a process: an environment variable, a version, the network in use."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Nic:
    """A network device of a host as NCCL numbers it; ``None`` is what this line does not say.

    ``speed`` in 10⁶ bit/s. ``gdr``: why GPU Direct RDMA is off, or that it is on.
    """

    number: int
    name: str | None = None
    link: str | None = None
    speed: int | None = None
    gdr: str | None = None


Said = RingPart | RingOrder | TreePart | ChannelConnection | ChannelCounts | InitTimes | Setting | Nic


@dataclass(frozen=True, slots=True)
class TopologyLine:
    """What a line says about the topology; ``thread`` is ``None`` where the line has no writer."""

    thread: LogThread | None
    said: tuple[Said, ...]


_WRITER = re.compile(rb"([A-Za-z0-9._-]+):(\d{1,10}):(\d{1,10}) \[-?\d{1,4}\] (?:\d{10,} )?$")


def thread_of(prefix: bytes) -> LogThread | None:
    """Who wrote a line, from what stands before ``NCCL INFO``."""
    found = _WRITER.search(prefix)
    return None if found is None else LogThread(found[1].decode("ascii"), int(found[2]), int(found[3]))


def topology_in(line: bytes) -> TopologyLine | None:
    """What a line of NCCL says about the topology; ``None`` of most."""
    start = line.rfind(_INFO)
    if start < 0:
        start = line.find(b"NCCL version")
        prefix, text = b"", line[start:]
    else:
        prefix, text = line[:start], line[start + len(_INFO) :]
    said = _said(text.strip())
    thread = thread_of(prefix)
    # The version is printed without a writer too, by NCCL_DEBUG=VERSION.
    is_known = thread is not None or all(isinstance(one, Setting) for one in said)
    return TopologyLine(thread, tuple(said)) if said and is_known else None


def _said(text: bytes) -> list[Said]:
    word = text.partition(b" ")[0]
    read = _READERS.get(word)
    if read is not None:
        found = read(text)
        if found:
            return found
    if word.startswith(b"NCCL_"):
        variable = _ENVIRONMENT.match(text)
        return [] if variable is None else [Setting(variable[1].decode("ascii"), variable[2].decode("ascii"))]
    if word.startswith(b"NET/"):
        return _network(text)
    return _counts(text) if word.isdigit() and len(word) <= 4 else []


_RING = re.compile(rb"Ring (\d{1,3}) : (\d{1,9}) -> (\d{1,9}) -> (\d{1,9})$")
_ORDER = re.compile(rb"Channel (\d{1,3})/(\d{1,3}) : +(\d{1,9}(?: +\d{1,9})*)$")
_TREES = re.compile(rb"\[(\d{1,3})\] (\S{1,80})")
_DOWN = rb"(-?\d{1,9}(?:/-?\d{1,9}){0,2})"
_UP_LAST = re.compile(_DOWN + rb"->(\d{1,9})->(-?\d{1,9})(?:\||$)")
_UP_FIRST = re.compile(rb"(-?\d{1,9})->(\d{1,9})->" + _DOWN + rb"(?:\||$)")
_CONNECTION = re.compile(
    rb"(?:Channel|Ring) (\d{1,3})(?:/\d{1,3})? : (\d{1,9})(?:\[[0-9a-f]{1,16}\])? -> (\d{1,9})(?:\[[0-9a-f]{1,16}\])? "
    rb"(?:\[(?:send|receive)\] )?via (?:"
    rb"NET/([\w +.-]{1,40})/(\d{1,4})(\(\d{1,9}\))?(/GDRDMA(?:\(PCI\))?)?(?:/Shared)?"
    rb"|(P2P|SHM)/([\w +\[\]-]{1,30}(?:/[\w +\[\]-]{1,30})*)"
    rb"|(direct shared memory))$"
)
_COUNTS = re.compile(
    rb"(\d{1,4}) coll channels, (?:(\d{1,4}) collnet channels, )?(?:(\d{1,4}) nvls channels, )?(\d{1,4}) p2p channels, "
    rb"(\d{1,4}) p2p channels per peer$"
)
_TIMES = re.compile(
    rb"Init timings(?: - \w+)?: rank (\d{1,9}) nranks (\d{1,9}) total (\d{1,9}\.\d+) \("
    rb"(\w+ \d{1,9}\.\d+(?:, \w+ \d{1,9}\.\d+)*)\)$"
)
_ENVIRONMENT = re.compile(rb"(NCCL_[A-Z0-9_]{1,60}) set by environment to ([ -~]{1,200}?)\.?$")
_USED = re.compile(rb"\[(\d{1,4})\]([\w.+-]{1,60}):([^\s\[;]{1,60})")
_SPEED = re.compile(
    rb"NET/IB ?: \[(\d{1,4})\] ([\w.+-]{1,60}):\S{1,60}/(\w{1,20}) (?:provider=\S{1,30} )?speed=(\d{1,9})\b"
)
_GDR_OF_NIC = re.compile(
    rb"NET/[\w +.-]{1,40} ?: GPU Direct RDMA (\w+)(?: \(([\w /-]{1,40})\))? for HCA (\d{1,4}) '([\w.+-]{1,60})'$"
)
_GDR_OF_GPU = re.compile(
    rb"(?:NET/[\w +.-]{1,40} ?: )?GPU Direct RDMA (\w+) for GPU ([!-~]{1,20}) / HCA (\w{1,16}) "
    rb"(\(distance [ -~]{1,30}?\))"
)


def _ring(text: bytes) -> list[Said]:
    found = _RING.match(text)
    if found is None:
        return _connection(text)  # NCCL up to 2.5 has connections of rings
    channel, previous, rank, following = map(int, found.groups())
    return [RingPart(channel, previous, rank, following)] if channel < MOST_CHANNELS else []


def _channel(text: bytes) -> list[Said]:
    found = _ORDER.match(text)
    if found is None:
        return _connection(text)
    channel = int(found[1])
    return [RingOrder(channel, tuple(map(int, found[3].split())))] if channel < MOST_CHANNELS else []


def _connection(text: bytes) -> list[Said]:
    found = _CONNECTION.match(text)
    if found is None or int(found[1]) >= MOST_CHANNELS:
        return []
    network, device, proxy, gdr, transport, way, _ = found.groups()[3:]
    if network is not None:
        via = Via("NET", network.decode("ascii"), int(device), gdr is not None, proxy is not None)
    else:
        # A way over another GPU names it: which one does not matter here.
        words = re.sub(rb"/\d+\[\w*\]$", b"", way) if way is not None else b"direct"
        via = Via("SHM" if transport is None else transport.decode("ascii"), words.decode("ascii"))
    return [ChannelConnection(int(found[1]), int(found[2]), int(found[3]), via)]


def _trees(text: bytes) -> list[Said]:
    parts: list[Said] = []
    for place in _TREES.finditer(text):
        # Down->rank->up since NCCL 2.6; before that the other way round.
        last, first = _UP_LAST.match(place[2]), _UP_FIRST.match(place[2])
        if last is not None and (b"/" in last[1] or first is None):
            down, rank, up = last.groups()
        elif first is not None:
            up, rank, down = first.groups()
        else:
            return []
        if int(place[1]) < MOST_CHANNELS:
            children = tuple(child for child in map(int, down.split(b"/")) if child >= 0)
            parts.append(TreePart(int(place[1]), int(rank), int(up) if int(up) >= 0 else None, children))
    return parts


def _counts(text: bytes) -> list[Said]:
    found = _COUNTS.match(text)
    if found is None:
        return []
    collective, collnet, nvls, p2p, per_peer = (None if number is None else int(number) for number in found.groups())
    return [ChannelCounts(collective or 0, collnet, nvls, p2p or 0, per_peer or 0)]


def _times(text: bytes) -> list[Said]:
    found = _TIMES.match(text)
    if found is None:
        return []
    pairs = [pair.decode("ascii").split(" ") for pair in found[4].split(b", ")]
    phases = tuple((name, float(seconds)) for name, seconds in pairs)
    return [InitTimes(int(found[1]), int(found[2]), float(found[3]), phases)]


def _setting(name: str, pattern: bytes) -> Callable[[bytes], list[Said]]:
    """Return the reader of the lines that tell a setting, whose value is the group of ``pattern``."""
    compiled = re.compile(pattern)

    def read(text: bytes) -> list[Said]:
        match = compiled.match(text)
        return [] if match is None else [Setting(name, match[1].decode("ascii"))]

    return read


def _network(text: bytes) -> list[Said]:
    speed = _SPEED.match(text)
    if speed is not None:
        return [Nic(int(speed[1]), speed[2].decode("ascii"), speed[3].decode("ascii"), int(speed[4]))]
    gdr = _GDR_OF_NIC.match(text)
    if gdr is not None:
        state, how = gdr[1].decode("ascii").lower(), gdr[2]
        words = state if how is None else f"{state} ({how.decode('ascii')})"
        return [Nic(int(gdr[3]), gdr[4].decode("ascii"), gdr=words)]
    if re.match(rb"NET/(?:IB|Socket) ?: Using ", text):
        adapters = text.partition(b"OOB")[0]
        nics: list[Said] = []
        for number, name, port in _USED.findall(adapters):
            layer = re.search(rb"/(\w{1,20})", port)
            link = None if layer is None else layer[1].decode("ascii")
            is_socket = text.startswith(b"NET/Socket")
            nics.append(Nic(int(number), name.decode("ascii"), "Ethernet" if is_socket else link))
        return nics
    return _gdr_of_gpu(text)


def _gdr_of_gpu(text: bytes) -> list[Said]:
    found = _GDR_OF_GPU.match(text)
    if found is None or found[1].lower() != b"disabled":
        return []
    gpu, number, why = (found[place].decode("ascii") for place in (2, 3, 4))
    if number.isdigit() and len(number) <= 4:
        return [Nic(int(number), gdr=f"disabled for some GPUs {why}")]
    return [Setting("GPU Direct RDMA", f"disabled for GPU {gpu} / HCA {number} {why}")]


_version = _setting("NCCL version", rb"(?:NCCL|RCCL) version ?:? ?([\w.+-]{1,60})")

_READERS: dict[bytes, Callable[[bytes], list[Said]]] = {
    b"Ring": _ring,
    b"Channel": _channel,
    b"Trees": _trees,
    b"Init": _times,
    b"NCCL": _version,
    b"RCCL": _version,
    b"cudaDriverVersion": _setting("CUDA driver", rb"cudaDriverVersion\s+(\d{1,8})\s*$"),
    b"Using": _setting("network", rb"Using network ([\w +.-]{1,60})$"),
    b"GPU": _gdr_of_gpu,
}
"""The reader of a line by its first word."""
