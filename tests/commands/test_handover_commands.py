"""``nsystui export`` and ``nsystui ncu`` in a script."""

import sqlite3
from contextlib import closing

import pytest


class TestExport:
    @pytest.mark.campaign
    @pytest.mark.parametrize(
        ("flag", "name"), [("--trace", "job.json.gz"), ("--paraver", "job.prv"), ("--trace", "j.prv")]
    )
    def test_it_writes_once_and_says_how_much_on_which_clock(self, run, refused, demo_job, tmp_path, flag, name):
        words = ["export", flag, tmp_path / name, *demo_job[:2]]
        done = run(*words)
        assert (done.status, done.out) == (0, "")
        assert "events to" in done.err and "clock: UTC, refined by" in done.err
        before = (tmp_path / name).read_bytes()
        assert "already exists" in refused(*words)
        assert run(*words, "--force").status == 0
        assert (tmp_path / name).read_bytes() == before

    def test_a_selection_of_nothing_is_told_and_writes_nothing(self, run, demo_job, tmp_path):
        done = run("export", "--trace", tmp_path / "job.json", demo_job[0], "--filter", "no_such_name")
        assert done.status == 3 and "the selection has no events" in done.err
        assert not list(tmp_path.iterdir())


class TestNcu:
    def test_a_row_of_the_event_list_is_the_launch_that_it_says(self, run, demo_job):
        with closing(sqlite3.connect(f"{demo_job[0].as_uri()}?mode=ro", uri=True)) as connection:
            starts = connection.execute("SELECT start FROM CUPTI_ACTIVITY_KIND_KERNEL ORDER BY start").fetchall()
        events = run("events", demo_job[0], "--kinds", "kernel,nccl", "--format", "csv").table
        assert len(events) == len(starts)
        (found,) = run("ncu", demo_job[0], "--event", events[7]["Row"], "--format", "json").json
        function = events[7]["Name"].partition("<")[0].rpartition("::")[2]
        assert function in found["command"] and found["selected"] == 1
