"""7 Ranks: the tables, what a row opens, the clock, and the map of all ranks."""

from __future__ import annotations

import threading

import pytest
from jobs import WIDE, becomes_text, kept_at_work, line_with, press, resize, running, screen_text, shows, tap

from nsystui.questions.job.opening import JobSource
from nsystui.store.session import Computation
from nsystui.ui.app import NsystuiApp
from nsystui.ui.loading import Computing
from nsystui.ui.screens.ranks import RanksScreen


@pytest.mark.campaign
async def test_lanes_take_the_lines_that_the_table_leaves(demo_job, cache_directory):
    heights = []
    for size in (WIDE, (200, 60)):
        async with running(demo_job, cache_directory, size, "7", "down", "down") as (app, _):
            heights.append(app.screen.lanes.lanes[0].height)
            assert screen_text(app)[app.screen.lanes.region.bottom - 1].strip().startswith("step")
    assert 3 <= heights[0] < heights[1]


@pytest.mark.campaign
async def test_the_map_of_many_ranks_has_half_a_row_for_each_or_a_line_for_two(many_ranks, cache_directory):
    async with running(many_ranks, cache_directory, (80, 16), "4", "v") as (app, pilot):
        line_with(app, "  14 15 ")
        line_with(await press(pilot, *["down"] * 3), "▸ 3 ")
        await pilot.press("home")
        shows(await resize(pilot, 80, 12), "mean of 2 ranks a line", "12-13")
        line_with(await press(pilot, "a"), "minimum of 2 ranks a line")
        line_with(await press(pilot, "down", "enter"), "% · 2 ranks")
        assert not any("14-15" in line for line in screen_text(app))
        line_with(await press(pilot, "escape"), "minimum of 2 ranks a line")


@pytest.mark.campaign
async def test_a_first_answer_that_takes_long_is_waited_for_in_words(demo_job, cache_directory, monkeypatch):
    may_answer, ask = threading.Event(), RanksScreen.ask
    monkeypatch.setattr(RanksScreen, "ask", lambda *args: may_answer.wait(60) and ask(*args))
    app = NsystuiApp(JobSource(tuple(map(str, demo_job)), cache_directory))
    async with kept_at_work(app, WIDE) as rest:
        await rest()
        tap(app, "7")
        assert await becomes_text(app, "computing Ranks › ranks…")
        app.post_message(Computing(Computation("steps", 3, 64)))
        assert await becomes_text(app, "computing steps: 3 of")
        may_answer.set()
        app.post_message(Computing(None))
        await rest()
        assert not any("computing" in line for line in screen_text(app))
        line_with(app, "4 of 4 ranks")
