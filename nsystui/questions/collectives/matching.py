"""Collective operations across ranks: the NCCL kernels of each rank in order, matched with each other.

See docs/ranks.md#matching. `sequences` returns each rank's kernels by communicator; `match` joins the kernels of one
operation.

All members of a communicator run the same collectives in the same order, so their n-th kernels belong together if they
ran equally many. If no payload records the communicator, members whose streams ran the same sequence may be of one
communicator, or of several that do the same concurrently (such as tensor parallel groups). In one communicator all
kernels of an operation end together, whatever the clocks say, so the difference between two members' ends hardly
varies, or follows a drift of their clocks.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.selection import Task
from nsystui.base.types import Array, Floats, Ints
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.nccl.names import collective_of_kernel
from nsystui.questions.nccl.pairing import NcclPairing
from nsystui.questions.nccl.units import whole
from nsystui.questions.queries.conditions import of_reports
from nsystui.questions.queries.derived import of_each_report, runs_of
from nsystui.store import tables
from nsystui.store.remember import Arrays, json_array, json_of
from nsystui.store.report import Report
from nsystui.store.session import Session

UNKNOWN = -1
"""An unknown message size."""

_ENOUGH_TO_ALIGN = 1 << 12
"""Collectives of a stream that are enough to align a clock."""
_NUMBERS = ("process", "device", "stream", "row", "start", "end")
_TEXTS = ("collective", "communicator")


@dataclass(frozen=True, order=True)
class Member:
    """A participant in a collective: a GPU of a task; ``device`` is its CUDA ordinal."""

    task: Task
    device: int


@dataclass(frozen=True, eq=False)
class KernelSequence:
    """The n NCCL kernels of a member on one communicator (or stream, if that is unknown), by start.

    Arrays have the shape ``(n,)``; times are job time, ns. ``row`` identifies a kernel in its report; ``size`` is its
    message size in bytes, or ``UNKNOWN``.
    """

    member: Member
    communicator: str
    stream: int
    collective: NDArray[np.object_]
    size: Times
    row: Times
    start: Times
    end: Times
    whole: int = -1  # the number of kernels before thinning; -1 if the sequence is not thinned
    ranks: int = UNKNOWN  # the number of ranks in the communicator

    def __len__(self) -> int:
        return len(self.start)

    @property
    def count(self) -> int:
        """The number of kernels that the member ran."""
        return len(self) if self.whole < 0 else self.whole


def sequences(session: Session, reports: Sequence[Report]) -> list[KernelSequence]:
    """Return the sequences of all members of these reports, on the reports' current clock.

    ``communicator`` is empty if no payload records it. The results are stored next to the columns.
    """
    with_kernels = [report for report in reports if report.count(tables.kernels)]

    def compute(part: Session, missing: list[Report]) -> dict[int, Arrays]:
        indices = {report.index for report in missing}
        return _computed(part, [report for report in part.reports if report.index in indices])

    stored = of_each_report(session, with_kernels, "collectives", compute, table=tables.kernels, activity="collectives")
    return [sequence for report in with_kernels for sequence in _split(report, stored[report.index])]


def stream_sequences(session: Session, reports: Sequence[Report]) -> list[KernelSequence]:
    """Return sequences by stream from the kernels alone, without communicators, sizes and rows.

    Long sequences are thinned, at the same indices if they are equally long. This reads few columns of one table
    (``STREAM_COLUMNS``), and stores its results like `sequences`.
    """
    with_kernels = [report for report in reports if report.count(tables.kernels)]

    def compute(part: Session, missing: list[Report]) -> dict[int, Arrays]:
        # Cached arrays are on the reports' own clocks.
        reports = {report.index for report in missing}
        columns = tables.kernels.c
        selected = [columns[name] for name in STREAM_COLUMNS[:-1]]
        is_complete = (columns.start.is_not(None), columns.end.is_not(None))
        query = sa.select(columns.report, *selected).where(
            columns.is_nccl == 1, of_reports(columns.report, reports), *is_complete
        )
        rows = part.arrays(query)
        names, codes = np.unique(np.ma.filled(rows.pop("short_name"), ""), return_inverse=True)
        collectives = np.array([*(collective_of_kernel(name) or "" for name in names), ""], object)[codes]
        rows |= {"collective": collectives, "communicator": np.full(len(codes), "", object)}
        rows |= {"row": np.zeros(len(codes)), **dict.fromkeys(("size", "ranks"), np.full(len(codes), UNKNOWN))}
        return {index: _plain_arrays(rows, index) for index in reports}

    thinned: list[KernelSequence] = []
    for run in [with_kernels] if session.workers is not None else runs_of(with_kernels, tables.kernels):
        stored = of_each_report(session, run, "nccl-streams", compute, table=tables.kernels)
        thinned += [_thinned(sequence) for report in run for sequence in _split(report, stored[report.index])]
    return thinned


def _thinned(sequence: KernelSequence) -> KernelSequence:
    count = len(sequence)
    if count <= _ENOUGH_TO_ALIGN:
        return sequence
    rows = np.linspace(0, count - 1, _ENOUGH_TO_ALIGN).astype(np.int64)
    arrays = {name: getattr(sequence, name)[rows] for name in ("collective", "size", "row", "start", "end")}
    return replace(sequence, **arrays, whole=count)


STREAM_COLUMNS = ("process", "device", "stream", "start", "end", "short_name", "is_nccl")
"""Columns of the kernels that ``stream_sequences`` reads."""


def _computed(session: Session, reports: Sequence[Report]) -> dict[int, Arrays]:
    frame = NcclPairing.load(session, reports=[report.index for report in reports]).kernels
    frame = frame.dropna(subset=["start", "end"])
    frame = frame[frame["row"] >= 0]  # the copies of a call begin once all ranks are ready
    rows: dict[str, Array] = {name: frame[name].to_numpy(np.int64) for name in ("report", *_NUMBERS)}
    rows |= {"size": whole(frame["message_size"]), "ranks": whole(frame["ranks"])}
    rows |= {name: frame[name].astype(object).where(frame[name].notna(), "").to_numpy() for name in _TEXTS}
    return {report.index: _plain_arrays(rows, report.index, report.clock_offset) for report in reports}


def _plain_arrays(rows: Mapping[str, Array], report: int, clock_offset: int = 0) -> Arrays:
    """Return the cached columns of a report's NCCL kernels, on its own clock, without ``clock_offset``."""
    chosen = np.flatnonzero(rows["report"] == report)
    arrays: dict[str, Any] = {
        name: np.ma.getdata(rows[name])[chosen].astype(np.int64) for name in (*_NUMBERS, "size", "ranks")
    }
    arrays |= {edge: arrays[edge] - clock_offset for edge in ("start", "end")}
    for name in _TEXTS:  # each text as its index among the texts
        texts, arrays[name] = np.unique(rows[name][chosen], return_inverse=True)
        arrays[f"{name}_texts"] = json_array(texts.tolist())
    return arrays


