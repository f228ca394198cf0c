"""NCCL's debug log, or NCCL Inspector's records, as a stream of frozen values: one for each line with a fact.

See docs/nccl.md#debug-log; NCCL 2.4 to 2.30, RCCL. Concurrent writers tear lines apart and glue them together, so
reading stops where the fixed words do not follow one another as NCCL prints them. A number counts only with the word
after it, because a cut number looks complete. Text before ``host:pid:tid`` (labels of srun, Ray, MPI; times; program
output) does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum

from nsystui.base.text import whole_number
from nsystui.exports.nccl_log.files import STEP_WORDS, Reported, ResultReader, TrainingStep, steps_in
from nsystui.exports.nccl_log.inspector import RECORD, InspectedCall, InspectorReader
from nsystui.exports.nccl_log.topology import LogThread, TopologyLine, thread_of, topology_in

_DATATYPES: tuple[tuple[str, int], ...] = (
    ("int8", 1), ("uint8", 1), ("int32", 4), ("uint32", 4), ("int64", 8), ("uint64", 8), ("fp16", 2), ("fp32", 4),
    ("fp64", 8), ("bf16", 2), ("fp8_e4m3", 1), ("fp8_e5m2", 1),  # the last two since NCCL 2.24
)  # fmt: skip
"""Name, as the scripts of ``nsys-profiling`` spell it, and bytes of an element, by number."""


def datatype_name(number: int) -> str:
    """Return ``fp32`` for 7, and ``datatype 12`` for a number that NCCL 2.30 does not have."""
    return _DATATYPES[number][0] if number < len(_DATATYPES) else f"datatype {number}"


def datatype_size(number: int) -> int | None:
    """Return the bytes of an element; ``None`` for an unknown data type."""
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
"""A line with one call: op, opCount (hexadecimal), and text from ``count`` on, for `ARGUMENTS`."""

ARGUMENTS = re.compile(_ARGUMENTS)
"""Count, datatype and, if complete, reduction, root, communicator, number of ranks."""

CALL = re.compile(_HEAD + b"(" + _ARGUMENTS + b")")
"""A call anywhere in a line: op, opCount, all `ARGUMENTS`, and each of them."""

CALL_BEGINNING = re.compile(rb"NCCL INFO \w+: opCount")

GLOBAL_RANK = re.compile(rb" task \d+ globalrank (\d{1,9})(?!\S)")
FOLDED = re.compile(rb"\[repeated \d+x across cluster\]")
"""The text that Ray appends to a line that replaces several lines, which differ only in numbers."""


def writer_of(prefix: bytes) -> Writer | None:
    """Return a line's writer from the text before ``NCCL INFO``; ``None`` if a tear left too little."""
    match = _WRITER.search(prefix)
    return None if match is None else Writer(LogProcess(match[1].decode("ascii"), int(match[2])), int(match[3]))


_COMMUNICATOR = re.compile(
    rb"NCCL INFO (?:\[Rank \d+\] )?([\w ()-]*?) - (Init START|Init COMPLETE|Destroy COMPLETE|Abort COMPLETE)"
)
_PAIR = re.compile(rb"\b(comm|rank|nranks|cudaDev|commId|parent|splitCount|color) (-?(?:0x)?[0-9a-f]{1,16})(?!\S)")


def communicator_in(line: bytes) -> tuple[bytes, CommunicatorLine] | None:
    """Return the text before ``NCCL INFO``, and a line's communicator, without its writer.

    Words are read by name: order and number differ between versions.
    """
    match = _COMMUNICATOR.search(line)
    if match is None:
        return None
    pairs = dict(_PAIR.findall(match[1]))
    try:
        numbers = {name: int(value, 16 if value.startswith(b"0x") else 10) for name, value in pairs.items()}
        communicator = CommunicatorLine(
            writer=None,
            state=CommunicatorState(match[2].decode("ascii")),
            pointer=numbers[b"comm"],
            rank=numbers[b"rank"],
            ranks=numbers[b"nranks"],
            device=numbers.get(b"cudaDev"),
            unique_id=numbers.get(b"commId"),
            parent=numbers.get(b"parent"),
            split_count=numbers.get(b"splitCount"),
            color=numbers.get(b"color"),
        )
    except (KeyError, ValueError):  # words are missing, or glued text replaces a number
        return None
    return line[: match.start()], communicator


