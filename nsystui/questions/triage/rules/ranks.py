"""Ranks compared: waits in MPI, different work, slow hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import DEVICE, HOST, RANK, Column, Row, Unit
from nsystui.base.selection import Task, Window
from nsystui.base.text import counted
from nsystui.base.types import Array, Floats
from nsystui.base.units import format_value
from nsystui.exports import canonical
from nsystui.questions.algebra.intervals import EMPTY, Intervals, intersect, subtract
from nsystui.questions.queries.conditions import duration, job_end, job_start, where
from nsystui.questions.queries.mpi import has_mpi, mpi_rows
from nsystui.questions.queries.tasks import RankedTask
from nsystui.questions.queries.time_window import shares_clock
from nsystui.questions.triage.case import (  # fmt: skip
    Case,
    Place,
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
from nsystui.questions.triage.rule import BY_COMMUNICATION, BY_CPU, IDLE, FindingKind, rule
from nsystui.store import tables

if TYPE_CHECKING:
    from nsystui.questions.host.mpi_exchanges import Pair

_BLOCKING = (
    "MPI_(Wait|Probe|Mprobe|Recv|Mrecv|Send|Ssend|Rsend|Bsend|Sendrecv|Barrier|Bcast|Gather|Scatter|Allgather|"
    "Alltoall|Reduce|Allreduce|Scan|Exscan|Neighbor|File_(read|write)|Win_(fence|lock|unlock|wait|flush))"
)
"""The beginnings of blocking calls' names; starting and ending MPI is not waiting."""
_MPI_WAITS_COLUMNS = (
    RANK, HOST.with_importance(2),
    Column("waited", header="Waited in MPI (ns)", label="waited in MPI", unit=Unit.DURATION),
    Column("inside", header="In Blocking Calls (ns)", label="in calls", unit=Unit.DURATION),
    Column("count", header="Blocking Calls", label="calls", unit=Unit.COUNT, importance=1),
    Column("name", header="Most Time In", label="most time in"),
    Column("exchange", header="Exchanging (ns)", label="exchanging", unit=Unit.DURATION, importance=1),
)  # fmt: skip

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
"""Among at least `_FEWEST` calls, leading calls of `_LONGER` times the median or more set up connections."""
_SPREAD = 0.1
"""If waits differ by a smaller share, no rank is late."""
_SLOW, _ALIKE = 2.0, 2.0
"""A slow pair has at most 1 / `_SLOW` of the median rate of pairs whose message size differs at most `_ALIKE` times."""
_PAIRS = 3

_SLOW_PAIR = Advice(
    "Check the link and the peer access between the GPUs of this pair (`nvidia-smi topo -m`). Place ranks that "
    "exchange large messages on linked GPUs.",
    "The other pairs exchange messages of similar size faster, and then wait for this pair.",
)


_MpiWaitsRow = tuple[int, str | None, int, int, int, str | None, int | None]


@rule(300, IDLE | {"mpi_calls", "nvtx_ranges", "api_calls"}, FindingKind("mpi-waits", "blocking MPI calls", BY_CPU))
def mpi_waits(case: Case) -> Sequence[Finding | NotChecked]:
    r"""Find blocking MPI calls in which a GPU has nothing to do: |U(blocking calls) \ U(GPU work)| of a rank.

    Without GPU work, the cost is the mean of all time in these calls (docs/triage.md#collectives-and-communication).
    """
    if not has_mpi(case.job.session):
        return [NotChecked("mpi-waits", f"needs MPI calls: {case.record(canonical.MPI_CALLS)}")]
    mpi_calls = mpi_rows(case.job.session)
    is_blocking = sa.func.regexp_matches(mpi_calls.c.name, f"^{_BLOCKING}", type_=sa.Boolean)
    table = sa.select(mpi_calls).where(is_blocking).subquery("blocking")
    calls = spans(case, table)
    waited = {item: _waited(case, item, calls) for item in case.ranks}
    on_gpus = len(case.devices) > 0
    judged = [item for item in waited if not on_gpus or item.devices]
    cost = round(sum(waited[item].length for item in judged) / max(len(judged), 1))
    if not judged or case.percent(cost) < case.thresholds.mpi_percent:
        return []
    from nsystui.questions.host.mpi_exchanges import exchanges

    rows = _rows(case, table, waited, calls, pairs := exchanges(case.job.session, case.scope))
    line = f"most time in {max(rows, key=lambda row: row[2])[5]}"
    sentence = (
        f"Blocking MPI calls {'leave the GPU idle for' if on_gpus else 'take'} {time_words(cost)} per rank "
        f"({counted(calls.count, 'call')}, {line})."
    )
    set_up, set_up_words = _set_up(case, _leading(case, table), {item: waited[item] for item in judged})
    first = round(sum(set_up.values()) / max(len(judged), 1))
    is_steady = case.percent(cost - first) >= case.thresholds.mpi_percent
    rank_words, advice = _extremes({item: waited[item].length - set_up[item] for item in judged}, bool(first))
    sentence += set_up_words + rank_words
    if slow_words := _slow_pair(case, pairs):
        sentence, advice = sentence + slow_words, _SLOW_PAIR
    idle_words, with_gpu = (" while the GPU is idle, in the steady state", " with a GPU") if on_gpus else ("", "")
    measured = f"Time in blocking MPI calls (threads merged){idle_words}. The mean is over the ranks{with_gpu}."
    ranks = tuple(sorted(item.rank for item in judged if waited[item].length))
    evidence, severity = (_MPI_WAITS_COLUMNS, rows), Severity.WARNING if is_steady else Severity.INFO
    line, door = f"blocking MPI calls, {line}", Door("mpi")
    return [
        case.finding("mpi-waits", sentence, advice, door, cost, measured, evidence, severity, ranks=ranks, line=line)
    ]


