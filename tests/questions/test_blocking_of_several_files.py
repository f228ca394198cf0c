"""Blocking time in a job of several files: each GPU is judged by its own operations, on its own clock, once."""

from contextlib import closing

import pytest
from synthetic.demo import TrainingJob

import nsystui
from nsystui.base.selection import Window
from nsystui.questions.blocking.parts import blocked_in, blocking
from nsystui.questions.job.job import OpenJob
from nsystui.questions.queries import process_rows
from nsystui.store.cache import Cache
from nsystui.store.session import Session

pytestmark = pytest.mark.campaign


@pytest.fixture(scope="module")
def paths(written_once):
    return written_once(
        "two-ranks-blocked", TrainingJob(ranks=2, steps=4, layers=2, gpu_metrics=False, stall_ms=0).write
    )


def opened(paths, cache) -> closing[OpenJob]:
    session = Session(cache=Cache(cache))
    for path in paths:
        session.add(path)
    return closing(OpenJob(session))


def test_a_file_that_is_known_already_is_not_computed_with_the_others(paths, tmp_path):
    with opened(paths[:1], tmp_path) as first:
        (own,) = blocking(first).whole.values()
    with opened(paths, tmp_path) as both:
        found = list(blocking(both).whole.values())
    assert [one.task.report for one in found] == [0, 1]
    assert found[0].parts.tolist() == own.parts.tolist()


def test_files_that_are_read_together_are_told_as_one_after_the_other(paths, tmp_path, monkeypatch):
    with opened(paths, tmp_path / "together") as job:
        together = blocking(job).whole
        tasks = [task for task, _ in together]
        assert [rows.is_shared for rows in process_rows.ProcessRows.each(job.session, tasks)] == [True, True]
    monkeypatch.setattr(process_rows, "_TOGETHER", 0)
    with opened(paths, tmp_path / "apart") as job:
        assert [rows.is_shared for rows in process_rows.ProcessRows.each(job.session, tasks)] == [False, False]
        apart = blocking(job).whole
    assert {key: one.parts.tolist() for key, one in together.items()} == {
        key: one.parts.tolist() for key, one in apart.items()
    }


def test_a_window_is_that_of_job_time_in_each_file(paths, tmp_path):
    with opened(paths, tmp_path) as job:
        for (task, device), own in blocking(job).iterations.items():
            found = blocked_in(job, Window(int(own.starts[1]), int(own.ends[1])))[task, device]
            assert found.parts.tolist() == own.parts[1:2].tolist()


def test_what_blocked_a_job_is_known_when_that_of_one_report_is_kept(demo_job, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with nsystui.open(demo_job[0]) as one:
        first = len(one.ask("steps", budget=True))
    with nsystui.open(*demo_job) as job:
        assert len(job.ask("steps", budget=True)) == first * len(demo_job)
