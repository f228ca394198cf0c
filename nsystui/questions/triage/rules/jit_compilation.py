r"""Compilers that run while a GPU is idle, by the stacks of CPU samples, the names of processes and NVTX ranges.

The time of a thread goes to its nearest sample, as in `host.causes`; the cost is |U(compiling) ∩ idle| of the process
of a GPU, and of compilers that it started.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.answer import COUNT, RANK, Column, Row, TableAnswer
from nsystui.base.selection import Task
from nsystui.exports import canonical
from nsystui.questions.algebra.intervals import Intervals, intersect, merge, union
from nsystui.questions.host.causes import running_stretches
from nsystui.questions.host.functions import samples_of
from nsystui.questions.host.naming import named_threads
from nsystui.questions.host.segments import scheduling_of
from nsystui.questions.host.stacks import Function, StackTree, stacks_of
from nsystui.questions.nvtx.loading import FOLDED_LABEL
from nsystui.questions.queries.conditions import where
from nsystui.questions.triage.case import Case, number_of, spans, time_words
from nsystui.questions.triage.finding import Advice, Door, Finding, NotChecked, Severity
from nsystui.store import tables

_NAME = "jit-compilation"
_COMPILERS = {
    "PTX": re.compile(r"ptxas|ptxjit|nvptxcompiler|nvJitLink", re.IGNORECASE),
    "NVRTC": re.compile(r"nvrtc|libnvvm|\bcicc\b", re.IGNORECASE),
    "Triton": re.compile(r"libtriton\b|triton[./]compiler"),
    "XLA": re.compile(r"xla::.*(?:Compil|HloPass)"),
    "LLVM": re.compile(r"libLLVM|llvm::|mlir::", re.IGNORECASE),
    "a C++ compiler": re.compile(r"\b(?:nvcc|cc1plus|cudafe\+\+|fatbinary)\b"),
}
"""Words in the names of modules, functions and programs; of several in a stack the first of these."""
_IN_RANGES = {
    "PTX": "ptx",
    "NVRTC": "nvrtc",
    "Triton": "triton",
    "LLVM": "llvm",
    "XLA": "xla|hlo",
    "Inductor": "inductor|compile_fx|async_?compile",
}
"""Words in the names of NVTX ranges."""
_COMPILES = re.compile(r"compil(?!ed)", re.IGNORECASE)
"""Of a range that is not named like a compiler alone: those of compiled kernels have its name too."""
_ADVICE = {
    "PTX": "build for this GPU's architecture (-gencode, TORCH_CUDA_ARCH_LIST), so that no PTX is left to "
    "compile; keep the driver's cache (CUDA_CACHE_PATH, CUDA_CACHE_MAXSIZE)",
    "Triton": "keep Triton's cache from run to run (TRITON_CACHE_DIR), and warm up before what is measured",
    "XLA": "keep XLA's compilation cache (jax_compilation_cache_dir), and avoid new shapes, which are compiled again",
}
_USUAL = "keep the compiler's cache from run to run, avoid shapes that change, and warm up before what is measured"
_COLUMNS = (
    RANK,
    Column("compiler", header="Compiler", label="compiler"),
    Column("thread", header="Thread or NVTX Range", label="thread or range"),
    COUNT,
)


class _Compiling(NamedTuple):
    """When compilers ran, by process (or report, of a process that is no rank) and compiler; the rows of evidence."""

    times: Mapping[tuple[object, str], list[Intervals]]
    rows: Sequence[Row]


_NONE = _Compiling({}, ())


def check(case: Case) -> Sequence[Finding | NotChecked]:
    is_sampled = case.job.session.count(tables.host_samples) > 0
    in_samples, in_ranges = (_in_samples(case) if is_sampled else _NONE), _in_ranges(case)
    if not case.devices or not (is_sampled or in_ranges.rows):
        return [NotChecked(_NAME, f"needs GPU work and CPU samples: {canonical.HOST_SAMPLES.record}")]
    times = {
        key: [*in_samples.times.get(key, ()), *in_ranges.times.get(key, ())]
        for key in (*in_samples.times, *in_ranges.times)
    }
    names = dict.fromkeys(name for _, name in times)
    spent = dict.fromkeys(names, 0)
    when, later = {}, 0
    for device in case.devices:
        task, idle = device.device.task.task, device.idle(case.window_of(device))
        found = {
            name: merge(*(part for owner in (task, task.report) for part in times.get((owner, name), ())))
            for name in names
        }
        for name, part in found.items():
            spent[name] += intersect(part, idle).length
        compiling_now = intersect(merge(*found.values()), idle)
        when[task, device.device.device] = compiling_now
        later += case.idle(device).shared_with(compiling_now)
    cost = case.mean(own.length for own in when.values())
    if case.percent(cost) < case.thresholds.jit_percent:
        return []
    longest = sorted((name for name in names if spent[name]), key=lambda name: -spent[name])
    each = ", ".join(f"{name} {time_words(case.mean([spent[name]]))}" for name in longest[:3])
    rows = sorted([*in_samples.rows, *in_ranges.rows], key=lambda row: (-int(row[3] or 0), str(row)))
    counts = ((in_samples.rows, "CPU sample"), (in_ranges.rows, "NVTX range"))
    seen = " and ".join(number_of(sum(int(row[3] or 0) for row in own), what) for own, what in counts if own)
    sentence = f"GPUs are idle for {time_words(cost)} each while code is compiled ({each}; {seen})"
    advice = Advice(
        _ADVICE.get(longest[0], _USUAL), "what is compiled when it is first used makes the GPU wait; later uses do not"
    )
    measured = "time around CPU samples in compilers and in their NVTX ranges, of the processes of the GPUs and beside"
    evidence, share = TableAnswer(_NAME, _COLUMNS, rows, len(rows)), case.percent(cost)
    # Before the first operation it is part of the start-up, which every program has.
    is_later = case.percent(case.mean([later])) >= case.thresholds.jit_percent
    severity = Severity.WARNING if is_later else Severity.INFO
    gist = f"just-in-time compilation ({longest[0]}) {share:.1f} %"
    door = Door("call tree" if in_samples.rows else "nvtx")
    return [Finding(_NAME, severity, sentence, advice, door, cost, share, measured, evidence, gist=gist, times=when)]


def _in_samples(case: Case) -> _Compiling:
    """By the stacks of CPU samples and the names of processes."""
    session = case.job.session
    stacks = stacks_of(session, [report for report in case.reports if report.count(tables.host_samples)])
    kinds = {report: _kinds(one.tree) for report, one in stacks.items()}
    if not any(own.any() for own in kinds.values()):
        return _NONE  # cheaper than to read every sample
    samples, scheduling = samples_of(session, case.chosen.with_tasks(None)), scheduling_of(session, case.chosen)
    times: dict[tuple[object, str], list[Intervals]] = {}
    rows: list[Row] = []
    names = list(_COMPILERS)
    for thread in named_threads(case.job, samples.threads):
        own, report = samples.threads[thread.thread], thread.thread[0]
        compiling = kinds[report][own.nodes]
        if not compiling.any():
            continue
        stretches = running_stretches(own, samples.period, scheduling.threads.get(thread.thread))
        labels = kinds[report][stretches.labels]
        # A compiler that is a process of its own works for every rank of its report.
        owner: object = thread.task if thread.rank is not None else report
        for number in np.unique(compiling[compiling > 0]).tolist():
            is_own = labels == number
            part = union(stretches.starts[is_own], stretches.ends[is_own])
            times.setdefault((owner, names[number - 1]), []).append(part)
            rows.append(
                (thread.rank, names[number - 1], f"{thread.name} {thread.tid}", int((compiling == number).sum()))
            )
    return _Compiling(times, rows)


def _in_ranges(case: Case) -> _Compiling:
    """By the names of NVTX ranges."""
    session, table = case.job.session, tables.nvtx_ranges
    if not session.count(table):
        return _NONE
    columns, conditions = table.c, where(table, case.chosen)
    names = [str(name) for (name,) in session.rows(sa.select(FOLDED_LABEL).where(*conditions).distinct()) if name]
    times: dict[tuple[object, str], list[Intervals]] = {}
    rows: list[Row] = []
    for compiler, words in _IN_RANGES.items():
        word = re.compile(words, re.IGNORECASE)
        own = [name for name in names if word.fullmatch(name) or (word.search(name) and _COMPILES.search(name))]
        if not own:
            continue
        is_own = FOLDED_LABEL.in_(own)
        for (task, _), part in spans(case, table, [is_own]).merged.items():
            times.setdefault((task if task in case.rank_of else task.report, compiler), []).append(part)
        query = sa.select(columns.report, columns.process, FOLDED_LABEL, sa.func.count())
        query = query.where(*conditions, is_own).group_by(columns.report, columns.process, FOLDED_LABEL)
        rows += [
            (case.rank_of.get(Task(report, process)), compiler, name, count)
            for report, process, name, count in session.rows(query)
        ]
    return _Compiling(times, rows)


def _kinds(tree: StackTree) -> NDArray[np.int64]:
    """The compiler in the stack of each node: 1 for the first of `_COMPILERS`, 0 for none."""
    own = np.array([_kind(one) for one in tree.functions] or [0], np.int64)
    found = np.where(tree.function >= 0, own[tree.function], 0)
    for first, last in pairwise([*tree.levels.tolist()[1:], len(tree)]):
        above = found[tree.parent[first:last]]
        here = found[first:last]
        found[first:last] = np.where((here == 0) | ((above > 0) & (above < here)), above, here)
    return found


def _kind(function: Function) -> int:
    words = f"{function.library} {function.name}"
    return next((number for number, one in enumerate(_COMPILERS.values(), 1) if one.search(words)), 0)