def _set_up(
    case: Case, leading: Mapping[_Call, float], waited: Mapping[RankedTask, Intervals]
) -> tuple[dict[RankedTask, int], str]:
    """Return the waits in ``leading`` calls above their usual time, by rank, ns; and a sentence on them, if any."""
    extra = by_place((call.task, 0, call.start + round(usual), call.end) for call, usual in leading.items())
    set_up = {item: intersect(wait, extra.get((item.task, 0), EMPTY)).length for item, wait in waited.items()}
    first = round(sum(set_up.values()) / max(len(set_up), 1))
    if not first:
        return set_up, ""
    longest = max(leading, key=lambda call: (call.end - call.start, call))
    return set_up, (
        f" Connection setup takes {time_words(first)} of this in {counted(len(leading), 'first call')} "
        f"({longest.name} {time_words(longest.end - longest.start)}, usually {time_words(leading[longest])})."
    )


def _extremes(waits: Mapping[RankedTask, int], in_later_calls: bool) -> tuple[str, Advice]:
    """Name the ranks with the longest and the shortest wait (ns), if they differ; with the advice."""
    low = min(waits, key=lambda item: (waits[item], item.rank))
    high = max(waits, key=lambda item: (waits[item], -item.rank))
    if waits[high] - waits[low] <= _SPREAD * waits[high]:
        return "", _ADVICE_OF_ONE if len(waits) == 1 else _ADVICE_OF_ALL
    who = f" {'In later calls, rank' if in_later_calls else 'Rank'} {high.rank}"
    words = f"{who} waits longest ({time_words(waits[high])}), rank {low.rank} shortest ({time_words(waits[low])})."
    return words, Advice(
        f"Look at what rank {low.rank} does before these calls. Then overlap them (MPI_I…, GPU work in between).",
        "The rank that waits least arrives last, and the other ranks wait for it. The rest is the transfer itself.",
    )


def _slow_pair(case: Case, pairs: Sequence[Pair]) -> str:
    """Compare the slowest pair with the median of the pairs with messages of similar size; empty if it is not slow."""
    slowest = min(pairs, key=lambda pair: pair.rate, default=None)
    alike = [] if slowest is None else [pair for pair in pairs if 1 / _ALIKE <= pair.size / slowest.size <= _ALIKE]
    if slowest is None or len(alike) < _PAIRS:
        return ""
    usual = median(pair.rate for pair in alike if pair is not slowest)
    if slowest.rate * _SLOW > usual:
        return ""
    numbers = " and ".join(str(case.rank_of[task]) for task in slowest.tasks)
    rate, usual_rate = (format_value(Unit.RATE, value) for value in (slowest.rate, usual))
    return (
        f" Ranks {numbers} exchange messages of {bytes_words(round(slowest.size))} at {rate}, the other pairs at "
        f"{usual_rate}. The other ranks wait for this pair."
    )


