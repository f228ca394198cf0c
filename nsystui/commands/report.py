"""``nsystui report``: all of a job on one page, for somebody else."""

import argparse
from contextlib import ExitStack
from dataclasses import replace

from nsystui.base.errors import UsageError
from nsystui.base.text import shell_word
from nsystui.commands import arguments as shared
from nsystui.commands.request import Output, Request

DESCRIPTION = """All of a job on one page, to send or to keep: where the time went, the findings with their evidence,
GPUs over time, ranks, steps, kernels, NCCL with its bandwidth, NVTX ranges, efficiency, why the GPUs were idle, and
what was recorded with which versions. The numbers are those of the commands and screens.
It is one HTML file that loads nothing from anywhere and runs offline, dark or light, in print too.

With --baseline it begins with what changed from that job (A) to this one (B), as in `nsystui triage` and in
`nsystui diff`. A report has names of kernels, ranges, functions, hosts and files, and the profiled command without its
arguments; --anonymous replaces hosts, files, paths, commands, users and all names that may be secret with numbers."""
EXAMPLES = """  nsystui report rank*.sqlite -o report.html
  nsystui report rank*.sqlite --time 1.2s:1.5s --ranks 0-3 -o part.html
  nsystui report new/ --baseline old/ -o change.html
  nsystui report rank*.sqlite --anonymous -o for-the-forum.html"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from nsystui.commands.triage import add_baseline, add_thresholds

    shared.add_files(parser)
    group = parser.add_argument_group("report")
    add_baseline(group)
    group.add_argument("--anonymous", action="store_true", help="numbers instead of all names that may be secret")
    add_thresholds(group)
    shared.add_steps(group)
    shared.add_selection(parser)
    output = parser.add_argument_group("output")
    shared.add_target(output, "FILE", "write to FILE (.html)", required=True)
    output.add_argument("--force", action="store_true", help="overwrite a file")
    output.add_argument("--top", type=int, metavar="N", help="rows of long tables (default: 20)")


def _check_output(output: Output) -> None:
    """Raise UsageError, and OutputError if the file exists, before the work begins."""
    from nsystui.output.files import refuse_existing

    if output.top is not None and output.top < 1:
        raise UsageError(f"--top {output.top}: at least one row is needed")
    if not str(output.target).lower().endswith((".html", ".htm")):
        raise UsageError(f"{output.target}: a report is an HTML page, .html; triage -o FILE.md writes Markdown")
    if not output.force:
        refuse_existing(str(output.target))


def run(request: Request) -> int:
    from nsystui.questions.triage.thresholds import Thresholds

    args, target = request.args, str(request.output.target)
    thresholds = Thresholds().changed(args["set"])
    _check_output(request.output)
    from nsystui.commands.progress import ProgressLine
    from nsystui.output.files import save_text
    from nsystui.output.html import page
    from nsystui.questions.compare.side import Side, job_labels
    from nsystui.questions.report.anonymous import BASELINE, anonymous
    from nsystui.questions.report.report import TOP, Asked, job_report
    from nsystui.store.session import Computation
    from nsystui.ui.pictures.selection import describe

    with ExitStack() as stack, ProgressLine() as line:
        job, selection = stack.enter_context(shared.opened(request, times=True, line=line))
        selected = "" if selection.is_everything else describe(selection, job.ranks)
        given = [(name, value) for name, value in vars(request.selecting).items() if value is not None]
        flags = " ".join(f"--{name} {shell_word(value)}" for name, value in given)
        top, baseline = request.output.top or TOP, None
        asked = Asked(job, selection, selected, flags, top, args["step_range"], thresholds)
        if args["baseline"]:
            other = replace(request, opening=replace(request.opening, files=args["baseline"]))
            old, old_selection = stack.enter_context(shared.opened(other, times=True, line=line))
            _, label = job_labels((job, old), (request.opening.files, args["baseline"]))
            baseline = Side(old, old_selection, BASELINE if args["anonymous"] else label)
        with line.waiting("report"):
            report = job_report(
                asked, baseline,
                lambda done, total, part: line.show_computing(Computation(f"report ({part})", done, total, "sections"))
            )  # fmt: skip
        request.unread.extend(report.unread)
        if args["anonymous"]:
            report = anonymous(report, [job, *([baseline.job] if baseline is not None else [])])
        save_text(page(report), target, request.output.force)
    shared.complain(f"wrote the report to {target}")
    return 0
