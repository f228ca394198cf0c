"""Spans in which GPUs were idle: single ones, and as arrays as many as an export has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsystui.base.selection import Task
from nsystui.questions.algebra.intervals import Times


@dataclass(frozen=True)
class IdleSpan:
    """A span in which a GPU (``device``: its CUDA ordinal in the task) was idle, job time."""

    task: Task
    device: int
    start: int
    end: int


@dataclass(frozen=True, eq=False)
class IdleSpans:
    """The n spans in which GPUs were idle, of any number; job time, ns. Span i is of ``gpus[gpu[i]]`` (see `IdleSpan`).

    Shapes are ``(n,)``.
    """

    gpus: Sequence[tuple[Task, int]]
    gpu: NDArray[Any]
    starts: Times
    ends: Times

    @classmethod
    def of(cls, spans: Sequence[IdleSpan]) -> IdleSpans:
        """Join single spans."""
        numbers = {gpu: number for number, gpu in enumerate(dict.fromkeys((one.task, one.device) for one in spans))}
        rows = [(numbers[one.task, one.device], one.start, one.end) for one in spans]
        return cls(tuple(numbers), *np.array(rows, np.int64).reshape(-1, 3).T)

    def at(self, rows: slice) -> IdleSpans:
        """Some of them, with their GPUs alone."""
        used, gpu = np.unique(self.gpu[rows], return_inverse=True)
        return IdleSpans([self.gpus[one] for one in used.tolist()], gpu, self.starts[rows], self.ends[rows])

    def __len__(self) -> int:
        return len(self.gpu)

    def __getitem__(self, number: int) -> IdleSpan:
        task, device = self.gpus[self.gpu[number]]
        return IdleSpan(task, device, int(self.starts[number]), int(self.ends[number]))

    def __iter__(self) -> Iterator[IdleSpan]:
        return map(self.__getitem__, range(len(self)))
