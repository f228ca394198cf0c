"""``nsystui schema`` says what ``--format json`` writes."""

from __future__ import annotations

import pytest
from synthetic import training_job

from nsystui.questions.catalogue import questions

TYPES = {"integer": int, "number": float, "string": str, "null": type(None)}


@pytest.fixture(scope="module")
def job_files(written_once):
    return written_once("python", lambda directory: training_job(directory, ranks=4, steps=6, layers=4))


@pytest.mark.parametrize(
    "words",
    [
        ["kernels"],
        ["kernels", "--by", "rank,family"],
        ["nccl"],
        ["ranks"],
        ["steps", "--every"],
        ["gpu", "--over-time"],
        ["budget"],
        ["gaps"],
        ["stats", "cuda_api_sum"],
        ["recipe", "nccl_sum"],
    ],
    ids=" ".join,
)
def test_json_keeps_to_its_schema(run, job_files, words):
    schema = run("schema", *words).json
    asked = ["stats", "-r", *words[1:]] if words[0] == "stats" else words
    rows = run(*asked, "--format", "json", *job_files).json
    properties = schema["items"]["properties"]
    assert rows
    for row in rows:
        assert schema["items"]["required"] == list(properties) == [key for key in row if key in properties]
        for key in properties:
            value = row[key]
            value = float(value) if isinstance(value, int) and "number" in properties[key]["type"] else value
            assert type(value) in [TYPES[kind] for kind in properties[key]["type"]], (key, value)


def test_every_question_has_a_schema_with_units(run):
    schemas = run("schema").json
    assert len(schemas) > 80
    assert {f"{one.family} {one.name}".strip() for one in questions()} - schemas.keys() == {"recipe diff"}
    assert schemas["kernels"]["items"]["properties"]["total"]["unit"] == "ns"
    assert schemas["nccl"]["items"]["properties"]["busbw"]["unit"] == "B/s"
    assert all(schema["$id"].startswith("nsystui:") for schema in schemas.values())


def test_what_is_no_question_is_said(run):
    done = run("schema", "moon")
    assert done.status == 2
    assert "moon" in done.err
