"""``--format svg`` and ``-o x.svg``: the drawings of questions, against their tables; drawings of recipes."""

import re
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

import pytest

from nsystui.questions.recipes import all_recipes

SVG = "{http://www.w3.org/2000/svg}"


def titles(text: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(text).iter(f"{SVG}title")]


@pytest.mark.campaign
def test_bars_of_the_budget_are_the_numbers_of_its_table(run, demo_job):
    rows = run("budget", *demo_job, "--format", "json").json
    drawn: dict[str, dict[str, float]] = defaultdict(dict)
    for title in titles(run("budget", *demo_job, "--format", "svg").out):
        if match := re.fullmatch(r"(rank \d+): (.*) ([\d.]+) %", title):
            drawn[match[1]][match[2]] = float(match[3])
    for row in rows:
        own = drawn[f"rank {row['rank']}"]
        assert own["compute"] == pytest.approx(row["compute_percent"], abs=0.05)
        assert own["exposed NCCL"] == pytest.approx(row["exposed_nccl_percent"], abs=0.05)
        assert sum(own.values()) == pytest.approx(100, abs=0.5)


@pytest.mark.campaign
def test_points_of_the_bandwidth_are_the_medians_of_the_sizes(run, demo_job):
    from nsystui.base.answer import Unit
    from nsystui.base.units import format_value

    rows = run("nccl", *demo_job, "--sizes", "exact", "--format", "json").json
    expected = set()
    for row in rows:
        rate = row["busbw_without_wait_bytes_per_s"] or row["busbw_bytes_per_s"]
        if rate is not None:
            size = format_value(Unit.BYTES, row["message_size_bytes"])
            expected.add((row["collective"], size, float(format_value(Unit.RATE, rate).split()[0])))
    drawn = set()
    for title in titles(run("nccl", *demo_job, "--format", "svg").out):
        if match := re.fullmatch(r"(\w+), (.*): ([\d.]+) \w+/s", title):
            drawn.add((match[1], match[2], float(match[3])))
    assert len(drawn) == len(expected)
    for one in drawn:
        near = [other[2] for other in expected if other[:2] == one[:2]]
        assert near == [pytest.approx(one[2], rel=1e-3)]


def test_a_drawing_never_replaces_a_file_unasked(run, demo_job, tmp_path: Path):
    target = tmp_path / "x.svg"
    target.write_text("mine")
    assert run("gpu", *demo_job, "-o", target).status == 2
    assert target.read_text() == "mine"
    assert run("gpu", *demo_job, "-o", target, "--force").status == 0
    assert target.read_text().startswith("<svg")


@pytest.mark.parametrize("words", [[], ["--list-recipes"]])
def test_without_a_name_it_lists_them_all_with_what_they_answer(run, words):
    done = run("recipe", *words)
    assert (done.status, done.err) == (0, "")
    lines = [line.split(maxsplit=1) for line in done.out.splitlines()]
    assert lines == [[recipe.name, recipe.help] for recipe in all_recipes()]


def test_a_drawing_is_ascii_where_nothing_else_can_be_shown(run, demo_job, monkeypatch):
    monkeypatch.setattr("nsystui.output.files.wants_ascii", lambda *_: True)
    out = run("recipe", "nccl_gpu_time_util_map", demo_job[0]).out
    assert out.isascii() and "#" in out
