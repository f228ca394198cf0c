"""Efficiency, over 4 GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import WIDE, line_with, running, screen_text
from synthetic import cpu_only_export

from nsystui.exports.demo import TrainingJob
from nsystui.ui.screens.efficiency import EfficiencyScreen
from nsystui.ui.screens.gpu import GpuScreen
from nsystui.ui.screens.ranks import RanksScreen


@pytest.fixture(scope="module")
def job(written_once: Callable[..., list[Path]]) -> list[Path]:
    return written_once("efficiency", TrainingJob(ranks=2, steps=2, layers=2, straggler=1, gpu_metrics=False).write)


async def test_p_shows_factors_and_the_breakdown_of_each_gpu(job, cache_directory):
    async with running(job, cache_directory) as (app, pilot):
        await pilot.press("4", "v", "v", "v")
        for name in ("device parallel efficiency", "├ load balance", "├ communication", "└ orchestration"):
            assert "%" in line_with(app, name)
        assert "unknown: record with `nsys profile -t mpi`" in line_with(app, "MPI parallel")
        assert sum("◂" in line for line in screen_text(app)) == 1
        assert [row[0] for row in app.screen.table.answer.page(0, 9)] == ["all", "0", "1"]
        for label in ("C only", "N only", "M only", "C+N", "all 3", "idle"):
            assert label in line_with(app, "C only")


async def test_wide_screens_tell_the_formulas_too(job, cache_directory):
    async with running(job, cache_directory, WIDE) as (app, pilot):
        await pilot.press("4", "v", "v", "v")
        line_with(app, "= load balance × communication × orchestration")


async def test_b_goes_through_the_tables_and_another_key_changes_what_is_useful(job, cache_directory):
    async with running(job, cache_directory) as (app, pilot):
        await pilot.press("4", "v", "v", "v")
        names = []
        for _ in range(4):
            names.append(app.screen.answer_to_export().name)
            await pilot.press("b")
        assert names == ["breakdown", "device", "host", "processes"]
        before = line_with(app, "device parallel efficiency")
        await pilot.press("U")
        assert line_with(app, "device parallel efficiency") != before
        line_with(app, "useful (talp)")


async def test_a_factor_opens_the_screen_that_explains_it(job, cache_directory):
    async with running(job, cache_directory) as (app, pilot):
        await pilot.press("4", "v", "v", "v", "b", "enter")
        line_with(app, "the product of the factors below")
        await pilot.press("down", "down", "enter")
        assert app.current_mode == "nccl"
        await pilot.press("4", "down", "enter")
        assert isinstance(app.screen, GpuScreen)


async def test_a_rank_is_selected_and_its_gpu_shown(job, cache_directory):
    async with running(job, cache_directory) as (app, pilot):
        await pilot.press("4", "v", "v", "v", "enter")
        line_with(app, "the sum over all GPUs")
        await pilot.press("down", "down", "enter")
        assert isinstance(app.screen, GpuScreen)
        line_with(app, "rank 1")


async def test_a_time_in_the_selection_is_the_whole(job, cache_directory):
    async with running(job, cache_directory) as (app, pilot):
        await pilot.press("4", "enter", "v", "v", "v")
        assert isinstance(app.screen, EfficiencyScreen)
        line_with(app, "100 % is the selected time")


async def test_a_factor_leads_to_another_tab_and_esc_back(job, cache_directory):
    async with running(job, cache_directory) as (app, pilot):
        await pilot.press("4", "v", "v", "v")
        line_with(app, "[efficiency]")
        await pilot.press("b", "down", "enter")
        assert isinstance(app.screen, RanksScreen)
        await pilot.press("escape")
        assert isinstance(app.screen, EfficiencyScreen)


async def test_without_gpu_work_it_says_so(tmp_path):
    async with running([cpu_only_export(tmp_path / "cpu.sqlite")], None) as (app, pilot):
        await pilot.press("4", "v", "v", "v")
        line_with(app, "no GPU work in this export")


async def test_runs_without_a_common_clock_ask_for_a_choice(shared_export, cache_directory):
    paths = [shared_export(f"h100-2rank-moe-{when}") for when in ("before", "after")]
    async with running(paths, cache_directory) as (app, pilot):
        await pilot.press("4", "v", "v", "v")
        line_with(app, "share no clock")
