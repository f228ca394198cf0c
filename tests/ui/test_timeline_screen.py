"""L Timeline: lanes, moves from event to event, zooming, marks, and the shared selection."""

from itertools import pairwise

import pytest
from jobs import WIDE, line_with, name_of_screen, press, resize, running, screen_text
from support import native
from synthetic import training_job

from nsystui.base.selection import Window
from nsystui.exports.metadata import tid_of
from nsystui.ui.app import NsystuiApp
from nsystui.ui.screens.timeline import TimelineScreen
from nsystui.ui.widgets.lane_chart import LaneChart, LaneLine


def timeline(app: NsystuiApp) -> TimelineScreen:
    assert name_of_screen(app) == "TimelineScreen"
    return app.screen


def labels(app: NsystuiApp) -> list[str]:
    return [label.strip() for label in timeline(app).chart.labels]


def label_here(app: NsystuiApp) -> str:
    return labels(app)[timeline(app).chart.cursor_lane]


@pytest.mark.campaign
async def test_lanes_fill_the_height(demo_job, cache_directory):
    async with running(demo_job, cache_directory, (200, 60), "L") as (app, pilot):
        chart = timeline(app).chart
        rows = chart.size.height - 1
        assert sum(last - first + 1 for first, last in map(chart.rows_of, chart.in_sight)) == rows
        assert len({first - last for first, last in map(chart.rows_of, chart.in_sight)}) > 1
        # A label is shown once, however high its lane is, and lanes with hardly any events stay low.
        assert sum("rank 0 GPU" in line for line in screen_text(app)) == 1
        assert {last - first for first, last in [chart.rows_of(labels(app).index("stream 24"))]} == {0}
        assert label_here(await press(pilot, "down")) == "NVTX python"  # the next lane, however many lines it has
        await pilot.press("end")
        for size in ((5, 2), (40, 10), (1, 1), (80, 24)):  # the earlier request is drawn in the new width
            await resize(pilot, *size)
        assert line_with(app, "▸")


@pytest.mark.campaign
async def test_only_the_lanes_in_sight_are_computed(many_ranks, cache_directory):
    async with running(many_ranks, cache_directory, (80, 14), "L", "space") as (app, pilot):
        chart = timeline(app).chart
        assert chart.lane_count == 16 and len(chart.in_sight) == 5
        assert sorted(timeline(app).picture.pictures) == list(chart.in_sight)
        await pilot.press(*["pagedown"] * 4)
        assert chart.cursor_lane == 15 and 15 in chart.in_sight
        assert sorted(timeline(app).picture.pictures) == list(chart.in_sight)
        assert all(chart.line(lane) is not None for lane in chart.in_sight)
        await pilot.press(*["pageup"] * 4)
        assert chart.cursor_lane == 0 and all(chart.line(lane) is not None for lane in chart.in_sight)


@pytest.mark.campaign
async def test_the_cursor_is_at_its_time_once_there_is_room_for_it(demo_job, cache_directory):
    """A chart that is placed before its first layout has no columns yet."""
    async with running(demo_job, cache_directory, WIDE, "L", *["right"] * 5) as (app, pilot):
        chart, column = timeline(app).chart, timeline(app).chart.cursor_column
        chart.styles.width = 0
        await pilot.press("m")  # places the cursor
        assert chart.cursor_column < column
        chart.styles.width = "1fr"
        await pilot.pause()
        assert chart.cursor_column == column


def test_lines_that_are_unknown_say_that_they_are_being_computed():
    chart = LaneChart(label_width=5, value_width=3)
    line = LaneLine("KK", ("compute", "compute"), (1.0, 1.0), (0, 0))
    chart.show(("a", "b"), ("gpu", "gpu"), {0: line}, 0, 10)
    assert chart.line(0) is line and chart.line(1) is None


@pytest.mark.campaign
async def test_threads_have_lanes_of_what_they_ran_on_cpus(written_once, cache_directory):
    cpu_job = written_once("cpu lanes", lambda directory: training_job(directory, ranks=1, steps=3, layers=3))
    async with running(cpu_job, cache_directory, WIDE, "L") as (app, pilot):
        screen, picture = timeline(app), timeline(app).picture
        number, lane = next((number, lane) for number, lane in enumerate(picture.lanes) if lane.is_cpu)
        switches = native(
            cpu_job[0], "SELECT start, isSchedIn FROM SCHED_EVENTS WHERE globalTid = ? ORDER BY start", (lane.thread,)
        )
        # Its sum equals the threads table.
        ran = sum(after[0] - before[0] for before, after in pairwise(switches) if before[1])
        assert picture.timeline.work(lane).length == ran
        screen.action_lane(number - screen.chart.cursor_lane)
        assert "CPU" in line_with(await press(pilot, "right_square_bracket"), "▸   CPU")
        assert line_with(app, "on a CPU for")

        own = picture.timeline.events(lane)
        starts = sorted({*own.start.tolist(), *(start for start, _ in switches[:-1])})
        screen.look_at(None, starts[0])
        assert [screen.time, *[timeline(await press(pilot, "right_square_bracket")).time for _ in range(12)]] == starts[
            :13
        ]
        await pilot.press("left_square_bracket")
        assert screen.time == starts[11]
        name = own.names[int(own.name[-1])]  # a function that is searched
        await pilot.press("slash", *name[:6], "enter", "n")
        assert name[:6] in own.names[int(own.name[own.start.tolist().index(screen.time)])]
        screen.look_at(Window(screen.time - 1000, screen.time + 100_000), screen.time)
        await pilot.pause()
        interval = screen.facts.interval
        assert interval.node
        assert name_of_screen(await press(pilot, "enter")) == "PartialCallTreeScreen"
        assert app.selection.window == interval.window and app.screen.threads.thread == str(tid_of(lane.thread))
        assert app.screen.nodes.calls.samples > 0
        assert (await press(pilot, "escape", "escape")).current_mode == "timeline"
