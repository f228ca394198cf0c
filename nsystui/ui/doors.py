"""Doors from any screen to a view of the catalogue, an event, a range, a thread or a finding's subject."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsystui.base.selection import Selection, Task, Window
from nsystui.exports.metadata import tid_of
from nsystui.questions.queries.registry import view_named
from nsystui.ui.screens import screen_of

if TYPE_CHECKING:
    from nsystui.questions.events.listing import EventKey
    from nsystui.questions.triage.finding import Finding
    from nsystui.ui.app import NsystuiApp

_AROUND = 0.25
"""Context around a finding's window, as a share of its length, because nothing runs in a gap."""


async def show_view(app: NsystuiApp, name: str, selection: Selection | None = None, **options: str) -> Any:
    """Go to a view in one step, with a new selection if given, and ``options`` of its question.

    Return its screen, or ``None`` if a key switched to another mode meanwhile.
    """
    return await app.go(view_named(name).home, selection, name, **options)


def show_event(app: NsystuiApp, key: EventKey, mode: str = "events") -> None:
    """Go to an event in the list of events, or to a range in the tree of the ``mode`` ``nvtx``."""

    async def go() -> None:
        if screen := await app.go(mode):
            screen.show_event(key)

    app.call_later(go)


def show_thread(app: NsystuiApp, task: Task, thread: int, window: Window, is_sampled: bool) -> None:
    """Go to the call tree of a thread (globalTid) in a window; without samples, go to the list of threads."""

    async def go() -> None:
        selection = app.selection.with_tasks(frozenset({task})).with_window(window).with_name(None)
        threads = await show_view(app, "threads", selection)
        if threads and is_sampled:
            threads.open_call_tree(task, tid_of(thread))

    app.call_later(go)


async def show_finding(app: NsystuiApp, finding: Finding) -> None:
    """Go to the view behind a finding's door, with the door's window and names."""
    from nsystui.questions.triage.finding import DIAGNOSTICS

    door, selection = finding.door, app.selection
    if door.view == DIAGNOSTICS:
        app.open_screen(screen_of("diagnostics"))
        return
    if door.window is not None:
        margin = max(int(_AROUND * (door.window.end - door.window.start)), 1_000)
        selection = selection.with_window(Window(door.window.start - margin, door.window.end + margin))
    screen = await show_view(app, door.view, selection.with_name(door.filter) if door.filter else selection)
    if screen and app.current_mode == "timeline" and finding.ranks:
        screen.open_rank(min(finding.ranks))
