"""The lines of NCCL's debug log, and the log as a stream of frozen values: one for each line that says something.

See docs/nccl.md#debug-log; NCCL 2.4 to 2.30, RCCL. Concurrent writers tear lines apart and glue them together, so
nothing is read past a place where the fixed words do not follow one another as NCCL prints them, and a number counts
only with the word after it: a cut number looks like a whole one. Whatever stands before ``host:pid:tid`` (labels of
srun, Ray, MPI; times; output of the program) does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum

from nsystui.base.text import whole_number
from nsystui.exports.nccl_log.files import STEP_WORDS, Reported, ResultReader, TrainingStep, steps_in
from nsystui.exports.nccl_log.topology import LogThread, TopologyLine, thread_of, topology_in

_DATATYPES: tuple[tuple[str, int], ...] = (
    ("int8", 1),
    ("uint8", 1),
    ("int32", 4),
    ("uint32", 4),
    ("int64", 8),
    ("uint64", 8),
    ("fp16", 2),
    ("fp32", 4),
    ("fp64", 8),
    ("bf16", 2),
    ("fp8_e4m3", 1),  # this and the next since NCCL 2.24
    ("fp8_e5m2", 1),
)
"""Name, as the scripts of ``nsys-profiling`` spell it, and bytes of one element, by number."""


def datatype_name(number: int) -> str:
    """``7`` → ``fp32``; a number that NCCL 2.30 does not have yet → ``datatype 12``."""
    return _DATATYPES[number][0] if number < len(_DATATYPES) else f"datatype {number}"


def datatype_size(number: int) -> int | None:
    """The bytes of one element; ``None`` for a data type that is not known."""
    return _DATATYPES[number][1] if number < len(_DATATYPES) else None


# RCCL of 2019 has a time in µs between the device and "NCCL INFO".
_WRITER = re.compile(rb"([A-Za-z0-9._-]+):(\d{1,10}):\d+ \[(-?\d{1,4})\] (?:\d{10,} )?$")

_POINTER = rb"[0-9A-Fa-fx()nil]+"
_HEAD = rb"NCCL INFO (\w+): opCount ([0-9a-f]{1,16}) sendbuff %b recvbuff %b (?:acc %b )?" % ((_POINTER,) * 3)
_ARGUMENTS = (
    rb"count (\d{1,18}) datatype (\d{1,4}) op\b"
    rb"(?: (\d{1,10}) root(?: (-?\d{1,10}) comm(?: (0x[0-9a-f]{1,16}|\(nil\))(?= )(?: \[nranks=(\d{1,9})\])?)?)?)?"
)
CALL_AND_REST = re.compile(_HEAD + rb"(count \d+ datatype .*)")
"""A line with one call: op, opCount (hexadecimal) and everything from ``count`` on, which `ARGUMENTS` reads."""

ARGUMENTS = re.compile(_ARGUMENTS)
"""Count, datatype, and where they are whole: reduction, root, communicator, number of ranks."""

CALL = re.compile(_HEAD + b"(" + _ARGUMENTS + b")")
"""A call wherever it stands: op, opCount, then `ARGUMENTS` as a whole and one by one."""

CALL_BEGINNING = re.compile(rb"NCCL INFO \w+: opCount")

GLOBAL_RANK = re.compile(rb" task \d+ globalrank (\d{1,9})(?!\S)")
FOLDED = re.compile(rb"\[repeated \d+x across cluster\]")
"""The text that Ray puts behind a line that stands for several which differ in numbers only."""


def writer_of(prefix: bytes) -> Writer | None:
    """Who wrote a line, from what stands before ``NCCL INFO``; ``None`` where a tear has left too little of it."""
    found = _WRITER.search(prefix)
    if found is None:
        return None
    return Writer(LogProcess(found[1].decode("ascii"), int(found[2])), int(found[3]))


_COMMUNICATOR = re.compile(
    rb"NCCL INFO (?:\[Rank \d+\] )?([\w ()-]*?) - (Init START|Init COMPLETE|Destroy COMPLETE|Abort COMPLETE)"
)
_PAIR = re.compile(rb"\b(comm|rank|nranks|cudaDev|commId|parent|splitCount|color) (-?(?:0x)?[0-9a-f]{1,16})(?!\S)")


def communicator_in(line: bytes) -> tuple[bytes, CommunicatorLine] | None:
    """The communicator that a line is about, without its writer, and what stands before ``NCCL INFO``.

    The words are read by name, as their order and number differ between versions.
    """
    found = _COMMUNICATOR.search(line)
    if found is None:
        return None
    pairs = dict(_PAIR.findall(found[1]))
    try:
        values = {name: int(value, 16 if value.startswith(b"0x") else 10) for name, value in pairs.items()}
        communicator = CommunicatorLine(
            writer=None,
            state=CommunicatorState(found[2].decode("ascii")),
            pointer=values[b"comm"],
            rank=values[b"rank"],
            ranks=values[b"nranks"],
            device=values.get(b"cudaDev"),
            unique_id=values.get(b"commId"),
            parent=values.get(b"parent"),
            split_count=values.get(b"splitCount"),
            color=values.get(b"color"),
        )
    except (KeyError, ValueError):  # words are missing, or glued text stands where a number should
        return None
    return line[: found.start()], communicator


_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")
_TUNING = re.compile(
    rb"NCCL INFO (?:(\w+)(?: \[[\w ]+\])?: )?(\d{1,18}) Bytes -> (?:"
    rb"Algo (\w+) proto (\w+) (?:time \d|channel\{Lo\.\.Hi\}=\{(\d{1,4})\.\.(\d{1,4})\})"
    rb"|Kernel (\w+) nchannels (\d{1,4}) nthreads \d"
    rb"|(cudaMemcpy\w*))"
)


def tuning_in(line: bytes) -> TuningLine | None:
    """NCCL's choice of algorithm and protocol, in the form of any version (docs/nccl.md#debug-log)."""
    found = _TUNING.search(line)
    if found is None:
        return None
    op, size, algorithm, protocol, low, high, kernel, channels, copy = found.groups()
    name = None if op is None else op.decode("ascii")
    if algorithm is None:
        used = int(channels) if channels is not None else None
        return TuningLine(name, int(size), (kernel or copy).decode("ascii"), None, used)
    used = int(high) - int(low) + 1 if low is not None else None
    return TuningLine(name, int(size), _named(algorithm, _ALGORITHMS), _named(protocol, _PROTOCOLS), used)


