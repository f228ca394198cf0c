"""The overview as text: facts, GPU time, remarks, the states of the files. Plain functions, light imports."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from nsystui.base.answer import Column, Row, TableAnswer, Unit, Value
from nsystui.base.text import counted, few, safe_text, shorten, width_of
from nsystui.base.units import format_value
from nsystui.questions.queries.question import SCREENS, view_of_table
from nsystui.ui import keys
from nsystui.ui.widgets.panels import PartLine, TextPart, wrapped
from nsystui.ui.widgets.stacks import stack_cells

if TYPE_CHECKING:
    from nsystui.exports.canonical import CanonicalTable
    from nsystui.questions.gpu.device_time import Breakdown
    from nsystui.questions.ranks.overview import JobFacts
    from nsystui.questions.triage.finding import Finding
    from nsystui.questions.triage.run import Triage
    from nsystui.ui.app import FileState
    from nsystui.ui.pictures.overview import IdlePicture, OverviewPicture


LABEL_WIDTH = 10
_SEPARATOR = " · "
_VALUE_WIDTH = 13
_SHORTEST_TITLE = 15
_MIN_IDLE = 0.05
"""Idle parts below this percentage are omitted, because a screen has few lines."""
_MODES_WIDTH = len("   ● loaded") + sum(len(key) + len(name) + 2 for key, name, _ in keys.TABS)


HELD_COLUMNS = (
    Column("rows", header="Rows", label="recorded", unit=Unit.COUNT),
    Column("screen", header="Screen", label="see"),
    Column("what", header="What", label="what"),
)
FILE_COLUMNS = (
    Column("file", header="File", label="file"),
    Column("kernels", header="Kernels", label="kernels", unit=Unit.COUNT, importance=1),
    Column("read", header="Read (%)", label="read", unit=Unit.PERCENT, decimals=1),
    Column("rows", header="Rows", label="rows", unit=Unit.COUNT, importance=3),
    Column("hostname", header="Host", label="host", importance=4),
    Column("gpu", header="GPU", label="GPU", importance=2),
    Column("nsys", header="nsys", label="nsys", importance=5),
    Column("state", header="State", label="state"),
)


# -- the facts --------------------------------------------------------------------------------------------------------


def title_and_facts(facts: JobFacts, width: int, so_far: bool = False, lines: int = 2) -> tuple[str, list[PartLine]]:
    """Return the title line and the lines of facts below it, each of ``width`` cells.

    The title line keeps the screens' names. ``so_far``: more reports are being read. A single line keeps the quality of
    the numbers and leaves out the machine.
    """
    job, machine = facts.words, facts.machine_words
    if lines < 2:
        job, machine = job[:1] + machine[: not facts.clocks_aligned] + job[1:], []
    job[0] += " so far" if so_far else ""
    room = width - _MODES_WIDTH - len("nsystui  ")
    everything = f"{facts.title}  {_SEPARATOR.join(job)}"
    if width_of(everything) <= room:
        return everything, [_line(machine, width)] if machine else []
    title = shorten(facts.title, max(room, _SHORTEST_TITLE))
    if title != facts.title:
        job = [facts.title, *job]
    if width_of(_SEPARATOR.join([*job, *machine])) <= width:
        return title, [_line([*job, *machine], width)]
    return title, [_line(words, width) for words in (job, machine) if words]


def _line(facts: Sequence[str], width: int) -> PartLine:
    """Return the facts that fit on a line; the first is cut if it does not fit."""
    shown = list(facts)
    while len(shown) > 1 and width_of(_SEPARATOR.join(shown)) > width:
        shown.pop()
    return [(_SEPARATOR.join(shown), "")]


# -- where the GPU time went ------------------------------------------------------------------------------------------


_percent = partial(format_value, Unit.PERCENT)


def strip_width(width: int) -> int:
    """Return the number of bins of the strip on a screen of ``width`` cells."""
    return max(10, width - LABEL_WIDTH - _VALUE_WIDTH)


_PARTS = (
    ("kernels", "compute", "compute", "█"), ("exposed_nccl", "exposed NCCL", "nccl", "▒"),
    ("memory_only", "memory", "memory", "▄"), ("graph_only", "graphs", "graph", "▆"), ("idle", "idle", "idle", "░"),
)  # fmt: skip
"""Parts of the GPU time: field, name, category, and glyph, because colour is not enough."""


def time_lines(
    picture: OverviewPicture, idle: IdlePicture | None, triage: Triage | None, width: int, rows: int, coloured: bool
) -> list[PartLine]:
    """Return the GPU time of all devices: a bar with its parts, what blocks compute, idle time by cause, a strip.

    Empty without devices. ``rows``: height of the strip over time; 0 if there is room for little else.
    """
    spent = picture.spent
    if spent is None or not spent.time:
        return []
    # Hidden time is shown only if it takes no further line.
    part_lines = [wrapped(_part_words(spent, hidden), width, (" " * LABEL_WIDTH, "")) for hidden in (True, False)]
    lines = min(part_lines, key=len)
    if rows:
        lines = [
            _bar_line(picture, spent, width),
            *lines,
            *(blocked_lines(triage, width) if triage is not None else []),
            *(idle_lines(idle, width, max(rows, 2)) if idle is not None else []),
        ]
    if picture.strips:
        cells = strip_width(width)
        busy = f"busy {_percent(spent.percent(spent.busy)).strip()}".rjust(_VALUE_WIDTH)
        rows = max(rows, 1)
        for number, strip in enumerate(stacked(picture.strips, cells, rows, coloured)):
            label, value = ("over time" if not number else "", busy if number == rows - 1 else " " * _VALUE_WIDTH)
            lines.append([(label.ljust(LABEL_WIDTH), ""), *strip, (value, "")])
    return lines


def _bar_line(picture: OverviewPicture, spent: Breakdown, width: int) -> PartLine:
    mean_time = format_value(Unit.DURATION, spent.time / picture.devices)
    total = f"  of {picture.devices:,} × {mean_time}" if picture.devices > 1 else f"  of {mean_time}"
    cells = max(0, width - LABEL_WIDTH - width_of(total))
    line: PartLine = [("GPU time".ljust(LABEL_WIDTH), "bold")]
    edge, previous = 0, 0
    for field, _, category, glyph in _PARTS:
        edge += getattr(spent, field)
        column = round(cells * edge / spent.time)
        line.append((glyph * (column - previous), category))
        previous = column
    return [*line, (total, "dim")]


def _part_words(spent: Breakdown, with_hidden: bool) -> list[TextPart]:
    """Return ``█ compute 61.2 %``, ``▒ exposed NCCL 14.1 % (hidden 13.8 %)`` …"""
    parts = []
    whole_times = {"exposed_nccl": spent.nccl, "memory_only": spent.memory} if with_hidden else {}
    for field, name, category, glyph in _PARTS:
        time = getattr(spent, field)
        if spent.known(field) is None:
            parts.append((f"{glyph} {name} unknown", category))
        elif time or (spent.nccl if field == "exposed_nccl" else field != "graph_only"):
            hidden = whole_times.get(field, time) - time
            hidden_words = f" (hidden {_percent(spent.percent(hidden))})" if hidden else ""
            swatch = glyph.replace("█", "■")  # a full block would melt into the bar above the legend
            parts.append((f"{swatch} {name} {_percent(spent.percent(time))}{hidden_words}", category))
    return parts


_BLOCKER_CATEGORIES = {
    "compute": "compute", "late launches": "api", "NCCL": "nccl", "other communication": "nccl", "copies": "memory",
    "memsets": "memory", "unified memory": "memory",
}  # fmt: skip
"""Categories of the blockers of compute; all others are idle."""


def blocked_lines(triage: Triage, width: int) -> list[PartLine]:
    """Return ``a step: compute 79.1 %  late launches 10.4 %  NCCL 9.8 %``: as many as fit on a line."""
    scope = "a step: " if triage.has_steps else "overall: "
    parts = [
        (f"{words} {share}", _BLOCKER_CATEGORIES.get(words, "idle"))
        for words, (percent, share) in triage.blockers.items()
        if percent >= _MIN_IDLE
    ]
    return wrapped(parts, width, (f"{'blocked'.ljust(LABEL_WIDTH)}{scope}", "bold"))[:1]


def idle_lines(idle: IdlePicture, width: int, max_lines: int = 2) -> list[PartLine]:
    """Return ``start-up 18.2 % (…)  gaps 7.7 % (cudaMalloc in `data loading` 6.1 %, …)  short gaps 0.3 %  tail 0.0 %``.

    Shows as many causes as fit on ``max_lines`` lines, without a break inside a part.
    """
    from nsystui.questions.host.time_budget import idle_words

    if not idle.budget.idle:
        return []
    for max_causes in (3, 2, 1, 0):
        words = [(text, "") for text in idle_words(idle.budget, idle.causes, max_causes, _MIN_IDLE)]
        if not words:
            return []
        lines = wrapped(words, width, ("idle".ljust(LABEL_WIDTH), "bold"))
        if len(lines) <= max_lines and max(width_of(text) for text, _ in words) <= width - LABEL_WIDTH:
            break
    return lines


def stacked(strips: Sequence[Sequence[float]], width: int, rows: int, coloured: bool) -> list[PartLine]:
    """Return shares of the same columns on top of each other: ``rows`` lines of ``width`` cells, the top line first.

    Without colours the stack has the shape of its sum.
    """
    stack = tuple((category, strip) for (_, _, category, _), strip in zip(_PARTS, strips, strict=False))
    if not coloured:
        stack = (("", [sum(shares) for shares in zip(*strips, strict=True)]),)
    lines = []
    for cells in stack_cells(stack, width, rows):
        runs = groupby(cells, key=lambda cell: "/".join(filter(None, cell[1:])) if coloured else "")
        lines.append([("".join(glyph for glyph, *_ in run), style) for style, run in runs])
    return lines


# -- remarks ----------------------------------------------------------------------------------------------------------


def remark_lines(picture: OverviewPicture, states: Iterable[FileState], width: int, max_lines: int) -> list[PartLine]:
    """Return warnings about the numbers, worst first, in at most ``max_lines`` lines."""
    from nsystui.questions.queries.reports import lost_events

    severities, texts = map(picture.diagnostics.cells, ("severity", "text"))
    diagnostics = [(str(severity), str(text or "").strip()) for severity, text in zip(severities, texts, strict=True)]
    lost = lost_events(diagnostics)
    # Not the table's notes: missing diagnostics are no fault of the user.
    warning = f"events may be missing, so counts and times may be too low: {few(lost)}"
    notes = [*picture.tasks.notes, *([warning] if lost else ())]
    others = [(severity, text) for severity, text in diagnostics if text not in lost]
    origins = {"Error": "nsys error: ", "Warning": ""}
    remarks = [("! ", note) for note in notes]
    remarks += [("· ", origins[severity] + text) for severity, text in others if severity in origins]
    lines = failure_lines(states, width)
    for number, (mark, text) in enumerate(remarks):
        remark = labelled(mark, text, width)
        left = len(remarks) - number
        if len(lines) + len(remark) + (left > 1) > max_lines:
            return [*lines, [(f"  {counted(left, 'more remark')}: W shows what nsys recorded of its capture", "dim")]]
        lines += remark
    return lines


def failure_lines(states: Iterable[FileState], width: int) -> list[PartLine]:
    """Return the files that cannot be used: up to two with reasons, else one and a count."""
    failed = [state for state in states if state.failure]
    shown = failed if len(failed) <= 2 else failed[:1]
    reasons = [f"{state.path.name} is left out: {state.failure}" for state in shown]
    lines = [line for reason in reasons for line in labelled("! ", reason, width)]
    if len(failed) > len(shown):
        more = counted(len(failed) - len(shown), "more file")
        lines.append([("! ", "bold"), (f"{more} left out: F lists the files with the reasons", "")])
    return lines


def labelled(label: str, text: str, width: int, max_lines: int = 2) -> list[PartLine]:
    """Return ``text`` after ``label``, on at most ``max_lines`` lines."""
    lines = textwrap.wrap(safe_text(text), max(20, width - len(label)), max_lines=max_lines, placeholder=" …")
    return [[(" " * len(label) if number else label, "bold"), (line, "")] for number, line in enumerate(lines)]


# -- tables -----------------------------------------------------------------------------------------------------------


MANY_RANKS = 8
"""A terminal shows up to this many ranks without scrolling."""

_STEP = Column("step", header="Step Med (ns)", label="step", unit=Unit.DURATION, decimals=0)
_LATE = Column("late", header="Late", label="late", unit=Unit.COUNT)
_SHARES = ("busy_percent", "compute_percent", "exposed_nccl_percent", "idle_percent")
_IMPORTANCE = {
    "host": 3, "gpu": 5, "nccl_percent": 4, "memory_percent": 4, "graph_percent": 5, **dict.fromkeys(_SHARES, 0),
}  # fmt: skip


def with_paces(tasks: TableAnswer, paces: Mapping[int, tuple[float | None, int | None]]) -> TableAnswer:
    """Return the table of ranks with each rank's median step and late arrivals, as far as known."""
    columns = [column.with_importance(_IMPORTANCE.get(column.key, column.importance)) for column in tasks.columns]
    row_paces = [paces.get(int(rank or 0), (None, None)) for rank in tasks.cells("rank")]
    rows = [list(row) for row in tasks.rows]
    index = 1 + max(number for number, column in enumerate(columns) if column.key in _SHARES)
    for number, column in ((1, _LATE), (0, _STEP)):
        if any(pace[number] is not None for pace in row_paces):
            columns.insert(index, column)
            for row, pace in zip(rows, row_paces, strict=True):
                row.insert(index, pace[number])
    return replace(tasks, columns=tuple(columns), rows=tuple(map(tuple, rows)))


