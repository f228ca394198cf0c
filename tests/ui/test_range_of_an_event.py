"""``w``: from an event to the deepest NVTX range around it, or around the call that launched it."""

from __future__ import annotations

import pytest
from jobs import NARROW, WIDE, becomes, line_with, running, screen_text
from support import edit, native
from synthetic import training_job

from nsystui.ui.screens import nvtx as nvtx_screen
from nsystui.ui.screens.events import EventsScreen


@pytest.fixture
def job(two_ranks):
    return two_ranks


def deepest_range(path, correlation_id: int) -> tuple[str, int]:
    """Name and length of the range that began last of those around a launching call, as SQLite finds it."""
    ((start, thread),) = native(
        path,
        "SELECT start, globalTid FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE correlationId = ?",
        (correlation_id,),
    )
    found = native(
        path,
        "SELECT coalesce(n.text, s.value), n.end - n.start FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId "
        "WHERE n.start <= ? AND n.end >= ? AND n.globalTid = ? ORDER BY n.start DESC LIMIT 1",
        (start, start, thread),
    )
    return found[0]


async def shown_range(app, pilot) -> tuple[str, int]:
    """The range that is shown, as soon as it is: it is looked for in a thread."""
    assert await becomes(pilot, lambda: app.current_mode == "nvtx" and len(app.screen_stack) == 1)
    assert await becomes(pilot, lambda: app.screen.is_settled and app.screen.node().index is not None)
    node = app.screen.node()
    return node.name, node.window.end - node.window.start


def number(app) -> int:
    return int(app.screen.values()["correlation_id"])


async def to_a_kernel_in_a_range(app, pilot) -> None:
    """The event list, at a kernel whose launch lies in a range."""
    await pilot.press("2", "enter", "enter")
    assert isinstance(app.screen, EventsScreen) and app.screen.values()["kind"] in ("kernel", "nccl")


@pytest.mark.parametrize("size", [NARROW, WIDE])
async def test_from_a_kernel_and_from_its_call_to_the_same_range(job, cache, size):
    async with running(job, cache, size) as (app, pilot):
        await to_a_kernel_in_a_range(app, pilot)
        path = job[int(app.screen.values()["rank"])]
        wanted = deepest_range(path, number(app))
        await pilot.press("w")
        assert await shown_range(app, pilot) == wanted
        await pilot.press("escape")
        assert isinstance(app.screen, EventsScreen)
        await pilot.press("c", "w")
        assert await shown_range(app, pilot) == wanted


async def test_the_way_to_a_range_is_one_step(job, cache):
    async with running(job, cache) as (app, pilot):
        await to_a_kernel_in_a_range(app, pilot)
        row = app.screen.table.cursor_row
        await pilot.press("w")
        await pilot.press("escape")
        assert isinstance(app.screen, EventsScreen) and app.screen.table.cursor_row == row


async def test_from_a_launch_an_nccl_kernel_and_the_timeline(job, cache):
    async with running(job, cache, WIDE) as (app, pilot):
        await pilot.press("2", "enter", "w")
        node = await shown_range(app, pilot)
        await pilot.press("escape")
        await pilot.press("L", "w")
        assert await shown_range(app, pilot) == node
        await pilot.press("3", "enter", "w")
        assert (await shown_range(app, pilot))[0]


async def test_a_range_of_a_list_is_shown_itself(job, cache):
    async with running(job, cache) as (app, pilot):
        await pilot.press("5", "v", "enter", "down")
        length = app.screen.values()["duration"]
        await pilot.press("w")
        assert (await shown_range(app, pilot))[1] == length


async def test_a_range_beyond_the_first_page_of_its_siblings_is_fetched(job, cache, monkeypatch):
    monkeypatch.setattr(nvtx_screen, "PAGE", 3)
    async with running(job, cache) as (app, pilot):
        await pilot.press("5", "v", "enter", "end")
        length, start = app.screen.values()["duration"], app.screen.values()["start"]
        await pilot.press("w")
        assert (await shown_range(app, pilot))[1] == length and app.screen.node().window.start == start
        outline = app.screen.outline
        seen = [line.node.id for line in outline.lines if not line.rest]
        assert len(set(seen)) == len(seen)
        rests = [row for row, line in enumerate(outline.lines) if line.rest]
        while rests:  # every row that was left out can be fetched, and is there once
            outline.open(rests[0])
            rests = [row for row, line in enumerate(outline.lines) if line.rest]
        seen = [line.node.id for line in outline.lines]
        assert len(set(seen)) == len(seen)
        for line in outline.lines:
            if line.node.id in outline.opened:
                inside = [one for one in outline.lines if line.node.id in outline.tree.ancestors(one.node)[-1:]]
                assert len(inside) == line.node.child_count


async def test_rows_that_are_sums_and_events_in_no_range_say_so(written_once, tmp_path):
    (path,) = training_job(tmp_path, ranks=1, steps=2, layers=2)
    edit(path, "UPDATE NVTX_EVENTS SET end = start WHERE end IS NOT NULL")
    async with running([path], None) as (app, pilot):
        await pilot.press("2", "w")
        line_with(app, "w goes from a single event to the NVTX range around it")
        await to_a_kernel_in_a_range(app, pilot)
        await pilot.press("w")
        line_with(app, "no NVTX range is around it")
        assert isinstance(app.screen, EventsScreen)


async def test_details_of_events_name_the_way_to_the_range(job, cache):
    async with running(job, cache, WIDE) as (app, pilot):
        await pilot.press("2")
        assert not any("w its range" in line for line in screen_text(app))
        for keys in (("enter",), ("enter",), ("3", "enter")):
            await pilot.press(*keys)
            line_with(app, "w its range")
