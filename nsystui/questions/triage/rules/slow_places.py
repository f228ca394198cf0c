"""Hosts, or places in hosts (NUMA nodes, PCI addresses), on whose GPUs the same kernels take longer than elsewhere.

A single slow GPU is a matter of the rule on stragglers. Here every GPU of a host is slow, or the GPUs of the same place
on every host. Compared is what is usual for a kernel (see `kernel_times`) on each GPU with its median over all GPUs, of
the kernels that most GPUs run, weighted by their time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import DEVICE, HOST, RANK, Column, Row, TableAnswer, Unit
from nsystui.base.selection import Task
from nsystui.questions.gpu.device_time import DeviceIntervals
from nsystui.questions.queries.time_window import shares_clock
from nsystui.questions.triage.case import Case, rank_words, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.questions.triage.kernel_times import FEWEST, Kernel, KernelLaunches, kernel_launches, usual_times
from nsystui.store import tables

_NAME = "slow-places"
_COLUMNS = (
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
    """A GPU of a rank. ``slowness``: how long its kernels take, as a share of the median of all GPUs."""

    rank: int
    host: str
    place: str
    device: int
    slowness: float
    compute: int


def check(case: Case) -> Sequence[Finding | NotChecked]:
    gpus = _gpus(case) if shares_clock(case.reports) else []
    hosts = {one.host for one in gpus}
    if len(hosts) < 2 or "" in hosts:
        return [NotChecked(_NAME, "needs kernels in common on GPUs of two hosts or more, and their names")]
    found = [_judged(case, gpus, host, [one for one in gpus if one.host == host]) for host in sorted(hosts)]
    if not any(found):
        places = {place: [one for one in gpus if one.place == place] for place in {one.place for one in gpus} - {""}}
        found = [
            _judged(case, gpus, place, own)
            for place, own in sorted(places.items())
            if len({one.host for one in own}) > 1
        ]
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
        f"all GPUs of {what} are slow: the same kernels take {longer:.0f} % longer there than on the other GPUs "
        f"({rank_words(ranks)}); {time_words(cost)} on each of them"
    )
    advice = Advice(
        "compare clocks, power cap, temperature and other users there with another place, or leave it out",
        "the kernels and grids are the same, and all GPUs there are slow: it is what they have in common",
    )
    rows: list[Row] = [
        (
            one.rank,
            one.host,
            one.place or None,
            one.device,
            100 * (one.slowness / usual - 1),
            one.compute,
            lost.get(one),
        )
        for one in sorted(gpus, key=lambda one: (-one.slowness, one.rank))
    ]
    measured = (
        "compute time |U(K)| of these GPUs, less what it would be at the pace of the others (same name, grid and "
        "block); mean over these GPUs, whom the others wait for"
    )
    evidence, share = TableAnswer(_NAME, _COLUMNS, rows, len(rows)), case.percent(cost)
    door = Door("ranks", sort="kernels")
    return Finding("slow-place", Severity.WARNING, sentence, advice, door, cost, share, measured, evidence, ranks=ranks)


def _gpus(case: Case) -> list[_Gpu]:
    """The GPUs that run what most of them run."""
    by_kernel: dict[Kernel, list[KernelLaunches]] = {}
    for one in kernel_launches(case):
        if one.count >= FEWEST:
            by_kernel.setdefault(one.kernel, []).append(one)
    common = {kernel: own for kernel, own in by_kernel.items() if 2 * len(own) > len(case.devices)}
    usual = usual_times([one for ones in common.values() for one in ones])
    places = _places(case)
    of_gpu: dict[tuple[Task, int], list[KernelLaunches]] = {}
    for one in (one for ones in common.values() for one in ones):
        of_gpu.setdefault((one.task, one.device), []).append(one)
    found = []
    for device in case.devices:
        place = device.device
        own = of_gpu.get((place.task.task, place.device), [])
        here = sum(one.count * one.usual for one in own)
        elsewhere = sum(one.count * usual[one.kernel] for one in own)
        if elsewhere:
            where_ = places.get((place.task.task.report, place.task.task.process, place.device), "")
            compute = _compute(case, device)
            found.append(_Gpu(place.task.rank, place.task.host, where_, place.device, here / elsewhere, compute))
    return found


def _compute(case: Case, device: DeviceIntervals) -> int:
    return device.breakdown(case.window_of(device)).kernels


def _places(case: Case) -> Mapping[tuple[int, int, int], str]:
    """The place of each GPU in its host: its NUMA node where nsys records it, else its PCI address."""
    table = tables.devices
    query = sa.select(table.c.report, table.c.process, table.c.device, table.c.numa, table.c.bus).where(
        table.c.process.is_not(None)
    )
    return {
        (report, process, device): f"NUMA node {numa}" if numa is not None else f"PCI {bus}" if bus else ""
        for report, process, device, numa, bus in case.job.session.rows(query)
    }
