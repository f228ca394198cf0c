"""The network: traffic of each adapter and switch, and traffic while NCCL's collectives ran.

Every report of a host samples all adapters. An adapter in several reports counts once, by host and GUID, a switch by
GUID alone. If samples overlap, the report that sampled longest counts.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.answer import COLLECTIVE, COUNT, HOST, Column, Row, TableAnswer, Unit
from nsystui.base.selection import Selection
from nsystui.base.types import Floats, grouped
from nsystui.questions.algebra.intervals import EMPTY, Intervals, Times, covered_per_bin, intersect, merge, union
from nsystui.questions.counters.efa import counters
from nsystui.questions.job.job import OpenJob
from nsystui.questions.nccl.grouping import bucket_label, bucket_numbers, selected
from nsystui.store import tables

Samples = tuple[Times, Times, Floats]
"""Starts, ends (job time) and rates: bytes/s, or ticks/ms of send waits. Samples of several ports add up."""

RECEIVED, SENT, WAITS = range(3)
"""Indices of an adapter's figures, and of the endings of their metrics' names."""
_ENDINGS = (("bytes received", "rx bytes", "rx_bytes"), ("bytes sent", "tx bytes", "tx_bytes"), ("send waits",))

SWITCH, EFA = "InfiniBand switch", "EFA"
_LINKS = {"ib": "InfiniBand", "eth": "Ethernet", "ethernet": "Ethernet"}
_BYTES = re.compile(r"(?:bytes?|B)/(ns|us|µs|ms|s|sec)")
_PER_SECOND = {"ns": 1e9, "us": 1e6, "µs": 1e6, "ms": 1e3, "s": 1.0, "sec": 1.0}
_NOTHING: Samples = (EMPTY.starts, EMPTY.ends, np.empty(0))

ADAPTER = Column("adapter", header="Adapter", label="adapter")
LINK = Column("link", header="Link", label="link")
GUID = Column("guid", header="GUID", label="guid", importance=4)
RATES = (
    Column("sent", header="Sent (B/s)", label="sent", unit=Unit.RATE, decimals=1),
    Column("received", header="Received (B/s)", label="received", unit=Unit.RATE, decimals=1),
)
SEND_WAITS = Column(
    "waits", header="Send Waits (ticks/ms)", label="waits/ms", unit=Unit.TICK_RATE, decimals=1, importance=1
)
_SAMPLED = Column("sampled", header="Sampled (%)", label="sampled", unit=Unit.PERCENT, decimals=1, importance=2)
_ADAPTER_COLUMNS = (
    HOST,
    ADAPTER,
    LINK.with_importance(1),
    *RATES,
    Column("peak_sent", header="Peak Sent (B/s)", label="peak sent", unit=Unit.RATE, decimals=1, importance=1),
    Column("peak_received", header="Peak Received (B/s)", label="peak rec.", unit=Unit.RATE, decimals=1, importance=1),
    SEND_WAITS,
    _SAMPLED,
    Column("reports", header="Reports", label="reports", unit=Unit.COUNT, importance=3),
    GUID,
)
_COLLECTIVE_COLUMNS = (
    COLLECTIVE,
    Column("size", header="Size", label="size"),
    LINK,
    COUNT,
    Column("time", header="Time (ns)", label="time", unit=Unit.DURATION, importance=2),
    *RATES,
    SEND_WAITS,
    Column(
        "slow_waits", header="Send Waits, Slow (ticks/ms)", label="slow", unit=Unit.TICK_RATE, decimals=1, importance=1
    ),
    Column("hosts", header="Hosts", label="hosts", unit=Unit.COUNT, importance=3),
    _SAMPLED,
)
_SLOW = 0.9
"""The share of a group's collectives that are not slow."""


@dataclass(frozen=True)
class _Key:
    """An adapter on one kind of link: ``name`` identifies it without a GUID, ``report`` without a host."""

    host: str
    link: str
    guid: int | None
    name: str
    report: int | None


