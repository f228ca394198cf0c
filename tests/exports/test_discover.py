"""Names, directories and globs become the files that the user means, in an order that a person expects."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nsystui.base.errors import UsageError
from nsystui.exports.discover import discover, natural_key


def make(directory: Path, *names: str) -> None:
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def names(paths: list[Path], directory: Path) -> list[str]:
    return [str(path.relative_to(directory)) for path in paths]


def test_numbers_in_names_count_as_numbers(tmp_path):
    make(tmp_path, "rank10.sqlite", "rank2.sqlite", "rank1.sqlite", "rank100.sqlite", "Rank3.sqlite")
    assert names(discover([str(tmp_path)]), tmp_path) == [
        "rank1.sqlite",
        "rank2.sqlite",
        "Rank3.sqlite",
        "rank10.sqlite",
        "rank100.sqlite",
    ]


def test_numbers_of_several_parts_of_a_path_count(tmp_path):
    make(tmp_path, "node10/rank1.sqlite", "node9/rank10.sqlite", "node9/rank9.sqlite")
    found = discover([str(tmp_path / "node10"), str(tmp_path / "node9")])
    assert names(found, tmp_path) == ["node9/rank9.sqlite", "node9/rank10.sqlite", "node10/rank1.sqlite"]


@pytest.mark.parametrize("name", ["rank²", "1²2", "٣", "", "٣²", "9" * 200])
def test_any_name_has_a_place_in_the_order(name):
    assert sorted([name, "rank1", "1"], key=natural_key)


def test_names_that_differ_by_a_leading_zero_have_a_definite_order(tmp_path):
    make(tmp_path, "rank02.sqlite", "rank2.sqlite", "rank002.sqlite")
    forwards = discover([str(tmp_path / f"rank{number}.sqlite") for number in ("2", "02", "002")])
    backwards = discover([str(tmp_path / f"rank{number}.sqlite") for number in ("002", "02", "2")])
    assert forwards == backwards


def test_a_directory_stands_for_the_exports_in_it_and_not_below_it(tmp_path):
    make(tmp_path, "a.sqlite", "b.sqlite3", "c.db", "notes.txt", "a.nsys-rep", "deeper/d.sqlite")
    assert names(discover([str(tmp_path)]), tmp_path) == ["a.sqlite", "b.sqlite3", "c.db"]


def test_a_directory_with_reports_only_names_them(tmp_path):
    make(tmp_path, "b.qdrep", "a.nsys-rep", "notes.txt")
    assert names(discover([str(tmp_path)]), tmp_path) == ["a.nsys-rep", "b.qdrep"]


def test_hidden_files_of_a_directory_are_not_meant(tmp_path):
    make(tmp_path, ".partial-7.sqlite", "._rank0.sqlite", "rank0.sqlite")
    assert names(discover([str(tmp_path)]), tmp_path) == ["rank0.sqlite"]


def test_a_directory_without_exports_stays_itself_so_that_opening_it_says_so(tmp_path):
    make(tmp_path, "notes.txt")
    assert discover([str(tmp_path)]) == [tmp_path]


def test_a_quoted_glob_is_expanded(tmp_path):
    make(tmp_path, "rank10.sqlite", "rank9.sqlite", "other.sqlite")
    assert names(discover([str(tmp_path / "rank*.sqlite")]), tmp_path) == ["rank9.sqlite", "rank10.sqlite"]


def test_directories_that_a_quoted_glob_finds_stand_for_their_exports(tmp_path):
    make(tmp_path, "run1/a.sqlite", "run2/b.sqlite", "run2/notes.txt")
    assert names(discover([str(tmp_path / "run*")]), tmp_path) == ["run1/a.sqlite", "run2/b.sqlite"]


def test_a_glob_that_finds_nothing_stays_so_that_opening_it_says_so(tmp_path):
    pattern = tmp_path / "rank*.sqlite"
    assert discover([str(pattern)]) == [pattern]


def test_a_file_whose_name_has_glob_characters_is_itself(tmp_path):
    make(tmp_path, "rank[0].sqlite", "rank0.sqlite", "what?.sqlite")
    assert names(discover([str(tmp_path / "rank[0].sqlite")]), tmp_path) == ["rank[0].sqlite"]
    assert names(discover([str(tmp_path / "what?.sqlite")]), tmp_path) == ["what?.sqlite"]


def test_a_file_counts_once_however_it_is_named(tmp_path, monkeypatch):
    make(tmp_path, "rank0.sqlite", "rank1.sqlite")
    os.symlink(tmp_path / "rank0.sqlite", tmp_path / "link.sqlite")
    monkeypatch.chdir(tmp_path)
    found = discover(["rank0.sqlite", "./rank0.sqlite", str(tmp_path / "rank0.sqlite"), "link.sqlite", str(tmp_path)])
    assert sorted(path.name for path in found) == ["rank0.sqlite", "rank1.sqlite"]


def test_names_that_do_not_exist_stay(tmp_path):
    make(tmp_path, "rank0.sqlite")
    missing = tmp_path / "rank7.sqlite"
    assert discover([str(missing), str(tmp_path / "rank0.sqlite")]) == [tmp_path / "rank0.sqlite", missing]


@pytest.mark.parametrize("name", ["x" * 300, "a/" * 3000 + "b", "plain/file/below"], ids=["long", "deep", "below"])
def test_names_that_cannot_exist_stay(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert discover([name]) == [Path(name)]


def test_a_name_in_a_closed_directory_stays(tmp_path, unprivileged):
    closed = tmp_path / "closed"
    make(tmp_path, "closed/rank0.sqlite")
    closed.chmod(0)
    try:
        words = f"from nsystui.exports.discover import discover; print(discover([{str(closed / 'rank0.sqlite')!r}]))"
        done = unprivileged("-c", words)
    finally:
        closed.chmod(0o700)
    assert "rank0.sqlite" in done.stdout, done.stderr


def test_an_empty_name_is_not_the_directory_one_is_in(tmp_path, monkeypatch):
    make(tmp_path, "rank0.sqlite")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="empty file name"):
        discover([""])
