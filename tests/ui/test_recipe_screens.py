"""The recipes of the command palette, and the screens that they open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import WIDE, line_with, name_of_screen, press, rested, running, screen_text, shows
from synthetic.demo import TrainingJob

from nsystui.questions.recipes import all_recipes, recipe_named
from nsystui.ui.palette import words_of

pytestmark = pytest.mark.campaign


@pytest.fixture(scope="module")
def job(written_once: Callable[..., list[Path]]) -> list[Path]:
    return written_once("recipes", TrainingJob(ranks=2, steps=2, layers=1).write)


def offered(app) -> list[str]:
    return [option.hit.text for option in app.screen.query_one("CommandList").options if option.hit]


async def open_recipe(app, pilot, name: str, *keys: str) -> Any:
    """The action of the palette for a recipe, after these keys."""
    (await press(pilot, *keys)).screen.open_question(recipe_named(name))
    return await rested(pilot)


async def test_the_palette_offers_every_recipe_with_what_it_answers(job, cache_directory):
    async with running(job, cache_directory, WIDE, "ctrl+p") as (app, pilot):
        assert name_of_screen(app) == "Palette"
        recipes = [words_of(one) for one in all_recipes()]
        assert [one for one in offered(app) if one in recipes] == recipes
        assert name_of_screen(await press(pilot, "ctrl+p")) != "Palette"
        await pilot.press("ctrl+p", *"gaps")
        assert words_of(recipe_named("gpu_gaps")) in offered(app)
        line_with(await open_recipe(app, pilot, "gpu_gaps", "escape"), "recipe › gpu_gaps")
        line_with(app, "none here: when a GPU was idle for long")
        await pilot.resize_terminal(5, 2)
        assert name_of_screen(await press(pilot, "ctrl+p", "pagedown", "pageup", "pagedown", "escape")) != "Palette"


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        ("help", "help: the keys of this place – ?"),
        ("theme", "theme: a light page"),
        ("peak memory", "GPU: memory – view"),
        ("compare", "compare this rank with another one: x on one, then x on the other – x"),
        ("compare two jobs", words_of(recipe_named("diff"))),
        ("diff", words_of(recipe_named("diff"))),
        ("steps", "Steps: steps – view"),
        ("step time", "Steps: steps – view"),
        ("critical path", "Steps: path – view"),
        ("launch-starved", "Steps: budget – view"),
    ],
)
async def test_the_palette_has_commands_and_views_by_their_titles_and_synonyms_first(
    demo_job, cache_directory, typed, first
):
    async with running(demo_job, cache_directory, WIDE, "ctrl+p", *typed) as (app, _):
        found = offered(app)
        assert found[0] == first
        is_finding = [line.endswith("– finding") for line in found]
        assert is_finding == sorted(is_finding), "findings come last"


async def test_a_question_in_a_new_file_is_in_the_palette_and_its_views_on_a_screen(
    dummy_question, job, cache_directory
):
    async with running(job, cache_directory, WIDE, "ctrl+p", *"how many ranks there are") as (app, pilot):
        assert offered(app)[:1] == ["dummy – how many ranks there are, and a word"]
        assert name_of_screen(await press(pilot, "enter")) == "RecipeScreen"
        assert line_with(app, "one").split() == ["▸", "2", "one"]
        line_with(await press(pilot, "7", *"v" * 3), "[first")
        assert line_with(app, "one").split() == ["▸", "2", "one"]
        shows(await press(pilot, "v"), "[second", "1 of 1 words")
        assert line_with(app, "two").split() == ["▸", "2", "two"]


async def test_a_recipe_is_a_table_to_filter_sort_and_export(job, cache_directory, tmp_path):
    async with running(job, cache_directory) as (app, pilot):
        assert name_of_screen(await open_recipe(app, pilot, "cuda_gpu_kern_sum")) == "RecipeScreen"
        shows(app, "recipe › cuda_gpu_kern_sum", "NVIDIA computes statistics over ranks")
        every = len(app.screen.table.answer)
        assert 0 < len((await press(pilot, "slash", *"nccl", "enter")).screen.table.answer) < every
        await pilot.press("b")
        assert {row[0] for row in app.screen.table.answer.page(0, 99)} == {0, 1}
        line_with(app, "[rank]")
        await pilot.press("s", "s")
        target = tmp_path / "recipe.csv"
        line_with(await press(pilot, "e", "ctrl+u", *str(target), "enter"), "wrote ")
        assert target.read_text(encoding="utf-8").startswith("Rank,")
        assert name_of_screen(await press(pilot, "enter")) == "KernelInstancesScreen"
        await pilot.press("escape")
        line_with(await press(pilot, "escape"), "recipe › cuda_gpu_kern_sum")


async def test_a_map_is_drawn_figure_by_figure_and_is_a_table_too(job, cache_directory):
    async with running(job, cache_directory) as (app, pilot):
        assert name_of_screen(await open_recipe(app, pilot, "nccl_gpu_time_util_map")) == "RecipeMapScreen"
        line_with(app, "All Kernels (%) · 1 of 3 metrics")
        assert sum("rank " in line and "%" in line for line in screen_text(app)) == 2
        line_with(await press(pilot, "b"), "NCCL (%) · 2 of 3")
        assert len(app.screen.answer_to_export()) == 2 * app.screen.chart.chart_width
        assert name_of_screen(await press(pilot, "v")) == "RecipeScreen"
        assert (await press(pilot, "down", "t")).selection.window is not None
        await pilot.press("escape", "escape")
        assert (await press(pilot, "right", "t")).selection.window is not None


async def test_keys_that_cannot_act_say_why_and_what_is_missing_is_said(job, cache_directory):
    async with running(job, cache_directory) as (app, pilot):
        line_with(await open_recipe(app, pilot, "ucx_gpu_time_util_map"), "record with `nsys profile -t ucx`")
        await open_recipe(app, pilot, "cuda_api_sync", "escape")
        line_with(await press(pilot, "b"), "cannot be grouped otherwise")
        line_with(await press(pilot, "a"), "no kernel names here")
        line_with(await open_recipe(app, pilot, "diff", "escape"), "compare with a path")
