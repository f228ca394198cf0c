"""Late ranks and waiting at collectives, by rank and as tables of operations and kinds (docs/ranks.md#waiting).

All kernels of a synchronous collective end together, so the one that ran shortest began last: ``wait = duration − the
shortest duration``, whatever the clocks say. The shortest duration is the transfer; the rest of each kernel is waiting.
Only the open ranks are compared: the true last one may be another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from nsystui.base.answer import COLLECTIVE, START, Column, Row, TableAnswer, Unit
from nsystui.base.selection import Selection, Task, Window
from nsystui.base.text import few_numbers
from nsystui.questions.algebra.intervals import Intervals, Times, subtract, union
from nsystui.questions.collectives.matching import UNKNOWN, MatchedCollectives, Matching, Matrix, Member
from nsystui.questions.queries.tasks import RankedTask

if TYPE_CHECKING:
    import pandas as pd

SYNCHRONOUS = ("AllReduce", "AllGather", "ReduceScatter", "AlltoAll")
"""Collectives in which every rank needs something of every other one."""

LEAST_LATENESS = 10_000
"""ns that the others must have waited, at least, for somebody to count as late …"""
LEAST_SHARE = 0.1
"""… and the share of the longest duration."""

NOBODY = -1


@dataclass(frozen=True, eq=False)
class Arrivals:
    """The arrivals at n synchronous operations of a communicator.

    ``wait`` (ns, shape ``(m, n)``): how long each member waited for the last; ``transfer`` (ns, ``(n,)``): the shortest
    duration; ``spread`` (ns, ``(n,)``): from the first arrival to the last, by durations; ``start_spread``: the same by
    the starts on the common clock; ``last`` (``(n,)``): the member that came last, ``NOBODY`` where they came nearly
    together.
    """

    group: MatchedCollectives
    operations: NDArray[np.int64]
    """The places of these operations in the group, shape ``(n,)``."""
    wait: Matrix
    transfer: Times
    spread: Times
    start_spread: Times
    last: Times

    @classmethod
    def of(cls, group: MatchedCollectives, window: Window | None = None) -> Arrivals:
        """The operations of a group that began in ``window``, or any."""
        is_told = np.isin(group.collective.astype(str), SYNCHRONOUS)
        if window is not None:
            first = group.start.min(axis=0)
            is_told &= (first >= window.start) & (first < window.end)
        chosen = np.flatnonzero(is_told)
        duration, start = group.duration[:, chosen], group.start[:, chosen]
        transfer = duration.min(axis=0) if len(chosen) else np.zeros(0, np.int64)
        wait = duration - transfer
        spread = wait.max(axis=0)
        is_late = (spread >= LEAST_LATENESS) & (spread >= LEAST_SHARE * duration.max(axis=0))
        last = np.where(is_late, duration.argmin(axis=0), NOBODY)
        return cls(group, chosen, wait, transfer, spread, start.max(axis=0) - start.min(axis=0), last)

    @property
    def first(self) -> Times:
        """The member that waited longest at each operation, shape ``(n,)``."""
        longest: Times = self.wait.argmax(axis=0)
        return longest

    @property
    def others_waited(self) -> Times:
        """The median wait of the members that were not last at each operation, ns, shape ``(n,)``."""
        members = len(self.wait)
        # The last one waited 0: what is left after taking one 0 out are the others.
        others = np.sort(self.wait, axis=0)[1:]
        middle = (members - 2) // 2
        waited: Times = (others[middle] + others[members - 2 - middle]) // 2
        return waited


@dataclass(frozen=True)
class Lateness:
    """The waiting of a task over the ``operations`` synchronous collectives that it took part in; times in ns.

    ``late``: how often it was the last; ``caused``: the sum of what a typical other rank waited then; ``suffered``:
    what it waited itself; ``transfer``: the rest of its time in these collectives; ``median_lateness``: of the
    operations where it was last, how long after the first it arrived (missing where it never was).
    """

    operations: int = 0
    late: int = 0
    caused: int = 0
    suffered: int = 0
    transfer: int = 0
    median_lateness: int | None = None


@dataclass
class _Sum:
    operations: int = 0
    late: int = 0
    caused: int = 0
    suffered: int = 0
    transfer: int = 0
    lateness: list[Times] = field(default_factory=list)

    def total(self) -> Lateness:
        late = np.concatenate(self.lateness) if self.lateness else np.zeros(0, np.int64)
        median = int(np.median(late)) if len(late) else None
        return Lateness(self.operations, self.late, self.caused, self.suffered, self.transfer, median)


def lateness(arrivals: Sequence[Arrivals]) -> Mapping[Task, Lateness]:
    """The lateness of every task that took part in a synchronous collective."""
    sums: dict[Task, _Sum] = {}
    for one in arrivals:
        if not len(one.operations):
            continue
        others = one.others_waited
        for place, member in enumerate(one.group.members):
            own = sums.setdefault(member.task, _Sum())
            is_last = one.last == place
            own.operations += len(one.operations)
            own.late += int(is_last.sum())
            own.caused += int(others[is_last].sum())
            own.suffered += int(one.wait[place].sum())
            own.transfer += int(one.transfer.sum())
            own.lateness.append(one.spread[is_last])
    return {task: own.total() for task, own in sums.items()}


def transfer_times(kernels: pd.DataFrame, matching: Matching) -> NDArray[np.float64]:
    """The transfer of the operation that each kernel of an `NcclPairing` belongs to, ns, shape ``(n,)``.

    It is the duration of the kernel of the last rank to arrive. NaN where not all ranks of the communicator are open
    (else the last one may be another), where that is not known, and of operations that are not synchronous.
    """
    import pandas as pd

    parts = [
        pd.DataFrame({"report": member.task.report, "row": rows, "transfer": one.transfer, "open": len(one.wait)})
        for one in (Arrivals.of(group) for group in matching.groups)
        for member, rows in zip(one.group.members, one.group.row[:, one.operations], strict=True)
    ]
    if not parts:
        return np.full(len(kernels), np.nan)
    told = pd.concat(parts, ignore_index=True).drop_duplicates(["report", "row"])
    found = kernels[["report", "row", "ranks"]].astype("Int64").merge(told, how="left", on=["report", "row"])
    is_whole = (found["open"] == found["ranks"]).fillna(False).to_numpy(bool)
    times: NDArray[np.float64] = np.where(is_whole, found["transfer"].to_numpy(np.float64, na_value=np.nan), np.nan)
    return times


def waits_and_transfers(arrivals: Sequence[Arrivals]) -> Mapping[Member, tuple[Intervals, Intervals]]:
    """When each member waited in its collectives for the last one to come, and when it transferred.

    The transfer is the end of each kernel. Where two kernels run at once and one transfers, that is no waiting.
    """
    edges: dict[Member, list[tuple[Times, Times, Times]]] = {}
    for one in arrivals:
        for member, start, end in zip(one.group.members, one.group.start, one.group.end, strict=True):
            ends = end[one.operations]
            edges.setdefault(member, []).append((start[one.operations], ends - one.transfer, ends))
    found = {}
    for member, own in edges.items():
        begins, middles, ends = map(np.concatenate, zip(*own, strict=True))
        transfers = union(middles, ends)
        found[member] = subtract(union(begins, middles), transfers), transfers
    return found


def last_to_arrive(matching: Matching, report: int, row: int) -> Member | None:
    """The member that came last at the operation of an NCCL kernel; ``None`` where nobody did, or it is not known."""
    for group in matching.groups:
        if report not in group.reports:
            continue
        places = [place for place, member in enumerate(group.members) if member.task.report == report]
        found = np.flatnonzero((group.row[places] == row).any(axis=0))
        if len(found):
            one = replace(
                group,
                **{name: getattr(group, name)[found[:1]] for name in ("collective", "size")},
                **{name: getattr(group, name)[:, found[:1]] for name in ("row", "start", "end")},
            )
            last = Arrivals.of(one).last
            return group.members[int(last[0])] if len(last) and last[0] != NOBODY else None
    return None


OPERATION_COLUMNS = (
    START,
    COLLECTIVE,
    Column("message_size", header="Message Size (B)", label="bytes", unit=Unit.BYTES, importance=2),
    Column("ranks", header="Ranks", label="ranks", unit=Unit.COUNT, importance=2),
    Column("late_rank", header="Late Rank", label="late rank", unit=Unit.NUMBER),
    Column("late_by", header="Late by (ns)", label="late by", unit=Unit.DURATION),
    Column("first_rank", header="First Rank", label="first rank", unit=Unit.NUMBER, importance=3),
    Column("start_spread", header="Start Spread (ns)", label="start spread", unit=Unit.DURATION, importance=3),
    Column("transfer", header="Transfer (ns)", label="transfer", unit=Unit.DURATION, compared="waiting", importance=1),
    Column("duration", header="Longest Kernel (ns)", label="longest", unit=Unit.DURATION, importance=1),
    Column("waiting", header="Waiting of All (ns)", label="waiting of all", unit=Unit.DURATION, importance=2),
    Column("communicator", header="Communicator", label="communicator", importance=4),
    Column("number", header="Number", label="no.", unit=Unit.NUMBER, importance=5),
)
KIND_COLUMNS = (
    COLLECTIVE,
    Column("ranks", header="Ranks", label="ranks", unit=Unit.COUNT, importance=1),
    Column("operations", header="Operations", label="operations", unit=Unit.COUNT),
    Column("transfer", header="Transfer (ns)", label="transfer", unit=Unit.DURATION, compared="waiting"),
    Column("waiting", header="Mean Waiting (ns)", label="waiting", unit=Unit.DURATION, decimals=0),
    Column("waiting_percent", header="Waiting (%)", label="waiting %", unit=Unit.PERCENT, decimals=1, has_bar=True),
    Column("late_by", header="Median Late by (ns)", label="late by", unit=Unit.DURATION, decimals=0, importance=1),
    Column("late", header="With Late Rank", label="with late", unit=Unit.COUNT, importance=1),
    Column("late_rank", header="Mostly Late Rank", label="late rank", unit=Unit.NUMBER),
    Column("late_count", header="Its Times", label="times", unit=Unit.COUNT),
    Column("communicator", header="Communicator", label="communicator", importance=4),
)


def collective_operations(selection: Selection, ranks: Sequence[RankedTask], matching: Matching) -> TableAnswer:
    """A row for each synchronous operation that several ranks have in common, by time.

    ``late_by`` is how much longer the kernel of the first rank to come ran, which waited longest, than that of the
    last; ``start_spread`` is the same by the common clock. ``waiting`` is summed over the ranks.
    """
    numbers = {item.task: item.rank for item in ranks}
    rows: list[Row] = []
    for one in _arrivals(selection, matching):
        group = one.group
        starts = group.start[:, one.operations].min(axis=0)
        longest = group.duration[:, one.operations].max(axis=0) if len(one.operations) else []
        waiting = one.wait.sum(axis=0)
        for place, operation in enumerate(one.operations.tolist()):
            last, size = int(one.last[place]), int(group.size[operation])
            rows.append(
                (
                    int(starts[place]),
                    str(group.collective[operation]),
                    None if size == UNKNOWN else size,
                    len(group.members),
                    None if last == NOBODY else numbers.get(group.members[last].task),
                    int(one.spread[place]),
                    None if last == NOBODY else numbers.get(group.members[int(one.first[place])].task),
                    int(one.start_spread[place]),
                    int(one.transfer[place]),
                    int(longest[place]),
                    int(waiting[place]),
                    group.communicator or None,
                    operation,
                )
            )
    answer = TableAnswer("collectives", OPERATION_COLUMNS, rows, len(rows), tuple(_notes(numbers, matching)))
    return _named(answer, selection).sorted_by("number", descending=False).sorted_by("start", descending=False)


def collective_kinds(selection: Selection, ranks: Sequence[RankedTask], matching: Matching) -> TableAnswer:
    """A row for each collective of each communicator: the transfer and the waiting in its time, and the late rank.

    ``transfer`` and ``waiting`` are those of one rank (the mean). They add up to the time of a rank in these kernels.
    """
    numbers = {item.task: item.rank for item in ranks}
    rows: list[Row] = []
    for one in _arrivals(selection, matching):
        kinds = one.group.collective[one.operations].astype(str)
        for kind in sorted(set(kinds.tolist())):
            chosen = kinds == kind
            waiting, transfer = float(one.wait[:, chosen].mean(axis=0).sum()), int(one.transfer[chosen].sum())
            last = one.last[chosen & (one.last != NOBODY)]
            often = np.bincount(last, minlength=1)
            member = one.group.members[int(often.argmax())]
            rows.append(
                (
                    kind,
                    len(one.group.members),
                    int(chosen.sum()),
                    transfer,
                    waiting,
                    100.0 * waiting / (waiting + transfer) if waiting + transfer else None,
                    float(np.median(one.spread[chosen])),
                    len(last),
                    numbers.get(member.task) if len(last) else None,
                    int(often.max()) if len(last) else None,
                    one.group.communicator or None,
                )
            )
    answer = TableAnswer("collective-kinds", KIND_COLUMNS, rows, len(rows), tuple(_notes(numbers, matching)))
    return _named(answer, selection).sorted_by("waiting", descending=True)


def _named(answer: TableAnswer, selection: Selection) -> TableAnswer:
    """The rows whose collective passes the name filter."""
    if selection.name is None:
        return answer
    wanted = selection.name
    is_named = [wanted.matches(str(name)) for name in answer.cells("collective")]
    return replace(answer, rows=list(compress(answer.rows, is_named)))


def _arrivals(selection: Selection, matching: Matching) -> Iterator[Arrivals]:
    for group in matching.groups:
        if selection.tasks is None or any(member.task in selection.tasks for member in group.members):
            found = Arrivals.of(group, selection.window)
            if len(found.operations):
                yield found


def _notes(numbers: Mapping[Task, int], matching: Matching) -> Iterator[str]:
    yield (
        "the late rank of a collective is the one with the shortest kernel: all of its kernels end together, so the "
        "shortest began last (among the ranks that are open)"
    )
    without = [numbers[member.task] for member in matching.unmatched if member.task in numbers]
    if without:
        whose = few_numbers(without)
        yield f"the collectives of rank {whose} are not matched: the other ranks differ in number or order"
    if not matching.groups:
        yield f"no two ranks share a collective ({', '.join(SYNCHRONOUS)}): open the exports of all ranks together"
