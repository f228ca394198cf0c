"""GPU metrics as tables: by metric and GPU, and over time (docs/numbers.md#gpu-metrics)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from nsystui.base.answer import DEVICE, RANK, START, Column, Row, TableAnswer, Unit, Value
from nsystui.base.selection import Selection, Window
from nsystui.base.text import safe_text
from nsystui.base.types import Floats
from nsystui.questions.gpu.metrics import MetricSamples, MetricSource, metric_lanes, metric_sources, samples_of
from nsystui.questions.gpu.utilisation import selected_devices
from nsystui.questions.queries.data_notes import missing_notes
from nsystui.questions.queries.derived import in_runs
from nsystui.questions.queries.time_window import edges_of
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.session import Session

if TYPE_CHECKING:
    from nsystui.questions.job.job import OpenJob


_GPU = Column("gpu", header="GPU", label="gpu", unit=Unit.NUMBER, importance=3)
_METRIC = Column("metric", header="Metric", label="metric")
_UNIT = Column("unit", header="Unit", label="unit")


def _number(key: str, header: str, importance: int) -> Column:
    return Column(key, header=header, label=header.lower(), unit=Unit.COUNT, decimals=3, importance=importance)


COLUMNS = (
    RANK, DEVICE.with_importance(1), _GPU, _METRIC, _UNIT,
    Column("samples", header="Samples", label="samples", unit=Unit.COUNT, importance=4), _number("mean", "Mean", 0),
    _number("min", "Min", 5), _number("median", "Med", 1), _number("p95", "P95", 2), _number("max", "Max", 1),
    Column("implausible", header="Implausible", label="implausible", unit=Unit.COUNT, importance=6),
    Column("period", header="Period (ns)", label="period", unit=Unit.DURATION, importance=6),
)  # fmt: skip
TIME_COLUMNS = (RANK, DEVICE, _GPU, START, _METRIC, _UNIT, _number("value", "Value", 0))

_KEY_FAMILIES = ("SM active", "tensor active", "DRAM read", "DRAM write", "SM issue")
"""The families whose columns remain longest on a narrow screen."""
GpuKey = tuple[int, int]
"""A report, and the machine's number of a GPU."""


def metric_statistics(job: OpenJob, selection: Selection) -> TableAnswer:
    """Tabulate statistics of each metric of each GPU in the selected time.

    ``mean`` weights a sample by the part of its period in this time; the other statistics count samples.
    """
    users = users_of_gpus(job, selection)
    rows: list[Row] = []
    sampled = [report for report in job.session.reports if report.count(tables.gpu_metrics)]
    for run in in_runs(job.session, sampled, partial(_gpu_statistics, selection), tables.gpu_metrics, "metrics"):
        for source, metric_rows in run:
            rows += [(*user, *row) for user in users_of(users, source) for row in metric_rows]
    rows.sort(key=lambda row: (row[0] is None, row[0] or 0, row[1] or 0))
    return metrics_answer(job, "metrics", COLUMNS, rows)


def _gpu_statistics(selection: Selection, session: Session, _: list[Report]) -> list[tuple[MetricSource, list[Row]]]:
    return [
        (gpu_samples[0].source, [_statistics(samples, selection.window) for samples in gpu_samples])
        for gpu_samples in samples_of(session, metric_sources(session, selection, every=True))
    ]


def _statistics(samples: MetricSamples, window: Window | None) -> Row:
    low, high = (window.start, window.end) if window is not None else (None, None)
    starts, ends = np.clip(samples.starts, low, high), np.clip(samples.ends, low, high)
    overlap = ends - starts
    values, weights = samples.values[overlap > 0], overlap[overlap > 0]
    source = samples.source
    figures: list[Value] = [None] * 5
    if len(values):
        median, p95 = np.percentile(values, (50, 95)).tolist()
        mean = float(np.average(values, weights=weights))
        figures = [mean, float(values.min()), median, p95, float(values.max())]
    period = int(np.median(samples.ends - samples.starts)) if len(samples.ends) else None
    return (source.gpu, source.metric, source.unit, len(values), *figures, samples.implausible, period)


def metrics_over_time(job: OpenJob, selection: Selection, bins: int) -> TableAnswer:
    """Tabulate each metric of each GPU over time: means of samples, as in the lanes."""
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
    """Add each metric as a column to a table of ranks, devices and spans."""
    users, window = users_of_gpus(job, selection), job.extent(selection)
    sources = metric_sources(job.session, selection, every=True)
    metrics = columns_of(sources)
    column_numbers = {column.key: number for number, column in enumerate(metrics)}
    missing: list[Value] = [None] * bins
    values: dict[tuple[Value, Value], list[list[Value]]] = defaultdict(lambda: [missing for _ in metrics])
    for lane in metric_lanes(job.session, selection, window, bins, sources):
        for user in users.get((lane.source.report, lane.source.gpu), ()):
            values[user][column_numbers[lane.source.metric]] = plain_values(lane.values)
    rows = [
        (*row, *(column[number % bins] for column in values[row[0], row[1]])) for number, row in enumerate(answer.rows)
    ]
    return TableAnswer(answer.name, (*answer.columns, *metrics), rows, answer.total, answer.notes)


def users_of_gpus(job: OpenJob, selection: Selection) -> dict[GpuKey, list[tuple[Value, Value]]]:
    """Return rank and device of each selected process by GPU."""
    users: dict[GpuKey, list[tuple[Value, Value]]] = {}
    for device in selected_devices(job.session, selection, job.ranks):
        if device.gpu is not None:
            users.setdefault((device.task.task.report, device.gpu), []).append((device.task.rank, device.device))
    return users


def users_of(users: dict[GpuKey, list[tuple[Value, Value]]], source: MetricSource) -> list[tuple[Value, Value]]:
    """Return the users of a metric's GPU: ``(None, None)`` if no work on it was recorded."""
    return users.get((source.report, source.gpu)) or [(None, None)]


def columns_of(sources: Sequence[MetricSource]) -> tuple[Column, ...]:
    """Return a column for each metric, under its recorded name; `_KEY_FAMILIES` remain longest."""
    by_metric = {source.metric: source for source in sources}
    return tuple(
        Column(
            metric,
            header=safe_text(metric if " [" in metric or not source.unit else f"{metric} ({source.unit})"),
            label=safe_text(
                source.family if source.is_percent or source.unit == "Hz" else f"{source.label} {source.unit}".rstrip()
            ),
            unit=Unit.PERCENT if source.is_percent else Unit.FREQUENCY if source.unit == "Hz" else Unit.COUNT,
            decimals=3,
            importance=1 + _KEY_FAMILIES.index(source.family) if source.family in _KEY_FAMILIES else 7,
        )
        for metric, source in by_metric.items()
    )


def plain_values(values: Floats) -> list[Value]:
    """Return values for rows; missing if they are not a number."""
    return [None if np.isnan(value) else value for value in values.tolist()]


def metrics_answer(
    job: OpenJob, name: str, columns: tuple[Column, ...], rows: Sequence[Row], notes: Iterable[str] = ()
) -> TableAnswer:
    """Return a table of metrics, with ``notes`` if the exports have samples."""
    return TableAnswer(name, columns, rows, len(rows), missing_notes(job.session, tables.gpu_metrics) or tuple(notes))
