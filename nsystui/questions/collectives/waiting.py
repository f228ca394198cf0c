"""Who came late to a collective, and how long the others waited (docs/ranks.md#waiting).

All kernels of a synchronous collective end together, so the one that ran shortest began last: ``wait = duration − the
shortest duration``, whatever the clocks say. The shortest duration is the transfer; the rest of each kernel is waiting.
Only ranks that are open can be told apart: the true last one may be another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nsystui.base.selection import Task, Window
from nsystui.questions.collectives.matched import MatchedCollectives, Matrix
from nsystui.questions.intervals import Times

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
    """Which operations of the group these are, shape ``(n,)``."""
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
        """How long a member that was not last typically (median) waited at each operation, ns, shape ``(n,)``."""
        members = len(self.wait)
        # The last one waited 0: what is left after taking one 0 out are the others.
        others = np.sort(self.wait, axis=0)[1:]
        middle = (members - 2) // 2
        waited: Times = (others[middle] + others[members - 2 - middle]) // 2
        return waited


@dataclass(frozen=True)
class Lateness:
    """What a task has to do with waiting, over ``operations`` synchronous collectives that it took part in; times ns.

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
