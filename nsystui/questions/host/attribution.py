"""Idle time of GPUs by cause: the launching thread's activity, moment by moment (docs/numbers.md#gaps).

A span of idle time belongs to the thread that launched the operation at its end, or, if unknown (as in a tail), at its
start, or else to its process's thread with the most CUDA calls. That operation also selects the process on a shared
GPU. Gaps inside replays of CUDA graphs, and then the profiler's work in the process, precede all other causes. After
them, each moment has the first cause of that table that applies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.resources import give_back
from nsystui.base.selection import Selection, Task, Window
from nsystui.base.types import Array, Ints, grouped
from nsystui.questions.algebra.intervals import EMPTY, Intervals, Times, disjoint_runs, intersect, merge, union
from nsystui.questions.gpu.graph_gaps import causes_in_graphs, host_functions
from nsystui.questions.host import causes
from nsystui.questions.host.causes import IN_OS, Cause, kind_of
from nsystui.questions.host.functions import CpuSamples, running_stretches, samples_of
from nsystui.questions.host.idle_spans import Attribution, IdleSpan, IdleSpans
from nsystui.questions.host.naming import (
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
    texts_by_hash,
)
from nsystui.questions.host.stacks import LIBRARY, PYTHON, Files, files_of, os_callers, program_function
from nsystui.questions.job.job import OpenJob
from nsystui.questions.kernels.activities import profiler_overhead
from nsystui.questions.nvtx.chains import narrow
from nsystui.questions.queries.conditions import where
from nsystui.questions.queries.mpi import mpi_rows
from nsystui.store import tables
from nsystui.store.session import Session

_WAITS = re.compile(r"futex|cond_|sem_|mutex|rwlock|barrier|pthread_join|spin_lock|sigwait|waitid|waitpid|wait4")
"""OS runtime calls that wait for another thread."""
_POLLS = re.compile(r"p?poll|p?select|epoll_p?wait")
"""OS runtime calls that wait for descriptors, such as pipes from a data loader's worker processes."""
_CALLS = re.compile(rf"{LIBRARY.pattern}|libcuda(?:rt[-\w]*)?\.so.*")
"""`LIBRARY` and CUDA's libraries: if the nearest sample was in a CUDA call, running code has the caller's name."""
PROFILERS = ("[NSys", "CUPTI worker thread")
"""Prefixes of the names of the profiler's threads."""
FEW = 1 << 13
"""Up to this number of spans, only calls near them are read."""
_SPAN_BYTES, _CALL_BYTES = 1600, 300
"""Memory per span, with its calls, pieces and NVTX ranges, and per CUDA call, with its launch."""
_MAX_PIECES = 1 << 19
"""The most pieces of idle time held before adding them up."""
BESIDE = 1_000_000
"""The largest distance of a call that locates unrecorded time, ns."""
_EVERYTHING = Selection()
_Piece = tuple[Ints, Ints, Ints, Times]


