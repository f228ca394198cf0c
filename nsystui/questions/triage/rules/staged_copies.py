"""Copies between GPUs that go over the host: device memory at both ends, but a host-to-device or device-to-host copy.

See docs/numbers.md#staged-peer-copies.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from nsystui.base.answer import BYTES, COUNT, DEVICE, RANK, Column, Row, TableAnswer, Unit
from nsystui.base.selection import Task
from nsystui.questions.memory.host_copies import DIRECTIONS
from nsystui.questions.queries.conditions import duration, where
from nsystui.questions.triage.case import Case, bytes_words, spans, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.store import tables

_NAME = "staged-peer-copies"
_ON_DEVICE = ("Device", "Device Static")
_FEWEST = 10
_COLUMNS = (
    RANK,
    DEVICE,
    Column("operation", header="Operation", label="operation"),
    COUNT,
    BYTES,
    Column("total", header="Total Time (ns)", label="total", unit=Unit.DURATION),
)


def check(case: Case) -> Sequence[Finding | NotChecked]:
    table = tables.memory_ops
    if not case.job.session.count(table):
        return [NotChecked(_NAME, f"needs memory operations: {case.has_none}")]
    are_staged = [
        table.c.copy_kind.in_(list(DIRECTIONS)),
        table.c.source_memory.in_(_ON_DEVICE),
        table.c.target_memory.in_(_ON_DEVICE),
    ]
    places = (table.c.report, table.c.process, table.c.device)
    query = (
        sa.select(
            *places,
            table.c.operation,
            sa.func.count(),
            sa.cast(sa.func.coalesce(sa.func.sum(table.c.bytes), 0), sa.BigInteger),
            sa.cast(sa.func.coalesce(sa.func.sum(duration(table)), 0), sa.BigInteger),
        )
        .where(*where(table, case.chosen), *are_staged)
        .group_by(*places, table.c.operation)
    )
    rows: list[Row] = []
    for report, process, device, *rest in case.job.session.rows(query):
        rows.append((case.rank_of.get(Task(report, process)), device, *rest))
    count = sum(int(row[3] or 0) for row in rows)
    if count < _FEWEST:
        return []
    staged = spans(case, table, are_staged, by_device=True)
    exposed = 0
    for one in case.devices:
        window = case.working(one)
        own = staged.of(one.device.task.task, one.device.device).clip(window.start, window.end)
        exposed += own.length - one.parts.kernels.shared_with(own)
    cost = case.mean([exposed])
    gpus = sorted({(str(rank), int(str(device))) for rank, device, *_ in rows})
    names = "GPUs " if len(gpus) > 1 else "GPU "
    names += ", ".join(str(device) for _, device in gpus[:4]) + (" …" if len(gpus) > 4 else "")
    size = bytes_words(sum(int(row[4] or 0) for row in rows))
    sentence = (
        f"copies between GPUs go over the host: {count:,} that are named Device-to-Host or Host-to-Device have device "
        f"memory at both ends ({size}, {names}); no kernel hides {time_words(cost)} of them on each GPU"
    )
    advice = Advice(
        "enable peer access (cudaDeviceEnablePeerAccess), or place the processes on GPUs that have it "
        "(`nvidia-smi topo -p2p r`, NVLink)",
        "without peer access CUDA copies to the host and from there to the other GPU: twice over the link, and slower",
    )
    rows.sort(key=lambda row: (-int(row[5] or 0), str(row)))
    measured = "time of these copies that no kernel of the GPU hides, from the first step on; mean over the GPUs"
    share = case.percent(cost)
    severity = Severity.WARNING if share >= case.thresholds.copy_percent else Severity.INFO
    evidence, door = TableAnswer(_NAME, _COLUMNS, rows, len(rows)), Door("memory")
    return [Finding(_NAME, severity, sentence, advice, door, cost, share, measured, evidence)]
