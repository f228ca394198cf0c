"""The details of a row: paragraphs of facts, the name first. What an event needs is asked for in a thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from nsystui.base.answer import Column, Unit, record
from nsystui.base.units import Wording, format_value
from nsystui.ui import keys

if TYPE_CHECKING:
    from nsystui.base.answer import Row, Value
    from nsystui.questions.events.listing import EventKey
    from nsystui.questions.job.job import OpenJob
    from nsystui.store.session import Session

Details = list[list[str]]
"""Paragraphs of facts; the first one is the name alone."""

_BYTES = frozenset({"bytes", "static_shared_memory", "dynamic_shared_memory", "local_memory_per_thread", "send_bytes"})
_SHAPES = ("grid", "block")
_NOT_TOLD = frozenset({"name", "short_name", "mangled_name", "versioned_name"}) | {
    *("device", "stream", "correlation_id", "is_driver", "event", "event_sync")
}
_PLACE = {"rank": "rank", "device": "device", "stream": "stream", "tid": "thread", "pid": "process"}
_FACTS = {
    "grid": "grid_x",
    "block": "block_x",
    "registers": "registers_per_thread",
    "shared_memory": "dynamic_shared_memory",
}
"""The field of an event that tells what a column of another key tells."""
_DOORS = ("⏎", "c", "w", "u", "M", "L")


def doors_of(places: Sequence[str], is_event: bool) -> str:
    """Where it goes from a row: the keys of these places that lead on, in words; to a range only from an event."""
    found = {key.shown: key.label or key.help for key in keys.keys_of(places) if is_event or key.shown != "w"}
    return "  ".join(f"{shown} {found[shown].partition(';')[0]}" for shown in _DOORS if found.get(shown))


def row_details(
    columns: Sequence[Column], row: Row, name: str | None, facts: Mapping[str, str], around: Sequence[str] = ()
) -> Details:
    """The details of a row of any table: its name, and the ``facts`` that the table has no room for.

    ``name`` is the key of the column with the name.
    """
    title = str(record(columns, row).get(name or "") or f"{columns[0].label} {format_value(columns[0].unit, row[0])}")
    return [[title], list(around), [words for key, words in facts.items() if key != name]]


def event_details(job: OpenJob, row: Row, besides: Mapping[str, str] = MappingProxyType({})) -> Details:
    """The details of an event of the event list: what launched it, the NVTX ranges around, its place, every fact.

    Of GPU work also what its thread did while the GPU was idle before it. A table may have facts ``besides``:
    those that are none of these precede them.
    """
    from nsystui.questions.events.listing import EVENT_COLUMNS, facts, key_of, waited_for

    session, values = job.session, record(EVENT_COLUMNS, row)
    found = facts(session, key_of(row))
    known = {name: value for _, value, name in found}
    partner, call = _partner(job, row)
    waited = waited_for(session, key_of(row), str(values["name"]))
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
    place = [f"{format_value(Unit.DURATION, values['duration'])} from {format_value(Unit.TIME, values['start'])}"]
    place += [f"{word} {values[key]}" for key, word in _PLACE.items() if values[key] is not None]
    if values["correlation_id"] is not None:
        place.append(f"correlation {values['correlation_id']:,}")
    path = _path(session, call if call is not None else row)
    told = {"start", "duration", "correlation_id", *_PLACE, *known}
    return [
        [str(values["name"] or "")],
        [*partner, *([waited] if waited else []), *idle_before(job, row)],
        path,
        place,
        [*(words for key, words in besides.items() if _FACTS.get(key, key) not in told), *shapes, *others],
    ]


_PATH = 2
"""The paragraph of an event's details that has the NVTX ranges around it."""


def with_context(details: Details, context: Sequence[str]) -> Details:
    """The details of an event with its context, which is asked for later."""
    return [[*context, *one] if place == _PATH else one for place, one in enumerate(details)]


def event_context(job: OpenJob, key: EventKey) -> list[str]:
    """The step of an event; of an NCCL kernel also its message, communicator and the rank that came last.

    Steps and collectives are those of the whole job: the first time this takes as long as the screens of them do.
    """
    from nsystui.questions.events.kinds import EventKind

    found = _step(job, key)
    return found + _collective(job, key) if key.kind is EventKind.NCCL else found


