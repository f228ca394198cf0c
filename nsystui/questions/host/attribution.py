"""Idle time of GPUs by cause: what the thread that launches did meanwhile, moment by moment.

See docs/numbers.md#gaps. A span of idle time belongs to the thread that launched the operation at its end; else, as in
a tail, the one at its start; else the thread of its process with the most CUDA calls. Every moment of the span has the
first cause that there is, in this order, after the profiler's own work in the process:

1. the thread is in an MPI or CUDA call (the outermost);
2. it waits for Python's GIL, where that is recorded: what the thread that holds it runs;
3. it is in an OS runtime call that does not wait for another thread;
4. it runs on a CPU: the function of the nearest sample between two switches;
5. it could run, and another thread has its CPU;
6. it waits, and another thread of its process is in an MPI or CUDA call, or runs, or reads a file;
7. it waits, and a worker process of its rank runs or reads a file;
8. it is in an OS runtime call that waits; it is off the CPU;
9. nothing is recorded.

A call that waits for descriptors (``poll``) comes third, but for the time in which a worker process works.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise, starmap
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.resources import give_back
from nsystui.base.selection import Selection, Task, Window
from nsystui.questions.algebra.groups import distinct
from nsystui.questions.algebra.intervals import (
    EMPTY,
    Intervals,
    Times,
    disjoint_runs,
    intersect,
    merge,
    union,
)
from nsystui.questions.gpu.profiler_overhead import profiler_overhead
from nsystui.questions.host.causes import (
    FILE_READS,
    GIL,
    IN_MPI,
    IN_OS,
    KINDS,
    NOTHING,
    OFF_CPU,
    PREEMPTED,
    PROFILER,
    RUNNING_CODE,
    WAITING,
    Cause,
    kind_of,
)
from nsystui.questions.host.functions import CpuSamples, running_stretches, samples_of
from nsystui.questions.host.idle_spans import IdleSpan, IdleSpans
from nsystui.questions.host.naming import (
    WORKER,
    HostThread,
    Launches,
    ThreadRanges,
    launching_threads,
    named_threads,
    threads_at,
    usual_threads,
    workers_by_rank,
)
from nsystui.questions.host.segments import (
    BLOCKED,
    FAR,
    NO_CALLS,
    NO_SEGMENTS,
    NO_THREAD,
    OFF,
    RUNNABLE,
    RUNNING,
    Calls,
    Gil,
    Scheduling,
    Segments,
    Thread,
    calls_of,
    gil_of,
    one_after_the_other,
    pairs,
    scheduling_of,
)
from nsystui.questions.host.stacks import LIBRARY, PYTHON, Files, Numbers, files_of, os_callers, program_function
from nsystui.questions.job.job import OpenJob
from nsystui.questions.nvtx.chains import narrow
from nsystui.questions.queries.conditions import where
from nsystui.questions.queries.mpi import mpi_rows
from nsystui.store import tables
from nsystui.store.session import Session

_WAITS = re.compile(r"futex|cond_|sem_|mutex|rwlock|barrier|pthread_join|spin_lock|sigwait|waitid|waitpid|wait4")
"""OS runtime calls that wait for another thread."""
_POLLS = re.compile(r"p?poll|p?select|epoll_p?wait")
"""OS runtime calls that wait for descriptors: what a data loader's worker process sends comes by one."""
_CALLS = re.compile(rf"{LIBRARY.pattern}|libcuda(?:rt[-\w]*)?\.so.*")
"""And those of CUDA calls: what is sampled in one says of the time beside it no more than who called."""
PROFILERS = ("[NSys", "CUPTI worker thread")
"""What the names of the profiler's own threads begin with."""
FEW = 300
"""Of so many spans only the calls are read that overlap one, or are beside it."""
_SPAN = 1600
"""Bytes that a span takes with the calls around it, the pieces of its causes and the NVTX ranges around these."""
_PIECES = 1 << 19
"""The most pieces of idle time that are held before they are added up."""
BESIDE = 10_000_000
"""As far before or behind a span as this, ns, a call locates time in it of which nothing is recorded."""
_PORTION = 1 << 18


