"""GPU metrics as tables: by metric and GPU, and over time (docs/numbers.md#gpu-metrics)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.answer import DEVICE, RANK, START, Column, Row, TableAnswer, Unit, Value
from nsystui.base.selection import Selection, Task, Window
from nsystui.base.text import safe_text
from nsystui.questions.gpu.metrics import MetricSamples, MetricSource, metric_lanes, metric_sources, samples_of
from nsystui.questions.gpu.utilisation import selected_devices
from nsystui.questions.queries.conditions import job_end, job_start, where
from nsystui.questions.queries.data_notes import missing_note
from nsystui.questions.queries.derived import in_runs, rows_by_report
from nsystui.questions.queries.time_window import edges_of
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.session import Session

if TYPE_CHECKING:
    from nsystui.questions.job.job import OpenJob

Floats = NDArray[np.float64]

_GPU = Column("gpu", header="GPU", label="gpu", unit=Unit.NUMBER, importance=3)
_METRIC = Column("metric", header="Metric", label="metric")
_UNIT = Column("unit", header="Unit", label="unit")


def _number(key: str, header: str, importance: int) -> Column:
    return Column(key, header=header, label=header.lower(), unit=Unit.COUNT, decimals=3, importance=importance)


COLUMNS = (
    RANK,
    DEVICE.with_importance(1),
    _GPU,
    _METRIC,
    _UNIT,
    Column("samples", header="Samples", label="samples", unit=Unit.COUNT, importance=4),
    _number("mean", "Mean", 0),
    _number("min", "Min", 5),
    _number("median", "Med", 1),
    _number("p95", "P95", 2),
    _number("max", "Max", 1),
    Column("implausible", header="Implausible", label="implausible", unit=Unit.COUNT, importance=6),
    Column("period", header="Period (ns)", label="period", unit=Unit.DURATION, importance=6),
)
TIME_COLUMNS = (RANK, DEVICE, _GPU, START, _METRIC, _UNIT, _number("value", "Value", 0))

_TELLING = ("SM active", "tensor active", "DRAM read", "DRAM write", "SM issue")
"""The families whose columns stay longest on a narrow screen."""
Place = tuple[int, int]
"""A report and the machine's number of a GPU."""


def metric_statistics(job: OpenJob, selection: Selection) -> TableAnswer:
    """Tabulate each metric of each GPU: statistics of the samples of the selected time.

    ``mean`` is weighted by how much of a sample's period lies in the time, the others count samples.
    """
    users = users_of_gpus(job, selection)
    rows: list[Row] = []
    sampled = [report for report in job.session.reports if report.count(tables.gpu_metrics)]
    for every in in_runs(job.session, sampled, partial(_of_gpus, selection), tables.gpu_metrics, "metrics"):
        for source, of_metrics in every:
            rows += [(*user, *row) for user in users_of(users, source) for row in of_metrics]
    rows.sort(key=lambda row: (row[0] is None, row[0] or 0, row[1] or 0))
    return metrics_answer(job, "metrics", COLUMNS, rows)


def _of_gpus(selection: Selection, session: Session, _: list[Report]) -> list[tuple[MetricSource, list[Row]]]:
    """The statistics of every metric of each GPU, with its first metric."""
    return [
        (found[0].source, [_statistics(one, selection.window) for one in found])
        for found in samples_of(session, metric_sources(session, selection, every=True))
    ]


def _statistics(samples: MetricSamples, window: Window | None) -> Row:
    low, high = (window.start, window.end) if window is not None else (None, None)
    starts, ends = np.clip(samples.starts, low, high), np.clip(samples.ends, low, high)
    overlap = ends - starts
    values, weights = samples.values[overlap > 0], overlap[overlap > 0]
    source = samples.source
    figures: list[Value] = [None] * 5
    if len(values):
        middle, p95 = np.percentile(values, (50, 95)).tolist()
        mean = float(np.average(values, weights=weights))
        figures = [mean, float(values.min()), middle, p95, float(values.max())]
    period = int(np.median(samples.ends - samples.starts)) if len(samples.ends) else None
    return (source.gpu, source.metric, source.unit, len(values), *figures, samples.implausible, period)


def metrics_over_time(job: OpenJob, selection: Selection, bins: int) -> TableAnswer:
    """Tabulate each metric of each GPU over time: the mean of the samples of each span, as the lanes have it."""
    users, window = users_of_gpus(job, selection), job.extent(selection)
    sources = metric_sources(job.session, selection, every=True)
    starts = edges_of(window, bins)[:-1]
    rows: list[Row] = []
    for lane in metric_lanes(job.session, selection, window, bins, sources):
        source = lane.source
        for user in users_of(users, source):
            values = zip(starts, plain_values(lane.values), strict=True)
            rows += [(*user, source.gpu, start, source.metric, source.unit, value) for start, value in values]
    return metrics_answer(job, "metrics-time", TIME_COLUMNS, rows)


