"""9 Steps: the chart and the tables of iterations, what a row opens, and what is said where there are no steps."""

from __future__ import annotations

import pytest
from jobs import NARROW, WIDE, cells, line_with, press, running, shows, view_bar
from server_program import Server
from synthetic import training_job

import nsystui
from nsystui.questions.blocking.parts import PARTS


@pytest.mark.campaign
async def test_each_step_is_a_column_of_its_parts_with_marks_on_slow_ones_and_on_the_cursor(demo_job, cache_directory):
    async with running(demo_job, cache_directory, WIDE, "9") as (app, pilot):
        chart, rows = app.screen.chart, app.screen.table.answer.records()
        own = [row for row in rows if row["rank"] == 0]
        assert all(sum(row[part] for part in PARTS) == row["duration"] for row in rows)
        longest = max(row["duration"] for row in own)
        heights = {round(sum(shares), 4) for shares in zip(*(bins for _, bins in chart.lanes[-1].stack), strict=True)}
        assert heights - {0.0} == {round(row["duration"] / longest, 4) for row in own}
        slow = [row["slow"] for row in own]
        assert any(slow) and chart.lanes[0].label == "slow" and chart.lanes[0].stack[0][0] == "warning"
        marked = [mark for mark in chart.lanes[0].stack[0][1] if mark]
        assert len(marked) < chart.chart_width * slow.count("slow") / len(slow) + 1
        first = chart.span
        await press(pilot, "down")
        assert chart.span[0] == first[1] + 1  # the next step
        slowest = slow.index("slow")
        await press(pilot, "home", *["down"] * slowest)
        assert "warning" in app.screen.table.cell_styles(app.screen.values()).values()
        assert chart.lanes[0].stack[0][1][chart.span[0]] == 1.0
        line_with(await press(pilot, "v"), "mean of ranks")  # on the row of all
        line_with(await press(pilot, "down", "down"), "rank 1 ")


@pytest.mark.campaign
async def test_more_steps_than_columns_are_means_with_the_longest_marked(tmp_path):
    path = training_job(tmp_path, ranks=1, steps=120, layers=1)
    async with running(path, None, WIDE, "9") as (app, _):
        mark, lane = app.screen.chart.lanes
        line_with(app, "rank 0, a bar: 2 steps")
        steps = {row["step"]: row["duration"] for row in app.screen.table.answer.records()}
        assert mark.label in ("slow", f"longest {max(steps, key=steps.__getitem__)}")
        assert lane.stack


@pytest.mark.campaign
async def test_enter_on_a_step_selects_it_for_every_screen_and_path_and_budget_are_its_own(demo_job, cache_directory):
    async with running(demo_job, cache_directory, WIDE, "9", "down", "enter") as (app, pilot):
        window = app.selection.window
        assert app.selection.tasks == frozenset({app.job.ranks[0].task})
        (row,) = app.screen.table.answer.records()
        assert (row["step"], row["start"], row["duration"]) == (1, window.start, window.end - window.start)
        shows(app, "1 step · NVTX")
        await press(pilot, "v", "v", "v")
        line_with(app, "[budget]")
        assert cells(app, "median")[0] == row["duration"]
        line_with(await press(pilot, "v"), "The path is that of the selected time of rank 0")
        assert sum(cells(app, "time")) == row["duration"]
        for _ in range(4):
            await press(pilot, "escape")
            if app.selection.is_everything:
                break
        assert app.selection.is_everything and app.current_mode == "steps"
        assert (await press(pilot, "3", "9")).screen.values()["step"] == 1


@pytest.mark.campaign
async def test_rows_of_the_path_open_their_events_and_the_timeline(demo_job, cache_directory):
    async with running(demo_job, cache_directory, WIDE, "9", "v", "v", "v", "v") as (app, pilot):
        values = app.screen.values()
        assert values["event"] == "kernel"
        shows(app, " of the path (", "launched by")
        assert (await press(pilot, "enter")).current_mode == "events"
        assert app.screen.values()["row"] == values["row"] and app.screen.values()["rank"] is not None
        assert (await press(pilot, "escape")).current_mode == "steps"
        assert (await press(pilot, "L")).current_mode == "timeline"
        line_with(app, values["name"][:20])
        await press(pilot, "escape")
        for by in ("kind", "NVTX range", "rank", "piece"):
            assert f"[{by}]" in view_bar(await press(pilot, "b"))
        kinds = cells(app, "event")
        assert {"kernel", "nccl"} <= set(kinds)
        await press(pilot, *["down"] * kinds.index("nccl"), "enter")
        assert app.current_mode == "events" and app.screen.values()["kind"] == "nccl"
        await press(pilot, "escape", "home", *["down"] * kinds.index(None), "enter")
        line_with(app, "this is time of the CPU")


@pytest.mark.campaign
async def test_without_steps_the_screen_says_why_and_offers_the_budget_and_the_path(tmp_path):
    path = training_job(tmp_path, ranks=1, steps=1, layers=1)
    async with running(path, None, NARROW, "9") as (app, pilot):
        shows(app, "no steps: no numbered NVTX ranges", "v shows the budget and the critical path of all of the time")
        line_with(await press(pilot, "enter", "t", "v"), "[by rank]")
        shows(app, "no steps: ", "v shows the budget")
        line_with(await press(pilot, "v", "v"), "[budget]")
        assert "compute" in cells(app, "part")
        line_with(await press(pilot, "v"), "[path]")
        assert app.screen.table.row_count


@pytest.mark.campaign
async def test_steps_of_a_server_have_phases_with_a_row_for_each(tmp_path):
    server = Server(tmp_path / "server.sqlite")
    server.forward_all()
    server.export.close()
    async with running([server.export.path], None, WIDE, "9") as (app, pilot):
        assert cells(app, "phase")[:3] == ["decode", "prefill", "decode"] and not any(cells(app, "slow"))
        shows(app, "step 0 of rank 0: 97.4", ", decode")
        assert not app.screen.chart.lanes[0].label.startswith("slow")
        line_with(await press(pilot, *"vvvvvvv"), "[phases]")
        assert cells(app, "phase") == ["all", "prefill", "decode", "mixed"]
        assert app.screen.chart.display
        line_with(await press(pilot, "down", "enter"), "view [steps]")


@pytest.mark.campaign
async def test_what_steps_are_found_by_can_be_changed(tmp_path):
    job = training_job(tmp_path, ranks=2, steps=6, layers=2)
    async with running(job, None, WIDE, "9") as (app, pilot):
        shows(app, "NVTX ranges `step *`")
        for _ in range(5):
            await press(pilot, "O")
            if {one.anchor for one in app.job.steps().of_task.values()} == {"optimizer"}:
                break
        shows(app, "optimizer kernels", "each ends with the kernels of the optimizer")


def test_what_blocked_a_job_is_known_when_that_of_one_report_is_kept(demo_job, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with nsystui.open(demo_job[0]) as one:
        first = len(one.ask("steps", budget=True))
    with nsystui.open(*demo_job) as job:
        assert len(job.ask("steps", budget=True)) == first * len(demo_job)
