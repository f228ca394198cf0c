"""Spans in which GPUs were idle, and their time by cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, starmap
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from nsystui.base.selection import Task, Window
from nsystui.base.types import Array, Ints
from nsystui.exports.metadata import process_of
from nsystui.questions.algebra.groups import distinct
from nsystui.questions.algebra.intervals import Intervals, Times
from nsystui.questions.host.causes import Cause
from nsystui.questions.host.naming import WORKER
from nsystui.questions.host.segments import Thread

PARTS = STARTUP, GAP, IN_GRAPH, TAIL = ("start-up", "gap", "in graph", "tail")
"""Where a GPU idles: before the steady state, between work, inside a CUDA graph, after the last work."""
_PORTION_SPANS = 1 << 18


class IdleSpan(NamedTuple):
    """An idle span of a GPU (``device``: CUDA ordinal in the task), job time, ns."""

    task: Task
    device: int
    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start

    @property
    def window(self) -> Window:
        return Window(self.start, self.end)


def spans_of(gpu: tuple[Task, int], idle: Intervals) -> list[IdleSpan]:
    """Return the idle time of a GPU as spans."""
    return [IdleSpan(*gpu, *edges) for edges in zip(idle.starts.tolist(), idle.ends.tolist(), strict=True)]


def longest_first(spans: Iterable[IdleSpan]) -> list[IdleSpan]:
    return sorted(spans, key=lambda span: (-span.length, span.start, span.task, span.device))


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


@dataclass(frozen=True, eq=False)
class Attribution:
    """The time of ``spans`` by cause: row i gives ``time[i]`` ns of span ``span[i]`` to ``causes[cause[i]]``.

    The launching thread is in NVTX range ``ranges[range[i]]`` meanwhile, if requested. The times of a span add up to
    its length exactly. ``launchers[launcher[i]]`` is the launching thread of span i, if known.
    """

    spans: IdleSpans
    launchers: Sequence[Thread | None]
    launcher: Array
    causes: Sequence[Cause]
    span: Ints
    cause: Ints
    range: Ints
    ranges: Sequence[str]
    time: Times

    def portions(self) -> Iterator[slice]:
        """Yield slices of rows, at most `_PORTION_SPANS` spans each, to limit memory."""
        firsts = np.arange(0, len(self.spans), _PORTION_SPANS, dtype=self.span.dtype)
        return starmap(slice, pairwise((*np.searchsorted(self.span, firsts).tolist(), len(self.span))))

    def first(self, count: int) -> Attribution:
        """Return the first ``count`` spans."""
        rows = slice(int(np.searchsorted(self.span, count)))
        columns = {key: getattr(self, key)[rows] for key in ("span", "cause", "range", "time")}
        return replace(self, spans=self.spans.at(slice(count)), launcher=self.launcher[:count], **columns)

    def of_span(self, index: int) -> Counter[Cause]:
        """Sum the time of each cause in one span, ns."""
        first, last = np.searchsorted(self.span, [index, index + 1])
        sums: Counter[Cause] = Counter()
        for cause, time in zip(self.cause[first:last].tolist(), self.time[first:last].tolist(), strict=True):
            sums[self.causes[cause]] += time
        return sums

    def task(self, index: int) -> Task:
        """Return the process of a span's launching thread."""
        thread = self.launchers[self.launcher[index]]
        return self.spans[index].task if thread is None else Task(thread[0], process_of(thread[1]))


def over_ranks(attribution: Attribution, groups: Mapping[Task, object] = MappingProxyType({})) -> Attribution:
    """Merge threads with one name on several ranks of a group, one on each, as ``pt_data_worker (4 ranks)``.

    Worker processes of one name are merged even if a rank has several.
    """
    threads: dict[tuple[object, str], set[tuple[Task, str]]] = {}
    gpus, merged = attribution.spans.gpus, attribution.causes
    pairs: set[int] = set()
    for part in attribution.portions():
        gpu = attribution.spans.gpu[attribution.span[part]]
        pairs.update(distinct(gpu * np.int64(len(merged)) + attribution.cause[part]).tolist())
    for gpu_index, cause in (divmod(pair, len(merged)) for pair in sorted(pairs)):
        thread = merged[cause].thread
        if thread:
            task = gpus[gpu_index][0]
            threads.setdefault((groups.get(task), thread.rpartition(" ")[0]), set()).add((task, thread))
    merged_names: dict[str, str] = {}
    for (_, name), members in threads.items():
        ranks = len({task for task, _ in members})
        if ranks > 1 and (ranks == len(members) or name.startswith(WORKER)):
            merged_names |= dict.fromkeys((thread for _, thread in members), f"{name} ({ranks} ranks)")
    merged = [replace(cause, thread=merged_names.get(cause.thread, cause.thread)) for cause in merged]
    return replace(attribution, causes=merged)
