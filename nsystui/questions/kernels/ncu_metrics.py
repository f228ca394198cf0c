"""Nsight Compute's metrics of kernels, as columns of the kernel summary (docs/numbers.md#nsight-compute)."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from nsystui.base.answer import Column, Row, TableAnswer, Unit, Value
from nsystui.base.text import few
from nsystui.exports.ncu_csv import LIMITS, NcuLaunch
from nsystui.questions.kernels.summary import Names, block_of, grid_of
from nsystui.questions.queries.conditions import of_reports
from nsystui.questions.queries.derived import rows_of_each_report
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.session import Session

COLUMNS = (
    Column("ncu_bound", header="NCU Bound", label="bound", importance=1),
    Column("ncu_duration", header="NCU Avg (ns)", label="ncu avg", unit=Unit.DURATION, decimals=1, importance=1),
    Column("ncu_compute", header="NCU Compute (%)", label="compute", unit=Unit.PERCENT, decimals=1, importance=1),
    Column("ncu_memory", header="NCU Memory (%)", label="memory", unit=Unit.PERCENT, decimals=1, importance=1),
    Column("ncu_dram", header="NCU DRAM (%)", label="dram", unit=Unit.PERCENT, decimals=1, importance=5),
    Column(
        "ncu_achieved", header="NCU Achieved Occupancy (%)", label="achieved", unit=Unit.PERCENT, decimals=1
    ).with_importance(2),
    Column(
        "ncu_theoretical", header="NCU Theoretical Occupancy (%)", label="theor.", unit=Unit.PERCENT, decimals=1
    ).with_importance(3),
    Column("ncu_limiter", header="NCU Occupancy Limiter", label="limiter", importance=2),
    Column("ncu_launches", header="NCU Launches", label="profiled", unit=Unit.COUNT, importance=2),
)
_NOTHING: tuple[Value, ...] = (None,) * len(COLUMNS)

_LATENCY_BELOW, _BALANCED_WITHIN, _SATURATED_FROM = 60.0, 10.0, 80.0
"""Thresholds of Nsight Compute's rule SOLBottleneck (SpeedOfLight.py), percent of the peak."""

METHOD = (
    "ncu measured another run, one kernel at a time, by default with base clocks and flushed caches: its durations "
    "differ from this run's"
)


class _Kernel(NamedTuple):
    name: str
    short: str
    mangled: str

    def shown(self, names: Names) -> str:
        if names is Names.SHORT:
            return self.short
        return self.mangled or self.name if names is Names.MANGLED else self.name


_Shape = tuple[str, str]
"""Grid and block, as tables write them."""
_RowKey = tuple[str, _Shape | None]
"""A row's name and, in a table by shape, its shape."""


def with_ncu(
    answer: TableAnswer, session: Session, names: Names, launches: Sequence[NcuLaunch], by_shape: bool
) -> TableAnswer:
    """Add ncu's metrics to the rows of profiled kernels.

    Values are means over its profiled launches. Grid and block identify kernels that share a name.
    """
    launches_by_row, unknown, ambiguous = _matched(session, names, launches, by_shape)
    keys = [column.key for column in answer.columns]
    name, grid, block = (keys.index(key) if key in keys else 0 for key in ("name", "grid", "block"))
    rows = []
    for row in answer.rows:
        shape = (str(row[grid]), str(row[block])) if by_shape else None
        profiled = launches_by_row.get((str(row[name] or ""), shape), ())
        rows.append((*row, *(measured(profiled) if profiled else _NOTHING)))
    notes = [METHOD]
    if unknown:
        notes.append(f"ncu profiled {few(unknown)}, which the exports do not contain")
    if ambiguous:
        notes.append(
            f"ncu profiled {few(ambiguous)}: several kernels have this name; --names short shows their sum, "
            "ncu --print-kernel-base mangled separates them"
        )
    return TableAnswer(answer.name, (*answer.columns, *COLUMNS), rows, answer.total, (*answer.notes, *notes))


def measured(launches: Sequence[NcuLaunch]) -> tuple[Value, ...]:
    """Return the values of `COLUMNS` for a row's launches."""
    mean: dict[str, float | None] = {}
    for key in ("duration", "compute", "memory", "dram", "achieved", "theoretical"):
        values = [launch.values[key] for launch in launches if key in launch.values]
        mean[key] = sum(values) / len(values) if values else None
    limiters = dict.fromkeys(limiter for launch in launches if (limiter := limiter_of(launch.values)))
    return (bound_of(mean["compute"], mean["memory"]), *mean.values(), " or ".join(limiters) or None, len(launches))


