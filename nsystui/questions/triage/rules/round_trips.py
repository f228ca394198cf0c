r"""Data that go to the GPU and back again and again: as many copies of a size up as down, |U(M of these) \ U(K)|."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from nsystui.base.answer import BYTES, DEVICE, RANK, Column, Row, TableAnswer, Unit
from nsystui.base.selection import Task
from nsystui.questions.memory.host_copies import DEVICE_TO_HOST, HOST_TO_DEVICE
from nsystui.questions.queries.conditions import where
from nsystui.questions.triage.case import Case, Place, bytes_words, spans, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.store import tables

_NAME = "round-trips"
_FEWEST, _LARGE = 5, 1 << 20
_ALIKE = 0.2
"""By so much the numbers of copies up and down of a size may differ."""
_COLUMNS = (
    RANK,
    DEVICE.with_importance(1),
    BYTES,
    Column("up", header="To the GPU", label="to the GPU", unit=Unit.COUNT),
    Column("down", header="To the Host", label="to the host", unit=Unit.COUNT),
)


def check(case: Case) -> Sequence[Finding | NotChecked]:
    if not case.job.session.count(tables.memory_ops):
        return []  # as exposed_memory says
    if case.percent(case.mean([case.spent.exposed_memory])) < case.thresholds.copy_percent:
        return []
    trips = _trips(case)
    sizes = {size for own in trips.values() for size, _, _ in own}
    if not sizes:
        return []
    memory = tables.memory_ops.c
    is_trip = [memory.copy_kind.in_((HOST_TO_DEVICE, DEVICE_TO_HOST)), memory.bytes.in_(sorted(sizes))]
    copies = spans(case, tables.memory_ops, is_trip, by_device=True)
    costs, rows, moved = [], list[Row](), 0
    for device in case.devices:
        place, window = device.device, case.working(device)
        key = (place.task.task, place.device)
        for size, up, down in trips.get(key, []):
            rows.append((place.task.rank, place.device, size, up, down))
            moved += size * min(up, down)
        if key in trips:
            own = copies.of(*key).clip(window.start, window.end)
            costs.append(own.length - device.parts.kernels.shared_with(own))
    cost = case.mean(costs)
    if case.percent(cost) < case.thresholds.copy_percent:
        return []
    rows.sort(key=lambda row: (-int(row[2] or 0) * int(row[3] or 0), str(row)))
    size, ups, downs = max((one for own in trips.values() for one in own), key=lambda one: one[0] * one[1])
    sentence = (
        f"the same amounts go to the GPU and back again and again: {bytes_words(moved)} each way ({ups:,} copies of "
        f"{bytes_words(size)} up and {downs:,} down); no kernel hides {time_words(cost)} of them on each GPU"
    )
    advice = Advice(
        "keep on the GPU what the next iteration works on, and copy back what the host reads alone",
        "if it is the same data, it crosses the link twice in each iteration for nothing",
    )
    measured = (
        "copies from and to the host of sizes of 1 MiB or more that go each way as often (to 20 %, 5 times or more), "
        "as far as no kernel hides them; mean over the GPUs"
    )
    evidence, share = TableAnswer(_NAME, _COLUMNS, rows, len(rows)), case.percent(cost)
    return [Finding(_NAME, Severity.WARNING, sentence, advice, Door("memory"), cost, share, measured, evidence)]


def _trips(case: Case) -> dict[Place, list[tuple[int, int, int]]]:
    """By process and device the sizes that go both ways, and how often each way."""
    memory = tables.memory_ops.c
    up, down = (
        sa.func.count().filter(memory.copy_kind == kind).label(name)
        for kind, name in ((HOST_TO_DEVICE, "up"), (DEVICE_TO_HOST, "down"))
    )
    places = (memory.report, memory.process, memory.device)
    query = (
        sa.select(*places, memory.bytes, up, down)
        .where(*where(tables.memory_ops, case.chosen), memory.bytes >= _LARGE)
        .where(sa.or_(memory.source_memory.is_(None), memory.source_memory != memory.target_memory))
        .group_by(*places, memory.bytes)
    )
    found: dict[Place, list[tuple[int, int, int]]] = {}
    for report, process, device, size, ups, downs in case.job.session.rows(query):
        if min(ups, downs) >= _FEWEST and max(ups, downs) <= (1 + _ALIKE) * min(ups, downs):
            found.setdefault((Task(report, process), device), []).append((int(size), int(ups), int(downs)))
    return found