_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")
_TUNING = re.compile(
    rb"NCCL INFO (?:(\w+)(?: \[[\w ]+\])?: )?(\d{1,18}) Bytes -> (?:"
    rb"Algo (\w+) proto (\w+) (?:time \d|channel\{Lo\.\.Hi\}=\{(\d{1,4})\.\.(\d{1,4})\})"
    rb"|Kernel (\w+) nchannels (\d{1,4}) nthreads \d"
    rb"|(cudaMemcpy\w*))"
)


def tuning_in(line: bytes) -> TuningLine | None:
    """Return NCCL's choice of algorithm and protocol, as any version prints it (docs/nccl.md#debug-log)."""
    match = _TUNING.search(line)
    if match is None:
        return None
    op, size, algorithm, protocol, low, high, kernel, channels, copy = match.groups()
    name = None if op is None else op.decode("ascii")
    if algorithm is None:
        channel_count = int(channels) if channels is not None else None
        return TuningLine(name, int(size), (kernel or copy).decode("ascii"), None, channel_count)
    channel_count = int(high) - int(low) + 1 if low is not None else None
    return TuningLine(name, int(size), _name_of(algorithm, _ALGORITHMS), _name_of(protocol, _PROTOCOLS), channel_count)


def _name_of(word: bytes, names: tuple[str, ...]) -> str:
    """Return the name in ``word``, which is its number up to NCCL 2.23."""
    text = word.decode("ascii")
    number = whole_number(text, len(names) - 1)
    return text if number is None else names[number]


@dataclass(frozen=True, slots=True)
class LogProcess:
    """The process that wrote a line, from ``host:pid:tid``."""

    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class Writer:
    """A process and the device that its thread had set when it wrote, from ``host:pid:tid [device]``.

    The device is the CUDA ordinal in the process, 0 for every rank under ``CUDA_VISIBLE_DEVICES``. If a thread drives
    several GPUs, it may not be the call's device (measured with ``nccl-tests -g 2``).
    """

    process: LogProcess
    device: int


@dataclass(frozen=True, slots=True)
class Signature:
    """The fields of a call except opCount and buffers, shared by the many calls of each kind.

    ``count`` is in elements, ``root`` is the peer of Send and Recv, ``communicator`` is a pointer valid in this process
    only, ``ranks`` its size, ``global_rank`` RCCL's. ``None`` is a value that the line lost or never had.
    ``is_folded``: Ray left out similar lines.
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
        """The exact message size in bytes: count × size of the data type, not × ranks."""
        element = datatype_size(self.datatype)
        return None if element is None else self.count * element


@dataclass(frozen=True, slots=True)
class Call:
    """A collective or point-to-point call. NCCL counts calls per communicator; grouped calls share a count."""

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
    """The beginning or end of a communicator in a process.

    ``pointer`` identifies it in its calls, ``device`` is the CUDA ordinal of its GPU. ``unique_id`` is ``commId``, the
    same on all ranks (since NCCL 2.16; splits of 2.24 and later have ``parent``, ``split_count`` and ``color``
    instead). ``thread`` is the writer as printed in the line.
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
    """NCCL's choice for an operation: only this line has the algorithm that really runs.

    ``size``: bytes as the tuner counts them, of all ranks together for AllGather, ReduceScatter and AlltoAll. ``op`` is
    ``None`` up to NCCL 2.22. ``algorithm`` is the kernel for symmetric memory, the copy for copy engines.
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
    RECORD = "of NCCL Inspector: cut, missing or without a dump"


@dataclass(frozen=True, slots=True)
class Unread:
    """A part of a line with ``opCount`` but without a complete call, or a ``number`` of damaged records."""

    damage: Damage
    number: int = 1


Line = Call | CommunicatorLine | TuningLine | TopologyLine | TrainingStep | InspectedCall | Unread


Read = Callable[[int], bytes]
"""Returns at most the given number of bytes of a log; empty at its end."""

BLOCK = 256 * 1024
"""Bytes read at once."""

LONGEST_LINE = 1024 * 1024
"""Bytes. No log has longer lines; they are read in pieces, so that files without line ends fit in memory."""

_MAX_CACHED = 50_000
"""Caches are cleared after this many new prefixes and kinds of calls."""

_MAX_KEY = 512
"""Longer prefixes and calls (bytes) are not cached."""

_WORDS = (b"opCount", b"NCCL INFO", b"NCCL version", *STEP_WORDS)


def blocks(read: Read) -> Iterator[bytes]:
    """Yield blocks that end with a line, or after `LONGEST_LINE`."""
    remainder = b""
    while piece := read(BLOCK):
        # A progress bar advances by carriage returns: hours of it may be one line.
        end = piece.rfind(b"\n") + 1 or piece.rfind(b"\r") + 1
        if end:
            yield remainder + piece[:end]
            remainder = piece[end:]
        else:
            remainder += piece
            if len(remainder) > LONGEST_LINE:
                yield remainder
                remainder = b""
    if remainder:
        yield remainder


class _WriterCalls:
    """A writer's kinds of calls, by op and the text from ``count`` on."""

    def __init__(self, writer: Writer | None) -> None:
        self.writer = writer
        self.signatures: dict[tuple[bytes, bytes], Signature] = {}


