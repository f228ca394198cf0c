"""Doors from one screen to another: to a view of the catalogue, or to the subject of a finding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsystui.questions.catalogue import view_named
from nsystui.questions.triage.finding import DIAGNOSTICS
from nsystui.ui.screens import screen_of
from nsystui.ui.screens.table import ViewsScreen

if TYPE_CHECKING:
    from textual.app import App

    from nsystui.base.selection import Selection
    from nsystui.questions.triage.finding import Door, Finding
    from nsystui.ui.app import NsystuiApp

_AROUND = 0.25
"""The part of its length that is shown before and after a finding's window: a gap alone shows nothing."""


async def show_view(app: App[Any], name: str, **options: str) -> None:
    """Switches to the screen of a view and shows it, with ``options`` of its question."""
    await app.switch_mode(view_named(name).question.home)
    if isinstance(app.screen, ViewsScreen):
        app.screen.show_view(name, **options)


async def show_finding(app: NsystuiApp, finding: Finding) -> None:
    """Switches to the view behind a finding's door, with the window and the names that the door selects.

    The overview shows the diagnostics of the capture behind ``d``.
    """
    door = finding.door
    if door.view == DIAGNOSTICS:
        app.push_screen(screen_of("diagnostics"))
        return
    app.remember_way()
    app.select(_selection(app.selection, door))
    await show_view(app, door.view)
    if app.current_mode == "timeline" and finding.ranks:
        app.screen.open_rank(min(finding.ranks))  # type: ignore[attr-defined]


def _selection(selection: Selection, door: Door) -> Selection:
    from nsystui.base.selection import Window

    if door.window is not None:
        around = max(int(_AROUND * (door.window.end - door.window.start)), 1_000)
        selection = selection.with_window(Window(door.window.start - around, door.window.end + around))
    return selection.with_name(door.filter) if door.filter else selection