def attribute(
    job: OpenJob, spans: Sequence[IdleSpan] | IdleSpans, with_ranges: bool = False, with_calls: bool = False,
    selection: Selection = _EVERYTHING,
) -> Attribution:  # fmt: skip
    """Find the causes of each span; up to `FEW` spans read only nearby calls.

    ``with_ranges`` also finds the NVTX ranges, which reads all ranges. ``with_calls`` adds to `NOTHING` the launching
    thread's nearest call. ``selection``: the streams whose pauses are gaps inside CUDA graphs.
    """
    spans = spans if isinstance(spans, IdleSpans) else IdleSpans.of(spans)
    if not len(spans):
        nothing = np.empty(0, np.int64)
        return Attribution(spans, (), nothing, (), nothing, nothing, nothing, (), nothing)
    idle, spans = spans, _of_launching_processes(job, spans)
    step, limits = len(spans), job.session.limits
    if step > FEW:
        calls_per_span = max(job.session.count(tables.api_calls), 1) / step
        step = min(step, limits.rows_at_once(_SPAN_BYTES), int(limits.rows_at_once(_CALL_BYTES) / calls_per_span) + 1)
    in_portions = step < len(spans)
    margin = BESIDE if with_calls else 0
    host = _Host.load(job, spans, margin, selection, in_portions)
    # In order of time, portions are near few calls.
    order = narrow(np.argsort(spans.starts, kind="stable") if in_portions else np.arange(len(spans)))
    ranges = ThreadRanges.load(job) if with_ranges else None
    names = ("",) if ranges is None else ranges.names
    portions: list[tuple[Array, ...]] = []
    for rows in job.session.slices(len(spans), step, "causes of idle time", "gaps"):
        part = spans.at(order[rows])
        if in_portions:
            host.read_calls(job.session, part, margin)
        launcher = host.launchers(part)
        span, *numbers = _summed(_pieces(host, part, launcher, ranges, with_calls), host.causes, len(names))
        portions.append(tuple(map(narrow, (launcher, order[rows][span], *numbers))))
        give_back()
    parts_by_column = [*map(list, zip(*portions, strict=True))]
    portions.clear()
    launcher, *columns = map(_joined, parts_by_column)
    if (np.diff(columns[0]) < 0).any():
        by_span = narrow(np.argsort(columns[0], kind="stable"))
        launcher, columns = launcher[np.argsort(order)], [columns.pop(0)[by_span] for _ in range(len(columns))]
    span, cause, range_index, time = columns
    return Attribution(idle, tuple(host.threads), launcher, tuple(host.causes), span, cause, range_index, names, time)


def _of_launching_processes(job: OpenJob, spans: IdleSpans) -> IdleSpans:
    """Return spans of shared GPUs with the process whose operation is at their end, else at their start."""
    shared = [gpu.devices for gpu in job.gpus(_EVERYTHING) if gpu.others]
    users = {user.key: devices for devices in shared for user in devices}
    if users.keys().isdisjoint(spans.gpus):
        return spans
    busy = {item.device.key: item for item in job.busy(_EVERYTHING).devices}
    indices, chosen = {gpu: index for index, gpu in enumerate(spans.gpus)}, spans.gpu.copy()
    for index, gpu in enumerate(spans.gpus):
        others = [user.key for user in users.get(gpu, ())]
        active = {user: busy[user].active(busy[user].recorded) for user in (gpu, *others) if others}
        rows = np.flatnonzero(spans.gpu == index)
        for edge, moments in (("starts", spans.ends), ("ends", spans.starts)):
            for user, times in active.items():
                is_edge = np.isin(moments[rows], getattr(times, edge))
                chosen[rows[is_edge]] = indices.setdefault(user, len(indices))
                rows = rows[~is_edge]
    return IdleSpans(tuple(indices), chosen, spans.starts, spans.ends)


def _joined(parts: list[Array]) -> Array:
    """Join the parts of a column, the largest part of the memory, and free them."""
    column = np.concatenate(parts)
    parts.clear()
    give_back()
    return column


def _summed(pieces: Iterable[_Piece], cause_numbers: Sized, range_count: int) -> _Piece:
    """Add up the times of equal span, cause and range."""
    held: list[_Piece] = []
    piece_count, limit = 0, _MAX_PIECES
    for piece in pieces:
        held.append(piece)
        piece_count += len(piece[0])
        if piece_count > limit:  # the idle times of many GPUs contain the same calls
            held = [_summed_at_once(held, len(cause_numbers), range_count)]
            piece_count = len(held[0][0])
            limit = max(_MAX_PIECES, 2 * piece_count)
    return _summed_at_once(held, len(cause_numbers), range_count)


def _summed_at_once(pieces: Iterable[_Piece], cause_count: int, range_count: int) -> _Piece:
    span, cause, range_index, time = (np.concatenate(columns) for columns in zip(*pieces, strict=True))
    key = (span * cause_count + cause) * range_count + range_index
    order = np.argsort(key, kind="stable")
    key = key[order]
    first = np.flatnonzero(np.diff(key, prepend=key[:1] - 1))
    pair, range_index = np.divmod(key[first], range_count)
    return (*np.divmod(pair, cause_count), range_index, np.add.reduceat(time[order], first) if len(first) else time)


