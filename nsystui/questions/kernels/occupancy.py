"""Theoretical occupancy: the share of a multiprocessor's warps that a kernel can use (docs/numbers.md#launches)."""

from __future__ import annotations

import sqlalchemy as sa

from nsystui.base.types import Expression, grouped
from nsystui.exports.metadata import Multiprocessor
from nsystui.questions.queries.conditions import of_reports
from nsystui.questions.queries.tasks import used_devices
from nsystui.store import tables
from nsystui.store.session import Session

_WARP = 32
_REGISTER_UNIT = 256
"""Registers are allocated to warps in multiples of this number, to `_WARP_GROUP` warps at once."""
_WARP_GROUP = 4


def theoretical_occupancy(session: Session) -> Expression:
    """Return the theoretical occupancy of rows of ``kernels``, percent of a multiprocessor's warps.

    Missing if registers, block or GPU limits are not recorded, or a report's GPUs differ.
    """
    gpus = {(report.index, gpu.gpu): gpu.multiprocessor for report in session.reports for gpu in report.metadata.gpus}
    limits_by_report: dict[int, set[Multiprocessor | None]] = {}
    for used in used_devices(session):
        limits = None if used.gpu is None else gpus.get((used.task.report, used.gpu))
        limits_by_report.setdefault(used.task.report, set()).add(limits)
    reports = grouped(
        (first, report) for report, (first, *more) in limits_by_report.items() if first is not None and not more
    )
    whens = [(of_reports(tables.kernels.c.report, indices), _percent(limits)) for limits, indices in reports.items()]
    return sa.case(*whens, else_=sa.null()) if whens else sa.cast(sa.null(), sa.Double)


def _percent(limits: Multiprocessor) -> Expression:
    """Return the occupancy by NVIDIA's calculator, with as much of the cache as possible for shared memory."""
    columns = tables.kernels.c
    warps = _units(columns.block_x * columns.block_y * columns.block_z, _WARP)
    registers = _units(columns.registers_per_thread * _WARP, _REGISTER_UNIT) * _REGISTER_UNIT
    reserved, unit = (1024, 128) if limits.compute_major >= 8 else (0, 256)
    shared = _units(columns.static_shared_memory + columns.dynamic_shared_memory + reserved, unit) * unit
    by_registers = _fit(_fit(limits.registers, registers), sa.literal(_WARP_GROUP)) * _WARP_GROUP
    blocks = sa.func.least(
        limits.blocks, _fit(limits.warps, warps), _fit(by_registers, warps), _fit(limits.shared_memory, shared)
    )
    is_known = sa.and_(warps > 0, registers > 0, shared.is_not(None), blocks > 0)
    return sa.case((is_known, 100.0 * blocks * warps / limits.warps), else_=sa.null())


def _units(value: Expression, unit: int) -> sa.ColumnElement[int]:
    return _fit(value + (unit - 1), sa.literal(unit))


def _fit(total: int | Expression, part: Expression) -> sa.ColumnElement[int]:
    return sa.func.divide(total, sa.func.nullif(part, 0), type_=sa.BigInteger)
