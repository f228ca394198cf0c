"""A shell script that runs the program under ``ncu`` on selected ranks, and without it on other ranks."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from nsystui.base.text import safe_text, shell_word
from nsystui.base.types import grouped
from nsystui.questions.capture.recording import LAUNCHERS
from nsystui.questions.trace.ncu import NcuCommand

NAME = "ncu-ranks.sh"
"""The file name of the script."""


def first_of_each_rank(commands: Sequence[NcuCommand]) -> list[NcuCommand]:
    """Return the first command of each rank, by rank: a process can profile only one kernel in a run.

    NCCL's kernels are last, because ncu may hang when it replays them alone.
    """
    first_by_rank: dict[int, NcuCommand] = {}
    for command in sorted(commands, key=lambda command: command.is_nccl):
        if command.rank is not None:
            first_by_rank.setdefault(command.rank, command)
    return [first_by_rank[rank] for rank in sorted(first_by_rank)]


def wrapper_script(commands: Sequence[NcuCommand], launcher: str) -> list[str]:
    """Return the lines of the POSIX shell script; ``commands`` has at most one command per rank.

    The user adds the launcher's options and the program's arguments: recorded arguments are not shown.
    """
    variable, start = LAUNCHERS[launcher]
    program = shell_word(next((command.program for command in commands if command.program), "") or "your-application")
    words = [start, "...", "sh", NAME, program, "..."]
    by_words = grouped((tuple(command.words), command) for command in commands)
    lines = [
        "#!/bin/sh",
        f"# {NAME}: Nsight Compute profiles a kernel of some ranks, the others run as always. To start it:",
        f"#   {' '.join(words)}",
        "set -eu",
        f'case "${{{variable}:?has no rank: start this script with {start}}}" in',
    ]
    for ncu, same_commands in by_words.items():
        lines += [f"    # {safe_text(command.what)}" for command in same_commands]
        ranks = "|".join(str(command.rank) for command in same_commands)
        lines.append(f'    {ranks}) exec {shlex.join(ncu)} "$@" ;;')
    return [*lines, '    *) exec "$@" ;;', "esac"]
