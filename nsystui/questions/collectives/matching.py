"""Collective operations across ranks: the NCCL kernels of each rank in order, matched with each other.

See docs/ranks.md#matching. `sequences` gives the kernels of each communicator of each rank, and `match` finds those of
several ranks that are one operation.

All members of a communicator run the same collectives in the same order, so the n-th of one is the n-th of the others,
if they have equally many. Where the payload records the communicator, its members are known. Where it does not, members
whose streams ran the same sequence may be of one communicator, or of several that do the same side by side (tensor
parallel groups, for instance). In one communicator all kernels of an operation end together, whatever the clocks say,
so the difference between the ends of two members hardly changes from operation to operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.selection import Task
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.nccl.names import collective_of_kernel
from nsystui.questions.nccl.pairing import NcclPairing
from nsystui.questions.nccl.units import by_name
from nsystui.questions.queries.conditions import of_reports
from nsystui.questions.queries.derived import of_each_report, runs_of
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.results import json_array, json_of
from nsystui.store.session import Session

if TYPE_CHECKING:
    import pandas as pd

    from nsystui.store.results import Arrays


UNKNOWN = -1
"""A message size that is not known."""

_MOST_TO_ALIGN = 1 << 12
"""The number of collectives of a stream that is enough to align a clock."""
_NUMBERS = ("process", "device", "stream", "row", "start", "end")
_TEXTS = ("collective", "communicator")


@dataclass(frozen=True, order=True)
class Member:
    """A participant in a collective: a GPU of a task, ``device`` being its CUDA ordinal."""

    task: Task
    device: int


@dataclass(frozen=True, eq=False)
class KernelSequence:
    """The n NCCL kernels of a member on one communicator (or one stream, where that is not known), by start.

    Arrays have the shape ``(n,)``; times are job time, ns. ``row`` identifies a kernel in its report, ``size`` is its
    message size in bytes (``UNKNOWN`` where the export does not say).
    """

    member: Member
    communicator: str
    stream: int
    collective: NDArray[np.object_]
    size: Times
    row: Times
    start: Times
    end: Times
    whole: int = -1
    """The number of kernels in the report, where only some of them are here."""

    def __len__(self) -> int:
        return len(self.start)

    @property
    def count(self) -> int:
        """The number of kernels that the member ran."""
        return len(self) if self.whole < 0 else self.whole


def sequences(session: Session, reports: Sequence[Report]) -> list[KernelSequence]:
    """The sequences of every member of these reports, on the clock that these have.

    ``communicator`` is empty where no payload records it. The results are stored next to the columns.
    """
    with_kernels = [report for report in reports if report.count(tables.kernels)]

    def compute(part: Session, missing: list[Report]) -> dict[int, Arrays]:
        indices = {report.index for report in missing}
        return _computed(part, [report for report in part.reports if report.index in indices])

    stored = of_each_report(session, with_kernels, "collectives", compute, by=tables.kernels, doing="collectives")
    return [one for report in with_kernels for one in _split(report, stored[report.index])]


def stream_sequences(session: Session, reports: Sequence[Report]) -> list[KernelSequence]:
    """The sequences by the kernels alone: by stream, named by the kernels, without sizes, ``row`` all 0.

    Of very many kernels some are given, the same ones of sequences of one length. For this few columns of one table are
    read (``STREAM_COLUMNS``). Kept as above.
    """
    with_kernels = [report for report in reports if report.count(tables.kernels)]

    def compute(part: Session, missing: list[Report]) -> dict[int, Arrays]:
        # The cached arrays of ``stream_sequences``, on the reports' own clocks.
        reports = {report.index for report in missing}
        columns = tables.kernels.c
        chosen = [columns[name] for name in STREAM_COLUMNS[:-1]]
        is_whole = (columns.start.is_not(None), columns.end.is_not(None))
        query = sa.select(columns.report, *chosen).where(
            columns.is_nccl == 1, of_reports(columns.report, reports), *is_whole
        )
        frame = part.frame(query)
        collectives = by_name(frame["short_name"], collective_of_kernel)
        frame = frame.assign(collective=collectives, communicator="", message_size=UNKNOWN, row=0)
        rows = frame["report"].to_numpy(np.int64)
        return {index: _plain_arrays(frame[rows == index], clock_offset=0) for index in reports}

    found: list[KernelSequence] = []
    for run in [with_kernels] if session.workers is not None else runs_of(with_kernels, tables.kernels):
        stored = of_each_report(session, run, "nccl-streams", compute, by=tables.kernels)
        found += [_thinned(one) for report in run for one in _split(report, stored[report.index])]
    return found


def _thinned(whole: KernelSequence) -> KernelSequence:
    count = len(whole)
    if count <= _MOST_TO_ALIGN:
        return whole
    rows = np.linspace(0, count - 1, _MOST_TO_ALIGN).astype(np.int64)
    arrays = {name: getattr(whole, name)[rows] for name in ("collective", "size", "row", "start", "end")}
    return replace(whole, **arrays, whole=count)


STREAM_COLUMNS = ("process", "device", "stream", "start", "end", "short_name", "is_nccl")
"""The columns of the kernels that ``stream_sequences`` reads."""


def _computed(session: Session, reports: Sequence[Report]) -> dict[int, Arrays]:
    frame = NcclPairing.load(session, reports=[report.index for report in reports]).kernels
    frame = frame.dropna(subset=["start", "end"])
    rows = frame["report"].to_numpy(np.int64)
    return {report.index: _plain_arrays(frame[rows == report.index], report.clock_offset) for report in reports}


def _plain_arrays(frame: pd.DataFrame, clock_offset: int) -> Arrays:
    """The cached columns of NCCL kernels, on their report's own clock; the frame's times include ``clock_offset``."""
    found: dict[str, Any] = {name: frame[name].to_numpy(np.int64) for name in _NUMBERS}
    found["start"] = found["start"] - clock_offset
    found["end"] = found["end"] - clock_offset
    found["size"] = frame["message_size"].astype("Int64").fillna(UNKNOWN).to_numpy(np.int64)
    for name in _TEXTS:
        # Each text as its place in the list of texts; an empty one where it is missing.
        texts = frame[name]
        codes, distinct = texts.astype(object).where(texts.notna(), "").factorize()
        found[name], found[f"{name}_texts"] = codes.astype(np.int64), json_array([str(text) for text in distinct])
    return found


def _split(report: Report, arrays: Arrays) -> Iterator[KernelSequence]:
    """The kernels of a report by member and communicator."""
    collectives = np.array([*json_of(arrays["collective_texts"]), ""], object)
    communicators = json_of(arrays["communicator_texts"])
    is_known = np.array([bool(text) for text in communicators] + [False])[arrays["communicator"]]
    # A communicator's kernels may run on several streams, but a stream without one has only itself.
    stream = np.where(is_known, 0, arrays["stream"])
    keys = np.column_stack([arrays["process"], arrays["device"], arrays["communicator"], stream]).astype(np.int64)
    _, places = np.unique(keys, axis=0, return_inverse=True)
    places = places.reshape(-1)
    order = np.lexsort((arrays["row"], arrays["start"], places))
    firsts = np.flatnonzero(np.diff(places[order], prepend=UNKNOWN))
    for rows in np.split(order, firsts[1:]) if len(order) else ():
        first = rows[0]
        yield KernelSequence(
            Member(Task(report.index, int(arrays["process"][first])), int(arrays["device"][first])),
            communicators[arrays["communicator"][first]],
            int(arrays["stream"][first]),
            collectives[arrays["collective"][rows]],
            arrays["size"][rows],
            arrays["row"][rows],
            arrays["start"][rows] + report.clock_offset,
            arrays["end"][rows] + report.clock_offset,
        )


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
    """The matched groups; ``unmatched`` are the members whose counts or order match nobody's, with their number."""

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
    """Sequences that may be of one communicator; all of them where they are too short to decide."""
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
