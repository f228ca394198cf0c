"""Which CUDA event a wait waited for, and where that was recorded (docs/exports.md#cuda-events)."""

from __future__ import annotations

import sqlalchemy as sa

from nsystui.base.columns import Unit
from nsystui.base.units import format_value
from nsystui.exports import canonical
from nsystui.questions.conditions import is_launched_by
from nsystui.questions.events.kinds import EventKind
from nsystui.questions.events.listing import EventKey
from nsystui.store import tables
from nsystui.store.session import Session

_WAITS = ("EventSynchronize", "WaitEvent")


def waited_for(session: Session, key: EventKey, name: str) -> str:
    """``waited for event 32, recorded on stream 20 1.2 ms before``, of a wait or its call; empty of anything else."""
    syncs, records, calls = tables.syncs, tables.cuda_events, tables.api_calls
    session = session.part([key.report])
    is_call = key.kind is EventKind.API and any(word in name for word in _WAITS)
    if not (is_call or key.kind is EventKind.SYNC) or not session.count(syncs):
        return ""
    wanted = sa.select(syncs.c.process, syncs.c.context, syncs.c.event, syncs.c.event_sync, syncs.c.start)
    wanted = wanted.where(syncs.c.report == key.report, syncs.c.event.is_not(None))
    if is_call:
        wanted = wanted.join_from(syncs, calls, is_launched_by(syncs, calls)).where(calls.c.row == key.row)
    else:
        wanted = wanted.where(syncs.c.row == key.row)
    found = session.rows(wanted.limit(1))
    if not found:
        return ""
    process, context, event, event_sync, start = found[0]
    words = f"waited for event {event}"
    if not session.count(records):
        return f"{words}; to see where it was recorded, {canonical.CUDA_EVENTS.record}"
    query = sa.select(records.c.stream, calls.c.start).join_from(records, calls, is_launched_by(records, calls))
    query = query.where(records.c.report == key.report, records.c.process == process, calls.c.start <= start)
    # Since schema 3.25 the two have a number in common; before, an event has one in its context.
    own = [records.c.event_sync == event_sync] if event_sync else [
        records.c.event == event, records.c.context == context,
    ]  # fmt: skip
    rows = session.rows(query.where(*own).order_by(calls.c.start.desc(), records.c.row.desc()).limit(1))
    if not rows:
        return f"{words}, which was not recorded before in this export"
    stream, recorded = rows[0]
    return f"{words}, recorded on stream {stream} {format_value(Unit.DURATION, start - recorded)} before"