def bound_of(compute: float | None, memory: float | None) -> str | None:
    """Return ``latency``, ``compute``, ``memory`` or ``both``, by Nsight Compute's rule SOLBottleneck."""
    if compute is None or memory is None:
        return None
    largest = max(compute, memory)
    if largest < _LATENCY_BELOW:
        return "latency"
    if compute == memory or (largest < _SATURATED_FROM and abs(compute - memory) < _BALANCED_WITHIN):
        return "both"
    return "compute" if compute > memory else "memory"


def limiter_of(values: Mapping[str, float]) -> str | None:
    """Return what limits a multiprocessor's blocks, comma-separated; ``None`` if any limit is unknown."""
    limits = {key: values[key] for key in LIMITS if key in values}
    if len(limits) < len(LIMITS):
        return None
    smallest = min(limits.values())
    return ", ".join(key for key, limit in limits.items() if limit == smallest)


def _shape(launch: NcuLaunch) -> _Shape | None:
    if launch.grid is None or launch.block is None:
        return None
    grid, block = (" ".join(f"{number:4d}" for number in size) for size in (launch.grid, launch.block))
    return grid, block


def _matched(
    session: Session, names: Names, launches: Sequence[NcuLaunch], by_shape: bool
) -> tuple[Mapping[_RowKey, list[NcuLaunch]], list[str], list[str]]:
    """Return launches by row, names that match no kernel, and names that match several."""
    kernels = _kernels(session)
    forms: tuple[dict[str, list[_Kernel]], ...] = ({}, {}, {}, {})
    for kernel in kernels:
        for form, word in zip(forms, (kernel.name, _plain(kernel.name), kernel.mangled, kernel.short), strict=True):
            if word:
                form.setdefault(word, []).append(kernel)
    rows: dict[_RowKey, list[NcuLaunch]] = defaultdict(list)
    unknown: dict[str, None] = {}
    ambiguous: dict[str, None] = {}
    for launch in launches:
        spellings = (launch.kernel, _plain(launch.kernel), launch.kernel, launch.kernel)
        candidates: Iterable[_Kernel] = next(
            (form[word] for form, word in zip(forms, spellings, strict=True) if word in form), ()
        )
        shown_names = {kernel.shown(names) for kernel in candidates}
        shape = _shape(launch)
        if len(shown_names) > 1:
            shown_names = {kernel.shown(names) for kernel in candidates if shape in kernels[kernel]}
            if len(shown_names) != 1:
                ambiguous[launch.kernel] = None
                continue
        if shown_names:
            rows[shown_names.pop(), shape if by_shape else None].append(launch)
        else:
            unknown[launch.kernel] = None
    return rows, list(unknown), list(ambiguous)


def _kernels(session: Session) -> dict[_Kernel, set[_Shape]]:

    def read(part: Session, reports: list[Report]) -> Sequence[Row]:
        table = tables.kernels
        texts = [sa.func.coalesce(table.c[key], "") for key in ("name", "short_name", "mangled_name")]
        query = sa.select(table.c.report, *texts, grid_of(table), block_of(table)).distinct()
        return part.rows(query.where(of_reports(table.c.report, {report.index for report in reports})))

    with_kernels = [report for report in session.reports if report.count(tables.kernels)]
    shapes: dict[_Kernel, set[_Shape]] = defaultdict(set)
    for _, *names, grid, block in rows_of_each_report(
        session, with_kernels, "kernel-shapes", read, table=tables.kernels
    ):
        shapes[_Kernel(*names)].add((grid, block))
    return shapes


_BOOL = re.compile(r"\(bool\)([01])")
_CAST = re.compile(r"\((?:(?:un)?signed )?(?:int|short|char|long|long long)\)(?=-?\d)")


def _plain(name: str) -> str:
    """Normalise what demanglers write differently: booleans, casts, blanks, anonymous namespaces."""
    name = _BOOL.sub(lambda match: ("false", "true")[int(match[1])], name)
    name = _CAST.sub("", name).replace("(anonymous namespace)", "<unnamed>")
    return name.replace(" ", "")
