"""Late ranks and waiting at collectives, by rank and as tables of operations and kinds (docs/ranks.md#waiting).

All kernels of a synchronous collective end together, so the shortest began last: ``wait = duration − the shortest
duration``, whatever the clocks say. The shortest duration is the transfer; the rest of each kernel is waiting. Only
open ranks are compared: another rank may have been later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np

from nsystui.base.answer import COLLECTIVE, START, Column, Row, TableAnswer, Unit
from nsystui.base.selection import Selection, Task, Window
from nsystui.base.text import few_numbers
from nsystui.base.types import Floats, Ints
from nsystui.questions.algebra.intervals import Intervals, Times, subtract, union
from nsystui.questions.collectives.matching import UNKNOWN, MatchedCollectives, Matching, Matrix, Member
from nsystui.questions.nccl.verdict import VERDICT, Together, verdict
from nsystui.questions.queries.tasks import RankedTask

if TYPE_CHECKING:
    import pandas as pd

SYNCHRONOUS = ("AllReduce", "AllGather", "ReduceScatter", "AlltoAll")
"""Collectives in which every rank needs something of every other rank."""

LEAST_LATENESS = 10_000
"""The last rank is late if another rank waited at least this long, ns …"""
LEAST_SHARE = 0.1
"""… and at least this share of the longest duration."""
_TOGETHER, _NEARLY_ALL = 0.1, 0.9
"""Tasks arrive together if they wait at most this share of the delay, at this share of the operations."""

NOBODY = -1


@dataclass(frozen=True, eq=False)
class Arrivals:
    """The arrivals at n synchronous operations of a communicator.

    ``wait`` (ns, shape ``(m, n)``): each member's wait for the last; ``transfer`` (ns, ``(n,)``): the shortest
    duration; ``spread`` (ns, ``(n,)``): from the first arrival to the last, by durations; ``start_spread``: the same by
    starts on the common clock; ``last`` (``(n,)``): the last member, ``NOBODY`` if all arrived nearly together.
    """

    group: MatchedCollectives
    operations: Ints  # the indices of these operations in the group, shape ``(n,)``
    wait: Matrix
    transfer: Times
    spread: Times
    start_spread: Times
    last: Times

    @classmethod
    def of(cls, group: MatchedCollectives, window: Window | None = None) -> Arrivals:
        """Return the arrivals at the operations of a group that began in ``window``, if given."""
        is_selected = np.isin(group.collective.astype(str), SYNCHRONOUS)
        if window is not None:
            first = group.start.min(axis=0)
            is_selected &= (first >= window.start) & (first < window.end)
        operations = np.flatnonzero(is_selected)
        duration, start = group.duration[:, operations], group.start[:, operations]
        transfer = duration.min(axis=0) if len(operations) else np.zeros(0, np.int64)
        wait = duration - transfer
        spread = wait.max(axis=0)
        is_late = (spread >= LEAST_LATENESS) & (spread >= LEAST_SHARE * duration.max(axis=0))
        last = np.where(is_late, duration.argmin(axis=0), NOBODY)
        return cls(group, operations, wait, transfer, spread, start.max(axis=0) - start.min(axis=0), last)

    def cells(self, numbers: Mapping[Task, int], is_complete: bool = True) -> tuple[Floats, ...]:
        """Return start, time of all members, transfer of all members and last rank for `verdict`, shapes ``(n,)``.

        The transfer is NaN unless the group ``is_complete``.
        """
        ranks = [*(numbers.get(member.task, np.nan) for member in self.group.members), np.nan]
        last = np.array(ranks, float)[self.last]
        transfer = len(self.wait) * self.transfer.astype(float)
        start, time = self.group.start[:, self.operations].min(axis=0).astype(float), transfer + self.wait.sum(axis=0)
        return start, time, transfer if is_complete else np.full(len(time), np.nan), last

    @property
    def others_waited(self) -> Times:
        """The median wait of members except the last at each operation, ns, shape ``(n,)``."""
        members = len(self.wait)
        # The last member waited 0: exclude one zero, and the waits of the others remain.
        waits = np.sort(self.wait, axis=0)[1:]
        middle = (members - 2) // 2
        waited: Times = (waits[middle] + waits[members - 2 - middle]) // 2
        return waited


@dataclass(frozen=True)
class Lateness:
    """The waiting of a task over the ``operations`` synchronous collectives that it took part in; times in ns.

    ``late``: in how many it was last; ``caused``: the sum of the other ranks' median waits in these; ``suffered``: the
    sum of its own waits; ``transfer``: the sum of the transfers; ``median_lateness``: its median delay after the first
    rank when it was last (``None`` if never).
    """

    operations: int = 0
    late: int = 0
    caused: int = 0
    suffered: int = 0
    transfer: int = 0
    median_lateness: int | None = None


def lateness(arrivals: Sequence[Arrivals]) -> Mapping[Task, Lateness]:
    """Return the lateness of each task with synchronous collectives."""
    sums, delays = defaultdict[Task, list[tuple[int, ...]]](list), defaultdict[Task, list[Times]](list)
    for batch in (batch for batch in arrivals if len(batch.operations)):
        others_waited = batch.others_waited
        for index, member in enumerate(batch.group.members):
            is_last = batch.last == index
            times = (is_last, others_waited[is_last], batch.wait[index], batch.transfer)
            sums[member.task].append((len(is_last), *(int(part.sum()) for part in times)))
            delays[member.task].append(batch.spread[is_last])
    medians = {task: int(np.median(late)) for task, parts in delays.items() if len(late := np.concatenate(parts))}
    totals = {task: Lateness(*map(sum, zip(*parts, strict=True))) for task, parts in sums.items()}
    return {task: replace(total, median_lateness=medians.get(task)) for task, total in totals.items()}


def mainly_late(lateness_by_task: Mapping[Task, Lateness]) -> Task | None:
    """Return the task that causes half of all waiting or more, if any."""
    caused = {task: late.caused for task, late in lateness_by_task.items()}
    task = max(caused, key=lambda task: caused[task], default=None)
    return task if task is not None and 0 < sum(caused.values()) <= 2 * caused[task] else None


def late_together(arrivals: Sequence[Arrivals]) -> list[tuple[Task, ...]]:
    """Return the tasks that are last, those together that arrive within `_TOGETHER` of the delay nearly every time."""
    tasks = sorted({member.task for batch in arrivals for member in batch.group.members})
    numbers = {task: number for number, task in enumerate(tasks)}
    last, near = np.zeros(len(tasks), np.int64), np.zeros((len(tasks), len(tasks)), np.int64)
    for batch in arrivals:
        members = [numbers[member.task] for member in batch.group.members]
        is_near = batch.wait <= _TOGETHER * batch.spread
        for index in np.unique(batch.last[batch.last != NOBODY]).tolist():
            is_last = batch.last == index
            last[members[index]] += is_last.sum()
            np.add.at(near[members[index]], members, is_near[:, is_last].sum(axis=1))
    is_together = near + near.T >= _NEARLY_ALL * (last[:, None] + last)
    groups, is_free = [], np.ones(len(tasks), bool)
    for number in np.flatnonzero(last).tolist():
        if is_free[number]:
            group = is_together[number] & is_free
            is_free &= ~group
            groups.append(tuple(tasks[other] for other in np.flatnonzero(group).tolist()))
    return groups


def late_ranks(arrivals: Sequence[Arrivals], numbers: Mapping[Task, int]) -> Together:
    """Return the ranks of `late_together` by each of them."""
    groups = [sorted(numbers[task] for task in tasks if task in numbers) for tasks in late_together(arrivals)]
    return {rank: group for group in groups for rank in group}


def transfer_times(kernels: pd.DataFrame, matching: Matching, ranks: Sequence[RankedTask]) -> dict[str, Floats]:
    """Return ``transfer`` (ns) and ``last`` rank of each kernel's operation in an `NcclPairing`, shapes ``(n,)``.

    The transfer is the duration of the last rank's kernel. Both are NaN unless the operation is synchronous and all
    ranks of the communicator are known to be open (otherwise another rank may be the last), ``last`` also if nobody is.
    """
    import pandas as pd

    numbers = {item.task: item.rank for item in ranks}
    parts = []
    for group in matching.groups:
        batch, size = Arrivals.of(group), len(group.members)
        last = batch.cells(numbers)[3]
        shared = {"transfer": batch.transfer, "last": last, "open": size, "is_complete": matching.is_complete(group)}
        parts += [
            pd.DataFrame({"report": member.task.report, "row": rows, **shared})
            for member, rows in zip(group.members, group.row[:, batch.operations], strict=True)
        ]
    if not parts:
        return {key: np.full(len(kernels), np.nan) for key in ("transfer", "last")}
    transfers = pd.concat(parts, ignore_index=True).drop_duplicates(["report", "row"])
    merged = kernels[["report", "row", "ranks"]].astype("Int64").merge(transfers, how="left", on=["report", "row"])
    is_complete = (merged["open"] == merged["ranks"]).fillna(merged["is_complete"])
    is_known = is_complete.fillna(False).to_numpy(bool)
    columns = {key: merged[key].to_numpy(np.float64, na_value=np.nan) for key in ("transfer", "last")}
    return {key: np.where(is_known, values, np.nan) for key, values in columns.items()}


def waits_and_transfers(arrivals: Sequence[Arrivals]) -> Mapping[Member, tuple[Intervals, Intervals]]:
    """Return when each member waited for the last to arrive, and when it transferred.

    A kernel's transfer is its last part. A member does not wait while any of its kernels transfers.
    """
    edges: dict[Member, list[tuple[Times, Times, Times]]] = {}
    for batch in arrivals:
        for member, start, end in zip(batch.group.members, batch.group.start, batch.group.end, strict=True):
            ends = end[batch.operations]
            edges.setdefault(member, []).append((start[batch.operations], ends - batch.transfer, ends))
    times_by_member = {}
    for member, member_edges in edges.items():
        begins, middles, ends = map(np.concatenate, zip(*member_edges, strict=True))
        transfers = union(middles, ends)
        times_by_member[member] = subtract(union(begins, middles), transfers), transfers
    return times_by_member


def last_to_arrive(matching: Matching, report: int, row: int) -> Member | None:
    """Return the member that arrived last at an NCCL kernel's operation, or ``None`` if nobody or unknown."""
    for group in matching.groups:
        if report not in group.reports:
            continue
        members = [index for index, member in enumerate(group.members) if member.task.report == report]
        operations = np.flatnonzero((group.row[members] == row).any(axis=0))
        if len(operations):
            arrivals = Arrivals.of(group)
            last = arrivals.last[arrivals.operations == operations[0]]
            return group.members[int(last[0])] if len(last) and last[0] != NOBODY else None
    return None


