"""Spans in which GPUs were idle, singly and as arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from nsystui.base.selection import Task
from nsystui.base.types import Array, Ints
from nsystui.questions.algebra.intervals import Times


@dataclass(frozen=True)
class IdleSpan:
    """An idle span of a GPU (``device``: CUDA ordinal in the task), job time, ns."""

    task: Task
    device: int
    start: int
    end: int


@dataclass(frozen=True, eq=False)
class IdleSpans:
    """Idle spans of GPUs, job time, ns, shapes ``(n,)``; span i belongs to ``gpus[gpu[i]]`` (see `IdleSpan`)."""

    gpus: Sequence[tuple[Task, int]]
    gpu: Array
    starts: Times
    ends: Times

    @classmethod
    def of(cls, spans: Sequence[IdleSpan]) -> IdleSpans:
        """Join single spans."""
        indices = {gpu: index for index, gpu in enumerate(dict.fromkeys((span.task, span.device) for span in spans))}
        rows = [(indices[span.task, span.device], span.start, span.end) for span in spans]
        return cls(tuple(indices), *np.array(rows, np.int64).reshape(-1, 3).T)

    def at(self, rows: slice | Ints) -> IdleSpans:
        """Return the spans in ``rows``, with only their GPUs."""
        used, gpu = np.unique(self.gpu[rows], return_inverse=True)
        return IdleSpans([self.gpus[index] for index in used.tolist()], gpu, self.starts[rows], self.ends[rows])

    def __len__(self) -> int:
        return len(self.gpu)

    def __getitem__(self, index: int) -> IdleSpan:
        task, device = self.gpus[self.gpu[index]]
        return IdleSpan(task, device, int(self.starts[index]), int(self.ends[index]))

    def __iter__(self) -> Iterator[IdleSpan]:
        return map(self.__getitem__, range(len(self)))
