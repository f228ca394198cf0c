"""Log lines about how NCCL connects the ranks: rings, trees, transports, network devices, settings, times.

They name no communicator: the thread that initialises it writes them until its ``Init COMPLETE``. Lines without NCCL's
form up to their end, such as torn lines, are ignored.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

_INFO = b"NCCL INFO "
MAX_CHANNELS = 256
"""NCCL has 64 channels: from this number on, a channel is not NCCL's."""


class LogThread(NamedTuple):
    """The writer of a line, from ``host:pid:tid``."""

    host: str
    pid: int
    tid: int


class Via(NamedTuple):
    """The transport of a connection (``P2P``, ``SHM``, ``NET``) and its variant (``direct pointer/read``, ``IB``).

    A network has a ``device``, and may read GPU memory itself (``gdr``) or use another rank's NIC (``pxn``); other
    transports have ``None``.
    """

    transport: str
    way: str
    device: int | None = None
    gdr: bool | None = None
    pxn: bool | None = None


@dataclass(frozen=True, slots=True)
class RingPart:
    """A rank's neighbours in a channel's ring: it receives from ``previous`` and sends to ``next``."""

    channel: int
    previous: int
    rank: int
    next: int


@dataclass(frozen=True, slots=True)
class RingOrder:
    """A channel's whole ring, as rank 0 prints it."""

    channel: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TreePart:
    """A rank in a channel's tree; ``parent`` is ``None`` for the root."""

    channel: int
    rank: int
    parent: int | None
    children: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChannelConnection:
    """A channel's connection between two ranks."""

    channel: int
    source: int
    target: int
    via: Via


@dataclass(frozen=True, slots=True)
class ChannelCounts:
    """The numbers of channels that a rank uses; ``per_peer`` for each peer of Send and Recv.

    Older versions do not print ``collnet`` and ``nvls``.
    """

    collective: int
    collnet: int | None
    nvls: int | None
    p2p: int
    per_peer: int


@dataclass(frozen=True, slots=True)
class InitTimes:
    """A rank's times of initialisation, seconds with two decimals; ``phases`` in NCCL's order."""

    rank: int
    ranks: int
    total: float
    phases: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting or fact of a process: an environment variable, a version, the network in use."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Nic:
    """A network device of a host as NCCL numbers it; ``None`` is a value that the line does not have.

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
    """A line's facts about the topology; ``thread`` is ``None`` if it has no writer."""

    thread: LogThread | None
    facts: tuple[Said, ...]


_WRITER = re.compile(rb"([A-Za-z0-9._-]+):(\d{1,10}):(\d{1,10}) \[-?\d{1,4}\] (?:\d{10,} )?$")


def thread_of(prefix: bytes) -> LogThread | None:
    """Return the writer of a line from the text before ``NCCL INFO``."""
    match = _WRITER.search(prefix)
    return None if match is None else LogThread(match[1].decode("ascii"), int(match[2]), int(match[3]))


def topology_in(line: bytes) -> TopologyLine | None:
    """Return the topology facts in a line of NCCL; ``None`` for most lines."""
    start = line.rfind(_INFO)
    if start < 0:
        start = line.find(b"NCCL version")
        prefix, text = b"", line[start:]
    else:
        prefix, text = line[:start], line[start + len(_INFO) :]
    facts = _facts_in(text.strip())
    thread = thread_of(prefix)
    # NCCL_DEBUG=VERSION prints the version without a writer.
    is_complete = thread is not None or all(isinstance(fact, Setting) for fact in facts)
    return TopologyLine(thread, tuple(facts)) if facts and is_complete else None


def _facts_in(text: bytes) -> list[Said]:
    word = text.partition(b" ")[0]
    if (read := _READERS.get(word)) is not None and (facts := read(text)):
        return facts
    if word.startswith(b"NCCL_"):
        return _environment(text)
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


_Reader = Callable[[bytes], list[Said]]
_MatchReader = Callable[[re.Match[bytes]], list[Said]]


def _reads(pattern: re.Pattern[bytes], otherwise: _Reader = lambda _: []) -> Callable[[_MatchReader], _Reader]:
    """Return a decorator that makes a reader of lines from a reader of matches of ``pattern``."""
    return lambda read: lambda text: otherwise(text) if (match := pattern.match(text)) is None else read(match)


