"""The parts of every source: SQL for a native table, its constant words, and one rule for the times of rows.

An event has a start, and an end that is not before it; only NVTX ranges and MPI and UCX calls may lack an end. Both are
within the bounds of `schema`. Rows that break the rule are left out and counted; no number uses them.

Names are looked up in small tables: strings, NVTX domains, metrics, network adapters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from nsystui.base.answer import UNKNOWN
from nsystui.exports import canonical
from nsystui.exports.schema import LATEST, NO_INTEGER, Schema

MAY_BE_OPEN = (canonical.NVTX_RANGES, canonical.MPI_CALLS, canonical.UCX_CALLS)
"""The tables whose rows may lack an end."""

REASONS = ("without a time", "with a time outside the session", "ending before the start")
"""Why rows are left out, by ``Times.reason``."""


@dataclass(frozen=True)
class _Times:
    """SQL about a row of a chunk (as ``c``), for SQLite and DuckDB.

    ``possible`` is true if the row's times are possible; otherwise ``reason`` is an index into `REASONS`.
    """

    possible: str
    reason: str


def times_of(table: canonical.CanonicalTable) -> _Times | None:
    """Return the rule for the rows of a table; ``None`` if they need no time."""
    if table in (canonical.DIAGNOSTICS, canonical.EFA_SAMPLES):  # nsys does not always write their times
        return None
    names = [name for name in ("start", "end", "time") if name in table.field_names]
    return _times(names, may_be_open=table in MAY_BE_OPEN) if names else None


def _times(names: Sequence[str], may_be_open: bool) -> _Times:
    first, *rest = (f'c."{name}"' for name in names)
    if not rest:
        return _Times(f"{first} <= {LATEST}", f"CASE WHEN {first} IS NULL THEN 0 ELSE 1 END")
    (last,) = rest
    missing = [f"{first} IS NULL", *([] if may_be_open else [f"{last} IS NULL"])]
    cases = f"WHEN {' OR '.join(missing)} THEN 0 WHEN {first} > {LATEST} OR {last} > {LATEST} THEN 1 ELSE 2"
    # If the end is between start and bound, the start is not beyond the bound.
    end = f"coalesce({last}, {first})" if may_be_open else last
    return _Times(f"{end} BETWEEN {first} AND {LATEST}", f"CASE {cases} END")


POSSIBLE_RANGE = _times(["start", "end"], may_be_open=True).possible
"""The condition for the rows of ``NVTX_RANGES``."""


@dataclass(frozen=True)
class Transform:
    """DuckDB's SQL that turns ``chunk`` (as ``c``) into the fields of one canonical table.

    `completed` adds missing ``fields``. ``joins`` are the lookups by the alias that the fields use. ``where`` is SQL
    that SQLite also understands. ``times`` excludes rows with impossible times, if any. ``order`` is the column that
    sorts a chunk's rows. ``first_choice`` has shorter SQL for fields; their full SQL is needed only if it gives NULL.
    ``rows``: a DuckDB query over ``chunk`` for the table's rows, if they are not the chunk's.
    """

    fields: Mapping[str, str] = field(default_factory=dict)
    joins: Mapping[str, str] = field(default_factory=dict)
    where: str = ""
    order: str = "start"
    is_distinct: bool = False
    first_choice: Mapping[str, str] = field(default_factory=dict)
    times: _Times | None = None
    rows: str = ""

    @property
    def is_made(self) -> bool:
        """Whether its rows differ from the native table's."""
        return self.is_distinct or bool(self.rows)

    @property
    def condition(self) -> str:
        """The condition for a chunk's row to be in the table, also for SQLite; empty if all rows are."""
        possible = "" if self.times is None else self.times.possible
        return f"({self.where}) AND {possible}" if self.where and possible else self.where or possible

    def select(self, tie: str = "row_id") -> str:
        """Return the SELECT over ``chunk``.

        ``tie`` is the column that decides between equal values of ``order``; if empty, the rows are not sorted.
        """
        columns = ", ".join(f'{sql} AS "{name}"' for name, sql in self.fields.items())
        rows = f"({self.rows})" if self.rows else "chunk"
        parts = [f"SELECT {'DISTINCT ' if self.is_distinct else ''}{columns} FROM {rows} c", *self._joined]
        parts += [f"WHERE {self.condition}"] if self.condition else []
        parts += [f'ORDER BY c."{self.order}", c.{tie}'] if self.order and tie else []
        return " ".join(parts)

    def of_fields(self, names: Collection[str], first_choice: bool = False) -> Transform:
        """Return the transform of these fields only, optionally with their first choices."""
        selected = {name: sql for name, sql in self.fields.items() if name in names}
        if first_choice:
            selected.update({name: sql for name, sql in self.first_choice.items() if name in selected})
        return replace(self, fields=selected)

    @property
    def words(self) -> frozenset[str]:
        """All words in the SELECT, including the columns of ``chunk`` that it needs."""
        return words_of(" ".join([*self.fields.values(), *self._joined, self.condition, self.order, self.rows]))

    @property
    def _joined(self) -> list[str]:
        """The joins that the fields or the condition use."""
        used = words_of(" ".join([*self.fields.values(), self.where]))
        return [join for alias, join in self.joins.items() if alias in used]


