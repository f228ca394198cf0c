r"""Memory operations that no kernel hides, |U(M) \ U(K)|, and what host-to-device copies have in it.

Copies from pinned memory on the streams of the kernels are a remark also where they cost less than the threshold.

See docs/numbers.md#exposed-time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import sqlalchemy as sa

from nsystui.questions.kernels.activities import MEMORY, work_summary
from nsystui.questions.memory.host_copies import HOST_TO_DEVICE, LARGE_COPY, MANY_COPIES, PINNED
from nsystui.questions.queries.conditions import Condition, duration, where
from nsystui.questions.triage.case import REMARKED, Case, bytes_words, spans, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.store import tables

_NAME = "exposed-memory"
_LESS = {"Host-to-Device": "keep on the GPU what does not change", "Device-to-Host": "copy results less often"}
_USUAL = Advice(
    "put the operations on a stream of their own, or save them (in-place operations, preallocated buffers)",
    "they only cost time where no kernel runs beside them",
)


def check(case: Case) -> Sequence[Finding | NotChecked]:
    if not case.job.session.count(tables.memory_ops):
        return [NotChecked(_NAME, f"needs memory operations: {case.has_none}")]
    cost = case.mean(device.breakdown(case.working(device)).exposed_memory for device in case.devices)
    if case.percent(cost) < case.thresholds.exposed_memory_percent:
        return list(_beside_kernels(case))
    evidence = work_summary(case.job.session, case.chosen, MEMORY)
    places = [column.key for column in evidence.columns]
    first = dict(zip(places, evidence.page(0, 1)[0], strict=True))
    name = str(first["name"])
    sentence = (
        f"memory copies and memsets run {time_words(cost)} on each GPU with no kernel beside "
        "them; most of the time of all "
        f"takes {name}"
    )
    advice = next((_of_copies(case, word, name) for word in _LESS if word in name), _USUAL)
    measured = "copies and memsets without what kernels overlap, from the first step on; mean over the GPUs"
    door, share = Door("memory"), case.percent(cost)
    return [Finding(_NAME, Severity.WARNING, sentence, advice, door, cost, share, measured, evidence)]


def _beside_kernels(case: Case) -> Iterator[Finding]:
    """The remark on many large copies from pinned memory that could overlap kernels, but are on their streams."""
    memory = tables.memory_ops
    is_meant = [memory.c.copy_kind == HOST_TO_DEVICE, memory.c.source_memory == PINNED, sa.not_(_is_apart(case))]
    query = sa.select(sa.func.count(), sa.func.sum(memory.c.bytes)).where(*where(memory, case.chosen), *is_meant)
    ((count, size),) = case.job.session.rows(query)
    if count < MANY_COPIES or (size or 0) < count * LARGE_COPY:
        return
    copies = spans(case, memory, is_meant, by_device=True)
    exposed = 0
    for one in case.devices:
        window = case.working(one)
        own = copies.of(one.device.task.task, one.device.device).clip(window.start, window.end)
        exposed += own.length - one.parts.kernels.shared_with(own)
    cost = case.mean([exposed])
    if case.percent(cost) < REMARKED * case.thresholds.exposed_memory_percent:
        return
    sentence = (
        f"{count:,} host-to-device copies of pinned memory ({bytes_words(int(size))}) are on streams with "
        f"kernels; on each GPU they run {time_words(cost)} with no kernel beside them"
    )
    advice = Advice(
        "copy on a stream of its own, and prefetch: start the copies for the next iteration while kernels run",
        "the operations of a stream run one after the other, so no copy overlaps the kernels of its own stream",
    )
    measured = "these copies without what kernels overlap, from the first step on; mean over the GPUs"
    evidence, share = work_summary(case.job.session, case.chosen, MEMORY), case.percent(cost)
    yield Finding(_NAME, Severity.INFO, sentence, advice, Door("memory"), cost, share, measured, evidence)


def _is_apart(case: Case) -> Condition:
    """Whether the stream of a memory operation has no kernels."""
    memory, kernels = tables.memory_ops, tables.kernels
    busy = sa.select(kernels.c.report, kernels.c.process, kernels.c.stream).where(*where(kernels, case.chosen))
    return sa.tuple_(memory.c.report, memory.c.process, memory.c.stream).not_in(busy.distinct())


def _of_copies(case: Case, direction: str, operation: str) -> Advice:
    """The advice for copies over the link to the host, by what is done for them already."""
    memory = tables.memory_ops
    host = memory.c.source_memory if direction == "Host-to-Device" else memory.c.target_memory
    query = (
        sa.select(host, _is_apart(case).label("own"), sa.func.sum(duration(memory)))
        .where(*where(memory, case.chosen), memory.c.operation == operation, memory.c.end.is_not(None))
        .group_by(host, "own")
    )
    rows = [(kind, bool(apart), int(time or 0)) for kind, apart, time in case.job.session.rows(query)]
    whole = sum(time for *_, time in rows)
    is_pageable = 2 * sum(time for kind, _, time in rows if kind == "Pageable") > whole
    is_pinned = 2 * sum(time for kind, _, time in rows if kind == "Pinned") > whole
    is_apart = 2 * sum(time for _, apart, time in rows if apart) > whole
    words, less = direction.lower(), _LESS[direction]
    reason = f"most of the time of these operations is {words} traffic"
    if is_pageable:
        return Advice(
            f"pin the host memory, copy asynchronously on a stream of its own, or {less}",
            f"{reason}, of pageable memory, which CUDA stages",
        )
    if not is_pinned:
        return Advice(f"copy beside kernels, on a stream of its own and of pinned memory, or {less}", reason)
    if not is_apart:
        return Advice(
            f"copy on a stream of its own, while kernels run, or {less}",
            f"{reason}; the memory is pinned already, but the copies are on a stream with kernels",
        )
    return Advice(
        f"start the copies earlier, so that kernels run beside them; copy less (smaller types), or {less}",
        f"{reason}; the copies are pinned already and on a stream of their own, and no kernel runs meanwhile",
    )
