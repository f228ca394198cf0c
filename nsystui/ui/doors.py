"""Doors from one screen to another: to a view of the catalogue, or to the subject of a finding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsystui.exports.metadata import tid_of
from nsystui.questions.queries.registry import view_named
from nsystui.ui.screens import screen_of

if TYPE_CHECKING:
    from nsystui.base.selection import Selection, Task, Window
    from nsystui.questions.events.listing import EventKey
    from nsystui.questions.triage.finding import Finding
    from nsystui.ui.app import NsystuiApp

_AROUND = 0.25
"""The part of its length that is shown before and after a finding's window: a gap alone shows nothing."""


async def show_view(app: NsystuiApp, name: str, selection: Selection | None = None, **options: str) -> Any:
    """Go to a view in one step, with another selection where one is given, and ``options`` of its question.

    Returns its screen, or ``None`` where a key that was pressed meanwhile went elsewhere.
    """
    return await app.go(view_named(name).home, selection, name, **options)


def show_event(app: NsystuiApp, key: EventKey) -> None:
    """Goes to the list of events, to one of them."""

    async def go() -> None:
        if events := await app.go("events"):
            events.show_event(key)

    app.call_later(go)


def show_range(app: NsystuiApp, key: EventKey) -> None:
    """Goes to the tree of NVTX ranges, to one of them."""

    async def go() -> None:
        if tree := await app.go("nvtx"):
            tree.show_range(key)

    app.call_later(go)


def show_thread(app: NsystuiApp, task: Task, thread: int, window: Window, is_sampled: bool) -> None:
    """Goes to what a thread (globalTid) ran in a span of time as a tree of calls; to the threads without samples."""

    async def go() -> None:
        chosen = app.selection.with_tasks(frozenset({task})).with_window(window).with_name(None)
        threads = await show_view(app, "threads", chosen)
        if threads and is_sampled:
            threads.open_call_tree(task, tid_of(thread))

    app.call_later(go)


async def show_finding(app: NsystuiApp, finding: Finding) -> None:
    """Switches to the view behind a finding's door, with the window and the names that the door selects.

    The overview shows the diagnostics of the capture behind ``W``.
    """
    from nsystui.base.selection import Window
    from nsystui.questions.triage.finding import DIAGNOSTICS

    door, selection = finding.door, app.selection
    if door.view == DIAGNOSTICS:
        app.open_screen(screen_of("diagnostics"))
        return
    if door.window is not None:
        around = max(int(_AROUND * (door.window.end - door.window.start)), 1_000)
        selection = selection.with_window(Window(door.window.start - around, door.window.end + around))
    shown = await show_view(app, door.view, selection.with_name(door.filter) if door.filter else selection)
    if shown and app.current_mode == "timeline" and finding.ranks:
        shown.open_rank(min(finding.ranks))
