"""``nsystui triage``."""

import re
import shlex

import pytest
from synthetic import training_job
from synthetic.demo import TrainingJob


@pytest.fixture(scope="module")
def stalled(tmp_path_factory):
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
def job_files(written_once):
    return written_once("python", lambda directory: training_job(directory, ranks=4, steps=6, layers=4))


@pytest.mark.campaign
def test_the_command_of_a_finding_sorts_by_a_key_of_its_json(run, job_files, stalled):
    rows = [row for job in (job_files, stalled) for row in run("triage", *job, "--format", "json").json]
    assert {"straggler", "slow-steps"} <= {row["id"] for row in rows}
    sorted_by = [row["command"].split() for row in rows if row["command"] and "--sort" in row["command"]]
    assert sorted_by
    for words in sorted_by:
        schema = run("schema", *words[: words.index("--sort")]).json
        assert words[words.index("--sort") + 1] in schema["items"]["required"], words


SUFFIXES = {
    "ns": "ns", "B": "bytes", "10^6 B": "mb", "%": "percent", "B/s": "bytes_per_s", "10^6 B/s": "mb_per_s",
    "ticks/ms": "ticks_per_ms",
}  # fmt: skip


def forms_of(schema):
    """Return the schemas of the rows, for one table or several."""
    several = schema["items"].get("oneOf")
    return [one["properties"]["rows"]["items"] for one in several] if several else [schema["items"]]


@pytest.mark.campaign
@pytest.mark.parametrize(
    "words", [[], *(["kernels", "--by", by] for by in ("rank", "shape", "family")), ["steps", "--every"]], ids=" ".join
)
def test_a_key_ends_in_the_unit_of_its_values_and_names_it_once(run, words):
    found = run("schema", *words).json
    for schema, form in ((one, form) for one in ([found] if words else found.values()) for form in forms_of(one)):
        keys = form["required"]
        assert len(set(keys)) == len(keys), schema["title"]
        for key, about in form["properties"].items():
            named = re.findall("(?<=_)(?:bytes_per_s|mb_per_s|ticks_per_ms|ns|bytes|mb|percent)(?=_|$)", f"_{key}")
            assert named == [SUFFIXES[about["unit"]]] if "unit" in about else not named, (schema["title"], key)
            assert not named or key.endswith(named[0]), (schema["title"], key)


@pytest.mark.campaign
@pytest.mark.parametrize(("unit", "ns"), [("usec", 1e3), ("msec", 1e6), ("sec", 1e9)])
def test_another_unit_of_time_is_in_the_keys(run, job_files, unit, ns):
    asked = ("stats", "-r", "cuda_gpu_kern_sum", job_files[0], "--format", "json")
    (before, *_), (row, *_) = run(*asked).json, run(*asked, "--timeunit", unit).json
    key = f"total_{unit.removesuffix('ec')}"
    assert row[key] == pytest.approx(before["total_ns"] / ns, rel=1e-3)
    assert not any(name.endswith("_ns") for name in row)
    assert run(*asked, "--timeunit", unit, "--sort", key).json[0] == row
