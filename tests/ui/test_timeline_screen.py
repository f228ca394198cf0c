"""4 GPU and L Timeline: lanes, the cursor and its values, moves, zooming, marks, selecting, exporting."""

import math
import threading
from itertools import pairwise

import numpy as np
import pytest
from campaign import first
from jobs import WIDE, line_with, name_of_screen, press, resize, rested, running, screen_text, shows, tap
from support import edit, native
from synthetic import training_job

from nsystui.base.selection import Window
from nsystui.exports.metadata import tid_of
from nsystui.ui.app import NsystuiApp
from nsystui.ui.pictures.gpu import held_back, mean
from nsystui.ui.pictures.selection import inside, zoomed
from nsystui.ui.screens.gpu import GpuScreen
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
        assert sum(last - first + 1 for first, last in map(chart.rows_of, chart.in_sight)) == chart.size.height - 1
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
        assert chart.lines.keys() >= set(chart.in_sight)
        await pilot.press(*["pageup"] * 4)
        assert chart.cursor_lane == 0 and chart.lines.keys() >= set(chart.in_sight)


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
    assert chart.lines == {0: line}


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


NAN = math.nan


def test_a_view_stays_inside_its_base():
    base = Window(1000, 2000)
    for view, time, is_closer, expected in (
        ((1000, 2000), 1250, True, (1125, 1625)),
        ((1000, 2000), 1000, True, (1000, 1500)),
        ((1900, 2000), 2000, False, (1800, 2000)),
        ((1100, 1700), 1400, False, None),
        ((1500, 1560), 1530, True, (1505, 1555)),
    ):
        assert zoomed(Window(*view), base, time, is_closer, 50) == (expected and Window(*expected))
    assert inside(Window(900, 1100), base) == Window(1000, 1200) and inside(Window(0, 5000), base) is None


def test_samples_fill_the_bins_before_them_but_no_longer_gap_and_the_mean_leaves_out_what_was_not_recorded():
    assert held_back((0.5, NAN, 0.7, NAN, 0.1)) == (0.5, 0.7, 0.7, 0.1, 0.1) and held_back(()) == ()
    gap = held_back((0.5, 0.5, 0.5, NAN, NAN, NAN, NAN, 0.5, 0.5))
    assert [math.isnan(value) for value in gap] == [False] * 3 + [True] * 4 + [False] * 2
    assert math.isnan(held_back((NAN, 0.5))[0])
    assert mean((0.2, NAN, 0.4), (0, 2)) == pytest.approx(0.3) and mean((NAN, NAN), (0, 1)) is None


@pytest.mark.campaign
async def test_a_first_answer_that_takes_long_has_the_details_of_any_other(demo_job, cache_directory, monkeypatch):
    """During the computation, words replace the chart, which then has no width."""
    async with running(demo_job, cache_directory, WIDE, "4") as (app, _):
        expected = screen_text(app)
    shown, ask, show_text = threading.Event(), GpuScreen.ask, GpuScreen.show_text

    def asked(*words):
        shown.wait(60)
        return ask(*words)

    monkeypatch.setattr(GpuScreen, "ask", asked)

    def show(screen, text):
        show_text(screen, text)
        if text == screen.computing:
            shown.set()

    monkeypatch.setattr(GpuScreen, "show_text", show)
    async with running(demo_job, cache_directory, WIDE, "4") as (app, _):
        assert screen_text(app) == expected and shown.is_set()


@pytest.mark.campaign
async def test_the_network_has_lanes_below_the_gpus_scaled_to_the_largest_in_view(demo_job, cache_directory):
    path = demo_job[0]
    async with running([path], cache_directory, WIDE, "4", "M", "t") as (app, pilot):
        line_with(app, "[network]")
        gpu, host = app.screen.picture.gpus
        lanes = {metric.label: metric for metric in host.metrics}
        assert [label for label in lanes if label != "slow NCCL"] == ["sent mlx5_0", "recv mlx5_0", "wait mlx5_0"]
        assert not gpu.metrics and host.title == app.job.session.reports[0].metadata.host
        shows(app, host.title, "1 GPU ")
        window, offset = app.screen.picture.window, app.job.session.reports[0].clock_offset
        samples = native(
            path,
            "SELECT start, end, value FROM NET_NIC_METRIC JOIN TARGET_INFO_NETWORK_METRICS USING (metricsListId, "
            "metricsIdx) WHERE name = 'IB: Bytes sent'",
        )
        sent = lanes["sent mlx5_0"]
        width = (window.end - window.start) / len(sent.bins)
        for number in range(0, len(sent.bins), 7):
            low, high = window.start + number * width, window.start + (number + 1) * width
            parts = [(max(0.0, min(b + offset, high) - max(a + offset, low)), value) for a, b, value in samples]
            time = sum(part for part, _ in parts)
            rate = sum(part * value for part, value in parts) / time * 1_000 if time else None
            shown = None if np.isnan(sent.bins[number]) else sent.bins[number] * sent.top
            assert shown == (None if rate is None else pytest.approx(rate, rel=1e-6, abs=1e3))
        assert max(np.nanmax(one.bins) for one in host.metrics if one.unit == "B/s") == 1
        line_with(await press(pilot, *["down"] * 9), "network adapters")
        assert "of a host" in screen_text(await press(pilot, "o"))[-1]


@pytest.mark.campaign
async def test_without_gpu_metrics_the_network_is_offered(tmp_path, cache_directory):
    (path,) = training_job(tmp_path, ranks=1, steps=2, layers=2)
    edit(path, "DELETE FROM GPU_METRICS")
    async with running([path], cache_directory, WIDE, "4", "M", "n") as (app, _):
        lanes = app.screen.chart.lanes
        assert "sent mlx5_0" in {one.label.strip() for one in lanes} | {text for one in lanes for _, text in one.notes}


@pytest.mark.parametrize(
    ("tab", "place"), first(1, [("6", lambda screen: screen.table.cursor_row), ("L", lambda screen: screen.time)])
)
async def test_keys_that_are_pressed_during_a_search_act_after_it(demo_job, cache_directory, tab, place):
    async with running(demo_job, cache_directory, WIDE, tab) as (app, pilot):
        search, after = ["slash", *"nvjet", "enter"], ["n", "right_square_bracket", "n"]
        places = [place((await press(pilot, *keys)).screen) for keys in (search, *([key] for key in after))]
        await pilot.press("end" if tab == "L" else "home")
        tap(app, *search, *after)
        assert place((await rested(pilot)).screen) == places[-1]
        assert places == sorted(set(places))
