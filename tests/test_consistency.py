"""The answers about a job do not contradict each other."""

import pytest
from campaign import some
from consistency import Answers, contradictions
from recorded import JOBS, write_jobs
from support import REAL_EXPORTS, shared


def test_the_demo_has_no_contradictions(demo_job):
    assert list(contradictions([*map(str, demo_job)])) == []


def test_a_contradiction_is_found(demo_job, monkeypatch):
    """The budget is changed to have no start-up."""
    rows = Answers.rows

    def wrong(self, command):
        return [{**row, "startup_ns": 0} if command == "budget" else row for row in rows(self, command)]

    monkeypatch.setattr(Answers, "rows", wrong)
    found = list(contradictions([*map(str, demo_job)]))
    assert [line for line in found if line.startswith("gaps: ") and "of startup, 0 ns in budget" in line]
    assert [line for line in found if line.startswith("start-up costs")]


@pytest.mark.campaign
@pytest.mark.parametrize("name", some(60, REAL_EXPORTS))
def test_no_real_export_has_contradictions(name):
    assert list(contradictions([*map(str, shared(name))])) == []


@pytest.mark.campaign
@pytest.mark.parametrize("name", some(20, JOBS))
def test_no_other_job_has_contradictions(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_jobs(["triage", name], tmp_path)
    assert list(contradictions([name])) == []