def _waited(case: Case, item: RankedTask, calls: Spans) -> Intervals:
    window = case.windows[item.task.report]
    intervals = calls.of(item.task).clip(window.start, window.end)
    devices = [device for device in case.devices if item.task in device.tasks]
    if not devices or not len(intervals):
        return intervals
    start = min(case.working(device).start for device in devices)
    intervals = intervals.clip(start, window.end)
    return subtract(intervals, worked_by(devices, Window(start, window.end)))


class _Call(NamedTuple):
    task: Task
    name: str
    start: int
    end: int


def _leading(case: Case, table: sa.FromClause) -> dict[_Call, float]:
    """Return the leading calls of a name (and peer) that take many times the median, with that median, ns."""
    start, end = job_start(table), job_end(table)
    selected = [*where(table, case.scope), table.c.end.is_not(None)]
    names = ("report", "process", "name")
    usual_by_call: dict[_Call, float] = {}
    for keys in (names, (*names, "remote_rank")):
        columns = [table.c[key] for key in keys]
        medians = sa.select(*columns, sa.func.median(end - start).label("usual")).where(*selected).group_by(*columns)
        group = medians.having(sa.func.count() >= _FEWEST).cte("medians")
        until = sa.func.min(start).filter(end - start < _LONGER * group.c.usual).label("until")
        matches = sa.and_(*(table.c[key] == group.c[key] for key in keys))
        ended = sa.select(*group.c, until).join_from(table, group, matches).where(*selected).group_by(*group.c)
        first = ended.cte("first")
        query = (
            sa.select(*(table.c[key] for key in names), start, end, first.c.usual)
            .join_from(table, first, sa.and_(*(table.c[key] == first.c[key] for key in keys)))
            .where(*selected, start < first.c.until)
        )
        for report, process, name, begin, finish, usual in case.job.session.rows(query):
            usual_by_call[_Call(Task(report, process), name, begin, finish)] = float(usual)
    return usual_by_call


def _rows(
    case: Case, table: sa.FromClause, waited: Mapping[RankedTask, Intervals], calls: Spans, pairs: Sequence[Pair]
) -> list[_MpiWaitsRow]:
    """Return rows by rank: the longest exchange first, because other ranks wait for it, then the longest wait."""
    spent: Counter[Task] = Counter()
    for pair in pairs:
        for task in pair.tasks:
            spent[task] += pair.time
    query = (
        sa.select(table.c.report, table.c.process, table.c.name, sa.func.count(), sa.func.sum(duration(table)))
        .where(*where(table, case.scope), table.c.end.is_not(None))
        .group_by(table.c.report, table.c.process, table.c.name)
    )
    named: dict[Task, list[tuple[int, str, int]]] = {}
    for report, process, name, count, time in case.job.session.rows(query):
        named.setdefault(Task(report, process), []).append((int(time or 0), str(name), int(count)))
    rows: list[_MpiWaitsRow] = []
    for item, wait in waited.items():
        names, inside = named.get(item.task, []), calls.of(item.task).length
        call, count = max(names)[1] if names else None, sum(count for _, _, count in names)
        rows.append((item.rank, item.host or None, wait.length, inside, count, call, spent.get(item.task)))
    return sorted(rows, key=lambda row: (-(row[6] or 0), -row[2], row[0]))


_DIFFERENT_WORK_COLUMNS = (
    RANK,
    Column("kernels", header="Compute Kernels", label="compute kernels", unit=Unit.COUNT),
    Column("steps", header="Steps", label="steps", unit=Unit.COUNT, importance=1),
    Column("compute", header="Compute Time (ns)", label="compute", unit=Unit.DURATION),
)


_DIVIDE = Advice(
    "Divide layers, experts or samples more evenly over the ranks.",
    "The rank with the most work sets the pace of every step that ends in a collective.",
)
_OF_PARTS = Advice(
    "Compare a rank with the ranks of its own part (column Part of the Ranks screen).",
    "Pipeline stages and expert groups have different work: a part that computes longer is no slow GPU.",
)


_UNEVEN = FindingKind("different-work", "uneven work of the ranks", BY_COMMUNICATION)


