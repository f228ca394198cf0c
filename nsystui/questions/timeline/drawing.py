"""A lane as text: a letter for each column, and the names of events in the columns that they take."""

from __future__ import annotations

from dataclasses import dataclass

from nsystui.base.selection import Window
from nsystui.base.text import safe_text, shorten, width_of
from nsystui.exports.identifiers import tid_of
from nsystui.questions.timeline.gpu_events import Span
from nsystui.questions.timeline.lane_work import CATEGORIES, IDLE, UNSEEN
from nsystui.questions.timeline.lanes import Lane
from nsystui.questions.timeline.picture import NAMED_COLUMNS, LanePicture

LETTERS = {"compute": "K", "nccl": "N", "memory": "M", "graph": "G"}
"""The letter of each category of GPU work: upper case where a column is busy for half of its time or more."""

RANGE, THIN_RANGE = "═", "─"
"""NVTX ranges that cover half of a column or more, and less."""

NOTHING, NO_DATA = " ", "·"
BEGIN, BEGAN_BEFORE = "│", "‹"
LEGEND = "K compute  N NCCL  M memory  G graph  (lower case: busy for less than half of the column)"
_HALF = 0.5
_SHORTEST_MIDDLE_CUT = 10


@dataclass(frozen=True)
class LaneText:
    """A lane of n columns: the characters, and for each the category and whether it fills the column, or ``""``."""

    text: str
    styles: tuple[str, ...]
    """``"compute"`` where the column is busy for half of its time, ``"compute-"`` where it is less."""
    marked: frozenset[int] = frozenset()


def lane_text(picture: LanePicture) -> LaneText:
    """Draws a lane."""
    cells, styles = [], []
    for category, busy in zip(picture.columns.category.tolist(), picture.columns.busy.tolist(), strict=True):
        cell, style = _cell(category, busy)
        cells.append(cell)
        styles.append(style)
    window, count = picture.columns.window, len(cells)
    firsts = [*(column_of(span.start, window, count) for span in picture.spans), count]
    for span, following in zip(picture.spans, firsts[1:], strict=True):
        _write_name(cells, styles, span, window, following)
    return LaneText("".join(cells), tuple(styles), picture.marked)


def _cell(category: int, busy: float) -> tuple[str, str]:
    if category == UNSEEN:
        return NO_DATA, ""
    if category == IDLE:
        return NOTHING, ""
    name = CATEGORIES[category]
    is_full = busy >= _HALF
    if name == "nvtx":
        return (RANGE if is_full else THIN_RANGE), name
    letter = LETTERS[name]
    return (letter, name) if is_full else (letter.lower(), f"{name}-")


def column_of(time: int, window: Window, count: int) -> int:
    """The column of ``window`` that holds ``time``, which may lie outside of 0 to ``count - 1``."""
    return (time - window.start) * count // max(window.end - window.start, 1)


def _write_name(cells: list[str], styles: list[str], span: Span, window: Window, following: int) -> None:
    """Writes the name of an event from its first column on, as far as it reaches, and before that of the next one."""
    count = len(cells)
    first, last = column_of(span.start, window, count), column_of(max(span.end - 1, span.start), window, count)
    is_cut = first < 0
    first, last = max(first, 0), min(last, count - 1)
    if following > first:
        last = min(last, following - 1)
    room = last - first + 1
    # Where something else takes most of the columns, a name would say what is not so.
    if room < (2 if span.category == "nvtx" else NAMED_COLUMNS) or not _is_of(span, styles[(first + last) // 2]):
        return
    # The last column keeps its letter, which says without colour what it is.
    room_of_name = room - 1 if span.category == "nvtx" else room - 2
    name = _cut(safe_text(span.name), room_of_name) if room >= NAMED_COLUMNS else ""
    if width_of(name) != len(name):  # wide characters would move what follows
        name = "".join(char if width_of(char) == 1 else "?" for char in name)[:room_of_name]
    text = (BEGAN_BEFORE if is_cut else BEGIN) + name
    if len(name) < room_of_name and span.category != "nvtx":
        text += " "
    cells[first : first + len(text)] = text


def _cut(name: str, room: int) -> str:
    """In a few cells a beginning says more than two ends."""
    return shorten(name, room) if room >= _SHORTEST_MIDDLE_CUT else name[:room]


def _is_of(span: Span, style: str) -> bool:
    return style.removesuffix("-") == span.category


def lane_label(lane: Lane, is_open: bool | None = None) -> str:
    """``0 d1 s7``: rank, device, stream; for NVTX the thread, for what is nested the level, or ``start/end``.

    ``is_open`` puts a sign before it: whether the rank's streams are shown, ``None`` for no sign.
    """
    sign = "" if is_open is None else "- " if is_open else "+ "
    if lane.thread is not None:
        if lane.level is None:
            return f"  {lane.rank} t{tid_of(lane.thread)} start/end"
        if lane.level:
            return f"  {lane.rank}   ·{lane.level + 1}"
        return f"  {lane.rank} t{tid_of(lane.thread)} {lane.name}".rstrip()
    if lane.stream is not None:
        return f"  {lane.rank} d{lane.device} s{lane.stream}"
    return f"{sign or '  '}{lane.rank} d{lane.device}"