def with_metrics(answer: TableAnswer, job: OpenJob, selection: Selection, bins: int) -> TableAnswer:
    """Add the kernels in flight and each metric as columns to a table with a row for each rank, device and span."""
    users, window = users_of_gpus(job, selection), job.extent(selection)
    sources = metric_sources(job.session, selection, every=True)
    metrics = columns_of(sources)
    place = {column.key: number for number, column in enumerate(metrics, 1)}
    nothing: list[Value] = [None] * bins
    values = {
        user: [plain_values(own), *(nothing for _ in metrics)]
        for user, own in _in_flight(job, selection, window, bins).items()
    }
    for lane in metric_lanes(job.session, selection, window, bins, sources):
        for user in users.get((lane.source.report, lane.source.gpu), ()):
            values[user][place[lane.source.metric]] = plain_values(lane.values)
    rows = []
    busy = [column.key for column in answer.columns].index("busy_percent")
    for number, row in enumerate(answer.rows):
        own = [column[number % bins] for column in values[row[0], row[1]]]
        # Where the session had not begun, or was over, nothing is known of kernels.
        rows.append((*row, *([None, *own[1:]] if row[busy] is None else own)))
    return TableAnswer(answer.name, (*answer.columns, _IN_FLIGHT, *metrics), rows, answer.total, answer.notes)


_IN_FLIGHT = Column(
    "in_flight", header="Kernels in Flight", label="in flight", unit=Unit.COUNT, decimals=3, importance=2
)


def _in_flight(job: OpenJob, selection: Selection, window: Window, bins: int) -> dict[tuple[Value, Value], Floats]:
    """By rank and device the mean number of kernels that ran at once in each span.

    Each is the time of all kernels in the span by its length. Of the kernels that began (and ended) in each span only
    number and times are read.
    """
    kernels, width = tables.kernels, window.end - window.start
    users: dict[tuple[Task, int], tuple[Value, Value]] = {
        (item.task.task, item.device): (item.task.rank, item.device)
        for item in selected_devices(job.session, selection, job.ranks)
    }
    found = {user: np.zeros(bins) for user in users.values()}
    if not width:
        return {user: np.full(bins, np.nan) for user in found}
    edges = np.arange(bins + 1) * (width / bins)
    for sign, time in ((1, job_start(kernels)), (-1, job_end(kernels))):
        since = sa.func.greatest(sa.func.least(time - window.start, width), 0)
        place = (kernels.c.report, kernels.c.process, kernels.c.device)
        number = (since * bins).op("//")(width).label("number")
        query = sa.select(*place, number, sa.func.count(), sa.func.sum(since)).group_by(*place, number)
        query = query.where(*where(kernels, selection.with_name(None)), kernels.c.end.is_not(None))
        counts: dict[tuple[Value, Value], NDArray[np.float64]] = {}
        for report, process, device, span, count, total in rows_by_report(job.session, query):
            if (Task(report, process), device) in users:
                own = counts.setdefault(users[Task(report, process), device], np.zeros((2, bins + 2)))
                own[:, span + 1] += (count, total)
        for user, own in counts.items():
            before = own.cumsum(axis=1)[:, : bins + 1]
            found[user] += sign * np.diff(edges * before[0] - before[1]) * bins / width
    return found


def users_of_gpus(job: OpenJob, selection: Selection) -> dict[Place, list[tuple[Value, Value]]]:
    """Tell rank and device of every selected process that used a GPU."""
    found: dict[Place, list[tuple[Value, Value]]] = {}
    for item in selected_devices(job.session, selection, job.ranks):
        if item.gpu is not None:
            found.setdefault((item.task.task.report, item.gpu), []).append((item.task.rank, item.device))
    return found


def users_of(users: dict[Place, list[tuple[Value, Value]]], source: MetricSource) -> list[tuple[Value, Value]]:
    """Tell who used the GPU of a metric; nobody where no work on it was recorded."""
    return users.get((source.report, source.gpu)) or [(None, None)]


def columns_of(sources: Sequence[MetricSource]) -> tuple[Column, ...]:
    """Make a column for each metric, under the name that was recorded; those that tell most stay longest."""
    found = {one.metric: one for one in sources}
    return tuple(
        Column(
            metric,
            header=safe_text(metric if " [" in metric or not one.unit else f"{metric} ({one.unit})"),
            label=safe_text(one.family if one.is_percent or one.unit == "Hz" else f"{one.label} {one.unit}".rstrip()),
            unit=Unit.PERCENT if one.is_percent else Unit.FREQUENCY if one.unit == "Hz" else Unit.COUNT,
            decimals=3,
            importance=1 + _TELLING.index(one.family) if one.family in _TELLING else 7,
        )
        for metric, one in found.items()
    )


def plain_values(values: Floats) -> list[Value]:
    """List values for rows: missing where they are not a number."""
    return [None if np.isnan(value) else value for value in values.tolist()]


def metrics_answer(
    job: OpenJob, name: str, columns: tuple[Column, ...], rows: Sequence[Row], more: Iterable[str] = ()
) -> TableAnswer:
    """Make a table of metrics, with ``more`` notes where the exports have samples."""
    lacking = missing_note(job.session, tables.gpu_metrics)
    return TableAnswer(name, columns, rows, len(rows), (lacking,) if lacking else tuple(more))