def _split(report: Report, arrays: Arrays) -> Iterator[KernelSequence]:
    collectives = np.array([*json_of(arrays["collective_texts"]), ""], object)
    communicators = json_of(arrays["communicator_texts"])
    is_known = np.array([bool(text) for text in communicators] + [False])[arrays["communicator"]]
    # A known communicator's kernels may run on several streams; otherwise each stream is a sequence.
    stream = np.where(is_known, 0, arrays["stream"])
    keys = np.column_stack([arrays["process"], arrays["device"], arrays["communicator"], stream]).astype(np.int64)
    _, groups = np.unique(keys, axis=0, return_inverse=True)
    groups = groups.reshape(-1)
    order = np.lexsort((arrays["row"], arrays["start"], groups))
    firsts = np.flatnonzero(np.diff(groups[order], prepend=UNKNOWN))
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
            ranks=int(arrays["ranks"][rows].max()) if np.ptp(arrays["ranks"][rows]) == 0 else UNKNOWN,
        )


Matrix = Ints

FEWEST_TO_DECIDE = 8
_OPERATION_LIMIT = 256
_LEAST_TOLERANCE = 100_000
_TOLERANCE = 0.25


@dataclass(frozen=True, eq=False)
class MatchedCollectives:
    """The n operations of one communicator that the same m members ran, by start.

    ``collective`` and ``size`` (bytes, the members' largest, or ``UNKNOWN``) have the shape ``(n,)``; ``row``,
    ``start`` and ``end`` (job time, ns) ``(m, n)``. ``communicator`` is empty if the payload lacks it. ``ranks`` is the
    communicator's size, or ``UNKNOWN``; ``open`` are all of its open members, of which some may lack these operations.
    """

    communicator: str
    members: tuple[Member, ...]
    collective: NDArray[np.object_]
    size: Times
    row: Matrix
    start: Matrix
    end: Matrix
    ranks: int = UNKNOWN
    open: tuple[Member, ...] = ()

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
    """The matched groups; ``unmatched`` are members whose number or order of kernels no other member has.

    If the sequences of a communicator differ, each group has the operations of the same members. ``alone`` are groups
    of a single member. ``is_whole``: whether all ranks of the job are open.
    """

    groups: tuple[MatchedCollectives, ...]
    unmatched: tuple[Member, ...] = ()
    alone: tuple[MatchedCollectives, ...] = ()
    is_whole: bool = False

    def is_complete(self, group: MatchedCollectives) -> bool:
        """Return whether a group is known to have all ranks of its communicator."""
        is_whole = self.is_whole and not self.unmatched and group.members == group.open
        return is_whole if group.ranks == UNKNOWN else len(group.members) == group.ranks


