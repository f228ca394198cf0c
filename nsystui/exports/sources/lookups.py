"""The small tables that names are looked up in: strings, NVTX domains, metrics, network adapters."""

from __future__ import annotations

from dataclasses import dataclass

from nsystui.exports.schema import NAME_KEYS, Schema
from nsystui.exports.sources.base import NVTX_TEXT, process_of

DOMAIN_TYPE = 75
"""The NVTX event type of a row that names a domain (docs/exports.md#nvtx)."""

_LOST = "'[name ' || {} || ' lost]'"
_IS_LOST = "(coalesce(text, '') = '' AND text_id IS NOT NULL AND s.id IS NULL)"


@dataclass(frozen=True)
class Lookup:
    """A small table that transforms join with: the SQLite query that fills it and its DuckDB definition."""

    name: str
    definition: str
    table: str
    query: str
    resolve: str
    is_whole: bool = False
    """Whether it has every row of its native table."""


def lookups(schema: Schema) -> list[Lookup]:
    """The lookup tables of an export; one whose native table is absent is made empty."""
    found = []
    nvtx = "NVTX_EVENTS"
    found.append(
        Lookup(
            "strings",
            "id BIGINT, value VARCHAR",
            "StringIds",
            # By groups, which costs nothing where the id is the key: two strings of one id would double rows.
            f"SELECT {schema.integer('StringIds', 'id')} AS id, {schema.text('StringIds', 'value')} AS value "
            "FROM StringIds WHERE typeof(id) = 'integer' AND value IS NOT NULL GROUP BY id",
            "SELECT id, value FROM incoming",
            is_whole=True,
        )
    )
    found.append(
        Lookup(
            "domains",
            "process BIGINT, domain_id BIGINT, domain VARCHAR, is_lost BOOLEAN",
            nvtx,
            f"SELECT {schema.integer(nvtx, 'globalTid')} AS thread, {schema.integer(nvtx, 'domainId')} AS domain_id, "
            f"{schema.text(nvtx, 'text')} AS text, {schema.integer(nvtx, 'textId')} AS text_id "
            f"FROM NVTX_EVENTS WHERE eventType = {DOMAIN_TYPE}",
            # The text as text, which it is not of its own where there is no row.
            f"SELECT {process_of('thread')}, domain_id, any_value(CASE WHEN {_IS_LOST} "
            f"THEN {_LOST.format('text_id')} ELSE {NVTX_TEXT} END), bool_and({_IS_LOST}) "
            "FROM (SELECT * REPLACE (CAST(text AS VARCHAR) AS text) FROM incoming) "
            "LEFT JOIN strings s ON s.id = text_id GROUP BY 1, 2",
        )
    )
    metrics = "TARGET_INFO_GPU_METRICS"
    found.append(
        Lookup(
            "gpu_metric_names",
            "type_id BIGINT, metric_id BIGINT, metric VARCHAR",
            metrics,
            f"SELECT {schema.integer(metrics, 'typeId')} AS type_id, {schema.integer(metrics, 'metricId')} "
            f"AS metric_id, {schema.text(metrics, 'metricName')} AS metric FROM {metrics}",
            "SELECT type_id, metric_id, any_value(metric) FROM incoming GROUP BY 1, 2",
        )
    )
    network = "TARGET_INFO_NETWORK_METRICS"
    found.append(
        Lookup(
            "nic_metric_names",
            "list_id BIGINT, metric_index BIGINT, metric VARCHAR, unit VARCHAR",
            network,
            f"SELECT {schema.integer(network, 'metricsListId')} AS list_id, {schema.integer(network, 'metricsIdx')} "
            f"AS metric_index, {schema.text(network, 'name')} AS metric, {schema.text(network, 'unit')} AS unit "
            f"FROM {network}",
            "SELECT list_id, metric_index, any_value(metric), any_value(unit) FROM incoming GROUP BY 1, 2",
        )
    )
    blocks = "ENUM_SCHEDULING_THREAD_BLOCK"
    found.append(
        Lookup(
            "thread_blocks",
            "id BIGINT, label VARCHAR",
            blocks,
            f"SELECT {schema.integer(blocks, 'id')} AS id, {schema.text(blocks, 'label')} AS label FROM {blocks}",
            "SELECT id, any_value(nullif(label, '')) FROM incoming GROUP BY id",
        )
    )
    adapters = "NIC_ID_MAP"
    found.append(
        Lookup(
            "nic_ids",
            "nic_id BIGINT, global_id BIGINT",
            adapters,
            f"SELECT {schema.integer(adapters, 'nicId')} AS nic_id, {schema.integer(adapters, 'globalId')} "
            f"AS global_id FROM {adapters}",
            "SELECT DISTINCT nic_id, global_id FROM incoming",
        )
    )
    return found + (_efa_lookups(schema) if schema.efa_types else [])


