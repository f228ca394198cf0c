"""Reports in other forms than SQLite give the answers of their SQLite exports."""

import bz2
import gzip
import lzma
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import duckdb
import pytest
from synthetic import training_job

from nsystui.exports.discover import discover
from nsystui.exports.forms import form_of

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


def as_arrow(export: Path, place: Path, in_file: bool = True) -> Path:
    pyarrow = pytest.importorskip("pyarrow", reason="Arrow files are read by pyarrow")
    directory = place / f"{export.stem}_arwdir"
    directory.mkdir()
    for table in tables(export):
        rows = pyarrow.Table.from_pandas(frame_of(export, table), preserve_index=False)
        write = pyarrow.ipc.new_file if in_file else pyarrow.ipc.new_stream
        with write(str(directory / f"{table}.arrow"), rows.schema) as writer:
            writer.write_table(rows)
    return directory


def compressed(open_packed: Callable, ending: str) -> Callable[[Path, Path], Path]:
    def write(export: Path, place: Path) -> Path:
        path = place / f"{export.name}{ending}"
        with open_packed(path, "wb") as out:
            out.write(export.read_bytes())
        return path

    return write


def zstd_stream(path: Path, mode: str):
    pyarrow = pytest.importorskip("pyarrow", reason="zstd is unpacked by pyarrow")
    return pyarrow.CompressedOutputStream(str(path), "zstd")


def as_zip(export: Path, place: Path) -> Path:
    path = place / f"{export.stem}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(export, f"results/{export.name}")
        archive.writestr("results/README", "how it was recorded")
    return path


FORMS = {
    "parquetdir": as_parquet, "arrowdir": as_arrow, "arrowdir of streams": partial(as_arrow, in_file=False),
    "gzip": compressed(gzip.open, ".gz"), "xz": compressed(lzma.open, ".xz"), "bzip2": compressed(bz2.open, ".bz2"),
    "zstd": compressed(zstd_stream, ".zst"), "zip": as_zip,
}  # fmt: skip


@pytest.mark.campaign
@pytest.mark.parametrize("form", FORMS)
def test_each_form_answers_as_sqlite_does(run, export, tmp_path, form):
    (tmp_path / "given").mkdir()
    given = FORMS[form](export, tmp_path / "given")
    asked = COMMANDS if form.startswith(("parquet", "arrow")) else COMMANDS[:1]  # other forms unpack to SQLite
    for words in (*asked, COMMANDS[0]):  # last, a command that finds the cache filled
        of_sqlite, of_form = (run(*words, path) for path in (export, given))
        assert of_form.status == of_sqlite.status == 0, (words, of_form.err)
        assert of_form.out == of_sqlite.out, words
    assert os.listdir(given.parent) == [given.name]  # nothing is written next to it


@pytest.mark.campaign
def test_a_directory_means_the_forms_in_it_unless_there_are_exports(export, tmp_path):
    first, second = as_parquet(export, tmp_path), as_zip(export, tmp_path)
    (tmp_path / "job_rank3.nsys-rep").touch()
    assert discover([str(tmp_path)]) == [second, first]
    assert discover([str(first)]) == [first]
    shutil.copy(export, tmp_path)
    assert discover([str(tmp_path)]) == [tmp_path / export.name]


def test_an_archive_of_several_exports_says_to_unpack_it(refused, export, tmp_path):
    path = tmp_path / "all.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(export, "rank0.sqlite")
        archive.write(export, "rank1.sqlite")
    said = refused("kernels", path)
    assert f"{path}: 2 exports in it" in said and "unzip" in said


@pytest.mark.parametrize("ending", (".sqlite.gz", ".sqlite.xz", ".sqlite.bz2", ".sqlite.zst", ".zip"))
def test_what_cannot_be_unpacked_is_one_line(refused, tmp_path, ending):
    path = tmp_path / f"rank0{ending}"
    path.write_bytes(b"no archive at all")
    assert str(path) in refused("kernels", path)


def test_a_cut_archive_is_one_line_and_leaves_nothing(refused, export, tmp_path, monkeypatch):
    monkeypatch.setenv("NSYSTUI_CACHE_DIR", str(tmp_path / "cache"))
    whole = gzip.compress(export.read_bytes())
    path = tmp_path / "rank0.sqlite.gz"
    path.write_bytes(whole[: len(whole) // 2])
    assert "cannot be unpacked" in refused("kernels", path)
    assert not list((tmp_path / "cache").rglob("*.sqlite"))


@pytest.mark.campaign
def test_a_damaged_table_of_a_directory_is_named(refused, export, tmp_path):
    directory = as_parquet(export, tmp_path)
    (directory / "StringIds.parquet").write_bytes(b"PAR1 and nothing else")
    assert "StringIds.parquet cannot be read" in refused("kernels", directory)


def test_the_name_of_the_report_stays(tmp_path):
    for ending in (".sqlite.gz", ".zip", ".sqlite.zip", ".db.zst"):
        path = tmp_path / f"rank3{ending}"
        path.touch()
        form = form_of(path)
        assert form is not None and form.name_of(path) == "rank3", ending


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


HEADER = b"SQLite format 3\0" + (4096).to_bytes(2, "big") + bytes(10) + (1 << 20).to_bytes(4, "big") + bytes(68)
"""The first 100 bytes of an export of 4 GiB."""
NOT_EXPORTS = {
    b"": "no export in it",
    bytes(1 << 16): "no export in it",
    HEADER: "100 times its size",
    HEADER[:28] + bytes(9 << 18): "100 times its size",
    HEADER[:28] + (2).to_bytes(4, "big") + bytes(4064): "cannot be opened: cut short or still being written",
}


@pytest.mark.parametrize("ending", [".gz", ".xz", ".bz2", ".zip", pytest.param(".zst", marks=pytest.mark.campaign)])
def test_an_archive_of_no_export_is_left_where_it_is_known_for_one(refused, tmp_path, monkeypatch, left, ending):
    monkeypatch.setattr("nsystui.exports.forms.compressed._SMALL", 1 << 20)
    form = {".gz": "gzip", ".xz": "xz", ".bz2": "bzip2", ".zip": "zip", ".zst": "zstd"}[ending]
    for number, (content, cause) in enumerate(NOT_EXPORTS.items()):
        (tmp_path / "rank0.sqlite").write_bytes(content)
        path = FORMS[form](tmp_path / "rank0.sqlite", tmp_path).rename(tmp_path / f"{number}.sqlite{ending}")
        said = refused("kernels", path, lines=2)
        assert said.startswith(f"nsystui: {path}: ") and cause in said.splitlines()[0], said
        assert left() == []


def test_an_archive_that_the_cache_has_no_room_for_is_not_unpacked(refused, tmp_path, monkeypatch, left, export):
    monkeypatch.setenv("NSYSTUI_CACHE_LIMIT", "64K")
    path = FORMS["gzip"](export, tmp_path)
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
        how_far = ": packed 0 of 1 ranks; the same command continues" if command.startswith("pack") else ""
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
