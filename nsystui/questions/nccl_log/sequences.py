"""The calls of each rank of each communicator in their order, compactly: what kernels can be aligned with.

NCCL runs the calls of a communicator in the order in which they were made, the same on all of its ranks. So the n-th
call here and the n-th operation of the same communicator and rank in an export belong together, where both are whole.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from nsystui.exports.nccl_log.lines import Call, CommunicatorLine, Line, Signature
from nsystui.questions.nccl_log.communicators import Communicators, Member


@dataclass(frozen=True, eq=False)
class CallSequence:
    """The calls of one rank of a communicator, in the order of the log: 12 bytes for each.

    ``kinds``: the place of each call's signature in ``signatures``. ``op_counts``: NCCL's number of each, which the
    calls of one group share. Both arrays (of C types ``I`` and ``Q``, as ``numpy.frombuffer`` takes them) have one
    entry for each call.
    """

    member: Member
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
    found: dict[Member, CallSequence] = {}
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
