"""Reports in other forms than SQLite give the answers of their SQLite exports."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import duckdb
import pytest
from synthetic import training_job

from nsystui.exports.discover import discover

COMMANDS = (["kernels"], ["nccl"], ["nvtx"], ["events", "--top", "50"], ["stats", "-r", "cuda_api_sum"])


@pytest.fixture(scope="module")
def export(written_once) -> Path:
    export, _ = written_once("forms", lambda directory: training_job(directory, ranks=2, steps=2, layers=2))
    return export


def tables(export: Path) -> list[str]:
    with sqlite3.connect(export) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]


def frame_of(export: Path, table: str):
    import pandas

    with sqlite3.connect(export) as connection:
        return pandas.read_sql_query(f'SELECT * FROM "{table}" ORDER BY rowid', connection).convert_dtypes()


def as_parquet(export: Path, place: Path) -> Path:
    directory = place / f"{export.stem}_pqtdir"
    directory.mkdir()
    for table in tables(export):
        duckdb.from_df(frame_of(export, table)).to_parquet(str(directory / f"{table}.parquet"))
    return directory


@pytest.mark.campaign
def test_a_directory_of_parquet_files_answers_as_sqlite_does(run, export, tmp_path):
    (tmp_path / "given").mkdir()
    given = as_parquet(export, tmp_path / "given")
    for words in (*COMMANDS, COMMANDS[0]):  # last, a command that finds the cache filled
        of_sqlite, of_form = (run(*words, path) for path in (export, given))
        assert of_form.status == of_sqlite.status == 0, (words, of_form.err)
        assert of_form.out == of_sqlite.out, words
    assert os.listdir(given.parent) == [given.name]  # nothing is written next to it


@pytest.mark.campaign
def test_a_directory_means_the_forms_in_it_unless_there_are_exports(export, tmp_path):
    first, second = as_parquet(export, tmp_path), tmp_path / "a.pt.trace.json"
    second.write_text('{"traceEvents": []}')
    (tmp_path / "job_rank3.nsys-rep").touch()
    assert discover([str(tmp_path)]) == [second, first]
    assert discover([str(first)]) == [first]
    shutil.copy(export, tmp_path)
    assert discover([str(tmp_path)]) == [tmp_path / export.name]


@pytest.mark.campaign
def test_a_damaged_table_of_a_directory_is_named(refused, export, tmp_path):
    directory = as_parquet(export, tmp_path)
    (directory / "StringIds.parquet").write_bytes(b"PAR1 and nothing else")
    assert "StringIds.parquet cannot be read" in refused("kernels", directory)


@pytest.mark.parametrize(
    ("head", "form"),
    [(b"\x89HDF\r\n\x1a\n", "-t hdf"), (b'{"Type":', "exports of nsys as JSON"), (b"ARROW1\0\0", "-t arrow")],
)
def test_a_form_that_is_not_read_says_which_to_make(refused, tmp_path, head, form):
    path = tmp_path / "rank0.export"
    path.write_bytes(head + bytes(200))
    said = refused("kernels", path)
    assert form in said and "parquetdir" in said


@pytest.fixture
def left(tmp_path, monkeypatch) -> Callable[[], list[Path]]:
    """Return a function that lists the files of a new cache."""
    monkeypatch.setenv("NSYSTUI_CACHE_DIR", str(tmp_path / "cache"))
    return lambda: [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_a_directory_that_the_cache_has_no_room_for_is_not_converted(refused, tmp_path, monkeypatch, left, export):
    monkeypatch.setenv("NSYSTUI_CACHE_LIMIT", "64K")
    path = as_parquet(export, tmp_path)
    for words in (["kernels", path], ["pack", path, "-o", tmp_path / "job"]):
        said = refused(*words)
        assert said.startswith(f"nsystui: {path}: its export takes ") and "raise NSYSTUI_CACHE_LIMIT" in said
        assert left() == []


@pytest.mark.campaign
@pytest.mark.parametrize("command", ["info", "pack -o packed"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_nsys_ends_with_the_program(tmp_path, monkeypatch, fake_nsys, command, number):
    """Processes that nsys started end, too, and no half-written file stays."""
    monkeypatch.setenv("NSYSTUI_CACHE_DIR", str(tmp_path / "cache"))
    fake_nsys(f'echo begun > "$out"; (echo running; exec sleep 1000) > "{tmp_path}/pipe"')
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "rank0.nsys-rep").write_bytes(b"QUADD")
    words = [sys.executable, "-m", "nsystui", *command.split(), "rank0.nsys-rep", "--convert"]
    obey = partial(signal.signal, number, signal.SIG_DFL)  # a background job ignores SIGINT
    process = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True, preexec_fn=obey)
    with open(tmp_path / "pipe") as pipe:
        assert pipe.readline() == "running\n"
        process.send_signal(number)
        how_far = ": packed 0 of 1 rank; the same command continues" if command.startswith("pack") else ""
        assert process.communicate() == (None, f"nsystui: interrupted{how_far}\n")
        assert pipe.read() == ""  # ends when no process has it open
    assert process.returncode == 128 + number
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("command", ["kernels", "info"])
def test_an_error_in_what_was_converted_names_what_the_user_named(refused, tmp_path, monkeypatch, fake_nsys, command):
    monkeypatch.setenv("NSYSTUI_CACHE_DIR", str(tmp_path / "cache"))
    fake_nsys('echo no database > "$out"')
    (tmp_path / "rank0.nsys-rep").write_bytes(b"QUADD")
    said = refused(command, tmp_path / "rank0.nsys-rep", "--convert")
    assert said.startswith(
        f"nsystui: {tmp_path / 'rank0.nsys-rep'}: the export made of it cannot be opened: not a SQLite file ("
    )
    assert str(tmp_path / "cache") not in said
