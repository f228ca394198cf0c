"""An event's details: paragraphs of facts, first its name. They need queries: ask in a thread."""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from nsystui.base.answer import Row, Unit, record
from nsystui.base.selection import Task
from nsystui.base.text import counted
from nsystui.base.units import Wording, format_value
from nsystui.questions.collectives.waiting import last_to_arrive
from nsystui.questions.events.kinds import EventKind
from nsystui.questions.events.listing import (
    EVENT_COLUMNS,
    EventKey,
    event_row,
    facts,
    key_of,
    launch,
    partners,
    waited_for,
)
from nsystui.questions.host.gaps import before_launch
from nsystui.questions.job.job import OpenJob
from nsystui.questions.nvtx.around import capture_of, path_at
from nsystui.questions.steps.task_steps import NO_STEP
from nsystui.store.session import Session
from nsystui.ui.widgets.panels import Details

_BYTES = frozenset({"bytes", "static_shared_memory", "dynamic_shared_memory", "local_memory_per_thread", "send_bytes"})
_SHAPES = ("grid", "block")
_HIDDEN_FACTS = frozenset({"name", "short_name", "mangled_name", "versioned_name"}) | {
    *("device", "stream", "correlation_id", "is_driver", "event", "event_sync")
}
_POSITION_WORDS = {"rank": "rank", "device": "device", "stream": "stream", "tid": "thread", "pid": "process"}
_EVENT_FIELDS = {
    "grid": "grid_x", "block": "block_x", "registers": "registers_per_thread", "shared_memory": "dynamic_shared_memory",
}  # fmt: skip
"""The event field that holds the same fact, by table column."""


def event_details(job: OpenJob, row: Row, table_facts: Mapping[str, str] = MappingProxyType({})) -> Details:
    """Return an event's details: launch, NVTX ranges around it, position, facts.

    GPU work also has the thread's activity while the GPU was idle before it. ``table_facts`` that the event lacks
    precede its facts.
    """
    session, event = job.session, record(EVENT_COLUMNS, row)
    event_facts = facts(session, key_of(row))
    fields = {name: value for _, value, name in event_facts}
    partner, call = _partner(job, row)
    waited = waited_for(session, key_of(row), str(event["name"]))
    shapes = [
        f"{shape} {fields[f'{shape}_x']}·{fields[f'{shape}_y']}·{fields[f'{shape}_z']}"
        for shape in _SHAPES
        if f"{shape}_x" in fields
    ]
    texts = [
        f"{word} {format_value(Unit.BYTES, value) if name in _BYTES else value}"
        for word, value, name in event_facts
        if name not in _HIDDEN_FACTS and not name.startswith(_SHAPES)
    ]
    position = [f"{format_value(Unit.DURATION, event['duration'])} from {format_value(Unit.TIME, event['start'])}"]
    position += [f"{word} {event[key]}" for key, word in _POSITION_WORDS.items() if event[key] is not None]
    if event["correlation_id"] is not None:
        position.append(f"correlation {event['correlation_id']:,}")
    captured = capture_of(session, key_of(row))  # of an operation of a CUDA graph
    capture = path_at(session, key_of(row).report, *captured) if captured is not None else ()
    path = [f"captured in NVTX {' › '.join(capture)}"] if capture else []
    shown = {"start", "duration", "correlation_id", *_POSITION_WORDS, *fields}
    return [
        [str(event["name"] or "")],
        [*partner, *([waited] if waited else []), *idle_before(job, row)],
        [*path, *_path(session, call if call is not None else row)],
        position,
        [*(words for key, words in table_facts.items() if _EVENT_FIELDS.get(key, key) not in shown), *shapes, *texts],
    ]


