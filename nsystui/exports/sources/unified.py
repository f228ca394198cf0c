"""Page faults of CUDA's unified memory (docs/exports.md#unified-memory); its migrations are memory copies."""

from __future__ import annotations

from nsystui.exports.schema import Schema
from nsystui.exports.sources.base import Source, Transform, as_they_are, integers

# How the column of a fault's place in the source is spelled, newest first; nsys 2023 and older have none.
_FILES = ("sourceFile", "SourceFile")
_LINES = ("sourceLine", "SourceLine")


def cpu_page_faults(schema: Schema) -> Source:
    table = "CUDA_UM_CPU_PAGE_FAULT_EVENTS"
    file, line = (schema.one_of(table, names) for names in (_FILES, _LINES))
    wanted = {
        "start": "start",
        "process": "globalPid",
        "address": "address",
        "instruction_id": "CpuInstruction",
        "file_id": file,
        "source_line": line,
    }
    # Empty, and not missing, where the export would say it.
    source_file = "coalesce(f.value, '')" if schema.has_column(table, file) else "NULL"
    fields = {
        "row": "row_id",
        **as_they_are("start", "process", "address"),
        "instruction": "i.value",
        "source_file": source_file,
        **as_they_are("source_line"),
    }
    joins = {
        "i": "LEFT JOIN strings i ON i.id = instruction_id",
        "f": "LEFT JOIN strings f ON f.id = file_id",
    }
    return Source(table, integers(schema, table, wanted), {"cpu_page_faults": Transform(fields, joins)})


def gpu_page_faults(schema: Schema) -> Source:
    table = "CUDA_UM_GPU_PAGE_FAULT_EVENTS"
    wanted = {
        "start": "start",
        "end": "end",
        "process": "globalPid",
        "device": "deviceId",
        "address": "address",
        "count": "numberOfPageFaults",
    }
    fields = {"row": "row_id", **as_they_are(*wanted)}
    return Source(table, integers(schema, table, wanted), {"gpu_page_faults": Transform(fields)})
