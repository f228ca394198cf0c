"""9 Steps: the chart and the tables of iterations, what a row opens, and what is said where there are no steps."""

from __future__ import annotations

import pytest
from jobs import WIDE, line_with, running
from synthetic import training_job

import nsystui


@pytest.mark.campaign
async def test_more_steps_than_columns_are_means_with_the_longest_marked(tmp_path):
    path = training_job(tmp_path, ranks=1, steps=120, layers=1)
    async with running(path, None, WIDE, "9") as (app, _):
        mark, lane = app.screen.chart.lanes
        line_with(app, "rank 0, a bar: 2 steps")
        steps = {row["step"]: row["duration"] for row in app.screen.table.answer.records()}
        assert mark.label in ("slow", f"longest {max(steps, key=steps.__getitem__)}")
        assert lane.stack


def test_what_blocked_a_job_is_known_when_that_of_one_report_is_kept(demo_job, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with nsystui.open(demo_job[0]) as one:
        first = len(one.ask("steps", budget=True))
    with nsystui.open(*demo_job) as job:
        assert len(job.ask("steps", budget=True)) == first * len(demo_job)