def _named(word: bytes, names: tuple[str, ...]) -> str:
    """NCCL 2.23 and before print numbers, later ones the names."""
    text = word.decode("ascii")
    number = whole_number(text, len(names) - 1)
    return text if number is None else names[number]


@dataclass(frozen=True, slots=True)
class LogProcess:
    """Who wrote a line, from its ``host:pid:tid``."""

    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class Writer:
    """A process and the device that its thread had set when it wrote, from ``host:pid:tid [device]``.

    The device is the CUDA ordinal inside of the process, 0 for every rank under ``CUDA_VISIBLE_DEVICES``. Where one
    thread drives several GPUs it may be another one than that of the call (measured with ``nccl-tests -g 2``).
    """

    process: LogProcess
    device: int


@dataclass(frozen=True, slots=True)
class Signature:
    """The part of a call that is common to all that differ in opCount and buffers alone.

    A job makes few kinds of calls very often: they share one value. ``count`` is in elements, ``root`` is the peer of
    Send and Recv, ``communicator`` the pointer that means something in this process only, ``ranks`` its size,
    ``global_rank`` RCCL's. ``None`` is what the line does not say or lost. ``is_folded``: Ray left out lines like it.
    """

    writer: Writer | None
    op: str
    count: int
    datatype: int
    reduction: int | None = None
    root: int | None = None
    communicator: int | None = None
    ranks: int | None = None
    global_rank: int | None = None
    is_folded: bool = False

    @property
    def size(self) -> int | None:
        """The message size in bytes, exact: count × size of the data type, not multiplied by the ranks."""
        element = datatype_size(self.datatype)
        return None if element is None else self.count * element


@dataclass(frozen=True, slots=True)
class Call:
    """A collective or point-to-point call. NCCL counts them per communicator; calls of one group share a count."""

    signature: Signature
    op_count: int


class CommunicatorState(Enum):
    """An event in the life of a communicator."""

    STARTED = "Init START"
    COMPLETE = "Init COMPLETE"
    DESTROYED = "Destroy COMPLETE"
    ABORTED = "Abort COMPLETE"


