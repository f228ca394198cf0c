"""The result of a rule: a finding with the door to its subject, or the data that the rule lacks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from nsystui.base.answer import Answer
from nsystui.base.selection import Window
from nsystui.base.text import shell_word


class Severity(Enum):
    """The severity of a finding."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    @property
    def place(self) -> int:
        """0 for the worst."""
        return list(Severity).index(self)


class View(Enum):
    """A table or picture of the program: the screen that shows it, and the command that prints it."""

    KERNELS = ("Kernels", "kernels")
    LAUNCHES = ("Kernels", "stats -r cuda_kern_exec_sum")
    MEMORY = ("Kernels", "memory")
    API = ("Kernels", "api")
    MPI = ("Kernels", "mpi")
    NCCL = ("NCCL", "nccl")
    GPU = ("GPU", "gpu")
    NVTX = ("NVTX", "nvtx")
    TIMELINE = ("Timeline", "timeline")
    RANKS = ("Ranks", "ranks")
    COLLECTIVES = ("Ranks", "ranks --collectives")
    STEPS_ACROSS = ("Ranks", "steps --across")
    EVERY_STEP = ("Ranks", "steps --every")
    DIAGNOSTICS = ("Overview", "info")

    def __init__(self, screen: str, command: str) -> None:
        self.screen, self.command = screen, command


@dataclass(frozen=True)
class Door:
    """The view that shows the subject of a finding, and what of it: the names, the window, the grouping, the sort."""

    view: View
    filter: str = ""
    by: str = ""
    sort: str = ""
    window: Window | None = None

    @property
    def command(self) -> str:
        """The command that prints the same, without its files."""
        words = [self.view.command]
        for flag, value in (("--filter", self.filter), ("--by", self.by), ("--sort", self.sort)):
            words += [flag, shell_word(value)] if value else []
        if self.window is not None:
            words.append(f"--time {self.window.start}:{self.window.end}")
        return " ".join(words)


@dataclass(frozen=True)
class Advice:
    """One thing to try, and why it should help."""

    text: str
    reason: str

    def __str__(self) -> str:
        return f"{self.text}: {self.reason}"


@dataclass(frozen=True, eq=False)
class Finding:
    """A problem of a job, or a remark on it.

    ``cost``: ns, a mean over the GPUs of the job, so that it compares with how long the job ran; ``percent``: of that.
    Both are ``None`` where no time can be put on it. ``measured``: how the cost was found. Costs of several findings
    may be of the same time. ``window``: the place in time (job time), ``ranks``: whom it concerns; empty is all.
    """

    id: str
    severity: Severity
    sentence: str
    advice: Advice
    door: Door
    cost: int | None = None
    percent: float | None = None
    measured: str = ""
    evidence: Answer | None = None
    window: Window | None = None
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class NotChecked:
    """A rule that could not judge. ``why`` says what it needs; ``failed`` where it broke instead."""

    rule: str
    why: str
    failed: bool = False
