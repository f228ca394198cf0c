"""The expert rules on the time of GPUs, over all ranks: long gaps, and parts of it with low utilisation.

See docs/numbers.md#expert-rules.

What counts as busy is the union of all work of a GPU, whole CUDA graphs among it (`device_time`). A gap says how long
the profiler itself worked in its process meanwhile: that part is no time of the program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from nsystui.base.answer import Answer, Row, TableAnswer
from nsystui.base.columns import DEVICE, DURATION, START, Column, Unit
from nsystui.base.selection import Selection
from nsystui.questions.algebra.interval_blocks import blocks_of
from nsystui.questions.algebra.intervals import Intervals, Times, merge
from nsystui.questions.job import Job
from nsystui.questions.profiler_overhead import overhead_by_name, unnoticed
from nsystui.questions.recipes.asking import RANK, Ask, Options
from nsystui.questions.time_window import extents
from nsystui.store import tables

_PLACE = (
    RANK,
    DEVICE.with_importance(1),
    START,
)
_GAP_COLUMNS = (
    Column("duration", header="Duration (ns)", label="idle", unit=Unit.DURATION),
    *_PLACE,
    Column("profiler", header="Profiler (ns)", label="profiler", unit=Unit.DURATION, importance=1),
    Column("work", header="Profiler Work", label="profiler's work", importance=2),
)
_PART_COLUMNS = (
    Column("busy_percent", header="In-Use (%)", label="in use %", unit=Unit.PERCENT, decimals=1),
    DURATION,
    *_PLACE,
)


def _gaps(job: Job, selection: Selection, options: Options) -> Answer:
    """A row for each gap of more than ``options.gap`` ns between the operations of a GPU, longest first.

    ``profiler`` is how much of it the profiler worked, ``work`` what took it longest.
    """
    busy, windows = job.busy(selection), extents(job.session, selection)
    overhead = overhead_by_name(job.session, selection)
    noticed = {report.index for report in job.session.reports if report.has(tables.profiler_overhead)}
    rows: list[Row] = []
    every = 0
    for item in busy.devices:
        place = item.device
        task = place.task.task
        for gaps in item.gaps(windows[task.report]).parts():
            every += len(gaps)
            is_long = gaps.ends - gaps.starts > options.gap
            start, end = gaps.starts[is_long], gaps.ends[is_long]
            parts: Sequence[Row] = [(None, None)] * len(start)
            if task.report in noticed:
                parts = _profilers_part(overhead.get(task, {}), start, end)
            rows += [
                (until - since, place.task.rank, place.device, since, *part)
                for since, until, part in zip(start.tolist(), end.tolist(), parts, strict=True)
            ]
    rows.sort(key=lambda row: (-int(row[0] or 0), row[1:4]))
    note = unnoticed(job.session) if rows else ""
    return TableAnswer("gpu-gaps", _GAP_COLUMNS, rows, every, (*busy.notes, *([note] if note else ())))


def _profilers_part(named: Mapping[str, Intervals], start: Times, end: Times) -> list[Row]:
    """How long the profiler worked in each span ``[start, end)``, ns, and what took it longest, if anything did."""
    names = [None, *named]
    of_name = np.stack([np.zeros(len(start), np.int64), *(_inside(own, start, end) for own in named.values())])
    longest = [names[number] for number in of_name.argmax(axis=0).tolist()]
    return list(zip(_inside(merge(*named.values()), start, end).tolist(), longest, strict=True))


def _inside(covering: Intervals, start: Times, end: Times) -> Times:
    """How much of each span ``[start, end)`` is covered, ns."""
    blocks = blocks_of(covering)
    return blocks.before(end)[0] - blocks.before(start)[0]


def _low_utilisation(job: Job, selection: Selection, options: Options) -> Answer:
    """A row for each part below the threshold, lowest first; neighbours are one part, and their mean its utilisation.

    A GPU's time is that from its first operation to its last one, in ``options.chunks`` equal parts.
    """
    busy, windows = job.busy(selection), extents(job.session, selection)
    rows: list[Row] = []
    every = 0
    for item in busy.devices:
        place = item.device
        whole = item.worked(windows[place.task.task.report])
        if whole is None:
            continue
        every += options.chunks
        width = whole.end - whole.start
        shares = 100.0 * item.busy(whole, options.chunks)
        is_low = shares < options.threshold
        edges = np.flatnonzero(np.diff(is_low, prepend=False, append=False)).reshape(-1, 2)
        for first, last in edges.tolist():
            start, end = (whole.start + place_ * width // options.chunks for place_ in (first, last))
            mean = float(shares[first:last].mean())
            rows.append((mean, end - start, place.task.rank, place.device, start))
    rows.sort(key=lambda row: tuple(value or 0 for value in row))
    return TableAnswer("gpu-time-util", _PART_COLUMNS, rows, every, busy.notes)


ASK: dict[str, Ask] = {"gpu_gaps": _gaps, "gpu_time_util": _low_utilisation}
