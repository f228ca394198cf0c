"""``nsystui export``: a trace of the selection for another tool."""

import argparse
from types import SimpleNamespace
from typing import BinaryIO, cast

from nsystui.base.errors import UsageError
from nsystui.base.terminal import quiet_pipe
from nsystui.base.text import counted
from nsystui.commands import arguments as shared
from nsystui.commands.request import OutputName, Request

DESCRIPTION = """A trace of the selection for another tool, all reports on the job's clock. .json and .json.gz are
Chrome's Trace Events, for ui.perfetto.dev and chrome://tracing: processes are ranks, tracks are streams and, for each
thread, API calls, NVTX domains and NCCL, with arrows from calls to their work and GPU metrics as counters. .prv and
.prv.gz are Paraver's, with .pcf, .row and views (.cfg) beside it: tasks are ranks, threads are CPU threads and streams.
An event that overlaps the window of --time is written whole. No file is overwritten without --force."""
EXAMPLES = """  nsystui export --trace job.json.gz rank*.sqlite
  nsystui export --trace step12.json.gz rank*.sqlite --time 1.2s:1.5s --ranks 0,3
  nsystui export --paraver job.prv rank*.sqlite --kinds kernel,nccl,nvtx
  nsystui export --trace - rank0.sqlite | gzip > rank0.json.gz"""


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
    from nsystui.output.chrome_trace import write_chrome_trace
    from nsystui.output.files import PARAVER, check_ending, refuse_empty, refuse_existing, save_trace, trace_files
    from nsystui.questions.kernels.summary import Names
    from nsystui.questions.trace.slices import Contents
    from nsystui.questions.trace.trace import Trace

    args = request.args
    target = args["trace"] or args["paraver"]
    if args["paraver"] and not target.lower().endswith(PARAVER):
        raise UsageError(f"--paraver {target}: the name ends in .prv or .prv.gz")
    if target != "-":
        check_ending(target)
        for file in () if request.output.force else trace_files(target):
            refuse_existing(file)
    contents = Contents.of(args["kinds"])
    with shared.opened(request, times=True) as (job, selection):
        with job.session.waiting("trace"):
            trace = Trace.of(job, selection, contents, Names(args["names"]))
        refuse_empty(trace)
        if target == "-":
            with quiet_pipe() as stream:
                text = SimpleNamespace(write=lambda data: stream.write(data.decode()))  # text only
                rows = write_chrome_trace(trace, cast("BinaryIO", getattr(stream, "buffer", text)))
        else:
            with job.session.waiting("trace"):
                rows = save_trace(trace, target, request.output.force)
    shared.complain(f"wrote {counted(rows, 'event')} to {'standard output' if target == '-' else target}")
    shared.say_notes(*filter(None, (trace.clock, *trace.notes)))
    return 0
