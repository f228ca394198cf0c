"""The debug log as a stream of what its lines say. Nothing is kept of a line but what was read from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from nsystui.exports.nccl_log.lines import (
    ARGUMENTS,
    CALL,
    CALL_AND_REST,
    CALL_BEGINNING,
    FOLDED,
    GLOBAL_RANK,
    Call,
    CommunicatorLine,
    Damage,
    Line,
    Process,
    Signature,
    TuningLine,
    Unread,
    Writer,
    communicator_in,
    steps_in,
    tuning_in,
    writer_of,
)

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

_WORDS = (b"opCount", b"COMPLETE", b"Init START", b"Bytes -> ", b"Training epoch")


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
        self._kept = 0
        self._hosts: dict[tuple[int, int], str] = {}

    def read(self, read: Read) -> Iterator[Line]:
        """The values of the lines of a log, in their order. Raises as ``read`` does."""
        last = b"\n"
        for block in blocks(read):
            self.lines += block.count(b"\n")
            last = block[-1:]
            if any(word in block for word in _WORDS):
                yield from self._lines_of(block)
        self.lines += last != b"\n"

    def _lines_of(self, block: bytes) -> Iterator[Line]:
        # This loop runs once for each line of a log that may have a hundred million of them.
        find_call, by_prefix = CALL_AND_REST.search, self._by_prefix
        has_steps = b"Training epoch" in block
        for line in block.splitlines():
            if has_steps and b"Training epoch" in line:
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
                    yield self._of_process(*communicator)

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
        self._kept += 1
        if self._kept > _MOST_KEPT:
            for known in self._by_writer.values():
                known.signatures.clear()
            self._by_writer.clear()
            self._by_prefix.clear()
            self._tuning.clear()
            self._kept = 1

    def _of_process(self, prefix: bytes, line: CommunicatorLine) -> CommunicatorLine:
        return replace(line, writer=self._writer(writer_of(prefix), line.pointer))

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
        return Writer(Process(known, pid), writer.device) if is_damaged else writer


def _integer(digits: bytes | None) -> int | None:
    return None if digits is None else int(digits)
