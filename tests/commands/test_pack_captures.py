"""``nsystui pack`` of several captures of one process: they stay one rank, whenever each is packed."""

import csv
import io

import pytest
from campaign import first
from support import report_in
from test_joined_captures import SECOND, STEPS, capture


def rows(run, *words):
    done = run(*words, "--format", "csv")
    assert done.status == 0, done.err
    return list(csv.DictReader(io.StringIO(done.out)))


def test_captures_are_packed_without_ranks_given_and_stay_one_rank(tmp_path, run):
    for number in range(3):
        capture(tmp_path / f"in/report.{number + 1}.sqlite", number * SECOND)
    for line in ("rank 0  report.1", "3 of 3 were packed before"):
        done = run("pack", tmp_path / "in", "-o", tmp_path / "job")
        assert done.status == 0 and line in done.out + done.err
    (steps,) = rows(run, "steps", tmp_path / "job")
    assert steps == rows(run, "steps", tmp_path / "in")[0] and steps["Steps"] == str(3 * STEPS)
    (steps,) = rows(run, "steps", report_in(tmp_path / "job", 2_000_000), "--ranks", "0")
    assert (steps["Rank"], steps["Steps"]) == ("0", str(STEPS))


@pytest.mark.parametrize("is_alone", first(1, [True, False]))
def test_a_capture_that_is_packed_later_joins_the_packed_ones(tmp_path, run, is_alone):
    for number in (0, 2, 1):
        path = tmp_path / f"in/report.{number + 1}.sqlite"
        capture(path, number * SECOND)
        assert run("pack", path if is_alone else tmp_path / "in", "-o", tmp_path / "job").status == 0
    (steps,) = rows(run, "steps", tmp_path / "job")
    assert steps["Steps"] == str(3 * STEPS)


def test_processes_without_rank_numbers_have_those_of_the_overview_unless_each_is_packed_alone(tmp_path, run):
    for process in (7, 8):
        (tmp_path / f"in/n{process}").mkdir(parents=True)
        for number in range(2):
            capture(tmp_path / f"in/n{process}/report.{number + 1}.sqlite", number * SECOND, pid=process)
    exports = sorted((tmp_path / "in").rglob("*.sqlite"))
    assert run("pack", *exports, "-o", tmp_path / "job").status == 0
    packed, whole = (rows(run, "overview", *paths) for paths in ([tmp_path / "job"], exports))
    assert [row["Rank"] for row in packed] == ["0", "1"] and packed == whole
    for path in (exports[0], exports[-1]):
        done = run("pack", path, "-o", tmp_path / "alone")
    assert done.status > 0 and "--ranks" in done.err
