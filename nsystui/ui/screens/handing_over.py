"""Handing over to other tools from a screen: the ``ncu`` command for a kernel, and a trace of the selection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.binding import BindingType
from textual.message import Message

from nsystui.ui.screens.exporting import checker
from nsystui.ui.screens.pane import Pane
from nsystui.ui.screens.words_dialog import WordsDialog

if TYPE_CHECKING:
    from nsystui.questions.job import Job
    from nsystui.questions.trace.ncu import NcuCommand

Ask = Callable[["Job"], "list[NcuCommand]"]
_MOST = 8  # commands that are shown and copied: as many ranks as one looks at


class HandingOver(Pane):
    """``u`` shows and copies the ``ncu`` command for a kernel."""

    @dataclass
    class Commanded(Message):
        """The commands for the kernel, or why there are none."""

        commands: Sequence[NcuCommand]
        reason: str = "there is no kernel here"

    def ncu_question(self) -> Ask | str:
        """What finds the commands for what the cursor is on, or why it cannot be asked."""
        raise NotImplementedError

    def action_ncu(self) -> None:
        job = self.job
        ask = self.ncu_question() if job is not None else "a moment: the export is being read"
        if job is None or isinstance(ask, str):
            self.say(str(ask))
            return

        def work() -> None:
            try:
                self.post_message(self.Commanded(ask(job)))
            except Exception as error:  # a query: the user gets the reason, the program lives on
                self.post_message(self.Commanded((), str(error).splitlines()[0]))

        self.run_worker(work, thread=True, exclusive=True, group="ncu", exit_on_error=False)

    @on(Commanded)
    def _commanded(self, message: Commanded) -> None:
        message.stop()
        if message.commands:
            self.lay_over(NcuScreen(message.commands))
        else:
            self.say(message.reason)


class TracingScreen(HandingOver):
    """``E`` writes a trace of the selection, too."""

    PURPOSES = ("export", "trace")

    def action_trace(self) -> None:
        from nsystui.output.files import propose_name
        from nsystui.output.traces import check_ending

        if self.job is None:
            self.say("a moment: the export is being read")
            return
        proposed = propose_name(self.job.report_names, "trace", None, ".json.gz")
        self.prompt.open("trace", "trace to", proposed, checker(check_ending))

    def writing(self, purpose: str) -> tuple[str, Callable[[Path, bool], int]] | None:
        job, selection = self.job, self.selection
        if purpose != "trace" or job is None:
            return super().writing(purpose)

        def write(path: Path, overwrite: bool) -> int:
            from nsystui.output.traces import save_trace
            from nsystui.questions.trace.slices import Contents
            from nsystui.questions.trace.trace import Trace

            return save_trace(Trace.of(job, selection, Contents()), path, overwrite)

        return "a trace of the selection", write


class NcuScreen(WordsDialog):
    """The commands, which are on the clipboard already; ``y`` copies them again."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,enter,u", "dismiss", "close"), ("y", "copy", "copy")]

    DEFAULT_CSS = "NcuScreen VerticalScroll { width: 100; }"

    def __init__(self, commands: Sequence[NcuCommand]) -> None:
        super().__init__(ncu_lines(commands))
        self._commands = tuple(commands)

    def on_mount(self) -> None:
        self.action_copy()

    def action_copy(self) -> None:
        self.app.copy_to_clipboard("\n".join(one.command for one in self._commands[:_MOST]) + "\n")


def ncu_lines(commands: Sequence[NcuCommand]) -> list[str]:
    """What the panel says: each command with what it profiles, then what to know."""
    from nsystui.questions.trace.ncu import cautions

    shown = commands[:_MOST]
    lines = [line for one in shown for line in (one.what, "", one.command, "")]
    if len(commands) > _MOST:
        lines += [f"{len(commands) - _MOST:,} more: `nsystui ncu` prints them, r selects ranks", ""]
    lines += [f"- {caution}" for caution in cautions(shown)]
    copied = "the command" if len(shown) == 1 else f"the {len(shown)} commands"
    return [
        *lines,
        "",
        f"copied {copied}, if the terminal allows OSC 52 (tmux: set -g set-clipboard on); y again, esc back",
    ]


def of_event(kind: str, report: int, row: int) -> Ask | str:
    """The question for an event of a list, by its kind, report and row."""
    if kind not in ("kernel", "nccl"):
        return "ncu profiles kernels: go to one first (c jumps from an API call to its kernel)"

    def ask(job: Job) -> list[NcuCommand]:
        from nsystui.base.selection import Selection
        from nsystui.questions.trace.ncu import ncu_commands, one_launch

        return ncu_commands(job, Selection(), one_launch(report, row))

    return ask
