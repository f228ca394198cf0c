"""One command for Nsight Compute (``ncu``), and what to know before it is run."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum

from nsystui.base.selection import Task
from nsystui.base.text import safe_text, shell_word


class NameBase(Enum):
    """What ncu matches a name with (``--kernel-name-base``)."""

    FUNCTION = "function"
    DEMANGLED = "demangled"
    MANGLED = "mangled"


@dataclass(frozen=True)
class NcuCommand:
    """One command, for one kernel of one process.

    ``launches``: of this name in the process; ``selected``: how many of them are wanted; ``skip`` and ``count`` are
    missing where all of them are. ``total``: time of the selected launches, ns; missing
    where it was not asked for.
    """

    task: Task
    rank: int | None
    host: str
    pid: int | None
    program: str
    kernel: str
    base: NameBase
    pattern: str
    launches: int
    selected: int
    skip: int | None
    count: int | None
    total: int | None
    is_nccl: bool
    in_graph: bool
    without_call: int

    def only(self, launch: int) -> NcuCommand:
        """The command for one launch, by its number from 1."""
        return replace(self, selected=1, skip=launch - 1, count=1, total=None)

    @property
    def command(self) -> str:
        """One printable line for a shell; what follows the program's name is the user's: an export's is not shown."""
        words = [
            "ncu",
            "--target-processes",
            "all",
            "--kernel-name-base",
            self.base.value,
            "-k",
            f"regex:{self.pattern}",
        ]
        if self.count is not None:
            words += ["--launch-skip", str(self.skip), "--launch-count", str(self.count)]
        if self.in_graph:
            words += ["--graph-profiling", "node"]
        return f"{' '.join(map(shell_word, [*words, self.program or 'your-application']))} ..."

    @property
    def what(self) -> str:
        """One line: whose kernel, and which of its launches."""
        who = f"rank {self.rank}, " if self.rank is not None else ""
        process = "a process that is not known" if self.pid is None else f"pid {self.pid}"
        where_ = f"{who}{process}" + (f" on {self.host}" if self.host else "")
        if self.count is None:
            which = "all " + _number(self.launches, "launch", "launches")
        elif self.count == 1:
            which = f"launch {(self.skip or 0) + 1:,} of {self.launches:,}"
        else:
            first = (self.skip or 0) + 1
            which = f"launches {first:,} to {first + self.count - 1:,} of {self.launches:,}"
            if self.selected < self.count:
                which += f", {self.selected:,} of which are selected"
        return safe_text(f"{where_}: {self.kernel}, {which}")

    @property
    def cautions(self) -> tuple[str, ...]:
        """What to know before it is run."""
        found = []
        if self.count is not None:
            found.append(
                "ncu counts the launches of this name in each process by itself, over all devices and streams, in the "
                "order of their API calls; in another run the order may be another"
            )
        if self.without_call:
            found.append(
                f"{_number(self.without_call, 'launch has', 'launches have')} no API call in the export and count by "
                "the start on the GPU"
            )
        if self.rank is not None:
            found.append(
                "of a job of several ranks, run it in place of the application of that rank alone, by a test of the "
                "rank in a wrapper script"
            )
        if self.in_graph:
            found.append(
                "it runs in CUDA graphs: ncu profiles their kernels one by one (--graph-profiling node), in an order "
                "of its own where branches of a graph have none; with --graph-profiling graph a whole graph is one "
                "workload, and no kernel name matches"
            )
        if self.is_nccl:
            found.append(
                "an NCCL kernel waits for other ranks: replayed by itself it may hang; see ncu's "
                "--replay-mode app-range"
            )
        return tuple(found)


def _number(number: int, one: str, several: str) -> str:
    return f"{number:,} {one if number == 1 else several}"


_SPECIAL = re.compile(r"([\\^$.|?*+()\[\]{}])")
_CAST = re.compile(r"\\\(((?:unsigned )?(?:int|short|char|long|long long))\\\)(?=-?\d)")
_BOOL = re.compile(r"\\\(bool\\\)([01])")


def pattern_of(name: str, base: NameBase) -> str:
    """A regular expression (ECMAScript, as ncu reads it) for exactly this name.

    Demanglers differ in blanks and in the casts of template arguments (``(int)4`` and ``4``): both ways match. Of a
    character that a shell or terminal would trip over, any matches.
    """
    plain = "".join(char if char == shown else "\0" for char, shown in zip(name, safe_text(name), strict=True))
    escaped = _SPECIAL.sub(r"\\\1", plain).replace("\0", ".")
    if base is NameBase.DEMANGLED:
        escaped = _BOOL.sub(lambda found: rf"(\(bool\){found[1]}|{('false', 'true')[int(found[1])]})", escaped)
        escaped = _CAST.sub(lambda found: rf"(\({found[1]}\))?", escaped)
        escaped = escaped.replace(" ", " ?")
    return f"^{escaped}$"