def _pieces(
    host: _Host, spans: IdleSpans, launcher: NDArray[np.int32], ranges: ThreadRanges | None, with_calls: bool
) -> Iterator[_Piece]:
    """Yield span, cause, range and time of each piece; ``launcher`` indexes ``host.threads``."""
    launchers = list(host.threads)
    # A thread often launches for all GPUs of a task; only gaps inside graphs differ.
    keys = [(task, device if (task, device) in host.graph_gaps else None) for task, device in spans.gpus]
    users = list(dict.fromkeys(keys))
    user_of_span = np.array([users.index(key) for key in keys], np.int64)[spans.gpu]
    groups, first, group = np.unique(user_of_span * len(launchers) + launcher, return_index=True, return_inverse=True)
    for group_index in np.argsort(first).tolist():
        user_index, launcher_index = divmod(int(groups[group_index]), len(launchers))
        (task, device), thread = users[user_index], launchers[launcher_index]
        rows = np.flatnonzero(group.reshape(-1) == group_index)
        idle = union(spans.starts[rows], spans.ends[rows])
        hull = Window(int(idle.starts[0]), int(idle.ends[-1]))
        active = ranges.of(task, thread, hull) if ranges is not None else None
        recorded = timeline = host.timeline(task, device, thread, idle)
        # GPUs of a process may be idle at once, but `pairs` needs disjoint spans.
        for disjoint in disjoint_runs(rows, spans.starts, spans.ends):
            inside = Intervals(spans.starts[disjoint], spans.ends[disjoint])
            if with_calls and thread is not None:
                timeline = one_after_the_other(host.beside_calls(thread, inside, recorded), recorded)
            pieces = pairs(inside, timeline)
            span, cause = disjoint[pieces.span], timeline.labels[pieces.segment]
            if active is None:
                yield span, cause, np.zeros(len(span), np.int64), pieces.ends - pieces.starts
            else:
                parts = pairs(Intervals(pieces.starts, pieces.ends), active)
                yield span[parts.span], cause[parts.span], active.labels[parts.segment], parts.ends - parts.starts


def _with_workers(spans: IdleSpans, workers: Mapping[Task, Task], margin: int) -> list[tuple[Task, int, int]]:
    """Return the process, start and end of each span, also for the worker processes of its process."""
    near = [(span.task, span.start - margin, span.end + margin) for span in spans]
    return near + [(worker, lo, hi) for worker, rank in workers.items() for task, lo, hi in near if task == rank]


