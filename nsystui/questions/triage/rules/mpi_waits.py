r"""Blocking MPI calls in which a GPU has nothing to do: |U(blocking calls) \ U(GPU work)| of a rank.

See docs/triage.md#collectives-and-communication.

Where a job has no GPU work at all, it is all time in these calls, and the mean over the ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import sqlalchemy as sa

from nsystui.base.answer import TableAnswer
from nsystui.base.columns import HOST, RANK, Column, Unit
from nsystui.base.selection import Task, Window
from nsystui.base.units import format_value
from nsystui.exports import canonical
from nsystui.questions.algebra.intervals import Intervals, subtract
from nsystui.questions.conditions import Condition, duration, job_end, job_start, where
from nsystui.questions.mpi import has_mpi, mpi_rows
from nsystui.questions.mpi_exchanges import Pair, exchanges
from nsystui.questions.tasks import RankedTask
from nsystui.questions.triage.case import Case, Spans, number_of, spans, time_words, worked_by
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity

_NAME = "mpi-waits"
_BLOCKING = (
    "MPI_(Wait|Probe|Mprobe|Recv|Mrecv|Send|Ssend|Rsend|Bsend|Sendrecv|Barrier|Bcast|Gather|Scatter|Allgather|"
    "Alltoall|Reduce|Allreduce|Scan|Exscan|Neighbor|File_(read|write)|Win_(fence|lock|unlock|wait|flush))"
)
"""The beginnings of the names of blocking calls. Starting and ending MPI is not waiting."""
_COLUMNS = (
    RANK,
    HOST.with_importance(2),
    Column("waited", header="Waited in MPI (ns)", label="waited in MPI", unit=Unit.DURATION),
    Column("inside", header="In Blocking Calls (ns)", label="in calls", unit=Unit.DURATION),
    Column("count", header="Blocking Calls", label="calls", unit=Unit.COUNT, importance=1),
    Column("name", header="Most Time In", label="most time in"),
    Column("exchange", header="Exchanging (ns)", label="exchanging", unit=Unit.DURATION, importance=1),
)

_ADVICE_OF_ONE = Advice(
    "open the exports of all ranks to see who comes last; overlap the calls (MPI_I…, GPU work in between)",
    "a rank in a blocking call launches nothing, so its GPU runs dry; how much of it is waiting the other ranks tell",
)


_FEWEST, _LONGER, _TOLD = 4, 3, 0.2
"""Of so many calls of a name the first one set something up, if it took so many times as long; told from this share."""


_SLOW, _ALIKE = 2.0, 2.0
"""A pair is slow whose rate is so many times lower than the median of those with messages of a like size."""
_PAIRS = 3

_SLOW_PAIR = Advice(
    "check the link between their GPUs (`nvidia-smi topo -m`: is there peer access?) and place ranks that exchange "
    "much on GPUs that are joined",
    "the messages of the other pairs are as large, and faster; the ranks that wait for this pair can do nothing",
)


class _Row(NamedTuple):
    rank: int
    host: str | None
    waited: int
    inside: int
    calls: int
    name: str | None
    exchange: int | None


def check(case: Case) -> Sequence[Finding | NotChecked]:
    if not has_mpi(case.job.session):
        return [NotChecked(_NAME, f"needs MPI calls: {canonical.MPI_CALLS.record}")]
    table, conditions = _calls(case)
    calls = spans(case, table, conditions)
    waited = {item: _waited(case, item, calls) for item in case.ranks}
    if not waited:
        return []
    on_gpus = len(case.devices) > 0
    judged = [item for item in waited if not on_gpus or item.devices]
    cost = round(sum(waited[item].length for item in judged) / max(len(judged), 1))
    if case.percent(cost) < case.thresholds.mpi_percent:
        return []
    pairs = exchanges(case.job.session, case.chosen)
    rows = _rows(case, table, conditions, waited, calls, pairs)
    least = min(judged, key=lambda item: (waited[item].length, item.rank))
    most = max(judged, key=lambda item: (waited[item].length, -item.rank))
    idle = " with nothing for their GPUs to do" if on_gpus else ""
    sentence = (
        f"ranks are in blocking MPI calls for {time_words(cost)} each{idle} ({number_of(calls.count, 'call')}, most "
        f"time in {max(rows, key=lambda row: row.waited).name})"
    )
    set_up = _set_up(case, table, conditions, waited)
    first = round(sum(time for time, *_ in set_up) / max(len(judged), 1))
    if first >= _TOLD * cost:
        _, name, length, usual = max(set_up)
        sentence += (
            f"; {time_words(first)} of it in first calls, which set up connections ({name} {time_words(length)}, later "
            f"{time_words(usual)})"
        )
    is_steady = case.percent(cost - first) >= case.thresholds.mpi_percent
    advice = _ADVICE_OF_ONE
    if least != most:
        sentence += (
            f"; rank {most.rank} longest ({time_words(waited[most].length)}), rank {least.rank} shortest "
            f"({time_words(waited[least].length)})"
        )
        advice = Advice(
            f"look at what rank {least.rank} does before these calls, then overlap them (MPI_I…, GPU work in between)",
            "who waits least comes last, and the others wait for it; what is left is the transfer itself",
        )
    slow = _slow_pair(pairs)
    if slow is not None:
        pair, usual = slow
        numbers = " and ".join(str(case.rank_of[task]) for task in pair.tasks)
        size = format_value(Unit.BYTES, round(pair.size))
        sentence += (
            f"; ranks {numbers} exchange messages of {size} at {_rate(pair.rate)}, the other pairs at {_rate(usual)}: "
            "the others wait for them"
        )
        advice = _SLOW_PAIR
    beside = " in which the GPU does nothing, from the first step on; mean over the ranks with a GPU" if on_gpus else ""
    measured = f"time inside blocking MPI calls, threads merged{beside or '; mean over the ranks'}"
    evidence = TableAnswer(_NAME, _COLUMNS, rows, len(rows))
    share, ranks = case.percent(cost), tuple(sorted(item.rank for item in judged if waited[item].length))
    door = Door("mpi")
    return [
        Finding(
            _NAME,
            Severity.WARNING if is_steady else Severity.INFO,
            sentence,
            advice,
            door,
            cost,
            share,
            measured,
            evidence,
            ranks=ranks,
        )
    ]


def _rate(rate: float) -> str:
    return format_value(Unit.RATE, rate)


def _slow_pair(pairs: Sequence[Pair]) -> tuple[Pair, float] | None:
    """The slowest pair, and the median rate of the others with messages of a like size, if it is far from that."""
    if len(pairs) < _PAIRS:
        return None
    slowest = min(pairs, key=lambda pair: pair.rate)
    alike = [one for one in pairs if one is not slowest and 1 / _ALIKE <= one.size / slowest.size <= _ALIKE]
    if len(alike) < _PAIRS - 1:
        return None
    usual = median(one.rate for one in alike)
    return (slowest, usual) if slowest.rate * _SLOW <= usual else None


def _calls(case: Case) -> tuple[sa.FromClause, list[Condition]]:
    """The rows of MPI calls, and the conditions for those that block."""
    rows = mpi_rows(case.job.session)
    return rows, [sa.func.regexp_matches(rows.c.name, f"^{_BLOCKING}", type_=sa.Boolean)]


def _waited(case: Case, item: RankedTask, calls: Spans) -> Intervals:
    window = case.windows[item.task.report]
    own = calls.of(item.task).clip(window.start, window.end)
    devices = [one for one in case.devices if one.device.task.task == item.task]
    if not devices or not len(own):
        return own
    start = min(case.working(one).start for one in devices)
    own = own.clip(start, window.end)
    return subtract(own, worked_by(devices, Window(start, window.end)))


def _set_up(
    case: Case, table: sa.FromClause, conditions: list[Condition], waited: dict[RankedTask, Intervals]
) -> list[tuple[int, str, int, float]]:
    """What the first call of each name of a rank waits for longer than later ones do: that, name, length, usual; ns."""
    start, end = job_start(table), job_end(table)
    query = (
        sa.select(
            table.c.report, table.c.process, table.c.name, sa.func.min(start), sa.func.arg_min(end, start),
            sa.func.median(end - start),
        )
        .where(*where(table, case.chosen), *conditions, table.c.end.is_not(None))
        .group_by(table.c.report, table.c.process, table.c.name)
        .having(sa.func.count() >= _FEWEST)
    )  # fmt: skip
    own = {item.task: times for item, times in waited.items()}
    found = []
    for report, process, name, begin, until, usual in case.job.session.rows(query):
        task = Task(report, process)
        if task in own and until - begin >= _LONGER * usual:
            extra = own[task].clip(int(begin) + round(usual), int(until)).length
            found.append((extra, str(name), int(until - begin), float(usual)))
    return found


def _rows(
    case: Case,
    table: sa.FromClause,
    conditions: list[Condition],
    waited: dict[RankedTask, Intervals],
    calls: Spans,
    pairs: Sequence[Pair],
) -> list[_Row]:
    """By rank: who exchanges longest first, as the others wait for it; where that is not known, who waits longest."""
    spent: Counter[Task] = Counter()
    for pair in pairs:
        for task in pair.tasks:
            spent[task] += pair.time
    query = (
        sa.select(table.c.report, table.c.process, table.c.name, sa.func.count(), sa.func.sum(duration(table)))
        .where(*where(table, case.chosen), *conditions, table.c.end.is_not(None))
        .group_by(table.c.report, table.c.process, table.c.name)
    )
    named: dict[tuple[int, int], list[tuple[int, str, int]]] = {}
    for report, process, name, count, time in case.job.session.rows(query):
        named.setdefault((report, process), []).append((int(time or 0), str(name), int(count)))
    rows: list[_Row] = []
    for item, own in waited.items():
        names = named.get((item.task.report, item.task.process), [])
        most = max(names)[1] if names else None
        count = sum(count for _, _, count in names)
        inside, exchange = calls.of(item.task).length, spent.get(item.task)
        rows.append(_Row(item.rank, item.host or None, own.length, inside, count, most, exchange))
    return sorted(rows, key=lambda row: (-(row.exchange or 0), -row.waited, row.rank))
