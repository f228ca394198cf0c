"""Communicators in a debug log, whose ranks each process identifies by a pointer.

All ranks of a communicator call it in the same order, and NCCL keeps this order. So the n-th call of a communicator's
rank in the log (`call_sequences`) is its n-th operation in an export, if both are complete.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from nsystui.exports.nccl_log.lines import (
    Call,
    CommunicatorLine,
    CommunicatorState,
    Line,
    LogProcess,
    Signature,
    Writer,
)

_ENDS = (CommunicatorState.DESTROYED, CommunicatorState.ABORTED)


@dataclass(eq=False)
class CommunicatorRank:
    """A rank of a communicator: an ``ncclComm`` in a process. Ranks with equal values are different ranks.

    ``communicator`` is its name: ``0x54fe282d32a87d85`` (``commId``, the same on all ranks), ``… #2`` if the id is used
    again, ``… split 1 color 0`` after a split, or, without id, ``pointer 0x55b6aa64a990`` of this process; ``None`` if
    the calls have no pointer. ``ranks`` is the communicator's size, ``global_rank`` RCCL's. ``init_device`` is the CUDA
    ordinal in the lines of its initialisation; ``call_devices`` counts the ordinals in the prefixes of its calls.
    """

    process: LogProcess | None
    communicator: str | None
    rank: int | None = None
    ranks: int | None = None
    global_rank: int | None = None
    is_shared: bool = False  # whether all ranks have the same ``communicator``
    init_device: int | None = None
    call_devices: Counter[int] = field(default_factory=Counter)

    @property
    def device(self) -> int | None:
        """The CUDA ordinal of its GPU: ``init_device``, else its calls' most frequent ordinal."""
        if self.init_device is None and self.call_devices:
            return self.call_devices.most_common(1)[0][0]
        return self.init_device


class Communicators:
    """The communicators of each process over time. Lines of a process must be added in order.

    ``members`` are all ranks in order of appearance.
    """

    def __init__(self) -> None:
        self.members: list[CommunicatorRank] = []
        self._open: dict[tuple[LogProcess | None, int], CommunicatorRank] = {}
        self._lines: dict[CommunicatorRank, CommunicatorLine] = {}
        self._name_counts: Counter[tuple[LogProcess | None, int | None, str]] = Counter()
        self._unnamed: dict[Writer | None, CommunicatorRank] = {}

    def hear(self, line: CommunicatorLine) -> CommunicatorRank:
        """Record that a communicator begins or ends, and return the rank of the line."""
        process = _process(line.writer)
        key = (process, line.pointer)
        member = self._open.get(key)
        if line.state in _ENDS:
            if member is None or (member.rank, member.ranks) not in ((None, None), (None, line.ranks), _size(line)):
                member = self._new(process, _pointer(line.pointer))
            _fill(member, line)
            # The next communicator may have the same pointer.
            self._open.pop(key, None)
            return member
        last_line = self._lines.get(member) if member is not None else None
        if member is not None and last_line is not None and _is_completion(last_line, line):
            return member
        if member is None or last_line is not None or member.ranks not in (None, line.ranks):
            member = self._open[key] = self._new(process, _pointer(line.pointer))
        # Otherwise the member is known from its calls alone: they may be in another file than its beginning.
        self._lines[member] = line
        _fill(member, line)
        self._name(member, line)
        return member

    def member_of(self, signature: Signature, calls: int = 1) -> CommunicatorRank:
        """Return the rank that makes ``calls`` calls of ``signature`` at this point of the log."""
        member = self._caller(signature)
        if signature.writer is not None:
            member.call_devices[signature.writer.device] += calls
        if member.ranks is None:
            member.ranks = signature.ranks
        if member.global_rank is None:
            member.global_rank = signature.global_rank
        return member

    def _caller(self, signature: Signature) -> CommunicatorRank:
        process = _process(signature.writer)
        if signature.communicator is None:
            if signature.writer not in self._unnamed:
                self._unnamed[signature.writer] = self._new(process, None)
            return self._unnamed[signature.writer]
        key = (process, signature.communicator)
        if key not in self._open:
            self._open[key] = self._new(process, _pointer(signature.communicator))
        return self._open[key]

    def _new(self, process: LogProcess | None, communicator: str | None) -> CommunicatorRank:
        member = CommunicatorRank(process, communicator)
        self.members.append(member)
        return member

    def _name(self, member: CommunicatorRank, line: CommunicatorLine) -> None:
        parent = self._open.get((member.process, line.parent)) if line.parent is not None else None
        if line.unique_id is not None:
            name = f"{line.unique_id:#x}"
        elif parent is not None and parent.is_shared and line.color is not None:
            split = "" if line.split_count is None else f" {line.split_count}"
            name = f"{parent.communicator} split{split} color {line.color}"
        else:
            return
        # All ranks make communicators in the same order, so equal numbers are one communicator.
        self._name_counts[member.process, member.rank, name] += 1
        number = self._name_counts[member.process, member.rank, name]
        member.communicator = name if number == 1 else f"{name} #{number}"
        member.is_shared = True


