"""CPU work: API calls, NVTX, MPI, OpenMP, OpenACC, OS runtime calls, processes and threads; network samples."""

import re
from collections.abc import Collection, Mapping

from nsystui.exports.schema import Schema
from nsystui.exports.sources.base import (
    NAMED,
    NVTX_TEXT,
    POSSIBLE_RANGE,
    THREAD_EVENT,
    Source,
    Transform,
    columns_of,
    declare,
    labelled,
    makes_source_of,
    process_of,
)

SEVERITIES = {0: "Unknown", 1: "Info", 2: "Warning", 3: "Error", 4: "Verbose"}
# NVTX event types (docs/exports.md#nvtx)
RANGE_TYPES = (59, 60, 70, 71)
MARK_TYPE = 34
BACKTRACE_CLASS = 67


@makes_source_of("CUPTI_ACTIVITY_KIND_RUNTIME")
def api_calls(schema: Schema, table: str) -> Source:
    wanted = f"{NAMED} event_class:eventClass correlation_id:correlationId return_value:returnValue "
    columns = columns_of(schema, table, wanted + _chain(schema, "CUDA_CALLCHAINS"))
    fields = {"name": "s.bare", "versioned_name": "s.value", "is_driver": "event_class = 1", "chain": _CHAIN}
    makes = {
        "api_calls": Transform(fields, where=f"coalesce(event_class, 0) <> {BACKTRACE_CLASS}"),
        "api_backtraces": Transform({"chain": _CHAIN}, where=f"coalesce(event_class, 0) = {BACKTRACE_CLASS}"),
    }
    return Source(table, columns, makes)


_CHAIN = "nullif(c.chain, 0)"
"""A call without a call chain has NULL or 0."""


def _chain(schema: Schema, table: str) -> str:
    """Return the column with a call's chain; without chains, a name that no native table has."""
    return "chain:callchainId" if schema.has(table) else "chain"


_DOMAIN = "CASE WHEN coalesce(c.domain_id, 0) = 0 THEN '' ELSE d.domain END"
_LABEL = f"(CASE WHEN {_DOMAIN} <> '' THEN {_DOMAIN} || ':' ELSE '' END || {NVTX_TEXT})"
_SUFFIXES = (", seq =", ", op_id =", ", sizes =", " in=[", ",unique_hlo_op_id=", ",program_id=")
"""The beginning of a name's varying part: PyTorch's numbers, SGLang's shapes, XLA's ids."""
_ENDS = ", ".join(f"nullif(instr({_LABEL}, '{suffix}'), 0)" for suffix in _SUFFIXES)
_MEANINGS = ", ".join(
    rf"""nullif(regexp_extract({_LABEL}, '(?s)["'']{key}["'']: ?["''](.+?)(?:["''](?:[,}}]|$)|$)', 1), '')"""
    for key in ("(?:Module|funcStack|mod)", "op")
)
_OF_DICT = f"split_part({_LABEL}, '{{', 1) || nullif(concat_ws('.', {_MEANINGS}), '')"
_IS_DICT = f"""contains({_LABEL}, '{{''') OR contains({_LABEL}, '{{"')"""
_CUT = f"coalesce(left({_LABEL}, least({_ENDS}) - 1), {_LABEL})"
_FOLDED = f"coalesce(nullif(coalesce(CASE WHEN {_IS_DICT} THEN {_OF_DICT} END, {_CUT}), ''), '[no name]')"
"""``domain:text``, or only the text in the default domain, without arguments, shapes and ids of a call.

``aten::add, seq = 7`` is ``aten::add``. A dict is named by its module or operator: ``{'Module': 'layers.3.mlp',
'Inputs': [[1, 64]]}`` (vLLM, TensorRT-LLM) is ``layers.3.mlp``, ``{'mod': 'torch', 'op': 'add', 'args': []}`` (PyProf)
is ``torch.add``.
"""