@_reads(_CONNECTION)
def _connection(match: re.Match[bytes]) -> list[Said]:
    if int(match[1]) >= MAX_CHANNELS:
        return []
    network, device, proxy, gdr, transport, way, _ = match.groups()[3:]
    if network is not None:
        via = Via("NET", network.decode("ascii"), int(device), gdr is not None, proxy is not None)
    else:
        # A path through another GPU ends with that GPU, which does not matter.
        variant = re.sub(rb"/\d+\[\w*\]$", b"", way) if way is not None else b"direct"
        via = Via("SHM" if transport is None else transport.decode("ascii"), variant.decode("ascii"))
    return [ChannelConnection(int(match[1]), int(match[2]), int(match[3]), via)]


@_reads(_RING, _connection)  # NCCL up to 2.5 prints connections of rings
def _ring(match: re.Match[bytes]) -> list[Said]:
    channel, previous, rank, following = map(int, match.groups())
    return [RingPart(channel, previous, rank, following)] if channel < MAX_CHANNELS else []


@_reads(_ORDER, _connection)
def _channel(match: re.Match[bytes]) -> list[Said]:
    channel = int(match[1])
    return [RingOrder(channel, tuple(map(int, match[3].split())))] if channel < MAX_CHANNELS else []


def _trees(text: bytes) -> list[Said]:
    parts: list[Said] = []
    for match in _TREES.finditer(text):
        # down->rank->up since NCCL 2.6, up->rank->down before
        last, first = _UP_LAST.match(match[2]), _UP_FIRST.match(match[2])
        if last is not None and (b"/" in last[1] or first is None):
            down, rank, up = last.groups()
        elif first is not None:
            up, rank, down = first.groups()
        else:
            return []
        if int(match[1]) < MAX_CHANNELS:
            children = tuple(child for child in map(int, down.split(b"/")) if child >= 0)
            parts.append(TreePart(int(match[1]), int(rank), int(up) if int(up) >= 0 else None, children))
    return parts


@_reads(_COUNTS)
def _counts(match: re.Match[bytes]) -> list[Said]:
    collective, collnet, nvls, p2p, per_peer = (None if number is None else int(number) for number in match.groups())
    return [ChannelCounts(collective or 0, collnet, nvls, p2p or 0, per_peer or 0)]


@_reads(_TIMES)
def _times(match: re.Match[bytes]) -> list[Said]:
    pairs = [pair.decode("ascii").split(" ") for pair in match[4].split(b", ")]
    phases = tuple((name, float(seconds)) for name, seconds in pairs)
    return [InitTimes(int(match[1]), int(match[2]), float(match[3]), phases)]


def _setting(name: str, pattern: bytes) -> _Reader:
    """Return a reader of lines with a setting, which is the group of ``pattern``."""
    return _reads(re.compile(pattern))(lambda match: [Setting(name, match[1].decode("ascii"))])


@_reads(_ENVIRONMENT)
def _environment(match: re.Match[bytes]) -> list[Said]:
    return [Setting(match[1].decode("ascii"), match[2].decode("ascii"))]


def _network(text: bytes) -> list[Said]:
    if (speed := _SPEED.match(text)) is not None:
        return [Nic(int(speed[1]), speed[2].decode("ascii"), speed[3].decode("ascii"), int(speed[4]))]
    if (gdr := _GDR_OF_NIC.match(text)) is not None:
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


@_reads(_GDR_OF_GPU)
def _gdr_of_gpu(match: re.Match[bytes]) -> list[Said]:
    if match[1].lower() != b"disabled":
        return []
    gpu, number, why = (match[group].decode("ascii") for group in (2, 3, 4))
    if number.isdigit() and len(number) <= 4:
        return [Nic(int(number), gdr=f"disabled for some GPUs {why}")]
    return [Setting("GPU Direct RDMA", f"disabled for GPU {gpu} / HCA {number} {why}")]


_version = _setting("NCCL version", rb"(?:NCCL|RCCL) version ?:? ?([\w.+-]{1,60})")

_READERS: dict[bytes, _Reader] = {
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
