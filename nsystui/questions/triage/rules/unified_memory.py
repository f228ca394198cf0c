"""Unified memory that moves while it is used: page faults of the GPU, and the migrations they cause.

A kernel that meets a page that is not on its GPU stands until it is: so the cost is not what no kernel hides, but all
of the time, the union of fault groups and migrations; how much of it lies in kernels is told. CPU page faults have no
length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from nsystui.base.answer import DEVICE, RANK, Column, TableAnswer, Unit
from nsystui.base.selection import Task
from nsystui.questions.algebra.intervals import merge
from nsystui.questions.queries.conditions import where
from nsystui.questions.queries.time_window import report_at
from nsystui.questions.triage.case import Case, bytes_words, spans, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.store import tables

_NAME = "unified-memory"
_MIGRATIONS = (11, 12, 13)
"""Unified memory to the device, to the host, between devices (CUpti_ActivityMemcpyKind)."""
_COLUMNS = (
    RANK,
    DEVICE.with_importance(1),
    Column("time", header="Faults and Migrations (ns)", label="time", unit=Unit.DURATION),
    Column("gpu_faults", header="GPU Page Faults", label="GPU faults", unit=Unit.COUNT),
    Column("migrated", header="Migrated", label="migrated", unit=Unit.BYTES),
    Column("cpu_faults", header="CPU Page Faults of the Process", label="CPU faults", unit=Unit.COUNT, importance=1),
)


class _Row(NamedTuple):
    rank: int
    device: int
    time: int
    gpu_faults: int | None
    migrated: int
    cpu_faults: int | None


def check(case: Case) -> Sequence[Finding | NotChecked]:
    session, memory, faults = case.job.session, tables.memory_ops, tables.gpu_page_faults
    is_migration = memory.c.copy_kind.in_(_MIGRATIONS)
    moved = spans(case, memory, [is_migration], by_device=True) if session.count(memory) else None
    fault_groups = spans(case, faults, by_device=True) if session.count(faults) else None
    if not (moved and moved.count) and not (fault_groups and fault_groups.count):
        how = "--cuda-um-gpu-page-faults=true --cuda-um-cpu-page-faults=true"
        return [
            NotChecked(_NAME, f"needs page faults or migrations: a job that uses unified memory, recorded with {how}")
        ]
    rows: list[_Row] = []
    inside = 0
    for device in case.devices:
        place, window = device.device, case.window_of(device)
        found = [one.of(place.task.task, place.device) for one in (moved, fault_groups) if one is not None]
        moving = merge(*found).clip(window.start, window.end)
        inside += device.parts.kernels.shared_with(moving) + device.parts.exposed_graph.shared_with(moving)
        rows.append(_Row(place.task.rank, place.device, moving.length, *_counts(case, place.task.task, place.device)))
    cost = case.mean(row.time for row in rows)
    if case.percent(cost) < case.thresholds.unified_percent:
        return []
    rows.sort(key=lambda row: (-row.time, str((row.rank, row.device))))
    size = sum(row.migrated for row in rows)
    counts = (("GPU", [row.gpu_faults for row in rows]), ("CPU", [row.cpu_faults for row in rows]))
    met = " and ".join(_fault_words(side, [count for count in own if count is not None]) for side, own in counts)
    sentence = (
        f"unified memory moves for {time_words(cost)} on each GPU: {bytes_words(size)} in all, {met}; kernels run for "
        f"{100 * inside / sum(row.time for row in rows):.0f} % of that time, and may wait for pages in it"
    )
    advice = Advice(
        "prefetch what a kernel will read (cudaMemPrefetchAsync), advise where it belongs (cudaMemAdvise), or use "
        "cudaMalloc and copies",
        "a fault moves single pages and stops the threads that met it; a prefetch moves all at the link's speed",
    )
    measured = "union of GPU fault groups and migrations, also those inside kernels; mean over the GPUs"
    evidence, share = TableAnswer(_NAME, _COLUMNS, rows, len(rows)), case.percent(cost)
    door = Door("memory", filter="Unified")
    return [Finding(_NAME, Severity.WARNING, sentence, advice, door, cost, share, measured, evidence)]


def _fault_words(side: str, counts: Sequence[int]) -> str:
    return f"{sum(counts):,} {side} page faults" if counts else f"{side} page faults not recorded"


def _counts(case: Case, task: Task, device: int) -> tuple[int | None, int, int | None]:
    """GPU page faults, bytes migrated, CPU page faults (of the process); ``None`` of faults that were not recorded."""
    session, memory = case.job.session, tables.memory_ops
    gpu, cpu = tables.gpu_page_faults, tables.cpu_page_faults

    def asked(table: sa.Table, value: sa.ColumnElement[int], *conditions: sa.ColumnElement[bool]) -> int | None:
        if not report_at(session, task.report).has(table):
            return None
        selection = case.chosen.with_tasks(frozenset({task}))
        query = sa.select(sa.func.coalesce(value, 0)).select_from(table).where(*where(table, selection), *conditions)
        return int(session.scalar(query) or 0)

    is_own = memory.c.copy_kind.in_(_MIGRATIONS), memory.c.device == device
    migrated = asked(memory, sa.func.sum(memory.c.bytes), *is_own)
    gpu_faults = asked(gpu, sa.func.sum(gpu.c["count"]), gpu.c.device == device)
    return gpu_faults, migrated or 0, asked(cpu, sa.func.count())