def match(sequences: Sequence[KernelSequence]) -> Matching:
    """Match the sequences of all members."""
    clusters: dict[str, list[Sequence[KernelSequence]]] = {}
    for communicator, alike in _alike(sequences):
        clusters.setdefault(communicator, []).extend([alike] if communicator else _ending_together(alike))
    groups = [group for parts in clusters.values() for family in _families(parts) for group in _matched(family)]
    shared = tuple(group for group in groups if len(group.members) > 1)
    unmatched = {sequence.member for sequence in sequences}.difference(*(group.members for group in shared))
    alone = tuple(group for group in groups if len(group.open) > len(group.members) == 1)
    return Matching(shared, tuple(sorted(unmatched)), alone)


def _alike(sequences: Sequence[KernelSequence]) -> Iterator[tuple[str, list[KernelSequence]]]:
    """Yield sequences of the same communicator (if known) with the same collectives in the same order, by member.

    If a member has several such sequences, its n-th by stream belongs to the n-th of the other members.
    """
    groups: dict[tuple[str, int, bytes, int], list[KernelSequence]] = {}
    last_indices: dict[tuple[Member, str, int, bytes], int] = {}
    for sequence in sorted(sequences, key=lambda item: (item.member, item.stream)):
        signature = "\n".join(sequence.collective.tolist()).encode()
        kind = (sequence.member, sequence.communicator, sequence.count, signature)
        last_indices[kind] = index = last_indices.get(kind, -1) + 1
        groups.setdefault((sequence.communicator, sequence.count, signature, index), []).append(sequence)
    for (communicator, *_), alike in groups.items():
        yield communicator, alike


def _ending_together(sequences: Sequence[KernelSequence]) -> Iterable[list[KernelSequence]]:
    """Divide sequences into clusters that may be one communicator; into one cluster, if too short to decide."""
    if len(sequences) < 3 or len(sequences[0]) < FEWEST_TO_DECIDE:
        return [list(sequences)]
    operations = np.linspace(0, len(sequences[0]) - 1, min(len(sequences[0]), _OPERATION_LIMIT)).astype(np.int64)
    ends = np.stack([sequence.end[operations] for sequence in sequences])
    durations = np.stack([sequence.end[operations] - sequence.start[operations] for sequence in sequences])
    tolerance = max(_LEAST_TOLERANCE, _TOLERANCE * float(np.median(durations)))
    remaining = np.arange(len(sequences))
    clusters = []
    while len(remaining):
        rates = clock_rates(ends[remaining[0]], ends[remaining], _POINTS_TO_DECIDE)
        differences = ends[remaining] - ends[remaining[0]] + rates[:, None] * ends[remaining]
        is_same = _variation(differences) <= tolerance
        clusters.append([sequences[index] for index in remaining[is_same].tolist()])
        remaining = remaining[~is_same]
    return clusters