@lru_cache(maxsize=4096)
def words_of(sql: str) -> frozenset[str]:
    """Return all words in SQL: a name that is not among them is not used."""
    return frozenset(re.findall(r"\w+", sql))


@dataclass(frozen=True)
class Source:
    """A native table: the columns to read (SQLite's SQL by our names), and the canonical tables made from them.

    ``first_row`` is added to rowids, so that two native tables can share a canonical table. ``decoded`` has DuckDB's
    SQL for the rows of ``chunk`` that Python decodes, by canonical table. ``strings`` is a DuckDB query for the ids of
    strings that a payload (``blob``) names. ``without`` is SQLite's condition, over ``columns``, for rows not to read.
    """

    table: str
    columns: Mapping[str, str]
    makes: Mapping[str, Transform]
    first_row: int = 0
    decoded: Mapping[str, str] = field(default_factory=dict)
    strings: str = ""
    without: str = ""

    @property
    def feeds(self) -> tuple[str, ...]:
        """The names of the canonical tables that it fills."""
        return (*self.makes, *self.decoded)

    @property
    def kind(self) -> str:
        """The column that alone decides which canonical table gets a row, or an empty text."""
        conditions = words_of(" ".join(made.where for made in self.makes.values()))
        kinds = [name for name, sql in self.columns.items() if name in conditions and sql != NO_INTEGER]
        return kinds[0] if len(kinds) == 1 and not any(made.is_made for made in self.makes.values()) else ""

    @property
    def scan(self) -> str:
        """The SQLite query for a chunk, with ``%d`` for first and last rowid."""
        columns = ", ".join(f'{sql} AS "{name}"' for name, sql in {"row_id": "rowid", **self.columns}.items())
        query = f'SELECT {columns} FROM "{self.table}" WHERE rowid BETWEEN %d AND %d'
        return f"SELECT * FROM ({query}) c WHERE ({self.without}) IS NOT TRUE" if self.without else query

    @property
    def words(self) -> frozenset[str]:
        """All words in the SQL for a chunk."""
        words = (transform.words for transform in self.makes.values())
        return frozenset().union(*words, *map(words_of, (*self.decoded.values(), self.without)))

    def of_fields(
        self, fields: Mapping[str, Collection[str]], first_choice: bool = False, in_order: bool = True
    ) -> Source:
        """Return the source for these fields by canonical table, with only their columns."""
        makes = {
            name: transform.of_fields(fields[name], first_choice)
            for name, transform in self.makes.items()
            if name in fields
        }
        if not in_order:
            makes = {name: replace(transform, order="") for name, transform in makes.items()}
        decoded = {name: sql for name, sql in self.decoded.items() if name in fields}
        narrowed = replace(self, makes=makes, decoded=decoded)
        words = narrowed.words
        return replace(narrowed, columns={name: sql for name, sql in self.columns.items() if name in words})


_Maker = Callable[[Schema, str], Source]
MAKERS: dict[str, _Maker] = {}
"""The function that makes the source of each native table, in the order in which the tables are read."""


def makes_source_of(*tables: str) -> Callable[[_Maker], _Maker]:
    """Register a function that makes the sources of native tables; it gets the schema and a table's name."""

    def register(make: _Maker) -> _Maker:
        MAKERS.update(dict.fromkeys(tables, make))
        return make

    return register


def declare(table: str, wanted: str, **makes: Transform) -> None:
    """Register the source of a native table with columns for `columns_of`."""
    MAKERS[table] = lambda schema, table: Source(table, columns_of(schema, table, wanted), makes)


def process_of(thread: str) -> str:
    """Return SQL for the globalPid of a globalTid: the lowest 24 bits are the thread."""
    return f"({thread} & -16777216)"


def labelled(column: str, labels: Mapping[int, str]) -> str:
    """Return SQL that replaces enum values by NVIDIA's labels; unknown values keep their number."""
    cases = " ".join(f"WHEN {value} THEN '{label}'" for value, label in labels.items())
    return f"CASE {column} {cases} ELSE CAST({column} AS VARCHAR) END"


def native_columns(text: str) -> dict[str, str]:
    """Return NVIDIA's columns by our names: ``start device:deviceId`` names ``start``, ``deviceId``."""
    return {name: native or name for name, _, native in (word.partition(":") for word in text.split())}


