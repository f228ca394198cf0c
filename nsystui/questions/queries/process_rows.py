"""Rows by process; a single query reads the rows of many small processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import sqlalchemy as sa

from nsystui.base.selection import Task
from nsystui.base.types import Array, Condition, Query
from nsystui.questions.algebra.intervals import Intervals, merge, union
from nsystui.questions.queries.conditions import of_reports
from nsystui.store import tables
from nsystui.store.report import most_rows
from nsystui.store.session import Session

T = TypeVar("T")
_Rows = Mapping[str, Array]
"""Columns of some rows; masked if values are missing."""
_Columns = dict[str, Any]

_LARGE = (tables.kernels, tables.api_calls)
_TOGETHER = 1 << 17
"""The most rows of these tables that are read together; fewer if memory is short."""
_ROW_BYTES = 250
"""Memory per row."""
_MAX_REPORTS = 64
"""The most reports that are read together: DuckDB's planning time grows with them."""


@dataclass(frozen=True, eq=False)
class ProcessRows:
    """Reads the rows of a process; each query reads all ``reports``, if given."""

    session: Session
    task: Task
    reports: frozenset[int] = frozenset()
    _read: dict[str, dict[Task, _Rows]] = field(default_factory=dict)
    _results: dict[str, Any] = field(default_factory=dict)

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Return ``make()``, or its earlier result for this name."""
        result: T = self._results[name] if name in self._results else self._results.setdefault(name, make())
        return result

    @classmethod
    def each(cls, session: Session, tasks: Iterable[Task]) -> Iterator[ProcessRows]:
        """Yield the reader of each process, by report."""
        for run in _runs(session, tasks):
            reports, read = frozenset(task.report for task in run), dict[str, dict[Task, _Rows]]()
            part = session.part(reports)
            yield from (cls(part, task, reports if len(run) > 1 else frozenset(), read) for task in run)

    @property
    def is_shared(self) -> bool:
        """Whether each query also reads the rows of other processes."""
        return bool(self.reports)

    def arrays(self, name: str, query: Callable[[], Query], table: sa.Table, *conditions: Condition) -> _Rows:
        """Read this process's rows of ``query()``, which selects from ``table``.

        Shared rows are read once per ``name``. Raises ValueError if they have ``conditions``: these hold for a process.
        """
        columns = table.c
        if not self.is_shared:
            is_of_task = (columns.report == self.task.report, columns.process == self.task.process)
            return self.session.arrays(query().where(*is_of_task, *conditions))
        if conditions:
            raise ValueError(f"{name}: conditions of one process on the rows of several")
        if name not in self._read:
            is_in_run = of_reports(columns.report, self.reports)
            identified = query().add_columns(columns.report, columns.process)
            rows = self.session.arrays(identified.where(is_in_run, columns.process.is_not(None)))
            self._read[name] = dict(rows_by_task(rows))
            self._read[name][_NOBODY] = {key: values[:0] for key, values in rows.items()}
        return self._read[name].get(self.task, self._read[name][_NOBODY])


def _runs(session: Session, tasks: Iterable[Task]) -> Iterator[list[Task]]:
    """Split processes into runs that are read together; a process of a large report is alone."""
    counts = {report.index: sum(most_rows([report], table) for table in _LARGE) for report in session.reports}
    max_rows = min(_TOGETHER, session.limits.rows_at_once(_ROW_BYTES))
    run: list[Task] = []
    reports: set[int] = set()
    rows = 0
    for task in sorted(tasks):
        rows += 0 if task.report in reports else counts[task.report]
        reports.add(task.report)
        if run and (len(reports) > _MAX_REPORTS or rows > max_rows):
            yield run
            run, reports, rows = [], {task.report}, counts[task.report]
        run.append(task)
    if run:
        yield run


_NOBODY = Task(-1, -1)


def rows_by_task(columns: _Columns) -> Iterator[tuple[Task, _Columns]]:
    """Yield each process's rows, in order."""
    report, process = (np.ma.getdata(columns.pop(key)) for key in ("report", "process"))
    order = np.lexsort((process, report))
    is_new = (np.diff(report[order]) != 0) | (np.diff(process[order]) != 0)
    for rows in np.split(order, np.flatnonzero(is_new) + 1) if len(order) else ():
        task, is_only = Task(int(report[rows[0]]), int(process[rows[0]])), len(rows) == len(order)
        yield task, columns if is_only else {key: values[rows] for key, values in columns.items()}


def times_by_task(session: Session, query: Query) -> dict[Task, Intervals]:
    """Return the union of each process's times; ``query`` selects ``report``, ``process``, ``start``, ``end``."""
    parts: dict[Task, list[Intervals]] = {}
    for batch in session.array_batches(query):
        for task, times in rows_by_task(batch):
            parts.setdefault(task, []).append(union(times["start"], times["end"]))
    return {task: merge(*unions) for task, unions in parts.items()}


def rows_by_gpu(columns: _Columns) -> Iterator[tuple[tuple[Task, int], _Columns]]:
    """Yield the rows of each process and device, in order."""
    for task, rows in rows_by_task(columns):
        devices = rows.pop("device")
        for device in np.unique(devices).tolist():
            yield (task, device), {key: values[devices == device] for key, values in rows.items()}
