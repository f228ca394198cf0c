"""Copies between host and GPU by kind of host memory (pinned or pageable): rates and streams."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from nsystui.base.answer import COUNT, Column, Row, TableAnswer, Unit
from nsystui.base.selection import Selection
from nsystui.base.units import format_value
from nsystui.questions.queries.conditions import by_report, duration, job_end, job_start, where
from nsystui.questions.queries.data_notes import missing_notes
from nsystui.questions.queries.time_window import extents
from nsystui.store import tables
from nsystui.store.session import Session

HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2
PINNED, PAGEABLE = "Pinned", "Pageable"
MANY_COPIES, LARGE_COPY = 20, 65_536
"""Number and mean bytes of copies that are worth a remark."""
DIRECTIONS = {HOST_TO_DEVICE: "host-to-device", DEVICE_TO_HOST: "device-to-host"}


@dataclass(frozen=True)
class HostCopies:
    """The copies of one kind from or to one kind of host memory (``None``: not recorded); time in ns.

    ``is_apart``: all ran on streams without kernels.
    """

    kind: int
    memory: str | None
    count: int
    bytes: int
    time: int
    is_apart: bool

    @property
    def rate(self) -> float:
        """Bytes per second."""
        return 1e9 * self.bytes / self.time if self.time else 0.0

    @property
    def words(self) -> str:
        """``device-to-host, pageable memory: 4 GiB at 2.0 GB/s``."""
        memory = "" if self.memory is None else f", {self.memory.lower()} memory"
        size = format_value(Unit.BYTES, self.bytes)
        return f"{DIRECTIONS[self.kind]}{memory}: {size} at {self.rate / 1e9:.1f} GB/s"


def host_copies(session: Session, selection: Selection) -> tuple[HostCopies, ...]:
    """Return the copies between host and GPUs, except between GPUs over the host; longest total first."""
    memory, kernels = tables.memory_ops, tables.kernels
    keys = ("report", "process", "device", "stream")
    computing = sa.select(*(kernels.c[key] for key in keys)).where(*where(kernels, selection)).distinct().subquery()
    is_same = sa.and_(*(memory.c[key].is_not_distinct_from(computing.c[key]) for key in keys))
    host = sa.case((memory.c.copy_kind == HOST_TO_DEVICE, memory.c.source_memory), else_=memory.c.target_memory)
    sums = (sa.cast(sa.func.sum(value), sa.BigInteger) for value in (memory.c.bytes, duration(memory)))
    query = (
        sa.select(memory.c.copy_kind, host, sa.func.count(), *sums, sa.func.bool_and(computing.c.report.is_(None)))
        .select_from(memory.outerjoin(computing, is_same))
        .where(*where(memory, selection), memory.c.copy_kind.in_(list(DIRECTIONS)))
        .where(sa.or_(host.is_(None), host != "Device"))
        .group_by(memory.c.copy_kind, host)
    )
    rows = session.rows(query)
    copies = [
        HostCopies(kind, name, count, size or 0, time or 0, apart) for kind, name, count, size, time, apart in rows
    ]
    return tuple(sorted(copies, key=lambda item: (-item.time, item.kind, item.memory or "")))


def mostly(copies: Iterable[HostCopies], memory: str) -> bool:
    """Return whether copies from or to ``memory`` take at least 90 % of the total time."""
    all_copies = list(copies)
    total_time = sum(item.time for item in all_copies)
    return bool(total_time) and sum(item.time for item in all_copies if item.memory == memory) >= 0.9 * total_time


_LINKS = {
    "GP": (3, 13), "GV": (3, 13), "TU": (3, 13), "GA": (4, 26), "AD": (4, 26), "GH": (5, 55), "GB": (5, 55),
}  # fmt: skip
"""PCIe generation and approximate rate of copies over 16 lanes, GB/s, by the first letters of the chip."""
_WITHOUT_PCIE = re.compile(r"\bG[HB][23]00\b|\bMIG\b|\bGRID\b|-\d+[ABCQ]\b")
"""GPUs whose link to the host is not PCIe, and parts of a GPU (MIG, vGPU), whose share of the link is unknown."""
_INTEGRATED = re.compile(r"\b(?:Jetson|Tegra|Xavier|Orin|Thor|GB10)\b")
"""GPUs that share one memory with the CPU."""


def has_one_memory(session: Session) -> bool:
    """Return whether all GPUs are, by name, integrated GPUs, which share one memory with the CPU."""
    names = session.rows(sa.select(tables.devices.c.name).distinct()) if session.count(tables.devices) else []
    return bool(names) and all(_INTEGRATED.search(text or "") for (text,) in names)


def link_of(session: Session) -> tuple[int, int] | None:
    """Return PCIe generation and approximate rate of copies, GB/s, if known and common to all GPUs."""
    devices = tables.devices.c
    query = sa.select(devices.chip, devices.name, devices.bus).distinct()
    chips = session.rows(query) if session.count(tables.devices) else []
    # An integrated GPU has no address on a bus.
    links = {
        _LINKS.get((chip or "")[:2]) if bus and not _WITHOUT_PCIE.search(name or "") else None
        for chip, name, bus in chips
    }
    return links.pop() if len(links) == 1 and not has_one_memory(session) else None


def link_words(session: Session, copies: Iterable[HostCopies]) -> str:
    """Return the link's possible rate in words; empty if all copies reach half of it."""
    link = link_of(session)
    if link is None or all(item.rate >= 0.5e9 * link[1] for item in copies):
        return ""
    return f"; the GPU's link, PCIe {link[0]} at best, gives about {link[1]} GB/s"


