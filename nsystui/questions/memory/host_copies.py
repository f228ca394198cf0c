"""Copies between host and GPU by the memory of the host: pinned or pageable, how fast, and on whose stream."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from nsystui.base.answer import COUNT, Column, Row, TableAnswer, Unit
from nsystui.base.selection import Selection
from nsystui.base.units import format_value
from nsystui.questions.queries.conditions import by_report, duration, job_end, job_start, where
from nsystui.questions.queries.data_notes import missing_note
from nsystui.questions.queries.time_window import extents
from nsystui.store import tables
from nsystui.store.session import Session

HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2
PINNED, PAGEABLE = "Pinned", "Pageable"
MANY_COPIES, LARGE_COPY = 20, 65_536
"""Copies that are worth a remark: so many of so many bytes in the mean."""
DIRECTIONS = {HOST_TO_DEVICE: "host-to-device", DEVICE_TO_HOST: "device-to-host"}


@dataclass(frozen=True)
class HostCopies:
    """The copies of one kind from or to one kind of host memory (``None``: the export does not say); time in ns.

    ``is_apart``: whether all of them run on streams that have no kernels.
    """

    kind: int
    memory: str | None
    count: int
    bytes: int
    time: int
    is_apart: bool

    @property
    def rate(self) -> float:
        """Bytes in a second."""
        return 1e9 * self.bytes / self.time if self.time else 0.0

    @property
    def words(self) -> str:
        """``device-to-host, pageable memory: 4 GiB at 2.0 GB/s``."""
        memory = "" if self.memory is None else f", {self.memory.lower()} memory"
        size = format_value(Unit.BYTES, self.bytes)
        return f"{DIRECTIONS[self.kind]}{memory}: {size} at {self.rate / 1e9:.1f} GB/s"


def host_copies(session: Session, selection: Selection) -> tuple[HostCopies, ...]:
    """The copies between host and GPUs, those that take longest first; not those between GPUs over the host."""
    memory, kernels = tables.memory_ops.c, tables.kernels
    streams = set(
        session.rows(
            sa.select(*(kernels.c[key] for key in ("report", "process", "device", "stream")))
            .where(*where(kernels, selection))
            .distinct()
        )
        if session.count(kernels)
        else ()
    )
    host = sa.case((memory.copy_kind == HOST_TO_DEVICE, memory.source_memory), else_=memory.target_memory)
    places = (memory.report, memory.process, memory.device, memory.stream)
    query = (
        sa.select(
            memory.copy_kind,
            host.label("host"),
            *places,
            sa.func.count(),
            sa.cast(sa.func.coalesce(sa.func.sum(memory.bytes), 0), sa.BigInteger),
            sa.cast(sa.func.coalesce(sa.func.sum(duration(tables.memory_ops)), 0), sa.BigInteger),
        )
        .where(*where(tables.memory_ops, selection), memory.copy_kind.in_(list(DIRECTIONS)))
        .where(sa.or_(host.is_(None), host != "Device"))
        .group_by(memory.copy_kind, host, *places)
    )
    found: dict[tuple[int, str | None], HostCopies] = {}
    for kind, name, *place, count, size, time in session.rows(query):
        is_apart = tuple(place) not in streams
        before = found.get((kind, name), HostCopies(kind, name, 0, 0, 0, True))
        found[kind, name] = HostCopies(
            kind, name, before.count + count, before.bytes + size, before.time + time, before.is_apart and is_apart
        )
    return tuple(sorted(found.values(), key=lambda one: (-one.time, one.kind, one.memory or "")))


def mostly(copies: Iterable[HostCopies], memory: str) -> bool:
    """Whether nine tenths of the time of copies are from or to this host memory."""
    every = list(copies)
    whole = sum(one.time for one in every)
    return bool(whole) and sum(one.time for one in every if one.memory == memory) >= 0.9 * whole


_LINKS = {
    "GP": (3, 13), "GV": (3, 13), "TU": (3, 13), "GA": (4, 26), "AD": (4, 26), "GH": (5, 55), "GB": (5, 55),
}  # fmt: skip
"""By the beginning of the chip's name the generation of PCIe, and about how many GB/s 16 lanes of it give copies."""
_SUPERCHIP = re.compile(r"\bG[HB]200\b")
"""GPUs whose link to the host is no PCIe."""