@makes_source_of("NVTX_EVENTS")
def nvtx(schema: Schema, table: str) -> Source:
    wanted = (
        f"{THREAD_EVENT} event_type:eventType end_thread:endGlobalTid domain_id:domainId text_id:textId "
        "category color range_id:rangeId text json_text:jsonText"
    )
    columns = columns_of(schema, table, wanted) | {"blob": schema.text(table, "binaryData")}
    process = process_of("c.thread")
    names = {"domain": _DOMAIN, "name": NVTX_TEXT}
    joins = {
        "s": "LEFT JOIN strings s ON s.id = c.text_id",
        "d": f"LEFT JOIN domains d ON d.process = {process} AND d.domain_id = c.domain_id",
    }
    makes = {
        "nvtx_ranges": Transform(
            {**names, "folded": _FOLDED}, joins, f"c.event_type IN ({', '.join(map(str, RANGE_TYPES))})"
        ),
        "nvtx_marks": Transform(names, joins, f"c.event_type = {MARK_TYPE}"),
    }
    strings = ""
    if schema.has_python_samples:
        columns["time"] = schema.time(table, "start")
        makes |= _python_samples(schema.rows(["COMPOSITE_EVENTS"]))
        strings = _name_ids(_PYTHON_FRAMES)
    return Source(table, columns, makes, decoded={"nccl_calls": NCCL_RANGES}, strings=strings)


NCCL_RANGES = f"""
    SELECT c.row_id AS row, c."start", c."end", c.thread, {process_of("c.thread")} AS process, c.domain_id,
        {NVTX_TEXT} AS name, c.json_text, c.blob
    FROM chunk c LEFT JOIN strings s ON s.id = c.text_id
    LEFT JOIN domains d ON d.process = {process_of("c.thread")} AND d.domain_id = c.domain_id
    WHERE c.event_type IN (59, 60) AND {POSSIBLE_RANGE}
        AND (d.domain = 'NCCL'
            OR (coalesce(d.is_lost OR d.domain = '', true) AND regexp_matches({NVTX_TEXT}, '^nccl[A-Z]')))
    ORDER BY c."start", c.row_id"""
"""DuckDB: the NCCL API ranges of an NVTX chunk with their payload. Their names decide if the domain's row is missing
(trimmed files), or its name is lost (docs/exports.md#nvtx).
"""


def nccl_condition(columns: Mapping[str, str], domains: Collection[int], texts: Collection[int] | None) -> str:
    """Return SQLite's condition that all rows of ``NCCL_RANGES`` and few other rows fulfil.

    ``columns`` are the source's, ``domains`` the ids of domains called NCCL in any process, ``texts`` the ids of
    strings that begin like an NCCL call, or ``None`` if too many to list.
    """
    conditions = [f"{columns['domain_id']} IN ({_id_list(domains)})"]
    if texts is not None:
        conditions.append(
            f"{columns['text_id']} IN ({_id_list(texts)}) OR substr({columns['text']}, 1, 4) = x'6e63636c'"
        )
    else:
        conditions.append("1")
    return f"{columns['event_type']} IN (59, 60) AND ({' OR '.join(conditions)})"


def _id_list(numbers: Collection[int]) -> str:
    return ", ".join(f"{number:d}" for number in sorted(numbers))


for _table, _call_type in (
    ("MPI_P2P_EVENTS", "p2p"), ("MPI_COLLECTIVES_EVENTS", "collective"), ("MPI_START_WAIT_EVENTS", "wait"),
    ("MPI_OTHER_EVENTS", "other"),
):  # fmt: skip
    declare(_table,
        f"{THREAD_EVENT} name_id:textId communicator:commHandle tag remote_rank:remoteRank root_rank:rootRank "
        "send_bytes:size recv_bytes:recvSize",
        mpi_calls=Transform({"call_type": f"'{_call_type}'"}))  # fmt: skip

for _table in ("UCP_SUBMIT_EVENTS", "UCP_PROGRESS_EVENTS", "UCP_EVENTS"):
    declare(_table, f"{THREAD_EVENT} name_id:textId", ucx_calls=Transform())

declare("MPI_RANKS", "thread:globalTid rank",
    mpi_ranks=Transform(where="thread IS NOT NULL AND rank IS NOT NULL", order="", is_distinct=True))  # fmt: skip


@makes_source_of("OSRT_API")
def os_calls(schema: Schema, table: str) -> Source:
    wanted = f"{NAMED} event_class:eventClass return_value:returnValue {_chain(schema, 'OSRT_CALLCHAINS')}"
    # Not "profiling started" and "profiling finished", which are notes of nsys.
    calls = Transform({"chain": _CHAIN}, where="coalesce(event_class, 0) NOT IN (31, 32)")
    return Source(table, columns_of(schema, table, wanted), {"os_calls": calls})


