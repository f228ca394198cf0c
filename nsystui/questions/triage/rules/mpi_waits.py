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

from nsystui.base.answer import HOST, RANK, Column, TableAnswer, Unit
from nsystui.base.selection import Task, Window
from nsystui.base.units import format_value
from nsystui.exports import canonical
from nsystui.questions.algebra.intervals import EMPTY, Intervals, intersect, subtract
from nsystui.questions.host.mpi_exchanges import Pair, exchanges
from nsystui.questions.queries.conditions import Condition, duration, job_end, job_start, where
from nsystui.questions.queries.mpi import has_mpi, mpi_rows
from nsystui.questions.queries.tasks import RankedTask
from nsystui.questions.triage.case import Case, Spans, by_place, number_of, spans, time_words, worked_by
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
    "a rank in a blocking call launches nothing, so its GPU runs dry; only the exports of the other ranks tell how "
    "much of that is waiting",
)
_ADVICE_OF_ALL = Advice(
    "overlap the calls (MPI_I…, GPU work in between)",
    "a rank in a blocking call launches nothing, so its GPU runs dry; all wait about as long, so none comes last",
)
_FEWEST, _LONGER = 4, 10
"""Of so many calls the leading ones set connections up that each take so many times the median."""
_SPREAD = 0.1
"""Ranks wait alike whose waits differ by a smaller share: none of them is late."""
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
    idle = " with nothing for their GPUs to do" if on_gpus else ""
    sentence = (
        f"ranks are in blocking MPI calls for {time_words(cost)} each{idle} ({number_of(calls.count, 'call')}, most "
        f"time in {max(rows, key=lambda row: row.waited).name})"
    )
    leading = _leading(case, table, conditions)
    extra = by_place((one.task, 0, one.start + round(usual), one.end) for one, usual in leading.items())
    set_up = {item: intersect(waited[item], extra.get((item.task, 0), EMPTY)).length for item in judged}
    first = round(sum(set_up.values()) / max(len(judged), 1))
    if first:
        longest = max(leading, key=lambda one: (one.end - one.start, one))
        sentence += (
            f"; {time_words(first)} of it in {number_of(len(leading), 'first call')}, which set up connections "
            f"({longest.name} {time_words(longest.end - longest.start)}, usually {time_words(leading[longest])})"
        )
    is_steady = case.percent(cost - first) >= case.thresholds.mpi_percent
    advice = _ADVICE_OF_ONE if len(judged) == 1 else _ADVICE_OF_ALL
    later = {item: waited[item].length - set_up[item] for item in judged}
    least = min(judged, key=lambda item: (later[item], item.rank))
    most = max(judged, key=lambda item: (later[item], -item.rank))
    if later[most] - later[least] > _SPREAD * later[most]:
        sentence += (
            f"; {'in later calls ' if first else ''}rank {most.rank} longest ({time_words(later[most])}), rank "
            f"{least.rank} shortest ({time_words(later[least])})"
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
    devices = [one for one in case.devices if item.task in one.tasks]
    if not devices or not len(own):
        return own
    start = min(case.working(one).start for one in devices)
    own = own.clip(start, window.end)
    return subtract(own, worked_by(devices, Window(start, window.end)))


class _Call(NamedTuple):
    task: Task
    name: str
    start: int
    end: int


def _leading(case: Case, table: sa.FromClause, conditions: list[Condition]) -> dict[_Call, float]:
    """The first calls of a name, or of one with a peer, as far as each takes many times the median: that, ns."""
    start, end = job_start(table), job_end(table)
    chosen = [*where(table, case.chosen), *conditions, table.c.end.is_not(None)]
    names = ("report", "process", "name")
    found: dict[_Call, float] = {}
    for keys in (names, (*names, "remote_rank")):
        places = [table.c[key] for key in keys]
        medians = sa.select(*places, sa.func.median(end - start).label("usual")).where(*chosen).group_by(*places)
        group = medians.having(sa.func.count() >= _FEWEST).cte("medians")
        until = sa.func.min(start).filter(end - start < _LONGER * group.c.usual).label("until")
        is_own = sa.and_(*(table.c[key] == group.c[key] for key in keys))
        ended = sa.select(*group.c, until).join_from(table, group, is_own).where(*chosen).group_by(*group.c)
        first = ended.cte("first")
        query = (
            sa.select(*(table.c[key] for key in names), start, end, first.c.usual)
            .join_from(table, first, sa.and_(*(table.c[key] == first.c[key] for key in keys)))
            .where(*chosen, start < first.c.until)
        )
        for report, process, name, begin, done, usual in case.job.session.rows(query):
            found[_Call(Task(report, process), name, begin, done)] = float(usual)
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
