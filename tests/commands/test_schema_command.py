"""``nsystui schema`` says what ``--format json`` writes."""

import re

import campaign
import duckdb
import pytest
from synthetic import training_job

import nsystui
from nsystui.questions.queries.registry import questions


@pytest.fixture(scope="module")
def job_files(written_once):
    return written_once("python", lambda directory: training_job(directory, ranks=4, steps=6, layers=4))


@pytest.mark.campaign
def test_every_question_has_a_schema_with_units(run):
    schemas = run("schema").json
    assert len(schemas) > 70
    assert {f"{one.family} {one.name}".strip() for one in questions()} - schemas.keys() == {"recipe diff"}
    assert {"triage", "info", "diff", "ncu", "nccl-log"} < schemas.keys()
    assert schemas["kernels"]["items"]["properties"]["total_ns"]["unit"] == "ns"
    assert schemas["nccl"]["items"]["properties"]["busbw_bytes_per_s"]["unit"] == "B/s"
    assert all(re.fullmatch(r"nsystui:.+:2", schema["$id"]) for schema in schemas.values())


SUFFIXES = {
    "ns": "ns", "B": "bytes", "10^6 B": "mb", "%": "percent", "B/s": "bytes_per_s", "10^6 B/s": "mb_per_s",
    "ticks/ms": "ticks_per_ms",
}  # fmt: skip


def forms_of(schema):
    """The forms of the rows, of one table or of several."""
    several = schema["items"].get("oneOf")
    return [one["properties"]["rows"]["items"] for one in several] if several else [schema["items"]]


@pytest.mark.campaign
@pytest.mark.parametrize(
    "words",
    campaign.first(2, [[], *(["kernels", "--by", by] for by in ("rank", "shape", "family")), ["steps", "--every"]]),
    ids=" ".join,
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


def test_what_is_no_question_is_said(refused):
    assert "moon" in refused("schema", "moon")


def test_json_parquet_and_frames_have_the_same_keys(run, job_files, tmp_path):
    required = run("schema", "kernels").json["items"]["required"]
    target = tmp_path / "kernels.parquet"
    assert run("kernels", "-o", target, job_files[0]).status == 0
    with nsystui.open(job_files[0]) as job:
        frame = job.ask("kernels")
    assert list(run("kernels", "--format", "json", job_files[0]).json[0]) == required == list(frame.columns)
    assert duckdb.read_parquet(str(target)).columns == required
    assert list(frame.attrs["units"]) == required


def test_a_column_is_sorted_by_its_name_in_json_or_by_the_name_without_its_unit(run, refused, job_files):
    asked = ("kernels", job_files[0], "--format", "json", "--sort")
    longest = run(*asked, "max_ns").json
    assert [row["max_ns"] for row in longest] == sorted((row["max_ns"] for row in longest), reverse=True)
    assert run(*asked, "max").json == longest
    assert "total_ns, count, avg_ns" in refused(*asked, "longest")


@pytest.mark.parametrize(("unit", "ns"), [("usec", 1e3), ("msec", 1e6), ("sec", 1e9)])
def test_another_unit_of_time_is_in_the_keys(run, job_files, unit, ns):
    asked = ("stats", "-r", "cuda_gpu_kern_sum", job_files[0], "--format", "json")
    (before, *_), (row, *_) = run(*asked).json, run(*asked, "--timeunit", unit).json
    key = f"total_{unit.removesuffix('ec')}"
    assert row[key] == pytest.approx(before["total_ns"] / ns, rel=1e-3)
    assert not any(name.endswith("_ns") for name in row)
    assert run(*asked, "--timeunit", unit, "--sort", key).json[0] == row
