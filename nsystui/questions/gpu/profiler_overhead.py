"""The profiler's own overhead, during which idle time of a GPU is not the program's fault.

See docs/numbers.md#expert-rules.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import sqlalchemy as sa

from nsystui.base.selection import Selection, Task
from nsystui.base.types import Condition, Query
from nsystui.questions.algebra.intervals import Intervals, merge, union
from nsystui.questions.queries.conditions import job_end, job_start, where
from nsystui.questions.queries.data_notes import lack
from nsystui.store import tables
from nsystui.store.session import Session

_TABLE = tables.profiler_overhead


def overhead_by_name(session: Session, selection: Selection) -> Mapping[Task, Mapping[str, Intervals]]:
    """Return the overhead that nsys recorded in each selected process, by name; job time."""
    if not session.count(_TABLE):
        return {}
    columns = _TABLE.c
    query: Query = sa.select(
        columns.report,
        columns.process,
        sa.func.coalesce(columns.name, "(no name)", type_=sa.Text).label("name"),
        job_start(_TABLE).label("start"),
        job_end(_TABLE).label("end"),
    ).where(*overhead_conditions(selection))
    rows = {key: np.ma.getdata(values) for key, values in session.arrays(query).items()}
    intervals: dict[Task, dict[str, Intervals]] = {}
    for report, process in np.unique(np.stack([rows["report"], rows["process"]]), axis=1).T.tolist():
        is_of_task = (rows["report"] == report) & (rows["process"] == process)
        start, end, name = rows["start"][is_of_task], rows["end"][is_of_task], rows["name"][is_of_task]
        intervals[Task(report, process)] = {
            str(label): union(start[name == label], end[name == label]) for label in np.unique(name)
        }
    return intervals


def profiler_overhead(session: Session, selection: Selection) -> Mapping[Task, Intervals]:
    """Return the union of the recorded overhead of each selected process; job time."""
    return {task: merge(*named.values()) for task, named in overhead_by_name(session, selection).items()}


def overhead_conditions(selection: Selection) -> list[Condition]:
    """Return the conditions for the selected processes and window, ignoring the name filter."""
    unnamed = Selection(selection.window, selection.tasks)
    return [*where(_TABLE, unnamed), _TABLE.c.end.is_not(None), _TABLE.c.process.is_not(None)]


def unnoticed(session: Session) -> str:
    """Return the note on exports that do not record the overhead; empty if all do."""
    missing = [report for report in session.reports if not report.has(_TABLE)]
    return f"{lack(session, _TABLE, missing)}: gaps caused by the profiler cannot be identified" if missing else ""
