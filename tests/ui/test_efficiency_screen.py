"""Efficiency, over 4 GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import NARROW, WIDE, cells, line_with, name_of_screen, press, resize, running, screen_text, view_bar
from synthetic.demo import TrainingJob


@pytest.fixture(scope="module")
def job(written_once: Callable[..., list[Path]]) -> list[Path]:
    return written_once("efficiency", TrainingJob(ranks=2, steps=2, layers=2, straggler=1, gpu_metrics=False).write)


@pytest.mark.campaign
async def test_v_shows_factors_and_the_breakdown_of_each_gpu(job, cache_directory):
    async with running(job, cache_directory, NARROW, "4", "v", "v", "v") as (app, pilot):
        for name in ("device parallel efficiency", "├ load balance", "├ communication", "└ orchestration"):
            assert "%" in line_with(app, name)
        assert "unknown: record with `nsys profile -t mpi`" in line_with(app, "MPI parallel")
        assert sum("◂" in line for line in screen_text(app)) == 1
        assert cells(app, app.screen.table.answer.columns[0].key) == ["all", "0", "1"]
        for label in ("C only", "N only", "M only", "C+N", "all 3", "idle"):
            assert label in line_with(app, "C only")
        names = [(await press(pilot, "b")).screen.answer_to_export().name for _ in range(4)]
        assert names == ["device", "host", "processes", "breakdown"]
        before = line_with(app, "device parallel efficiency")
        assert line_with(await press(pilot, "U"), "device parallel efficiency") != before
        line_with(app, "useful (talp)")
        line_with(await resize(pilot, *WIDE), "= load balance × communication × orchestration")
        await pilot.press("4", "enter", "v", "v", "v")  # a time in the selection is the whole
        assert name_of_screen(app) == "EfficiencyScreen"
        line_with(app, "100 % of each GPU is the selected time")


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