@dataclass(frozen=True, eq=False)
class Attribution:
    """The time of ``spans`` by cause: row i says that span ``span[i]`` has ``time[i]`` ns of ``causes[cause[i]]``.

    The launching thread is in the NVTX range ``ranges[range[i]]`` meanwhile, where these were asked for. The times of a
    span add up to its length exactly. ``launchers[launcher[i]]``: the launching thread of span i, where it is known.
    """

    spans: IdleSpans
    launchers: Sequence[Thread | None]
    launcher: NDArray[Any]
    causes: Sequence[Cause]
    span: Numbers
    cause: Numbers
    range: Numbers
    ranges: Sequence[str]
    time: Times

    def portions(self) -> Iterator[slice]:
        """Rows of so many spans that they are in memory several times."""
        firsts = np.arange(0, len(self.spans), _PORTION, dtype=self.span.dtype)
        edges = (*np.searchsorted(self.span, firsts).tolist(), len(self.span))
        return starmap(slice, pairwise(edges))

    def of_span(self, number: int) -> Counter[Cause]:
        """Add up the time of each cause in one span, ns."""
        first, last = np.searchsorted(self.span, [number, number + 1])
        sums: Counter[Cause] = Counter()
        for cause, time in zip(self.cause[first:last].tolist(), self.time[first:last].tolist(), strict=True):
            sums[self.causes[cause]] += time
        return sums


def over_ranks(attribution: Attribution) -> Attribution:
    """Put the threads of a name together, ``pt_data_worker (4 ranks)``, where each of several ranks has one.

    Worker processes of a name are put together however many a rank has.
    """
    threads: dict[str, set[tuple[Task, str]]] = {}
    causes, gpus = attribution.causes, attribution.spans.gpus
    met: set[int] = set()
    for part in attribution.portions():
        gpu = attribution.spans.gpu[attribution.span[part]]
        met.update(distinct(gpu * np.int64(len(causes)) + attribution.cause[part]).tolist())
    for number, cause in (divmod(pair, len(causes)) for pair in sorted(met)):
        thread = causes[cause].thread
        if thread:
            threads.setdefault(thread.rpartition(" ")[0], set()).add((gpus[number][0], thread))
    shown: dict[str, str] = {}
    for name, of_name in threads.items():
        ranks = len({task for task, _ in of_name})
        if ranks > 1 and (ranks == len(of_name) or name.startswith(WORKER)):
            shown |= dict.fromkeys((thread for _, thread in of_name), f"{name} ({ranks} ranks)")
    causes = [replace(cause, thread=shown.get(cause.thread, cause.thread)) for cause in causes]
    return replace(attribution, causes=causes)


def attribute(
    job: OpenJob, spans: Sequence[IdleSpan] | IdleSpans, with_ranges: bool = False, with_calls: bool = False
) -> Attribution:
    """Find the causes of each span. Of up to `FEW` spans only the calls beside them are read.

    ``with_ranges`` tells the NVTX range, too, and reads all ranges. ``with_calls``: `NOTHING` says which call of the
    launching thread is the next or was the last, whichever is nearer.
    """
    spans = spans if isinstance(spans, IdleSpans) else IdleSpans.of(spans)
    if not len(spans):
        nothing = np.empty(0, np.int64)
        return Attribution(spans, (), nothing, (), nothing, nothing, nothing, (), nothing)
    host = _Host.load(job, spans, BESIDE if with_calls else 0)
    ranges = ThreadRanges.load(job) if with_ranges else None
    names = ("",) if ranges is None else ranges.names
    found: dict[str, list[NDArray[Any]]] = {key: [] for key in ("launcher", "span", "cause", "range", "time")}
    for rows in job.session.slices(len(spans), _SPAN, "causes of idle time", "gaps"):
        part = spans.at(rows)
        if len(part) < len(spans):
            host.read_calls(job.session, part)
        launcher = host.launchers(part)
        pieces: list[tuple[Numbers, Numbers, Numbers, Times]] = []
        held, most = 0, _PIECES
        for piece in _pieces(host, part, launcher, ranges, with_calls):
            pieces.append(piece)
            held += len(piece[0])
            if held > most:  # the idle time of many GPUs meets the same calls again and again
                pieces = [_summed(pieces, len(host.causes), len(names))]
                held = len(pieces[0][0])
                most = max(_PIECES, 2 * held)
        span, cause, place, time = _summed(pieces, len(host.causes), len(names))
        columns = [narrow(values) for values in (launcher, span + rows.start, cause, place, time)]
        for kept, values in zip(found.values(), columns, strict=True):
            kept.append(values)
        del pieces, span, cause, place, time, columns
        give_back()
    launcher, span, cause, place, time = map(_joined, found.values())
    return Attribution(spans, tuple(host.threads), launcher, tuple(host.causes), span, cause, place, names, time)


