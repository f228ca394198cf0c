"""The counters of AWS's EFA plugin, which are generic events (docs/recipes.md#aws-efa)."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
import sqlalchemy as sa

from nsystui.base.text import few
from nsystui.base.types import Condition, Floats
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.job.job import OpenJob
from nsystui.store import tables

UNDOCUMENTED = (
    "EFA counters are shown under the names they were recorded with; NVIDIA documents neither names nor units"
)
_UNREADABLE = "the EFA samples have no time in the session, or no field that is a number"
_SAMPLES = tables.efa_samples
_SECOND = 1e9


@dataclass(frozen=True, eq=False)
class EfaCounter:
    """A counter of an adapter, from each sample to the next; job time, shapes ``(n,)``.

    ``values``: as recorded, or for a running total (``is_total``) the rise per second.
    """

    report: int
    adapter: str
    type_id: int
    counter: str
    is_total: bool
    starts: Times
    ends: Times
    values: Floats


_Key = tuple[int, str, int, str]
"""Report, adapter, type of the events, which identifies an adapter without a name, and field."""
_Series = dict[_Key, tuple[Times, Floats]]


def counters(job: OpenJob, reports: Collection[int]) -> tuple[list[EfaCounter], tuple[str, ...]]:
    """Return the counters of bytes of ``reports``, and notes; both are empty if no report has EFA samples."""
    if not job.session.count(_SAMPLES):
        return [], ()
    of_reports = _SAMPLES.c.report.in_(reports)
    series, fields = _series(
        job, [of_reports, *(_SAMPLES.c[name].is_not(None) for name in ("field", "time", "type_id"))]
    )
    if not fields:
        is_sampled = job.session.rows(sa.select(_SAMPLES.c.report).where(of_reports).limit(1))
        return [], (UNDOCUMENTED, _UNREADABLE) if is_sampled else ()
    totals = _totals(series)
    lanes = []
    for key, (times, values) in sorted(series.items(), key=lambda item: item[0]):
        order, is_total = np.argsort(times, kind="stable"), key[-1] in totals
        starts, ends, recorded = times[order][:-1], times[order][1:], values[order].astype(np.float64)
        is_span = ends > starts
        starts, ends = starts[is_span], ends[is_span]
        shown_values = np.diff(recorded)[is_span] / ((ends - starts) / _SECOND) if is_total else recorded[1:][is_span]
        lanes.append(EfaCounter(*key, is_total, starts, ends, shown_values))
    return lanes, tuple(_notes(fields, {field for *_, field in series}, totals))


def _series(job: OpenJob, conditions: list[Condition]) -> tuple[_Series, set[str]]:
    """Return the samples of each counter of bytes, and the names of all fields."""
    series: _Series = {}
    fields = set()
    keys = (_SAMPLES.c.report, _SAMPLES.c.type_id, _SAMPLES.c.source, _SAMPLES.c.type, _SAMPLES.c.field)
    for report, type_id, source, kind, field in job.session.rows(sa.select(*keys).where(*conditions).distinct()):
        fields.add(field)
        if "bytes" not in field.lower():
            continue
        is_in_series = [_SAMPLES.c.report == report, _SAMPLES.c.type_id == type_id, _SAMPLES.c.field == field]
        time = (_SAMPLES.c.time + _SAMPLES.c.clock_offset).label("time")
        rows = job.session.arrays(sa.select(time, _SAMPLES.c.value).where(*conditions, *is_in_series))
        adapter = " ".join(dict.fromkeys(filter(None, (source, kind, str(type_id & 0xFF)))))
        series[report, adapter, type_id, field] = rows["time"], rows["value"]
    return series, fields


def _totals(series: _Series) -> frozenset[str]:
    """Return fields that rise repeatedly on an adapter and never fall, except rates by name."""
    falling, rising = set(), set()
    for (*_, field), (times, values) in series.items():
        steps = np.diff(values[np.argsort(times, kind="stable")])
        if (steps < 0).any() or "per second" in field.lower():
            falling.add(field)
        if np.count_nonzero(steps > 0) > 1:
            rising.add(field)
    return frozenset(rising - falling)


def _notes(fields: set[str], shown: set[str], totals: frozenset[str]) -> Iterator[str]:
    yield UNDOCUMENTED
    if not shown:
        yield f"no field of the EFA samples has bytes in its name; the fields are {', '.join(sorted(fields))}"
        return
    if totals:
        names = few(sorted(totals))
        yield f"EFA counters that never fall are taken as running totals and shown as increase per second: {names}"
    if shown - totals:
        names = few(sorted(shown - totals))
        yield f"EFA counters that fall, stay constant or are rates are shown as recorded, averaged in a bin: {names}"
    yield "an EFA sample covers the time since the sample before it, so the first sample of each counter is not shown"
