"""GPU memory close to the size of the device: the peak, by how many allocations, and allocations that got none.

See docs/numbers.md#gpu-memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from nsystui.base.answer import TableAnswer
from nsystui.base.selection import Window
from nsystui.exports import canonical
from nsystui.questions.memory.gpu_allocations import AT_PEAK, allocation_table
from nsystui.questions.memory.gpu_memory import ON_DEVICE, DevicePeak, device_peaks
from nsystui.questions.queries.conditions import job_start, where
from nsystui.questions.triage.case import Case, bytes_words, number_of, rank_words, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.questions.triage.kernel_mix import by_framework
from nsystui.questions.triage.rules.allocator_churn import of_device_memory
from nsystui.store import tables

_NAME = "memory-full"
_NO_MEMORY = 2
"""cudaErrorMemoryAllocation, and CUDA_ERROR_OUT_OF_MEMORY of the driver."""
_SHOWN = 40
"""The largest allocations that are shown as evidence."""


def check(case: Case) -> Sequence[Finding | NotChecked]:
    if not case.job.session.count(tables.gpu_memory):
        return [NotChecked(_NAME, f"needs {canonical.GPU_MEMORY.what}: {canonical.GPU_MEMORY.record}")]
    peaks = device_peaks(case.job, case.chosen)
    if not peaks:
        return [NotChecked(_NAME, "needs to know how much memory the GPUs have: the exports do not tell")]
    thresholds = case.thresholds
    full = [one for one in peaks if 100 * one.peak >= thresholds.memory_high * one.total]
    return [_finding(case, full, len(peaks), _failures(case))] if full else []


def _failures(case: Case) -> str:
    """The calls that asked for GPU memory and got none, and what their threads did then; empty if there are none."""
    calls = tables.api_calls
    if not case.job.session.count(calls):
        return ""
    own = [*where(calls, case.chosen), *of_device_memory(calls.c.name)]
    place = (calls.c.report, calls.c.thread)
    full = sa.select(*place).where(*own, calls.c.return_value == _NO_MEMORY).distinct().subquery()
    query = sa.select(*place, calls.c.name, calls.c.return_value).where(*own)
    query = query.join(full, sa.and_(full.c.report == calls.c.report, full.c.thread == calls.c.thread))
    failed = again = freed = 0
    pending: dict[tuple[int, int], int] = {}
    for report, thread, name, value in case.job.session.rows(query.order_by(job_start(calls), calls.c.row)):
        key = (report, thread)
        if value == _NO_MEMORY:
            failed += 1
            pending.setdefault(key, 0)
        elif key in pending and "Free" in name:
            pending[key] += 1
        elif key in pending:
            again += 1
            freed += pending.pop(key)
    if not failed:
        return ""
    words = f"; {number_of(failed, 'allocation')} got none"
    if again:
        were = "was" if again == 1 else "were"
        words += (
            f", {again:,} of which {were} tried again with success after {number_of(freed, 'call')} that freed memory"
        )
    return words


def _finding(case: Case, full: Sequence[DevicePeak], known: int, failures: str) -> Finding:
    worst = full[0]
    percent = 100 * worst.peak / worst.total
    is_warning = percent >= case.thresholds.memory_full or failures
    whose = rank_words({case.rank_of[place.task] for place in worst.places if place.task in case.rank_of}, case.ranks)
    sentence = (
        f"{bytes_words(worst.peak)} of {bytes_words(worst.total)} ({percent:.0f} %) of a GPU's memory is in use at "
        f"{time_words(worst.time)} ({whose}), in {number_of(len(worst.sizes), 'allocation')}, the largest "
        f"{bytes_words(max(worst.sizes, default=0))}"
    )
    if len(full) > 1:
        sentence += f"; {len(full)} of {known} GPUs are that full"
    sentence += failures
    setting = by_framework(case, "", pytorch=" (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)")
    advice = Advice(
        "see what is in use then (`nsystui gpu-memory --allocations at-peak`): smaller batches, recomputed "
        f"activations, sharded states; less fragmentation{setting}",
        "an allocator that gets no memory frees its cache and tries again, which makes the GPU wait, or the job fails; "
        "but a caching allocator may also hold more than it needs",
    )
    measured = (
        "the most that allocations of all processes on the GPU had in use at once: contexts, code and libraries, and "
        "what was allocated before the recording, come on top"
    )
    every = allocation_table(case.job, case.chosen.with_tasks(frozenset(one.task for one in worst.places)), AT_PEAK)
    devices = {one.device for one in worst.places}
    rows = [row for row in every.rows if row[1] in devices and row[2] in ON_DEVICE]
    ranks = {case.rank_of[place.task] for one in full for place in one.places if place.task in case.rank_of}
    return Finding(
        _NAME, Severity.WARNING if is_warning else Severity.INFO, sentence, advice, Door("GPU memory"),
        measured=measured, evidence=TableAnswer(_NAME, every.columns, rows[:_SHOWN], len(rows)),
        window=Window(worst.time, worst.time + 1), ranks=tuple(sorted(ranks)),
    )  # fmt: skip
