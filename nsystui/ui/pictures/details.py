"""The details of a row: paragraphs of facts, the name first. What an event needs is asked for in a thread."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from nsystui.base.columns import FILES_ONLY, Column, Unit
from nsystui.base.units import MISSING, format_value
from nsystui.ui import keys

if TYPE_CHECKING:
    from nsystui.base.answer import Row, Value
    from nsystui.questions.job import Job
    from nsystui.questions.tasks import RankedTask
    from nsystui.store.session import Session

Details = list[list[str]]
"""Paragraphs of facts; the first one is the name alone."""

_BYTES = frozenset({"bytes", "static_shared_memory", "dynamic_shared_memory", "local_memory_per_thread", "send_bytes"})
_SHAPES = ("grid", "block")
_NOT_TOLD = frozenset({"name", "short_name", "mangled_name", "versioned_name"}) | {
    *("device", "stream", "correlation_id", "is_driver"),
}
_DOORS = ("⏎", "c", "w", "u", "L")


def doors_of(places: Sequence[str]) -> str:
    """Where it goes from a row: the keys of these places that lead on, in words."""
    found = {key.shown: key.label or key.help for key in keys.keys_of(places)}
    return "  ".join(f"{shown} {found[shown].partition(';')[0]}" for shown in _DOORS if found.get(shown))


def row_details(
    columns: Sequence[Column], row: Row, name: str | None, shown: Collection[str], around: Sequence[str] = ()
) -> Details:
    """The details of a row of any table: its name, and the values that the table has no room for.

    ``name`` is the key of the column with the name, ``shown`` are those of the columns on the screen.
    """
    values = dict(zip((column.key for column in columns), row, strict=True))
    title = str(values.get(name or "") or f"{columns[0].label} {format_value(columns[0].unit, row[0])}")
    return [[title], list(around), hidden_facts(columns, values, {name or "", *shown})]


def hidden_facts(columns: Sequence[Column], values: Mapping[str, Value], shown: Collection[str]) -> list[str]:
    """``label value`` of each column that is not ``shown`` and has a value."""
    hidden = [column for column in columns if column.importance < FILES_ONLY and column.key not in shown]
    worded = [(column.label, format_value(column.unit, values[column.key])) for column in hidden]
    return [f"{label.removesuffix(' %')} {value}" for label, value in worded if value not in ("", MISSING)]


def event_details(job: Job, row: Row) -> Details:
    """The details of an event of the event list: what launched it, the NVTX ranges around, its place, every fact.

    Of GPU work also what its thread did while the GPU was idle before it.
    """
    from nsystui.base.answer import record
    from nsystui.questions.events.listing import EVENT_COLUMNS, facts, key_of

    session, ranks = job.session, job.ranks
    values = record(EVENT_COLUMNS, row)
    found = facts(session, key_of(row))
    known = {name: value for _, value, name in found}
    partner, call = _partner(session, row, ranks)
    shapes = [
        f"{shape} {known[f'{shape}_x']}·{known[f'{shape}_y']}·{known[f'{shape}_z']}"
        for shape in _SHAPES
        if f"{shape}_x" in known
    ]
    others = [
        f"{word} {format_value(Unit.BYTES, value) if name in _BYTES else value}"
        for word, value, name in found
        if name not in _NOT_TOLD and not name.startswith(_SHAPES)
    ]
    # The list has the short names of kernels.
    name = known["name"] if values["kind"] in ("kernel", "nccl") and known.get("name") else values["name"]
    time = f"{format_value(Unit.DURATION, values['duration'])} from {format_value(Unit.TIME, values['start'])}"
    path = _path(session, call if call is not None else row)
    before = idle_before(job, row)
    return [[str(name or "")], [*partner, *before], path, [time, *_place(values)], [*shapes, *others]]


def idle_before(job: Job, row: Row) -> list[str]:
    """What the thread of GPU work did while the GPU was idle before it, as one sentence or none."""
    from nsystui.base.answer import record
    from nsystui.base.selection import Task
    from nsystui.questions.events.listing import EVENT_COLUMNS, key_of
    from nsystui.questions.host.before import before_launch

    key, values = key_of(row), record(EVENT_COLUMNS, row)
    process, device = values["process"], values["device"]
    if not key.kind.on_gpu or not isinstance(process, int) or not isinstance(device, int):
        return []
    said = before_launch(job, Task(key.report, process), device, key.start)
    return [said] if said else []


def _place(values: Mapping[str, Value]) -> list[str]:
    words = (("rank", "rank"), ("device", "device"), ("stream", "stream"), ("thread", "tid"), ("process", "pid"))
    found = [f"{word} {values[key]}" for word, key in words if values[key] is not None]
    if values["correlation_id"] is not None:
        found.append(f"correlation {values['correlation_id']:,}")
    return found


def _partner(session: Session, row: Row, ranks: Sequence[RankedTask]) -> tuple[list[str], Row | None]:
    """The other end of a launch in words, and the API call of GPU work."""
    from nsystui.questions.events.kinds import EventKind
    from nsystui.questions.events.listing import key_of, partners

    key = key_of(row)
    if key.kind is not EventKind.API and not key.kind.on_gpu:
        return [], None
    found = partners(session, key, ranks)
    if not found.rows:
        return [found.reason], None
    first = found.rows[0]
    if key.kind.on_gpu:
        return [f"launched by {_name(first)}, {_delay(first, row)}"], first
    if len(found.rows) > 1:
        return [f"launched {len(found.rows):,} operations", _delay(row, first)], None
    return [f"launched {_name(first)}, {_delay(row, first)}"], None


def _delay(call: Row, work: Row) -> str:
    from nsystui.questions.events.listing import launch

    delays = launch(call, work)
    queue = "began before the call returned" if delays.queue is None else f"queued {_duration(delays.queue)}"
    return f"{_duration(delays.delay)} from call to start ({queue})"


def _duration(value: int) -> str:
    return format_value(Unit.DURATION, value)


def _name(row: Row) -> Value:
    from nsystui.base.answer import record
    from nsystui.questions.events.listing import EVENT_COLUMNS

    return record(EVENT_COLUMNS, row)["name"]


def _path(session: Session, row: Row) -> list[str]:
    """The NVTX ranges around an event of a thread, outermost first."""
    from nsystui.base.answer import record
    from nsystui.questions.events.kinds import EventKind
    from nsystui.questions.events.listing import EVENT_COLUMNS, key_of
    from nsystui.questions.nvtx.listing import path_at

    values, key = record(EVENT_COLUMNS, row), key_of(row)
    if values["tid"] is None:
        return []
    thread = int(values["process"] or 0) | int(values["tid"] or 0)
    path = path_at(session, key.report, thread, key.start)
    if key.kind is EventKind.NVTX and path and path[-1] == values["name"]:
        path = path[:-1]
    return [f"NVTX {' › '.join(path)}"] if path else []