_READ = dict.fromkeys(("start", "end", "time"), Schema.time) | dict.fromkeys(
    ("name", "path", "text", "json_text"), Schema.text
)


def columns_of(schema: Schema, table: str, wanted: str) -> dict[str, str]:
    """Return SQL for columns, named as in `native_columns`: integers, except times and texts, known by name."""
    return {
        name: _READ.get(name, Schema.integer)(schema, table, native) for name, native in native_columns(wanted).items()
    }


THREAD_EVENT = "start end thread:globalTid"
"""NVIDIA's columns of an event on a thread, by our names."""
NAMED = f"{THREAD_EVENT} name_id:nameId"


def completed(source: Source) -> Source:
    """Return the source with all fields of its tables, and the rule for the times of their rows.

    By default a field is the chunk's column of that name; a missing device or stream is UNKNOWN. Without a column, the
    row is the rowid, the process the thread's, and the name the string ``name_id``.
    """
    row = f"row_id + {source.first_row}" if source.first_row else "row_id"
    without_column = {"row": row, "process": process_of('c."thread"'), "name": "s.value"}
    defaults = {name: sql for name, sql in without_column.items() if name not in source.columns}
    defaults |= {name: f'coalesce(c."{name}", {UNKNOWN})' for name in ("device", "stream")}
    makes = {}
    for name, transform in source.makes.items():
        table, joins = canonical.BY_NAME[name], {**STRINGS, **transform.joins}
        fields = {field: defaults.get(field, f'c."{field}"') for field in table.field_names} | {**transform.fields}
        makes[name] = replace(transform, fields=fields, joins=joins, times=times_of(table))
    return replace(source, makes=makes)


LABEL = "CASE WHEN trim(value) <> '' THEN value ELSE '[no name]' END"
"""DuckDB: a string as a name that is never blank: a property of strings, because a CASE for each row is slow."""
BARE_NAME = "regexp_replace(value, '_v....$', '')"
"""DuckDB: the name of an API call without its version."""
IS_NCCL = r"CAST(regexp_matches(value, '^(void |_Z\d+)?[nr]ccl', 'i') AS BIGINT)"
"""DuckDB: 1 if a kernel of this name communicates, else 0."""
STRINGS = {"s": "LEFT JOIN strings s ON s.id = name_id"}
NVTX_TEXT = "CASE WHEN text <> '' THEN text ELSE coalesce(s.value, '') END"


OF_GPU = (
    "process:globalPid device:deviceId context:contextId green_context:greenContextId stream:streamId "
    "correlation_id:correlationId"
)
GPU_EVENT = f"start end {OF_GPU}"
GPU_PROCESS = {"process": f'coalesce(c."process", {canonical.NO_PROCESS})'}


_LOST = "'[name ' || {} || ' lost]'"
_IS_LOST = "(coalesce(text, '') = '' AND text_id IS NOT NULL AND s.id IS NULL)"


@dataclass(frozen=True)
class Lookup:
    """A small table that transforms join: its SQLite query and its DuckDB definition."""

    name: str
    definition: str
    table: str
    query: str
    resolve: str
    is_whole: bool = False
    """Whether it has every row of its native table."""


def lookups(schema: Schema) -> list[Lookup]:
    """Return the lookup tables of an export, empty if their native table is absent."""
    nvtx = "NVTX_EVENTS"
    return [
        Lookup(
            "strings",
            "id BIGINT, value VARCHAR, label VARCHAR, bare VARCHAR, is_nccl BIGINT, is_lost BOOLEAN",
            "StringIds",
            # Grouped, because two strings with one id would double rows; free if the id is the key.
            _selected(schema, "StringIds", "id", "value")
            + " WHERE typeof(id) = 'integer' AND value IS NOT NULL GROUP BY id",
            f"SELECT id, value, {LABEL}, {BARE_NAME}, {IS_NCCL}, false FROM incoming",
            is_whole=True,
        ),
        Lookup(
            "domains",
            "process BIGINT, domain_id BIGINT, domain VARCHAR, is_lost BOOLEAN",
            nvtx,
            _selected(schema, nvtx, "thread:globalTid domain_id:domainId text_id:textId", "text")
            + " WHERE eventType = 75",  # rows that name a domain (docs/exports.md#nvtx)
            # Cast, because the driver does not know the type of a text without rows.
            f"SELECT {process_of('thread')}, domain_id, any_value(CASE WHEN {_IS_LOST} "
            f"THEN {_LOST.format('text_id')} ELSE {NVTX_TEXT} END), bool_and({_IS_LOST}) "
            "FROM (SELECT * REPLACE (CAST(text AS VARCHAR) AS text) FROM incoming) "
            "LEFT JOIN strings s ON s.id = text_id GROUP BY 1, 2",
        ),
        *(
            Lookup(name, definition, table, _selected(schema, table, *natives), f"SELECT {resolve}")
            for name, definition, table, natives, resolve in _PLAIN_LOOKUPS
        ),
        *(_efa_lookups(schema) if schema.efa_types else ()),
    ]


