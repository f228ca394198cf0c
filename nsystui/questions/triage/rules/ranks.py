"""Ranks compared: waits in MPI, different work, slow hosts and places in a host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import DEVICE, HOST, RANK, Column, Row, Unit
from nsystui.base.selection import Task, Window
from nsystui.base.text import counted
from nsystui.base.units import format_value
from nsystui.exports import canonical
from nsystui.questions.algebra.intervals import EMPTY, Intervals, intersect, subtract
from nsystui.questions.host.mpi_exchanges import Pair, exchanges
from nsystui.questions.queries.conditions import Condition, duration, job_end, job_start, where
from nsystui.questions.queries.mpi import has_mpi, mpi_rows
from nsystui.questions.queries.tasks import RankedTask
from nsystui.questions.queries.time_window import shares_clock
from nsystui.questions.triage.case import (  # fmt: skip
    Case,
    Spans,
    by_place,
    bytes_words,
    rank_words,
    spans,
    time_words,
    worked_by,
)
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.questions.triage.kernel_times import FEWEST, Kernel, KernelLaunches, kernel_launches
from nsystui.questions.triage.rule import BY_COMMUNICATION, BY_CPU, WORK, FindingKind, rule
from nsystui.store import tables

_BLOCKING = (
    "MPI_(Wait|Probe|Mprobe|Recv|Mrecv|Send|Ssend|Rsend|Bsend|Sendrecv|Barrier|Bcast|Gather|Scatter|Allgather|"
    "Alltoall|Reduce|Allreduce|Scan|Exscan|Neighbor|File_(read|write)|Win_(fence|lock|unlock|wait|flush))"
)
"""The beginnings of the names of blocking calls. Starting and ending MPI is not waiting."""
_MPI_WAITS_COLUMNS = (
    RANK,
    HOST.with_importance(2),
    Column("waited", header="Waited in MPI (ns)", label="waited in MPI", unit=Unit.DURATION),
    Column("inside", header="In Blocking Calls (ns)", label="in calls", unit=Unit.DURATION),
    Column("count", header="Blocking Calls", label="calls", unit=Unit.COUNT, importance=1),
    Column("name", header="Most Time In", label="most time in"),
    Column("exchange", header="Exchanging (ns)", label="exchanging", unit=Unit.DURATION, importance=1),
)

_ADVICE_OF_ONE = Advice(
    "Open the exports of all ranks to see which rank arrives last. Overlap the calls (MPI_I…, GPU work in between).",
    "A rank in a blocking call launches nothing, so its GPU idles. Only the exports of the other ranks show how much "
    "of the time is waiting.",
)
_ADVICE_OF_ALL = Advice(
    "Overlap the calls (MPI_I…, GPU work in between).",
    "A rank in a blocking call launches nothing, so its GPU idles. All ranks wait about equally long, so none is late.",
)
_FEWEST, _LONGER = 4, 10
"""Of at least so many calls, the leading calls that each take so many times the median set up connections."""
_SPREAD = 0.1
"""Ranks wait alike if their waits differ by a smaller share: none of them is late."""
_SLOW, _ALIKE = 2.0, 2.0
"""A pair is slow if its rate is so many times lower than the median of the pairs with messages of similar size."""
_PAIRS = 3

_SLOW_PAIR = Advice(
    "Check the link and the peer access between the GPUs of this pair (`nvidia-smi topo -m`). Place ranks that "
    "exchange large messages on linked GPUs.",
    "The other pairs exchange messages of similar size faster, and then wait for this pair.",
)


class _MpiWaitsRow(NamedTuple):
    rank: int
    host: str | None
    waited: int
    inside: int
    calls: int
    name: str | None
    exchange: int | None


@rule(
    300,
    reads=WORK | {"mpi_calls", "nvtx_ranges", "api_calls"},
    finds={"mpi-waits": FindingKind("blocking MPI calls", parts=BY_CPU)},
)
def mpi_waits(case: Case) -> Sequence[Finding | NotChecked]:
    r"""Blocking MPI calls in which a GPU has nothing to do: |U(blocking calls) \ U(GPU work)| of a rank.

    See docs/triage.md#collectives-and-communication.

    In a job without GPU work, the cost is all time in these calls, as the mean over the ranks.
    """
    if not has_mpi(case.job.session):
        return [NotChecked("mpi-waits", f"needs MPI calls: {case.record(canonical.MPI_CALLS)}")]
    table = mpi_rows(case.job.session)
    conditions: list[Condition] = [sa.func.regexp_matches(table.c.name, f"^{_BLOCKING}", type_=sa.Boolean)]
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
    sentence = (
        f"Blocking MPI calls {'leave the GPU idle for' if on_gpus else 'take'} {time_words(cost)} per rank "
        f"({counted(calls.count, 'call')}, most time in {max(rows, key=lambda row: row.waited).name})."
    )
    leading = _leading(case, table, conditions)
    extra = by_place((one.task, 0, one.start + round(usual), one.end) for one, usual in leading.items())
    set_up = {item: intersect(waited[item], extra.get((item.task, 0), EMPTY)).length for item in judged}
    first = round(sum(set_up.values()) / max(len(judged), 1))
    if first:
        longest = max(leading, key=lambda one: (one.end - one.start, one))
        sentence += (
            f" Connection setup takes {time_words(first)} of this in {counted(len(leading), 'first call')} "
            f"({longest.name} {time_words(longest.end - longest.start)}, usually {time_words(leading[longest])})."
        )
    is_steady = case.percent(cost - first) >= case.thresholds.mpi_percent
    advice = _ADVICE_OF_ONE if len(judged) == 1 else _ADVICE_OF_ALL
    later = {item: waited[item].length - set_up[item] for item in judged}
    least = min(judged, key=lambda item: (later[item], item.rank))
    most = max(judged, key=lambda item: (later[item], -item.rank))
    if later[most] - later[least] > _SPREAD * later[most]:
        sentence += (
            f" {'In later calls, rank' if first else 'Rank'} {most.rank} waits longest ({time_words(later[most])}), "
            f"rank {least.rank} shortest ({time_words(later[least])})."
        )
        advice = Advice(
            f"Look at what rank {least.rank} does before these calls. Then overlap them (MPI_I…, GPU work in between).",
            "The rank that waits least arrives last, and the other ranks wait for it. The rest is the transfer itself.",
        )
    slow = _slow_pair(pairs)
    if slow is not None:
        pair, usual = slow
        numbers = " and ".join(str(case.rank_of[task]) for task in pair.tasks)
        rate, others = (format_value(Unit.RATE, one) for one in (pair.rate, usual))
        sentence += (
            f" Ranks {numbers} exchange messages of {bytes_words(round(pair.size))} at {rate}, the other pairs at "
            f"{others}. The other ranks wait for this pair."
        )
        advice = _SLOW_PAIR
    when, with_gpu = (" while the GPU is idle, in the steady state", " with a GPU") if on_gpus else ("", "")
    measured = f"Time in blocking MPI calls (threads merged){when}. The mean is over the ranks{with_gpu}."
    ranks = tuple(sorted(item.rank for item in judged if waited[item].length))
    evidence, severity = (_MPI_WAITS_COLUMNS, rows), Severity.WARNING if is_steady else Severity.INFO
    return [case.finding("mpi-waits", sentence, advice, Door("mpi"), cost, measured, evidence, severity, ranks=ranks)]


def _slow_pair(pairs: Sequence[Pair]) -> tuple[Pair, float] | None:
    """The slowest pair and the median rate of the pairs with messages of similar size, if the pair is far slower."""
    if len(pairs) < _PAIRS:
        return None
    slowest = min(pairs, key=lambda pair: pair.rate)
    alike = [one for one in pairs if one is not slowest and 1 / _ALIKE <= one.size / slowest.size <= _ALIKE]
    if len(alike) < _PAIRS - 1:
        return None
    usual = median(one.rate for one in alike)
    return (slowest, usual) if slowest.rate * _SLOW <= usual else None


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
    """The leading calls of a name, or of a name with a peer, that each take many times the median; that median, ns."""
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
) -> list[_MpiWaitsRow]:
    """By rank: the longest exchange first, as the others wait for it; where no exchange is known, the longest wait."""
    spent: Counter[Task] = Counter()
    for pair in pairs:
        for task in pair.tasks:
            spent[task] += pair.time
    query = (
        sa.select(table.c.report, table.c.process, table.c.name, sa.func.count(), sa.func.sum(duration(table)))
        .where(*where(table, case.chosen), *conditions, table.c.end.is_not(None))
        .group_by(table.c.report, table.c.process, table.c.name)
    )
    named: dict[Task, list[tuple[int, str, int]]] = {}
    for report, process, name, count, time in case.job.session.rows(query):
        named.setdefault(Task(report, process), []).append((int(time or 0), str(name), int(count)))
    rows: list[_MpiWaitsRow] = []
    for item, own in waited.items():
        names, inside = named.get(item.task, []), calls.of(item.task).length
        most, count = max(names)[1] if names else None, sum(count for _, _, count in names)
        rows.append(_MpiWaitsRow(item.rank, item.host or None, own.length, inside, count, most, spent.get(item.task)))
    return sorted(rows, key=lambda row: (-(row.exchange or 0), -row.waited, row.rank))


_DIFFERENT_WORK_COLUMNS = (
    RANK,
    Column("kernels", header="Compute Kernels", label="compute kernels", unit=Unit.COUNT),
    Column("steps", header="Steps", label="steps", unit=Unit.COUNT, importance=1),
    Column("compute", header="Compute Time (ns)", label="compute", unit=Unit.DURATION),
)


_OF_PARTS = Advice(
    "Compare a rank with the ranks of its own part (column Part of the Ranks screen).",
    "Pipeline stages and expert groups have different work: a part that computes longer is no slow GPU.",
)


@rule(
    280,
    reads=frozenset({"kernels", "nvtx_ranges", "api_calls"}),
    finds={
        "different-work": FindingKind("uneven work of the ranks", parts=BY_COMMUNICATION),
        "model-parts": FindingKind(),
    },
)
def different_work(case: Case) -> Sequence[Finding | NotChecked]:
    """Ranks that launch more kernels than the others of their model part: uneven work, however fast a GPU is.

    A remark names the parts where there are several.
    """
    computed = case.computed
    ranks = [item for item in case.ranks if item.task in computed and computed[item.task].time]
    if len(ranks) < 2 or not shares_clock(case.reports):
        return [NotChecked("different-work", "needs the GPU work of at least two ranks of one job")]
    steps = {len(case.steps[item.task]) if item.task in case.steps else None for item in ranks}
    if len(steps) > 1:
        why = "needs ranks with the same number of steps: choose a window of all ranks with --time"
        return [NotChecked("different-work", why)]
    kernels = np.array([computed[item.task].kernels for item in ranks], float)
    busy = np.array([computed[item.task].time for item in ranks], float)
    least = 1 + case.thresholds.work_difference_percent / 100
    parts = case.job.model_parts(case.step_name)
    part = np.array([parts.of_task.get(item.task, "") for item in ranks])
    _, own = np.unique(part, return_inverse=True)
    usual = np.array([np.median(kernels[own == one]) for one in range(own.max() + 1)])[own]
    more = [ranks[place].rank for place in np.flatnonzero(kernels > least * usual)]
    excess = busy - np.array([busy[own == one].mean() for one in range(own.max() + 1)])[own]
    heaviest = ranks[int(excess.argmax())].rank
    cost = round(float(excess.max()))
    words = f"T{parts.words(ranks)[1:]}."
    remarks = [Finding("model-parts", Severity.INFO, words, _OF_PARTS, Door("ranks"))] if len(set(part)) > 1 else []
    if heaviest not in more or case.percent(cost) < case.thresholds.work_percent:
        return remarks
    whole = " of its model part" if parts.of_task else ""
    sentence = (
        f"Compared with the median rank{whole}, {rank_words(more, case.ranks)} ran at least "
        f"{case.thresholds.work_difference_percent:g} % more kernels. "
        f"Rank {heaviest} computes {time_words(cost)} longer than the ranks{whole} on average."
    )
    advice = Advice(
        "Divide layers, experts or samples more evenly over the ranks.",
        "The rank with the most work sets the pace of every step that ends in a collective.",
    )
    (common,) = steps
    order = sorted(range(len(ranks)), key=lambda place: (-busy[place], ranks[place].rank))
    rows: list[Row] = [(ranks[place].rank, int(kernels[place]), common, int(busy[place])) for place in order]
    measured = "Compute time |U(K)| of the rank with the most, minus the mean of all ranks of its model part."
    door, evidence = Door("ranks", sort="kernels"), (_DIFFERENT_WORK_COLUMNS, rows)
    found = case.finding("different-work", sentence, advice, door, cost, measured, evidence, ranks=tuple(more))
    return [found, *remarks]


_SLOW_PLACES_COLUMNS = (
    RANK,
    HOST,
    Column("place", header="Place", label="place"),
    DEVICE.with_importance(2),
    Column("longer", header="Longer than the Median GPU (%)", label="longer", unit=Unit.PERCENT, decimals=1),
    Column("compute", header="Compute Time (ns)", label="compute", unit=Unit.DURATION, importance=1),
    Column("lost", header="Lost (ns)", label="lost", unit=Unit.DURATION),
)


@dataclass(frozen=True)
class _Gpu:
    """A GPU of a rank. ``slowness``: the time of its kernels relative to their median over its model part."""

    rank: int
    host: str
    place: str
    device: int
    slowness: float
    compute: int


@rule(
    360,
    reads=frozenset({"kernels", "devices", "nvtx_ranges", "api_calls"}),
    finds={"slow-place": FindingKind("slow GPUs of one place", parts=BY_COMMUNICATION)},
)
def slow_places(case: Case) -> Sequence[Finding | NotChecked]:
    """Hosts, or places in hosts (NUMA nodes, PCI addresses), on whose GPUs the same kernels take longer than elsewhere.

    A single slow GPU is a matter of the rule on stragglers. Here every GPU of a host is slow, or the GPUs of the same
    place on every host. The usual time of a kernel (see `kernel_times`) on each GPU is compared with its median over
    the GPUs of its model part, for the kernels that most of these run, weighted by their time.
    """
    gpus = _gpus(case) if shares_clock(case.reports) else []
    hosts = {one.host for one in gpus}
    if len(hosts) < 2 or "" in hosts:
        why = "needs the same kernels on GPUs of at least two hosts, and the names of the hosts"
        return [NotChecked("slow-place", why)]
    found = [_judged(case, gpus, host, [one for one in gpus if one.host == host]) for host in sorted(hosts)]
    if not any(found):
        places = sorted({one.place for one in gpus} - {""})
        groups = {place: [one for one in gpus if one.place == place] for place in places}
        is_shared = {place: len({one.host for one in own}) > 1 for place, own in groups.items()}
        found = [_judged(case, gpus, place, own) for place, own in groups.items() if is_shared[place]]
    return [one for one in found if one is not None]


def _judged(case: Case, gpus: Sequence[_Gpu], name: str, own: Sequence[_Gpu]) -> Finding | None:
    others = [one.slowness for one in gpus if one not in own]
    if len(own) < 2 or not others:
        return None
    usual = float(np.median(others))
    least = 1 + case.thresholds.place_slower / 100
    if any(one.slowness < least * usual for one in own):
        return None
    lost = {one: round(one.compute * (1 - usual / one.slowness)) for one in own}
    cost = round(sum(lost.values()) / len(lost))
    if case.percent(cost) < case.thresholds.place_percent:
        return None
    longer = 100 * (float(np.median([one.slowness for one in own])) / usual - 1)
    what = f"host {name}" if name in {one.host for one in own} else f"{name} of {len({one.host for one in own})} hosts"
    ranks = tuple(sorted(one.rank for one in own))
    sentence = (
        f"All GPUs of {what} are slow: the same kernels take {longer:.0f} % longer than on the other GPUs "
        f"({rank_words(ranks)}). Each of these GPUs loses {time_words(cost)}."
    )
    advice = Advice(
        "Compare clocks, power cap, temperature and other users with those of another place, or leave this place out.",
        "Kernels and grids are the same and all GPUs of this place are slow, so the cause is what these GPUs share.",
    )
    rows: list[Row] = []
    for one in sorted(gpus, key=lambda one: (-one.slowness, one.rank)):
        slower = 100 * (one.slowness / usual - 1)
        rows.append((one.rank, one.host, one.place or None, one.device, slower, one.compute, lost.get(one)))
    measured = (
        "Compute time |U(K)| of these GPUs, minus the compute time at the pace of the other GPUs (same kernel name, "
        "grid and block). The mean is over these GPUs."
    )
    door, evidence = Door("ranks", sort="kernels"), (_SLOW_PLACES_COLUMNS, rows)
    return case.finding("slow-place", sentence, advice, door, cost, measured, evidence, ranks=ranks)


def _gpus(case: Case) -> list[_Gpu]:
    """The GPUs that run kernels which most GPUs of their model part run."""
    part_of = case.job.model_parts(case.step_name).of_task
    by_kernel: dict[tuple[str | None, Kernel], list[KernelLaunches]] = {}
    for one in kernel_launches(case):
        if one.count >= FEWEST:
            by_kernel.setdefault((part_of.get(one.task), one.kernel), []).append(one)
    sizes = Counter(part_of.get(one.device.task.task) for one in case.devices)
    common = {key: own for key, own in by_kernel.items() if 2 * len(own) > sizes[key[0]]}
    usual = {key: float(np.median([one.usual for one in own])) for key, own in common.items()}
    places = _places(case)
    of_gpu: dict[tuple[Task, int], list[KernelLaunches]] = {}
    for one in (one for ones in common.values() for one in ones):
        of_gpu.setdefault((one.task, one.device), []).append(one)
    found = []
    for device in case.devices:
        place, key = device.device, (device.device.task.task, device.device.device)
        own = of_gpu.get(key, [])
        here = sum(one.count * one.usual for one in own)
        elsewhere = sum(one.count * usual[part_of.get(one.task), one.kernel] for one in own)
        if elsewhere:
            compute, name = device.breakdown(case.window_of(device)).kernels, places.get(key, "")
            found.append(_Gpu(place.task.rank, place.task.host, name, place.device, here / elsewhere, compute))
    return found


def _places(case: Case) -> dict[tuple[Task, int], str]:
    """The place of each GPU in its host: its NUMA node where nsys records it, else its PCI address."""
    table = tables.devices.c
    query = sa.select(table.report, table.process, table.device, table.numa, table.bus)
    return {
        (Task(report, process), device): f"NUMA node {numa}" if numa is not None else f"PCI {bus}" if bus else ""
        for report, process, device, numa, bus in case.job.session.rows(query.where(table.process.is_not(None)))
    }
