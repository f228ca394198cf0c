"""``w``: from an event to the deepest NVTX range around it, or around the call that launched it."""

import pytest
from jobs import NARROW, WIDE, line_with, name_of_screen, press, running, screen_text
from support import native

from nsystui.ui.screens import nvtx as nvtx_screen


def deepest_range(path, correlation_id: int) -> tuple[str, int]:
    """Return name and length of the range around a launching call that began last, by SQLite."""
    ((start, thread),) = native(
        path, "SELECT start, globalTid FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE correlationId = ?", (correlation_id,)
    )
    found = native(
        path,
        "SELECT coalesce(n.text, s.value), n.end - n.start FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId "
        "WHERE n.start <= ? AND n.end >= ? AND n.globalTid = ? ORDER BY n.start DESC LIMIT 1",
        (start, start, thread),
    )
    return found[0]


def shown_range(app) -> tuple[str, int]:
    assert app.current_mode == "nvtx" and len(app.screen_stack) == 1
    node = app.screen.node()
    assert node.index is not None
    return node.name, node.window.end - node.window.start


@pytest.mark.campaign
async def test_from_a_kernel_its_call_a_launch_and_the_timeline_to_the_same_range(job, cache):
    async with running(job, cache, WIDE, "2") as (app, pilot):
        assert not any("w innermost range" in line for line in screen_text(app))
        line_with(await press(pilot, "enter"), "w innermost range")
        launched_in = shown_range(await press(pilot, "w"))
        assert shown_range(await press(pilot, "escape", "L", "w")) == launched_in
        line_with(await press(pilot, "escape", "escape", "enter"), "w innermost range")
        assert name_of_screen(app) == "EventsScreen" and app.screen.values()["kind"] in ("kernel", "nccl")
        wanted = deepest_range(job[int(app.screen.values()["rank"])], int(app.screen.values()["correlation_id"]))
        row = app.screen.table.cursor_row
        assert shown_range(await press(pilot, "w")) == wanted == launched_in
        await pilot.press("escape")  # the jump to a range is one step
        assert name_of_screen(app) == "EventsScreen" and app.screen.table.cursor_row == row
        assert shown_range(await press(pilot, "c", "w")) == wanted
        line_with(await press(pilot, "3", "enter"), "w innermost range")
        assert shown_range(await press(pilot, "w"))[0]


@pytest.mark.campaign
async def test_a_range_of_a_list_is_shown_itself_also_beyond_the_first_page_of_its_siblings(job, cache, monkeypatch):
    monkeypatch.setattr(nvtx_screen, "PAGE", 3)
    async with running(job, cache, NARROW, "5", "v", "b", "enter", "down") as (app, pilot):
        length = app.screen.values()["duration"]
        assert shown_range(await press(pilot, "w"))[1] == length
        length, start = (await press(pilot, "escape", "end")).screen.values()["duration"], app.screen.values()["start"]
        assert shown_range(await press(pilot, "w"))[1] == length and app.screen.node().window.start == start
        outline = app.screen.outline
        seen = [line.node.id for line in outline.lines if not line.rest]
        assert len(set(seen)) == len(seen)
        rests = [row for row, line in enumerate(outline.lines) if line.rest]
        while rests:  # each row that was left out can be fetched once
            outline.open(rests[0])
            rests = [row for row, line in enumerate(outline.lines) if line.rest]
        seen = [line.node.id for line in outline.lines]
        assert len(set(seen)) == len(seen)
        for line in outline.lines:
            if line.node.id in outline.opened:
                inside = [one for one in outline.lines if line.node.id in outline.tree.ancestors(one.node)[-1:]]
                assert len(inside) == line.node.child_count
