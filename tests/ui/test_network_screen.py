"""The network over 4 GPU: offered if adapters were sampled, by adapter or during collectives."""

import numpy as np
import pytest
from jobs import WIDE, line_with, press, running, screen_text, shows
from support import edit, native
from synthetic import training_job


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
