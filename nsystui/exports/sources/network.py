"""Samples of the network, including AWS's EFA, and its adapters (docs/exports.md#network-metrics)."""

from __future__ import annotations

from nsystui.exports.schema import Schema
from nsystui.exports.sources.base import Source, Transform, columns_of, declare

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
