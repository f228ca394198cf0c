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


@pytest.mark.parametrize("is_alone", first(1, [True, False]))
def test_two_processes_of_one_rank_are_no_captures_to_pack(tmp_path, run, is_alone):
    for number in range(2):
        path = tmp_path / f"in/report.{number + 1}.sqlite"
        capture(path, number * SECOND, pid=7 + number)
        done = run("pack", path if is_alone else tmp_path / "in", "-o", tmp_path / "job")
    assert done.status > 0 and "--ranks" in done.err
