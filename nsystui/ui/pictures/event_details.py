"""The details of one event, as lines for a panel: where it ran, what launched it, how long that took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nsystui.base.answer import Row, Value, record
from nsystui.base.columns import Unit
from nsystui.base.units import format_value
from nsystui.questions.event_kinds import EventKind
from nsystui.questions.events import EVENT_COLUMNS, facts, key_of, launch, partners
from nsystui.questions.tasks import RankedTask
from nsystui.store.session import Session

_BYTES = frozenset({"bytes", "static_shared_memory", "dynamic_shared_memory", "local_memory_per_thread", "send_bytes"})
_SHAPES = ("grid", "block")
_LONG_NAMES = frozenset({"name", "short_name", "mangled_name", "versioned_name"})


def detail_lines(session: Session, row: Row, ranks: Sequence[RankedTask]) -> list[str]:
    """The most telling first: name, time, partner with the delays, then every fact of the event's table."""
    values = record(EVENT_COLUMNS, row)
    key = key_of(row)
    lines = [str(values["name"] or "")]
    lines.append(f"{format_value(Unit.DURATION, values['duration'])} from {format_value(Unit.TIME, values['start'])}")
    lines += _place_lines(values)
    lines += _partner_lines(session, row, ranks)
    found = facts(session, key)
    shown = {name: value for _, value, name in found}
    lines += [
        f"{shape} {shown[f'{shape}_x']}·{shown[f'{shape}_y']}·{shown[f'{shape}_z']}"
        for shape in _SHAPES
        if f"{shape}_x" in shown
    ]
    for word, value, name in found:
        if name in _LONG_NAMES or name.startswith(_SHAPES) or name in ("device", "stream", "correlation_id"):
            continue
        lines.append(f"{word} {format_value(Unit.BYTES, value) if name in _BYTES else value}")
    full = shown.get("name")
    if isinstance(full, str) and full != lines[0]:
        lines += ["", full]
    return lines


def _place_lines(values: dict[str, Value]) -> list[str]:
    parts = []
    if values["rank"] is not None:
        parts.append(f"rank {values['rank']}")
    if values["device"] is not None:
        parts.append(f"device {values['device']} stream {values['stream']}")
    if values["tid"] is not None:
        parts.append(f"thread {values['tid']}")
    if values["pid"] is not None:
        parts.append(f"process {values['pid']}")
    if values["correlation_id"] is not None:
        parts.append(f"correlation {values['correlation_id']}")
    return [" · ".join(parts)]


def _partner_lines(session: Session, row: Row, ranks: Sequence[RankedTask]) -> list[str]:
    key = key_of(row)
    if key.kind is not EventKind.API and not key.kind.on_gpu:
        return []
    found = partners(session, key, ranks)
    if not found.rows:
        return [found.reason]
    if key.kind.on_gpu:
        return [f"launched by {_name(found.rows[0])}", *_delay_lines(found.rows[0], row)]
    if len(found.rows) > 1:
        return [f"launched {len(found.rows):,} operations", *_delay_lines(row, found.rows[0])]
    return [f"launched {_name(found.rows[0])}", *_delay_lines(row, found.rows[0])]


def _delay_lines(call: Row, work: Row) -> list[str]:
    delays = launch(call, work)
    queue = "began before the call returned" if delays.queue is None else _duration(delays.queue)
    return [f"call → start {_duration(delays.delay)}, queue {queue}"]


def _duration(value: int) -> str:
    return format_value(Unit.DURATION, value)


def _name(row: Row) -> Any:
    return record(EVENT_COLUMNS, row)["name"]
