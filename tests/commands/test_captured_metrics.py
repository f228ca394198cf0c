"""``nsystui kernels --metrics``: the GPU metrics of another capture, next to the rows of its kernels."""

import csv
import json
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def captured(demo_job, tmp_path_factory) -> Path:
    """Return the CSV of the metrics of rank 0's kernels."""
    from nsystui.cli import main

    path = tmp_path_factory.mktemp("captured") / "metrics.csv"
    assert main(["metrics", "--by", "kernel", "--format", "csv", "-o", str(path), str(demo_job[0])]) == 0
    return path


def test_the_metrics_of_the_other_capture_stand_beside_the_kernel_of_their_name(run, demo_job, captured):
    with captured.open(newline="") as file:
        written = {row["Name"]: row for row in csv.DictReader(file)}
    # Rank 2 is another capture, whose kernels have the same names.
    table = run("kernels", demo_job[2], "--metrics", captured, "--format", "csv").table
    found = [row for row in table if row["Smart Name"] in written]
    assert len(found) > 3
    metrics = [name for name in written[found[0]["Smart Name"]] if "%" in name]
    assert len(metrics) > 5
    for row in found:
        own = written[row["Smart Name"]]
        assert [row[name] for name in metrics] == [own[name] for name in metrics]
        mean = int(own["Total Time (ns)"]) / int(own["Instances"])
        assert float(row["Captured Avg (ns)"]) == pytest.approx(mean, abs=0.051)


def test_kernels_without_metrics_are_unknown_and_kernels_of_the_other_capture_alone_are_named(
    run, demo_job, captured, tmp_path
):
    with captured.open(newline="") as file:
        header, first, *rest = list(csv.reader(file))
    path = tmp_path / "other.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, first, ["gone\x1b[2J", *rest[0][1:]]])
    done = run("kernels", demo_job[0], "--metrics", path, "--format", "csv")
    assert "of the time are not in other.csv: their metrics are unknown" in done.err
    assert "gone" in done.err and "do not have" in done.err and "\x1b" not in done.err
    assert {row["Samples"] for row in done.table if row["Smart Name"] != first[0]} == {""}
    # Names that the filter excludes are matched, too.
    path.write_text("".join(captured.read_text().splitlines(True)[:2]))
    assert "do not have" not in run("kernels", demo_job[0], "--filter", "flash", "--metrics", path).err


@pytest.mark.campaign
def test_a_changed_file_changes_the_answer(run, demo_job, captured, tmp_path):
    path = tmp_path / "metrics.csv"
    lines = captured.read_text().splitlines(True)
    for count in (2, 4):
        path.write_text("".join(lines[:count]))
        table = run("kernels", demo_job[0], "--metrics", path, "--format", "csv").table
        assert sum(bool(row["Samples"]) for row in table) == count - 1
    assert "Samples" not in run("kernels", demo_job[0], "--format", "csv").table[0]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "is not the table of the metrics of kernels"),
        ("{header}\na,1\n", "a row has 2 values"),
        ("{header}\n{row}\n", "is incomplete or was edited"),
    ],
)
def test_a_file_that_is_no_such_table_is_one_line_with_the_command_that_writes_it(
    refused, demo_job, captured, tmp_path, text, cause
):
    header = captured.read_text().splitlines()[0]
    path = tmp_path / "metrics.csv"
    path.write_text(text.format(header=header, row=",".join(["x"] * (header.count(",") + 1))))
    line = refused("kernels", demo_job[0], "--metrics", path)
    assert str(path) in line and cause in line and "nsystui metrics --by kernel" in line


@pytest.mark.parametrize("number", ["9" * 309, "9" * 100_000, "1e999", "inf", "nan", "-1e300"])
@pytest.mark.parametrize("place", ["Total Time (ns)", "Instances", "last"])
def test_a_number_that_no_metric_can_have_is_refused_in_a_short_line(
    refused, demo_job, captured, tmp_path, number, place
):
    header, row, *_ = csv.reader(captured.read_text().splitlines())
    row[-1 if place == "last" else header.index(place)] = number
    path = tmp_path / "metrics.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, row])
    message = refused("kernels", demo_job[0], "--metrics", path)
    assert "is incomplete or was edited" in message and len(message) < 1000


@pytest.mark.parametrize("name", ["name", "total", "captured_avg"])
def test_a_metric_called_like_a_column_of_the_summary_has_a_key_of_its_own(run, demo_job, captured, tmp_path, name):
    header, *rows = csv.reader(captured.read_text().splitlines())
    path = tmp_path / "metrics.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([[*header, name], *([*row, "7"] for row in rows)])
    text = run("kernels", demo_job[0], "--metrics", path, "--format", "json").out
    json.loads(text, object_pairs_hook=without_doubles)


def without_doubles(pairs: list[tuple[str, object]]) -> dict[str, object]:
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)