def _process(writer: Writer | None) -> LogProcess | None:
    return None if writer is None else writer.process


def _fill(member: CommunicatorRank, line: CommunicatorLine) -> None:
    member.rank, member.ranks = _size(line)
    if line.device is not None:
        member.init_device = line.device


def _pointer(pointer: int) -> str:
    return f"pointer {pointer:#x}"


def _size(line: CommunicatorLine) -> tuple[int, int]:
    return line.rank, line.ranks


def _is_completion(started: CommunicatorLine, line: CommunicatorLine) -> bool:
    """Return whether a line completes ``started``: ``Init START``, then ``Init COMPLETE``."""
    is_next = started.state is CommunicatorState.STARTED and line.state is CommunicatorState.COMPLETE
    return is_next and _size(started) == _size(line) and started.unique_id == line.unique_id


@dataclass(frozen=True, eq=False)
class CallSequence:
    """The calls of one rank of a communicator, in the order of the log: 12 bytes per call.

    ``kinds``: the index of each call's signature in ``signatures``. ``op_counts``: NCCL's number of each call, which
    the calls of one group share. Both arrays (C types ``I`` and ``Q``, readable by ``numpy.frombuffer``) have an entry
    per call.
    """

    member: CommunicatorRank
    signatures: list[Signature] = field(default_factory=list)
    kinds: array[int] = field(default_factory=lambda: array("I"))
    op_counts: array[int] = field(default_factory=lambda: array("Q"))

    def __len__(self) -> int:
        return len(self.kinds)


def call_sequences(lines: Iterable[Line]) -> list[CallSequence]:
    """Return the call sequences of one or several logs, by their first calls.

    Omits calls whose line lost its communicator, so their rank's sequence is incomplete. Raises what ``lines`` raises.
    """
    communicators = Communicators()
    sequence_by_member: dict[CommunicatorRank, CallSequence] = {}
    # By identity: the reader repeats the same signature object, which the sequence keeps alive.
    positions: dict[int, tuple[CallSequence, int]] = {}
    for line in lines:
        if isinstance(line, CommunicatorLine):
            communicators.hear(line)
            positions.clear()  # a pointer may mean another communicator now
        elif isinstance(line, Call) and line.signature.communicator is not None:
            position = positions.get(id(line.signature))
            if position is None:
                member = communicators.member_of(line.signature)
                sequence = sequence_by_member.setdefault(member, CallSequence(member))
                position = positions[id(line.signature)] = sequence, len(sequence.signatures)
                sequence.signatures.append(line.signature)
            sequence, kind = position
            sequence.kinds.append(kind)
            sequence.op_counts.append(line.op_count)
    return list(sequence_by_member.values())
