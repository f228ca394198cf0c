"""Page faults of CUDA's unified memory (domain §1.5); its migrations are memory copies."""

from __future__ import annotations

from nsystui.exports.schema import Schema
from nsystui.exports.sources.base import Source, integers

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
    return Source(
        table,
        integers(schema, table, wanted),
        {
            "cpu_page_faults": 'SELECT row_id AS row, "start", process, address, i.value AS instruction, '
            f"{source_file} AS source_file, source_line FROM chunk "
            "LEFT JOIN strings i ON i.id = instruction_id LEFT JOIN strings f ON f.id = file_id "
            'ORDER BY "start", row_id'
        },
    )


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
    names = ", ".join(f'"{name}"' for name in wanted)
    return Source(
        table,
        integers(schema, table, wanted),
        {"gpu_page_faults": f'SELECT row_id AS row, {names} FROM chunk ORDER BY "start", row_id'},
    )
