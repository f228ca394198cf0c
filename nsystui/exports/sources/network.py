"""What was sampled on the network, and the adapters of the machine (docs/exports.md#network-metrics)."""

from __future__ import annotations

from nsystui.exports.schema import Schema
from nsystui.exports.sources.base import Source, Transform, as_they_are, integers

_ADAPTERS = "NET_NIC_METRIC"
_SWITCHES = "NET_IB_SWITCH_METRIC"


def nic_metrics(schema: Schema) -> Source:
    return _metrics(schema, _ADAPTERS, is_switch=0, first_row=0)


def switch_metrics(schema: Schema) -> Source:
    """Switches share the canonical table: their rows count on where those of the adapters end."""
    return _metrics(schema, _SWITCHES, is_switch=1, first_row=schema.rows([_ADAPTERS]))


def _metrics(schema: Schema, table: str, is_switch: int, first_row: int) -> Source:
    wanted = {
        "start": "start",
        "end": "end",
        "nic": "globalId",
        "list_id": "metricsListId",
        "metric_index": "metricsIdx",
        "value": "value",
    }
    fields = {
        "row": f"row_id + {first_row}",
        **as_they_are("start", "end", "nic"),
        "metric": "m.metric",
        "unit": "m.unit",
        "value": "CAST(value AS DOUBLE)",
        "is_switch": str(is_switch),
    }
    joins = {"m": "LEFT JOIN nic_metric_names m ON m.list_id = c.list_id AND m.metric_index = c.metric_index"}
    return Source(table, integers(schema, table, wanted), {"nic_metrics": Transform(fields, joins)}, first_row)


def nic_devices(schema: Schema) -> Source:
    """The adapters with the ids of their samples.

    These are in NIC_ID_MAP; without one, schema 3.1's ``globalId`` of the adapter is the only id there is.
    """
    table = "TARGET_INFO_NIC_INFO"
    wanted = {"nic_id": "nicId", "own_id": "globalId", "guid": "GUID"}
    columns = {**integers(schema, table, wanted), "name": schema.text(table, "name")}
    fields = {"nic": "coalesce(n.global_id, own_id)", **as_they_are("guid"), "name": "nullif(name, '')"}
    joins = {"n": "LEFT JOIN nic_ids n ON n.nic_id = c.nic_id"}
    return Source(table, columns, {"nic_devices": Transform(fields, joins, order="", is_distinct=True)})