_Values = NDArray[np.number]

_POINTS_TO_DECIDE = 32
_MAX_RATE = 500e-6
_LEAST_DRIFT = 200_000
_RATE_GAIN = 4


def clock_rates(reference: _Values, ends: _Values, points: int = 256) -> Floats:
    """Return how much faster the clock of ``reference`` runs than each other clock, or 0 if that is not proven.

    The arrays are ends of the same n collectives, ns, shapes ``(n,)`` and ``(m, n)``; at most ``points`` are read. The
    rate is the median slope between collectives that are half of the time apart. It is proven by 8 or more collectives
    if NTP may steer a clock that fast, if it moves ends by more than they vary, and if its correction reduces their
    variation to a quarter.
    """
    order = np.argsort(reference)
    moments = np.linspace(reference.min(), reference.max(), points)
    picked = order[np.unique(np.searchsorted(reference, moments, sorter=order))]
    if len(picked) < FEWEST_TO_DECIDE:
        return np.zeros(len(ends))
    times, half = ends[:, picked], len(picked) // 2
    ahead = reference[picked] - times
    slopes = (ahead[:, -half:] - ahead[:, :half]) / np.maximum(times[:, -half:] - times[:, :half], 1)
    rates = np.median(slopes, axis=1).round(12)
    is_proven = (np.abs(rates) <= _MAX_RATE) & (np.abs(rates) * np.ptp(reference) >= _LEAST_DRIFT)
    is_proven &= _variation(ahead - rates[:, None] * times) * _RATE_GAIN <= _variation(ahead)
    return np.where(is_proven, rates, 0.0)


def _variation(values: _Values) -> Floats:
    """Return the median deviation from the median of each row."""
    deviations: Floats = np.abs(values - np.median(values, axis=1, keepdims=True))
    return np.median(deviations, axis=1)


Family = list[tuple[KernelSequence, Times]]
"""Sequences of one communicator, each with the indices of its operations in the longest, the first (`NOT_COMMON`)."""
NOT_COMMON = -1
_SAMPLE = 64
_SAME_RATE = 1e-6
_LEAST_COMMON = 0.9


def _families(clusters: Iterable[Sequence[KernelSequence]]) -> list[Family]:
    """Join the members of a communicator: clusters of equal sequences, and sequences that lack a few operations."""
    families: list[Family] = []
    for cluster in sorted(clusters, key=lambda item: (-len(item[0]), -len(item))):
        remaining = list(cluster)
        for family in families:
            reference, members = family[0][0], {sequence.member for sequence, _ in family}
            if reference.collective.tolist() == cluster[0].collective.tolist():
                continue  # their ends decided already
            for sequence in tuple(remaining):
                indices = None if sequence.member in members else _common(reference, sequence)
                if indices is None and sequence is cluster[0]:
                    break  # the others are like it
                if indices is not None:
                    family.append((sequence, indices))
                    remaining.remove(sequence)
        if remaining:
            families.append([(sequence, np.arange(len(sequence))) for sequence in remaining])
    return families


def _common(reference: KernelSequence, sequence: KernelSequence) -> Times | None:
    """Return the indices in ``reference`` of a sequence's operations, or ``None`` if their communicators may differ."""
    if min(len(reference), len(sequence)) < FEWEST_TO_DECIDE or max(reference.whole, sequence.whole) >= 0:
        return None
    indices = _ending_with(reference, sequence)
    if indices is None:
        moved = np.rint(_drift(reference.end, sequence.end) * sequence.end).astype(np.int64)
        indices = _ending_with(reference, replace(sequence, start=sequence.start + moved, end=sequence.end + moved))
    return indices


