"""9 Steps: cached results of each report serve jobs of several."""

from shutil import copy

import pytest
from jobs import WIDE, becomes_text, cells, press, rested, running, screen_text, shows
from support import edit


@pytest.mark.campaign
async def test_a_step_is_selected_by_its_number_on_all_ranks(demo_job, cache):
    async with running(demo_job, cache, WIDE, "9", "down", "t") as (app, _):
        assert cells(app, "step") == [1] * len(demo_job) == [1] * len(set(cells(app, "rank")))
        assert screen_text(app)[1].startswith("step 1 · 0."), screen_text(app)[1]


@pytest.mark.campaign
async def test_the_selected_step_is_the_step_of_every_view(demo_job, cache):
    async with running(demo_job, cache, WIDE, "9", "down", "t") as (app, pilot):
        await press(pilot, "v", "b")
        assert set(cells(app, "count")) <= {1, len(demo_job)}
        app.screen.show_view("path")
        await rested(pilot)
        shows(app, "The path is that of step 1 of rank 0")


async def test_steps_by_another_anchor_keep_the_time_without_the_number(demo_job, cache):
    async with running(demo_job, cache, WIDE, "9", "down", "t", "O") as (app, _):
        await becomes_text(app, "steps by")
        assert app.selection.window is not None
        assert app.selection.window.step is None


@pytest.mark.campaign
async def test_the_budget_is_one_tree(demo_job, cache):
    async with running(demo_job, cache, WIDE, "9") as (app, pilot):
        app.screen.show_view("budget")
        await rested(pilot)
        parts = cells(app, "part")
        assert parts[:2] == ["iteration", "compute"] and "GPU busy" not in parts
        shows(app, "    blocked by NCCL  ", "      transfer  ", "    late launches  ")


async def test_the_chart_calls_unresolved_time_by_its_name(demo_job, cache, tmp_path):
    export = copy(demo_job[0], tmp_path / "a.sqlite")
    edit(export, "DROP TABLE CUPTI_ACTIVITY_KIND_CUDA_EVENT")
    async with running([export], cache, WIDE, "9") as (app, _):
        shows(app, "█ unresolved, other 4.47 ms")