class LogReader:
    """Reads any number of logs, one after another.

    ``lines`` counts the lines read, as ``wc -l`` does, and a last line without an end.
    """

    def __init__(self) -> None:
        self.lines = 0
        # Most lines repeat earlier bytes: they are looked up, not parsed.
        self._by_prefix: dict[bytes, _WriterCalls] = {}
        self._by_writer: dict[Writer | None, _WriterCalls] = {}
        self._tuning: dict[bytes, TuningLine] = {}
        self._cached = 0
        self._hosts: dict[tuple[int, int], str] = {}
        self._result_reader = ResultReader()

    @property
    def reported(self) -> list[Reported]:
        """The results of nccl-tests in the lines read."""
        return self._result_reader.results

    def read(self, read: Read) -> Iterator[Line]:
        """Yield the values of a log's lines in order. Raises as ``read`` does."""
        last = b"\n"
        inspector = InspectorReader()
        for block in blocks(read):
            self.lines += block.count(b"\n")
            last = block[-1:]
            self._result_reader.take(block)
            if inspector.is_open or RECORD.search(block):
                for line in block.splitlines():
                    damaged = inspector.damaged
                    if call := inspector.read(line):
                        yield call
                    if inspector.damaged > damaged:
                        yield Unread(Damage.RECORD, inspector.damaged - damaged)
            if any(word in block for word in _WORDS):
                yield from self._lines_of(block)
        self.lines += last != b"\n"
        if inspector.left:
            yield Unread(Damage.RECORD, inspector.left)

    def _lines_of(self, block: bytes) -> Iterator[Line]:
        # This loop runs for each of up to a hundred million lines.
        find_call, by_prefix = CALL_AND_REST.search, self._by_prefix
        step_words = [word for word in STEP_WORDS if word in block]
        for line in block.splitlines():
            if step_words and any(word in line for word in step_words):
                yield from steps_in(line)
            if b"opCount" in line:
                match = find_call(line)
                if match is None or line.count(b"opCount") > 1:
                    yield from self._torn(line)
                    continue
                op, count, arguments = match.groups()
                prefix = line[: match.start()]
                calls = by_prefix.get(prefix) or self._calls_of(prefix)
                signature = calls.signatures.get((op, arguments)) or self._signature(calls, op, arguments)
                if signature is None:
                    yield Unread(Damage.CUT_SHORT)
                else:
                    yield Call(signature, int(count, 16))
            elif b"Bytes -> " in line:
                text = line[line.find(b"NCCL INFO") :]
                if (tuning := self._tuning.get(text) or self._new_tuning(text)) is not None:
                    yield tuning
            elif b"COMPLETE" in line or b"Init START" in line:
                if (communicator := communicator_in(line)) is not None:
                    prefix, parsed = communicator
                    writer = self._writer(writer_of(prefix), parsed.pointer)
                    yield replace(parsed, writer=writer, thread=thread_of(prefix))
            elif (b"NCCL INFO" in line or b"NCCL version" in line) and (topology := topology_in(line)) is not None:
                yield topology

    def _torn(self, line: bytes) -> Iterator[Line]:
        """Yield the complete calls in a torn line, and an `Unread` for each other part of a call."""
        calls = 0
        for match in CALL.finditer(line):
            # One byte more, because a communicator's pointer is complete only before a blank.
            arguments = line[match.start(3) : match.end() + 1]
            signature = self._signature(self._calls_of(line[: match.start()]), match[1], arguments)
            if signature is not None:
                calls += 1
                yield Call(signature, int(match[2], 16))
        beginnings = max(calls, len(CALL_BEGINNING.findall(line)))
        yield from [Unread(Damage.CUT_SHORT)] * (beginnings - calls)
        yield from [Unread(Damage.HEADLESS)] * (line.count(b"opCount") - beginnings)

    def _calls_of(self, prefix: bytes) -> _WriterCalls:
        self._make_room()
        writer = writer_of(prefix)
        calls = self._by_writer.get(writer)
        if calls is None:
            calls = self._by_writer[writer] = _WriterCalls(writer)
        if len(prefix) <= _MAX_KEY:
            self._by_prefix[prefix] = calls
        return calls

    def _signature(self, calls: _WriterCalls, op: bytes, arguments: bytes) -> Signature | None:
        """Return a call's fields from ``count`` on; ``None`` if the line is cut before its data type ends."""
        match = ARGUMENTS.match(arguments)
        if match is None:
            return None
        count, datatype, reduction, root, pointer, ranks = match.groups()
        global_rank = GLOBAL_RANK.search(arguments, match.end())
        communicator = int(pointer, 16) if pointer is not None and pointer != b"(nil)" else None
        signature = Signature(
            writer=self._writer(calls.writer, communicator),
            op=op.decode("ascii"),
            count=int(count),
            datatype=int(datatype),
            reduction=_integer(reduction),
            root=_integer(root),
            communicator=communicator,
            ranks=_integer(ranks),
            global_rank=_integer(global_rank[1]) if global_rank else None,
            is_folded=FOLDED.search(arguments, match.end()) is not None,
        )
        if len(arguments) <= _MAX_KEY:
            self._make_room()
            calls.signatures[op, arguments] = signature
        return signature

    def _new_tuning(self, text: bytes) -> TuningLine | None:
        tuning = tuning_in(text)
        if tuning is not None and len(text) <= _MAX_KEY:
            self._make_room()
            self._tuning[text] = tuning
        return tuning

    def _make_room(self) -> None:
        """Clear full caches: times and glued output make prefixes without end."""
        self._cached += 1
        if self._cached > _MAX_CACHED:
            for calls in self._by_writer.values():
                calls.signatures.clear()
            self._by_writer.clear()
            self._by_prefix.clear()
            self._tuning.clear()
            self._cached = 1

    def _writer(self, writer: Writer | None, communicator: int | None) -> Writer | None:
        """Return ``writer`` with the first host name of its process.

        Output without a line end is glued to the name (``-1mew0``), and a torn line may lack its first letters. With
        the same process id and communicator pointer, such a name is not another host.
        """
        if writer is None or communicator is None:
            return writer
        host, pid = writer.process.host, writer.process.pid
        first_host = self._hosts.setdefault((pid, communicator), host)
        is_damaged = first_host != host and (first_host.endswith(host) or host.endswith(first_host))
        return Writer(LogProcess(first_host, pid), writer.device) if is_damaged else writer


def _integer(digits: bytes | None) -> int | None:
    return None if digits is None else int(digits)