def _efa_lookups(schema: Schema) -> list[Lookup]:
    """Of the generic events of AWS's EFA plugin: each with its time and type, and the names of types and fields."""
    events, types, of_types = "GENERIC_EVENTS", "GENERIC_EVENT_TYPES", "GENERIC_EVENT_TYPE_FIELDS"
    origins, mine = "GENERIC_EVENT_SOURCES", f"WHERE typeId IN ({', '.join(map(str, schema.efa_types))})"
    origin = f"FROM {origins} WHERE {origins}.sourceId = {types}.sourceId" if schema.exists(origins) else ""
    origin_id = f"(SELECT {schema.integer(origins, 'nameId')} {origin})"
    origin_data = f"(SELECT {schema.text(origins, 'data')} {origin})"
    return [
        Lookup(
            "efa_events",
            "event BIGINT, time BIGINT, type_id BIGINT",
            events,
            f"SELECT {schema.integer(events, 'genericEventId')} AS event, "
            f"{schema.known_time(events, 'timestamp')} AS time, {schema.integer(events, 'typeId')} AS type_id "
            f"FROM {events} {mine}",
            "SELECT event, any_value(time), any_value(type_id) FROM incoming GROUP BY event",
        ),
        Lookup(
            "efa_types",
            "type_id BIGINT, source VARCHAR, type VARCHAR, is_session_time BOOLEAN, is_lost BOOLEAN",
            types,
            f"SELECT {schema.integer(types, 'typeId')} AS type_id, {schema.integer(types, 'nameId')} AS name_id, "
            f"{schema.text(types, 'data')} AS data, {origin_id} AS origin_id, "
            f"ifnull({origin_data}, x'') AS origin_data FROM {types} {mine}",
            f"SELECT type_id, any_value(coalesce(source, {_LOST.format('origin_id')})), "
            f"any_value(coalesce(type, {_LOST.format('name_id')})), any_value({_SESSION_TIME}), "
            "bool_or((source IS NULL AND origin_id IS NOT NULL) OR (type IS NULL AND name_id IS NOT NULL)) "
            f"FROM (SELECT incoming.*, coalesce(o.value, {_name_in('origin_data')}) AS source, "
            f"coalesce(s.value, {_name_in('data')}) AS type FROM incoming "
            "LEFT JOIN strings s ON s.id = name_id LEFT JOIN strings o ON o.id = origin_id) GROUP BY type_id",
        ),
        Lookup(
            "efa_fields",
            "type_id BIGINT, field_index BIGINT, field VARCHAR, is_lost BOOLEAN",
            of_types,
            f"SELECT {schema.integer(of_types, 'typeId')} AS type_id, {schema.integer(of_types, 'fieldIdx')} "
            f"AS field_index, {schema.integer(of_types, 'fieldNameId')} AS name_id FROM {of_types} {mine}",
            f"SELECT type_id, field_index, any_value(coalesce(s.value, {_LOST.format('name_id')})), "
            "bool_or(s.id IS NULL AND name_id IS NOT NULL) "
            "FROM incoming LEFT JOIN strings s ON s.id = name_id GROUP BY 1, 2",
        ),
    ]


# Where an export has only raw times, whether these are those of the session (measured in schema 3.7.2).
_SESSION_TIME = (
    "CASE WHEN json_valid(origin_data) THEN json_extract_string(origin_data, '$.TimeSource') = 'SessionNs' END"
)


def _name_in(data: str) -> str:
    """DuckDB: the name in a description that is JSON; NULL where there is none."""
    found = ", ".join(f"json_extract_string({data}, '$.{key}')" for key in NAME_KEYS)
    return f"CASE WHEN json_valid({data}) THEN coalesce({found}) END"
