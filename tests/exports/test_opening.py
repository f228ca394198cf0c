"""An export opens whatever its path; other files are refused with the cause and the next step."""

import os
import sqlite3
import struct
from contextlib import closing
from itertools import product
from pathlib import Path

import duckdb
import pytest
import sqlalchemy as sa
from support import edit, fingerprint, native_count
from synthetic import all_tables_export, old_schema_export, two_process_export

from nsystui.base.errors import ExportError
from nsystui.exports import opening
from nsystui.exports.arrow_stream import Batch, WatchedStream
from nsystui.exports.metadata import open_export
from nsystui.exports.opening import ArrowReader
from nsystui.store import tables
from nsystui.store.session import Session


@pytest.fixture(scope="module")
def bytes_of_an_export(tmp_path_factory) -> bytes:
    return two_process_export(tmp_path_factory.mktemp("opening") / "two.sqlite").read_bytes()


@pytest.fixture
def export(tmp_path, bytes_of_an_export) -> Path:
    path = tmp_path / "rank0.sqlite"
    path.write_bytes(bytes_of_an_export)
    return path


def refusal(path: Path) -> ExportError:
    """Return the message of a refused file, the same on opening and on packing."""
    with pytest.raises(ExportError) as first:
        open_export(path)
    with closing(Session()) as session, pytest.raises(ExportError) as second:
        session.add(path)
    assert str(first.value) == str(second.value)
    assert first.value.path == str(path)
    assert str(path) in str(first.value)
    assert first.value.advice, "no next step"
    return first.value


class TestWhatIsNoExport:
    @pytest.mark.parametrize("missing", [1, 4095, 4096, 100_000])
    def test_a_file_cut_short(self, export, bytes_of_an_export, missing):
        export.write_bytes(bytes_of_an_export[:-missing])
        error = refusal(export)
        assert f"{len(bytes_of_an_export) - missing:,} of {len(bytes_of_an_export):,} bytes" in error.cause
        assert "wait" in error.advice

    def test_a_file_with_bytes_behind_its_end_opens(self, export, bytes_of_an_export):
        export.write_bytes(bytes_of_an_export + bytes(5000))
        assert open_export(export).metadata.nsys_version

    def test_a_file_or_directory_without_permission(self, tmp_path, export, unprivileged):
        closed = tmp_path / "closed"
        closed.mkdir()
        (closed / "rank1.sqlite").write_bytes(export.read_bytes())
        export.chmod(0)
        closed.chmod(0)
        words = """
import sys
from pathlib import Path
from nsystui.base.errors import ExportError
from nsystui.exports import opening
for name in sys.argv[1:]:
    try:
        opening.check(Path(name))
    except ExportError as error:
        print(error.cause, "|", error.advice)
"""
        try:
            done = unprivileged("-c", words, str(export), str(closed), str(closed / "rank1.sqlite"))
        finally:
            closed.chmod(0o700)
        assert done.stdout.splitlines() == [
            f"cannot be read: Permission denied | check its permissions with ls -l {export}",
            f"no permission to read this directory | check its permissions with ls -ld {closed}",
            f"cannot be accessed: Permission denied | check the directory with ls -ld {closed}",
        ], done.stderr


class TestStillBeingWritten:
    def test_a_journal_beside_it_counts_if_there_is_something_in_it(self, export):
        for suffix, content in product(("-journal", "-wal", "-shm"), (b"", b"x" * 512)):
            journal = Path(f"{export}{suffix}")
            journal.write_bytes(content)
            if content and suffix != "-shm":
                error = refusal(export)
                assert error.cause == f"still being written: rank0.sqlite{suffix} is next to it"
                assert error.advice == "wait for nsys export to finish"
            elif not content:
                assert open_export(export).metadata.nsys_version, suffix
            journal.unlink()

    def test_a_transaction_under_way(self, export):
        with closing(sqlite3.connect(export)) as writer:
            writer.execute("PRAGMA journal_mode=WAL")
            writer.execute("CREATE TABLE more (a)")
            assert "still being written" in refusal(export).cause
        assert open_export(export).metadata.nsys_version


def shell_words(command: str) -> list[str]:
    return os.popen(f"printf '%s\\n' {command}").read().splitlines()


class TestReports:
    def test_the_command_can_be_pasted_into_a_shell(self, tmp_path):
        path = tmp_path / "it's $HOME; rank 0.nsys-rep"
        path.write_bytes(b"whatever" * 20)
        command = refusal(path).advice.removeprefix("export it: ").removesuffix(", or let nsystui do it with --convert")
        words = shell_words(command.removeprefix("nsys "))
        assert words[-1] == str(path)
        assert words[words.index("-o") + 1] == "it's $HOME; rank 0.sqlite"

    def test_a_recording_that_was_never_imported_is_imported_first(self, tmp_path):
        path = tmp_path / "it's rank 0.qdstrm"
        path.write_bytes(b"stream" * 20)
        error = refusal(path)
        assert error.cause == "a recording that is not yet a report, and not an export"
        importing, exporting = error.advice.removeprefix("make the report: ").split(", then export it: ")
        assert shell_words(importing.partition(" (")[0]) == ["QdstrmImporter", "-i", str(path)]
        assert "host-linux-x64/QdstrmImporter" in importing
        assert shell_words(exporting)[-3:] == ["-o", "it's rank 0.sqlite", str(path.with_suffix(".nsys-rep"))]