@dataclass(frozen=True, eq=False)
class Adapter:
    """An adapter or a switch (without host), with samples of received and sent bytes, and of send waits."""

    host: str
    link: str
    name: str
    guid: str | None
    reports: int
    figures: tuple[Samples, Samples, Samples]


def adapters(job: OpenJob, selection: Selection, with_efa: bool = True) -> tuple[tuple[Adapter, ...], tuple[str, ...]]:
    """Return the adapters and switches of the selected ranks' reports, each once, and notes."""

    def make() -> tuple[tuple[Adapter, ...], tuple[str, ...]]:
        hosts = hosts_of(job)
        reports = set(hosts) if selection.tasks is None else {task.report for task in selection.tasks}
        notes: list[str] = []
        parts: dict[_Key, dict[tuple[int, int], list[Samples]]] = {}
        names: dict[_Key, str] = {}
        sampled = [*_sampled(job, hosts, reports, notes), *(_of_efa(job, hosts, reports, notes) if with_efa else ())]
        for figure, key, name, report, samples in sampled:
            parts.setdefault(key, {}).setdefault((figure, report), []).append(samples)
            names.setdefault(key, name)
        order = sorted(parts, key=lambda key: (key.link == SWITCH, key.host, names[key], key.link, key.guid or 0))
        return tuple(_adapter(key, names[key], parts[key]) for key in order), tuple(dict.fromkeys(notes))

    return job.once(("adapters", selection.tasks, with_efa), make)


def hosts_of(job: OpenJob) -> dict[int, str]:
    """Return the host of each report by its index; empty if the report does not name it."""
    return {report.index: report.metadata.host for report in job.session.reports}


def _adapter(key: _Key, name: str, parts: dict[tuple[int, int], list[Samples]]) -> Adapter:
    received, sent, waits = (
        once([_joined(samples) for (index, _), samples in sorted(parts.items()) if index == figure])
        for figure in (RECEIVED, SENT, WAITS)
    )
    guid = None if key.guid is None else f"0x{key.guid & 0xFFFF_FFFF_FFFF_FFFF:x}"
    reports = len({report for _, report in parts})
    return Adapter(key.host, key.link, name or guid or "?", guid, reports, (received, sent, waits))


def _sampled(
    job: OpenJob, hosts: dict[int, str], selected_reports: set[int], notes: list[str]
) -> Iterator[tuple[int, _Key, str, int, Samples]]:
    """Yield samples of ``NET_NIC_METRIC`` and of switches: figure, adapter, its name, report, samples."""
    figures, identities = dict(_figure_metrics(job)), _names(job)
    if job.session.count(tables.nic_metrics) and not figures:
        notes.append("no sampled metric is bytes received, bytes sent or send waits")
    if selected_reports != hosts.keys() and figures:
        notes.append("these are the adapters in the reports of the selected ranks")
    for (report, nic, is_switch, metric), unit, (starts, ends, values) in _samples(job, sorted(figures)):
        if report not in selected_reports:
            continue
        scale, time_unit = 1.0, _BYTES.fullmatch(unit)
        if figures[metric] != WAITS:
            if time_unit is None:
                notes.append(f"no rate of {metric!r}: its unit {unit!r} is not bytes per time")
                continue
            scale = _PER_SECOND[time_unit[1]]
        samples = starts, ends, values * scale
        if is_switch:
            yield figures[metric], _Key("", SWITCH, nic, "", None), "switch", report, samples
            continue
        guid, name = identities.get((report, nic), (None, None))
        link = _LINKS.get(metric.partition(":")[0].strip().lower(), "")
        fallback_name = "" if guid is not None else name or f"adapter {nic}"
        key = _Key(hosts[report], link, guid, fallback_name, None if hosts[report] else report)
        yield figures[metric], key, name or fallback_name, report, samples


