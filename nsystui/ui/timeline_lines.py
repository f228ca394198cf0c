"""The lines below the lanes of the timeline: the column under the cursor, and the event in it."""

from __future__ import annotations

from dataclasses import dataclass

from nsystui.base.answer import Row, Value
from nsystui.base.columns import Unit
from nsystui.base.selection import Window
from nsystui.base.units import format_value
from nsystui.questions.correlation import launch, partners
from nsystui.questions.event_kinds import EventKind
from nsystui.questions.events import EVENT_COLUMNS, key_of
from nsystui.questions.timeline.events import longest_in, longest_range_in, path_at
from nsystui.questions.timeline.lanes import Lane, Timeline
from nsystui.questions.timeline.picture import LETTERS, LanePicture, has_names
from nsystui.ui.widgets.part_lines import Part

Line = list[Part]
HEIGHT = 4
_WIDE = 100
_WORDS = {"compute": "compute", "nccl": "NCCL", "memory": "memory", "graph": "graph", "nvtx": "ranges"}


@dataclass(frozen=True)
class EventFacts:
    """The event under the cursor, if there is one, as a row of the event list, and what is told of it."""

    row: Row | None
    lines: tuple[str, ...]


# -- at once ----------------------------------------------------------------------------------------------------------


def column_line(
    picture: LanePicture, column: int, times: tuple[int, int], time: int, mark: int | None, width: int
) -> Line:
    """When the cursor is, and what its column holds; on a narrow screen categories are letters alone."""
    parts: Line = []
    if mark is not None:
        parts += [(f"◆ {format_value(Unit.DURATION, abs(time - mark))}", "bold"), (" from the mark  ", "")]
    moment, length = format_value(Unit.TIME, time), format_value(Unit.DURATION, times[1] - times[0])
    parts += [(moment, "bold"), (f"  column {length}:", "")]
    if picture.columns.category[column] < 0:
        return [*parts, (" not recorded", "dim")]
    for name, shares in picture.columns.shares.items():
        if shares[column] > 0:
            word = _WORDS[name] if width >= _WIDE or name not in LETTERS else ""
            words = [LETTERS.get(name, ""), word, _percent(shares[column])]
            parts.append(("  " + " ".join(filter(None, words)), name))
    idle = 1 - float(picture.columns.busy[column])
    if idle > 0:
        parts.append((f"  idle {_percent(idle)}", "dim"))
    return parts


def _percent(share: float) -> str:
    return format_value(Unit.PERCENT, 100 * float(share))


# -- when the cursor rests --------------------------------------------------------------------------------------------


def event_facts(timeline: Timeline, lane: Lane, window: Window, row: Row | None) -> EventFacts:
    """The event ``row``, or the one that takes up most of ``window`` on a lane. Blocks: call it in a thread."""
    count = 1
    if row is None:
        if lane.is_nvtx:
            row, count = longest_range_in(timeline, lane, window)
        elif not has_names(timeline, [lane], window):
            return EventFacts(None, ("very many events in this column: + zooms in, n goes to the next single one",))
        else:
            row, count = longest_in(timeline, lane, window)
    if row is None:
        return EventFacts(None, ("no event here: n and p go to the next and the previous one",))
    values = dict(zip((column.key for column in EVENT_COLUMNS), row, strict=True))
    start, duration = (format_value(unit, values[key]) for unit, key in _TIMES)
    which = f"the longest of {count:,} in this column, " if count > 1 else ""
    return EventFacts(
        row,
        (
            f"{values['kind']}  {values['name'] or ''}",
            f"{which}{duration} from {start} · {_place(values)}",
            _origin(timeline, row),
        ),
    )


def _place(values: dict[str, Value]) -> str:
    """Where it ran, in as few words as a lane's label."""
    if values["device"] is None:
        return f"rank {values['rank']} thread {values['tid']}"
    stream = "" if values["stream"] is None else f" s{values['stream']}"
    return f"rank {values['rank']} d{values['device']}{stream}"


_TIMES = ((Unit.TIME, "start"), (Unit.DURATION, "duration"))


def _origin(timeline: Timeline, row: Row) -> str:
    """The launching call and the NVTX ranges around it; of a range those around itself."""
    key = key_of(row)
    values = dict(zip((column.key for column in EVENT_COLUMNS), row, strict=True))
    if key.kind is EventKind.NVTX:
        thread = int(values["process"] or 0) | int(values["tid"] or 0)
        around = [name for name in path_at(timeline, key.report, thread, key.start) if name != values["name"]]
        return f"in {' › '.join(around)}" if around else "in no other range"
    found = partners(timeline.session, key, timeline.ranks)
    if not found.rows:
        return found.reason
    call = dict(zip((column.key for column in EVENT_COLUMNS), found.rows[0], strict=True))
    thread = int(call["process"] or 0) | int(call["tid"] or 0)
    path = path_at(timeline, key.report, thread, int(call["start"] or 0))
    inside = f" in {' › '.join(path)}" if path else ""
    delay = format_value(Unit.DURATION, launch(found.rows[0], row).delay)
    return f"launched {delay} before by {call['name']}{inside}"
