"""The writer of test exports imitates nsys."""

from pathlib import Path
from typing import Any

import pytest
from support import native as query
from support import real_exports
from synthetic import ExportWriter

Rows = list[tuple[Any, ...]]


def table_names(path: Path) -> set[str]:
    return {name for (name,) in query(path, "SELECT name FROM sqlite_master WHERE type = 'table'")}


def schema_of(path: Path) -> str:
    table = "META_DATA_EXPORT" if "META_DATA_EXPORT" in table_names(path) else "EXPORT_META_DATA"
    [(schema,)] = query(path, f"SELECT value FROM {table} WHERE name = 'EXPORT_SCHEMA_VERSION'")
    return schema


@pytest.mark.skipif(not real_exports(), reason="no real exports on this machine (../shared/data/exports)")
def test_columns_are_those_of_real_exports_of_the_same_schema():
    compared = 0
    different: dict[tuple[str, str], tuple[Rows, Rows]] = {}
    for real in real_exports():
        version = tuple(map(int, schema_of(real).split(".")))
        for table in table_names(real).intersection(ExportWriter.tables.names(version)):
            # Users of 2.9.1 added a text column `name` to some tables (the user guide's own example).
            added = "name" if version == (2, 9, 1) and table.startswith("CUPTI") else ""
            theirs = query(real, f"SELECT name, type, [notnull], pk FROM pragma_table_info('{table}')")
            theirs = [column for column in theirs if column[0] != added]
            declared = ExportWriter.tables.columns(table, version)
            ours = [(column.name, column.type, column.not_null, column.primary_key) for column in declared]
            compared += 1
            if ours != [(*column[:2], bool(column[2]), bool(column[3])) for column in theirs]:
                different[real.name, table] = (ours, theirs)
    assert different == {}
    assert compared > 300
