"""From a canonical table, or a finding, to the screen that shows it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from nsystui.ui.pictures.overview_lines import SHOWN_BY
from nsystui.ui.screens import screen_of

if TYPE_CHECKING:
    from textual.app import App

    from nsystui.base.selection import Selection
    from nsystui.questions.triage.finding import Finding
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


_MODES = {
    "kernels": "kernels",
    "nccl": "nccl",
    "gpu": "gpu",
    "nvtx": "nvtx",
    "events": "events",
    "timeline": "timeline",
}
_WORK = {"kernels": "kernels", "memory": "memory", "api": "api", "osrt": "os", "mpi": "mpi"}
_OF_RANKS = {
    "ranks": "ranks",
    "ranks --collectives": "collectives",
    "ranks --kinds": "collective-kinds",
    "steps": "steps",
    "steps --across": "steps-across",
    "steps --every": "every-step",
}
"""What the Ranks screen calls the tables of commands."""
_AROUND = 0.25
"""Of its length, what is shown before a finding's time and after it: a gap alone shows nothing."""


async def show_finding(app: NsystuiApp, finding: Finding) -> None:
    """Switches to the screen that a finding's command speaks of, with the time and the names that it selects.

    What ``info`` would print of the capture, the overview shows behind ``d``.
    """
    name, *flags = shlex.split(finding.shown.command)
    if name == "info":
        app.push_screen(screen_of("diagnostics"))
        return
    app.remember_way()
    app.select(_selection(app.selection, finding, flags))
    first = " ".join([name, *flags[:1]])
    of_ranks = _OF_RANKS.get(first, _OF_RANKS.get(name))
    mode = "kernels" if name in _WORK else "ranks" if of_ranks else _MODES.get(name, "kernels")
    await app.switch_mode(mode)
    if mode in ("kernels", "ranks"):
        screen: Any = app.screen
        screen.what = of_ranks or _WORK.get(name, "kernels")
        screen.job_changed()


def _selection(selection: Selection, finding: Finding, flags: list[str]) -> Selection:
    from nsystui.base.selection import Window

    window = finding.window
    if window is not None and "--time" in flags:
        around = max(int(_AROUND * (window.end - window.start)), 1_000)
        selection = selection.with_window(Window(window.start - around, window.end + around))
    if "--filter" in flags:
        selection = selection.with_name(flags[flags.index("--filter") + 1])
    return selection
