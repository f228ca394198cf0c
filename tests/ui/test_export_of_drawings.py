"""``e`` with a name that ends in .svg: a screen's drawing as a file."""

from xml.etree import ElementTree

import pytest
from jobs import WIDE, line_with, press, rested, running, screen_text

from nsystui.questions.recipes import recipe_named

SVG = "{http://www.w3.org/2000/svg}"


async def export_as(app, pilot, target) -> None:
    assert line_with(await press(pilot, "e"), "export (.svg: the drawing) to")
    line_with(
        await press(pilot, "ctrl+u", *str(target), "enter"), f"wrote the drawing to {target.name} in {target.parent}"
    )


def texts(target) -> list[str]:
    root = ElementTree.parse(target).getroot()
    assert root.tag == f"{SVG}svg"
    return [element.text or "" for element in root.iter(f"{SVG}text")]


@pytest.mark.campaign
async def test_what_is_drawn_on_the_screens_is_drawn_in_the_file(demo_job, cache_directory, tmp_path):
    def to(view: str):
        return lambda app: app.screen.view_name() == view

    async with running(demo_job, cache_directory, WIDE) as (app, pilot):
        for number, (key, is_there, words) in enumerate(
            (
                ("1", None, ("compute", "exposed NCCL", "rank 3")),
                ("4", None, ("rank 0", "rank 3")),
                ("4", lambda app: app.screen.SCREEN == "rank map", ("rank 3",)),
                ("4", lambda app: any("median step" in line for line in screen_text(app)), ("rank 0", "0", "1")),
                ("4", to("metrics"), ("rank 3 ",)),
                ("3", lambda app: app.screen.SCREEN == "nccl sizes", ("AllReduce",)),
                ("4", to("GPU memory"), ("rank 3 ",)),
                ("L", None, ("rank 0 GPU", "stream ")),  # as visible
            )
        ):
            await pilot.press(key)
            for _ in range(8):
                if is_there is not None and not is_there(app):
                    await pilot.press("V")
            assert is_there is None or is_there(app), words
            target = tmp_path / f"{number}.svg"
            await export_as(app, pilot, target)
            for word in words:
                assert any(text.startswith(word) for text in texts(target)), (number, word, texts(target))
            await pilot.press("1")
        app.screen.open_question(recipe_named("nccl_gpu_time_util_map"))
        line_with(await rested(pilot), "of 3 metrics")
        await export_as(app, pilot, tmp_path / "map.svg")
    assert {"rank 0", "rank 3"} <= set(texts(tmp_path / "map.svg"))


@pytest.mark.campaign
async def test_a_table_without_a_drawing_says_so_and_a_file_is_never_replaced_unasked(
    demo_job, cache_directory, tmp_path
):
    target = tmp_path / "x.svg"
    async with running(demo_job, cache_directory, WIDE, "2", "e", "ctrl+u", *str(target), "enter") as (app, pilot):
        line_with(app, "SVG is for drawings")
        await pilot.press("escape")
        assert not target.exists()
        target.write_text("mine")
        line_with(await press(pilot, "4", "e", "ctrl+u", *str(target), "enter"), "overwrite?")
        await pilot.press("n", "enter")
        assert target.read_text() == "mine"
        line_with(app, "not written")