_PLAIN_LOOKUPS = (
    (
        *("gpu_metric_names", "type_id BIGINT, metric_id BIGINT, metric VARCHAR", "TARGET_INFO_GPU_METRICS"),
        ("type_id:typeId metric_id:metricId", "metric:metricName"),
        "type_id, metric_id, any_value(metric) FROM incoming GROUP BY 1, 2",
    ),
    (
        *("nic_metric_names", "list_id BIGINT, metric_index BIGINT, metric VARCHAR, unit VARCHAR"),
        "TARGET_INFO_NETWORK_METRICS",
        ("list_id:metricsListId metric_index:metricsIdx", "metric:name unit"),
        "list_id, metric_index, any_value(metric), any_value(unit) FROM incoming GROUP BY 1, 2",
    ),
    (
        *("thread_blocks", "id BIGINT, label VARCHAR", "ENUM_SCHEDULING_THREAD_BLOCK"),
        ("id", "label"),
        "id, any_value(nullif(label, '')) FROM incoming GROUP BY id",
    ),
    (
        *("nic_ids", "nic_id BIGINT, global_id BIGINT", "NIC_ID_MAP"),
        ("nic_id:nicId global_id:globalId",),
        "DISTINCT nic_id, global_id FROM incoming",
    ),
)
"""Name, columns, native table, its columns and the query of lookups."""


def _selected(schema: Schema, table: str, numbers: str, texts: str = "", *more: str) -> str:
    """Return SQLite's query for columns of a table, whose names are as in `native_columns`, and for ``more`` SQL."""
    columns = [f"{schema.integer(table, native)} AS {name}" for name, native in native_columns(numbers).items()]
    columns += [f"{schema.text(table, native)} AS {name}" for name, native in native_columns(texts).items()]
    return f"SELECT {', '.join([*columns, *more])} FROM {table}"


def _efa_lookups(schema: Schema) -> list[Lookup]:
    """Return the lookups of AWS's EFA plugin: time and type of generic events, names of types and fields."""
    events, types, fields = "GENERIC_EVENTS", "GENERIC_EVENT_TYPES", "GENERIC_EVENT_TYPE_FIELDS"
    origins, of_efa = "GENERIC_EVENT_SOURCES", f"WHERE typeId IN ({', '.join(map(str, schema.efa_types))})"
    origin = f"FROM {origins} WHERE {origins}.sourceId = {types}.sourceId" if schema.exists(origins) else ""
    origin_id = f"(SELECT {schema.integer(origins, 'nameId')} {origin}) AS origin_id"
    time = schema.optional_time(events, "timestamp")
    return [
        Lookup(
            "efa_events",
            "event BIGINT, time BIGINT, type_id BIGINT",
            events,
            _selected(schema, events, "event:genericEventId type_id:typeId", "", f"{time} AS time") + f" {of_efa}",
            "SELECT event, any_value(time), any_value(type_id) FROM incoming GROUP BY event",
        ),
        Lookup(
            "efa_types",
            "type_id BIGINT, source VARCHAR, type VARCHAR, is_lost BOOLEAN",
            types,
            _selected(schema, types, "type_id:typeId name_id:nameId", "", origin_id) + f" {of_efa}",
            f"SELECT type_id, any_value(coalesce(o.value, {_LOST.format('origin_id')})), "
            f"any_value(coalesce(s.value, {_LOST.format('name_id')})), "
            "bool_or((o.value IS NULL AND origin_id IS NOT NULL) OR (s.value IS NULL AND name_id IS NOT NULL)) "
            "FROM incoming LEFT JOIN strings s ON s.id = name_id LEFT JOIN strings o ON o.id = origin_id "
            "GROUP BY type_id",
        ),
        Lookup(
            "efa_fields",
            "type_id BIGINT, field_index BIGINT, field VARCHAR, is_lost BOOLEAN",
            fields,
            _selected(schema, fields, "type_id:typeId field_index:fieldIdx name_id:fieldNameId") + f" {of_efa}",
            f"SELECT type_id, field_index, any_value(coalesce(s.value, {_LOST.format('name_id')})), "
            "bool_or(s.id IS NULL AND name_id IS NOT NULL) "
            "FROM incoming LEFT JOIN strings s ON s.id = name_id GROUP BY 1, 2",
        ),
    ]
