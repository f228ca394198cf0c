r"""Host-to-device traffic inside the steps that no kernel hides, |U(M, host to device) \ U(K)|."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import sqlalchemy as sa

from nsystui.base.answer import DEVICE, RANK, Column, TableAnswer, Unit
from nsystui.base.selection import Task
from nsystui.questions.gpu.device_time import DeviceIntervals
from nsystui.questions.memory.host_copies import HOST_TO_DEVICE, PAGEABLE, PINNED, HostCopies, mostly
from nsystui.questions.queries.conditions import job_start, where
from nsystui.questions.triage.case import Case, Place, Spans, bytes_words, spans, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.store import tables

_NAME = "step-traffic"
_HOST_TO_DEVICE = (1, 11)
"""Copies from the host, and what unified memory fetches from there (CUpti_ActivityMemcpyKind)."""
_COLUMNS = (
    RANK,
    DEVICE.with_importance(1),
    Column("steps", header="Steps", label="steps", unit=Unit.COUNT, importance=1),
    Column("count", header="Copies", label="copies", unit=Unit.COUNT, importance=1),
    Column("bytes", header="Bytes per Step", label="per step", unit=Unit.BYTES),
    Column("time", header="Copying (ns)", label="copying", unit=Unit.DURATION),
    Column("exposed", header="Not Hidden (ns)", label="not hidden", unit=Unit.DURATION),
)


class _Row(NamedTuple):
    rank: int
    device: int
    steps: int
    copies: int
    bytes: int
    time: int
    exposed: int


def check(case: Case) -> Sequence[Finding | NotChecked]:
    if not case.job.session.count(tables.memory_ops):
        return [NotChecked(_NAME, f"needs memory operations: {case.has_none}")]
    devices = [one for one in case.devices if one.device.task.task in case.steps]
    if not devices:
        return [NotChecked(_NAME, "needs steps: numbered NVTX ranges such as `step 7`, or --step-range REGEX")]
    copies = spans(case, tables.memory_ops, [tables.memory_ops.c.copy_kind.in_(_HOST_TO_DEVICE)], by_device=True)
    sizes = _sizes(case)
    rows = [_row(case, device, copies, sizes) for device in devices]
    cost = case.mean(row.exposed for row in rows)
    if case.percent(cost) < case.thresholds.traffic_percent:
        return []
    rows.sort(key=lambda row: (-row.exposed, str((row.rank, row.device))))
    size = float(np.mean([row.bytes for row in rows]))
    whole = float(np.mean([row.time for row in rows]))
    uploads = [one for one in case.host_copies if one.kind == HOST_TO_DEVICE]
    sentence = (
        f"every step copies {bytes_words(size)} from the host to each GPU (mean): {time_words(whole)} in all, of "
        f"which no kernel hides {time_words(cost)}{_memory(uploads)}"
    )
    advice = _advice(uploads)
    measured = "host-to-device copies from the first step on that no kernel of the GPU overlaps; mean over the GPUs"
    evidence, share = TableAnswer(_NAME, _COLUMNS, rows, len(rows)), case.percent(cost)
    door = Door("memory")
    return [Finding(_NAME, Severity.WARNING, sentence, advice, door, cost, share, measured, evidence)]


def _memory(uploads: Sequence[HostCopies]) -> str:
    return f" ({'; '.join(one.words for one in uploads[:2])})" if uploads else ""


def _advice(uploads: Sequence[HostCopies]) -> Advice:
    """What to do, as the copies already are: pinned or not, on a stream of their own or not."""
    first = "keep on the GPU what does not change, copy less (smaller types, what a step really reads)"
    reason = "the link to the host is slower than the GPU's memory by tens of times, and each step pays for it again"
    if mostly(uploads, PAGEABLE):
        how = "pin the host memory, and prefetch the rest on a stream of its own"
        reason = f"from pageable memory CUDA stages every copy, and it overlaps nothing; {reason}"
    elif mostly(uploads, PINNED) and all(one.is_apart for one in uploads):
        how = "issue the copies of the next step earlier"
        reason = f"they are from pinned memory and on a stream of their own already; {reason}"
    elif mostly(uploads, PINNED):
        how = "prefetch the rest on a stream of its own: the memory is pinned already"
    else:
        how = "prefetch the rest on a stream of its own"
    return Advice(f"{first}, and {how}", reason)


def _row(case: Case, device: DeviceIntervals, copies: Spans, sizes: Mapping[Place, tuple[int, int]]) -> _Row:
    place, window = device.device, case.working(device)
    own = copies.of(place.task.task, place.device).clip(window.start, window.end)
    exposed = own.length - device.parts.kernels.shared_with(own)
    steps = max(len(case.steps[place.task.task]), 1)
    count, size = sizes.get((place.task.task, place.device), (0, 0))
    return _Row(place.task.rank, place.device, steps, count, round(size / steps), own.length, exposed)


def _sizes(case: Case) -> dict[Place, tuple[int, int]]:
    """The number of copies from the host from the first step on, and their bytes, by process and device."""
    memory = tables.memory_ops
    starts = {one.device.task.task: case.working(one).start for one in case.devices}
    # Joined, and not a condition each: of hundreds of processes every row would be held against all.
    names = (sa.column(name, sa.BigInteger) for name in ("report", "process", "since"))
    given = [(task.report, task.process, start) for task, start in starts.items()]
    own = sa.select(sa.values(*names, name="given").data(given)).subquery("own")
    is_own = sa.and_(memory.c.report == own.c.report, memory.c.process == own.c.process)
    places = (memory.c.report, memory.c.process, memory.c.device)
    query = (
        sa.select(*places, sa.func.count(), sa.cast(sa.func.coalesce(sa.func.sum(memory.c.bytes), 0), sa.BigInteger))
        .join_from(memory, own, is_own)
        .where(*where(memory, case.chosen), memory.c.copy_kind.in_(_HOST_TO_DEVICE), job_start(memory) >= own.c.since)
        .group_by(*places)
    )
    rows = case.job.session.rows(query)
    return {(Task(report, process), device): (int(count), int(size)) for report, process, device, count, size in rows}
