"""Collectives across ranks as a table: a row for each operation, or for each kind of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from nsystui.base.answer import Row, TableAnswer
from nsystui.base.columns import COLLECTIVE, START, Column, Unit
from nsystui.base.selection import Selection, Task
from nsystui.base.text import few
from nsystui.questions.collectives.matched import Matching
from nsystui.questions.collectives.sequences import UNKNOWN
from nsystui.questions.collectives.waiting import NOBODY, SYNCHRONOUS, Arrivals
from nsystui.questions.tasks import RankedTask

OPERATION_COLUMNS = (
    START,
    COLLECTIVE,
    Column("message_size", header="Message Size (B)", label="bytes", unit=Unit.BYTES, importance=2),
    Column("ranks", header="Ranks", label="ranks", unit=Unit.COUNT, importance=2),
    Column("late_rank", header="Late Rank", label="late rank", unit=Unit.NUMBER),
    Column("late_by", header="Late by (ns)", label="late by", unit=Unit.DURATION),
    Column("first_rank", header="First Rank", label="first rank", unit=Unit.NUMBER, importance=3),
    Column("start_spread", header="Start Spread (ns)", label="start spread", unit=Unit.DURATION, importance=3),
    Column("transfer", header="Transfer (ns)", label="transfer", unit=Unit.DURATION, importance=1),
    Column("duration", header="Longest Kernel (ns)", label="longest", unit=Unit.DURATION, importance=1),
    Column("waiting", header="Waiting of All (ns)", label="waiting of all", unit=Unit.DURATION, importance=2),
    Column("communicator", header="Communicator", label="communicator", importance=4),
    Column("number", header="Number", label="no.", unit=Unit.NUMBER, importance=5),
)
KIND_COLUMNS = (
    COLLECTIVE,
    Column("ranks", header="Ranks", label="ranks", unit=Unit.COUNT, importance=1),
    Column("operations", header="Operations", label="operations", unit=Unit.COUNT),
    Column("transfer", header="Transfer (ns)", label="transfer", unit=Unit.DURATION),
    Column("waiting", header="Mean Waiting (ns)", label="waiting", unit=Unit.DURATION, decimals=0),
    Column("waiting_percent", header="Waiting (%)", label="waiting %", unit=Unit.PERCENT, decimals=1),
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
    total = len(rows)
    if selection.name is not None:
        rows = [row for row in rows if selection.name.matches(str(row[1]))]
    rows.sort(key=lambda row: (row[0], row[-1]))
    return TableAnswer("collectives", OPERATION_COLUMNS, rows, total, tuple(_notes(numbers, matching)))


def collective_kinds(selection: Selection, ranks: Sequence[RankedTask], matching: Matching) -> TableAnswer:
    """A row for each collective of each communicator: what of its time was transfer and what waiting, and for whom.

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
    total = len(rows)
    if selection.name is not None:
        rows = [row for row in rows if selection.name.matches(str(row[0]))]
    rows.sort(key=lambda row: -float(row[4] or 0))
    return TableAnswer("collective-kinds", KIND_COLUMNS, rows, total, tuple(_notes(numbers, matching)))


def _arrivals(selection: Selection, matching: Matching) -> Iterator[Arrivals]:
    for group in matching.groups:
        if selection.tasks is None or any(member.task in selection.tasks for member in group.members):
            found = Arrivals.of(group, selection.window)
            if len(found.operations):
                yield found


def _notes(numbers: Mapping[Task, int], matching: Matching) -> Iterator[str]:
    yield (
        "late is who came last, by the durations: all kernels of a collective end together, so the shortest began last "
        "(among the ranks that are open)"
    )
    without = [numbers[member.task] for member in matching.unmatched if member.task in numbers]
    if without:
        yield f"not matched: the collectives of rank {few(without)} differ in number or order from those of the others"
    if not matching.groups:
        yield f"no two ranks have the same {', '.join(SYNCHRONOUS)} in common: open the exports of all ranks together"
