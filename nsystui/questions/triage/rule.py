"""The declaration of a rule: its tables, its findings, and its order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsystui.questions.triage.case import Case
    from nsystui.questions.triage.finding import Finding, NotChecked

    Judge = Callable[[Case], Sequence[Finding | NotChecked]]

WORK = frozenset({"kernels", "memory_ops", "graph_launches"})
"""The canonical tables of GPU work."""
IDLE = WORK | {"profiler_overhead"}
"""The canonical tables that show when GPUs were idle."""
HOST_ACTIVITY = frozenset({"api_calls", "nvtx_ranges", "os_calls", "sched_events", "host_samples"})
"""The canonical tables that show what CPU threads did."""

BY_COMMUNICATION = ("nccl", "communication")
BY_COPIES = ("to_device", "to_host", "on_device", "other_copies", "memsets")
BY_MIGRATIONS = ("migrations",)
BY_CPU = ("starved",)
BY_LAUNCHES = ("starved", "stalled")
"""Also the start of kernels on the GPU, which launches in time hide."""
BY_COMPUTE = ("compute",)


@dataclass(frozen=True)
class FindingKind:
    """The properties that all findings of an ``id`` share.

    ``gist``: the default of `Finding.gist`. ``symptom_of``: ids of possible causes: a cause shares
    half of the finding's time or, if only costs are known, has half of its cost.
    ``is_paid_once``: whether the cost does not grow with the run. ``parts``: the parts of an iteration's budget
    (`blocking.parts`) in which the finding can block the GPU; the gain of ``compute`` is inferred.
    """

    id: str
    gist: str = ""
    parts: tuple[str, ...] = ()
    symptom_of: tuple[str, ...] = ()
    is_paid_once: bool = False


@dataclass(frozen=True, eq=False)
class Rule:
    """A rule; calling it judges a case. ``reads``: the canonical tables without which it would judge wrongly."""

    name: str
    judge: Judge
    order: int
    reads: frozenset[str]
    finds: Mapping[str, FindingKind]

    @property
    def costs_exposed(self) -> bool:
        """Whether it judges time without kernels."""
        return self.reads >= WORK and any(kind.parts for kind in self.finds.values())

    @property
    def compares_ranks(self) -> bool:
        """Whether it judges waits of ranks: each compared rank must have its kernels."""
        return self.costs_exposed and "nccl_calls" in self.reads

    def __call__(self, case: Case) -> Sequence[Finding | NotChecked]:
        return self.judge(case)


def rule(order: int, reads: frozenset[str], *finds: FindingKind) -> Callable[[Judge], Rule]:
    """Declare a function as a rule of the same name; rules judge by ascending ``order``."""
    return lambda judge: Rule(judge.__name__, judge, order, reads, {kind.id: kind for kind in finds})
