"""Traces of NVTX ranges: rows that are made when somebody looks at them, for there may be millions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nsystui.base.answer import Row
from nsystui.base.columns import Column
from nsystui.exports.identifiers import pid_of, tid_of
from nsystui.questions.nvtx.loading import Ints


@dataclass(frozen=True)
class Trace:
    """An answer whose row i is that of ``rows`` for ``order[i]``."""

    name: str
    columns: tuple[Column, ...]
    order: Ints
    rows: Callable[[Sequence[int]], list[Row]]
    notes: tuple[str, ...] = ()
    total: int | None = None

    def __len__(self) -> int:
        return len(self.order)

    def page(self, offset: int, limit: int) -> Sequence[Row]:
        return self.rows(self.order[offset : offset + limit].tolist())

    def sorted_by(self, key: str, descending: bool) -> Trace:
        place = [column.key for column in self.columns].index(key)
        values = [row[place] for row in self.rows(self.order.tolist())]
        known = [index for index, value in enumerate(values) if value is not None]
        unknown = [index for index, value in enumerate(values) if value is None]
        known.sort(key=lambda index: values[index], reverse=descending)  # type: ignore[arg-type, return-value]
        return replace(self, order=self.order[known + unknown])


def stacks(indices: Sequence[int], parent: Ints, row: Ints) -> list[str]:
    """``:35:37:38`` for each of the ranges: the rows of those around it from the outermost on, then its own."""
    known: dict[int, str] = {}
    for index in indices:
        chain, at = [], index
        while at >= 0 and at not in known:
            chain.append(at)
            at = int(parent[at])
        text = known.get(at, "")
        for inner in reversed(chain):
            text = f"{text}:{row[inner]}"
            known[inner] = text
    return [known[index] for index in indices]


def parent_rows(indices: Sequence[int], parent: Ints, row: Ints) -> list[int | None]:
    """The row of the range right around each of the ranges, ``None`` for an outermost one."""
    above = parent[np.array(indices, np.int64)].tolist()
    return [int(row[index]) if index >= 0 else None for index in above]


def by_start(start: Ints, end: Ints, row: Ints) -> Ints:
    """The order in which nsys lists ranges. Shapes ``(n,)``.

    Of ranges that start together the one that ends first comes first: so it is in the only two cases known.
    """
    order: Ints = np.lexsort((row, end, start))
    return order


def pids(thread: Ints) -> list[int]:
    """The process numbers of NVIDIA's serialised thread ids."""
    numbers: list[int] = pid_of(thread).tolist()
    return numbers


def tids(thread: Ints) -> list[int]:
    """The thread numbers of NVIDIA's serialised thread ids."""
    numbers: list[int] = tid_of(thread).tolist()
    return numbers


def style(is_push_pop: bool) -> str:
    """How nsys calls the two sorts of ranges."""
    return "PushPop" if is_push_pop else "StartEnd"
