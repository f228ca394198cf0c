"""``nsystui ncu``: the commands that have Nsight Compute profile kernels of the selection."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from nsystui.base.errors import UsageError
from nsystui.commands import arguments as shared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsystui.base.selection import Selection
    from nsystui.questions.job.job import OpenJob
    from nsystui.questions.trace.ncu import NcuCommand

DESCRIPTION = """The `ncu` commands that have Nsight Compute profile kernels of the selection, one for each kernel of
each rank, those with most time first: a line of comment, then the command, with -k regex:…, and where not every launch
of the name is selected --launch-skip and --launch-count, from their place among the launches of that name in their
process. Each rank writes a report of its own where the captured environment tells the variable with the rank. With
--wrapper a shell script that profiles the kernel with most time of each selected rank and runs the other ranks as
always. With --format (or -o, --sort) a table. Nothing is run, and the words after the application's name are yours to
fill in."""
EXAMPLES = """  nsystui ncu rank0.sqlite
  nsystui ncu rank0.sqlite --kernel '/^ampere_sgemm/' --launch 5
  nsystui ncu rank*.sqlite --ranks 3 --kernel softmax --time 1.2s:1.3s
  nsystui ncu rank0.sqlite --set full --section PmSampling
  nsystui ncu rank*.sqlite --ranks 3 --kernel softmax --wrapper > ncu-ranks.sh
  nsystui ncu rank0.sqlite --event 4711"""

_SHOWN = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from nsystui.questions.capture.recording import LAUNCHERS

    shared.add_files(parser)
    group = parser.add_argument_group("kernels")
    group.add_argument(
        "--kernel",
        metavar="TEXT",
        help="kernels whose name contains TEXT; !TEXT does not; /TEXT/ a regular expression (the same as --filter)",
    )
    which = group.add_mutually_exclusive_group()
    which.add_argument("--launch", type=int, metavar="N", help="the N-th launch of each, from 1, in its process")
    which.add_argument(
        "--event", type=int, metavar="ROW", help="the launch of this row, as `nsystui events --format csv` has it"
    )
    group.add_argument(
        "--base",
        choices=("function", "demangled", "mangled"),
        help="what ncu matches names with (default: function, or mangled for one of several instances of a template)",
    )
    group = parser.add_argument_group("Nsight Compute")
    group.add_argument("--set", metavar="NAME", help="the set of sections that ncu collects, such as full")
    group.add_argument(
        "--section", metavar="NAME", action="append", default=[], help="a section that ncu collects (repeatable)"
    )
    group.add_argument(
        "--wrapper", action="store_true", help="print a shell script for a job of several ranks (see --ranks)"
    )
    group.add_argument(
        "--launcher",
        choices=tuple(LAUNCHERS),
        help="what starts the ranks (default: the one whose variable is in the captured environment)",
    )
    shared.add_selection(parser)
    shared.add_format(parser)


def run(arguments: argparse.Namespace) -> int:
    from nsystui.questions.trace.ncu import ncu_table

    if arguments.kernel and arguments.filter:
        raise UsageError("--kernel and --filter are the same: give one of them")
    if arguments.launch is not None and arguments.launch < 1:
        raise UsageError(f"--launch {arguments.launch}: launches count from 1")
    if arguments.wrapper and (arguments.format or arguments.sort or shared.to_file(arguments)):
        raise UsageError("--wrapper prints a script: send it to a file with > ncu-ranks.sh, without -o and --format")
    for word in (arguments.set or "", *arguments.section):
        if not word.isprintable():
            raise UsageError(f"--set, --section: {word!r} is no name")
    arguments.filter = arguments.filter or arguments.kernel
    job = shared.open_job(arguments, whole=False)
    try:
        selection = shared.selection_of(arguments, job)
        commands = _with_options(arguments, _commands(arguments, job, selection))
        if arguments.format or arguments.sort or shared.to_file(arguments):
            return shared.deliver(arguments, ncu_table(job, commands))
        if arguments.wrapper:
            return _print_wrapper(arguments, job, commands)
        return _print(job, commands, _SHOWN if arguments.top is None else arguments.top)
    finally:
        job.close()


def _commands(arguments: argparse.Namespace, job: OpenJob, selection: Selection) -> list[NcuCommand]:
    from nsystui.questions.trace.ncu import NameBase, ncu_commands, one_launch

    base = NameBase(arguments.base) if arguments.base else None
    if arguments.event is not None:
        reports = job.session.reports
        if len(reports) > 1:
            raise UsageError("--event needs one FILE: each counts its rows by itself")
        commands = ncu_commands(job, selection, one_launch(reports[0].index, arguments.event), base)
        if not commands:
            raise UsageError(f"--event {arguments.event}: no kernel of the selection is in this row")
        return commands
    commands = ncu_commands(job, selection, base=base)
    if arguments.launch is None:
        return commands
    launched = [one.only(arguments.launch) for one in commands if arguments.launch <= one.launches]
    if commands and not launched:
        most = max(one.launches for one in commands)
        raise UsageError(f"--launch {arguments.launch}: there are {most:,} launches at most")
    return launched


def _with_options(arguments: argparse.Namespace, commands: list[NcuCommand]) -> list[NcuCommand]:
    """The commands with the words of --set, --section and --launcher."""
    from dataclasses import replace

    from nsystui.questions.capture.recording import LAUNCHERS

    collected = ["--set", arguments.set] if arguments.set else []
    for section in arguments.section:
        collected += ["--section", section]
    variable = LAUNCHERS[arguments.launcher][0] if arguments.launcher else None
    return [
        replace(one, collected=tuple(collected), variable=one.variable if variable is None else variable)
        for one in commands
    ]


def _print_wrapper(arguments: argparse.Namespace, job: OpenJob, commands: Sequence[NcuCommand]) -> int:
    from nsystui.output.files import print_lines
    from nsystui.questions.capture.recording import LAUNCHERS
    from nsystui.questions.trace.ncu import cautions, launcher_of_job
    from nsystui.questions.trace.ncu_wrapper import first_of_each_rank, wrapper_script

    chosen = first_of_each_rank(commands)
    if not chosen:
        return _print(job, [], 0)
    launcher = arguments.launcher or launcher_of_job(job)
    if launcher is None:
        raise UsageError(
            "--wrapper: no captured environment has the ranks of this job: say what starts them, --launcher "
            + "|".join(LAUNCHERS)
        )
    print_lines(wrapper_script(chosen, launcher))
    for note in cautions(chosen, is_wrapped=True):
        shared.say_note(note)
    numbers = {one.source for one in job.ranks}
    if arguments.launcher and arguments.launcher != launcher_of_job(job):
        shared.say_note(
            f"the ranks are numbered by {', '.join(sorted(numbers))}: see that {LAUNCHERS[launcher][0]} counts the same"
        )
    left = len({(one.kernel, one.base) for one in commands} - {(one.kernel, one.base) for one in chosen})
    if left:
        shared.say_note(
            f"{left:,} more {'kernel' if left == 1 else 'kernels'}: a run profiles one kernel of each rank, the one "
            "with most time that is not of NCCL; --kernel chooses another"
        )
    return 0


def _print(job: OpenJob, commands: Sequence[NcuCommand], limit: int) -> int:
    from nsystui.output.files import print_lines
    from nsystui.questions.trace.ncu import cautions, ncu_table

    print_lines(line for one in commands[:limit] for line in (f"# {one.what}", one.command))
    if not commands:
        notes = ncu_table(job, commands).notes
        for note in notes or ("no kernel in the selection",):
            shared.complain(f"note: {note}")
        return 3 if notes else 0
    for note in cautions(commands[:limit]):
        shared.complain(f"note: {note}")
    if len(commands) > limit:
        shared.complain(f"note: {len(commands) - limit:,} more commands: --top, --kernel and --ranks choose")
    return 0
