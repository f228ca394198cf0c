"""Rows are written as they arrive; unusual rows are read in another way, with the same result."""

from contextlib import closing
from pathlib import Path

import duckdb
import pytest
import sqlalchemy as sa
from support import edit, native_count
from synthetic.demo import TrainingJob

from nsystui.base.errors import ExportError
from nsystui.exports import leaf_pages, opening
from nsystui.exports.opening import check
from nsystui.store import packing, tables
from nsystui.store.cache import Cache, PackedFiles
from nsystui.store.packing import PackingCancelled, Progress
from nsystui.store.session import Session

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"


@pytest.fixture(params=["decoded", "read by sqlite", "at first decoded"])
def export(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Return an export whose tables are decoded, or have a form that SQLite must read, or end so."""
    (path,) = TrainingJob(ranks=1, steps=2, layers=2, gpu_metrics=False).write(tmp_path)
    if request.param == "read by sqlite":
        edit(path, "PRAGMA auto_vacuum = 1", "VACUUM")
    elif request.param != "decoded":
        edit(path, f"DELETE FROM {KERNEL} WHERE rowid = (SELECT max(rowid) - 3 FROM {KERNEL})")
    return path


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_BATCH_ROWS", 16)
    monkeypatch.setattr(packing, "SORTED_ROWS", 50)
    monkeypatch.setattr(leaf_pages, "_PAGES", 1)


def packed(export: Path, cache: Cache) -> PackedFiles:
    with closing(Session(cache=cache, warn=pytest.fail)) as session:
        session.add(export)
    found = cache.find(check(export))
    assert found is not None
    return found


def kernels(found: PackedFiles) -> list[tuple[object, ...]]:
    files = [str(file) for file in found.files["kernels"]]
    return duckdb.connect().execute('SELECT * FROM read_parquet($1) ORDER BY "row"', [files]).fetchall()


@pytest.mark.campaign
def test_a_table_in_order_is_one_file(export, cache):
    files = packed(export, cache).files
    assert {len(files[name]) for name in ("kernels", "api_calls", "nvtx_ranges", "syncs")} == {1}


@pytest.mark.campaign
def test_a_table_out_of_order_is_sorted_piece_by_piece_and_nothing_else_stays(export, cache, tmp_path):
    before = kernels(packed(export, cache))
    backwards = f"SELECT * FROM {KERNEL} ORDER BY start DESC"
    edit(export, f"CREATE TABLE other AS {backwards}", f"DROP TABLE {KERNEL}", f"ALTER TABLE other RENAME TO {KERNEL}")
    found = packed(export, cache)
    assert len(kernels(found)) == len(before)
    for file in found.files["kernels"]:
        starts = duckdb.connect().execute('SELECT "start" FROM read_parquet($1)', [str(file)]).fetchall()
        assert starts == sorted(starts) and len(starts) <= 50
    assert {file.name.partition("-")[0] for file in found.directory.glob("*.parquet")} == found.files.keys()
    assert {row[1:] for row in kernels(found)} == {row[1:] for row in before}


def test_rows_with_lost_names_are_named_and_counted(export, cache):
    edit(export, f"UPDATE {KERNEL} SET shortName = 987654, demangledName = 987654 WHERE rowid = 40")
    with closing(Session(cache=cache)) as session:
        assert session.add(export).packed.left_out["kernels"].nameless == 1
        lost = sa.select(tables.kernels.c.row).where(tables.kernels.c.name == "[name 987654 lost]")
        assert session.rows(lost) == [(40,)]


@pytest.mark.campaign
def test_rows_that_are_left_out_are_counted_and_those_of_another_table_go_there(export, cache):
    edit(
        export,
        f'UPDATE {KERNEL} SET "end" = start - 1 WHERE rowid IN (3, 44)',
        "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET eventClass = 67 WHERE rowid % 5 = 0",
        f"UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET start = {1 << 60} WHERE rowid IN (5, 6)",
    )
    rows = native_count(export, "CUPTI_ACTIVITY_KIND_RUNTIME")
    with closing(Session(cache=cache)) as session:
        report = session.add(export)
        assert report.packed.left_out["kernels"].by_reason == (0, 0, 2)
        assert report.packed.left_out["api_calls"].by_reason == (0, 1, 0)
        assert report.packed.left_out["api_backtraces"].by_reason == (0, 1, 0)
        assert session.count(tables.api_backtraces) == rows // 5 - 1
        assert session.count(tables.api_calls) == rows - rows // 5 - 1


@pytest.mark.campaign
def test_packing_ends_at_the_next_batch_after_it_is_cancelled(export, cache):
    steps: list[Progress] = []
    with closing(Session(cache=cache)) as session, pytest.raises(PackingCancelled):
        session.add(export, steps.append, is_cancelled=lambda: bool(steps))
    assert 0 < len(steps) <= 2
    assert list(cache.directory.glob("*")) == []


@pytest.mark.campaign
def test_a_failure_to_write_is_no_damage(export, cache, monkeypatch):
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nsystui.base.parquet_file.copy_to_parquet", fail)
    warnings: list[str] = []
    with closing(Session(cache=cache, warn=warnings.append)) as session:
        assert session.add(export).packed.counts["kernels"] == native_count(export, KERNEL)
    assert "No space left" in warnings[0]


def test_rows_that_come_twice_are_damage(export, cache, monkeypatch):
    stream = opening.ArrowReader.stream

    def twice(reader: opening.ArrowReader, query: str) -> object:
        again = f"SELECT * FROM ({query}) UNION ALL SELECT * FROM ({query})"
        return stream(reader, again if f'"{KERNEL}" WHERE rowid BETWEEN' in query else query)

    monkeypatch.setattr(opening.ArrowReader, "stream", twice)
    edit(export, "PRAGMA auto_vacuum = 1", "VACUUM")
    with closing(Session(cache=cache)) as session, pytest.raises(ExportError, match=f"rows of {KERNEL} are repeated"):
        session.add(export)
