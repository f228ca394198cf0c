"""From a canonical table, or a finding, to the screen that shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsystui.questions.triage.finding import View
from nsystui.ui.pictures.overview_lines import SHOWN_BY
from nsystui.ui.screens import screen_of

if TYPE_CHECKING:
    from textual.app import App

    from nsystui.base.selection import Selection
    from nsystui.questions.triage.finding import Door, Finding
    from nsystui.ui.app import NsystuiApp

_TABLES_OF_WORK = {"memory_ops": "memory", "api_calls": "api", "os_calls": "os", "mpi_calls": "mpi"}
"""What the Kernels screen calls the tables that it shows beside the kernels."""


async def show_table(app: App[Any], table: str) -> None:
    """Switches to the screen that shows ``table`` (one of ``SHOWN_BY``)."""
    mode = SHOWN_BY[table][1]
    await app.switch_mode(mode)
    if mode == "kernels":
        from nsystui.ui.screens.kernels import KernelsScreen

        screen = app.screen
        if isinstance(screen, KernelsScreen):
            screen.what = _TABLES_OF_WORK.get(table, "kernels")
            screen.job_changed()


_PANES = {
    View.KERNELS: ("kernels", "kernels"),
    View.LAUNCHES: ("kernels", "kernels"),
    View.MEMORY: ("kernels", "memory"),
    View.API: ("kernels", "api"),
    View.MPI: ("kernels", "mpi"),
    View.NCCL: ("nccl", ""),
    View.GPU: ("gpu", ""),
    View.NVTX: ("nvtx", ""),
    View.TIMELINE: ("timeline", ""),
    View.RANKS: ("ranks", "ranks"),
    View.COLLECTIVES: ("ranks", "collectives"),
    View.STEPS_ACROSS: ("ranks", "steps-across"),
    View.EVERY_STEP: ("ranks", "every-step"),
}
"""The screen's mode for each view of a finding, and the table of it where the screen has several."""
_AROUND = 0.25
"""The part of its length that is shown before and after a finding's window: a gap alone shows nothing."""


async def show_finding(app: NsystuiApp, finding: Finding) -> None:
    """Switches to the view behind a finding's door, with the window and the names that the door selects.

    The overview shows the diagnostics of the capture behind ``d``.
    """
    door = finding.door
    if door.view is View.DIAGNOSTICS:
        app.push_screen(screen_of("diagnostics"))
        return
    app.remember_way()
    app.select(_selection(app.selection, door))
    mode, table = _PANES[door.view]
    await app.switch_mode(mode)
    if table:
        screen: Any = app.screen
        screen.what = table
        screen.job_changed()


def _selection(selection: Selection, door: Door) -> Selection:
    from nsystui.base.selection import Window

    if door.window is not None:
        around = max(int(_AROUND * (door.window.end - door.window.start)), 1_000)
        selection = selection.with_window(Window(door.window.start - around, door.window.end + around))
    return selection.with_name(door.filter) if door.filter else selection