def _figure_metrics(job: OpenJob) -> Iterator[tuple[str, int]]:
    column = tables.nic_metrics.c.metric
    if not job.session.count(tables.nic_metrics):
        return
    for (metric,) in job.session.rows(sa.select(column).where(column.is_not(None)).distinct()):
        for figure, endings in enumerate(_ENDINGS):
            if metric.lower().endswith(endings):
                yield metric, figure


def _samples(
    job: OpenJob, metrics: list[str]
) -> Iterator[tuple[tuple[int, int, int, str], str, tuple[Times, Times, Floats]]]:
    """Yield the samples of each (report, adapter, whether it is a switch, metric) with their unit, job time."""
    table = tables.nic_metrics
    if not metrics:
        return
    keys = (table.c.report, table.c.nic, table.c.is_switch, table.c.metric)
    is_known = [
        table.c.metric.in_(metrics),
        table.c.end.is_not(None),
        table.c.value.is_not(None),
        table.c.nic.is_not(None),
    ]
    groups = sa.select(*keys, sa.func.min(table.c.unit)).where(*is_known).group_by(*keys).order_by(*keys)
    for *key, unit in job.session.rows(groups):
        job_times = [(table.c[name] + table.c.clock_offset).label(name) for name in ("start", "end")]
        is_in_group = [column == value for column, value in zip(keys, key, strict=True)]
        rows = job.session.arrays(sa.select(*job_times, table.c.value).where(*is_known, *is_in_group))
        yield (key[0], key[1], key[2], key[3]), unit or "", (rows["start"], rows["end"], rows["value"])


def _names(job: OpenJob) -> dict[tuple[int, int], tuple[Any, Any]]:
    table = tables.nic_devices
    if not job.session.count(table):
        return {}
    rows = job.session.rows(sa.select(table.c.report, table.c.nic, table.c.guid, table.c.name))
    return {(report, nic): (guid, name) for report, nic, guid, name in rows}


def _of_efa(
    job: OpenJob, hosts: dict[int, str], selected_reports: set[int], notes: list[str]
) -> Iterator[tuple[int, _Key, str, int, Samples]]:
    """Yield samples like `_sampled` from EFA counters that are running totals of bytes."""
    lanes, _ = counters(job, selected_reports)
    left_out = set()
    for lane in lanes:
        name = lane.counter.lower()
        figure = next((index for index, endings in enumerate(_ENDINGS) if name.endswith(endings)), None)
        if figure is None or not lane.is_total:
            left_out.add(lane.counter)
            continue
        key = _Key(hosts[lane.report], EFA, None, lane.adapter, None if hosts[lane.report] else lane.report)
        yield figure, key, lane.adapter, lane.report, (lane.starts, lane.ends, lane.values)
    if not left_out.issuperset(lane.counter for lane in lanes):
        notes.append("EFA counters are taken as running totals of bytes by their names, which NVIDIA does not document")
    if left_out:
        notes.append(f"EFA counters that are not totals of bytes received or sent: {', '.join(sorted(left_out))}")


def _joined(parts: Iterable[Samples]) -> Samples:
    starts, ends, rates = zip(*parts, strict=True)
    return np.concatenate(starts), np.concatenate(ends), np.concatenate(rates)


def once(parts: Iterable[Samples]) -> Samples:
    """Merge the samples of several reports: the longest series, and other reports' samples of other times."""
    covered, merged = EMPTY, []
    for starts, ends, rates in sorted(parts, key=lambda samples: -union(samples[0], samples[1]).length):
        first = np.searchsorted(covered.ends, starts, side="right")
        begin = np.append(covered.starts, np.iinfo(np.int64).max)[first]
        is_new = begin >= ends
        merged.append((starts[is_new], ends[is_new], rates[is_new]))
        covered = merge(covered, union(starts[is_new], ends[is_new]))
    return _joined(merged) if merged else _NOTHING