_TID = {"tid": "c.thread & 16777215"}
"""The lowest 24 bits of a globalTid; a file access's ``threadId`` may be a globalTid, too."""
declare("OSRT_FILE_ACCESS_EVENTS",
    "start:startedAt end:endedAt thread:threadId name_id:apiCallId file:fileAccessId bytes:bytesProcessed",
    file_accesses=Transform(_TID))  # fmt: skip

declare("OSRT_FILE_ACCESS_DESCRIPTORS", "file:fileAccessId path:filePath",
    files=Transform({"path": "nullif(path, '')"}, where="file IS NOT NULL", order=""))  # fmt: skip

for _table, _library in (("CUBLAS_EVENTS", "cuBLAS"), ("CUDNN_EVENTS", "cuDNN")):
    declare(_table, NAMED, library_calls=Transform({"library": f"'{_library}'"}))


# ENUM_SAMPLING_THREAD_STATE
_THREAD_STATES = dict(enumerate((
    "running", "interruptible", "uninterruptible", "stopped", "terminated", "unscheduled", "waiting", "OS runtime",
    "initialized", "transition",
), 1))  # fmt: skip
_STATE = f"CASE WHEN state > 0 THEN {labelled('state', _THREAD_STATES)} END"
_ON_THREAD = "time:start thread:globalTid cpu state:threadState"


@makes_source_of("COMPOSITE_EVENTS")
def host_samples(schema: Schema, table: str) -> Source:
    chain = "chain:id" if schema.has("SAMPLING_CALLCHAINS") else "chain"
    columns = columns_of(schema, table, f"{_ON_THREAD} weight:cpuCycles {chain}")
    return Source(table, columns, {"host_samples": Transform({"state": _STATE, "is_python": "0"}, order="time")})


_SCHEDULED = {"is_in": "is_in <> 0", "state": _STATE, "block": "b.label"}
_BLOCK = {"b": "LEFT JOIN thread_blocks b ON b.id = block_id"}
declare("SCHED_EVENTS", f"{_ON_THREAD} is_in:isSchedIn block_id:threadBlock",
    sched_events=Transform(_SCHEDULED, _BLOCK, order="time"))  # fmt: skip


_CHAIN_TABLES = {"SAMPLING_CALLCHAINS": "sample", "OSRT_CALLCHAINS": "os", "CUDA_CALLCHAINS": "cuda"}


def _name_ids(frames: str) -> str:
    return (
        f"SELECT number FROM (SELECT DISTINCT unnest([function_id, module_id]) AS number FROM {frames}) "
        "WHERE number IS NOT NULL"
    )


def _stacks(kind: str, frames: str = "chunk") -> dict[str, Transform]:
    """Return the transforms of ``frames``, a table or query of DuckDB's: chains, each different stack once, and names.

    ``signature`` is a chain's frames and their depths as one number. A stack's number is its first row in the chunk.
    """
    fields = {
        "kind": f"'{kind}'",
        "function": "c.function_id",
        "module": "c.module_id",
        "is_kernel": "c.flags & 1",
        "is_unresolved": "c.flags >> 1",
    }
    signatures = (
        "SELECT chain, min(row_id) AS first, count(*) AS frames, sum(hash(depth, function_id, module_id, flags)) "
        f"AS signature FROM {frames} WHERE chain IS NOT NULL GROUP BY chain"
    )
    chain_rows = f"SELECT chain, min(first) OVER (PARTITION BY signature, frames) AS stack FROM ({signatures})"
    frame_rows = (
        f"SELECT k.* EXCLUDE (chain), u.stack FROM {frames} k JOIN (SELECT min(first) AS stack, "
        f"arg_min(chain, first) AS chain FROM ({signatures}) GROUP BY signature, frames) u ON k.chain = u.chain"
    )
    joins = {"s": "LEFT JOIN strings s ON s.id = c.number"}
    return {
        "call_chains": Transform({"kind": f"'{kind}'"}, order="", rows=chain_rows),
        "stack_frames": Transform(fields, order="", rows=frame_rows),
        "stack_names": Transform(joins=joins, order="", rows=_name_ids(frames)),
    }


@makes_source_of(*_CHAIN_TABLES)
def call_chains(schema: Schema, table: str) -> Source:
    """Return call chains; all kinds share the canonical tables."""
    marks = [
        f'{value} * (ifnull("{column}", 0) <> 0)'
        for value, column in ((1, "kernelMode"), (2, "unresolved"))
        if schema.has_column(table, column)
    ]
    wanted = "chain:id depth:stackDepth function_id:symbol module_id:module"
    columns = {**columns_of(schema, table, wanted), "flags": f"CAST({' + '.join(marks) or 0} AS INTEGER)"}
    return Source(table, columns, _stacks(_CHAIN_TABLES[table]))


