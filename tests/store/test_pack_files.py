"""The Parquet files of a pack: few, and with the rows of every chunk in their order."""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

from nsystui.exports.opening import check
from nsystui.store import parquet_files
from nsystui.store.cache import Cache, PackedFiles
from nsystui.store.parquet_files import PackFiles, read_part
from nsystui.store.session import Session

_FORM = "(FORMAT parquet, COMPRESSION zstd, PARQUET_VERSION V2)"
_ROWS = """SELECT range + {first:d} AS number, range % 3 = 0 AS flag, 'a longer name of ' || range % 5 AS name,
    {time} AS time, range / 7 AS part FROM range({rows:d})"""


def write(files: PackFiles, place: int, rows: int = 10, time: str = "range", table: str = "kernels") -> None:
    part = files.new_part()
    connection = duckdb.connect()
    # Of a table it is known in which columns nothing is missing.
    connection.execute(f"CREATE TABLE chunk AS {_ROWS.format(first=place, rows=rows, time=time)}").fetchall()
    connection.execute(f"COPY chunk TO '{part}' {_FORM}").fetchall()
    files.add(table, place, part)


def read(directory: Path, columns: str = "number") -> list[tuple[object, ...]]:
    files = [str(file) for file in sorted(directory.glob("*.parquet"))]
    return duckdb.connect().execute(f"SELECT {columns} FROM read_parquet($1)", [files]).fetchall()


def names(directory: Path) -> list[str]:
    return sorted(file.name for file in directory.iterdir())


def joined(directory: Path, places: Iterable[int], rows: int = 100) -> str:
    """Writes as many rows at each of these places; the name of the first file."""
    files = PackFiles(directory)
    for place in places:
        write(files, place, rows)
    files.finish()
    return str(directory / "kernels-000000.parquet")


class TestJoining:
    @pytest.mark.campaign
    def test_the_rows_are_those_that_were_written_in_the_order_of_their_places(self, tmp_path):
        joined(tmp_path, random.Random(4).sample(range(0, 3000, 100), 30))
        assert names(tmp_path) == ["kernels-000000.parquet"]
        assert read(tmp_path) == [(number,) for number in range(3000)]
        assert read(tmp_path, "count(*) FILTER (flag), count(DISTINCT name), sum(time), max(part)") == [
            (34 * 30, 5, 4950 * 30, 99 / 7)
        ]

    def test_row_groups_stay_as_they_are_so_that_a_query_skips_those_it_has_no_rows_in(self, tmp_path):
        query = """SELECT row_group_id, row_group_num_rows, stats_min_value, stats_max_value
            FROM parquet_metadata($1) WHERE path_in_schema = 'number' ORDER BY 1"""
        found = duckdb.connect().execute(query, [joined(tmp_path, (0, 100, 200))]).fetchall()
        assert found == [(0, 100, "0", "99"), (1, 100, "100", "199"), (2, 100, "200", "299")]

    def test_bloom_filters_are_found_at_their_new_place(self, tmp_path):
        file = joined(tmp_path, (0, 5000), rows=5000)
        query = "SELECT count(*), count(*) FILTER (bloom_filter_excludes) FROM parquet_bloom_probe($1, 'name', $2)"
        for name, excluded in (("a longer name of 3", 0), ("no such name", 2)):
            assert duckdb.connect().execute(query, [file, name]).fetchall() == [(2, excluded)]

    @pytest.mark.campaign
    def test_a_file_has_about_a_million_rows_of_the_native_table(self, tmp_path, monkeypatch):
        monkeypatch.setattr("nsystui.store.parquet_files.ROWS_PER_FILE", 250)
        joined(tmp_path, range(0, 1000, 100))
        assert names(tmp_path) == [f"kernels-{number:06d}.parquet" for number in range(4)]
        assert read(tmp_path) == [(number,) for number in range(1000)]

    @pytest.mark.campaign
    def test_columns_in_which_something_is_missing_are_of_another_type_and_in_another_file(self, tmp_path):
        files = PackFiles(tmp_path)
        for place in (0, 10, 20, 30):
            write(files, place, time="range" if place != 10 else "nullif(range, 4)")
        files.finish()
        assert names(tmp_path) == ["kernels-000000.parquet", "kernels-000001.parquet"]
        assert sorted(read(tmp_path)) == [(number,) for number in range(40)]
        assert read(tmp_path, "count(time)") == [(39,)]

    def test_tables_do_not_mix(self, tmp_path):
        files = PackFiles(tmp_path)
        for table in ("syncs", "kernels", "syncs"):
            write(files, 0, table=table)
        files.finish()
        assert names(tmp_path) == ["kernels-000000.parquet", "syncs-000000.parquet"]

    def test_what_is_not_known_stays_a_file_of_its_own(self, tmp_path):
        tails = (b"", b"PAR1", b"no footer at all", b"\xff\xff\xff\x7fPAR1", b"\x16\xff\2\0\0\0PAR1")
        for number, tail in enumerate(tails):
            directory = tmp_path / str(number)
            directory.mkdir()
            files = PackFiles(directory)
            write(files, 0)
            other = files.new_part()
            other.write_bytes(b"PAR1" + tail)
            files.add("kernels", 10, other)
            write(files, 20)
            files.finish()
            assert names(directory) == ["kernels-000000.parquet", "kernels-000001.parquet"], tail
            assert (directory / "kernels-000001.parquet").read_bytes() == b"PAR1" + tail


class TestPacks:
    @pytest.mark.campaign
    def test_a_pack_has_one_file_for_each_table_however_many_chunks_there_were(self, tmp_path, original, monkeypatch):
        whole = self.packed(original, Cache(tmp_path / "whole"))
        monkeypatch.setattr("nsystui.store.packing.CHUNK_ROWS", 16)
        chunked = self.packed(original, Cache(tmp_path / "chunked"))
        assert chunked.files.keys() == whole.files.keys()
        assert {name: len(files) for name, files in chunked.files.items() if len(files) > 1} == {}
        for name in whole.files:
            assert self.rows(chunked, name) == self.rows(whole, name)

    @staticmethod
    def packed(export: Path, cache: Cache) -> PackedFiles:
        with closing(Session(cache=cache)) as session:
            session.add(export)
        found = cache.find(check(export))
        assert found is not None
        return found

    @staticmethod
    def rows(packed: PackedFiles, name: str) -> list[tuple[object, ...]]:
        files = [str(file) for file in packed.files[name]]
        return duckdb.connect().execute("SELECT * FROM read_parquet($1)", [files]).fetchall()


def test_a_footer_that_is_read_and_written_again_is_the_same(tmp_path):
    path = tmp_path / "wide.parquet"
    columns = ", ".join(f"range AS c{number}, {number} = 3 AS f{number}" for number in range(40))
    numbers = "-9223372036854775808 + range AS low, 9223372036854775807 - range AS high"
    copy = f"COPY (SELECT {columns}, {numbers}, [range] AS l FROM range(99)) TO '{path}' {_FORM}"
    duckdb.connect().execute(copy).fetchall()
    data = path.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    assert parquet_files.encode_struct(read_part(path).footer) == data[-8 - length : -8]
