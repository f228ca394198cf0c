"""Unified memory: migrations and page faults, as in ``nsys stats`` (docs/numbers.md#nsys-stats).

Migrations are the memory copies of kind 11 (host to device) and 12 (device to host). Sizes are in MB of 10⁶ bytes,
addresses in hexadecimal. Addresses have no names: the name filter applies to instructions only.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from nsystui.base.answer import Column, Row, TableAnswer, Unit
from nsystui.base.selection import Selection
from nsystui.base.types import Condition, Expression, Query
from nsystui.base.units import MEGABYTE
from nsystui.questions.queries.conditions import duration, where
from nsystui.questions.queries.data_notes import absent_notes
from nsystui.questions.stats.report import AskReport, ReportOptions
from nsystui.store import tables
from nsystui.store.session import Session

_HOST_TO_DEVICE = 11
_DEVICE_TO_HOST = 12
_COPIES, _CPU, _GPU = tables.memory_ops, tables.cpu_page_faults, tables.gpu_page_faults
_TABLES = (_COPIES, _CPU, _GPU)

_TOTAL_COLUMNS = (
    Column("htod", header="Total HtoD Migration Size (MB)", label="HtoD MB", unit=Unit.MEGABYTES, decimals=3),
    Column("dtoh", header="Total DtoH Migration Size (MB)", label="DtoH MB", unit=Unit.MEGABYTES, decimals=3),
    Column("cpu_faults", header="Total CPU Page Faults", label="CPU faults", unit=Unit.COUNT),
    Column("gpu_faults", header="Total GPU PageFaults", label="GPU faults", unit=Unit.COUNT),
    Column("first_address", header="Minimum Virtual Address", label="from", importance=1),
    Column("last_address", header="Maximum Virtual Address", label="to", importance=1),
)
_ADDRESS_COLUMNS = (
    Column("address", header="Virtual Address", label="address"),
    Column("htod", header="HtoD Migration size (MB)", label="HtoD MB", unit=Unit.MEGABYTES, decimals=3, importance=1),
    Column("dtoh", header="DtoH Migration size (MB)", label="DtoH MB", unit=Unit.MEGABYTES, decimals=3, importance=1),
    Column("cpu_faults", header="CPU Page Faults", label="CPU faults", unit=Unit.COUNT, importance=2),
    # nsys writes the blank before this heading.
    Column("gpu_faults", header=" GPU Page Faults", label="GPU faults", unit=Unit.COUNT, importance=2),
    Column("throughput", header="Migration Throughput (MB/s)", label="MB/s", unit=Unit.MEGABYTE_RATE, decimals=3),
)
_FAULT_COLUMNS = (
    Column("count", header="CPU Page Faults", label="faults", unit=Unit.COUNT),
    Column("instruction", header="CPU Instruction Address", label="instruction"),
)
_SOURCE_COLUMNS = (
    Column("source_file", header="Source File", label="file", importance=1),
    Column("source_line", header="Source Line", label="line", unit=Unit.NUMBER, importance=1),
)


def _totals(session: Session, selection: Selection, _: ReportOptions) -> TableAnswer:
    """Answer ``um_total_sum``: one row of sums, and the span of all addresses.

    As in nsys, the span is empty if a direction has no migrations, or CPU or GPU has no faults.
    """
    notes = absent_notes(session, *_TABLES)
    if not _is_complete(session):
        return TableAnswer("um-totals", _TOTAL_COLUMNS, [], 0, notes)

    def summed(table: sa.Table, amount: Expression, address: Expression, *conditions: Condition) -> tuple[Any, ...]:
        """Return an amount over the selected rows, and their lowest and highest address, if any."""
        query = sa.select(amount, sa.func.min(address), sa.func.max(address)).select_from(table)
        return session.rows(query.where(*where(table, selection), *conditions))[0]

    size, address, kind = sa.func.sum(_COPIES.c.bytes), _COPIES.c.virtual_address, _COPIES.c.copy_kind
    htod, dtoh = (summed(_COPIES, size, address, kind == way) for way in (_HOST_TO_DEVICE, _DEVICE_TO_HOST))
    cpu = summed(_CPU, sa.func.count(), _CPU.c.address)
    gpu = summed(_GPU, sa.func.sum(_GPU.c.count), _GPU.c.address)
    lowest, highest = zip(*(part[1:] for part in (cpu, gpu, htod, dtoh)), strict=True)
    span = [None if None in ends else _hexadecimal(of(ends)) for of, ends in ((min, lowest), (max, highest))]
    row: Row = (_megabytes(htod[0]), _megabytes(dtoh[0]), cpu[0], gpu[0], *span)
    return TableAnswer("um-totals", _TOTAL_COLUMNS, [row], 1, notes)


def _addresses(session: Session, selection: Selection, options: ReportOptions) -> TableAnswer:
    """Answer ``um_sum``: a row per virtual address (of each export) with migrations or faults, fastest first.

    The throughput is nsys's: bytes times how often all migrations fit into a second, as a whole number. It is 0 if they
    take longer than a second.
    """
    notes = absent_notes(session, *_TABLES)
    if not _is_complete(session):
        return TableAnswer("um-addresses", _ADDRESS_COLUMNS, [], 0, notes)
    sums = _by_address(selection).subquery()
    per_second = sa.literal(10**9, sa.BigInteger).op("//")(sa.func.nullif(sums.c.duration, 0))
    throughput = (sa.cast(sums.c.bytes, sa.Double) * per_second).label("throughput")
    query = sa.select(sums.c.address, sums.c.htod, sums.c.dtoh, sums.c.cpu, sums.c.gpu, throughput)
    order = (throughput.desc().nulls_last(), sums.c.address, sums.c.report)
    rows: list[Row] = [
        (_hexadecimal(address), _megabytes(htod), _megabytes(dtoh), cpu, gpu, _megabytes(rate))
        for address, htod, dtoh, cpu, gpu, rate in session.rows(query.order_by(*order).limit(options.rows))
    ]
    total = session.scalar(sa.select(sa.func.count()).select_from(_by_address(Selection()).subquery()))
    return TableAnswer("um-addresses", _ADDRESS_COLUMNS, rows, int(total), notes)


def _by_address(selection: Selection) -> Query:
    """Select sums by report and address; ``NULL`` means that the address has no such events in the report."""
    kind, size = _COPIES.c.copy_kind, _COPIES.c.bytes
    moves = {key: sa.case((kind == way, size)) for key, way in (("htod", _HOST_TO_DEVICE), ("dtoh", _DEVICE_TO_HOST))}
    are_moves = [*where(_COPIES, selection), kind.in_((_HOST_TO_DEVICE, _DEVICE_TO_HOST))]
    migrations = _part(_COPIES, _COPIES.c.virtual_address, are_moves, **moves, bytes=size, duration=duration(_COPIES))
    cpu = _part(_CPU, _CPU.c.address, where(_CPU, selection), cpu=sa.literal(1, sa.BigInteger))
    gpu = _part(_GPU, _GPU.c.address, where(_GPU, selection), gpu=_GPU.c.count)
    rows = sa.union_all(migrations, cpu, gpu).subquery()
    sums = [sa.cast(sa.func.sum(rows.c[name]), sa.BigInteger).label(name) for name in _SUMS]
    return sa.select(rows.c.report, rows.c.address, *sums).group_by(rows.c.report, rows.c.address)


_SUMS = ("htod", "dtoh", "cpu", "gpu", "bytes", "duration")


def _part(table: sa.Table, address: Expression, conditions: Sequence[Condition], **values: Expression) -> Query:
    nothing = sa.cast(sa.null(), sa.BigInteger)
    amounts = [values.get(name, nothing).label(name) for name in _SUMS]
    return sa.select(table.c.report, address.label("address"), *amounts).where(address.is_not(None), *conditions)


def _instructions(session: Session, selection: Selection, _: ReportOptions) -> TableAnswer:
    """Answer ``um_cpu_page_faults_sum``: CPU page faults by instruction and, if exported, source file and line.

    Newer versions of nsys have the source columns; 2023.4 has only the first two columns.
    """
    table = _CPU.c
    has_source = bool(session.scalar(sa.select(sa.func.count(table.source_file))))
    columns = (*_FAULT_COLUMNS, *_SOURCE_COLUMNS) if has_source else _FAULT_COLUMNS
    keys: list[Expression] = [table.instruction]
    if has_source:
        keys += [sa.func.nullif(table.source_file, "").label("source_file"), table.source_line]
    count = sa.func.count().label("count")
    query = sa.select(count, *keys).where(*where(_CPU, selection, table.instruction)).group_by(*keys)
    # Equal counts are sorted by their first row, which is the order of nsys's ids.
    rows = session.rows(query.order_by(count.desc(), sa.func.min(table.row), *keys))
    total = session.scalar(sa.select(sa.func.count()).select_from(sa.select(*keys).distinct().subquery()))
    return TableAnswer("um-cpu-page-faults", columns, rows, int(total), absent_notes(session, _CPU))


def _is_complete(session: Session) -> bool:
    """Return whether each table is in at least one export; otherwise nsys has no such report either."""
    return all(any(report.has(table) for report in session.reports) for table in _TABLES)


def _megabytes(size: float | None) -> float | None:
    return None if size is None else size / MEGABYTE


def _hexadecimal(address: int) -> str:
    """Return ``0x7F9C80000000``, nsys's form: addresses are unsigned, unlike SQLite's integers."""
    return f"0x{address & 0xFFFF_FFFF_FFFF_FFFF:X}"


ASK: dict[str, AskReport] = {"um_cpu_page_faults_sum": _instructions, "um_sum": _addresses, "um_total_sum": _totals}
