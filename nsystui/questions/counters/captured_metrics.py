"""GPU metrics of another capture of the same program, next to the rows of the kernel summary.

Sampling costs time, so one capture has the times and another the metrics, in a table of ``nsystui metrics --by
kernel``. Rows match by kernel name.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path

from nsystui.base.answer import Column, TableAnswer, Unit, Value
from nsystui.base.errors import ExportError
from nsystui.base.inputs import opened
from nsystui.base.text import few, safe_text, shorten
from nsystui.base.units import format_value
from nsystui.questions.counters.metric_means import DERIVED
from nsystui.questions.gpu.metrics import unit_of
from nsystui.questions.kernels.summary import SMART_NAME

_NAME, _COUNT, _TOTAL = "Name", "Instances", "Total Time (ns)"
_MAX_DIGITS = 100
_AVERAGE = Column(
    "captured_avg", header="Captured Avg (ns)", label="captured avg", unit=Unit.DURATION, decimals=1, importance=1
)
_ADVICE = "write it with `nsystui metrics --by kernel OTHER.sqlite --format csv -o FILE.csv`"


@dataclass(frozen=True)
class CapturedMetrics:
    """The metrics of kernels by smart name: values of ``columns``, missing without samples."""

    file: str
    columns: tuple[Column, ...]
    of_kernel: Mapping[str, tuple[Value, ...]]


def read_captured_metrics(path: Path) -> CapturedMetrics:
    """Read the CSV of ``nsystui metrics --by kernel --format csv``. Raises ExportError for any other file."""
    try:
        with opened(path) as file, TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="") as text:
            header, *rows = list(csv.reader(text, strict=True)) or [[]]
    except OSError as error:
        raise ExportError(str(path), f"cannot be read: {error.strerror or error}") from None
    except csv.Error as error:
        raise ExportError(str(path), f"is incomplete or was edited: {error}", _ADVICE) from None
    if not {_NAME, _COUNT, _TOTAL, *(column.header for column in DERIVED[:2])} <= set(header):
        raise ExportError(str(path), "is not the table of the metrics of kernels", _ADVICE)
    if duplicate := next((name for name in header if header.count(name) > 1), None):
        raise ExportError(str(path), f"has two columns called {shorten(safe_text(duplicate), 40)}", _ADVICE)
    names = [name for name in header if name not in (_NAME, _COUNT, _TOTAL)]
    columns = (_AVERAGE, *map(_column, names))
    metrics: dict[str, tuple[Value, ...]] = {}
    for row in rows:
        if len(row) != len(header):
            raise ExportError(str(path), f"a row has {len(row)} values, not {len(header)}", _ADVICE)
        cells = dict(zip(header, row, strict=True))
        try:
            average = _number(cells[_TOTAL], int) / max(_number(cells[_COUNT], int), 1)
            values = (_value(column, cells[name]) for column, name in zip(columns[1:], names, strict=True))
            metrics[cells[_NAME]] = (average, *values)
        except ValueError as error:
            raise ExportError(str(path), f"is incomplete or was edited: {error}", _ADVICE) from None
    return CapturedMetrics(path.name, columns, metrics)


def _column(header: str) -> Column:
    for column in DERIVED:
        if column.header == header:
            return column
    unit = unit_of(header)
    kind = Unit.PERCENT if unit.startswith("%") else Unit.FREQUENCY if unit == "Hz" else Unit.COUNT
    label = safe_text(header.partition(" [")[0])
    key = f"captured {header}" if header.isidentifier() and header.islower() else header  # not a key of the summary
    return Column(key, header=safe_text(header), label=label, unit=kind, decimals=3, importance=7)


def _value(column: Column, cell: str) -> Value:
    if not cell or column.unit is Unit.TEXT:
        return cell or None
    return _number(cell, int if column.decimals is None else float)


def _number(cell: str, kind: type[int] | type[float]) -> int | float:
    """Return a cell's number. Raises ValueError unless it is within ±2^63, which no metric exceeds."""
    number = kind(cell) if len(cell) <= _MAX_DIGITS else math.inf
    if not abs(number) < 2**63:
        raise ValueError(f"{shorten(safe_text(cell), 40)} is too large a number")
    return number


def with_captured_metrics(answer: TableAnswer, captured: CapturedMetrics, job_kernels: Collection[str]) -> TableAnswer:
    """Add the other capture's metrics by smart name; missing for kernels that it lacks.

    Notes report the share of kernel time without metrics, and kernels of the other capture that are not in
    ``job_kernels``.
    """
    names = [str(name or "") for name in answer.cells(SMART_NAME.key)]
    missing: tuple[Value, ...] = (None,) * len(captured.columns)
    metrics = [captured.of_kernel.get(name, missing) for name in names]
    times = [int(total or 0) for total in answer.cells("total")]
    unknown_time = sum(time for name, time in zip(names, times, strict=True) if name not in captured.of_kernel)
    notes = [
        f"the metrics are those of another capture, {safe_text(captured.file)}: captured avg is how long the same "
        "kernels took there"
    ]
    if unknown_time:
        share = format_value(Unit.PERCENT, 100 * unknown_time / sum(times))
        notes.append(
            f"kernels with {share} of the time are not in {safe_text(captured.file)}: their metrics are unknown"
        )
    if extra := captured.of_kernel.keys() - set(job_kernels):
        notes.append(f"{safe_text(captured.file)} has kernels that these exports do not have: {few(sorted(extra))}")
    rows = [(*row, *row_metrics) for row, row_metrics in zip(answer.rows, metrics, strict=True)]
    columns = (*answer.columns, *captured.columns)
    return TableAnswer(answer.name, columns, rows, answer.total, (*answer.notes, *notes))
