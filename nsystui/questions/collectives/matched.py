"""Which kernels of several ranks are one collective operation (docs/ranks.md#matching).

All members of a communicator run the same collectives in the same order, so the n-th of one is the n-th of the others,
if they have equally many. Where the payload tells the communicator, its members are known. Where it does not, members
whose streams ran the same sequence may be of one communicator, or of several that do the same side by side (tensor
parallel groups, for instance): of one, all kernels of an operation end together, whatever the clocks say, so the
difference between the ends of two members hardly changes from operation to operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nsystui.questions.collectives.sequences import KernelSequence, Member
from nsystui.questions.intervals import Times

Matrix = NDArray[np.int64]

_FEWEST_TO_TELL = 8
_MOST_TO_LOOK_AT = 256
_LEAST_TOLERANCE = 100_000
_TOLERANCE = 0.25


@dataclass(frozen=True, eq=False)
class MatchedCollectives:
    """The n operations of one communicator that m ≥ 2 members ran, by start.

    ``collective`` and ``size`` (bytes, the largest of the members; ``UNKNOWN``) have the shape ``(n,)``; ``row``,
    ``start`` and ``end`` (job time, ns) the shape ``(m, n)``. ``communicator`` is empty where the payload does not tell
    it.
    """

    communicator: str
    members: tuple[Member, ...]
    collective: NDArray[np.object_]
    size: Times
    row: Matrix
    start: Matrix
    end: Matrix

    def __len__(self) -> int:
        return len(self.collective)

    @cached_property
    def reports(self) -> frozenset[int]:
        """The reports of the members."""
        return frozenset(member.task.report for member in self.members)

    @property
    def duration(self) -> Matrix:
        """Shape ``(m, n)``, ns."""
        return self.end - self.start


@dataclass(frozen=True, eq=False)
class Matching:
    """What could be matched; ``unmatched`` are the members whose counts or order fit to nobody's, with their number."""

    groups: tuple[MatchedCollectives, ...]
    unmatched: tuple[Member, ...] = ()


def match(sequences: Sequence[KernelSequence]) -> Matching:
    """Matches the sequences of all members."""
    groups: list[MatchedCollectives] = []
    for communicator, alike in _alike(sequences):
        clusters = [alike] if communicator else _ending_together(alike)
        groups += [_matched(communicator, cluster) for cluster in clusters if len(cluster) > 1]
    there = {member for group in groups for member in group.members}
    rest = {one.member for one in sequences} - there
    return Matching(tuple(groups), tuple(sorted(rest)))


def _alike(sequences: Sequence[KernelSequence]) -> Iterator[tuple[str, list[KernelSequence]]]:
    """Sequences of the same communicator (if known) with the same collectives in the same order, by member.

    Of a member with several that are alike the first goes with the first of the others, by stream.
    """
    found: dict[tuple[str, int, bytes, int], list[KernelSequence]] = {}
    seen: dict[tuple[Member, str, int, bytes], int] = {}
    for one in sorted(sequences, key=lambda one: (one.member, one.stream)):
        signature = "\n".join(one.collective.tolist()).encode()
        kind = (one.member, one.communicator, one.count, signature)
        seen[kind] = place = seen.get(kind, -1) + 1
        found.setdefault((one.communicator, one.count, signature, place), []).append(one)
    for (communicator, *_), alike in found.items():
        yield communicator, alike


def _ending_together(sequences: Sequence[KernelSequence]) -> Iterable[list[KernelSequence]]:
    """Sequences that may be of one communicator; all, where they are too short to tell."""
    if len(sequences) < 3 or len(sequences[0]) < _FEWEST_TO_TELL:
        return [list(sequences)]
    some = np.linspace(0, len(sequences[0]) - 1, min(len(sequences[0]), _MOST_TO_LOOK_AT)).astype(np.int64)
    ends = np.stack([one.end[some] for one in sequences])
    durations = np.stack([one.end[some] - one.start[some] for one in sequences])
    tolerance = max(_LEAST_TOLERANCE, _TOLERANCE * float(np.median(durations)))
    left = np.arange(len(sequences))
    clusters = []
    while len(left):
        apart = ends[left] - ends[left[0]]
        wander = np.median(np.abs(apart - np.median(apart, axis=1, keepdims=True)), axis=1)
        is_same = wander <= tolerance
        clusters.append([sequences[place] for place in left[is_same].tolist()])
        left = left[~is_same]
    return clusters


def _matched(communicator: str, sequences: Sequence[KernelSequence]) -> MatchedCollectives:
    return MatchedCollectives(
        communicator,
        tuple(one.member for one in sequences),
        sequences[0].collective,
        np.max([one.size for one in sequences], axis=0),
        np.stack([one.row for one in sequences]),
        np.stack([one.start for one in sequences]),
        np.stack([one.end for one in sequences]),
    )
