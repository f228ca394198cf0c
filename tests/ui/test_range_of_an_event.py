"""``w``: from an event to the deepest NVTX range around it, or around the call that launched it."""

import pytest
from jobs import NARROW, WIDE, line_with, name_of_screen, press, rested, running, screen_text
from support import native

from nsystui.base.answer import Unit
from nsystui.base.units import format_value
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


def details(app) -> str:
    return "\n".join(line.strip() for line in app.screen.pane.texts)


def step_of(path, correlation_id: int) -> int:
    """Return the number in the name of the step around the launching call."""
    found = native(
        path,
        "SELECT coalesce(n.text, s.value) FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId "
        "JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.start BETWEEN n.start AND n.end WHERE r.correlationId = ?",
        (correlation_id,),
    )
    (name,) = [name for (name,) in found if name.startswith("step ")]
    return int(name.removeprefix("step "))


@pytest.mark.campaign
async def test_an_nccl_kernel_says_its_step_message_and_who_came_last(job, cache):
    async with running(job, cache, WIDE, "3", "enter") as (app, pilot):
        rows = app.screen.table.answer.records()
        here = next(number for number, row in enumerate(rows) if row["collective"] == "AllReduce")
        app.screen.table.cursor_row = here
        seen = [details(await rested(pilot))]
        assert name_of_screen(await press(pilot, "enter")) == "EventsScreen"
        values = app.screen.values()
        rank = int(values["rank"])
        assert values["kind"] == "nccl"
        seen.append(details(app))
        # The kernels of an operation have the same position among the AllReduces of their ranks.
        durations = []
        for path in job:
            found = native(
                path,
                "SELECT k.end - k.start, k.correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL k "
                "JOIN StringIds s ON s.id = k.shortName WHERE s.value = ? ORDER BY k.start",
                (str(values["name"]).partition("(")[0],),
            )
            durations.append(found)
        place = next(i for i, (_, one) in enumerate(durations[rank]) if one == values["correlation_id"])
        times = [found[place][0] for found in durations]
        assert values["duration"] == times[rank]
        size = format_value(Unit.BYTES, rows[here]["message_size"])
        for text in seen:
            assert f"step {step_of(job[rank], int(values['correlation_id']))}  {size} · comm " in text
            assert f"transfer {format_value(Unit.DURATION, min(times))}" in text
            if max(times) - min(times) > max(10_000, max(times) // 10):
                assert f"rank {times.index(min(times))} came last" in text


@pytest.mark.campaign
async def test_who_came_last_is_said_also_where_the_communicator_is_not_known(shared_export, cache):
    async with running([shared_export("h100-2rank-moe-before")], cache, WIDE, "3", "enter") as (app, pilot):
        rows = app.screen.table.answer.records()[:2]  # the two kernels of one AlltoAll
        last = min(rows, key=lambda row: row["duration"])["rank"]
        assert {row["rank"] for row in rows} == {0, 1}
        for key in ("home", "down"):
            assert f"rank {last} came last of the open ranks" in details(await press(pilot, key))
