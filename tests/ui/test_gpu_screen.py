"""4 GPU: lanes of GPUs and networks, the cursor and its values, zooming, selecting, exporting."""

import csv
import math
import threading

import numpy as np
import pytest
from jobs import NARROW, WIDE, line_with, press, running, screen_text, shows
from support import edit, native
from synthetic import training_job

from nsystui.base.selection import Selection, Window
from nsystui.output.files import save
from nsystui.ui.pictures.gpu import held_back, mean
from nsystui.ui.pictures.zoom import inside, zoomed
from nsystui.ui.screens.gpu import GpuScreen

NAN = math.nan


@pytest.mark.campaign
async def test_e_exports_the_lanes_as_they_are_shown(demo_job, cache_directory, tmp_path):
    async with running(demo_job, cache_directory, NARROW, "4", "+", "down") as (app, _):
        screen = app.screen
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
    shown, ask, show_asking = threading.Event(), GpuScreen.ask, GpuScreen.show_asking

    def asked(*words):
        shown.wait(60)
        return ask(*words)

    monkeypatch.setattr(GpuScreen, "ask", asked)
    monkeypatch.setattr(GpuScreen, "show_asking", lambda self: (show_asking(self), shown.set()))
    async with running(demo_job, cache_directory, WIDE, "4") as (app, _):
        assert screen_text(app) == expected and shown.is_set()


@pytest.mark.campaign
async def test_the_network_has_lanes_below_the_gpus_scaled_to_the_largest_in_view(demo_job, cache_directory):
    path = demo_job[0]
    async with running([path], cache_directory, WIDE, "4", *["M"] * 4) as (app, pilot):
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
    async with running([path], cache_directory, WIDE, "4", "M") as (app, _):
        lanes = app.screen.chart.lanes
        assert "sent mlx5_0" in {one.label.strip() for one in lanes} | {text for one in lanes for _, text in one.notes}
