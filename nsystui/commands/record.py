"""``nsystui record``: command lines that record the data for a question; it does not run them."""

import argparse
import shutil
import subprocess
from collections.abc import Iterable, Sequence

from nsystui.base.errors import UsageError
from nsystui.base.selection import parse_numbers
from nsystui.base.text import safe_text
from nsystui.commands import arguments as shared
from nsystui.commands.request import Request

DESCRIPTION = """Prints, and never runs, the commands that record the data for your questions: `nsys profile`
for all ranks or some, `nsys export`, and triage. Options that your version of nsys lacks are left out and named."""
EXAMPLES = """  nsystui record -- python train.py
  nsystui record --why-idle --nccl-sizes -- python train.py
  nsystui record --gpu-metrics --ranks 0,8 --nvtx-range 'step 20' -- python train.py
  nsystui record --why-idle --small-overhead --profiler-api --launcher openmpi -o run1 -- ./solver input.nml"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from nsystui.questions.capture.recording import GOALS, LAUNCHERS

    group = parser.add_argument_group("questions")
    for goal in GOALS:
        group.add_argument(
            f"--{goal.flag}", dest="goals", action="append_const", const=goal, default=[], help=goal.help
        )
    group = parser.add_argument_group("part of the run")
    group.add_argument("--ranks", metavar="LIST", help="record these ranks only, such as 0,8; all run")
    group.add_argument(
        "--nvtx-range", default="", metavar="NAME", help="from the first NVTX range NAME (NAME@DOMAIN) to its end"
    )
    group.add_argument("--profiler-api", action="store_true", help="from cudaProfilerStart to cudaProfilerStop")
    group.add_argument("--delay", default="", metavar="SECONDS", help="start recording after so many seconds")
    group.add_argument("--duration", default="", metavar="SECONDS", help="stop recording after so many seconds")
    group.add_argument("--small-overhead", action="store_true", help="with --why-idle: samples without stacks")
    group = parser.add_argument_group("where")
    group.add_argument("--launcher", choices=tuple(LAUNCHERS), default="slurm", help="what starts the ranks")
    shared.add_target(group, "DIR", "where reports and exports go (default: run)", default="run")
    group.add_argument(
        "--scratch", default="", metavar="DIR", help="a local directory for nsys's temporary files (TMPDIR)"
    )
    group.add_argument("--nsys-version", metavar="V", help="such as 2024.5 (default: that of nsys on the PATH)")
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the program and its arguments")


def run(request: Request) -> int:
    from nsystui.output.files import print_lines
    from nsystui.questions.capture.recording import GOALS, NEWEST, Capture, Recording, missing, parse_version, script

    args, target = request.args, str(request.output.target)
    program = tuple(args["program"][1:] if args["program"][:1] == ["--"] else args["program"])
    capture = Capture(args["nvtx_range"], args["profiler_api"], args["delay"], args["duration"])
    _check(request, program, (*program, target, args["scratch"], *capture))
    version = parse_version(args["nsys_version"] or _installed())
    if version is None and args["nsys_version"]:
        raise UsageError(f"--nsys-version {args['nsys_version']}: such as 2024.5")
    goals = tuple(goal for goal in GOALS if goal in args["goals"])
    ranks = parse_numbers(request.selecting.ranks, "ranks") if request.selecting.ranks else None
    release = version or NEWEST
    recording = Recording(
        goals, capture, release, args["launcher"], target, program, ranks, args["scratch"], args["small_overhead"]
    )
    print_lines(script(recording))
    if version is None:
        shared.say_notes("nsys is not on the PATH here: the options are those of its newest version (--nsys-version V)")
    for goal in goals:
        if line := missing(goal, release) or goal.cost:
            shared.say_notes(f"--{goal.flag}: {line}")
    return 0


def _check(request: Request, program: Sequence[str], words: Iterable[object]) -> None:
    """Raise UsageError for options that contradict each other, and for words that no shell script can contain."""
    args = request.args
    if not program:
        raise UsageError("record: name the program that is to be recorded, after --")
    for word in words:
        if isinstance(word, str) and safe_text(word) != word:
            raise UsageError(
                f"record: {word!a} has characters that cannot be printed: put the command into a script and record that"
            )
    if args["small_overhead"] and not any(goal.flag == "why-idle" for goal in args["goals"]):
        raise UsageError("record: --small-overhead needs --why-idle, which takes the samples")
    if args["launcher"] == "torchrun" and program[0].rpartition("/")[2] == "torchrun":
        raise UsageError("record: --launcher torchrun adds torchrun itself: give the program of a rank after --")


def _installed() -> str:
    program = shutil.which("nsys")
    if program is None:
        return ""
    try:
        process = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return process.stdout
