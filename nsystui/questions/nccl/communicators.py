"""Communicators over processes: the rank of the communicator that a call's pointer stands for.

NCCL runs the calls of a communicator in the order in which they were made, the same on all of its ranks. So the n-th
call of a rank in the log (`call_sequences`) and the n-th operation of the same communicator and rank in an export
belong together, where both are whole.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
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
    """One rank of a communicator: an ``ncclComm`` in a process. Each is a value of its own, even if all are alike.

    ``communicator`` is its name: ``0x54fe282d32a87d85`` (``commId``, the same on all ranks), ``… #2`` where the same
    id was used again, ``… split 1 color 0`` for what was split off; or ``pointer 0x55b6aa64a990``, of this process
    only, where no line tells the id. ``None`` where the calls name none. ``ranks`` is its size, ``global_rank`` RCCL's.
    ``told_device`` is the CUDA ordinal in its own lines; ``written_devices``, how often which one stood before
    its calls.
    """

    process: LogProcess | None
    communicator: str | None
    rank: int | None = None
    ranks: int | None = None
    global_rank: int | None = None
    is_shared: bool = False
    """Whether ``communicator`` is a name that all of its ranks have."""
    told_device: int | None = None
    written_devices: Counter[int] = field(default_factory=Counter)

    @property
    def device(self) -> int | None:
        """The CUDA ordinal of its GPU: where no line records it, the one that stood before most of its calls."""
        if self.told_device is None and self.written_devices:
            return self.written_devices.most_common(1)[0][0]
        return self.told_device


class Communicators:
    """The communicators of each process as they come and go. Lines of a process must be heard in their order.

    ``members`` are all ranks heard of, first ones first.
    """

    def __init__(self) -> None:
        self.members: list[CommunicatorRank] = []
        self._open: dict[tuple[LogProcess | None, int], CommunicatorRank] = {}
        self._lines: dict[CommunicatorRank, CommunicatorLine] = {}
        self._used: Counter[tuple[LogProcess | None, int | None, str]] = Counter()
        self._nameless: dict[Writer | None, CommunicatorRank] = {}

    def hear(self, line: CommunicatorLine) -> CommunicatorRank:
        """Takes in that a communicator begins or ends; returns the rank that the line is about."""
        process = _process(line.writer)
        key = (process, line.pointer)
        member = self._open.get(key)
        if line.state in _ENDS:
            if member is None or (member.rank, member.ranks) not in ((None, None), (None, line.ranks), _size(line)):
                member = self._new(process, _pointer(line.pointer))
            _fill(member, line)
            # From here on the pointer may be that of another communicator.
            self._open.pop(key, None)
            return member
        told = self._lines.get(member) if member is not None else None
        if member is not None and told is not None and _is_twin(told, line):
            return member
        if member is None or told is not None or member.ranks not in (None, line.ranks):
            member = self._open[key] = self._new(process, _pointer(line.pointer))
        # Else only its calls were heard of: they may stand in another file than its beginning.
        self._lines[member] = line
        _fill(member, line)
        self._name(member, line)
        return member

    def member_of(self, signature: Signature, calls: int = 1) -> CommunicatorRank:
        """The member that makes the calls of ``signature`` now; ``calls`` is their number."""
        member = self._caller(signature)
        if signature.writer is not None:
            member.written_devices[signature.writer.device] += calls
        if member.ranks is None:
            member.ranks = signature.ranks
        if member.global_rank is None:
            member.global_rank = signature.global_rank
        return member

    def _caller(self, signature: Signature) -> CommunicatorRank:
        process = _process(signature.writer)
        if signature.communicator is None:
            if signature.writer not in self._nameless:
                self._nameless[signature.writer] = self._new(process, None)
            return self._nameless[signature.writer]
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
        # All ranks make their communicators in the same order: the same number is the same communicator.
        self._used[member.process, member.rank, name] += 1
        number = self._used[member.process, member.rank, name]
        member.communicator = name if number == 1 else f"{name} #{number}"
        member.is_shared = True


def _process(writer: Writer | None) -> LogProcess | None:
    return None if writer is None else writer.process


def _fill(member: CommunicatorRank, line: CommunicatorLine) -> None:
    member.rank, member.ranks = _size(line)
    if line.device is not None:
        member.told_device = line.device


def _pointer(pointer: int) -> str:
    return f"pointer {pointer:#x}"


def _size(line: CommunicatorLine) -> tuple[int, int]:
    return line.rank, line.ranks


def _is_twin(told: CommunicatorLine, line: CommunicatorLine) -> bool:
    """Whether the second line is about the communicator of the first: ``Init START``, then ``Init COMPLETE``."""
    is_next = told.state is CommunicatorState.STARTED and line.state is CommunicatorState.COMPLETE
    return is_next and _size(told) == _size(line) and told.unique_id == line.unique_id


@dataclass(frozen=True, eq=False)
class CallSequence:
    """The calls of one rank of a communicator, in the order of the log: 12 bytes for each.

    ``kinds``: the place of each call's signature in ``signatures``. ``op_counts``: NCCL's number of each, which the
    calls of one group share. Both arrays (of C types ``I`` and ``Q``, as ``numpy.frombuffer`` takes them) have one
    entry for each call.
    """

    member: CommunicatorRank
    signatures: list[Signature] = field(default_factory=list)
    kinds: array[int] = field(default_factory=lambda: array("I"))
    op_counts: array[int] = field(default_factory=lambda: array("Q"))

    def __len__(self) -> int:
        return len(self.kinds)

    def calls(self) -> Iterator[Call]:
        """Every call as a value."""
        for kind, op_count in zip(self.kinds, self.op_counts, strict=True):
            yield Call(self.signatures[kind], op_count)


def call_sequences(lines: Iterable[Line]) -> list[CallSequence]:
    """The sequences of what a log says (or several, one after the other), in the order in which ranks first called.

    Calls whose line lost its communicator are in none: the ranks that they would belong to are not whole then. Raises
    what ``lines`` raises.
    """
    communicators = Communicators()
    found: dict[CommunicatorRank, CallSequence] = {}
    # By identity: the reader gives the same signature again, and the sequence keeps it alive.
    places: dict[int, tuple[CallSequence, int]] = {}
    for line in lines:
        if isinstance(line, CommunicatorLine):
            communicators.hear(line)
            places.clear()  # a pointer may mean another communicator now
        elif isinstance(line, Call) and line.signature.communicator is not None:
            place = places.get(id(line.signature))
            if place is None:
                member = communicators.member_of(line.signature)
                sequence = found.setdefault(member, CallSequence(member))
                place = places[id(line.signature)] = sequence, len(sequence.signatures)
                sequence.signatures.append(line.signature)
            sequence, kind = place
            sequence.kinds.append(kind)
            sequence.op_counts.append(line.op_count)
    return list(found.values())
