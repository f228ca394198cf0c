"""``nsystui export``: a trace of the selection, or the call stacks in it, for another tool."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, cast

from nsystui.base.errors import UsageError
from nsystui.commands import arguments as shared
from nsystui.commands.request import OutputName, Request

if TYPE_CHECKING:
    from nsystui.base.selection import Selection
    from nsystui.questions.job.job import OpenJob
    from nsystui.questions.trace.slices import Contents

DESCRIPTION = """A trace of the selection for another tool, all reports on the job's clock. .json and .json.gz are
Chrome's Trace Events, for ui.perfetto.dev and chrome://tracing: processes are ranks, tracks are streams and, for each
thread, API calls, NVTX domains and NCCL, with arrows from calls to their work and GPU metrics as counters. .prv and
.prv.gz are Paraver's, with .pcf, .row and views (.cfg) beside it: tasks are ranks, threads are CPU threads and streams.
An event that overlaps the window of --time is written whole. With --stacks, the call stacks of CPU samples: .json and
.json.gz are speedscope's, .txt, .folded and .collapsed are collapsed stacks, for flame graphs. No file is overwritten
without --force."""
EXAMPLES = """  nsystui export --trace job.json.gz rank*.sqlite
  nsystui export --trace step12.json.gz rank*.sqlite --time 1.2s:1.5s --ranks 0,3
  nsystui export --paraver job.prv rank*.sqlite --kinds kernel,nccl,nvtx
  nsystui export --trace - rank0.sqlite | gzip > rank0.json.gz
  nsystui export --stacks rank0.json rank0.sqlite --time 1.2s:1.5s
  nsystui export --stacks - rank*.sqlite | flamegraph.pl > job.svg"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_files(parser)
    group = parser.add_argument_group("trace")
    target = group.add_mutually_exclusive_group(required=True)
    target.add_argument(
        "--trace",
        type=OutputName,
        metavar="FILE",
        help="write FILE (.json .json.gz .prv .prv.gz); - is stdout, as Chrome's JSON",
    )
    target.add_argument(
        "--paraver", type=OutputName, metavar="FILE.prv", help="the same, for Paraver's files alone (.prv .prv.gz)"
    )
    target.add_argument(
        "--stacks",
        type=OutputName,
        metavar="FILE",
        help="call stacks of CPU samples (.json .json.gz speedscope; .txt .folded .collapsed); - is stdout, collapsed",
    )
    group.add_argument("--force", action="store_true", help="overwrite files")
    group.add_argument(
        "--kinds",
        default="",
        metavar="LIST",
        help="kinds of events, separated by commas: kernel, nccl, memory, graph, api, nvtx, mark, mpi, ucx, openacc, "
        "openmp, overhead, metrics; os only when asked for (default: all the others)",
    )
    group.add_argument("--names", choices=("full", "short", "mangled"), default="short", help="which kernel names")
    shared.add_selection(parser)


def run(request: Request) -> int:
    from nsystui.output.pipe import quiet_pipe
    from nsystui.questions.trace.slices import Contents

    args = request.args
    target = args["stacks"] or args["trace"] or args["paraver"]
    _check_target(request, target)
    prepare: Callable[[Request, OpenJob, Selection], _Content] = _stacks
    if not args["stacks"]:
        prepare = partial(_trace, Contents.of(args["kinds"]))
    with shared.opened(request, times=True) as (job, selection):
        content = prepare(request, job, selection)
        if target == "-":
            with quiet_pipe() as stream:
                text = SimpleNamespace(write=lambda data: stream.write(data.decode()))  # text only
                rows = content.write(cast("BinaryIO", getattr(stream, "buffer", text)))
        else:
            with job.session.waiting("stacks" if args["stacks"] else "trace"):
                rows = content.save(target, request.output.force)
    shared.complain(f"wrote {rows:,} {content.counted} to {'standard output' if target == '-' else target}")
    shared.say_notes(*filter(None, content.notes))
    return 0


class _Content(NamedTuple):
    """What is exported: it writes itself to stdout or to a file, and returns the number of its events."""

    counted: str
    write: Callable[[BinaryIO], int]
    save: Callable[[str, bool], int]
    notes: Sequence[str] = ()


def _trace(contents: Contents, request: Request, job: OpenJob, selection: Selection) -> _Content:
    from nsystui.output.chrome_trace import write_chrome_trace
    from nsystui.output.files import refuse_empty, save_trace
    from nsystui.questions.kernels.summary import Names
    from nsystui.questions.trace.trace import Trace

    with job.session.waiting("trace"):
        trace = Trace.of(job, selection, contents, Names(request.args["names"]))
    refuse_empty(trace)
    notes = (trace.clock, *trace.notes)
    return _Content("events", partial(write_chrome_trace, trace), partial(save_trace, trace), notes)


def _stacks(request: Request, job: OpenJob, selection: Selection) -> _Content:
    from nsystui.output.stacks import refuse_no_samples, save_stacks, write_collapsed
    from nsystui.questions.host.functions import samples_of
    from nsystui.questions.host.naming import named_threads

    with job.session.waiting("samples"):
        samples = samples_of(job.session, selection)
    refuse_no_samples(samples)
    threads, full_names = named_threads(job, samples.threads), request.args["names"] != "short"
    write = partial(write_collapsed, samples, threads, full_names=full_names)
    return _Content("samples", write, partial(save_stacks, samples, threads, full_names=full_names))


def _check_target(request: Request, target: str) -> None:
    from nsystui.output.files import PARAVER, check_ending, refuse_existing, trace_files
    from nsystui.output.stacks import check_stacks_ending

    if request.args["paraver"] and not target.lower().endswith(PARAVER):
        raise UsageError(f"--paraver {target}: the name ends in .prv or .prv.gz")
    if target == "-":
        return
    (check_stacks_ending if request.args["stacks"] else check_ending)(target)
    for file in () if request.output.force else (target,) if request.args["stacks"] else trace_files(target):
        refuse_existing(file)
