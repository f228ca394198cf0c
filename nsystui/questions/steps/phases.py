"""The phase of each step of an inference server: prefill, decode, or both (docs/ranks.md#phases).

Names of ranges decide, if they contain request counts or a phase. Otherwise the kernels decide: attention, and whether
CUDA graphs replay most of the time.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import sqlalchemy as sa

from nsystui.base.kernel_families import ATTENTION, OPTIMIZER, family_of
from nsystui.base.selection import Task
from nsystui.base.types import Expression, Flags, Query
from nsystui.questions.algebra.intervals import Times
from nsystui.questions.queries.conditions import given, of_reports
from nsystui.questions.queries.derived import of_each_report
from nsystui.questions.steps.task_steps import NO_PHASE, TaskSteps
from nsystui.store import tables
from nsystui.store.remember import Arrays
from nsystui.store.report import Report
from nsystui.store.session import Session

PHASES = PREFILL, DECODE, MIXED = ("prefill", "decode", "mixed")
"""Phases by their code in `TaskSteps.phases`: 1 if a step prefills, plus 2 if it decodes, minus 1."""

_COUNTS = (
    re.compile(r"\b(\d+) ctx reqs?, (\d+) gen reqs?"),  # TensorRT-LLM: [Executor] _forward_step 3: 1 ctx reqs, 31 gen …
    re.compile(r"execute_context_(\d+)\(\d+\)_generation_(\d+)\(\d+\)"),  # vLLM: requests(tokens) of each
)
"""Names of steps with the numbers of requests that prefill, and that decode."""
PHASE_WORD = r"(^|[^a-z])(prefill|decode|extend|mixed)($|[(:,]|[ _-]?(?:step|iter|phase|batch|forward|bs\b))"
"""A phase in the name of a step, such as SGLang's ``forward_extend``; in the syntax of Python and of DuckDB."""
_WORD = re.compile(PHASE_WORD, re.IGNORECASE)
_PREFILLS = re.compile(r"context|prefill|ragged", re.IGNORECASE)
_DECODES = re.compile(
    r"decod|split_?kv|generation|paged_?attention|masked_?multi_?head|mmha|xqa|kernel_mha\b", re.IGNORECASE
)
"""Words in names of attention kernels; prefill kernels may also mention paged keys and values."""
_TRAINS = re.compile(r"backward|(?<![a-z])bwd|[dw]grad", re.IGNORECASE)
_OTHER, _ATTENTION, _OF_PREFILL, _OF_DECODE = range(4)


def phase_named(name: str) -> int:
    """Return the phase code in a step's name, or ``NO_PHASE``."""
    match = next(filter(None, (pattern.search(name) for pattern in _COUNTS)), None)
    if match is not None:
        return (int(match[1]) > 0) + 2 * (int(match[2]) > 0) - 1
    words = {match[2].lower() for match in _WORD.finditer(name)}
    return bool(words & {PREFILL, "extend", MIXED}) + 2 * bool(words & {DECODE, MIXED}) - 1


def with_phases(session: Session, of_task: Mapping[Task, TaskSteps]) -> tuple[dict[Task, TaskSteps], str | None]:
    """Return each task's steps with their phases, and a note on counts and source."""
    named = {task: np.array([phase_named(name) for name in steps.labels], np.int64) for task, steps in of_task.items()}
    phases_by_task = {task: phases for task, phases in named.items() if (phases != NO_PHASE).any()}
    source = "the names of their ranges"
    if not phases_by_task:
        phases_by_task, source = _by_kernels(session, of_task), "their CUDA graphs and attention kernels"
    if not phases_by_task:
        return dict(of_task), None
    counts = Counter(code for phases in phases_by_task.values() for code in phases.tolist())
    words = ", ".join(f"{counts[code]:,} {phase}" for code, phase in enumerate(PHASES) if counts[code])
    result = {task: replace(steps, phases=phases_by_task.get(task, steps.phases)) for task, steps in of_task.items()}
    return result, f"phases, by {source}: {words}"


def _by_kernels(session: Session, of_task: Mapping[Task, TaskSteps]) -> dict[Task, Times]:
    """Return the phases of tasks that have any, from kernels; cached with each report."""
    working = sorted(task for task, steps in of_task.items() if steps.gpu.op_count.any())
    reports = [report for report in session.reports if any(task.report == report.index for task in working)]
    offsets = {report.index: report.clock_offset for report in reports}
    spans = {task: np.stack(of_task[task].spans()) - offsets[task.report] for task in working if task.report in offsets}

    def is_valid(report: Report, stored: Arrays) -> bool:
        return np.array_equal(stored["spans"], _of_report(spans, report.index).ravel())

    arrays = of_each_report(session, reports, "phases", partial(_arrays, spans), is_valid, tables.kernels)
    remaining = {index: stored["phases"] for index, stored in arrays.items()}
    phases_by_task = {}
    for task, span in spans.items():
        phases, remaining[task.report] = np.split(remaining[task.report], [span.shape[1]])
        if (phases != NO_PHASE).any():
            phases_by_task[task] = np.full(len(of_task[task]), NO_PHASE, np.int64)
            phases_by_task[task][of_task[task].gpu.op_count > 0] = phases
    return phases_by_task


