"""The recipes of the command palette, and the screens that they open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import WIDE, line_with, running, screen_text

from nsystui.exports.demo import TrainingJob
from nsystui.questions.recipes import all_recipes, recipe_named
from nsystui.ui.palette import Palette, words_of
from nsystui.ui.screens.instances import KernelInstancesScreen
from nsystui.ui.screens.recipe import RecipeMapScreen, RecipeScreen


@pytest.fixture(scope="module")
def job(written_once: Callable[..., list[Path]]) -> list[Path]:
    return written_once("recipes", TrainingJob(ranks=2, steps=2, layers=1).write)


def offered(app) -> list[str]:
    return [option.hit.text for option in app.screen.query_one("CommandList").options if option.hit]


async def open_recipe(app, pilot, name: str) -> None:
    """The action of the palette for a recipe."""
    app.screen.open_question(recipe_named(name))
    await pilot.pause()


@pytest.mark.campaign
async def test_the_palette_offers_every_recipe_with_what_it_answers(job, cache_directory):
    async with running(job, cache_directory, WIDE) as (app, pilot):
        await pilot.press("ctrl+p")
        assert isinstance(app.screen, Palette)
        assert [one for one in offered(app) if one.startswith("recipe: ")] == [words_of(one) for one in all_recipes()]
        await pilot.press("ctrl+p")
        assert not isinstance(app.screen, Palette)
        await pilot.press("ctrl+p", *"gaps")
        assert words_of(recipe_named("gpu_gaps")) in offered(app)
        await pilot.press("escape")
        await open_recipe(app, pilot, "gpu_gaps")
        line_with(app, "recipe › gpu_gaps")
        line_with(app, "none here: when a GPU was idle for long")
        await pilot.resize_terminal(5, 2)
        await pilot.press("ctrl+p", "pagedown", "pageup", "pagedown", "escape")
        assert not isinstance(app.screen, Palette)


@pytest.mark.campaign
async def test_a_question_in_a_new_file_is_in_the_palette_and_its_views_on_a_screen(
    dummy_question, job, cache_directory
):
    async with running(job, cache_directory, WIDE) as (app, pilot):
        await pilot.press("ctrl+p", *"how many ranks there are")
        assert offered(app)[:1] == ["dummy – how many ranks there are, and a word"]
        await pilot.press("enter")
        assert isinstance(app.screen, RecipeScreen)
        assert line_with(app, "one").split() == ["▸", "2", "one"]
        await pilot.press("7", *"v" * 6)
        line_with(app, "[first")
        assert line_with(app, "one").split() == ["▸", "2", "one"]
        await pilot.press("v")
        line_with(app, "[second")
        line_with(app, "1 of 1 words")
        assert line_with(app, "two").split() == ["▸", "2", "two"]


@pytest.mark.campaign
async def test_a_recipe_is_a_table_to_filter_sort_and_export(job, cache_directory, tmp_path):
    async with running(job, cache_directory) as (app, pilot):
        await open_recipe(app, pilot, "cuda_gpu_kern_sum")
        assert isinstance(app.screen, RecipeScreen)
        line_with(app, "recipe › cuda_gpu_kern_sum")
        line_with(app, "NVIDIA's statistics over ranks")
        every = len(app.screen.table.answer)
        await pilot.press("slash", *"nccl", "enter")
        assert 0 < len(app.screen.table.answer) < every
        await pilot.press("b")
        assert {row[0] for row in app.screen.table.answer.page(0, 99)} == {0, 1}
        line_with(app, "[rank]")
        await pilot.press("s", "s")
        target = tmp_path / "recipe.csv"
        await pilot.press("e", "ctrl+u", *str(target), "enter")
        line_with(app, "wrote ")
        assert target.read_text(encoding="utf-8").startswith("Rank,")
        await pilot.press("enter")
        assert isinstance(app.screen, KernelInstancesScreen)
        await pilot.press("escape")
        await pilot.press("escape")
        line_with(app, "recipe › cuda_gpu_kern_sum")


@pytest.mark.campaign
async def test_a_map_is_drawn_figure_by_figure_and_is_a_table_too(job, cache_directory):
    async with running(job, cache_directory) as (app, pilot):
        await open_recipe(app, pilot, "nccl_gpu_time_util_map")
        assert isinstance(app.screen, RecipeMapScreen)
        line_with(app, "All Kernels (%) · 1 of 3 metrics")
        assert sum("rank " in line and "%" in line for line in screen_text(app)) == 2
        await pilot.press("b")
        line_with(app, "NCCL (%) · 2 of 3")
        assert len(app.screen.answer_to_export()) == 2 * app.screen.chart.chart_width
        await pilot.press("v")
        assert isinstance(app.screen, RecipeScreen)
        await pilot.press("down", "t")
        assert app.selection.window is not None
        await pilot.press("escape", "escape")
        await pilot.press("right", "t")
        assert app.selection.window is not None


@pytest.mark.campaign
async def test_keys_that_cannot_act_say_why_and_what_is_missing_is_said(job, cache_directory):
    async with running(job, cache_directory) as (app, pilot):
        await open_recipe(app, pilot, "ucx_gpu_time_util_map")
        line_with(app, "record with `nsys profile -t ucx`")
        await pilot.press("escape")
        await open_recipe(app, pilot, "cuda_api_sync")
        await pilot.press("b")
        line_with(app, "cannot be grouped otherwise")
        await pilot.press("n")
        line_with(app, "no kernel names here")
        await pilot.press("escape")
        await open_recipe(app, pilot, "diff")
        line_with(app, "compare with a path")
