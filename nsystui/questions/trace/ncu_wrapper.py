"""A shell script that runs ``ncu`` in place of the program of chosen ranks, and the program alone of all others."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from nsystui.base.text import safe_text, shell_word
from nsystui.questions.capture.recording import LAUNCHERS
from nsystui.questions.trace.ncu import NcuCommand

NAME = "ncu-ranks.sh"
"""What the script calls itself."""


def first_of_each_rank(commands: Sequence[NcuCommand]) -> list[NcuCommand]:
    """The first command of each rank, by rank: a run of a process can profile one kernel at its place.

    Kernels of NCCL give way to others, because a replay of them by themselves may hang.
    """
    found: dict[int, NcuCommand] = {}
    for one in sorted(commands, key=lambda one: one.is_nccl):
        if one.rank is not None:
            found.setdefault(one.rank, one)
    return [found[rank] for rank in sorted(found)]


def wrapper_script(commands: Sequence[NcuCommand], launcher: str) -> list[str]:
    """The lines of the script, for a POSIX shell; ``commands`` are one for each rank.

    It begins with the command that starts it. The options of the launcher and the arguments of the program are the
    user's: an export's are not shown.
    """
    variable, start = LAUNCHERS[launcher]
    program = shell_word(next((one.program for one in commands if one.program), "") or "your-application")
    words = [start, "...", "sh", NAME, program, "..."]
    by_words: dict[tuple[str, ...], list[NcuCommand]] = {}
    for one in commands:
        by_words.setdefault(tuple(one.words), []).append(one)
    lines = [
        "#!/bin/sh",
        f"# {NAME}: Nsight Compute profiles a kernel of some ranks, the others run as always. To start it:",
        f"#   {' '.join(words)}",
        "set -eu",
        f'case "${{{variable}:?has no rank: start this script with {start}}}" in',
    ]
    for ncu, alike in by_words.items():
        lines += [f"    # {safe_text(one.what)}" for one in alike]
        ranks = "|".join(str(one.rank) for one in alike)
        lines.append(f'    {ranks}) exec {shlex.join(ncu)} "$@" ;;')
    return [*lines, '    *) exec "$@" ;;', "esac"]