@rule(280, frozenset({"kernels", "nvtx_ranges", "api_calls"}), _UNEVEN, FindingKind("model-parts"))
def different_work(case: Case) -> Sequence[Finding | NotChecked]:
    """Find ranks that launch more kernels than the median rank of their model part: uneven work, not a slow GPU."""
    computed, lost = case.computed, case.lacking_work
    ranks = [item for item in case.ranks if item.task in computed.keys() - lost and computed[item.task].time]
    if len(ranks) < 2 or not shares_clock(case.reports):
        return [NotChecked("different-work", "needs the GPU work of at least two ranks of one job")]
    steps = {len(case.steps[item.task]) if item.task in case.steps else None for item in ranks}
    if len(steps) > 1:
        why = "needs ranks with the same number of steps: choose a window of all ranks with --time"
        return [NotChecked("different-work", why)]
    work = np.array([(computed[item.task].kernels, computed[item.task].time) for item in ranks], float)
    min_ratio = 1 + case.thresholds.work_difference_percent / 100
    parts = case.job.model_parts(case.step_name)
    part = np.array([parts.of_task.get(item.task, "") for item in ranks])
    usual, mean = _over_parts(np.median, work[:, 0], part), _over_parts(np.mean, work[:, 1], part)
    more = [ranks[index].rank for index in np.flatnonzero(work[:, 0] > min_ratio * usual)]
    excess = work[:, 1] - mean
    heaviest, cost = ranks[int(excess.argmax())].rank, round(float(excess.max()))
    words = parts.words(ranks)
    remarks = [Finding("model-parts", Severity.INFO, f"T{words[1:]}.", _OF_PARTS, Door("ranks"))] if words else []
    if heaviest not in more or case.percent(cost) < case.thresholds.work_percent:
        return remarks
    part_words = " of its model part" * bool(parts.of_task)
    sentence = (
        f"{rank_words(more, case.ranks).capitalize()} ran at least {case.thresholds.work_difference_percent:g} % more "
        f"kernels (compared with the median rank{part_words}). "
        f"Rank {heaviest} computes {time_words(cost)} longer than the ranks{part_words} on average."
    )
    (common,) = steps
    figures = zip(ranks, work.astype(np.int64).tolist(), strict=True)
    rows = [(item.rank, kernels, common, time) for item, (kernels, time) in figures]
    rows.sort(key=lambda row: (-row[3], row[0]))
    measured = "Compute time |U(K)| of the rank with the most, minus the mean of all ranks of its model part."
    door, evidence = Door("ranks", sort="kernels"), (_DIFFERENT_WORK_COLUMNS, rows)
    finding = case.finding("different-work", sentence, _DIVIDE, door, cost, measured, evidence, ranks=tuple(more))
    return [finding, *remarks]


def _over_parts(average: Callable[[Floats], object], values: Floats, part: Array) -> Floats:
    """Return the average of each rank's model part; shape ``(ranks,)``."""
    return np.array([average(values[part == name]) for name in part])


_SLOW_PLACES_COLUMNS = (
    RANK, HOST, Column("place", header="Place", label="place"), DEVICE.with_importance(2),
    Column("longer", header="Longer than the Median GPU (%)", label="longer", unit=Unit.PERCENT, decimals=1),
    Column("compute", header="Compute Time (ns)", label="compute", unit=Unit.DURATION, importance=1),
    Column("lost", header="Lost (ns)", label="lost", unit=Unit.DURATION),
)  # fmt: skip


@dataclass(frozen=True)
class _Gpu:
    """A GPU of a rank; ``slowness``: its kernels' time relative to their median over its model part."""

    key: Place
    rank: int
    host: str
    position: str
    slowness: float
    compute: int


_SLOW_PLACE = FindingKind("slow-place", "slow GPUs of one place", BY_COMMUNICATION)


@rule(360, frozenset({"kernels", "devices", "nvtx_ranges", "api_calls"}), _SLOW_PLACE)
def slow_places(case: Case) -> Sequence[Finding | NotChecked]:
    """Find hosts, or NUMA nodes or PCI addresses of hosts, on whose GPUs the same kernels take longer.

    A kernel's usual time (see `kernel_times`) is compared with its median over the GPUs of its model part, weighted by
    time, for kernels that most of these run.
    """
    gpus = _gpus(case) if shares_clock(case.reports) else []
    hosts = {gpu.host for gpu in gpus}
    if len(hosts) < 2 or "" in hosts:
        why = "needs the same kernels on GPUs of at least two hosts, and the names of the hosts"
        return [NotChecked("slow-place", why)]
    findings = [_judged(case, gpus, host, [gpu for gpu in gpus if gpu.host == host]) for host in sorted(hosts)]
    if not any(findings):
        positions = sorted({gpu.position for gpu in gpus} - {""})
        groups = {position: [gpu for gpu in gpus if gpu.position == position] for position in positions}
        is_shared = {position: len({gpu.host for gpu in group}) > 1 for position, group in groups.items()}
        findings = [_judged(case, gpus, position, group) for position, group in groups.items() if is_shared[position]]
    return [finding for finding in findings if finding is not None]