def _joined(pieces: list[NDArray[Any]]) -> NDArray[Any]:
    """Join the pieces of a column, which is the largest part of the memory, and free them."""
    whole = np.concatenate(pieces)
    pieces.clear()
    give_back()
    return whole


def _summed(
    pieces: Iterable[tuple[Numbers, Numbers, Numbers, Times]], causes: int, names: int
) -> tuple[Numbers, Numbers, Numbers, Times]:
    """Add up the time of each span, cause and range."""
    span, cause, place, time = (np.concatenate(columns) for columns in zip(*pieces, strict=True))
    key, inverse = np.unique((span * causes + cause) * names + place, return_inverse=True)
    spent = np.zeros(len(key), np.int64)
    np.add.at(spent, inverse.reshape(-1), time)
    pair, place = np.divmod(key, names)
    return (*np.divmod(pair, causes), place, spent)


def _pieces(
    host: _Host, spans: IdleSpans, launcher: NDArray[np.int32], ranges: ThreadRanges | None, with_calls: bool
) -> Iterator[tuple[Numbers, Numbers, Numbers, Times]]:
    """Span, cause, range and time of each piece; ``launcher``: the place of the thread of each span in the host's."""
    launchers = list(host.threads)
    # The same thread is the launcher of all GPUs of a task.
    tasks = list(dict.fromkeys(task for task, _ in spans.gpus))
    numbers = {task: number for number, task in enumerate(tasks)}
    task_of = np.array([numbers[task] for task, _ in spans.gpus], np.int64)[spans.gpu]
    groups, first, group = np.unique(task_of * len(launchers) + launcher, return_index=True, return_inverse=True)
    for place in np.argsort(first).tolist():
        number, which = divmod(int(groups[place]), len(launchers))
        task, thread = tasks[number], launchers[which]
        rows = np.flatnonzero(group.reshape(-1) == place)
        whole = union(spans.starts[rows], spans.ends[rows])
        hull = Window(int(whole.starts[0]), int(whole.ends[-1]))
        around = ranges.of(task, thread, hull) if ranges is not None else None
        known = timeline = host.timeline(task, thread, whole)
        # Several GPUs of a process are idle at once: to be looked at one after the other.
        for disjoint in disjoint_runs(rows, spans.starts, spans.ends):
            inside = Intervals(spans.starts[disjoint], spans.ends[disjoint])
            if with_calls and thread is not None:
                timeline = one_after_the_other(host.beside_calls(thread, inside, known), known)
            pieces = pairs(inside, timeline)
            span, cause = disjoint[pieces.span], timeline.labels[pieces.segment]
            if around is None:
                yield span, cause, np.zeros(len(span), np.int64), pieces.ends - pieces.starts
            else:
                part = pairs(Intervals(pieces.starts, pieces.ends), around)
                yield span[part.span], cause[part.span], around.labels[part.segment], part.ends - part.starts