@dataclass(frozen=True, slots=True)
class CommunicatorLine:
    """A communicator begins or ends in a process.

    ``pointer`` is what its calls name, ``device`` the CUDA ordinal of its GPU. ``unique_id`` is ``commId``, the same on
    all ranks (since NCCL 2.16; splits of 2.24 and later have none, but ``parent``, ``split_count`` and ``color``).
    ``thread``: who wrote the line, as it is written there.
    """

    writer: Writer | None
    state: CommunicatorState
    pointer: int
    rank: int
    ranks: int
    device: int | None = None
    unique_id: int | None = None
    parent: int | None = None
    split_count: int | None = None
    color: int | None = None
    thread: LogThread | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class TuningLine:
    """NCCL's choice for an operation: the only place that tells the algorithm that really runs.

    ``size``: bytes as the tuner counts them, of all ranks together for AllGather, ReduceScatter and AlltoAll.
    ``op`` is ``None`` up to NCCL 2.22. ``algorithm`` is the kernel for symmetric memory and the copy for copy engines.
    """

    op: str | None
    size: int
    algorithm: str
    protocol: str | None = None
    channels: int | None = None


class Damage(Enum):
    """Why a call could not be read."""

    CUT_SHORT = "cut short before the datatype"
    HEADLESS = "without the beginning"


@dataclass(frozen=True, slots=True)
class Unread:
    """A piece of a line that counts an operation (``opCount``) and is no whole call: nothing is guessed of it."""

    damage: Damage


Line = Call | CommunicatorLine | TuningLine | TopologyLine | TrainingStep | Unread


Read = Callable[[int], bytes]
"""Gives at most so many bytes of a log, and none at its end."""

BLOCK = 256 * 1024
"""Bytes read at once."""

LONGEST_LINE = 1024 * 1024
"""Bytes. A longer line is no log's; it is read in pieces, so that a file without line ends needs no more memory."""

_MOST_KEPT = 50_000
"""How many different prefixes, and how many kinds of calls, are recognised without being read again."""

_LONGEST_KEPT = 512
"""Bytes of a prefix or of the rest of a line that are worth recognising."""

_WORDS = (b"opCount", b"NCCL INFO", b"NCCL version", *STEP_WORDS)


def blocks(read: Read) -> Iterator[bytes]:
    """The bytes of a log in pieces that end with a line, as far as lines are not longer than `LONGEST_LINE`."""
    rest = b""
    while piece := read(BLOCK):
        # A progress bar moves on by carriage returns: hours of it may be one line.
        end = piece.rfind(b"\n") + 1 or piece.rfind(b"\r") + 1
        if end:
            yield rest + piece[:end]
            rest = piece[end:]
        else:
            rest += piece
            if len(rest) > LONGEST_LINE:
                yield rest
                rest = b""
    if rest:
        yield rest


class _Known:
    """The kinds of calls that one writer made so far, by what their lines say: op, and all from ``count`` on."""

    def __init__(self, writer: Writer | None) -> None:
        self.writer = writer
        self.signatures: dict[tuple[bytes, bytes], Signature] = {}


