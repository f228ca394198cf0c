"""Theoretical occupancy: the warps of a kernel that fit on a multiprocessor at once (docs/numbers.md#launches)."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from nsystui.exports.metadata import Multiprocessor
from nsystui.questions.queries.conditions import of_reports
from nsystui.questions.queries.tasks import used_devices
from nsystui.store import tables
from nsystui.store.session import Session

_WARP = 32
_REGISTER_UNIT = 256
"""Registers are given to a warp in units of so many, and to warps in groups of four."""
_WARP_GROUP = 4


def theoretical_occupancy(session: Session) -> sa.ColumnElement[Any]:
    """The theoretical occupancy of a row of ``kernels``, percent of the warps that a multiprocessor holds.

    Missing where registers, block or the GPU's limits are not recorded, and where a report has GPUs of several kinds.
    """
    gpus = {(report.index, gpu.gpu): gpu.multiprocessor for report in session.reports for gpu in report.metadata.gpus}
    of_report: dict[int, set[Multiprocessor | None]] = {}
    for used in used_devices(session):
        known = None if used.gpu is None else gpus.get((used.task.report, used.gpu))
        of_report.setdefault(used.task.report, set()).add(known)
    reports: dict[Multiprocessor, list[int]] = {}
    for report, (first, *others) in of_report.items():
        if first is not None and not others:
            reports.setdefault(first, []).append(report)
    whens = [(of_reports(tables.kernels.c.report, own), _percent(limits)) for limits, own in reports.items()]
    return sa.case(*whens, else_=sa.null()) if whens else sa.cast(sa.null(), sa.Double)


def _percent(limits: Multiprocessor) -> sa.ColumnElement[Any]:
    """By the formulas of NVIDIA's occupancy calculator, for the largest share of the cache that shared memory gets."""
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


def _units(value: sa.ColumnElement[Any], unit: int) -> sa.ColumnElement[int]:
    """The units that hold a value, the last one maybe in part."""
    return _fit(value + (unit - 1), sa.literal(unit))


def _fit(whole: int | sa.ColumnElement[Any], part: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    """How often a part fits into the whole; missing where the part is 0."""
    return sa.func.divide(whole, sa.func.nullif(part, 0), type_=sa.BigInteger)
