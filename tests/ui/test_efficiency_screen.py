"""Efficiency, over 4 GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import NARROW, line_with, name_of_screen, press, running, view_bar
from synthetic.demo import TrainingJob


@pytest.fixture(scope="module")
def job(written_once: Callable[..., list[Path]]) -> list[Path]:
    return written_once("efficiency", TrainingJob(ranks=2, steps=2, layers=2, straggler=1, gpu_metrics=False).write)


@pytest.mark.campaign
async def test_rows_open_the_screen_that_explains_them_and_esc_goes_back(job, cache_directory):
    async with running(job, cache_directory, NARROW, "4", "v", "v", "v", "enter") as (app, pilot):
        line_with(app, "the sum over all GPUs")
        line_with(await press(pilot, "b", "enter"), "the product of the factors below")
        assert name_of_screen(await press(pilot, "down", "enter")) == "RanksScreen"
        assert name_of_screen(await press(pilot, "escape")) == "EfficiencyScreen"
        assert (await press(pilot, "down", "enter")).current_mode == "nccl"
        assert name_of_screen(await press(pilot, "4", "down", "enter")) == "HostScreen" and "[gaps]" in view_bar(app)
        assert name_of_screen(await press(pilot, "4", "v", "v", "v", "B", "down", "down", "enter")) == "GpuScreen"
        line_with(app, "rank 1")
