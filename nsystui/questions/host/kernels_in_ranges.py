"""The kernel summary by NVTX range: the range of a kernel's capture if a CUDA graph replays it, else of its launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.answer import Row, TableAnswer
from nsystui.base.selection import Selection
from nsystui.questions.host.naming import NO_NODE, ThreadRanges
from nsystui.questions.job.job import OpenJob
from nsystui.questions.kernels.summary import kernel_summary
from nsystui.questions.steps.kernels_in_steps import Numbers, key_fields, launch_of, launched, rows_of_groups
from nsystui.store import tables
from nsystui.store.session import Session


def kernels_in_ranges(job: OpenJob, selection: Selection, **options: Any) -> TableAnswer:
    """Summarise kernels like `kernel_summary`, by NVTX range and other keys; ``options`` are its further arguments.

    See `ThreadRanges.of_operations`.
    """
    ranges = ThreadRanges.load(job)

    def cells(numbers: Numbers) -> dict[str, list[str]]:
        names = [ranges.names[number] for number in (numbers >> 1).tolist()]
        return {"origin": [_ORIGINS[number] for number in (numbers & 1).tolist()], "range": names}

    def numbered(batch: dict[str, NDArray[Any]]) -> tuple[Numbers, dict[str, NDArray[Any]]]:
        (report, process, launch), node = launch_of(batch), batch["node"].astype(np.int64)
        labels, is_captured = ranges.of_operations(report, process, node, batch["thread"].astype(np.int64), launch)
        return 2 * labels + is_captured, batch

    def rows(session: Session, rows_of: sa.FromClause, value: sa.ColumnElement[Any], *summary: Any) -> Sequence[Row]:
        keys, conditions, columns = summary
        node = sa.func.coalesce(tables.kernels.c.graph_node_id, NO_NODE)
        batches = launched(session, rows_of, {**key_fields(keys), "node": node, "duration": value}, conditions)
        return rows_of_groups(session, map(numbered, batches), keys, columns, cells, np.zeros_like)

    answer = kernel_summary(job.session, selection, **options, summarise=rows)
    return replace(answer, notes=(*answer.notes, *ranges.ranges.notes))


_ORIGINS = ("launched", "captured")
