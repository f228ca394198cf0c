"""How busy the GPUs of two sides were, in the mean over the ranks of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from nsystui.base.answer import Value
from nsystui.questions.comparison.side import Side
from nsystui.questions.overview import task_table
from nsystui.questions.time_window import extents
from nsystui.questions.utilisation import SHARE_COLUMNS


@dataclass(frozen=True)
class Utilisation:
    """``percent``: by the keys of ``SHARE_COLUMNS``, the mean over the ranks with a GPU, ``None`` without any.

    ``time``: the length of the span that the percentages are of, ns (in the mean, where reports share no clock).
    """

    percent: Mapping[str, float | None]
    time: float | None
    notes: tuple[str, ...]


def utilisation(side: Side, other: Side) -> Utilisation:
    """The mean of the rows that the overview has for the ranks of ``side``, judged beside ``other``."""
    job, selection = side.job, side.judged_beside(other)
    table = task_table(job.session, selection, job.ranks, job.busy(selection))
    percent = {column.key: _mean(_known(table.cells(column.key))) for column in SHARE_COLUMNS}
    windows = extents(job.session, selection)
    spans = [windows[item.task.report] for item in side.ranks if item.task.report in windows]
    return Utilisation(percent, _mean([span.end - span.start for span in spans]), table.notes)


def _known(cells: list[Value]) -> list[float]:
    return [cell for cell in cells if isinstance(cell, int | float)]


def _mean(values: list[float]) -> float | None:
    return fmean(values) if values else None