def moved_within(samples: Samples, times: Intervals) -> tuple[float | None, int]:
    """Return the mean rate over the sampled part of ``times`` (or ``None``), and the length of that part, ns."""
    starts, ends, rates = samples
    covered = intersect(union(starts, ends), times).length
    if not covered:
        return None, 0
    low = int(times.starts[0])

    def until(edges: Times) -> Floats:
        offsets = (edges - low).astype(np.float64)
        difference: Floats = _integral(starts - low, rates, offsets) - _integral(ends - low, rates, offsets)
        return difference

    return float((until(times.ends) - until(times.starts)).sum()) / covered, covered


def mean_rate(starts: Times, ends: Times, rates: Floats, lo: int, hi: int, bins: int) -> Floats:
    """Average a rate over the sampled part of each of ``bins`` equal spans of ``[lo, hi)``; NaN without samples.

    A sample is a rate from its start to its end, shapes ``(n,)``; overlapping samples, of several ports, add up.
    """
    edges = lo + np.arange(bins + 1) * ((hi - lo) / bins)
    offsets = edges - lo
    total: Floats = np.subtract(_integral(starts - lo, rates, offsets), _integral(ends - lo, rates, offsets))
    covered = covered_per_bin(union(starts, ends), lo, hi, bins)
    rate: Floats = np.diff(total) / np.where(covered > 0, covered, np.nan)
    return rate


def _integral(times: Times, values: Floats, edges: NDArray[np.floating[Any]]) -> Floats:
    order = np.argsort(times, kind="stable")
    sorted_times, sorted_values = times[order].astype(np.float64), values[order].astype(np.float64)
    sums = np.concatenate(([0.0], np.cumsum(sorted_values)))
    moments = np.concatenate(([0.0], np.cumsum(sorted_values * sorted_times)))
    indices = np.searchsorted(sorted_times, edges, side="left")
    integral: Floats = sums[indices] * edges - moments[indices]
    return integral


def _peak(samples: Samples, times: Intervals) -> float | None:
    """Return the highest rate in ``times``, adding up samples of several ports."""
    starts, ends, rates = samples
    low, high = int(times.starts[0]), int(times.ends[-1])
    inside = (ends > low) & (starts < high)
    if not inside.any():
        return None
    moments = np.concatenate((ends[inside], starts[inside]))  # ends before starts of the same time
    changes = np.concatenate((-rates[inside], rates[inside]))
    return float(np.cumsum(changes[np.argsort(moments, kind="stable")]).max())


def network_table(job: OpenJob, selection: Selection) -> TableAnswer:
    """Tabulate each adapter's and switch's traffic in the selected time: mean rates of its sampled part, and peaks.

    ``reports`` counts the reports that saw it.
    """
    sampled_adapters, notes = adapters(job, selection)
    window = job.extent(selection)
    times = union([window.start], [window.end])
    rows: list[Row] = []
    for adapter in sampled_adapters if len(times) else ():
        rates, covered = zip(*(moved_within(samples, times) for samples in adapter.figures), strict=True)
        peaks = (_peak(adapter.figures[figure], times) for figure in (SENT, RECEIVED))
        sampled = 100 * max(covered) / times.length
        identity = (adapter.host, adapter.name, adapter.link)
        waits = _rounded(rates[WAITS])
        rows.append((*identity, rates[SENT], rates[RECEIVED], *peaks, waits, sampled, adapter.reports, adapter.guid))
    return TableAnswer("network", _ADAPTER_COLUMNS, rows, notes=_notes(sampled_adapters, notes))


def network_by_collective(job: OpenJob, selection: Selection) -> TableAnswer:
    """Tabulate the traffic of a host's adapters while its collectives of a kind and size ran, by link.

    Rates add up a host's adapters over the sampled part of its time in kernels of the group; rows have the mean over
    hosts, weighted by that time. Waits are the mean over adapters, ``slow_waits`` while the slowest tenth of the group
    ran. For a switch, all kernels of the group count.
    """
    sampled_adapters, notes = adapters(job, selection)
    if not sampled_adapters:
        return TableAnswer("network-by-collective", _COLLECTIVE_COLUMNS, [], notes=_notes(sampled_adapters, notes))
    rows: list[Row] = []
    groups = list(_groups(job, selection))
    for (collective, bucket), group in groups:
        for link in sorted({adapter.link for adapter in sampled_adapters}):
            values = _group_row(group, [adapter for adapter in sampled_adapters if adapter.link == link])
            if values is not None:
                rows.append((collective, bucket_label(int(bucket)), link, len(group), *values))
    if not groups:
        notes = (*notes, "no NCCL kernels in the selection")
    return TableAnswer("network-by-collective", _COLLECTIVE_COLUMNS, rows, notes=_notes(sampled_adapters, notes))


