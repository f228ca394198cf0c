"""``e`` with a name that ends in .svg: what a screen draws, as a file."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from jobs import WIDE, line_with, running, screen_text

from nsystui.questions.recipes import recipe_named

SVG = "{http://www.w3.org/2000/svg}"


async def export_as(app, pilot, target, *before: str) -> None:
    await pilot.press("e", *before)
    assert line_with(app, "export (.svg: the drawing) to")
    await pilot.press("ctrl+u", *str(target), "enter")
    line_with(app, "wrote the drawing to")


def texts(target) -> list[str]:
    root = ElementTree.parse(target).getroot()
    assert root.tag == f"{SVG}svg"
    return [element.text or "" for element in root.iter(f"{SVG}text")]


@pytest.mark.parametrize("key", ["1", "4"])
async def test_the_overview_and_the_gpus_over_time_are_drawn_by_rank(demo_job, cache_directory, tmp_path, key):
    target = tmp_path / "x.svg"
    async with running(demo_job, cache_directory, WIDE) as (app, pilot):
        await pilot.press(key)
        await export_as(app, pilot, target)
    assert {"compute", "exposed NCCL"} <= set(texts(target)) or key == "4"
    assert sum("rank" in text for text in texts(target)) >= 4


async def test_the_timeline_is_drawn_as_it_is_in_view(demo_job, cache_directory, tmp_path):
    target = tmp_path / "x.svg"
    async with running(demo_job, cache_directory, WIDE) as (app, pilot):
        await pilot.press("L")
        await export_as(app, pilot, target, "enter")
    assert any(text.startswith("rank 0 GPU") for text in texts(target))
    assert any(text.startswith("stream ") for text in texts(target))


@pytest.mark.parametrize(("key", "view", "word"), [("4", "rank map", "rank 3"), ("3", "nccl sizes", "AllReduce")])
async def test_maps_and_curves_are_drawn(demo_job, cache_directory, tmp_path, key, view, word):
    target = tmp_path / "x.svg"
    async with running(demo_job, cache_directory, WIDE) as (app, pilot):
        await pilot.press(key)
        for _ in range(8):
            if view != app.screen.SCREEN:
                await pilot.press("v")
        assert view == app.screen.SCREEN
        await export_as(app, pilot, target)
    assert word in texts(target)


async def test_a_map_of_steps_has_their_numbers_below_it(demo_job, cache_directory, tmp_path):
    target = tmp_path / "x.svg"
    async with running(demo_job, cache_directory, WIDE) as (app, pilot):
        await pilot.press("4")
        for _ in range(8):
            if not any("median step" in line for line in screen_text(app)):
                await pilot.press("v")
        await export_as(app, pilot, target)
    assert {"rank 0", "0", "1", "2"} <= set(texts(target))


@pytest.mark.parametrize(("key", "view", "word"), [("8", "GPU memory", "rank 3 "), ("4", "metrics", "rank 3 ")])
async def test_a_table_whose_question_is_drawn_is_drawn(demo_job, cache_directory, tmp_path, key, view, word):
    target = tmp_path / "x.svg"
    async with running(demo_job, cache_directory, WIDE) as (app, pilot):
        await pilot.press(key)
        for _ in range(8):
            if app.screen.view_name() != view:
                await pilot.press("v")
        assert app.screen.view_name() == view
        await export_as(app, pilot, target)
    assert any(text.startswith(word) for text in texts(target))


async def test_the_map_of_a_recipe_is_drawn(demo_job, cache_directory, tmp_path):
    target = tmp_path / "x.svg"
    async with running(demo_job, cache_directory, WIDE) as (app, pilot):
        app.screen.open_question(recipe_named("nccl_gpu_time_util_map"))
        await pilot.pause()
        line_with(app, "of 3 metrics")
        await export_as(app, pilot, target)
    assert {"rank 0", "rank 3"} <= set(texts(target))


async def test_a_table_without_a_drawing_says_so_and_a_file_is_never_replaced_unasked(
    demo_job, cache_directory, tmp_path
):
    target = tmp_path / "x.svg"
    async with running(demo_job, cache_directory, WIDE) as (app, pilot):
        await pilot.press("2", "e", "ctrl+u", *str(target), "enter")
        line_with(app, "SVG is for drawings")
        await pilot.press("escape")
        assert not target.exists()
        target.write_text("mine")
        await pilot.press("4", "e", "ctrl+u", *str(target), "enter")
        line_with(app, "overwrite?")
        await pilot.press("n", "enter")
        assert target.read_text() == "mine"
        line_with(app, "not written")
