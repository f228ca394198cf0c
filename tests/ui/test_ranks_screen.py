"""7 Ranks: the tables, what a row opens, the clock, and the map of all ranks."""

from __future__ import annotations

import threading

import pytest
from jobs import NARROW, WIDE, line_with, running, screen_text

from nsystui.exports.demo import TrainingJob
from nsystui.questions.alignment import ClockMode
from nsystui.store.session import Computation
from nsystui.ui.loading import Computing
from nsystui.ui.screens.ranks import RanksScreen


@pytest.fixture(scope="module")
def ranks(many_ranks):
    """Sixteen ranks of one step: more than the map has lines for at 80x24 when it is cut short."""
    return many_ranks


async def test_the_tables_come_one_after_the_other(demo_job, cache_directory):
    async with running(demo_job, cache_directory, WIDE) as (app, pilot):
        await pilot.press("7")
        line_with(app, "4 of 4 ranks")
        line_with(app, "clock: UTC, then")
        for crumb in ("steps", "across", "every step", "kinds", "collectives"):
            await pilot.press("v")
            line_with(app, f"[{crumb}]")
        await pilot.press("v")
        line_with(app, "4 of 4 ranks")


async def test_a_rank_is_selected_and_its_gpu_shown(demo_job, cache_directory):
    async with running(demo_job, cache_directory) as (app, pilot):
        await pilot.press("7")
        await pilot.press("down", "enter")
        line_with(app, "4 GPU")
        assert app.selection.tasks == frozenset({app.job.ranks[1].task})
        await pilot.press("escape")
        assert app.selection.tasks is None


async def test_the_lanes_of_the_rank_stand_beside_those_of_the_median_rank(demo_job, cache_directory):
    async with running(demo_job, cache_directory, WIDE) as (app, pilot):
        await pilot.press("7", "down", "down")
        await pilot.pause()
        shares = sorted(zip(app.screen.table.answer.cells("compute_percent"), range(4), strict=True))
        _, median = shares[1]
        assert [lane.label for lane in app.screen.lanes.lanes] == ["rank 2", f"rank {median}, median"]
        line_with(app, f"rank {median}, median")
        await pilot.press("v")
        line_with(app, "[steps]")
        assert not app.screen.lanes.display


async def test_the_figures_in_which_a_rank_is_odd_are_coloured(demo_job, cache_directory):
    async with running(demo_job, cache_directory, WIDE) as (app, pilot):
        await pilot.press("7", "down", "down")
        values = app.screen.values()
        assert values["odd"].startswith("late ▲, wait caused ▲")
        assert {"rank", "odd", "late", "wait_caused"} <= set(app.screen.table.cell_styles(values))
        await pilot.press("down")
        assert not app.screen.table.cell_styles(app.screen.values())


async def test_a_step_is_a_selection(demo_job, cache_directory):
    async with running(demo_job, cache_directory) as (app, pilot):
        await pilot.press("7")
        await pilot.press("v", "v", "v")
        await pilot.press("down", "t")
        assert app.selection.window is not None
        assert app.screen.values()["step"] == 1


async def test_a_kind_of_collective_opens_the_single_ones_and_one_the_events(demo_job, cache_directory):
    async with running(demo_job, cache_directory) as (app, pilot):
        await pilot.press("7")
        await pilot.press(*"vvvv")
        await pilot.press("enter")
        line_with(app, "[collectives]")
        await pilot.press("enter")
        line_with(app, "│6 Evt│")
        assert app.selection.window is not None


async def test_the_clock_can_be_changed(demo_job, cache_directory):
    async with running(demo_job, cache_directory, WIDE) as (app, pilot):
        await pilot.press("7")
        for words, mode in (("clock: UTC of the hosts", ClockMode.UTC), ("clock: not aligned", ClockMode.OWN)):
            await pilot.press("C")
            line_with(app, words)
            assert app.job.alignment.mode is mode


async def test_one_report_has_one_clock(demo_job, cache_directory):
    async with running(demo_job[:1], cache_directory) as (app, pilot):
        await pilot.press("7", "C")
        line_with(app, "one report has one clock")


async def test_the_map_goes_through_figures_and_steps(demo_job, cache_directory):
    async with running(demo_job, cache_directory, WIDE) as (app, pilot):
        await pilot.press("4", "v")
        line_with(app, "exposed NCCL % · ")
        await pilot.press("b")
        line_with(app, "memory % · ")
        await pilot.press("v")
        line_with(app, "median step · ")
        line_with(app, "│1")
        await pilot.press("right", "t")
        assert app.selection.window is not None
        await pilot.press("escape")
        assert app.selection.window is None
        line_with(app, "[map of steps]")


async def test_the_map_has_half_a_row_for_each_rank_where_there_are_many(ranks, cache_directory):
    async with running(ranks, cache_directory, (80, 16)) as (app, pilot):
        await pilot.press("4", "v")
        line_with(app, "  14 15 ")
        await pilot.press(*["down"] * 3)
        line_with(app, "▸ 3 ")


async def test_the_map_marks_the_rank_that_is_unlike_the_others(tmp_path):
    job = TrainingJob(ranks=6, steps=6, layers=8, gpu_metrics=False).write(tmp_path)
    async with running(job, None, WIDE) as (app, pilot):
        await pilot.press("4", "v")
        assert [number for number, lane in enumerate(app.screen.chart.lanes) if "◂" in lane.value] == [2]


async def test_ranks_share_lines_where_there_are_too_few(ranks, cache_directory):
    async with running(ranks, cache_directory, (80, 12)) as (app, pilot):
        await pilot.press("4", "v")
        line_with(app, "mean of 2 ranks a line")
        line_with(app, "12-13")
        await pilot.press("a")
        line_with(app, "minimum of 2 ranks a line")
        await pilot.press("down", "enter")
        line_with(app, "% · 2 ranks")
        assert not any("14-15" in line for line in screen_text(app))
        await pilot.press("escape")
        line_with(app, "minimum of 2 ranks a line")


async def test_without_gpu_work_the_map_says_why(tmp_path):
    from synthetic import cpu_only_export

    async with running([cpu_only_export(tmp_path / "cpu.sqlite")], None, NARROW) as (app, pilot):
        await pilot.press("4", "v")
        line_with(app, "no GPU work in this export")


async def test_a_first_answer_that_takes_long_is_waited_for_in_words(demo_job, cache_directory, monkeypatch):
    may_answer = threading.Event()
    ask = RanksScreen.ask
    monkeypatch.setattr(RanksScreen, "ask", lambda *args: may_answer.wait(60) and ask(*args))
    async with running(demo_job, cache_directory, WIDE) as (app, pilot):
        await pilot.press("7")
        try:
            line_with(app, "computing…")
            app.post_message(Computing(Computation("steps", 3, 64)))
            line_with(app, "computing steps: 3 of")
        finally:
            may_answer.set()
        app.post_message(Computing(None))
        await pilot.pause()
        assert not any("computing" in line for line in screen_text(app))
        line_with(app, "4 of 4 ranks")
