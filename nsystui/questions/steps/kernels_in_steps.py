"""The kernel summary by training step: kernel time by kernel or family."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import Column, ColumnRows, Row, TableAnswer
from nsystui.base.resources import give_back
from nsystui.base.selection import Selection
from nsystui.base.types import Array, Condition, Expression, Floats, Ints
from nsystui.questions.algebra.groups import measures_of
from nsystui.questions.kernels.summary import first_calls, kernel_summary
from nsystui.questions.nvtx.chains import narrow
from nsystui.questions.nvtx.loading import Texts
from nsystui.questions.queries.captures import NO_NODE
from nsystui.questions.queries.conditions import is_launched_by, where
from nsystui.questions.queries.statistics import ValueRows
from nsystui.questions.steps.task_steps import NO_STEP, launch_id_spans
from nsystui.questions.steps.times import Steps
from nsystui.store import tables
from nsystui.store.session import Session

if TYPE_CHECKING:
    from nsystui.questions.job.job import OpenJob

_KERNEL_BYTES = 100
"""Memory per kernel for the statistics of its group."""
_SHIFT = 32
"""A group number holds the step above these bits, and the index of its keys below."""
_MISSING = -(2**62)
"""A missing number; as a time, it is in no step."""


def kernels_in_steps(job: OpenJob, selection: Selection, steps: Steps, **options: Any) -> TableAnswer:
    """Summarise kernels like `kernel_summary`, by step and other keys; ``options`` are its further arguments.

    A kernel belongs to its process's step in which its launch began, on any thread. Shares are of the step's kernel
    time. Steps are in order; kernels outside of steps are last.
    """
    number_of, cells = partial(_steps_of, steps), partial(_without_missing, missing=NO_STEP)
    rows = partial(rows_by_number, number_of, lambda numbers: {"step": cells(numbers)}, np.asarray)
    answer = kernel_summary(job.session, selection, **options, summarise=rows)
    return replace(answer, notes=(*answer.notes, *steps.notes))


def count_in_steps(session: Session, selection: Selection, steps: Steps) -> int:
    """Count the selected kernels launched in steps."""
    parts = launched(partial(_steps_of, steps), session, tables.kernels, {}, where(tables.kernels, selection))
    return sum(int((numbers != NO_STEP).sum()) for numbers, _ in parts)


def _steps_of(steps: Steps, report: Ints, process: Ints, launch: Ints, *_: Ints) -> Ints:
    return steps.numbers_at(report, process, launch)


NumberOf = Callable[[Ints, Ints, Ints, Ints, Ints], Ints]
"""Numbers kernels by report, process, launch (job time), launching thread, and node of a CUDA graph or `NO_NODE`."""


def launched(
    number_of: NumberOf, session: Session, rows_of: sa.FromClause, columns: Mapping[str, Expression],
    conditions: Sequence[Condition],
) -> Iterator[tuple[Ints, dict[str, Array]]]:  # fmt: skip
    """Yield the numbers of kernels, such as steps, shape ``(n,)``, and their ``columns``.

    Calls are joined by spans of correlation ids, because a single join takes gigabytes.
    """
    table, ids = tables.kernels, tables.kernels.c.correlation_id
    spans = list(launch_id_spans(session, [report.index for report in session.reports]))
    in_spans = [(ids.between(*span), tables.api_calls.c.correlation_id.between(*span)) for span in spans]
    outside = sa.or_(ids.is_(None), ids < spans[0][0], ids > spans[-1][1]) if spans else sa.true()
    for is_in_span, call_condition in (*in_spans, (outside, sa.false())):
        calls = first_calls(call_condition, tables.api_calls.c.thread)
        query = sa.select(
            table.c.report,
            sa.func.coalesce(table.c.process, -1).label("process"),
            sa.func.coalesce(calls.c.start, _MISSING).label("launch"),
            sa.func.coalesce(calls.c.thread, -1).label("launching_thread"),
            sa.func.coalesce(table.c.graph_node_id, NO_NODE).label("node"),
            *(column.label(key) for key, column in columns.items()),
        )
        query = query.select_from(rows_of.outerjoin(calls, is_launched_by(table, calls)))
        for batch in session.array_batches(query.where(is_in_span, *conditions, table.c.end.is_not(None))):
            names = ("report", "process", "launch", "launching_thread", "node")
            yield number_of(*(batch.pop(key).astype(np.int64) for key in names)), batch


def rows_by_number(
    number_of: NumberOf, cells_of: Callable[[Ints], Mapping[str, Sequence[Any]]], part_of: Callable[[Ints], Ints],
    session: Session, of: ValueRows, columns: Sequence[Column],
) -> Sequence[Row]:  # fmt: skip
    """Return the rows of `statistics.summary_rows` for each number; shares are of the time of its part."""
    keys = of.keys
    texts = {key.key: Texts() for key in keys if isinstance(key.type, sa.String)}
    fields = {key.key: sa.func.coalesce(key.element, "" if key.key in texts else _MISSING) for key in keys}
    kinds: dict[tuple[int, ...], int] = {}
    group_parts, time_parts = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
    for step, batch in launched(number_of, session, of.table, {**fields, "duration": of.value}, of.conditions):
        coded = [texts[key].coded(batch[key]) if key in texts else batch[key].astype(np.int64) for key in fields]
        # The row of zeros is needed if there are no keys.
        unique_keys, key_index = np.unique(np.stack([*coded, 0 * step]), axis=1, return_inverse=True)
        kind = np.array([kinds.setdefault(tuple(codes), len(kinds)) for codes in unique_keys.T.tolist()], np.int64)
        group_parts.append((step << _SHIFT) + kind[key_index.reshape(-1)])
        time_parts.append(narrow(batch["duration"]))
    groups, times = np.concatenate(group_parts), np.concatenate(time_parts)
    del group_parts, time_parts
    give_back()
    group_numbers, arrays = measures_of(groups, times, session.limits.rows_at_once(_KERNEL_BYTES))
    del groups, times
    step = group_numbers >> _SHIFT
    values = np.array(list(kinds), np.int64).reshape(-1, len(keys) + 1)[group_numbers & ((1 << _SHIFT) - 1), :-1].T
    for key, column in zip(fields, values, strict=True):
        names = texts[key].texts if key in texts else ()
        cells = [names[value] or None for value in column.tolist()] if names else _without_missing(column, _MISSING)
        arrays[key] = np.array(cells, object)
    arrays["share"] = _shares(part := part_of(step), arrays["total"])
    arrays |= {key: np.array(column, object) for key, column in cells_of(step).items()}
    ties = [texts[key].ranks()[column] if key in texts else column for key, column in zip(fields, values, strict=True)]
    order = np.lexsort((*reversed(ties), -arrays["total"], part, part == NO_STEP))
    shown = tuple(column.key for column in columns)
    return ColumnRows({key: narrow(arrays.pop(key)[order]) for key in shown}, shown)


def _shares(part: Ints, time: Array) -> Floats:
    index = np.unique(part, return_inverse=True)[1].reshape(-1)
    totals = np.bincount(index, time)[index]
    shares: Floats = np.divide(100.0 * time, totals, out=np.zeros(len(part)), where=totals > 0)
    return shares


def _without_missing(numbers: Ints, missing: int) -> list[int | None]:
    return [None if number == missing else number for number in numbers.tolist()]