OPERATION_COLUMNS = (
    START, COLLECTIVE, Column("message_size", header="Message Size (B)", label="bytes", unit=Unit.BYTES, importance=2),
    Column("ranks", header="Ranks", label="ranks", unit=Unit.COUNT, importance=2),
    Column("late_rank", header="Late Rank", label="late rank", unit=Unit.NUMBER),
    Column("late_by", header="Late by (ns)", label="late by", unit=Unit.DURATION),
    Column("first_rank", header="First Rank", label="first rank", unit=Unit.NUMBER, importance=3),
    Column("start_spread", header="Start Spread (ns)", label="start spread", unit=Unit.DURATION, importance=3),
    Column("transfer", header="Transfer (ns)", label="transfer", unit=Unit.DURATION, compared="waiting", importance=1),
    VERDICT, Column("duration", header="Longest Kernel (ns)", label="longest", unit=Unit.DURATION, importance=1),
    Column("waiting", header="Waiting of All (ns)", label="waiting of all", unit=Unit.DURATION, importance=2),
    Column("communicator", header="Communicator", label="communicator", importance=4),
    Column("number", header="Number", label="no.", unit=Unit.NUMBER, importance=5),
)  # fmt: skip
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
    VERDICT,
    Column("communicator", header="Communicator", label="communicator", importance=4),
)


