"""The rows of one process after the other; those of many small processes are read by one query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from nsystui.base.selection import Task
from nsystui.questions.queries.conditions import Condition, of_reports
from nsystui.store import tables
from nsystui.store.report import most_rows
from nsystui.store.session import Session

if TYPE_CHECKING:
    import sqlalchemy as sa

Rows = Mapping[str, np.ndarray[Any, Any]]
"""The columns of some rows; masked where values are missing."""

_LARGE = (tables.kernels, tables.api_calls)
_TOGETHER = 1 << 17
"""The most rows of these tables that are read together; fewer where the memory is too little."""
_ROW = 250
"""Bytes that each of them takes."""
_REPORTS = 64
"""The most reports that are read together: DuckDB plans a query for each."""


@dataclass(frozen=True, eq=False)
class ProcessRows:
    """Reads the rows of a process. Each query reads those of all reports ``together``, if there are any."""

    session: Session
    task: Task
    together: frozenset[int] = frozenset()
    _read: dict[str, dict[Task, Rows]] = field(default_factory=dict)

    @classmethod
    def each(cls, session: Session, tasks: Iterable[Task]) -> Iterator[ProcessRows]:
        """Yield the rows of each process, by report."""
        for run in _runs(session, tasks):
            reports, read = frozenset(task.report for task in run), dict[str, dict[Task, Rows]]()
            part = session.part(reports)
            yield from (cls(part, task, reports if len(run) > 1 else frozenset(), read) for task in run)

    @property
    def is_shared(self) -> bool:
        """Whether the rows of other processes are read with these."""
        return bool(self.together)

    def arrays(self, name: str, query: Callable[[], sa.Select[Any]], table: sa.Table, *conditions: Condition) -> Rows:
        """Read the rows of ``query()`` that are of this process of ``table``.

        Rows that are shared are read once for each ``name``. Raises ValueError where they have ``conditions``, which
        are of one process.
        """
        columns = table.c
        if not self.is_shared:
            is_own = (columns.report == self.task.report, columns.process == self.task.process)
            return self.session.arrays(query().where(*is_own, *conditions))
        if conditions:
            raise ValueError(f"{name}: conditions of one process on the rows of several")
        if name not in self._read:
            of_run = of_reports(columns.report, self.together)
            place = columns.report.label("report_"), columns.process.label("process_")
            found = self.session.arrays(query().add_columns(*place).where(of_run, columns.process.is_not(None)))
            self._read[name] = _by_task(found)
        of_task = self._read[name]
        return of_task.get(self.task, of_task[_NOBODY])


def _runs(session: Session, tasks: Iterable[Task]) -> Iterator[list[Task]]:
    """Split processes into those that are read together; a large one is alone."""
    counts = {one.index: sum(most_rows([one], table) for table in _LARGE) for one in session.reports}
    most = min(_TOGETHER, session.limits.rows_at_once(_ROW))
    run: list[Task] = []
    reports: set[int] = set()
    rows = 0
    for task in sorted(tasks):
        rows += 0 if task.report in reports else counts[task.report]
        reports.add(task.report)
        if run and (len(reports) > _REPORTS or rows > most):
            yield run
            run, reports, rows = [], {task.report}, counts[task.report]
        run.append(task)
    if run:
        yield run


_NOBODY = Task(-1, -1)


def _by_task(found: dict[str, Any]) -> dict[Task, Rows]:
    """The rows of each process in the order in which they came; under `_NOBODY` none."""
    report, process = (np.ma.getdata(found.pop(key)) for key in ("report_", "process_"))
    order = np.lexsort((process, report))
    is_new = (np.diff(report[order]) != 0) | (np.diff(process[order]) != 0)
    groups = np.split(order, np.flatnonzero(is_new) + 1)
    return {
        Task(int(report[rows[0]]), int(process[rows[0]])) if len(rows) else _NOBODY: {
            key: values[rows] for key, values in found.items()
        }
        for rows in (order[:0], *(group for group in groups if len(group)))
    }