def with_findings(tasks: TableAnswer, findings: Sequence[Finding], limit: int = MANY_RANKS) -> TableAnswer:
    """Return the table of ranks with the findings about at most half of them, if any.

    In a table of more than ``limit`` ranks, ranks with findings are first.
    """
    rank = next(index for index, column in enumerate(tasks.columns) if column.key == "rank")
    selective = [finding for finding in findings if finding.ranks and len(finding.ranks) <= len(tasks.rows) // 2]
    names = [", ".join(dict.fromkeys(item.id for item in selective if row[rank] in item.ranks)) for row in tasks.rows]
    if not any(names):
        return tasks
    rows = tuple((*row, f"◂ {name}" if name else None) for row, name in zip(tasks.rows, names, strict=True))
    if len(rows) > limit:
        rows = tuple(sorted(rows, key=lambda row: row[-1] is None))
    return replace(tasks, columns=(*tasks.columns, Column("findings", header="Findings", label="finding")), rows=rows)


def held_answer(held: Iterable[tuple[CanonicalTable, int]]) -> TableAnswer:
    """Return the recorded events of a job without GPU work, and the screens that show them."""
    rows = [
        (count, keys.with_key(SCREENS[view.question.rows.home]), table.what)
        for table, count in held
        if (view := view_of_table(table.name)) is not None
    ]
    return TableAnswer("contents", HELD_COLUMNS, tuple(sorted(rows, reverse=True)))


def files_answer(states: Iterable[FileState]) -> TableAnswer:
    """Return a row for each file: its metadata, and how much of it is read."""
    rows: list[Row] = []
    for state in states:
        name, kernels = state.path.stem, None
        cells: tuple[Value, ...] = (None, None, None)
        if state.opened is not None:
            name, kernels, facts = state.opened.name, state.opened.kernels, state.opened.metadata
            models = dict.fromkeys(gpu.name.removeprefix("NVIDIA ") for gpu in facts.gpus if gpu.name)
            cells = (facts.host or None, " + ".join(models) or None, facts.nsys_version or facts.made_of or None)
        read = 100.0 if state.ready else 100.0 * state.rows / state.total if state.total else None
        if state.failure:
            words = f"left out: {state.failure}"
        elif state.ready:
            words = "ready"
        elif state.total:
            words = "reading"
        else:
            words = "waiting" if state.opened is None else "checked"
        rows.append((name, kernels, read, state.total or None, *cells, words))
    return TableAnswer("files", FILE_COLUMNS, rows)