def _number_at(byte: str) -> str:
    """Return SQL for the lowest 4 bytes of the number at ``byte`` of a payload with hexadecimal digits ``h``."""
    digits = " || ".join(f"substr(h, 2 * ({byte}) + {position}, 2)" for position in (7, 5, 3, 1))
    return f"TRY_CAST('0x' || {digits} AS BIGINT)"


# A payload: a header of 32 bytes, a number (8 bytes), state and number of frames (4 bytes each), and for each frame,
# innermost first, the strings of function and file and the line (8 bytes each).
_PYTHON_SAMPLES = f"""
    (SELECT *, {_number_at("40")} AS state FROM (
        SELECT c.*, c.row_id AS chain, hex(c.blob) AS h FROM chunk c
        LEFT JOIN domains d ON d.process = {process_of("c.thread")} AND d.domain_id = c.domain_id
        WHERE c.event_type = {MARK_TYPE} AND octet_length(c.blob) >= 48
            AND (d.domain = 'Python Periodic Sampling' OR (coalesce(d.is_lost, true) AND c.domain_id <> 0)))
    WHERE length(h) = 2 * (48 + 24 * {_number_at("44")}))"""
_PYTHON_FRAMES = f"""
    (SELECT row_id, chain, depth, {_number_at("48 + 24 * depth")} AS function_id,
        {_number_at("56 + 24 * depth")} AS module_id, 0 AS flags
    FROM (SELECT row_id, chain, h, unnest(range({_number_at("44")})) AS depth FROM {_PYTHON_SAMPLES}))"""


def _python_samples(first_row: int) -> dict[str, Transform]:
    """Return samples of Python in NVTX marks (docs/exports.md#python); threads that did not run have weight 0."""
    fields = {
        "row": f"row_id + {first_row}",
        "cpu": "NULL",
        "state": _STATE,
        "weight": "CASE WHEN state > 1 THEN 0 END",
        "is_python": "1",
    }
    samples = Transform(
        fields, where=f"event_type = {MARK_TYPE}", order="time", rows=f"SELECT * FROM {_PYTHON_SAMPLES}"
    )
    return {"host_samples": samples, **_stacks("python", _PYTHON_FRAMES)}


declare("PROFILER_OVERHEAD", NAMED, profiler_overhead=Transform())

# ENUM_CUPTI_OVERHEAD_TYPE
_OVERHEADS = {
    0: "Undefined", 1: "Unknown", 2: "Driver JIT compiler", 3: "Buffer flush", 4: "Instrumentation",
    5: "Resource creation/destruction", 6: "Runtime module loading", 7: "Lazy function loading",
    8: "Command buffer full",
}  # fmt: skip


_OVERHEAD = {"name": labelled("overhead_type", _OVERHEADS)}
# The overhead that CUDA reports, of which a part is the profiler's.
declare("CUPTI_ACTIVITY_KIND_OVERHEAD", f"{THREAD_EVENT} correlation_id:correlationId overhead_type:overheadType",
    profiler_overhead=Transform(_OVERHEAD, where="overhead_type BETWEEN 3 AND 5"),
    cuda_overhead=Transform(_OVERHEAD, where="coalesce(overhead_type, 0) NOT BETWEEN 3 AND 5"))  # fmt: skip


@makes_source_of("DIAGNOSTIC_EVENT")
def diagnostics(schema: Schema, table: str) -> Source:
    columns = columns_of(schema, table, "severity process:globalPid text")
    transform = Transform({"severity_name": labelled("severity", SEVERITIES)}, order="time")
    return Source(table, {"time": schema.optional_time(table, "timestamp"), **columns}, {"diagnostics": transform})


declare("PROCESSES", "process:globalPid pid name",
    processes=Transform({"name": "nullif(name, '')"}, where="process IS NOT NULL", order=""))  # fmt: skip
declare("ThreadNames", "thread:globalTid name_id:nameId priority",
    threads=Transform(_TID, where="thread IS NOT NULL", order="row_id"))  # fmt: skip


