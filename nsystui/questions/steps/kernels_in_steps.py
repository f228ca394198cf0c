"""The kernel summary by training step: which kernels, or families of them, each step's kernel time went to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from nsystui.base.answer import Column, Row, TableAnswer
from nsystui.base.selection import Selection
from nsystui.questions.kernels.summary import first_calls, kernel_summary
from nsystui.questions.nvtx.loading import Texts
from nsystui.questions.queries import statistics
from nsystui.questions.queries.conditions import is_launched_by
from nsystui.questions.steps.times import Steps
from nsystui.store import tables
from nsystui.store.session import Session

if TYPE_CHECKING:
    from nsystui.questions.job.job import OpenJob

_BEFORE_ALL = -(2**62)
"""A time in no step."""


def kernels_in_steps(job: OpenJob, selection: Selection, steps: Steps, **wanted: Any) -> TableAnswer:
    """Summarise kernels as `kernel_summary` does, by step among others; ``wanted`` are its further arguments.

    A kernel belongs to the step of its process in which its launch began, whichever thread made it. Shares are of the
    kernel time of the step. The steps are in order, and last comes what is in none.
    """
    answer = kernel_summary(job.session, selection, **wanted, summarise=partial(_rows_in_steps, steps))
    return replace(answer, notes=(*answer.notes, *steps.notes))


def _rows_in_steps(
    steps: Steps,
    session: Session,
    rows_of: sa.FromClause,
    value: sa.ColumnElement[Any],
    keys: Sequence[sa.Label[Any]],
    conditions: Sequence[sa.ColumnElement[bool]],
    columns: Sequence[Column],
) -> list[Row]:
    """The rows of `statistics.summary_rows` for each step."""
    import pandas as pd

    table, calls = tables.kernels, first_calls(sa.true())
    launched = rows_of.outerjoin(calls, is_launched_by(table, calls))
    texts = {key.key: Texts() for key in keys if isinstance(key.type, sa.String)}
    wanted = [sa.func.coalesce(key.element, "").label(key.key) if key.key in texts else key for key in keys]
    query = sa.select(
        table.c.report,
        sa.func.coalesce(table.c.process, -1).label("process"),
        sa.func.coalesce(calls.c.start, _BEFORE_ALL).label("launch"),
        value.label("duration"),
        *wanted,
    )
    query = query.select_from(launched).where(*conditions, table.c.end.is_not(None))
    parts = [pd.DataFrame({"step": [], "duration": [], **{key.key: [] for key in keys}}, dtype="int64")]
    for batch in session.array_batches(query):
        launches = (batch.pop(key).astype("int64") for key in ("report", "process", "launch"))
        own: dict[str, Any] = {"step": steps.numbers_at(*launches), "duration": batch["duration"].astype("int64")}
        for key in keys:
            values = batch[key.key]
            own[key.key] = texts[key.key].coded(values) if key.key in texts else pd.array(values).astype("Int64")
        parts.append(pd.DataFrame(own))
    names = ["step", *(key.key for key in keys)]
    groups = statistics.frame_groups(pd.concat(parts, ignore_index=True), "duration", names)
    whole = groups.groupby("step")["total"].transform("sum")
    groups["share"] = (100.0 * groups["total"] / whole).fillna(0.0)
    for name, numbers in texts.items():
        groups[name] = [numbers.texts[number] or None for number in groups[name].tolist()]
    is_outside = groups["step"] < 0
    groups = groups.assign(outside=is_outside).sort_values(["outside", "step", "total"], ascending=[True, True, False])
    groups["step"] = groups["step"].astype("Int64").mask(groups["step"] < 0)
    return list(TableAnswer.of_frame("steps", tuple(columns), groups).rows)
