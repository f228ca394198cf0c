"""The network over 4 GPU: offered where adapters were sampled, by adapter or beside collectives."""

from __future__ import annotations

from jobs import NARROW, WIDE, hit, line_with, running, screen_text
from support import edit
from synthetic import training_job


async def test_adapters_and_collectives_are_views_beside_the_lanes(demo_job, cache_directory):
    async with running(demo_job, cache_directory, WIDE) as (app, pilot):
        await hit(app, pilot, "4")
        line_with(app, "network")
        app.screen.show_view("network")
        await hit(app, pilot)
        assert "mlx5_0" in line_with(app, "gpu-a02")
        line_with(app, "2 of 2 rows")
        await hit(app, pilot, "b")
        line_with(app, "AllReduce")
        line_with(app, "a sample is the mean of")


async def test_at_80_columns_the_rates_are_there(demo_job, cache_directory):
    async with running(demo_job, cache_directory, NARROW) as (app, pilot):
        await hit(app, pilot, "4")
        app.screen.show_view("network")
        await hit(app, pilot)
        assert all(word in line_with(app, "peak sent") for word in ("sent", "received"))


async def test_without_samples_the_view_is_not_offered(tmp_path, cache_directory):
    (path,) = training_job(tmp_path, ranks=1, steps=2, layers=2)
    edit(path, "DELETE FROM NET_NIC_METRIC")
    async with running([path], cache_directory, WIDE) as (app, pilot):
        await hit(app, pilot, "4")
        assert not any("network" in line for line in screen_text(app))