RATE_COLUMNS = (
    COUNT,
    Column("bytes", header="Total Bytes", label="bytes", unit=Unit.BYTES, importance=2),
    Column("total", header="Total Time (ns)", label="total", unit=Unit.DURATION, importance=1),
    Column("busy", header="Busy (%)", label="busy", unit=Unit.PERCENT, decimals=2, importance=1),
    Column("rate", header="Rate (B/s)", label="rate", unit=Unit.RATE, decimals=1),
    Column("of_link", header="Of Link (%)", label="of link", unit=Unit.PERCENT, decimals=1, importance=1),
    Column("min", header="Min (B/s)", label="min", importance=4, unit=Unit.RATE, decimals=1),
    Column("q1", header="Q1 (B/s)", label="q1", importance=3, unit=Unit.RATE, decimals=1),
    Column("median", header="Med (B/s)", label="median", importance=1, unit=Unit.RATE, decimals=1),
    Column("q3", header="Q3 (B/s)", label="q3", importance=3, unit=Unit.RATE, decimals=1),
    Column("max", header="Max (B/s)", label="max", importance=2, unit=Unit.RATE, decimals=1),
    Column("source", header="From", label="from"),
    Column("target", header="To", label="to"),
    Column("name", header="Operation", label="operation"),
)


def memory_rates(session: Session, selection: Selection) -> TableAnswer:
    """Tabulate the rates of copies and memsets by operation and kinds of memory, bytes/s, longest total first.

    ``busy``: the share of the selected time in which any ran, averaged over the GPUs with memory operations. ``rate``:
    total bytes by total time; ``min`` to ``max``: of single operations. ``of_link``: ``rate`` as a share of 16 lanes of
    the GPUs' PCIe generation, for copies between host and GPU.
    """
    table = tables.memory_ops
    columns = table.c
    time = duration(table)
    rate = sa.cast(columns.bytes, sa.Double) * 1e9 / sa.cast(time, sa.Double)
    spread = (sa.func.quantile_cont(rate, share) for share in (0.0, 0.25, 0.5, 0.75, 1.0))
    keys = (columns.source_memory, columns.target_memory, columns.operation)
    sums = (sa.cast(sa.func.sum(value), sa.BigInteger) for value in (columns.bytes, time))
    query = (
        sa.select(sa.func.count(), *sums, sa.func.min(columns.copy_kind), *spread, *keys)
        .where(*where(table, selection, columns.operation), columns.bytes.is_not(None), time > 0)
        .group_by(*keys)
    )
    link = link_of(session)
    busy = _busy(session, selection) if session.count(table) else {}
    rows: list[Row] = []
    for count, size, total_time, kind, *values in session.rows(query) if session.count(table) else ():
        mean_rate = 1e9 * size / total_time
        of_link = 1e-7 * mean_rate / link[1] if link and kind in DIRECTIONS else None
        rows.append((count, size, total_time, busy.get(tuple(values[-3:])), mean_rate, of_link, *values))
    rows.sort(key=lambda row: (-int(row[2] or 0), str(row[-1])))
    notes = missing_notes(session, table)
    if link is not None:
        notes += (f"of link: 16 lanes of PCIe {link[0]}, the most that the GPU has, give copies about {link[1]} GB/s",)
    return TableAnswer("memory-rates", RATE_COLUMNS, rows, len(rows), notes)


def _busy(session: Session, selection: Selection) -> dict[tuple[Any, ...], float]:
    """Return ``busy`` of `memory_rates`, %, by source memory, target memory and operation."""
    table = tables.memory_ops
    columns, windows = table.c, extents(session, selection)
    keys, gpu = (columns.source_memory, columns.target_memory, columns.operation), ("report", "process", "device")
    lows, highs = ({report: getattr(window, edge) for report, window in windows.items()} for edge in ("start", "end"))
    start = sa.func.greatest(job_start(table), by_report(table, lows)).label("start")
    end = sa.func.least(job_end(table), by_report(table, highs)).label("end")
    conditions = where(table, selection, columns.operation)
    timed = sa.select(*keys, *(columns[key] for key in gpu), start, end).where(*conditions, columns.end > columns.start)
    inner = timed.subquery()
    latest = sa.func.max(inner.c.end).over(
        partition_by=[inner.c[key.name] for key in keys] + [inner.c[key] for key in gpu],
        order_by=inner.c.start,
        rows=(None, -1),
    )
    new = sa.func.greatest(inner.c.end - sa.func.greatest(inner.c.start, sa.func.coalesce(latest, inner.c.start)), 0)
    parts = sa.select(*(inner.c[key.name] for key in keys), new.label("new")).subquery()
    names = [parts.c[key.name] for key in keys]
    sums = session.rows(sa.select(*names, sa.cast(sa.func.sum(parts.c.new), sa.BigInteger)).group_by(*names))
    gpus = session.rows(sa.select(*(columns[key] for key in gpu)).where(*where(table, selection)).distinct())
    window_time = sum(windows[report].end - windows[report].start for report, *_ in gpus if report in windows)
    return {tuple(row): 100.0 * length / window_time for *row, length in sums} if window_time else {}