@dataclass(eq=False)
class _Host:
    """The records of tasks with idle spans, and the causes encountered, with the index in `KINDS` of each."""

    cuda: Calls
    mpi: Calls
    overhead: Calls
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
    graph_gaps: Mapping[tuple[Task, int], Intervals]
    host_functions: Mapping[Task, Intervals]
    causes: dict[Cause, int] = field(default_factory=dict)
    kinds: list[int] = field(default_factory=list)
    threads: dict[Thread | None, int] = field(default_factory=dict)
    _functions: dict[Thread, Segments] = field(default_factory=dict)
    _call_texts: dict[int, str] = field(default_factory=dict)

    @classmethod
    def load(cls, job: OpenJob, spans: IdleSpans, margin: int, streams: Selection, in_portions: bool) -> _Host:
        session = job.session
        tasks = frozenset(task for task, _ in spans.gpus)
        hull = Window(int(spans.starts.min()) - margin, int(spans.ends.max()) + margin)
        workers = workers_by_rank(job, tasks)
        selection = Selection(hull, tasks | workers.keys())
        near, api_calls = _with_workers(spans, workers, margin) if len(spans) <= FEW else None, tables.api_calls
        cuda, callers = NO_CALLS, set[Thread]()
        if not in_portions:
            cuda = calls_of(session, api_calls, selection, near)
        elif session.count(api_calls):
            query = sa.select(api_calls.c.report, api_calls.c.thread).where(*where(api_calls, selection))
            callers.update(session.rows(query.where(api_calls.c.thread.is_not(None)).distinct()))
        mpi = calls_of(session, mpi_rows(session), selection, near)
        overhead = calls_of(session, tables.cuda_overhead, selection, near)
        os = calls_of(session, tables.os_calls, selection, near, tables.os_calls.c.chain)
        scheduling, samples = scheduling_of(session, selection), samples_of(session, selection)
        python = samples_of(session, selection, PYTHON)
        gil = gil_of(session, selection, near)
        threads = {*callers, *cuda.threads, *mpi.threads, *os.threads, *scheduling.threads, *samples.threads, *gil.held}
        usual = job.once(("usual threads", tasks), partial(usual_threads, session, tasks))
        names = {thread.thread: thread for thread in named_threads(job, threads | set(usual.values()))}
        launching, ending = (
            ({}, {}) if callers else launching_threads(session, tasks, spans.starts, spans.ends, near is not None)
        )
        return cls(
            cuda, mpi, overhead, os, scheduling, samples, python, gil, files_of(session, selection), names, launching,
            ending, usual, workers, os_callers(session, os.chains), profiler_overhead(session, selection),
            job.graph_gaps(streams), host_functions(session, sorted(tasks)),
        )  # fmt: skip

    def read_calls(self, session: Session, spans: IdleSpans, margin: int) -> None:
        """Read the CUDA calls and launches around ``spans``, replacing previous calls."""
        tasks = frozenset(task for task, _ in spans.gpus)
        hull = Window(int(spans.starts.min()) - margin, int(spans.ends.max()) + margin)
        if not self._call_texts and session.count(tables.api_calls):
            self._call_texts.update(texts_by_hash(session, tables.api_calls))
        selection, are_few = Selection(hull, tasks | set(self.workers)), len(spans) <= FEW
        near = _with_workers(spans, self.workers, margin) if are_few else None
        self.cuda = calls_of(session, tables.api_calls, selection, near, text_of=self._call_texts)
        self.launching, self.ending = launching_threads(session, tasks, spans.starts, spans.ends, are_few)

    def code(self, cause: Cause) -> int:
        if (code := self.causes.setdefault(cause, len(self.causes))) == len(self.kinds):
            self.kinds.append(causes.KINDS.index(cause.kind))
        return code

    def launchers(self, spans: IdleSpans) -> NDArray[np.int32]:
        """Return the index in ``threads`` of each span's thread; an unknown thread is ``None`` there."""
        indices = np.empty(len(spans), np.int32)
        for gpu, (task, device) in enumerate(spans.gpus):
            rows = np.flatnonzero(spans.gpu == gpu)
            threads = threads_at(self.launching, task, device, spans.ends[rows])
            is_unknown = threads == NO_THREAD
            threads[is_unknown] = threads_at(self.ending, task, device, spans.starts[rows[is_unknown]])
            for tid in np.unique(threads).tolist():
                thread = self.usual.get(task) if tid == NO_THREAD else (task.report, tid)
                indices[rows[threads == tid]] = self.threads.setdefault(thread, len(self.threads))
        return indices

    def timeline(self, task: Task, device: int | None, thread: Thread | None, inside: Intervals) -> Segments:
        """Return the causes over all of ``inside``; ``device`` is a GPU with gaps inside graphs."""
        siblings = (sibling for sibling in self._threads.get(task, ()) if sibling != thread)
        other_threads = [sibling for sibling in siblings if not self.names[sibling].name.startswith(PROFILERS)]
        workers = self._worker_threads.get(task, [])
        gaps = self.graph_gaps[task, device] if device is not None else EMPTY
        parts = {**causes_in_graphs(gaps, self.host_functions[task]), "": gaps}
        layers = [self._all(intersect(part, inside), Cause(causes.IN_GRAPH, what)) for what, part in parts.items()]
        layers.append(self._all(intersect(self.profiler.get(task, EMPTY), inside), Cause(causes.PROFILER)))
        states = NO_SEGMENTS
        if thread is not None:
            states = self._states(task, thread)
            calls = self._library_calls(thread, inside, "")
            is_sync = np.array(self.kinds, np.int64)[calls.labels] == causes.KINDS.index(causes.SYNCHRONISING)
            ran = intersect(self.host_functions[task], union(calls.starts[is_sync], calls.ends[is_sync]))
            layers += [self._all(ran, Cause(causes.IN_HOST_FUNCTION)), calls]
            layers += self._waiting_for_gil(thread, other_threads, inside)
            layers += self._working(workers, intersect(inside, self._in_os_calls(thread, _POLLS.fullmatch)))
            layers += [self._os_calls(thread, inside, lambda call: not _WAITS.search(call))]
            layers += [self._running(thread, inside, causes.RUNNING_CODE, ""), self._preempted(thread, inside)]
        layers += [self._calls_of_others(other_threads, inside), *self._working(other_threads, inside)]
        if thread is not None:
            waits = merge(self._in_os_calls(thread, _WAITS.search), states.labelled(BLOCKED, OFF))
            layers += self._working(workers, intersect(inside, waits))
            layers += [
                self._os_calls(thread, inside, lambda call: bool(_WAITS.search(call))),
                self._all(intersect(states.labelled(BLOCKED, OFF), inside), Cause(causes.OFF_CPU)),
            ]
        return one_after_the_other(*layers, self._all(inside, Cause(causes.NOTHING)))

    def beside_calls(self, thread: Thread, inside: Intervals, timeline: Segments) -> Segments:
        """Attribute unrecorded time to the nearest call within `BESIDE` of the span."""
        gaps = intersect(timeline.labelled(self.code(Cause(causes.NOTHING))), inside)
        calls = self._library_calls(thread, union(inside.starts - BESIDE, inside.ends + BESIDE), "")
        if not len(calls):
            return NO_SEGMENTS
        span, after = (np.searchsorted(times, gaps.starts, side="right") for times in (inside.starts, calls.starts))
        start, end = np.append(calls.starts, FAR)[after], np.insert(calls.ends, 0, -FAR)[after]
        has_next, has_last = start <= inside.ends[span - 1] + BESIDE, end >= inside.starts[span - 1] - BESIDE
        is_next = has_next & (~has_last | (start - gaps.ends <= gaps.starts - end))
        words = [cause.what for cause in self.causes]
        layers = []
        for word, is_chosen, call in (("before", is_next, after), ("after", has_last & ~is_next, after - 1)):
            part = gaps.chosen(is_chosen)
            labels, label_index = np.unique(calls.labels[call[is_chosen]], return_inverse=True)
            codes = [self.code(Cause(causes.NOTHING, f"{word} {words[label]}")) for label in labels.tolist()]
            layers.append(Segments(part.starts, part.ends, np.array(codes, np.int64)[label_index.reshape(-1)]))
        return one_after_the_other(*layers)

    def _states(self, task: Task, thread: Thread) -> Segments:
        """Return the scheduler's states of a thread over time.

        Before a first event that puts it on a CPU, and after a last event that takes it off, the thread is off the CPU
        while events of its process show that scheduling was recorded.
        """
        states = self.scheduling.threads.get(thread, NO_SEGMENTS)
        if not len(states):
            return states
        siblings = [self.scheduling.threads.get(sibling, NO_SEGMENTS) for sibling in self._threads.get(task, ())]
        first = min((sibling.starts[0] for sibling in siblings if len(sibling)), default=states.starts[0])
        last = max((sibling.ends[-1] for sibling in siblings if len(sibling)), default=states.ends[-1])
        low = first if states.labels[0] == RUNNING else states.starts[0]
        high = last if states.labels[-1] == RUNNING else states.ends[-1]
        return one_after_the_other(states, Segments(np.array([low]), np.array([high]), np.array([OFF])))

    @cached_property
    def _threads(self) -> Mapping[Task, list[Thread]]:
        return grouped((self.names[thread].task, thread) for thread in sorted(self.names))

    @cached_property
    def _worker_threads(self) -> Mapping[Task, list[Thread]]:
        threads: dict[Task, list[Thread]] = {}
        for worker, rank in self.workers.items():
            threads.setdefault(rank, []).extend(self._threads.get(worker, ()))
        return {rank: sorted(members) for rank, members in threads.items()}

    def _in_os_calls(self, thread: Thread, matches: Callable[[str], object]) -> Intervals:
        labels = [label for label, call in enumerate(self.os.names) if matches(call)]
        return self.os.threads.get(thread, NO_SEGMENTS).labelled(*labels)

    def _library_calls(self, thread: Thread, inside: Intervals, name: str) -> Segments:
        """Return the outermost MPI and CUDA calls, and the overhead that CUDA reports in them."""
        mpi = self._labelled(self.mpi, thread, inside, lambda call: Cause(causes.IN_MPI, call, name))
        cuda = self._labelled(self.cuda, thread, inside, lambda call: Cause(kind_of(call), call, name))
        overhead = self._labelled(self.overhead, thread, inside, lambda kind: Cause(causes.IN_OVERHEAD, kind, name))
        # MPI calls may contain CUDA calls, but not vice versa.
        return one_after_the_other(mpi, overhead, cuda)

    def _labelled(self, calls: Calls, thread: Thread, inside: Intervals, cause_of: Callable[[str], Cause]) -> Segments:
        segments = calls.threads.get(thread, NO_SEGMENTS).within(inside)
        if not len(segments):
            return NO_SEGMENTS
        labels, index = np.unique(segments.labels, return_inverse=True)
        codes = np.array([self.code(cause_of(calls.names[label])) for label in labels.tolist()], np.int64)
        return Segments(segments.starts, segments.ends, codes[index.reshape(-1)])

    def _os_calls(
        self, thread: Thread, inside: Intervals, matches: Callable[[str], bool], kind: str = IN_OS, name: str = ""
    ) -> Segments:
        segments = self.os.threads.get(thread, NO_SEGMENTS)
        callers = self.os_callers.get(thread[0], {})
        mask = np.array([*map(matches, self.os.names), False], bool)[segments.labels]
        chains = self.os.chains.get(thread, segments.labels)[mask]
        part = Segments(segments.starts[mask], segments.ends[mask], np.arange(int(mask.sum()))).within(inside)
        if not len(part):
            return NO_SEGMENTS
        keys = np.stack([segments.labels[mask][part.labels], chains[part.labels]])
        unique_keys, key_index = np.unique(keys, axis=1, return_inverse=True)
        # Calls from the same function may have different chains.
        groups: dict[tuple[str, str], int] = {}
        group_of_key = [
            groups.setdefault((self.os.names[call], callers.get(chain, "")), len(groups))
            for call, chain in unique_keys.T.tolist()
        ]
        call_groups = np.array(group_of_key, np.int64)[key_index.reshape(-1)]
        codes = np.empty(len(call_groups), np.int64)
        for (call, caller), index in groups.items():
            is_member = call_groups == index
            files = self.files.accessed(thread, Intervals(part.starts[is_member], part.ends[is_member]))
            codes[is_member] = self.code(Cause(kind, call, name, caller, files))
        return Segments(part.starts, part.ends, codes)

    def _running(self, thread: Thread, inside: Intervals, kind: str, name: str) -> Segments:
        """Return the running time by the function of the nearest sample."""
        if thread not in self._functions:
            sampled, states = self.samples.threads.get(thread), self.scheduling.threads.get(thread)
            self._functions[thread] = running_stretches(sampled, self.samples.period, states)
        segments = self._functions[thread].within(inside)
        if not len(segments):
            return NO_SEGMENTS
        segments, frames = self._with_frames(thread, segments)
        unique_keys, key_index = np.unique(np.stack([segments.labels, frames]), axis=1, return_inverse=True)
        trees = [cpu.stacks[thread[0]].tree if thread[0] in cpu.stacks else None for cpu in (self.samples, self.python)]
        codes = np.empty(unique_keys.shape[1], np.int64)
        for index, nodes in enumerate(unique_keys.T.tolist()):
            what, caller = (program_function(tree, node, _CALLS) for tree, node in zip(trees, nodes, strict=True))
            codes[index] = self.code(Cause(kind, what, name, caller if caller != what else ""))
        return Segments(segments.starts, segments.ends, codes[key_index.reshape(-1)] if len(codes) else segments.labels)

    def _with_frames(self, thread: Thread, segments: Segments) -> tuple[Segments, Ints]:
        """Split segments by the node of the thread's nearest Python sample, if any, else 0."""
        samples = None if thread[0] in self.samples.of_python else self.python.threads.get(thread)
        if samples is None:
            return segments, np.zeros(len(segments), np.int64)
        near = running_stretches(samples, self.python.period, None)
        inside = pairs(Intervals(segments.starts, segments.ends), near)
        outside = pairs(near.covered.gaps(-FAR, FAR), segments)
        starts, ends = (np.concatenate([getattr(cut, key) for cut in (inside, outside)]) for key in ("starts", "ends"))
        labels = segments.labels[np.concatenate((inside.span, outside.segment))]
        frames = np.concatenate((near.labels[inside.segment], np.zeros(len(outside.starts), np.int64)))
        order = np.argsort(starts, kind="stable")
        return Segments(starts[order], ends[order], labels[order]), frames[order]

    def _preempted(self, thread: Thread, inside: Intervals) -> Segments:
        """Return the runnable time by the thread that ran on its last CPU."""
        states = self.scheduling.threads.get(thread, NO_SEGMENTS)
        ready = intersect(states.labelled(RUNNABLE), inside)
        if not len(ready):
            return NO_SEGMENTS
        layers = []
        for cpu in np.unique(self.scheduling.places[thread][states.labels == RUNNABLE]).tolist():
            is_ready = (states.labels == RUNNABLE) & (self.scheduling.places[thread] == cpu)
            waiting = intersect(union(states.starts[is_ready], states.ends[is_ready]), inside)
            for other_thread, cpus in self.scheduling.cpus.items() if len(waiting) else ():
                if other_thread != thread and other_thread[0] == thread[0]:
                    ran = intersect(cpus.labelled(cpu), waiting)
                    if len(ran):
                        layers.append(self._all(ran, Cause(causes.PREEMPTED, self._name(other_thread))))
        layers.append(self._all(ready, Cause(causes.PREEMPTED)))
        return one_after_the_other(*layers)

    def _waiting_for_gil(self, thread: Thread, other_threads: Sequence[Thread], inside: Intervals) -> list[Segments]:
        waits, layers = intersect(self.gil.waited.get(thread, EMPTY), inside), []
        for holder in other_threads:
            held = intersect(self.gil.held.get(holder, EMPTY), waits)
            if len(held):
                name = self._name(holder)
                layers += [self._running(holder, held, causes.GIL, name), self._all(held, Cause(causes.GIL, "", name))]
        return [*layers, self._all(waits, Cause(causes.GIL))]

    def _calls_of_others(self, other_threads: Sequence[Thread], inside: Intervals) -> Segments:
        """Return MPI and CUDA calls of other threads; the first of `KINDS` wins."""
        calls = [self._library_calls(thread, inside, self._name(thread)) for thread in other_threads]
        kinds = np.array(self.kinds, np.int64)
        parts = [(part, kinds[part.labels]) for part in calls if len(part)]
        return one_after_the_other(*(
            Segments(part.starts[is_kind], part.ends[is_kind], part.labels[is_kind])
            for kind in range(len(causes.KINDS))
            for part, part_kinds in parts
            if (is_kind := part_kinds == kind).any()
        ))  # fmt: skip

    def _working(self, other_threads: Sequence[Thread], inside: Intervals) -> list[Segments]:
        """Return the running time of other threads, longest first, and their file reads."""
        if not len(inside):
            return []
        running = [self._running(thread, inside, causes.WAITING, self._name(thread)) for thread in other_threads]
        running.sort(key=lambda part: -int((part.ends - part.starts).sum()))
        reading = [
            self._os_calls(thread, inside, causes.FILE_READS.__contains__, causes.WAITING, self._name(thread))
            for thread in other_threads
            if thread in self.os.threads
        ]
        return [part for part in (*running, *reading) if len(part)]

    def _all(self, intervals: Intervals, cause: Cause) -> Segments:
        return Segments(intervals.starts, intervals.ends, np.full(len(intervals), self.code(cause)))

    def _name(self, thread: Thread) -> str:
        host_thread = self.names.get(thread)
        return host_thread.words(host_thread.task in self.workers) if host_thread is not None else ""