def _judged(case: Case, gpus: Sequence[_Gpu], name: str, slow: Sequence[_Gpu]) -> Finding | None:
    others = {gpu.key: gpu.slowness for gpu in gpus if gpu not in slow}
    if len(slow) < 2 or not others:
        return None
    usual, slowness = float(np.median([*others.values()])), [gpu.slowness for gpu in slow]
    if min(slowness) < (1 + case.thresholds.place_slower / 100) * usual:
        return None
    lost = {gpu: round(gpu.compute * (1 - usual / gpu.slowness)) for gpu in slow}
    cost = round(sum(lost.values()) / len(lost))
    if case.percent(cost) < case.thresholds.place_percent:
        return None
    longer, hosts = 100 * (float(np.median(slowness)) / usual - 1), {gpu.host for gpu in slow}
    who = f"host {name}" if name in hosts else f"{name} of {len(hosts)} hosts"
    ranks = tuple(sorted(gpu.rank for gpu in slow))
    sentence = (
        f"All GPUs of {who} are slow: the same kernels take {longer:.0f} % longer than on the other GPUs "
        f"({rank_words(ranks)}). Each of these GPUs loses {time_words(cost)}."
    )
    advice = Advice(
        "Compare clocks, power cap, temperature and other users with those of another place, or leave this place out.",
        "Kernels and grids are the same and all GPUs of this place are slow, so the cause is what these GPUs share.",
    )
    rows: list[Row] = []
    for gpu in sorted(gpus, key=lambda gpu: (-gpu.slowness, gpu.rank)):
        slower = 100 * (gpu.slowness / usual - 1)
        rows.append((gpu.rank, gpu.host, gpu.position or None, gpu.key[1], slower, gpu.compute, lost.get(gpu)))
    measured = (
        "Compute time |U(K)| of these GPUs, minus the compute time at the pace of the other GPUs (same kernel name, "
        "grid and block). The mean is over these GPUs."
    )
    door, evidence = Door("ranks", sort="kernels"), (_SLOW_PLACES_COLUMNS, rows)
    losses = dict.fromkeys(others, cost)
    return case.finding("slow-place", sentence, advice, door, cost, measured, evidence, ranks=ranks, losses=losses)


def _gpus(case: Case) -> list[_Gpu]:
    """Return the GPUs that run kernels which most GPUs of their model part run."""
    part_of = case.job.model_parts(case.step_name).of_task
    groups: dict[tuple[str | None, Kernel], list[KernelLaunches]] = {}
    for launches in kernel_launches(case):
        if launches.count >= FEWEST and launches.task not in case.lacking_work:
            groups.setdefault((part_of.get(launches.task), launches.kernel), []).append(launches)
    sizes = Counter(part_of.get(device.device.task.task) for device in case.devices)
    shared = {key: group for key, group in groups.items() if 2 * len(group) > sizes[key[0]]}
    usual = {key: float(np.median([launches.usual for launches in group])) for key, group in shared.items()}
    positions = _positions(case)
    launches_by_gpu: dict[tuple[Task, int], list[KernelLaunches]] = {}
    for launches in (launches for group in shared.values() for launches in group):
        launches_by_gpu.setdefault((launches.task, launches.device), []).append(launches)
    gpus = []
    for device in case.devices:
        gpu, key = device.device, device.device.key
        group = launches_by_gpu.get(key, [])
        time = sum(launches.count * launches.usual for launches in group)
        median_time = sum(launches.count * usual[part_of.get(launches.task), launches.kernel] for launches in group)
        if median_time:
            compute, name = device.breakdown(case.window_of(device)).kernels, positions.get(key, "")
            gpus.append(_Gpu(key, gpu.task.rank, gpu.task.host, name, time / median_time, compute))
    return gpus


def _positions(case: Case) -> dict[tuple[Task, int], str]:
    table = tables.devices.c
    query = sa.select(table.report, table.process, table.device, table.numa, table.bus)
    return {
        (Task(report, process), device): f"NUMA node {numa}" if numa is not None else f"PCI {bus}" if bus else ""
        for report, process, device, numa, bus in case.job.session.rows(query.where(table.process.is_not(None)))
    }
