"""The phase of each step of an inference server: prefill, decode, or both (docs/ranks.md#phases).

The names of the ranges tell it where they give the numbers of requests, or have the word. Else the kernels do: a step
decodes whose kernel time is mostly replayed by CUDA graphs, or with attention kernels for decoding; it prefills with
attention kernels for prefill, or with others that it launches itself. Where no step decodes, or something trains,
attention tells nothing, and there are no phases.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.kernel_families import ATTENTION, OPTIMIZER, family_of
from nsystui.base.selection import Task
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.queries.conditions import given, of_reports
from nsystui.questions.queries.derived import of_each_report
from nsystui.questions.steps.task_steps import NO_PHASE, TaskSteps
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.session import Session

if TYPE_CHECKING:
    from nsystui.store.results import Arrays

PHASES = PREFILL, DECODE, MIXED = ("prefill", "decode", "mixed")
"""Phases by their code in `TaskSteps.phases`: 1 if a step prefills, 2 if it decodes, added up, less 1."""

_COUNTS = (
    re.compile(r"\b(\d+) ctx reqs?, (\d+) gen reqs?"),  # TensorRT-LLM: [Executor] _forward_step 3: 1 ctx reqs, 31 gen …
    re.compile(r"execute_context_(\d+)\(\d+\)_generation_(\d+)\(\d+\)"),  # vLLM: requests(tokens) of each
)
"""How servers name their steps: the numbers of requests that prefill, and that decode."""
_WORD = re.compile(r"(?<![a-z])(prefill|decode)(?=[ _-]?(?:step|iter|phase|forward|bs\b))", re.IGNORECASE)
_PREFILLS = re.compile(r"context|prefill|ragged", re.IGNORECASE)
_DECODES = re.compile(
    r"decod|split_?kv|generation|paged_?attention|masked_?multi_?head|mmha|xqa|kernel_mha\b", re.IGNORECASE
)
"""What the names of attention kernels say; those of prefill may name paged keys and values, too."""
_TRAINS = re.compile(r"backward|(?<![a-z])bwd|[dw]grad", re.IGNORECASE)
_OTHER, _ATTENTION, _OF_PREFILL, _OF_DECODE = range(4)


def phase_named(name: str) -> int:
    """The phase that the name of a step tells, as a code; ``NO_PHASE`` where it tells none."""
    found = next(filter(None, (pattern.search(name) for pattern in _COUNTS)), None)
    if found is not None:
        return (int(found[1]) > 0) + 2 * (int(found[2]) > 0) - 1
    words = {word.lower() for word in _WORD.findall(name)}
    return (PREFILL in words) + 2 * (DECODE in words) - 1


def with_phases(session: Session, of_task: Mapping[Task, TaskSteps]) -> tuple[dict[Task, TaskSteps], str | None]:
    """Tell the phases of the steps of each task, and in a note how many there are of each and what told them."""
    named = {task: np.array([phase_named(name) for name in one.labels], np.int64) for task, one in of_task.items()}
    found = {task: phases for task, phases in named.items() if (phases != NO_PHASE).any()}
    source = "the names of their ranges"
    if not found:
        found, source = _by_kernels(session, of_task), "their CUDA graphs and attention kernels"
    if not found:
        return dict(of_task), None
    counts = Counter(code for phases in found.values() for code in phases.tolist())
    words = ", ".join(f"{counts[code]:,} {phase}" for code, phase in enumerate(PHASES) if counts[code])
    every = {task: replace(one, phases=found.get(task, one.phases)) for task, one in of_task.items()}
    return every, f"phases, by {source}: {words}"


def _by_kernels(session: Session, of_task: Mapping[Task, TaskSteps]) -> dict[Task, Times]:
    """The phases of the steps of the tasks that have any, by what ran in them; kept with each report."""
    working = sorted(task for task, one in of_task.items() if one.gpu.op_count.any())
    reports = [one for one in session.reports if any(task.report == one.index for task in working)]
    offsets = {report.index: report.clock_offset for report in reports}
    spans = {task: np.stack(of_task[task].spans()) - offsets[task.report] for task in working if task.report in offsets}

    def fits(report: Report, kept: Arrays) -> bool:
        return np.array_equal(kept["spans"], _of_report(spans, report.index).ravel())

    arrays = of_each_report(session, reports, "phases", partial(_arrays, spans), fits, tables.kernels)
    rest = {index: kept["phases"] for index, kept in arrays.items()}
    found = {}
    for task, span in spans.items():
        phases, rest[task.report] = np.split(rest[task.report], [span.shape[1]])
        if (phases != NO_PHASE).any():
            found[task] = np.full(len(of_task[task]), NO_PHASE, np.int64)
            found[task][of_task[task].gpu.op_count > 0] = phases
    return found


def _of_report(by_task: Mapping[Task, Times], report: int) -> Times:
    """The starts and ends ``(2, n)`` of the steps of all tasks of a report."""
    return np.concatenate(
        [np.zeros((2, 0), np.int64), *(by_task[task] for task in by_task if task.report == report)], 1
    )


def _arrays(spans: Mapping[Task, Times], session: Session, reports: list[Report]) -> dict[int, Arrays]:
    """The phases of the steps of the tasks of each report in a row; ``spans`` are their starts and ends ``(2, n)``."""
    kinds = _kinds(session, [report.index for report in reports])
    own = {task: span for task, span in spans.items() if task.report in kinds}
    times = {task: np.zeros((span.shape[1], 2), np.int64) for task, span in own.items()}
    seen = {task: np.zeros((span.shape[1], 4, 2), bool) for task, span in own.items()}
    for query in _queries(session, kinds):
        for batch in session.array_batches(query):
            for task, (starts, ends) in own.items():
                rows = np.flatnonzero((batch["report"] == task.report) & (batch["process"] == task.process))
                start = batch["start"][rows]
                place = np.searchsorted(np.maximum.accumulate(starts), start, side="right") - 1
                is_inside = (place >= 0) & (start < ends[place])
                rows, place = rows[is_inside], place[is_inside]
                replayed = batch["replayed"][rows]
                np.add.at(times[task], (place, replayed), batch["end"][rows] - batch["start"][rows])
                seen[task][place, batch["kind"][rows], replayed] = True
    phases = {
        task: _phases(times[task], seen[task]) if task in own else np.full(span.shape[1], NO_PHASE, np.int64)
        for task, span in spans.items()
    }
    none = np.zeros(0, np.int64)
    return {
        report.index: {
            "spans": _of_report(spans, report.index).ravel(),
            "phases": np.concatenate([none, *(one for task, one in phases.items() if task.report == report.index)]),
        }
        for report in reports
    }


def _phases(times: Times, seen: NDArray[np.bool_]) -> Times:
    """The phases of n steps by their kernel time, launched and replayed ``(n, 2)``, and which attention ran
    ``(n, kinds, 2)``."""
    is_replayed = times[:, 1] > times[:, 0]
    is_prefill = seen[:, _OF_PREFILL].any(axis=1)
    prefills = is_prefill | (seen[:, _ATTENTION, 0] & ~is_replayed)
    decodes = seen[:, _OF_DECODE].any(axis=1) | (is_replayed & ~is_prefill)
    return prefills + 2 * decodes - 1 if decodes.any() else np.full(len(times), NO_PHASE, np.int64)


def _kinds(session: Session, reports: Sequence[int]) -> dict[int, dict[str, int]]:
    """What the name of each attention kernel says, of the reports that have any and do not train."""
    name = sa.func.coalesce(tables.kernels.c.name, "")
    query = sa.select(tables.kernels.c.report, name).distinct().where(of_reports(tables.kernels.c.report, reports))
    names: dict[int, list[str]] = {}
    for report, text in session.rows(query) if session.count(tables.kernels) else ():
        names.setdefault(report, []).append(text)
    found = {}
    for report, own in names.items():
        families = {text: family_of(text) for text in own}
        kinds = {text: _kind(text) for text, family in families.items() if family == ATTENTION}
        if kinds and OPTIMIZER not in families.values() and not any(map(_TRAINS.search, own)):
            found[report] = kinds
    return found


def _kind(name: str) -> int:
    return _OF_PREFILL if _PREFILLS.search(name) else _OF_DECODE if _DECODES.search(name) else _ATTENTION


def _queries(session: Session, kinds: Mapping[int, Mapping[str, int]]) -> Iterator[sa.Select[Any]]:
    """The kernels and whole CUDA graphs of some reports, on their own clock."""
    every = {name: kind for own in kinds.values() for name, kind in own.items()}
    if not every:
        return
    told = given({"name": list(every), "kind": list(every.values())}).subquery("told")
    kernels, graphs = tables.kernels, tables.graph_launches
    replayed = sa.cast(kernels.c.graph_node_id.is_not(None), sa.Integer)
    kind = sa.func.coalesce(told.c.kind, _OTHER)
    yield _query(kernels, kinds, replayed, kind).select_from(kernels.outerjoin(told, kernels.c.name == told.c.name))
    if session.count(graphs):
        yield _query(graphs, kinds, sa.literal(1), sa.literal(_OTHER))


def _query(
    table: sa.Table, reports: Collection[int], replayed: sa.ColumnElement[int], kind: sa.ColumnElement[int]
) -> sa.Select[Any]:
    columns = table.c
    place = (columns.report, sa.func.coalesce(columns.process, -1).label("process"), columns.start, columns.end)
    query = sa.select(*place, replayed.label("replayed"), kind.label("kind"))
    return query.where(of_reports(columns.report, reports), columns.end.is_not(None))