def event_context(job: OpenJob, key: EventKey) -> list[str]:
    """Return an event's step; for an NCCL kernel also its message, communicator and last rank to arrive.

    Steps and collectives need the whole job: the first call takes as long as their screens.
    """
    row = event_row(job.session, key, job.ranks)
    if row is not None and key.kind.on_stream:
        row = next(iter(partners(job.session, key, job.ranks).rows), None)
    event = {} if row is None else record(EVENT_COLUMNS, row)
    step_words = []
    if event.get("process") is not None and event.get("start") is not None:
        process, start = (np.array([int(event[name] or 0)]) for name in ("process", "start"))
        number = int(job.steps().numbers_at(np.array([key.report]), process, start)[0])
        step_words = [] if number == NO_STEP else [f"step {number}"]
    return step_words + _collective(job, key) if key.kind is EventKind.NCCL else step_words


def _collective(job: OpenJob, key: EventKey) -> list[str]:
    kernels = job.pairing().kernels
    matches = kernels[(kernels["report"] == key.report) & (kernels["row"] == key.row)].to_dict("records")
    if not matches:
        return []
    size, communicator, transfer = (matches[0].get(name) for name in ("message_size", "communicator", "transfer"))
    parts = []
    if size == size and size is not None:
        parts.append(format_value(Unit.BYTES, int(size)))
    if isinstance(communicator, str):
        parts.append(f"comm {communicator}")
    last = last_to_arrive(job.collectives(), key.report, key.row)
    rank = next((ranked.rank for ranked in job.ranks if last is not None and ranked.task == last.task), None)
    if transfer is not None and transfer == transfer:
        parts += [f"rank {rank} came last"] if rank is not None else ["no rank was late"]
        parts.append(f"transfer {format_value(Unit.DURATION, int(transfer))}")
    elif rank is not None:  # the communicator is unknown, or some of its ranks are not open
        parts.append(f"rank {rank} came last of the open ranks")
    return [" · ".join(parts)] if parts else []


def idle_before(job: OpenJob, row: Row) -> list[str]:
    """Return a sentence on the thread's activity while the GPU was idle before an operation, if any."""
    key, event = key_of(row), record(EVENT_COLUMNS, row)
    process, device = event["process"], event["device"]
    if not key.kind.on_stream or not isinstance(process, int) or not isinstance(device, int):
        return []
    sentence = before_launch(job, Task(key.report, process), device, key.start)
    return [sentence] if sentence else []


def _partner(job: OpenJob, row: Row) -> tuple[list[str], Row | None]:
    """Return a launch's other end in words, and the API call of GPU work."""
    key = key_of(row)
    if key.kind is not EventKind.API and not key.kind.on_stream:
        return [], None
    answer = partners(job.session, key, job.ranks)
    if not answer.rows:
        return [answer.reason], None
    partner = answer.rows[0]
    name = str(record(EVENT_COLUMNS, partner)["name"])
    if key.kind.on_stream:
        return [f"launched by {name}, {_delay(partner, row)}"], partner
    if len(answer.rows) > 1:
        return [f"launched {counted(len(answer.rows), 'operation')}", _delay(row, partner)], None
    return [f"launched {job.smart_names().get(name, name)}, {_delay(row, partner)}"], None


def _delay(call: Row, work: Row) -> str:
    delays = launch(call, work)
    wording = Wording.of(Unit.DURATION, (delays.delay,))
    queue = "began before the call returned" if delays.queue is None else f"queued {wording.words(delays.queue)}"
    return f"{wording.words(delays.delay)} from call to start ({queue})"


def _path(session: Session, row: Row) -> list[str]:
    event, key = record(EVENT_COLUMNS, row), key_of(row)
    if event["tid"] is None:
        return []
    thread = int(event["process"] or 0) | int(event["tid"] or 0)
    until = key.start + int(event["duration"] or 0) if key.kind is EventKind.NVTX else None
    path = path_at(session, key.report, thread, key.start, until)
    if key.kind is EventKind.NVTX and path and path[-1] == event["name"]:
        path = path[:-1]
    return [f"NVTX {' › '.join(path)}"] if path else []
