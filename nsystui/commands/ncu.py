"""``nsystui ncu``: commands that profile kernels of the selection with Nsight Compute."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from nsystui.base.errors import UsageError, no_such_name
from nsystui.base.selection import Selection
from nsystui.base.text import counted
from nsystui.commands import arguments as shared
from nsystui.commands.request import Request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsystui.questions.job.job import OpenJob
    from nsystui.questions.trace.ncu import NcuCommand

DESCRIPTION = """Prints the `ncu` commands that profile the selected kernels with Nsight Compute, one for each kernel of
each rank, those with most time first. A command has -k regex:… and, if only some launches of the name are selected,
--launch-skip and --launch-count, which count the launches of that name in the process. Each rank writes its own report
if the captured environment has the variable with the rank. With --format (or -o, --sort) it prints a table. Nothing is
run; fill in the arguments of your application."""
EXAMPLES = """  nsystui ncu rank0.sqlite
  nsystui ncu rank0.sqlite --filter '/^ampere_sgemm/' --launch 5
  nsystui ncu rank*.sqlite --ranks 3 --filter softmax --time 1.2s:1.3s
  nsystui ncu rank0.sqlite --set full --section PmSampling
  nsystui ncu rank0.sqlite --event 4711"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from nsystui.questions.capture.recording import LAUNCHERS

    shared.add_files(parser)
    group = parser.add_argument_group("kernels")
    group.add_argument(
        "--instances", "--kernel", metavar="NAME", help="the launches of the kernel of this (full, smart or short) name"
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
        "--launcher",
        choices=tuple(LAUNCHERS),
        help="what starts the ranks (default: the launcher whose variable is in the captured environment)",
    )
    shared.add_selection(parser)
    shared.add_format(parser)


def run(request: Request) -> int:
    args = request.args
    if args["launch"] is not None and args["launch"] < 1:
        raise UsageError(f"--launch {args['launch']}: launches count from 1")
    for word in (args["set"] or "", *args["section"]):
        if not word.isprintable():
            raise UsageError(f"--set, --section: {word!r} is not a name")
    request.check()
    from nsystui.questions.trace.ncu import ncu_table

    with shared.opened(request, whole=False) as (job, selection):
        commands = _commands(request, job, selection)
        if request.output.format or request.output.sort or request.output.is_file:
            return shared.deliver(request, ncu_table(job, commands))
        return _print(job, commands, 10 if request.output.top is None else request.output.top)


def _commands(request: Request, job: OpenJob, selection: Selection) -> list[NcuCommand]:
    """Return the commands of the selected launches, with the user's sections and launcher."""
    from nsystui.questions.capture.recording import LAUNCHERS

    args = request.args
    sections = [word for section in args["section"] for word in ("--section", section)]
    collected = (*(("--set", args["set"]) if args["set"] else ()), *sections)
    variable = LAUNCHERS[args["launcher"]][0] if args["launcher"] else None
    commands = _of_kernels(request, job, selection)
    if args["launch"] is not None:
        max_launches = max((command.launches for command in commands), default=0)
        if 0 < max_launches < args["launch"]:
            raise UsageError(f"--launch {args['launch']}: there are {max_launches:,} launches at most")
        commands = [command.only(args["launch"]) for command in commands if args["launch"] <= command.launches]
    return [replace(command, collected=collected, variable=variable or command.variable) for command in commands]


def _of_kernels(request: Request, job: OpenJob, selection: Selection) -> list[NcuCommand]:
    """Return the commands of the selected kernels. Raises UsageError if a name matches no kernel."""
    from nsystui.questions.kernels.summary import is_named, smart_kernel_names
    from nsystui.questions.trace.ncu import NameBase, everything, ncu_commands, one_launch

    args = request.args
    name = args["instances"]
    wanted = (lambda table: [is_named(job.session, table, name)]) if name else everything
    base = NameBase(args["base"]) if args["base"] else None
    if args["event"] is not None:
        reports = job.session.reports
        if len(reports) > 1:
            raise UsageError("--event needs one FILE: each counts its rows by itself")
        launch = one_launch(reports[0].index, args["event"])
        commands = ncu_commands(job, selection, lambda table: [*wanted(table), *launch(table)], base)
        if not commands:
            raise UsageError(f"--event {args['event']}: this row is not a selected kernel")
        return commands
    commands = ncu_commands(job, selection, wanted, base)
    if not commands and (names := smart_kernel_names(job.session)):
        if name and not ncu_commands(job, Selection(), wanted):
            raise no_such_name("--instances", name, names.values())
        if selection.name is not None and not any(map(selection.name.matches, names)):
            raise no_such_name("--filter", selection.name.pattern, names)
    return commands


def _print(job: OpenJob, commands: Sequence[NcuCommand], limit: int) -> int:
    from nsystui.output.files import print_lines
    from nsystui.questions.trace.ncu import cautions, ncu_table

    print_lines(line for command in commands[:limit] for line in (f"# {command.what}", command.command))
    if not commands:
        notes = ncu_table(job, commands).notes
        shared.say_notes(*(notes or ("no kernel in the selection",)))
        return 3 if notes else 0
    shared.say_notes(*cautions(commands[:limit]))
    if len(commands) > limit:
        shared.say_notes(f"{counted(len(commands) - limit, 'more command')}: --top, --filter and --ranks choose")
    return 0
