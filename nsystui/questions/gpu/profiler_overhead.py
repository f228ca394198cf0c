"""The profiler's own overhead, during which idle time of a GPU is not the program's fault.

See docs/numbers.md#expert-rules.
"""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from nsystui.base.selection import Selection, Task
from nsystui.base.types import Condition
from nsystui.questions.algebra.intervals import Intervals
from nsystui.questions.queries.conditions import job_end, job_start, where
from nsystui.questions.queries.process_rows import times_by_task
from nsystui.store import tables
from nsystui.store.session import Session

_TABLE = tables.profiler_overhead


def profiler_overhead(session: Session, selection: Selection) -> Mapping[Task, Intervals]:
    """Return the union of the overhead that nsys recorded in each selected process; job time."""
    if not session.count(_TABLE):
        return {}
    columns = _TABLE.c
    query = sa.select(columns.report, columns.process, job_start(_TABLE).label("start"), job_end(_TABLE).label("end"))
    return times_by_task(session, query.where(*overhead_conditions(selection), columns.start.is_not(None)))


def overhead_conditions(selection: Selection) -> list[Condition]:
    """Return the conditions for the selected processes and window, ignoring the name filter."""
    unnamed = Selection(selection.window, selection.tasks)
    return [*where(_TABLE, unnamed), _TABLE.c.end.is_not(None), _TABLE.c.process.is_not(None)]
