"""4 GPU: lanes, the cursor and its values, zooming, selecting, exporting."""

from __future__ import annotations

import csv
import math
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import (
    NARROW,
    WIDE,
    last_line,
    line_with,
    name_of_screen,
    press,
    resize,
    rested,
    running,
    screen_text,
    shows,
)
from synthetic.demo import TrainingJob

from nsystui.base.selection import Selection, Window
from nsystui.output.files import save
from nsystui.questions.ranks.steps import step_times
from nsystui.questions.timeline.streams import queues_over_time
from nsystui.ui.app import NsystuiApp
from nsystui.ui.pictures.gpu import held_back, mean
from nsystui.ui.pictures.zoom import inside, zoomed
from nsystui.ui.screens.gpu import GpuScreen

NAN = math.nan


@pytest.fixture(scope="session")
def one_rank(written_once: Callable[..., list[Path]]) -> list[Path]:
    return written_once("one", TrainingJob(ranks=1, steps=3, layers=2).write)


def gpu(app: NsystuiApp) -> GpuScreen:
    assert name_of_screen(app) == "GpuScreen"
    return app.screen


def labels(app: NsystuiApp) -> list[str]:
    return [lane.label.strip() for lane in gpu(app).chart.lanes]


def stacked(app: NsystuiApp, lane: int = 0) -> list[str]:
    """What a lane is stacked of."""
    return [category for category, _ in gpu(app).chart.lanes[lane].stack]


@pytest.mark.campaign
async def test_lanes_and_details_are_the_shares_that_the_analysis_counts(demo_job, cache_directory):
    async with running(demo_job, cache_directory, NARROW, "4") as (app, pilot):
        assert labels(app) == [f"rank {rank}" for rank in range(4)]
        assert [lane.height for lane in gpu(app).chart.lanes] == [3] * 4, "as high as there is room"
        for lane in gpu(app).chart.lanes:
            parts = [bins for _, bins in lane.stack]
            for column, busy in enumerate(lane.bins):
                if not math.isnan(busy):
                    assert sum(bins[column] for bins in parts) == pytest.approx(busy, abs=1e-9)
        screen, job = gpu(app), app.job
        expected = job.busy(Selection()).lanes(job.extent(), screen.chart.chart_width)[0]
        assert screen.chart.lanes[0].bins == pytest.approx(expected.busy.tolist(), nan_ok=True)
        share = expected.totals.percent(expected.totals.busy)
        assert screen.chart.lanes[0].value == f"{share:.1f} %"
        await pilot.press(*["greater_than_sign"] * 3, "m", "greater_than_sign", "m")
        spent = job.busy(Selection()).devices[0].breakdown(Window(*screen.chart.span_times))
        shown = next(line for line in screen_text(app) if line.startswith("busy "))
        assert float(shown.split()[1]) == pytest.approx(100 * spent.busy / spent.time, abs=0.06)

        await pilot.press("m", "home")
        assert labels(await resize(pilot, *WIDE))[:3] == ["rank 0", "SM active", "tensor active"]
        line, chart = line_with(app, "  step "), screen.chart  # steps stand below the axis where they begin
        times = step_times(app.job.steps(), None)[app.job.ranks[0].task]
        left = len(line) - len(line[line.index("│") :]) - chart.time_column(int(times.start[0]))
        for start, number in zip(times.start.tolist(), times.numbers.tolist(), strict=True):
            assert line[left + chart.time_column(start) :].startswith(f"│{number}")
        late = next(n for n, lane in enumerate(chart.lanes) if math.isnan(lane.bins[0]))
        chart.cursor_lane = late
        assert line_with(await rested(pilot), "not recorded here")
        await pilot.press("M")
        assert [lane.height for lane in chart.lanes] == [5] * 4
        await resize(pilot, 200, 60)
        assert [lane.height for lane in chart.lanes] == [11] * 4, "a large terminal has no empty half"


@pytest.mark.campaign
async def test_many_gpus_have_half_a_line_and_the_cursor_tells_the_parts(many_ranks, cache_directory):
    async with running(many_ranks, cache_directory, NARROW) as (app, pilot):
        await pilot.press("4", "down", "greater_than_sign", "greater_than_sign")
        assert labels(app) == [f"rank {rank}" for rank in range(16)] and line_with(app, "rank 2 rank 3")
        assert line_with(app, "rank 1 · device 0")
        detail = next(line for line in screen_text(app) if line.startswith("busy "))
        assert all(word in detail for word in ("compute", "NCCL", "memory"))
        assert line_with(await press(pilot, "end", "pagedown", "pagedown"), "rank 15 · device 0")


