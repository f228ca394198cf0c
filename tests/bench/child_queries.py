"""Asks a packed export as the screens do, in one process: ``child_queries.py EXPORT CACHE tree|queries REPEATS``.

Prints the milliseconds of every run of every question.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from nsystui.base.selection import NameFilter, Selection, Window
from nsystui.questions.events.listing import EventList, key_of
from nsystui.questions.gpu.utilisation import BusyIntervals
from nsystui.questions.job.job import OpenJob
from nsystui.questions.kernels.activities import API, work_summary
from nsystui.questions.kernels.summary import kernel_instances, kernel_summary
from nsystui.questions.nvtx.paths import TreeGrouping
from nsystui.store.cache import Cache
from nsystui.store.session import Session

PAGE = 200
COLUMNS = 93
"""Of the chart in a terminal of 120."""
Question = tuple[str, Callable[[], object]]


def main() -> None:
    path, cache, what, repeats = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    session = Session(cache=Cache(cache))
    session.add(path)
    job = OpenJob(session)
    questions = _tree(job) if what == "tree" else _questions(job)
    print(json.dumps({name: [_milliseconds(ask) for _ in range(repeats)] for name, ask in questions}))
    job.close()


def _milliseconds(ask: Callable[[], object]) -> float:
    start = time.perf_counter()
    ask()
    return (time.perf_counter() - start) * 1000


def _tree(job: OpenJob) -> Iterator[Question]:
    yield "NVTX tree", lambda: job.nvtx_tree(Selection(), TreeGrouping.THREAD.value, "steps").roots()


def _questions(job: OpenJob) -> Iterator[Question]:
    yield from _of_kernels(job)
    yield from _of_events(job)
    yield "API summary", lambda: work_summary(job.session, Selection(), API)
    window = job.extent()
    busy = BusyIntervals.load(job.session, Selection(), job.ranks)
    yield "GPU utilisation, everything", lambda: BusyIntervals.load(job.session, Selection(), job.ranks)
    yield "GPU utilisation, the chart of a zoom", lambda: busy.lanes(_one_percent(window), COLUMNS)


def _of_kernels(job: OpenJob) -> Iterator[Question]:
    session, narrow = job.session, Selection(window=_one_percent(job.extent()))
    yield "kernel summary", lambda: kernel_summary(session, Selection())
    yield "kernel summary, filtered by name", lambda: kernel_summary(session, Selection(name=NameFilter("gemm")))
    yield "kernel summary, 1 % of the time", lambda: kernel_summary(session, narrow)
    summary = kernel_summary(session, Selection())
    keys = [column.key for column in summary.columns]
    longest = summary.page(0, 1)[0][keys.index("name")]
    yield "instances of a kernel, counted", lambda: kernel_instances(session, Selection(), longest, ranks=job.ranks)
    instances = kernel_instances(session, Selection(), longest, ranks=job.ranks)
    ordered = instances.sorted_by("duration", True)
    yield "instances, first page", lambda: instances.page(0, PAGE)
    yield "instances, page in the middle", lambda: instances.page(len(instances) // 2, PAGE)
    yield "instances, sorted by duration", lambda: instances.sorted_by("duration", True).page(0, PAGE)
    yield "instances, next page by duration", lambda: ordered.page(PAGE, PAGE)


def _of_events(job: OpenJob) -> Iterator[Question]:
    yield "events, list made", lambda: EventList.build(job.session, Selection(), job.ranks)
    events = EventList.build(job.session, Selection(), job.ranks)
    middle = len(events) // 2
    key = key_of(events.page(middle, 1)[0])
    yield "events, page in the middle", lambda: events.page(middle, PAGE)
    yield "events, jump to one", lambda: events.position(key)
    yield "events, next by name", lambda: events.find(middle, True, NameFilter("step "))
    yield "events, no more by that name", lambda: events.find(middle, True, NameFilter("no such name"))


def _one_percent(window: Window) -> Window:
    """In the middle of it."""
    middle, width = (window.start + window.end) // 2, (window.end - window.start) // 100
    return Window(middle, middle + width)


if __name__ == "__main__":
    main()
