r"""Memory operations that no kernel hides, |U(M) \ U(K)|, and what host-to-device copies have in it.

See docs/numbers.md#exposed-time.
"""

from __future__ import annotations

from collections.abc import Sequence

from nsystui.questions.activities import MEMORY, work_summary
from nsystui.questions.triage.case import Case, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.store import tables

_NAME = "exposed-memory"
_ADVICE = {
    "Host-to-Device": Advice(
        "prefetch the next batch on a copy stream from pinned memory, or keep the data on the GPU",
        "most of the time of these operations is host-to-device traffic",
    ),
    "Device-to-Host": Advice(
        "copy results less often, or on a stream of their own into pinned memory",
        "most of the time of these operations is device-to-host traffic",
    ),
}
_USUAL = Advice(
    "put the operations on a stream of their own, or save them (in-place operations, preallocated buffers)",
    "they only cost time where no kernel runs beside them",
)


def check(case: Case) -> Sequence[Finding | NotChecked]:
    if not case.job.session.count(tables.memory_ops):
        return [NotChecked(_NAME, "needs memory operations: this job has none")]
    cost = case.mean(device.breakdown(case.working(device)).exposed_memory for device in case.devices)
    if case.percent(cost) < case.thresholds.exposed_memory_percent:
        return []
    evidence = work_summary(case.job.session, case.chosen, MEMORY)
    places = [column.key for column in evidence.columns]
    first = dict(zip(places, evidence.page(0, 1)[0], strict=True))
    name = str(first["name"])
    sentence = (
        f"memory copies and memsets run {time_words(cost)} on each GPU with no kernel beside "
        "them; most of the time of all "
        f"takes {name}"
    )
    advice = next((one for word, one in _ADVICE.items() if word in name), _USUAL)
    measured = "copies and memsets without what kernels overlap, from the first step on; mean over the GPUs"
    door, share = Door("memory"), case.percent(cost)
    return [Finding(_NAME, Severity.WARNING, sentence, advice, door, cost, share, measured, evidence)]