@dataclass(eq=False)
class _Host:
    """What is recorded of the threads of the tasks that have spans, and the causes that were met so far."""

    cuda: Calls
    mpi: Calls
    os: Calls
    scheduling: Scheduling
    samples: CpuSamples
    python: CpuSamples
    gil: Gil
    files: Files
    names: Mapping[Thread, HostThread]
    launching: Launches
    ending: Launches
    usual: Mapping[Task, Thread]
    workers: Mapping[Task, Task]
    os_callers: Mapping[int, Mapping[int, str]]
    profiler: Mapping[Task, Intervals]
    causes: dict[Cause, int] = field(default_factory=dict)
    threads: dict[Thread | None, int] = field(default_factory=dict)
    _functions: dict[Thread, Segments] = field(default_factory=dict)

    @classmethod
    def load(cls, job: OpenJob, spans: IdleSpans, beside: int) -> _Host:
        session = job.session
        tasks = frozenset(task for task, _ in spans.gpus)
        hull = Window(int(spans.starts.min()) - beside, int(spans.ends.max()) + beside)
        workers = workers_by_rank(job, tasks)
        selection = Selection(hull, tasks | workers.keys())
        few, api_calls = None, tables.api_calls
        if len(spans) <= FEW:
            few = [(one.task, one.start - beside, one.end + beside) for one in spans]
            few += [(worker, low, high) for worker, rank in workers.items() for task, low, high in few if task == rank]
        cuda, callers = NO_CALLS, set[Thread]()
        if len(spans) <= session.limits.rows_at_once(_SPAN):
            cuda = calls_of(session, api_calls, selection, few)
        elif session.count(api_calls):
            query = sa.select(api_calls.c.report, api_calls.c.thread).where(*where(api_calls, selection))
            callers.update(session.rows(query.where(api_calls.c.thread.is_not(None)).distinct()))
        mpi = calls_of(session, mpi_rows(session), selection, few)
        os = calls_of(session, tables.os_calls, selection, few, tables.os_calls.c.chain)
        scheduling, samples = scheduling_of(session, selection), samples_of(session, selection)
        python = samples_of(session, selection, PYTHON)
        gil = gil_of(session, selection, few)
        threads = {*callers, *cuda.threads, *mpi.threads, *os.threads, *scheduling.threads, *samples.threads, *gil.held}
        usual = usual_threads(session, tasks)
        names = {one.thread: one for one in named_threads(job, threads | set(usual.values()))}
        launching, ending = (
            ({}, {}) if callers else launching_threads(session, tasks, spans.starts, spans.ends, few is not None)
        )
        return cls(
            cuda, mpi, os, scheduling, samples, python, gil, files_of(session, selection), names, launching,
            ending, usual, workers, os_callers(session, os.chains), profiler_overhead(session, selection),
        )  # fmt: skip

    def read_calls(self, session: Session, spans: IdleSpans) -> None:
        """Read the CUDA calls and the launches around some of many spans, in place of those before."""
        tasks = frozenset(task for task, _ in spans.gpus)
        hull = Window(int(spans.starts.min()), int(spans.ends.max()))
        self.cuda = calls_of(session, tables.api_calls, Selection(hull, tasks | set(self.workers)))
        self.launching, self.ending = launching_threads(session, tasks, spans.starts, spans.ends, False)

    def number(self, cause: Cause) -> int:
        return self.causes.setdefault(cause, len(self.causes))

    def launchers(self, spans: IdleSpans) -> NDArray[np.int32]:
        """The place in ``threads`` of what each span belongs to; ``None`` is there where nothing tells."""
        places = np.empty(len(spans), np.int32)
        for number, (task, device) in enumerate(spans.gpus):
            own = np.flatnonzero(spans.gpu == number)
            threads = threads_at(self.launching, task, device, spans.ends[own])
            rest = threads == NO_THREAD
            threads[rest] = threads_at(self.ending, task, device, spans.starts[own[rest]])
            for one in np.unique(threads).tolist():
                thread = self.usual.get(task) if one == NO_THREAD else (task.report, one)
                places[own[threads == one]] = self.threads.setdefault(thread, len(self.threads))
        return places

    def timeline(self, task: Task, thread: Thread | None, inside: Intervals) -> Segments:
        """The causes over the time of ``inside``, every moment of which has one."""
        own = (one for one in self._threads.get(task, ()) if one != thread)
        others = [one for one in own if not self.names[one].name.startswith(PROFILERS)]
        workers = self._worker_threads.get(task, [])
        layers = [self._all(intersect(self.profiler.get(task, EMPTY), inside), Cause(PROFILER))]
        states = NO_SEGMENTS
        if thread is not None:
            states = self._states(task, thread)
            layers += [self._library_calls(thread, inside, ""), *self._waiting_for_gil(thread, others, inside)]
            polls = self._in_os_calls(thread, _POLLS.fullmatch)
            layers += self._working(workers, intersect(inside, polls))
            layers += [self._os_calls(thread, inside, lambda call: not _WAITS.search(call))]
            layers += [self._running(thread, inside, RUNNING_CODE, ""), self._preempted(thread, inside)]
        layers += [self._calls_of_others(others, inside), *self._working(others, inside)]
        if thread is not None:
            waits = merge(self._in_os_calls(thread, _WAITS.search), states.labelled(BLOCKED, OFF))
            layers += self._working(workers, intersect(inside, waits))
            layers += [
                self._os_calls(thread, inside, lambda call: bool(_WAITS.search(call))),
                self._all(intersect(states.labelled(BLOCKED, OFF), inside), Cause(OFF_CPU)),
            ]
        return one_after_the_other(*layers, self._all(inside, Cause(NOTHING)))

    def beside_calls(self, thread: Thread, inside: Intervals, timeline: Segments) -> Segments:
        """The time of which nothing is recorded, by the nearer call around it, within `BESIDE` of the span."""
        nothing = intersect(timeline.labelled(self.number(Cause(NOTHING))), inside)
        calls = self._library_calls(thread, union(inside.starts - BESIDE, inside.ends + BESIDE), "")
        if not len(calls):
            return NO_SEGMENTS
        place, follows = (np.searchsorted(one, nothing.starts, side="right") for one in (inside.starts, calls.starts))
        start, end = np.append(calls.starts, FAR)[follows], np.insert(calls.ends, 0, -FAR)[follows]
        has_next, has_last = start < inside.ends[place - 1] + BESIDE, end > inside.starts[place - 1] - BESIDE
        is_next = has_next & (~has_last | (start - nothing.ends <= nothing.starts - end))
        words = [cause.what for cause in self.causes]
        layers = []
        for word, chosen, own in (("before", is_next, follows), ("after", has_last & ~is_next, follows - 1)):
            part = Intervals(nothing.starts[chosen], nothing.ends[chosen])
            known, label = np.unique(calls.labels[own[chosen]], return_inverse=True)
            numbers = [self.number(Cause(NOTHING, f"{word} {words[one]}")) for one in known.tolist()]
            layers.append(Segments(part.starts, part.ends, np.array(numbers, np.int64)[label.reshape(-1)]))
        return one_after_the_other(*layers)

    def _states(self, task: Task, thread: Thread) -> Segments:
        """When a thread was in which state of the scheduler.

        Before an event that puts it on a CPU, and after one that takes it off, it is off the CPU: as long as events of
        other threads of its process show that scheduling was recorded.
        """
        states = self.scheduling.threads.get(thread, NO_SEGMENTS)
        if not len(states):
            return states
        known = [self.scheduling.threads.get(one, NO_SEGMENTS) for one in self._threads.get(task, ())]
        first = min((one.starts[0] for one in known if len(one)), default=states.starts[0])
        last = max((one.ends[-1] for one in known if len(one)), default=states.ends[-1])
        low = first if states.labels[0] == RUNNING else states.starts[0]
        high = last if states.labels[-1] == RUNNING else states.ends[-1]
        return one_after_the_other(states, Segments(np.array([low]), np.array([high]), np.array([OFF])))

    @cached_property
    def _threads(self) -> Mapping[Task, list[Thread]]:
        """The threads of each process, in order."""
        found: dict[Task, list[Thread]] = {}
        for one in sorted(self.names):
            found.setdefault(self.names[one].task, []).append(one)
        return found

    @cached_property
    def _worker_threads(self) -> Mapping[Task, list[Thread]]:
        found: dict[Task, list[Thread]] = {}
        for worker, rank in self.workers.items():
            found.setdefault(rank, []).extend(self._threads.get(worker, ()))
        return {rank: sorted(threads) for rank, threads in found.items()}

    def _in_os_calls(self, thread: Thread, is_meant: Callable[[str], object]) -> Intervals:
        """When a thread is in OS runtime calls with the names that are meant."""
        meant = [number for number, call in enumerate(self.os.names) if is_meant(call)]
        return self.os.threads.get(thread, NO_SEGMENTS).labelled(*meant)

    def _library_calls(self, thread: Thread, inside: Intervals, name: str) -> Segments:
        """The MPI and CUDA calls of a thread: of calls within each other the outermost."""
        mpi = self._labelled(self.mpi, thread, inside, lambda call: Cause(IN_MPI, call, name))
        cuda = self._labelled(self.cuda, thread, inside, lambda call: Cause(kind_of(call), call, name))
        # A CUDA call within an MPI call is MPI's; MPI calls within CUDA calls there are none.
        return one_after_the_other(mpi, cuda)

    def _labelled(self, calls: Calls, thread: Thread, inside: Intervals, cause_of: Callable[[str], Cause]) -> Segments:
        segments = calls.threads.get(thread, NO_SEGMENTS).within(inside)
        known, place = np.unique(segments.labels, return_inverse=True)
        numbers = np.array([self.number(cause_of(calls.names[one])) for one in known.tolist()], np.int64)
        return Segments(segments.starts, segments.ends, numbers[place.reshape(-1)] if len(known) else segments.labels)

    def _os_calls(
        self, thread: Thread, inside: Intervals, is_meant: Callable[[str], bool], kind: str = IN_OS, name: str = ""
    ) -> Segments:
        """The OS runtime calls of a thread with the names that are meant, by who called them."""
        segments = self.os.threads.get(thread, NO_SEGMENTS)
        callers = self.os_callers.get(thread[0], {})
        meant = np.array([is_meant(call) for call in self.os.names], bool)
        chosen = meant[segments.labels] if len(segments) else np.empty(0, bool)
        chains = self.os.chains.get(thread, segments.labels)[chosen] if len(segments) else segments.labels
        part = Segments(segments.starts[chosen], segments.ends[chosen], np.arange(int(chosen.sum()))).within(inside)
        keys = np.stack([segments.labels[chosen][part.labels], chains[part.labels]])
        known, place = np.unique(keys, axis=1, return_inverse=True)
        # Each call has a chain of its own, if from one place.
        groups: dict[tuple[str, str], int] = {}
        group = [
            groups.setdefault((self.os.names[call], callers.get(chain, "")), len(groups))
            for call, chain in known.T.tolist()
        ]
        own = np.array(group, np.int64)[place.reshape(-1)]
        numbers = np.empty(len(own), np.int64)
        for (call, caller), number in groups.items():
            here = own == number
            files = self.files.accessed(thread, Intervals(part.starts[here], part.ends[here]))
            numbers[here] = self.number(Cause(kind, call, name, caller, files))
        return Segments(part.starts, part.ends, numbers)

    def _running(self, thread: Thread, inside: Intervals, kind: str, name: str) -> Segments:
        """The time in which a thread runs, by the function of its nearest sample."""
        if thread not in self._functions:
            sampled, states = self.samples.threads.get(thread), self.scheduling.threads.get(thread)
            self._functions[thread] = running_stretches(sampled, self.samples.period, states)
        segments = self._functions[thread].within(inside)
        if not len(segments):
            return NO_SEGMENTS
        segments, frames = self._with_frames(thread, segments)
        known, place = np.unique(np.stack([segments.labels, frames]), axis=1, return_inverse=True)
        trees = [one.stacks[thread[0]].tree if thread[0] in one.stacks else None for one in (self.samples, self.python)]
        numbers = np.empty(known.shape[1], np.int64)
        for number, nodes in enumerate(known.T.tolist()):
            what, caller = (program_function(tree, node, _CALLS) for tree, node in zip(trees, nodes, strict=True))
            numbers[number] = self.number(Cause(kind, what, name, caller if caller != what else ""))
        return Segments(segments.starts, segments.ends, numbers[place.reshape(-1)] if len(numbers) else segments.labels)

    def _with_frames(self, thread: Thread, segments: Segments) -> tuple[Segments, Numbers]:
        """Segments with the node of the nearest sample of Python of the thread, where there is one; else 0."""
        known = None if thread[0] in self.samples.of_python else self.python.threads.get(thread)
        if known is None:
            return segments, np.zeros(len(segments), np.int64)
        near = running_stretches(known, self.python.period, None)
        inside = pairs(Intervals(segments.starts, segments.ends), near)
        outside = pairs(near.covered.gaps(-FAR, FAR), segments)
        starts, ends = (
            np.concatenate([getattr(part, key) for part in (inside, outside)]) for key in ("starts", "ends")
        )
        labels = segments.labels[np.concatenate((inside.span, outside.segment))]
        frames = np.concatenate((near.labels[inside.segment], np.zeros(len(outside.starts), np.int64)))
        order = np.argsort(starts, kind="stable")
        return Segments(starts[order], ends[order], labels[order]), frames[order]

    def _preempted(self, thread: Thread, inside: Intervals) -> Segments:
        """The time in which the thread could run, by who had the CPU that it left."""
        states = self.scheduling.threads.get(thread, NO_SEGMENTS)
        ready = intersect(states.labelled(RUNNABLE), inside)
        if not len(ready):
            return NO_SEGMENTS
        layers = []
        for cpu in np.unique(self.scheduling.places[thread][states.labels == RUNNABLE]).tolist():
            is_ready = (states.labels == RUNNABLE) & (self.scheduling.places[thread] == cpu)
            here = intersect(union(states.starts[is_ready], states.ends[is_ready]), inside)
            for other, cpus in self.scheduling.cpus.items() if len(here) else ():
                if other != thread and other[0] == thread[0]:
                    found = intersect(cpus.labelled(cpu), here)
                    if len(found):
                        layers.append(self._all(found, Cause(PREEMPTED, self._name(other))))
        layers.append(self._all(ready, Cause(PREEMPTED)))
        return one_after_the_other(*layers)

    def _waiting_for_gil(self, thread: Thread, others: Sequence[Thread], inside: Intervals) -> list[Segments]:
        """The time in which the thread waits for the GIL, by who holds it and what that thread runs."""
        waits, layers = intersect(self.gil.waited.get(thread, EMPTY), inside), []
        for one in others:
            held = intersect(self.gil.held.get(one, EMPTY), waits)
            if len(held):
                name = self._name(one)
                layers += [self._running(one, held, GIL, name), self._all(held, Cause(GIL, "", name))]
        return [*layers, self._all(waits, Cause(GIL))]

    def _calls_of_others(self, others: Sequence[Thread], inside: Intervals) -> Segments:
        """The MPI and CUDA calls of other threads: of two at once that of the first kind."""
        calls = [self._library_calls(one, inside, self._name(one)) for one in others]
        layers = []
        kinds = np.array([KINDS.index(cause.kind) for cause in self.causes], np.int64)
        for kind in range(len(KINDS)):
            for part in calls:
                chosen = kinds[part.labels] == kind
                if chosen.any():
                    layers.append(Segments(part.starts[chosen], part.ends[chosen], part.labels[chosen]))
        return one_after_the_other(*layers) if layers else NO_SEGMENTS

    def _working(self, others: Sequence[Thread], inside: Intervals) -> list[Segments]:
        """What other threads run, the one that runs longest first, and the files that they read."""
        if not len(inside):
            return []
        running = [self._running(one, inside, WAITING, self._name(one)) for one in others]
        running.sort(key=lambda part: -int((part.ends - part.starts).sum()))
        reading = [
            self._os_calls(one, inside, FILE_READS.__contains__, WAITING, self._name(one))
            for one in others
            if one in self.os.threads
        ]
        return [part for part in (*running, *reading) if len(part)]

    def _all(self, when: Intervals, cause: Cause) -> Segments:
        return Segments(when.starts, when.ends, np.full(len(when), self.number(cause)))

    def _name(self, thread: Thread) -> str:
        one = self.names.get(thread)
        return one.words(one.task in self.workers) if one is not None else ""
