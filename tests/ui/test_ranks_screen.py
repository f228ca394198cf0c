"""7 Ranks: the tables, what a row opens, the clock, and the map of all ranks."""

from __future__ import annotations

import threading

import jobs
import pytest
from jobs import NARROW, WIDE, becomes_text, kept_at_work, line_with, press, resize, running, screen_text, shows, tap
from synthetic.demo import TrainingJob

from nsystui.questions.collectives.alignment import ClockMode
from nsystui.questions.job.opening import JobSource
from nsystui.store.session import Computation
from nsystui.ui.app import NsystuiApp
from nsystui.ui.loading import Computing
from nsystui.ui.screens.ranks import RanksScreen


@pytest.mark.campaign
async def test_rows_open_what_they_are_of(demo_job, cache_directory):
    async with running(demo_job, cache_directory, WIDE, "7") as (app, pilot):
        shows(app, "4 of 4 ranks", "clock: UTC, refined by")
        line_with(await press(pilot, "down", "enter"), "4 GPU")
        assert app.selection.tasks == frozenset({app.job.ranks[1].task})
        assert (await press(pilot, "escape")).selection.tasks is None

        values = (await press(pilot, "down")).screen.values()  # the figures in which a rank is odd are coloured
        assert values["odd"].startswith("late ▲, wait caused ▲")
        assert {"rank", "odd", "late", "wait_caused"} <= set(app.screen.table.cell_styles(values))
        _, median = sorted(zip(jobs.cells(app, "compute_percent"), range(4), strict=True))[1]
        assert [lane.label for lane in app.screen.lanes.lanes] == ["rank 2", f"rank {median}, median"]
        line_with(app, f"rank {median}, median")
        assert not (await press(pilot, "down")).screen.table.cell_styles(app.screen.values())

        for crumb in ("kinds", "collectives"):
            line_with(await press(pilot, "v"), f"[{crumb}]")
            assert not app.screen.lanes.display
        line_with(await press(pilot, "v"), "4 of 4 ranks")
        line_with(await press(pilot, "v", "enter"), "[collectives]")
        line_with(await press(pilot, "enter"), "│6 Events│")
        assert app.selection.window is not None


@pytest.mark.campaign
async def test_lanes_take_the_lines_that_the_table_leaves(demo_job, cache_directory):
    heights = []
    for size in (WIDE, (200, 60)):
        async with running(demo_job, cache_directory, size, "7", "down", "down") as (app, _):
            heights.append(app.screen.lanes.lanes[0].height)
            assert screen_text(app)[app.screen.lanes.region.bottom - 1].strip().startswith("step")
    assert 3 <= heights[0] < heights[1]


@pytest.mark.campaign
async def test_the_clock_of_several_reports_can_be_changed(demo_job, cache_directory):
    async with running(demo_job, cache_directory, WIDE, "7") as (app, pilot):
        for words, mode in (("clock: UTC of the hosts", ClockMode.UTC), ("clock: not aligned", ClockMode.OWN)):
            line_with(await press(pilot, "C"), words)
            assert app.job.alignment.mode is mode
    async with running(demo_job[:1], cache_directory, NARROW, "x") as (app, pilot):
        line_with(app, "there is one rank only")
        line_with(await press(pilot, "7", "C"), "one report has one clock")


@pytest.mark.campaign
async def test_the_map_goes_through_figures_and_steps(demo_job, cache_directory):
    async with running(demo_job, cache_directory, WIDE, "4", "v") as (app, pilot):
        line_with(app, "exposed NCCL % · ")
        line_with(await press(pilot, "b"), "memory % · ")
        shows(await press(pilot, "v"), "median step · ", "│1")
        assert (await press(pilot, "right", "t")).selection.window is not None
        assert (await press(pilot, "escape")).selection.window is None
        line_with(app, "[map of steps]")


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
async def test_the_map_marks_the_rank_that_is_unlike_the_others(tmp_path):
    job = TrainingJob(ranks=6, steps=6, layers=8, gpu_metrics=False).write(tmp_path)
    async with running(job, None, WIDE, "4", "v") as (app, _):
        assert [number for number, lane in enumerate(app.screen.chart.lanes) if "◂" in lane.value] == [2]


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


async def test_one_rank_is_written_as_one_row(job, cache, tmp_path):
    async with running(job[:1], cache, NARROW, "7") as (app, pilot):
        await jobs.answer(app, pilot, str(tmp_path / "ranks.csv"), "e")
        assert "wrote 1 row to ranks.csv" in jobs.last_line(app)
