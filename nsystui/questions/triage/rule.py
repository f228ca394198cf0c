"""The declaration of a rule: what it reads, what it finds, and in which order it judges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsystui.questions.triage.case import Case
    from nsystui.questions.triage.finding import Finding, NotChecked

    Judge = Callable[[Case], Sequence[Finding | NotChecked]]

WORK = frozenset({"kernels", "memory_ops", "graph_launches"})
"""The canonical tables of what ran on GPUs."""
IDLE = WORK | {"profiler_overhead"}
"""Those that tell when GPUs were idle."""

BY_COMMUNICATION = ("nccl", "communication")
BY_COPIES = ("to_device", "to_host", "on_device", "other_copies", "memsets")
BY_CPU = ("starved",)
BY_COMPUTE = ("compute",)


@dataclass(frozen=True)
class FindingKind:
    """What is known of all findings of an id.

    ``gist``: it in a few words, for the summary, where the finding has none of its own. ``symptom_of``: the ids of
    findings that may be the cause: where half of the time or more is that of one of these. Where only the costs are
    known, half of this one's is enough, as its time is part of this one's. ``is_paid_once``: however long the job runs.
    ``parts``: those of the budget of an iteration (`blocking.parts`) in which its time can have blocked the GPU; with
    ``compute`` its gain is inferred.
    """

    gist: str = ""
    symptom_of: tuple[str, ...] = ()
    is_paid_once: bool = False
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Rule:
    """A rule; calling it judges a case. ``reads``: the canonical tables without which it would judge wrongly."""

    name: str
    judge: Judge
    order: int
    reads: frozenset[str]
    finds: Mapping[str, FindingKind]

    def __call__(self, case: Case) -> Sequence[Finding | NotChecked]:
        return self.judge(case)


def rule(order: int, reads: frozenset[str], finds: Mapping[str, FindingKind]) -> Callable[[Judge], Rule]:
    """Declare the function below as a rule, which has its name; ``order`` is its place among all rules."""
    return lambda judge: Rule(judge.__name__, judge, order, reads, finds)