def _of_report(by_task: Mapping[Task, Times], report: int) -> Times:
    parts = [spans for task, spans in by_task.items() if task.report == report]
    return np.concatenate([np.zeros((2, 0), np.int64), *parts], 1)


def _arrays(spans: Mapping[Task, Times], session: Session, reports: list[Report]) -> dict[int, Arrays]:
    """Return the step phases of each report's tasks; ``spans``: their starts and ends ``(2, n)``."""
    kinds = _kinds(session, [report.index for report in reports])
    inference = {task: span for task, span in spans.items() if task.report in kinds}
    times = {task: np.zeros((span.shape[1], 2), np.int64) for task, span in inference.items()}
    attention = {task: np.zeros((span.shape[1], 4, 2), bool) for task, span in inference.items()}
    for query in _queries(session, kinds):
        for batch in session.array_batches(query):
            for task, (starts, ends) in inference.items():
                rows = np.flatnonzero((batch["report"] == task.report) & (batch["process"] == task.process))
                start = batch["start"][rows]
                step = np.searchsorted(np.maximum.accumulate(starts), start, side="right") - 1
                is_inside = (step >= 0) & (start < ends[step])
                rows, step = rows[is_inside], step[is_inside]
                replayed = batch["replayed"][rows]
                np.add.at(times[task], (step, replayed), batch["end"][rows] - batch["start"][rows])
                attention[task][step, batch["kind"][rows], replayed] = True
    phases = {
        task: _phases(times[task], attention[task]) if task in inference else np.full(span.shape[1], NO_PHASE, np.int64)
        for task, span in spans.items()
    }
    empty = np.zeros(0, np.int64)
    return {
        report.index: {
            "spans": _of_report(spans, report.index).ravel(),
            "phases": np.concatenate([empty, *(part for task, part in phases.items() if task.report == report.index)]),
        }
        for report in reports
    }


def _phases(times: Times, attention: Flags) -> Times:
    """Return n steps' phases; kernel ``times`` ``(n, 2)``, ``attention`` ``(n, kinds, 2)``: launched, replayed."""
    is_replayed = times[:, 1] > times[:, 0]
    is_prefill = attention[:, _OF_PREFILL].any(axis=1)
    prefills = is_prefill | (attention[:, _ATTENTION, 0] & ~is_replayed)
    decodes = attention[:, _OF_DECODE].any(axis=1) | (is_replayed & ~is_prefill)
    return prefills + 2 * decodes - 1 if decodes.any() else np.full(len(times), NO_PHASE, np.int64)


def _kinds(session: Session, reports: Sequence[int]) -> dict[int, dict[str, int]]:
    name = sa.func.coalesce(tables.kernels.c.name, "")
    query = sa.select(tables.kernels.c.report, name).distinct().where(of_reports(tables.kernels.c.report, reports))
    names: dict[int, list[str]] = {}
    for report, text in session.rows(query) if session.count(tables.kernels) else ():
        names.setdefault(report, []).append(text)
    kinds_by_report = {}
    for report, kernel_names in names.items():
        families = {text: family_of(text) for text in kernel_names}
        kinds = {
            text: _OF_PREFILL if _PREFILLS.search(text) else _OF_DECODE if _DECODES.search(text) else _ATTENTION
            for text, family in families.items()
            if family == ATTENTION
        }
        if kinds and OPTIMIZER not in families.values() and not any(map(_TRAINS.search, kernel_names)):
            kinds_by_report[report] = kinds
    return kinds_by_report


def _queries(session: Session, kinds: Mapping[int, Mapping[str, int]]) -> Iterator[Query]:
    """Yield queries for the kernels and whole CUDA graphs of some reports, on their own clock."""
    kind_by_name = {name: kind for report_kinds in kinds.values() for name, kind in report_kinds.items()}
    if not kind_by_name:
        return
    named = given({"name": list(kind_by_name), "kind": list(kind_by_name.values())}).subquery("told")
    kernels, graphs = tables.kernels, tables.graph_launches
    replayed = sa.cast(kernels.c.graph_node_id.is_not(None), sa.Integer)
    kind = sa.func.coalesce(named.c.kind, _OTHER)
    yield _query(kernels, kinds, replayed, kind).select_from(kernels.outerjoin(named, kernels.c.name == named.c.name))
    if session.count(graphs):
        yield _query(graphs, kinds, sa.literal(1), sa.literal(_OTHER))


def _query(table: sa.Table, reports: Collection[int], replayed: Expression, kind: Expression) -> Query:
    columns = table.c
    location = (columns.report, sa.func.coalesce(columns.process, -1).label("process"), columns.start, columns.end)
    query = sa.select(*location, replayed.label("replayed"), kind.label("kind"))
    return query.where(of_reports(columns.report, reports), columns.end.is_not(None))
