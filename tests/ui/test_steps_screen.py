"""9 Steps: cached results of each report serve jobs of several."""

import nsystui


def test_what_blocked_a_job_is_known_when_that_of_one_report_is_kept(demo_job, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with nsystui.open(demo_job[0]) as one:
        first = len(one.ask("steps", budget=True))
    with nsystui.open(*demo_job) as job:
        assert len(job.ask("steps", budget=True)) == first * len(demo_job)
