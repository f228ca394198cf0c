"""The expert rules on the time of GPUs, over all ranks: long gaps, and parts of it with low utilisation.

See docs/numbers.md#expert-rules.

What counts as busy is the union of all work of a GPU, whole CUDA graphs among it (`device_time`). Gaps are without what
the profiler itself did in the process meanwhile, as they are in nsys.
"""

from __future__ import annotations

import numpy as np

from nsystui.analysis.answer import Answer, Column, Row, Unit
from nsystui.analysis.extent import extents
from nsystui.analysis.interval_blocks import without
from nsystui.analysis.intervals import EMPTY
from nsystui.analysis.job import Job
from nsystui.analysis.profiler_overhead import profiler_overhead, unnoticed
from nsystui.analysis.recipes.asking import RANK, Ask, Options
from nsystui.analysis.rows import answer_of
from nsystui.analysis.selection import Selection

_PLACE = (
    RANK,
    Column("device", "Device", "dev", Unit.NUMBER, None, 1),
    Column("start", "Start (ns)", "start", Unit.TIME, None, 0),
)
_GAP_COLUMNS = (Column("duration", "Duration (ns)", "idle", Unit.DURATION, None, 0), *_PLACE)
_PART_COLUMNS = (
    Column("busy_percent", "In-Use (%)", "busy %", Unit.PERCENT, 1, 0),
    Column("duration", "Duration (ns)", "duration", Unit.DURATION, None, 0),
    *_PLACE,
)


def _gaps(job: Job, selection: Selection, options: Options) -> Answer:
    """A row for each gap of more than ``options.gap`` ns between the operations of a GPU, longest first.

    Work of the profiler ends a gap and begins another one.
    """
    busy, windows = job.busy(selection), extents(job.session, selection)
    overhead = profiler_overhead(job.session, selection)
    rows: list[Row] = []
    every = 0
    for item in busy.devices:
        place = item.device
        idle = item.gaps(windows[place.task.task.report])
        for gaps in without(idle, overhead.get(place.task.task, EMPTY)).parts():
            lengths = gaps.ends - gaps.starts
            every += len(gaps)
            for number in np.flatnonzero(lengths > options.gap).tolist():
                rows.append((int(lengths[number]), place.task.rank, place.device, int(gaps.starts[number])))
    rows.sort(key=lambda row: (-int(row[0] or 0), row[1:]))
    note = unnoticed(job.session) if rows else ""
    return answer_of("gpu-gaps", _GAP_COLUMNS, rows, every, (*busy.notes, *([note] if note else ())))


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
    return answer_of("gpu-time-util", _PART_COLUMNS, rows, every, busy.notes)


ASK: dict[str, Ask] = {"gpu_gaps": _gaps, "gpu_time_util": _low_utilisation}
