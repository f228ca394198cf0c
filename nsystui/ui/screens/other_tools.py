"""Screens for other tools: the ``ncu`` command for a kernel, and a trace of the selection."""

from asyncio import to_thread
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from textual.binding import BindingType

from nsystui.base.selection import Selection
from nsystui.output.files import check_ending, propose_name, save_trace
from nsystui.questions.events.kinds import EventKind
from nsystui.questions.events.listing import EventKey
from nsystui.questions.job.job import OpenJob
from nsystui.questions.trace.ncu import NcuCommand, cautions, ncu_commands, one_launch
from nsystui.questions.trace.slices import Contents
from nsystui.ui.screens.asking import AskingScreen
from nsystui.ui.screens.dialogs import TextDialog
from nsystui.ui.widgets.repainting import in_background

NcuQuestion = Callable[[OpenJob], list[NcuCommand]]
"""Finds the commands for the kernel under the cursor."""

_MAX_COMMANDS = 8
"""Maximum commands shown and copied."""


@in_background("ncu")
async def show_ncu_commands(screen: AskingScreen, question: NcuQuestion | str) -> None:
    """Show and copy the ``ncu`` commands for the cursor's kernel, else show the reason."""
    job = screen.job
    if job is None:
        screen.say("one moment: the export is being read")
        return
    if isinstance(question, str):
        screen.say(question)
        return
    if commands := await to_thread(question, job):
        screen.lay_over(NcuScreen(commands))
    else:
        screen.say("there is no kernel here")


def ncu_of_event(key: EventKey | None, reason: str) -> NcuQuestion | str:
    """Return the question for an event, or why ``ncu`` cannot profile it; ``reason`` if there is no event."""
    if key is None:
        return reason
    if key.kind not in (EventKind.KERNEL, EventKind.NCCL):
        return "ncu profiles kernels: select a kernel first (c jumps from an API call to its kernel)"
    return lambda job: ncu_commands(job, Selection(), one_launch(key.report, key.row))


class NcuScreen(TextDialog):
    """The commands, already on the clipboard; ``y`` copies them again."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,enter,u", "dismiss", "close"), ("y", "copy", "copy")]

    def __init__(self, commands: Sequence[NcuCommand]) -> None:
        self.commands = shown = commands[:_MAX_COMMANDS]
        lines = [line for command in shown for line in (command.what, "", command.command, "")]
        if len(commands) > _MAX_COMMANDS:
            lines += [f"{len(commands) - _MAX_COMMANDS:,} more: `nsystui ncu` prints them, r selects ranks", ""]
        lines += [f"- {caution}" for caution in cautions(shown)]
        copied = "the command" if len(shown) == 1 else f"the {len(shown)} commands"
        copied += ", if the terminal allows OSC 52 (tmux: set -g set-clipboard on); y again, esc back"
        super().__init__([*lines, "", f"copied {copied}"])

    def on_mount(self) -> None:
        self.action_copy()

    def action_copy(self) -> None:
        self.app.copy_to_clipboard("\n".join(command.command for command in self.commands) + "\n")


def export_trace(screen: AskingScreen) -> None:
    """Ask for a file and write a trace of the selection to it."""
    if screen.job is None:
        screen.say("one moment: the export is being read")
        return
    job, selection = screen.job, screen.selection

    def write(path: Path, overwrite: bool) -> int:
        from nsystui.questions.trace.trace import Trace

        return save_trace(Trace.of(job, selection, Contents()), path, overwrite)

    proposed = propose_name(screen.explorer.job_name, "trace", None, ".json.gz")
    screen.ask_for_file(
        "trace to", proposed, check_ending, lambda path: screen.write(path, "a trace of the selection", write)
    )