@pytest.mark.campaign
async def test_plus_zooms_around_the_cursor_and_0_shows_all_again(demo_job, cache_directory):
    async with running(demo_job, cache_directory, NARROW, "4") as (app, pilot):
        for key, reason in (("minus", "all of the selection"), ("0", "in view"), ("left_square_bracket", "zooms in")):
            assert reason in last_line(await press(pilot, key))
        screen = gpu(await press(pilot, "greater_than_sign", "greater_than_sign", "right"))
        base, middle = screen.picture.base, sum(screen.chart.cursor_times) // 2
        await pilot.press("+")
        window = screen.picture.window
        assert abs(window.end - window.start - (base.end - base.start) // 2) <= 1
        assert window.start <= middle < window.end
        low, high = screen.chart.cursor_times
        assert low <= middle < high and "of" in screen_text(app)[1]
        await pilot.press("right_square_bracket")
        assert screen.picture.window.start > window.start
        await pilot.press("left_square_bracket", "minus")
        assert screen.picture.window == base
        await pilot.press("+", "+", "0")
        assert screen.picture.window == base

        assert "1 ns already" in last_line(await press(pilot, *["+"] * 26))
        window = screen.picture.window
        assert window.end - window.start == screen.chart.chart_width
        assert (await press(pilot, "enter")).selection.window.end - app.selection.window.start == 1
        assert screen.chart.lanes and len(screen.chart.lanes[0].bins) == 1
        await pilot.press("+", "enter", "left", "m", "right", "m", "M")


@pytest.mark.campaign
async def test_esc_and_o_keep_the_view_and_the_time_where_the_eye_was(demo_job, cache_directory):
    async with running(demo_job, cache_directory) as (app, pilot):
        await pilot.press("4", "down", "down", "greater_than_sign", "greater_than_sign", "+", "+")
        before, column = gpu(app).picture.window, gpu(app).chart.cursor_column
        assert (await press(pilot, "enter", "greater_than_sign", "+", "escape")).selection.is_everything
        assert gpu(app).picture.window == before and gpu(app).chart.cursor_column == column

        time = sum(gpu(app).chart.cursor_times) // 2
        assert screen_text(await press(pilot, "o"))[1].startswith("rank 2 ")
        assert labels(app)[0] == "rank 2" and gpu(app).chart.cursor_lane == 0
        low, high = gpu(app).chart.cursor_times
        assert low <= time <= high
        assert "the only one" in last_line(await press(pilot, "o"))


@pytest.mark.campaign
async def test_e_exports_the_lanes_as_they_are_shown(demo_job, cache_directory, tmp_path):
    async with running(demo_job, cache_directory, NARROW, "4", "+", "down") as (app, _):
        screen = gpu(app)
        save(screen.answer_to_export(), tmp_path / "screen.csv", overwrite=False)
        view, columns = screen.picture.window, screen.chart.chart_width
        devices = app.job.busy(Selection()).devices
        lanes = [device.lanes(view, columns) for device in devices]
    with (tmp_path / "screen.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(devices) * columns * 5  # compute, exposed NCCL, memory, graph, idle
    for rank, one in enumerate(lanes):
        own = [row for row in rows if row["Rank"] == str(rank)]
        exposed = [row["Share (%)"] for row in own if row["Lane"] == "exposed NCCL"]
        for text, share in zip(exposed, one.exposed_nccl.tolist(), strict=True):
            assert (text == "") == math.isnan(share)
            assert not text or float(text) == pytest.approx(100 * share, abs=0.001)
        for start in {row["Start (ns)"] for row in own}:
            parts = [row["Share (%)"] for row in own if row["Start (ns)"] == start]
            assert all(part == "" for part in parts) or sum(map(float, parts)) == pytest.approx(100, abs=0.01)
    assert {int(row["Start (ns)"]) for row in rows} >= {view.start}
    assert {int(row["End (ns)"]) for row in rows} >= {view.end}


@pytest.mark.campaign
async def test_real_graphs_keep_their_gpu_busy(shared_export, cache_directory):
    async with running([shared_export("cuda-graphs")], cache_directory, NARROW, "4") as (app, _):
        lane = gpu(app).chart.lanes[0]
        assert lane.value == "99.9 %"
        bins = dict(lane.stack)["graph"]
        assert sum(value > 0.99 for value in bins) >= 0.9 * len(bins)


@pytest.mark.campaign
async def test_real_metrics_are_lanes_and_any_can_be_chosen_and_exported_with_its_unit(shared_export, cache_directory):
    async with running([shared_export("gpu-metrics")], cache_directory, NARROW, "4") as (app, pilot):
        few = ["GR active", "SM active", "SM issue", "tensor active", "DRAM read", "DRAM write", "PCIe TX", "PCIe RX"]
        assert labels(app) == ["rank 0", *few]
        await pilot.press("end")
        assert "SM active" in line_with(app, "GR active ") or line_with(app, "SM active")
    async with running([shared_export("gpu-metrics")], cache_directory, WIDE, "4") as (app, pilot):
        assert line_with(app, "as room")
        assert len(labels(await press(pilot, "M", "M", "M"))) == 15 and "GPC Clock Frequency" in labels(app)
        await pilot.press("M")
        while "GPC Clock Frequency" not in labels(app):
            await pilot.press("M")
        lane = gpu(app).chart.lanes[1]
        assert lane.value == "955MHz" and max(value for value in lane.bins if not math.isnan(value)) == 1
        assert line_with(app, "GPC Clock Frequency 210 MHz")
        clocks = [row[-3:] for row in gpu(app).answer_to_export().rows if row[2] == "GPC Clock Frequency"]
        assert {(share, unit) for share, _, unit in clocks} == {(None, "Hz")}
        assert 1.3e9 < max(value for _, value, _ in clocks if value is not None) < 1.42e9


@pytest.mark.campaign
async def test_metrics_of_kernels_and_steps_are_a_view_where_capital_m_leads_from_a_table_and_esc_back(
    demo_job, cache_directory
):
    async with running(demo_job, cache_directory, WIDE, "4", "V", "V", "V") as (app, pilot):
        line_with(app, "GR Active [Throughput %]")
        shows(await press(pilot, "b"), "nvjet", "busiest")
        shows(await press(pilot, "b", "b", "b"), "step", "busiest")
        for tab, by in (("2", "kernel"), ("3", "collective"), ("5", "range"), ("9", "step")):
            mode = (await press(pilot, tab, tab)).current_mode
            assert (await press(pilot, "M")).screen.options == {"by": by} and line_with(app, "busiest")
            assert (await press(pilot, "escape")).current_mode == mode


@pytest.mark.campaign
async def test_capital_m_says_what_to_record_where_there_are_no_metrics(many_ranks, cache_directory):
    async with running(many_ranks[:1], cache_directory, WIDE, "2", "M") as (app, _):
        assert app.current_mode == "kernels" and "--gpu-metrics-devices=all" in last_line(app)


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
    """While it is computed words stand in place of the chart, which has no width then."""
    async with running(demo_job, cache_directory, WIDE, "4") as (app, _):
        expected = screen_text(app)
    shown, ask, show_asking = threading.Event(), GpuScreen.ask, GpuScreen.show_asking

    def asked(*words):
        shown.wait(60)
        return ask(*words)

    monkeypatch.setattr(GpuScreen, "ask", asked)
    monkeypatch.setattr(GpuScreen, "show_asking", lambda self: (show_asking(self), shown.set()))
    async with running(demo_job, cache_directory, WIDE, "4") as (app, _):
        assert screen_text(app) == expected and shown.is_set()


@pytest.mark.campaign
async def test_queues_have_a_lane_for_each_stream_with_launches_that_wait(one_rank, cache_directory):
    async with running(one_rank, cache_directory, WIDE, "4", *["M"] * 5) as (app, pilot):
        line_with(app, "[queues]")
        (own,) = gpu(app).picture.gpus
        table = queues_over_time(app.job, Selection(), len(own.parts["busy"])).records()
        streams = {row["stream"] for row in table}
        assert {one.label for one in own.metrics} == {f"queue {stream}" for stream in streams}
        for one in own.metrics:
            expected = [row["queued_mean"] for row in table if f"queue {row['stream']}" == one.label]
            assert [share * one.top for share in one.bins] == pytest.approx(expected, abs=0.006)
            assert one.value() == f"{sum(expected) / len(expected):,.1f}"
        assert max(max(one.bins) for one in own.metrics) == 1
        assert [one.mean for one in own.metrics] == sorted((one.mean for one in own.metrics), reverse=True)
        shows(await press(pilot, *["right"] * 30), " waiting")