def link_of(session: Session) -> tuple[int, int] | None:
    """Return the generation of PCIe of the GPUs, and about how many GB/s it gives copies; ``None`` if not known."""
    devices = tables.devices.c
    query = sa.select(devices.chip, devices.name, devices.bus).distinct()
    known = session.rows(query) if session.count(tables.devices) else []
    # An integrated GPU has no address on a bus.
    links = {
        _LINKS.get((chip or "")[:2]) if bus and not _SUPERCHIP.search(name or "") else None for chip, name, bus in known
    }
    return links.pop() if len(links) == 1 else None


def link_words(session: Session, copies: Iterable[HostCopies]) -> str:
    """What the link of the GPUs could give, where some of the copies get less than half of it; empty if not known."""
    link = link_of(session)
    if link is None or all(one.rate >= 0.5e9 * link[1] for one in copies):
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
    Column("source", header="From", label="from", importance=1),
    Column("target", header="To", label="to", importance=1),
    Column("name", header="Operation", label="operation"),
)


def memory_rates(session: Session, selection: Selection) -> TableAnswer:
    """Tabulate the rates of copies and memsets by operation and kinds of memory, bytes/s, by total time.

    ``busy``: the share of the selected time in which any of them ran, the mean over the GPUs that copy at all.
    ``rate``: all bytes by all time; ``min`` to ``max``: of the single operations. ``of_link``: ``rate`` of what
    16 lanes of the PCIe generation of the GPUs give, of copies between host and GPU.
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
    for count, size, spent, kind, *rest in session.rows(query) if session.count(table) else ():
        whole = 1e9 * size / spent
        of_link = 1e-7 * whole / link[1] if link and kind in DIRECTIONS else None
        rows.append((count, size, spent, busy.get(tuple(rest[-3:])), whole, of_link, *rest))
    rows.sort(key=lambda row: (-int(row[2] or 0), str(row[-1])))
    notes = [note] if (note := missing_note(session, table)) else []
    if link is not None:
        notes.append(
            f"of link: 16 lanes of PCIe {link[0]}, the most that the GPU has, give copies about {link[1]} GB/s"
        )
    return TableAnswer("memory-rates", RATE_COLUMNS, rows, len(rows), tuple(notes))


def _busy(session: Session, selection: Selection) -> dict[tuple[Any, ...], float]:
    """The column ``busy`` of `memory_rates`, %, by the memory copied from and to, and the operation."""
    table = tables.memory_ops
    columns, when = table.c, extents(session, selection)
    keys, gpu = (columns.source_memory, columns.target_memory, columns.operation), ("report", "process", "device")
    lows, highs = ({report: getattr(own, edge) for report, own in when.items()} for edge in ("start", "end"))
    start = sa.func.greatest(job_start(table), by_report(table, lows)).label("start")
    end = sa.func.least(job_end(table), by_report(table, highs)).label("end")
    chosen = where(table, selection, columns.operation)
    own = sa.select(*keys, *(columns[key] for key in gpu), start, end).where(*chosen, columns.end > columns.start)
    inner = own.subquery()
    before = sa.func.max(inner.c.end).over(
        partition_by=[inner.c[key.name] for key in keys] + [inner.c[key] for key in gpu],
        order_by=inner.c.start,
        rows=(None, -1),
    )
    new = sa.func.greatest(inner.c.end - sa.func.greatest(inner.c.start, sa.func.coalesce(before, inner.c.start)), 0)
    parts = sa.select(*(inner.c[key.name] for key in keys), new.label("new")).subquery()
    names = [parts.c[key.name] for key in keys]
    sums = session.rows(sa.select(*names, sa.cast(sa.func.sum(parts.c.new), sa.BigInteger)).group_by(*names))
    gpus = session.rows(sa.select(*(columns[key] for key in gpu)).where(*where(table, selection)).distinct())
    whole = sum(when[report].end - when[report].start for report, *_ in gpus if report in when)
    return {tuple(row): 100.0 * length / whole for *row, length in sums} if whole else {}