def collective_operations(selection: Selection, ranks: Sequence[RankedTask], matching: Matching) -> TableAnswer:
    """Tabulate the synchronous operations that several ranks share, by time.

    ``late_by``: how much longer the kernel of the first rank, which waited longest, ran than the last rank's;
    ``start_spread``: the same by the common clock. ``waiting`` is the sum over the ranks.
    """
    numbers = {item.task: item.rank for item in ranks}
    rows: list[Row] = []
    for batch in _arrivals(selection, matching):
        group, operations = batch.group, batch.operations
        ranks_of_members = [*(numbers.get(member.task) for member in group.members), None]  # `NOBODY` is the last
        first = np.where(batch.last == NOBODY, NOBODY, batch.wait.argmax(axis=0))
        late_rank, first_rank = ([ranks_of_members[index] for index in who.tolist()] for who in (batch.last, first))
        judged = np.stack(batch.cells(numbers, matching.is_complete(group)))
        verdicts = [verdict(0, {}, *cells[:, np.newaxis]).partition(":")[0] for cells in judged.T]
        sizes = [None if size == UNKNOWN else size for size in group.size[operations].tolist()]
        start, longest = group.start[:, operations].min(axis=0), group.duration[:, operations].max(axis=0)
        times = (start, batch.spread, batch.start_spread, batch.transfer, longest, batch.wait.sum(axis=0))
        start_time, spread, start_spread, transfer, duration, waiting = (column.tolist() for column in times)
        rows += zip(
            *(start_time, group.collective[operations].tolist(), sizes, repeat(len(group.members)), late_rank, spread),
            *(first_rank, start_spread, transfer, verdicts, duration, waiting),
            *(repeat(group.communicator or None), operations.tolist()),
            strict=False,
        )
    answer = TableAnswer("collectives", OPERATION_COLUMNS, rows, len(rows))
    return (
        _shown(answer, selection, numbers, matching)
        .sorted_by("number", descending=False)
        .sorted_by("start", descending=False)
    )


