"""What a trace for another tool may hold, and what of it there is."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from nsystui.questions.event_kinds import KIND_TABLES, EventKind, kinds_of
from nsystui.store import tables
from nsystui.store.session import Session

ON_GPU = (EventKind.KERNEL, EventKind.NCCL, EventKind.MEMORY, EventKind.GRAPH)
ON_CPU = (EventKind.API, EventKind.NVTX, EventKind.MPI, EventKind.OS)
TRACED = (*ON_GPU, EventKind.API, EventKind.NVTX, EventKind.MARK, EventKind.MPI)
"""What is in a trace unless something else is asked for: OS runtime calls are many and seldom the question."""

METRICS = "metrics"


@dataclass(frozen=True)
class Contents:
    """What shall be in a trace: kinds of events, and samples of GPU metrics."""

    kinds: tuple[EventKind, ...] = TRACED
    metrics: bool = True

    @classmethod
    def of(cls, text: str) -> Contents:
        """``kernel,nccl,metrics`` as contents, all but OS runtime calls for an empty text; raises UsageError."""
        words = [word.strip() for word in text.split(",") if word.strip()]
        if not words:
            return cls()
        return cls(kinds_of(",".join(word for word in words if word != METRICS)), METRICS in words)

    def there(self, session: Session) -> Contents:
        """Those of them that the open reports have."""
        metrics = self.metrics and bool(session.count(tables.gpu_metrics))
        return Contents(tuple(kind for kind in self.kinds if session.count(KIND_TABLES[kind].table)), metrics)

    def among(self, kinds: Collection[EventKind]) -> tuple[EventKind, ...]:
        """The contents that are of ``kinds``."""
        return tuple(kind for kind in self.kinds if kind in kinds)
