"""``nsystui export``: a trace of the selection, or the call stacks in it, for another tool."""

from __future__ import annotations

import argparse
import sys
from typing import BinaryIO, cast

from nsystui.base.errors import UsageError
from nsystui.commands import arguments as shared
from nsystui.commands.request import OutputName, Request

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
    from nsystui.questions.kernels.summary import Names
    from nsystui.questions.trace.slices import Contents

    args = request.args
    if args["stacks"]:
        return _export_stacks(request)
    target = args["trace"] or args["paraver"]
    _check_target(request, target)
    contents = Contents.of(args["kinds"])
    job = shared.open_job(request, times=True)
    try:
        from nsystui.questions.trace.trace import Trace

        with job.session.waiting("trace"):
            trace = Trace.of(job, shared.selection_of(request.selecting, job), contents, Names(args["names"]))
        if target == "-":
            from nsystui.output.chrome_trace import write_chrome_trace
            from nsystui.output.files import refuse_empty
            from nsystui.output.pipe import quiet_pipe

            refuse_empty(trace)
            with quiet_pipe() as stream:
                rows = write_chrome_trace(trace, cast("BinaryIO", getattr(stream, "buffer", sys.stdout)))
        else:
            from nsystui.output.files import save_trace

            with job.session.waiting("trace"):
                rows = save_trace(trace, target, request.output.force)
    finally:
        job.close()
    shared.complain(f"wrote {rows:,} events to {'standard output' if target == '-' else target}")
    for note in (trace.clock, *trace.notes):
        if note:
            shared.complain(f"note: {note}")
    return 0


def _export_stacks(request: Request) -> int:
    from nsystui.output.files import refuse_existing
    from nsystui.output.pipe import quiet_pipe
    from nsystui.output.stacks import check_stacks_ending, refuse_no_samples, save_stacks, write_collapsed

    target = request.args["stacks"]
    if target != "-":
        check_stacks_ending(target)
        if not request.output.force:
            refuse_existing(target)
    job = shared.open_job(request, times=True)
    try:
        from nsystui.questions.host.functions import samples_of
        from nsystui.questions.host.naming import named_threads

        with job.session.waiting("samples"):
            samples = samples_of(job.session, shared.selection_of(request.selecting, job))
        threads = named_threads(job, samples.threads)
        full_names = request.args["names"] != "short"
        refuse_no_samples(samples)
        if target == "-":
            with quiet_pipe() as stream:
                output = cast("BinaryIO", getattr(stream, "buffer", sys.stdout))
                rows = write_collapsed(samples, threads, output, full_names)
        else:
            rows = save_stacks(samples, threads, target, request.output.force, full_names)
    finally:
        job.close()
    shared.complain(f"wrote {rows:,} samples to {'standard output' if target == '-' else target}")
    return 0


def _check_target(request: Request, target: str) -> None:
    from nsystui.output.files import PARAVER, check_ending, refuse_existing, trace_files

    if request.args["paraver"] and not target.lower().endswith(PARAVER):
        raise UsageError(f"--paraver {target}: the name ends in .prv or .prv.gz")
    if target == "-":
        return
    check_ending(target)
    if not request.output.force:
        for file in trace_files(target):
            refuse_existing(file)
