"""The writer of test exports imitates nsys."""

import struct
from pathlib import Path
from typing import Any

import pytest
import synthetic
from support import native as query
from support import native_count as count
from support import real_exports
from synthetic import ExportWriter, demo

Rows = list[tuple[Any, ...]]


def table_names(path: Path) -> set[str]:
    return {name for (name,) in query(path, "SELECT name FROM sqlite_master WHERE type = 'table'")}


def schema_of(path: Path) -> str:
    table = "META_DATA_EXPORT" if "META_DATA_EXPORT" in table_names(path) else "EXPORT_META_DATA"
    [(schema,)] = query(path, f"SELECT value FROM {table} WHERE name = 'EXPORT_SCHEMA_VERSION'")
    return schema


def declared_columns(path: Path, table: str, *, but: str = "") -> Rows:
    """Return (name, type, not null, primary key) of the columns of a table except the column `but`."""
    found = query(path, f"SELECT name, type, [notnull], pk FROM pragma_table_info('{table}')")
    return [column for column in found if column[0] != but]


class TestFileFormat:
    @pytest.mark.skipif(not real_exports(), reason="no real exports on this machine (../shared/data/exports)")
    def test_columns_are_those_of_real_exports_of_the_same_schema(self):
        compared = 0
        different: dict[tuple[str, str], tuple[Rows, Rows]] = {}
        for real in real_exports():
            version = tuple(map(int, schema_of(real).split(".")))
            for table in table_names(real).intersection(ExportWriter.tables.names(version)):
                # Users of 2.9.1 added a text column `name` to some tables (the user guide's own example).
                added = "name" if version == (2, 9, 1) and table.startswith("CUPTI") else ""
                theirs = declared_columns(real, table, but=added)
                declared = ExportWriter.tables.columns(table, version)
                ours = [(column.name, column.type, column.not_null, column.primary_key) for column in declared]
                compared += 1
                if ours != [(*column[:2], bool(column[2]), bool(column[3])) for column in theirs]:
                    different[real.name, table] = (ours, theirs)
        assert different == {}
        assert compared > 300

    def test_file_has_page_size_rollback_journal_and_no_index(self, tmp_path):
        for schema in demo.SCHEMAS:
            path = synthetic.old_schema_export(tmp_path / f"{schema}.sqlite", schema)
            header = path.read_bytes()[:100]
            assert struct.unpack(">HBB", header[16:20]) == (4096, 1, 1), schema
            assert struct.unpack(">I", header[28:32])[0] * 4096 == path.stat().st_size, schema
            assert query(path, "SELECT name FROM sqlite_master WHERE type = 'index'") == [], schema
            assert query(path, "PRAGMA integrity_check") == [("ok",)], schema

    def test_table_exists_only_when_it_has_rows_unless_all_of_the_version_are_made(self, tmp_path):
        path = synthetic.empty_export(tmp_path / "empty.sqlite")
        assert {name for name in table_names(path) if not name.startswith("ENUM_")} == {
            "StringIds", "TARGET_INFO_SYSTEM_ENV", "TARGET_INFO_SESSION_START_TIME", "ANALYSIS_DETAILS",
            "META_DATA_CAPTURE", "META_DATA_EXPORT",
        }  # fmt: skip
        path = synthetic.all_tables_export(tmp_path / "all.sqlite", "3.7.2")
        assert set(ExportWriter.tables.names((3, 7))) <= table_names(path)
        assert count(path, "CUPTI_ACTIVITY_KIND_KERNEL") == 0


class TestSpecialExports:
    @pytest.mark.parametrize("schema", ["2021", "2.9.1", "3.28.1"])
    def test_special_exports_exist_in_oldest_and_newest_schema(self, tmp_path, schema):
        specials = "two_process hostile_names open_ranges deep_nvtx unified_memory nccl_without_nvtx empty all_tables"
        for name in f"{specials} delayed_capture node_graph simulation".split():
            path = getattr(synthetic, f"{name}_export")(tmp_path / f"{name}.sqlite", schema=schema)
            assert query(path, "PRAGMA quick_check") == [("ok",)], name
