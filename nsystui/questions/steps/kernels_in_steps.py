"""The kernel summary by training step: which kernels, or families of them, each step's kernel time went to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.answer import ArrayRows, Column, Row, TableAnswer
from nsystui.base.resources import give_back
from nsystui.base.selection import Selection
from nsystui.questions.algebra.groups import measures_of
from nsystui.questions.kernels.summary import first_calls, kernel_summary
from nsystui.questions.nvtx.chains import narrow
from nsystui.questions.nvtx.loading import Texts
from nsystui.questions.queries.conditions import is_launched_by, where
from nsystui.questions.steps.task_steps import NO_STEP, launch_id_spans
from nsystui.questions.steps.times import Steps
from nsystui.store import tables
from nsystui.store.session import Session

if TYPE_CHECKING:
    from nsystui.questions.job.job import OpenJob

_ROW = 100
"""Bytes that a kernel takes while the statistics of its group are made."""
_SHIFT = 32
"""A group is the number of its step above so many bits, and that of its keys."""
_MISSING = -(2**62)
"""In place of a number that the export lacks; as a time it is in no step."""


def kernels_in_steps(job: OpenJob, selection: Selection, steps: Steps, **wanted: Any) -> TableAnswer:
    """Summarise kernels as `kernel_summary` does, by step among others; ``wanted`` are its further arguments.

    A kernel belongs to the step of its process in which its launch began, whichever thread made it. Shares are of the
    kernel time of the step. The steps are in order, and last comes what is in none.
    """
    answer = kernel_summary(job.session, selection, **wanted, summarise=partial(_rows_in_steps, steps))
    return replace(answer, notes=(*answer.notes, *steps.notes))


def count_in_steps(session: Session, selection: Selection, steps: Steps) -> int:
    """Count the selected kernels that were launched in a step."""
    parts = _launched(steps, session, tables.kernels, {}, where(tables.kernels, selection))
    return sum(int((numbers != NO_STEP).sum()) for numbers, _ in parts)


def _launched(
    steps: Steps,
    session: Session,
    rows_of: sa.FromClause,
    wanted: Mapping[str, sa.ColumnElement[Any]],
    conditions: Sequence[sa.ColumnElement[bool]],
) -> Iterator[tuple[NDArray[np.int64], dict[str, NDArray[Any]]]]:
    """Yield the steps of kernels, shape ``(n,)``, and the columns ``wanted`` of them.

    The calls are joined a span of correlation ids at a time: all at once they would take gigabytes.
    """
    table, ids = tables.kernels, tables.kernels.c.correlation_id
    spans = list(launch_id_spans(session, [report.index for report in session.reports]))
    chosen = [(ids.between(*span), tables.api_calls.c.correlation_id.between(*span)) for span in spans]
    others = sa.or_(ids.is_(None), ids < spans[0][0], ids > spans[-1][1]) if spans else sa.true()
    for own, of_calls in (*chosen, (others, sa.false())):
        calls = first_calls(of_calls)
        query = sa.select(
            table.c.report,
            sa.func.coalesce(table.c.process, -1).label("process"),
            sa.func.coalesce(calls.c.start, _MISSING).label("launch"),
            *(column.label(key) for key, column in wanted.items()),
        )
        query = query.select_from(rows_of.outerjoin(calls, is_launched_by(table, calls)))
        for batch in session.array_batches(query.where(own, *conditions, table.c.end.is_not(None))):
            places = (batch.pop(key).astype(np.int64) for key in ("report", "process", "launch"))
            yield steps.numbers_at(*places), batch


def _rows_in_steps(
    steps: Steps,
    session: Session,
    rows_of: sa.FromClause,
    value: sa.ColumnElement[Any],
    keys: Sequence[sa.Label[Any]],
    conditions: Sequence[sa.ColumnElement[bool]],
    columns: Sequence[Column],
) -> Sequence[Row]:
    """The rows of `statistics.summary_rows` for each step."""
    texts = {key.key: Texts() for key in keys if isinstance(key.type, sa.String)}
    wanted = {key.key: sa.func.coalesce(key.element, "" if key.key in texts else _MISSING) for key in keys}
    kinds: dict[tuple[int, ...], int] = {}
    group, time = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
    for step, batch in _launched(steps, session, rows_of, {**wanted, "duration": value}, conditions):
        coded = [texts[key].coded(batch[key]) if key in texts else batch[key].astype(np.int64) for key in wanted]
        # With a row of zeros, for there may be no keys.
        own, place = np.unique(np.stack([*coded, 0 * step]), axis=1, return_inverse=True)
        kind = np.array([kinds.setdefault(tuple(one), len(kinds)) for one in own.T.tolist()], np.int64)
        group.append((step << _SHIFT) + kind[place.reshape(-1)])
        time.append(narrow(batch["duration"]))
    every, times = np.concatenate(group), np.concatenate(time)
    del group, time
    give_back()
    numbers, arrays = measures_of(every, times, session.limits.rows_at_once(_ROW))
    del every, times
    step = numbers >> _SHIFT
    values = np.array(list(kinds), np.int64).reshape(-1, len(keys) + 1)[numbers & ((1 << _SHIFT) - 1), :-1].T
    for key, column in zip(wanted, values, strict=True):
        names = texts[key].texts if key in texts else ()
        cells = [names[value] or None for value in column.tolist()] if names else _known(column, _MISSING)
        arrays[key] = np.array(cells, object)
    whole_of, first = np.unique(step, return_inverse=True)
    whole = np.bincount(first.reshape(-1), arrays["total"], len(whole_of))[first.reshape(-1)]
    arrays["share"] = np.divide(100.0 * arrays["total"], whole, out=np.zeros(len(step)), where=whole > 0)
    arrays["step"] = np.array(_known(step, NO_STEP), object)
    ties = [texts[key].ranks()[column] if key in texts else column for key, column in zip(wanted, values, strict=True)]
    order = np.lexsort((*reversed(ties), -arrays["total"], step, step == NO_STEP))
    shown = tuple(column.key for column in columns)
    return ArrayRows({key: narrow(arrays.pop(key)[order]) for key in shown}, shown)


def _known(numbers: NDArray[np.int64], missing: int) -> list[int | None]:
    return [None if number == missing else number for number in numbers.tolist()]
