"""Names, directories and globs become the files that the user means, in natural order."""

import os
from pathlib import Path

import pytest

from nsystui.base.errors import UsageError
from nsystui.exports.discover import discover, named_shortly, names_of, natural_key, stale_note

CASES = {
    "numbers in names count as numbers": (
        "rank10.sqlite rank2.sqlite rank1.sqlite rank100.sqlite Rank3.sqlite", ".",
        "rank1.sqlite rank2.sqlite Rank3.sqlite rank10.sqlite rank100.sqlite"),
    "numbers of several parts of a path count": (
        "node10/rank1.sqlite node9/rank10.sqlite node9/rank9.sqlite", "node10 node9",
        "node9/rank9.sqlite node9/rank10.sqlite node10/rank1.sqlite"),
    "a directory stands for the exports in it and not below it": (
        "a.sqlite b.sqlite3 c.db notes.txt a.nsys-rep deeper/d.sqlite", ".", "a.sqlite b.sqlite3 c.db"),
    "a directory without exports stands for the exports one level below": (
        "job/n10/report.sqlite job/n2/report.sqlite job/n2/x/a.sqlite job/logs/n.txt job/.old/a.sqlite job/n3/r.qdrep",
        "job", "job/n2/report.sqlite job/n3/r.qdrep job/n10/report.sqlite"),
    "exports two levels below are not meant": ("job/a/b/report.sqlite", "job", "job"),
    "a directory with reports only names them": ("b.qdrep a.nsys-rep notes.txt", ".", "a.nsys-rep b.qdrep"),
    "hidden files are not meant": (".partial-7.sqlite ._rank0.sqlite rank0.sqlite", ".", "rank0.sqlite"),
    "a directory without exports stays itself": ("here/notes.txt", "here", "here"),
    "a quoted glob is expanded": (
        "rank10.sqlite rank9.sqlite other.sqlite", "rank*.sqlite", "rank9.sqlite rank10.sqlite"),
    "directories that a glob finds stand for their exports": (
        "run1/a.sqlite run2/b.sqlite run2/notes.txt", "run*", "run1/a.sqlite run2/b.sqlite"),
    "a glob that finds nothing stays": ("other.sqlite", "rank*.sqlite", "rank*.sqlite"),
    "a name with brackets is itself": ("rank[0].sqlite rank0.sqlite", "rank[0].sqlite", "rank[0].sqlite"),
    "a name with a question mark is itself": ("what?.sqlite whats.sqlite", "what?.sqlite", "what?.sqlite"),
    "names that do not exist stay": ("rank0.sqlite", "rank7.sqlite rank0.sqlite", "rank0.sqlite rank7.sqlite"),
}  # fmt: skip
"""Existing files, the user's words, and the chosen files. Files that cannot be opened stay: opening reports them."""


@pytest.mark.parametrize("case", CASES)
def test_the_files_that_are_meant(tmp_path, case):
    files, words, expected = (names.split(" ") for names in CASES[case])
    for name in files:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert discover([str(tmp_path / word) for word in words]) == [tmp_path / name for name in expected]


NAMES = {
    "a/rank0.sqlite a/rank1.sqlite": "rank0 rank1",
    "n0/report.sqlite n1/report.sqlite": "n0/report n1/report",
    "n0/report.sqlite n1/report.sqlite n1/other.sqlite": "n0/report n1/report other",
    "x/n0/r.sqlite y/n0/r.sqlite y/n1/r.sqlite": "x/n0/r y/n0/r n1/r",
    "a/r.sqlite a/r.db": "r.sqlite r.db",
    "a/r.sqlite a/r.db b/r.sqlite": "r.sqlite r.db r",
}
"""Files, and the names that distinguish them by as few directories as possible."""


@pytest.mark.parametrize("files", NAMES)
def test_names_tell_the_reports_apart(tmp_path, files):
    assert list(names_of([tmp_path / name for name in files.split()]).values()) == NAMES[files].split()


@pytest.mark.parametrize("name", ["rank²", "1²2", "٣", "", "٣²", "9" * 200])
def test_any_name_has_a_place_in_the_order(name):
    assert sorted([name, "rank1", "1"], key=natural_key)


def test_names_that_differ_by_a_leading_zero_have_a_definite_order(tmp_path):
    paths = [tmp_path / f"rank{number}.sqlite" for number in ("02", "2", "002")]
    for path in paths:
        path.touch()
    assert discover(list(map(str, paths))) == discover(list(map(str, reversed(paths))))


def test_a_file_counts_once_however_it_is_named(tmp_path, monkeypatch):
    for name in ("rank0.sqlite", "rank1.sqlite"):
        (tmp_path / name).touch()
    os.symlink(tmp_path / "rank0.sqlite", tmp_path / "link.sqlite")
    monkeypatch.chdir(tmp_path)
    found = discover(["rank0.sqlite", "./rank0.sqlite", str(tmp_path / "rank0.sqlite"), "link.sqlite", str(tmp_path)])
    assert sorted(path.name for path in found) == ["rank0.sqlite", "rank1.sqlite"]


def test_names_that_cannot_exist_stay_and_an_empty_one_is_not_the_directory_one_is_in(tmp_path, monkeypatch):
    (tmp_path / "rank0.sqlite").touch()
    monkeypatch.chdir(tmp_path)
    for name in ("x" * 300, "a/" * 3000 + "b", "rank0.sqlite/below"):
        assert discover([name]) == [Path(name)]
    with pytest.raises(UsageError, match="empty file name"):
        discover([""])


def test_a_name_in_a_closed_directory_stays(tmp_path, unprivileged):
    closed = tmp_path / "closed"
    closed.mkdir()
    (closed / "rank0.sqlite").touch()
    closed.chmod(0)
    try:
        words = f"from nsystui.exports.discover import discover; print(discover([{str(closed / 'rank0.sqlite')!r}]))"
        done = unprivileged("-c", words)
    finally:
        closed.chmod(0o700)
    assert "rank0.sqlite" in done.stdout, done.stderr


def test_files_are_named_by_their_directory_where_they_are_all_of_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run 1").mkdir()
    names = [f"run 1/rank{number}.sqlite" for number in range(5)]
    for name in names:
        Path(name).write_bytes(b"")
    assert named_shortly(names) == "'run 1'"
    assert named_shortly(names[:4]) == " ".join(f"'{name}'" for name in names[:4])
    assert named_shortly(names[:1]) == "'run 1/rank0.sqlite'"
    monkeypatch.chdir(tmp_path / "run 1")
    assert named_shortly([f"rank{number}.sqlite" for number in range(5)]) == "."


@pytest.mark.parametrize("name", [".", "..", "/"])
def test_a_directory_without_a_name_is_not_older_than_a_report(name):
    assert stale_note(Path(name)) == ""
