"""The recipes of the command palette, and the screens that they open."""

import pytest
from jobs import WIDE, line_with, name_of_screen, press, running, shows

pytestmark = pytest.mark.campaign


async def test_a_question_in_a_new_file_is_in_the_palette_and_its_views_on_a_screen(dummy_question, demo_job, cache):
    async with running(demo_job[:2], cache, WIDE, "ctrl+p", *"how many ranks there are") as (app, pilot):
        offered = [option.hit.text for option in app.screen.query_one("CommandList").options if option.hit]
        assert offered[:1] == ["dummy – how many ranks there are, and a word"]
        assert name_of_screen(await press(pilot, "enter")) == "RecipeScreen"
        assert line_with(app, "one").split() == ["▸", "2", "one"]
        line_with(await press(pilot, "7", "v", "f"), "[first")
        assert line_with(app, "one").split() == ["▸", "2", "one"]
        shows(await press(pilot, "v", "s"), "[second", "1 of 1 words")
        assert line_with(app, "two").split() == ["▸", "2", "two"]