def _drift(reference: Times, ends: Times) -> float:
    """Return the rate of `clock_rates` if operations are missing: the densest slope over an eighth of the sequence."""
    count = min(len(reference), len(ends))
    lag, lost = count // 8, min(max(len(reference), len(ends)) - count + count // 10, _OPERATION_LIMIT)
    first = np.linspace(0, len(ends) - lag - 1, min(_SAMPLE, len(ends) - lag)).astype(np.int64)
    other = first[:, None] + np.arange(-lost, lost + 1)
    is_inside = (other >= 0) & (other + lag < len(reference))
    other = np.where(is_inside, other, 0)
    slopes = (reference[other + lag] - reference[other]) / np.maximum(ends[first + lag] - ends[first], 1)[:, None] - 1
    slopes = np.sort(slopes[is_inside & (np.abs(slopes) <= _MAX_RATE)])
    if not len(slopes):
        return 0.0
    counts = np.searchsorted(slopes, slopes + _SAME_RATE, side="right") - np.arange(len(slopes))
    return float(np.median(slopes[counts.argmax() :][: counts.max()]))


def _ending_with(reference: KernelSequence, sequence: KernelSequence) -> Times | None:
    """Return `_common` for clocks with a constant shift: of shifts that fit most operations, the smallest."""
    tolerance = max(_LEAST_TOLERANCE, _TOLERANCE * float(np.median(sequence.end - sequence.start)))
    sample = np.linspace(0, len(sequence) - 1, min(len(sequence), _SAMPLE)).astype(np.int64)
    is_same = sequence.collective[sample, None] == reference.collective
    shifts = np.sort((sequence.end[sample, None] - reference.end)[is_same])
    counts = np.searchsorted(shifts, shifts + _LEAST_TOLERANCE, side="right") - np.arange(len(shifts))
    candidates = np.flatnonzero(counts == counts.max(initial=0))
    if not len(candidates):
        return None
    first = candidates[np.abs(shifts[candidates]).argmin()]
    shift = int(np.median(shifts[first : first + counts[first]]))
    order = np.argsort(reference.end, kind="stable")
    ends = reference.end[order]
    after = np.clip(np.searchsorted(ends, sequence.end - shift), 1, len(ends) - 1)
    nearest = np.where(sequence.end - shift - ends[after - 1] < ends[after] - sequence.end + shift, after - 1, after)
    indices = order[nearest]
    is_common = np.abs(reference.end[indices] + shift - sequence.end) <= tolerance
    is_common &= reference.collective[indices] == sequence.collective
    is_common[1:] &= indices[1:] > np.maximum.accumulate(np.where(is_common, indices, NOT_COMMON))[:-1]
    rows = np.flatnonzero(is_common)
    if 2 * len(rows) < min(len(reference), len(sequence)):
        return None
    spans = (np.ptp(rows) + 1, np.ptp(indices[rows]) + 1)
    return np.where(is_common, indices, NOT_COMMON) if len(rows) >= _LEAST_COMMON * max(spans) else None


def _matched(family: Family) -> Iterator[MatchedCollectives]:
    """Yield a group for each set of members that share operations, the largest set first."""
    reference = family[0][0]
    rows = np.full((len(family), len(reference)), NOT_COMMON)
    for index, (_, indices) in enumerate(family):
        rows[index, indices[indices != NOT_COMMON]] = np.flatnonzero(indices != NOT_COMMON)
    sets, set_of = np.unique(rows != NOT_COMMON, axis=1, return_inverse=True)
    for number in np.argsort(-sets.sum(axis=0), kind="stable").tolist():
        operations = np.flatnonzero(set_of.ravel() == number)
        parts = [(family[index][0], rows[index, operations]) for index in np.flatnonzero(sets[:, number]).tolist()]
        yield MatchedCollectives(
            reference.communicator,
            tuple(sequence.member for sequence, _ in parts),
            reference.collective[operations],
            np.max([sequence.size[local] for sequence, local in parts], axis=0),
            np.stack([sequence.row[local] for sequence, local in parts]),
            np.stack([sequence.start[local] for sequence, local in parts]),
            np.stack([sequence.end[local] for sequence, local in parts]),
            max(sequence.ranks for sequence, _ in family),
            tuple(sequence.member for sequence, _ in family),
        )