NAMES = ["with blank.sqlite", "it's.sqlite", 'say "hi".sqlite', "100%.sqlite", "50%41.sqlite", "a#b.sqlite", "x" * 248]
NAMES += ["a?mode=rw.sqlite", "a&b=c.sqlite", "new\nline.sqlite", "größe 内核.sqlite", "[x]*.sqlite", ":memory:"]
NAMES += ["back\\slash.sqlite", "-o.sqlite", "file:x.sqlite", os.fsdecode(b"latin-\xe9.sqlite")]


@pytest.mark.campaign
def test_any_name_opens(tmp_path, bytes_of_an_export, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        (tmp_path / name).write_bytes(bytes_of_an_export)
    before = fingerprint(tmp_path)
    for name in NAMES:
        assert open_export(Path(name)).native.last_rowid["CUPTI_ACTIVITY_KIND_KERNEL"] == 200, name
        with closing(Session()) as session:
            assert session.add(tmp_path / name).packed.counts["kernels"] == 200, name
    assert fingerprint(tmp_path) == before


def test_a_path_that_begins_with_two_slashes_opens(export):
    assert open_export(Path(f"/{export}")).metadata.nsys_version


class TestNothingIsTouched:
    def test_export_and_directory_stay_as_they_were(self, tmp_path, export):
        os.utime(export, ns=(1_600_000_000_000_000_000, 1_600_000_000_000_000_000))
        before, listing = fingerprint(tmp_path), sorted(os.listdir(tmp_path))
        with closing(Session()) as session:
            report = session.add(export)
            kernels = session.scalar(sa.select(sa.func.count()).select_from(tables.kernels))
            assert kernels == report.count(tables.kernels)
            assert fingerprint(tmp_path) == before
        assert fingerprint(tmp_path) == before
        assert sorted(os.listdir(tmp_path)) == listing

    @pytest.mark.campaign
    def test_a_file_and_directory_that_are_only_readable(self, tmp_path, export, unprivileged):
        place = tmp_path / "results"
        place.mkdir()
        export.rename(place / "rank0.sqlite").chmod(0o400)
        place.chmod(0o500)
        before = fingerprint(place)
        words = ["-m", "nsystui", "kernels", str(place), "--format", "csv"]
        environment = {**os.environ, "NSYSTUI_CACHE_DIR": str(tmp_path / "cache")}
        try:
            first, second = (unprivileged(*words, env=environment) for _ in range(2))
        finally:
            place.chmod(0o700)
        assert first.returncode == 0, first.stderr
        assert first.stdout == second.stdout
        assert first.stdout.startswith("Time (%),")
        assert fingerprint(place) == before
        assert os.listdir(place) == ["rank0.sqlite"]

    def test_another_process_may_hold_every_lock(self, export, session):
        with closing(sqlite3.connect(export, isolation_level=None)) as holder:
            holder.execute("BEGIN EXCLUSIVE")
            assert session.add(export).packed.counts["kernels"] == 200


class TestDamage:
    """Whatever a file contains, the user gets one line about it."""

    def test_text_of_the_schema_that_is_no_utf8(self, export, bytes_of_an_export):
        place = bytes_of_an_export.index(b"CREATE TABLE TARGET_INFO_GPU")
        export.write_bytes(bytes_of_an_export[:place] + b"\xa9\xff\xfe" * 4 + bytes_of_an_export[place + 12 :])
        assert "SQLite cannot read it: malformed database schema" in refusal(export).cause

    @pytest.mark.campaign
    def test_a_page_of_zeros_in_the_middle(self, export, session, bytes_of_an_export):
        (page,) = struct.unpack(">H", bytes_of_an_export[16:18])
        failures = []
        for start in range(page, len(bytes_of_an_export) - page + 1, page):
            export.write_bytes(bytes_of_an_export[:start] + bytes(page) + bytes_of_an_export[start + page :])
            try:
                session.add(export)
            except ExportError as error:
                failures.append(error.cause)
        assert failures
        assert all(cause.startswith(("SQLite cannot read it: ", "a SQLite file, but")) for cause in failures)


class TestSchema:
    def test_tables_and_their_rows_are_known(self, export, tmp_path):
        found = open_export(export).native
        assert found.last_rowid["CUPTI_ACTIVITY_KIND_KERNEL"] == 200
        assert found.last_rowid["StringIds"] == native_count(export, "StringIds")
        found = open_export(all_tables_export(tmp_path / "all.sqlite")).native
        assert found.has_column("CUPTI_ACTIVITY_KIND_KERNEL", "start")
        assert not found.has("CUPTI_ACTIVITY_KIND_KERNEL")
        found = open_export(old_schema_export(tmp_path / "old.sqlite")).native
        assert found.integer("CUPTI_ACTIVITY_KIND_KERNEL", "clusterX") == "CAST(NULL AS INTEGER)"
        assert found.text("NVTX_EVENTS", "no such column") == "x''"

    STRANGE = {
        "a table of the user": ["CREATE TABLE notes (a TEXT)", "INSERT INTO notes VALUES ('mine')"],
        "a table without rowids": ["CREATE TABLE w (k TEXT PRIMARY KEY) WITHOUT ROWID", "INSERT INTO w VALUES ('x')"],
        "a name with quotes": ['CREATE TABLE "a ""quoted"" name; --" ("end" INT)'],
        "a column": ["ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME ADD COLUMN name TEXT",
                     "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET name = 'cudaLaunchKernel'"],
        "an index": ["CREATE INDEX _nsysai_k ON CUPTI_ACTIVITY_KIND_KERNEL (start)"],
        "a view": ["CREATE VIEW broken AS SELECT * FROM no_such_table"],
        "full text search": ["CREATE VIRTUAL TABLE words USING fts5(text)", "INSERT INTO words VALUES ('x')"],
        "an rtree": ["CREATE VIRTUAL TABLE boxes USING rtree(id, a, b)", "INSERT INTO boxes VALUES (1, 2, 3)"],
        "statistics": ["ANALYZE"],
        "a virtual table whose module is not here":
            ["PRAGMA writable_schema = ON",
             "INSERT INTO sqlite_master VALUES ('table', 'v', 'v', 0, 'CREATE VIRTUAL TABLE v USING elsewhere(a)')"],
    }  # fmt: skip

    @pytest.mark.parametrize("what", STRANGE)
    def test_what_is_there_besides_is_tolerated(self, export, session, what):
        edit(export, *self.STRANGE[what])
        assert session.add(export).packed.counts["kernels"] == 200


def test_a_query_that_is_stopped_is_no_damage(export):
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    with (
        closing(opening.connect(export, is_stopped=lambda: True)) as connection,
        pytest.raises(KeyboardInterrupt),
        opening.sqlite_errors(export),
    ):
        connection.execute(endless)


def test_the_uri_keeps_sqlite_from_writing(export):
    connection = opening.connect(export)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("CREATE TABLE more (a)")
    connection.close()


ROWS = [None if number % 7 == 3 else number * (1 << 50) for number in range(40)]


@pytest.fixture
def streamed(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(opening, "_BATCH_ROWS", 16)
    path = tmp_path / "rows.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE events (number INTEGER)")
        connection.executemany("INSERT INTO events VALUES (?)", [(row,) for row in ROWS])
        connection.commit()
    return path


def summed(streamed: Path, watch: object) -> int:
    with ArrowReader(streamed) as reader, closing(duckdb.connect()) as connection:
        handle = reader.stream("SELECT rowid AS row_id, CAST(number AS INTEGER) AS number FROM events")
        stream = WatchedStream(handle, ["row_id", "number"], watch)
        connection.register("events", stream)
        with stream.reading():
            return connection.execute("SELECT sum(number) FROM events").fetchall()[0][0]


def test_each_batch_has_the_integers_and_says_which_are_missing(streamed):
    seen: list[int | None] = []
    rows: list[int] = []

    def watch(batch: Batch) -> None:
        numbers, present = batch.integers("number")
        there = [True] * batch.rows if present is None else present.tolist()
        seen.extend(number if is_there else None for number, is_there in zip(numbers.tolist(), there, strict=True))
        found, missing = batch.integers("row_id")
        assert missing is None
        rows.extend(found.tolist())

    assert summed(streamed, watch) == sum(row or 0 for row in ROWS)
    assert seen == ROWS
    assert rows == list(range(1, 41))


def test_what_the_watcher_raises_ends_the_stream_and_is_kept(streamed):
    batches: list[int] = []

    def watch(batch: Batch) -> None:
        batches.append(batch.rows)
        if len(batches) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        summed(streamed, watch)
    assert batches == [16, 16]


def test_the_file_is_read_ahead_of_the_part_that_is_needed_and_nothing_twice(tmp_path, monkeypatch):
    with open(tmp_path / "a.sqlite", "wb") as file:
        file.truncate(200 << 20)
    advised: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _, *spans: advised.append(spans[:2]))
    with opening.read_ahead(tmp_path / "a.sqlite") as reach:
        for part in (0.0, 0.5, 0.25, 1.0):
            reach(part)
    assert advised == [(0, 32 << 20), (32 << 20, 100 << 20), (132 << 20, 68 << 20)]