# OpenMP and OpenACC have a native table for each kind of event. The patterns match whole words only, because the file's
# names become SQL.
_OPENMP = re.compile(r"OPENMP_EVENT_KIND_([A-Z0-9_]+)")
_OPENACC = re.compile(r"CUPTI_ACTIVITY_KIND_OPENACC_([A-Z0-9_]+)")


def openmp(schema: Schema) -> list[Source]:
    return [
        Source(table, columns_of(schema, table, NAMED), {"openmp_events": Transform({"kind": f"'{kind}'"})})
        for table, kind in _tables(schema, _OPENMP)
    ]


def openacc(schema: Schema) -> list[Source]:
    """Return OpenACC events, called ``name@file:line``, as in nsys, if their place in the source is known."""
    wanted = f"{NAMED} file_id:srcFile line:lineNo event_kind:eventKind function_id:funcName bytes"
    fields = {
        "name": "CASE WHEN coalesce(f.value, '') = '' THEN s.value "
        "ELSE s.value || '@' || f.value || coalesce(':' || CAST(line AS VARCHAR), '') END",
        "function": "nullif(g.value, '')",
    }
    joins = {"f": "LEFT JOIN strings f ON f.id = file_id", "g": "LEFT JOIN strings g ON g.id = function_id"}
    return [
        Source(
            table,
            columns_of(schema, table, wanted),
            {"openacc_events": Transform({**fields, "kind": f"'{kind}'"}, joins)},
        )
        for table, kind in _tables(schema, _OPENACC)
    ]


def _tables(schema: Schema, pattern: re.Pattern[str]) -> list[tuple[str, str]]:
    return [(name, match[1]) for name in sorted(schema.columns) if (match := pattern.fullmatch(name))]


# The network (docs/exports.md#network-metrics)
_METRIC = {"m": "LEFT JOIN nic_metric_names m ON m.list_id = c.list_id AND m.metric_index = c.metric_index"}
for _table, _is_switch in (("NET_NIC_METRIC", "0"), ("NET_IB_SWITCH_METRIC", "1")):
    declare(_table, "start end nic:globalId list_id:metricsListId metric_index:metricsIdx value",
        nic_metrics=Transform({"metric": "m.metric", "unit": "m.unit", "is_switch": _is_switch}, _METRIC))  # fmt: skip

# The ids of the adapters' samples are in NIC_ID_MAP; schema 3.1 has only the adapter's ``globalId``.
_NIC = {"nic": "coalesce(n.global_id, own_id)", "name": "nullif(name, '')"}
_NIC_IDS = {"n": "LEFT JOIN nic_ids n ON n.nic_id = c.nic_id"}
declare("TARGET_INFO_NIC_INFO", "nic_id:nicId own_id:globalId guid:GUID name",
    nic_devices=Transform(_NIC, _NIC_IDS, order="", is_distinct=True))  # fmt: skip


_DATA = "GENERIC_EVENT_DATA"


def efa_samples(schema: Schema) -> list[Source]:
    """Return the samples of AWS's EFA plugin: generic events with a row for each value."""
    if not schema.efa_types or not schema.has(_DATA):
        return []
    types = ", ".join(f"{type_id:d}" for type_id in schema.efa_types)
    # The driver needs one type in all rows.
    values = ("intVal", "uintVal", "floatVal", "doubleVal")
    present = ", ".join(f'"{column}"' for column in values if schema.has_column(_DATA, column)) or "NULL"
    columns = {
        **columns_of(schema, _DATA, "event:genericEventId field_index:fieldIdx"),
        "value": f"CAST(coalesce({present}, 0, 0) AS REAL)",
        "is_known": f"coalesce({present}, NULL) IS NOT NULL",
        "is_efa": f'"genericEventId" IN (SELECT genericEventId FROM GENERIC_EVENTS WHERE typeId IN ({types}))',
    }
    of_event = "SELECT event, k.* FROM efa_events JOIN"
    joins = {
        "e": "LEFT JOIN efa_events e ON e.event = c.event",
        "t": f"LEFT JOIN ({of_event} efa_types k USING (type_id)) t ON t.event = c.event",
        "f": f"LEFT JOIN ({of_event} efa_fields k USING (type_id)) f "
        "ON f.event = c.event AND f.field_index = c.field_index",
    }
    fields = {"time": "e.time", "type_id": "e.type_id", "source": "t.source", "type": "t.type", "field": "f.field"}
    transform = Transform(fields, joins, "is_efa = 1 AND is_known = 1", order="event")
    return [Source(_DATA, columns, {"efa_samples": transform})]