class LogReader:
    """Reads any number of logs, one after the other.

    ``lines`` is how many lines were read so far, as ``wc -l`` counts them, and a last one that has no end.
    """

    def __init__(self) -> None:
        self.lines = 0
        # The same bytes mean the same thing again, so most lines are looked up and not read.
        self._by_prefix: dict[bytes, _Known] = {}
        self._by_writer: dict[Writer | None, _Known] = {}
        self._tuning: dict[bytes, TuningLine] = {}
        self._recognised = 0
        self._hosts: dict[tuple[int, int], str] = {}
        self._results = ResultReader()

    @property
    def reported(self) -> list[Reported]:
        """The results of nccl-tests among the lines read so far."""
        return self._results.found

    def read(self, read: Read) -> Iterator[Line]:
        """The values of the lines of a log, in their order. Raises as ``read`` does."""
        last = b"\n"
        for block in blocks(read):
            self.lines += block.count(b"\n")
            last = block[-1:]
            self._results.take(block)
            if any(word in block for word in _WORDS):
                yield from self._lines_of(block)
        self.lines += last != b"\n"

    def _lines_of(self, block: bytes) -> Iterator[Line]:
        # This loop runs once for each line of a log that may have a hundred million of them.
        find_call, by_prefix = CALL_AND_REST.search, self._by_prefix
        step_words = [word for word in STEP_WORDS if word in block]
        for line in block.splitlines():
            if step_words and any(word in line for word in step_words):
                yield from steps_in(line)
            if b"opCount" in line:
                found = find_call(line)
                if found is None or line.count(b"opCount") > 1:
                    yield from self._torn(line)
                    continue
                op, count, rest = found.groups()
                prefix = line[: found.start()]
                known = by_prefix.get(prefix) or self._known(prefix)
                signature = known.signatures.get((op, rest)) or self._signature(known, op, rest)
                if signature is None:
                    yield Unread(Damage.CUT_SHORT)
                else:
                    yield Call(signature, int(count, 16))
            elif b"Bytes -> " in line:
                text = line[line.find(b"NCCL INFO") :]
                tuning = self._tuning.get(text) or self._new_tuning(text)
                if tuning is not None:
                    yield tuning
            elif b"COMPLETE" in line or b"Init START" in line:
                communicator = communicator_in(line)
                if communicator is not None:
                    prefix, told = communicator
                    writer = self._writer(writer_of(prefix), told.pointer)
                    yield replace(told, writer=writer, thread=thread_of(prefix))
            elif b"NCCL INFO" in line or b"NCCL version" in line:
                topology = topology_in(line)
                if topology is not None:
                    yield topology

    def _torn(self, line: bytes) -> Iterator[Line]:
        """The whole calls in a line that has pieces of several, or of none; each other piece is told as unread."""
        calls = 0
        for found in CALL.finditer(line):
            # One byte more: the pointer of a communicator is whole if a blank follows.
            rest = line[found.start(3) : found.end() + 1]
            signature = self._signature(self._known(line[: found.start()]), found[1], rest)
            if signature is not None:
                calls += 1
                yield Call(signature, int(found[2], 16))
        begun = max(calls, len(CALL_BEGINNING.findall(line)))
        yield from [Unread(Damage.CUT_SHORT)] * (begun - calls)
        yield from [Unread(Damage.HEADLESS)] * (line.count(b"opCount") - begun)

    def _known(self, prefix: bytes) -> _Known:
        """The writer of a line that begins with ``prefix``, as far as it is known."""
        self._make_room()
        writer = writer_of(prefix)
        known = self._by_writer.get(writer)
        if known is None:
            known = self._by_writer[writer] = _Known(writer)
        if len(prefix) <= _LONGEST_KEPT:
            self._by_prefix[prefix] = known
        return known

    def _signature(self, known: _Known, op: bytes, rest: bytes) -> Signature | None:
        """The fields of a call from ``count`` on; ``None`` where the line was cut before its data type was whole."""
        found = ARGUMENTS.match(rest)
        if found is None:
            return None
        count, datatype, reduction, root, pointer, ranks = found.groups()
        global_rank = GLOBAL_RANK.search(rest, found.end())
        communicator = int(pointer, 16) if pointer is not None and pointer != b"(nil)" else None
        signature = Signature(
            writer=self._writer(known.writer, communicator),
            op=op.decode("ascii"),
            count=int(count),
            datatype=int(datatype),
            reduction=_integer(reduction),
            root=_integer(root),
            communicator=communicator,
            ranks=_integer(ranks),
            global_rank=_integer(global_rank[1]) if global_rank else None,
            is_folded=FOLDED.search(rest, found.end()) is not None,
        )
        if len(rest) <= _LONGEST_KEPT:
            self._make_room()
            known.signatures[op, rest] = signature
        return signature

    def _new_tuning(self, text: bytes) -> TuningLine | None:
        tuning = tuning_in(text)
        if tuning is not None and len(text) <= _LONGEST_KEPT:
            self._make_room()
            self._tuning[text] = tuning
        return tuning

    def _make_room(self) -> None:
        """Forgets what was recognised before it is too much: times and glued output make prefixes without end."""
        self._recognised += 1
        if self._recognised > _MOST_KEPT:
            for known in self._by_writer.values():
                known.signatures.clear()
            self._by_writer.clear()
            self._by_prefix.clear()
            self._tuning.clear()
            self._recognised = 1

    def _writer(self, writer: Writer | None, communicator: int | None) -> Writer | None:
        """``writer`` with the host name that its process had before.

        Output without a line end is glued to the name (``-1mew0``), and a torn line may have lost its first letters:
        where process id and pointer of the communicator are the same, such a name is no other host.
        """
        if writer is None or communicator is None:
            return writer
        host, pid = writer.process.host, writer.process.pid
        known = self._hosts.setdefault((pid, communicator), host)
        is_damaged = known != host and (known.endswith(host) or host.endswith(known))
        return Writer(LogProcess(known, pid), writer.device) if is_damaged else writer


def _integer(digits: bytes | None) -> int | None:
    return None if digits is None else int(digits)
