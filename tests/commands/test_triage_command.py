"""``nsystui triage``."""

import shlex

import pytest
from synthetic import training_job
from synthetic.demo import TrainingJob


@pytest.fixture(scope="module")
def stalled(tmp_path_factory):
    """Return a rank that stalls for 200 ms in one of ten steps."""
    return TrainingJob(ranks=1, steps=10, layers=4, stall_ms=200).write(tmp_path_factory.mktemp("stalled"))


@pytest.mark.campaign
def test_the_command_that_shows_more_can_be_pasted(run, stalled):
    """It has the files and a window in ms: its table contains the gap of the finding."""
    lines = run("triage", *stalled).out.splitlines()
    (command,) = [line.partition(" or nsystui ")[2] for line in lines if "nsystui timeline" in line]
    again = run(*shlex.split(command))
    assert again.status == 0, again.err
    assert "ms:" in command and all(str(path) in command for path in stalled)


@pytest.fixture(scope="module")
def straggling(written_once):
    return written_once("python", lambda directory: training_job(directory, ranks=4, steps=6, layers=4))


@pytest.fixture
def told(run, straggling, stalled):
    """Return the rows of triage for two jobs."""
    return {job: run("triage", *job, "--format", "json").json for job in (tuple(straggling), tuple(stalled))}


@pytest.mark.campaign
def test_the_command_of_a_finding_sorts_by_a_key_of_its_json(run, told):
    rows = [row for rows in told.values() for row in rows]
    assert {"straggler", "slow-steps"} <= {row["id"] for row in rows}
    sorted_by = [row["command"].split() for row in rows if row["command"] and "--sort" in row["command"]]
    assert sorted_by
    for words in sorted_by:
        schema = run("schema", *words[: words.index("--sort")]).json
        assert words[words.index("--sort") + 1] in schema["items"]["required"], words
