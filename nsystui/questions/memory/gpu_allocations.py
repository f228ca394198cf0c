"""Allocations of GPU memory with their calls, call stacks and NVTX ranges.

See docs/numbers.md#gpu-memory.
"""

import re
from collections.abc import Mapping

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import (
    BYTES,
    DEVICE,
    DURATION,
    PROCESS_ID,
    RANK,
    REPORT_ID,
    ROW_ID,
    START,
    TID,
    Column,
    Row,
    TableAnswer,
    Unit,
)
from nsystui.base.selection import Selection, Task
from nsystui.base.types import Expression, Query
from nsystui.exports.metadata import tid_of
from nsystui.questions.host.stacks import CUDA_CALL, stacks_of
from nsystui.questions.job.job import OpenJob
from nsystui.questions.memory.gpu_memory import MEMORY, NEVER, by_rank, gpu_memory, windows_of
from nsystui.questions.nvtx.around import paths_around
from nsystui.questions.queries.conditions import duration, is_launched_by, job_start, where
from nsystui.questions.queries.recording import option_advice
from nsystui.store import tables
from nsystui.store.session import Session

COLUMNS = (
    RANK, DEVICE, MEMORY, BYTES, START,
    Column("lifetime", header="Lifetime (ns)", label="lifetime", unit=Unit.DURATION, importance=1),
    Column("at_peak", header="At Peak", label="at peak", unit=Unit.NUMBER, importance=3),
    Column("call", header="Call", label="call", importance=2), DURATION.with_importance(4), TID.with_importance(5),
    Column("stack", header="Call Stack", label="stack", importance=6),
    Column("nvtx", header="NVTX Ranges", label="NVTX ranges", importance=1), REPORT_ID, PROCESS_ID, ROW_ID,
)  # fmt: skip
_CUDA = re.compile(r"lib(?:cuda|cudart|cupti|ToolsInjection)\b.*|libToolsInjection.*")
"""Modules of CUDA and the profiler, which stacks leave out."""
AT_PEAK, NEVER_FREED = "at-peak", "never-freed"
"""Selections of allocations, see `allocation_table`."""
_Key = tuple[Task, int]
"""Task and correlation id of a call."""


_NO_CALL = (None, None, None, None)


def allocation_table(job: OpenJob, selection: Selection, which: str = "all") -> TableAnswer:
    """List the allocations made in the window, largest first, with their calls and NVTX ranges.

    ``which``: all, never freed, or in use at the peak of their rank, device and kind (even if made before the window).
    The name filter applies to the NVTX ranges.
    """
    memory = gpu_memory(job.session, selection)
    windows = windows_of(job, selection)
    unwindowed = Selection(tasks=selection.tasks, devices=selection.devices)
    calls, stacks = _calls(job, unwindowed), _stacks(job.session, unwindowed)
    rows: list[Row] = []
    total = 0
    for usage, rank in by_rank(job, memory):
        key, window = usage.key, windows[usage.key.task.report]
        total += len(usage.start)
        at_peak = usage.live(usage.peak(window)[2])
        is_made = usage.in_window(window)
        is_listed = {AT_PEAK: at_peak, NEVER_FREED: is_made & (usage.end == NEVER)}.get(which, is_made)
        for number in np.flatnonzero(is_listed).tolist():
            call_key = (key.task, int(usage.correlation[number]))
            call, time, tid, ranges = calls.get(call_key, _NO_CALL)
            if selection.name is not None and not selection.name.matches(ranges or ""):
                continue
            start, end = int(usage.start[number]), int(usage.end[number])
            rows.append(
                (
                    rank, key.device, key.memory, int(usage.bytes[number]), start,
                    None if end == NEVER else end - start, int(at_peak[number]), call, time, tid,
                    stacks.get(call_key), ranges, key.task.report, key.task.process, int(usage.row[number]),
                )
            )  # fmt: skip
    rows.sort(key=lambda row: (-int(row[3] or 0), int(row[4] or 0), row[-1]))
    advice = option_advice(job.session.reports, "--cudabacktrace=memory")
    no_stacks = f"no call stacks of allocations in this export: {advice}"
    notes = memory.notes if stacks or not rows else (*memory.notes, no_stacks)
    return TableAnswer("gpu-memory-allocations", COLUMNS, rows, total, notes)


def _of_allocations(calls: sa.FromClause, selection: Selection, *columns: Expression) -> Query:
    memory = tables.gpu_memory
    allocations = sa.select(memory.c.report, memory.c.process, memory.c.correlation_id)
    allocating = allocations.where(memory.c.is_free == 0, *where(memory, selection)).distinct().subquery()
    query = sa.select(calls.c.report, calls.c.process, calls.c.correlation_id, *columns)
    return query.join_from(calls, allocating, is_launched_by(allocating, calls))


def _calls(job: OpenJob, selection: Selection) -> Mapping[_Key, tuple[str | None, int | None, int | None, str | None]]:
    session, calls = job.session, tables.api_calls
    if not session.count(tables.gpu_memory) or not session.count(calls):
        return {}
    query = _of_allocations(calls, selection, calls.c.thread, job_start(calls), duration(calls), calls.c.name)
    rows = session.rows(query.where(calls.c.thread.is_not(None)))
    moments = [(report, thread, start) for report, _, _, thread, start, *_ in rows]
    paths = paths_around(job.nvtx_ranges(selection), moments)
    return {
        (Task(report, process), correlation): (name, time, tid_of(thread), path)
        for (report, process, correlation, thread, _, time, name), path in zip(rows, paths, strict=True)
    }


def _stacks(session: Session, selection: Selection) -> Mapping[_Key, str]:
    chains: dict[int, dict[_Key, int]] = {}
    for calls in (tables.api_calls, tables.api_backtraces):  # --cudabacktrace writes a second row
        if session.count(tables.gpu_memory) and session.count(calls):
            query = _of_allocations(calls, selection, calls.c.chain).where(calls.c.chain.is_not(None))
            for report, process, correlation, chain in session.rows(query):
                chains.setdefault(report, {})[Task(report, process), correlation] = chain
    stack_words: dict[_Key, str] = {}
    for index, stacks in stacks_of(session, [report for report in session.reports if report.index in chains]).items():
        nodes = stacks.nodes(CUDA_CALL, np.array(list(chains[index].values()), np.int64)).tolist()
        words = {node: stacks.tree.words(stacks.tree.outside(node, _CUDA)) for node in set(nodes)}
        stack_words |= {key: words[node] for key, node in zip(chains[index], nodes, strict=True) if words[node]}
    return stack_words