def _step(job: OpenJob, key: EventKey) -> list[str]:
    import numpy as np

    from nsystui.questions.events.listing import EVENT_COLUMNS, event_row, partners
    from nsystui.questions.steps.task_steps import NO_STEP

    row = event_row(job.session, key, job.ranks)
    if row is not None and key.kind.on_gpu:
        row = next(iter(partners(job.session, key, job.ranks).rows), None)
    values = {} if row is None else record(EVENT_COLUMNS, row)
    if values.get("process") is None or values.get("start") is None:
        return []
    process, start = (np.array([int(values[name] or 0)]) for name in ("process", "start"))
    number = int(job.steps().numbers_at(np.array([key.report]), process, start)[0])
    return [] if number == NO_STEP else [f"step {number}"]


def _collective(job: OpenJob, key: EventKey) -> list[str]:
    from nsystui.questions.collectives.waiting import last_to_arrive

    kernels = job.pairing().kernels
    own = kernels[(kernels["report"] == key.report) & (kernels["row"] == key.row)].to_dict("records")
    if not own:
        return []
    size, communicator, transfer = (own[0].get(name) for name in ("message_size", "communicator", "transfer"))
    found = []
    if size == size and size is not None:
        found.append(format_value(Unit.BYTES, int(size)))
    if isinstance(communicator, str):
        found.append(f"comm {communicator}")
    last = last_to_arrive(job.collectives(), key.report, key.row)
    rank = next((item.rank for item in job.ranks if last is not None and item.task == last.task), None)
    if transfer is not None and transfer == transfer:
        found += [f"rank {rank} came last"] if rank is not None else ["no rank was late"]
        found.append(f"transfer {format_value(Unit.DURATION, int(transfer))}")
    elif rank is not None:  # the communicator is not known, or not all of its ranks are open
        found.append(f"rank {rank} came last of the open ranks")
    return [" · ".join(found)] if found else []


def idle_before(job: OpenJob, row: Row) -> list[str]:
    """What the thread of GPU work did while the GPU was idle before it, as one sentence or none."""
    from nsystui.base.selection import Task
    from nsystui.questions.events.listing import EVENT_COLUMNS, key_of
    from nsystui.questions.host.gaps import before_launch

    key, values = key_of(row), record(EVENT_COLUMNS, row)
    process, device = values["process"], values["device"]
    if not key.kind.on_gpu or not isinstance(process, int) or not isinstance(device, int):
        return []
    said = before_launch(job, Task(key.report, process), device, key.start)
    return [said] if said else []


def _partner(job: OpenJob, row: Row) -> tuple[list[str], Row | None]:
    """The other end of a launch in words, and the API call of GPU work."""
    from nsystui.questions.events.kinds import EventKind
    from nsystui.questions.events.listing import key_of, partners

    key = key_of(row)
    if key.kind is not EventKind.API and not key.kind.on_gpu:
        return [], None
    found = partners(job.session, key, job.ranks)
    if not found.rows:
        return [found.reason], None
    first = found.rows[0]
    if key.kind.on_gpu:
        return [f"launched by {_name(first)}, {_delay(first, row)}"], first
    if len(found.rows) > 1:
        return [f"launched {len(found.rows):,} operations", _delay(row, first)], None
    name = str(_name(first))
    return [f"launched {job.smart_names().get(name, name)}, {_delay(row, first)}"], None


def _delay(call: Row, work: Row) -> str:
    from nsystui.questions.events.listing import launch

    delays = launch(call, work)
    wording = Wording.of(Unit.DURATION, (delays.delay,))
    queue = "began before the call returned" if delays.queue is None else f"queued {wording.words(delays.queue)}"
    return f"{wording.words(delays.delay)} from call to start ({queue})"


def _name(row: Row) -> Value:
    from nsystui.questions.events.listing import EVENT_COLUMNS

    return record(EVENT_COLUMNS, row)["name"]


def _path(session: Session, row: Row) -> list[str]:
    """The NVTX ranges around an event of a thread, outermost first."""
    from nsystui.questions.events.kinds import EventKind
    from nsystui.questions.events.listing import EVENT_COLUMNS, key_of
    from nsystui.questions.nvtx.around import path_at

    values, key = record(EVENT_COLUMNS, row), key_of(row)
    if values["tid"] is None:
        return []
    thread = int(values["process"] or 0) | int(values["tid"] or 0)
    until = key.start + int(values["duration"] or 0) if key.kind is EventKind.NVTX else None
    path = path_at(session, key.report, thread, key.start, until)
    if key.kind is EventKind.NVTX and path and path[-1] == values["name"]:
        path = path[:-1]
    return [f"NVTX {' › '.join(path)}"] if path else []
