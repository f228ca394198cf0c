"""Congestion of the network, as ``nsys stats`` has it (docs/numbers.md#nsys-stats)."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from nsystui.base.columns import DURATION, END, START, Column, Unit
from nsystui.base.selection import Selection
from nsystui.questions.missing import absent_note
from nsystui.questions.paged import PagedAnswer
from nsystui.questions.stats.report import Ask, Options
from nsystui.questions.where import duration, job_start, where
from nsystui.store import tables
from nsystui.store.session import Session

_METRIC = "IB: Send waits"
_SAMPLES, _ADAPTERS = tables.nic_metrics, tables.nic_devices

_COLUMNS = (
    START,
    END.with_importance(2),
    DURATION.with_importance(1),
    Column("send_waits", header="Send wait rate", label="send waits/ms", unit=Unit.NUMBER),
    Column("guid", header="GUID", label="guid", importance=1),
    Column("device", header="Name", label="device"),
)


def _congestion(session: Session, selection: Selection, options: Options) -> PagedAnswer:
    """``network_congestion``: samples with more send waits (ticks/ms) than the threshold, by start in job time.

    The GUID is written as an unsigned hexadecimal number; switches have no name. Header and form of the GUID are
    UNVERIFIED: they follow the documentation, no output of nsys 2023.4 is known.
    """
    is_waiting = _SAMPLES.c.metric == _METRIC
    conditions = [*where(_SAMPLES, selection, _SAMPLES.c.metric), is_waiting]
    conditions.append(_SAMPLES.c.value > options.ticks_threshold)
    adapters = _adapters()
    is_sampled = sa.and_(
        adapters.c.report == _SAMPLES.c.report, adapters.c.nic == _SAMPLES.c.nic, _SAMPLES.c.is_switch == 0
    )
    guid = sa.case((_SAMPLES.c.is_switch == 1, _SAMPLES.c.nic), else_=adapters.c.guid)
    query = (
        sa.select(
            job_start(_SAMPLES).label("start"),
            (_SAMPLES.c.end + _SAMPLES.c.clock_offset).label("end"),
            duration(_SAMPLES).label("duration"),
            _SAMPLES.c.value.label("send_waits"),
            (sa.literal("0x", sa.Text) + sa.func.to_hex(guid, type_=sa.Text)).label("guid"),
            adapters.c.name.label("device"),
            _SAMPLES.c.report,
            _SAMPLES.c.row,
        )
        .select_from(_SAMPLES.outerjoin(adapters, is_sampled))
        .where(*conditions)
    )
    note = absent_note(session, _SAMPLES)
    return PagedAnswer.of(
        session,
        "network-congestion",
        _COLUMNS,
        query,
        sa.select(sa.func.count()).select_from(_SAMPLES).where(*conditions),
        sa.select(sa.func.count()).select_from(_SAMPLES).where(is_waiting),
        ("start", False),
        ("report", "row"),
        (note,) if note else (),
    )


def _adapters() -> sa.Subquery[Any]:
    """One row for each adapter of a report: an id that is there twice would double its samples."""
    columns = _ADAPTERS.c
    first = [sa.func.min(column).label(column.name) for column in (columns.guid, columns.name)]
    return sa.select(columns.report, columns.nic, *first).group_by(columns.report, columns.nic).subquery()


ASK: dict[str, Ask] = {
    "network_congestion": _congestion,
}
