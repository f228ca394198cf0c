"""The counters of AWS's EFA plugin, which are generic events (docs/recipes.md#aws-efa)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa

from nsystui.base.inputs import json_in
from nsystui.base.text import few
from nsystui.base.types import Floats
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


@dataclass(frozen=True)
class Counters:
    """A lane for each counter of bytes of the EFA plugin, and notes."""

    lanes: tuple[EfaCounter, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, order=True)
class _Key:
    """A field of an adapter; the type of the events identifies an adapter without a name."""

    report: int
    adapter: str
    type_id: int
    field: str


def counters(job: OpenJob, reports: Collection[int]) -> Counters:
    """Read the counters of ``reports``; empty, without notes, if no report has EFA samples."""
    if not job.session.count(_SAMPLES):
        return Counters()
    series: dict[_Key, tuple[Times, Floats]] = {}
    fields: set[str] = set()
    for source in (_from_rows(job, fields), _from_json(job, reports, fields)):
        series.update((key, samples) for key, samples in source if key.report in reports)
    if not fields:
        sampled_reports = {report for (report,) in job.session.rows(sa.select(_SAMPLES.c.report).distinct())}
        return Counters(notes=(UNDOCUMENTED, _UNREADABLE) if sampled_reports.intersection(reports) else ())
    totals = _totals(series)
    lanes = []
    for key, (times, values) in sorted(series.items(), key=lambda item: item[0]):
        order, is_total = np.argsort(times, kind="stable"), key.field in totals
        starts, ends, recorded = times[order][:-1], times[order][1:], values[order].astype(np.float64)
        is_span = ends > starts
        starts, ends = starts[is_span], ends[is_span]
        shown_values = np.diff(recorded)[is_span] / ((ends - starts) / _SECOND) if is_total else recorded[1:][is_span]
        lanes.append(EfaCounter(key.report, key.adapter, key.type_id, key.field, is_total, starts, ends, shown_values))
    return Counters(tuple(lanes), tuple(_notes(fields, {key.field for key in series}, totals)))


def _from_rows(job: OpenJob, fields: set[str]) -> Iterator[tuple[_Key, tuple[Times, Floats]]]:
    """Yield the series of exports with a row per value; add all field names to ``fields``."""
    keys = (_SAMPLES.c.report, _SAMPLES.c.type_id, _SAMPLES.c.source, _SAMPLES.c.type, _SAMPLES.c.field)
    is_known = [_SAMPLES.c.field.is_not(None), _SAMPLES.c.time.is_not(None), _SAMPLES.c.type_id.is_not(None)]
    for report, type_id, source, kind, field in job.session.rows(sa.select(*keys).where(*is_known).distinct()):
        fields.add(field)
        if "bytes" not in field.lower():
            continue
        is_in_series = [_SAMPLES.c.report == report, _SAMPLES.c.type_id == type_id, _SAMPLES.c.field == field]
        time = (_SAMPLES.c.time + _SAMPLES.c.clock_offset).label("time")
        rows = job.session.arrays(sa.select(time, _SAMPLES.c.value).where(*is_known, *is_in_series))
        yield _Key(report, _adapter(source, kind, "", type_id), type_id, field), (rows["time"], rows["value"])


def _from_json(job: OpenJob, reports: Collection[int], fields: set[str]) -> Iterator[tuple[_Key, tuple[Times, Floats]]]:
    """Yield the series of exports with JSON events; add all field names to ``fields``."""
    time = (_SAMPLES.c.time + _SAMPLES.c.clock_offset).label("time")
    columns = (_SAMPLES.c.report, time, _SAMPLES.c.type_id, _SAMPLES.c.source, _SAMPLES.c.type, _SAMPLES.c.data)
    is_known = [_SAMPLES.c.data.is_not(None), _SAMPLES.c.time.is_not(None), _SAMPLES.c.type_id.is_not(None)]
    series: dict[_Key, list[tuple[int, float]]] = defaultdict(list)
    for report, sample_time, type_id, source, kind, data in job.session.rows(sa.select(*columns).where(*is_known)):
        if report not in reports:
            continue
        numbers, texts = _decoded(data)
        fields.update(numbers)
        adapter = _adapter(source, kind, " ".join(texts.values()), type_id)
        for field, value in numbers.items():
            if "bytes" in field.lower():
                series[_Key(report, adapter, type_id, field)].append((sample_time, value))
    for key, samples in series.items():
        times, values = zip(*samples, strict=True)
        yield key, (np.array(times, dtype=np.int64), np.array(values, dtype=np.float64))


def _decoded(data: str) -> tuple[dict[str, float], dict[str, str]]:
    """Return an event's numbers and texts by field: nsys writes numbers as texts, too (measured in schema 3.7.2)."""
    try:
        event = json_in(data)
    except ValueError:
        return {}, {}
    numbers: dict[str, float] = {}
    texts: dict[str, str] = {}
    for field, value in _flat(event, "") if isinstance(event, dict) else ():
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if math.isfinite(number):
            numbers[field] = number
        elif isinstance(value, str):
            texts[field] = value
    return numbers, texts


def _flat(event: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in event.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _adapter(source: str | None, kind: str | None, device: str, type_id: int) -> str:
    names = dict.fromkeys(name for name in (source, kind) if name)
    return " ".join((*names, device or str(type_id & 0xFF)))


def _totals(series: dict[_Key, tuple[Times, Floats]]) -> frozenset[str]:
    """Return fields that rise repeatedly on an adapter and never fall, except rates by name."""
    falling, rising = set(), set()
    for key, (times, values) in series.items():
        steps = np.diff(values[np.argsort(times, kind="stable")])
        if (steps < 0).any() or "per second" in key.field.lower():
            falling.add(key.field)
        if np.count_nonzero(steps > 0) > 1:
            rising.add(key.field)
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