def collective_kinds(selection: Selection, ranks: Sequence[RankedTask], matching: Matching) -> TableAnswer:
    """Tabulate each collective of each communicator: its transfer, its waiting, and the late rank.

    ``transfer`` and ``waiting`` are means over the ranks, and add up to the mean time in these kernels.
    """
    numbers = {item.task: item.rank for item in ranks}
    rows: list[Row] = []
    together = late_ranks(batches := [*_arrivals(selection, matching)], numbers)
    for batch in batches:
        kinds = batch.group.collective[batch.operations].astype(str)
        for kind in sorted(set(kinds.tolist())):
            is_kind = kinds == kind
            cells = batch.cells(numbers, matching.is_complete(batch.group))
            waiting, transfer = (float(batch.wait[:, is_kind].mean(axis=0).sum()), int(batch.transfer[is_kind].sum()))
            last = batch.last[is_kind & (batch.last != NOBODY)]
            late_counts = np.bincount(last, minlength=1)
            member = batch.group.members[int(late_counts.argmax())]
            share = 100.0 * waiting / (waiting + transfer) if waiting + transfer else None
            late = (numbers.get(member.task), int(late_counts.max())) if len(last) else (None, None)
            spread = float(np.median(batch.spread[is_kind]))
            judged = verdict(len(batch.group.members), together, *(column[is_kind] for column in cells))
            counts = (len(batch.group.members), int(is_kind.sum()))
            communicator = batch.group.communicator or None
            rows.append((kind, *counts, transfer, waiting, share, spread, len(last), *late, judged, communicator))
    answer = TableAnswer("collective-kinds", KIND_COLUMNS, rows, len(rows))
    return _shown(answer, selection, numbers, matching).sorted_by("waiting", descending=True)


def _shown(answer: TableAnswer, selection: Selection, numbers: Mapping[Task, int], matching: Matching) -> TableAnswer:
    rows, name = answer.rows, selection.name
    if name is not None:
        rows = [row for row, text in zip(rows, answer.cells("collective"), strict=True) if name.matches(str(text))]
    return replace(answer, rows=rows, notes=tuple(_notes(numbers, matching, bool(rows))))


def _arrivals(selection: Selection, matching: Matching) -> Iterator[Arrivals]:
    for group in matching.groups:
        if selection.tasks is None or any(member.task in selection.tasks for member in group.members):
            arrivals = Arrivals.of(group, selection.window)
            if len(arrivals.operations):
                yield arrivals


def _notes(numbers: Mapping[Task, int], matching: Matching, has_rows: bool) -> Iterator[str]:
    if has_rows:
        yield (
            "the late rank of a collective is the one with the shortest kernel: all of its kernels end together, so "
            "the shortest began last (among the ranks that are open)"
        )
    without = [numbers[member.task] for member in matching.unmatched if member.task in numbers]
    if without and len(numbers) > 1:
        ranks = few_numbers(without)
        yield f"the collectives of rank {ranks} are not matched: other ranks ran another number or order of collectives"
    kinds = ", ".join(SYNCHRONOUS)
    if matching.groups and not has_rows:
        yield "no collective that ranks share is in the selection"
    elif without and not matching.groups:
        yield f"no two ranks share a collective ({kinds}): open the exports of all ranks together"
    elif not matching.groups:
        yield f"no kernel of a collective ({kinds}) of NCCL was recorded"