def _groups(job: OpenJob, selection: Selection) -> Iterator[tuple[Any, Any]]:
    kernels = selected(job.pairing().kernels, selection)
    kernels = kernels[kernels["end"].notna()]
    hosts = hosts_of(job)
    kernels = kernels.assign(
        host=[hosts[report] for report in kernels["report"]], bucket=bucket_numbers(kernels["message_size"])
    )
    for key, group in kernels.groupby(["collective", "bucket"], sort=True, observed=True, dropna=False):
        durations = (group["end"] - group["start"]).to_numpy(np.int64)
        yield key, group.assign(is_slow=durations >= np.quantile(durations, _SLOW))


def slow_collectives(job: OpenJob, selection: Selection) -> dict[str, Intervals]:
    """Return when the slowest tenth of the NCCL kernels of each collective and size ran, by host."""

    def make() -> dict[str, Intervals]:
        times: dict[str, Intervals] = {}
        for _, group in _groups(job, selection):
            for host, slow in group[group["is_slow"]].groupby("host"):
                times[host] = merge(times.get(host, EMPTY), _times(slow))
        return times

    return job.once(("slow-collectives", selection), make)


def _group_row(group: Any, link_adapters: list[Adapter]) -> tuple[Any, ...] | None:
    """Return time, rates, waits, slow waits, hosts and the sampled share, if there are samples."""
    is_slow = group["is_slow"].to_numpy(bool)
    by_host = grouped((adapter.host, adapter) for adapter in link_adapters)
    time, sampled, hosts = 0, 0, 0
    weighted, weights = [0.0] * 4, [0] * 4
    for host, host_adapters in by_host.items():
        is_on_host = group["host"].to_numpy() == host if host else np.ones(len(group), bool)
        if not is_on_host.any():
            continue
        hosts += 1
        times, slow = _times(group[is_on_host]), _times(group[is_on_host & is_slow])
        time += times.length
        longest = 0
        for index, (figure, span) in enumerate(((SENT, times), (RECEIVED, times), (WAITS, times), (WAITS, slow))):
            rates = [moved_within(adapter.figures[figure], span) for adapter in host_adapters] if len(span) else []
            known_rates = [rate for rate, _ in rates if rate is not None]
            if known_rates:
                covered = max(length for _, length in rates)
                weighted[index] += covered * sum(known_rates) / (len(known_rates) if figure == WAITS else 1)
                weights[index] += covered
                longest = max(longest, covered)
        sampled += longest
    if not sampled:
        return None
    means = [total / weight if weight else None for total, weight in zip(weighted, weights, strict=True)]
    return (time, *means[:2], *map(_rounded, means[2:]), hosts, 100 * sampled / time)


def _rounded(waits: float | None) -> float | None:
    return None if waits is None else round(waits, 1)


def _times(group: Any) -> Intervals:
    return union(group["start"].to_numpy(np.int64), group["end"].to_numpy(np.int64))


def _notes(sampled_adapters: Sequence[Adapter], notes: Sequence[str]) -> tuple[str, ...]:
    lengths = [ends - starts for adapter in sampled_adapters for starts, ends, _ in adapter.figures if len(starts)]
    if lengths:
        period = float(np.median(np.concatenate(lengths))) / 1e6
        notes = (
            *notes,
            f"a sample is the mean of {period:g} ms: a shorter event shares it with what else ran in that time",
        )
    return tuple(notes)
