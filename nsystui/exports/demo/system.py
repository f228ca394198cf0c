"""Everything around CUDA and NVTX: OS runtime, GPU and network metrics, diagnostics, profiler overhead."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from .target import GLOBAL_VM, VIRTUAL_MACHINE, Process, TargetInfo, Thread

INFO: Final = 1
WARNING: Final = 2
ERROR: Final = 3

_GPU_METRIC_SOURCE: Final = 1
_METRICS_LIST: Final = 0


def gpu_metric_type(gpu_id: int) -> int:
    """``typeId`` of the metrics of a GPU: <hardware:8><vm:8><source:16><gpu:32>."""
    return VIRTUAL_MACHINE << 48 | _GPU_METRIC_SOURCE << 32 | gpu_id


class SystemEvents(TargetInfo):
    """The part of the writer for the operating system and sampled metrics. Times are ns since the start."""

    _generic_events = 0

    def osrt(self, thread: Thread, start: int, end: int, name: str, *, return_value: int = 0) -> None:
        """A call of the OS runtime (``poll``, ``pthread_cond_wait`` …)."""
        self.rows("OSRT_API").append((start, end, 27, thread.global_id, self.intern(name), return_value, 0, 0))

    def gpu_metric_names(self, gpu_id: int, names: Sequence[str]) -> None:
        """Declare the metrics sampled on a GPU (the system's number); a metric's id is its index."""
        kind = gpu_metric_type(gpu_id)
        rows = self.rows("TARGET_INFO_GPU_METRICS")
        rows.extend((kind, kind, "", metric, name) for metric, name in enumerate(names))

    def gpu_metric(self, gpu_id: int, time: int, values: Sequence[int]) -> None:
        """One sample: a value for every declared metric (percent; clocks in MHz, before schema 3.13 in Hz)."""
        kind = gpu_metric_type(gpu_id)
        rows = self.rows("GPU_METRICS")
        rows.extend((time, time, kind, metric, value) for metric, value in enumerate(values))

    def nic(self, nic_id: int, name: str, metrics: Sequence[tuple[str, str]]) -> None:
        """Declare a network card and its metrics as (name, unit); a metric's index is its place in `metrics`."""
        guid = 0x9C63C003000000 + nic_id
        self.rows("TARGET_INFO_NIC_INFO").append((guid, "Local (CLI)", nic_id, name, 4129, 5555, 1))
        self.rows("NIC_ID_MAP").append((nic_id, GLOBAL_VM | nic_id))
        if nic_id == 0:
            self.rows("TARGET_INFO_NETWORK_METRICS").extend(
                (_METRICS_LIST, index, metric, metric, unit) for index, (metric, unit) in enumerate(metrics)
            )

    def nic_metric(self, nic_id: int, start: int, end: int, values: Sequence[int]) -> None:
        """One sample interval of a network card: a value for every declared metric, in the metric's unit."""
        self.rows("NET_NIC_METRIC").extend(
            (start, end, GLOBAL_VM | nic_id, 1, _METRICS_LIST, index, value) for index, value in enumerate(values)
        )

    def switch_metric(self, guid: int, start: int, end: int, values: Sequence[int]) -> None:
        """One sample interval of an InfiniBand switch: a value for every metric declared with `nic`."""
        self.rows("NET_IB_SWITCH_METRIC").extend(
            (start, end, guid, _METRICS_LIST, index, value) for index, value in enumerate(values)
        )

    def generic_source(self, source_id: int, name: str) -> None:
        """Declare where generic events come from: a plugin, or a part of the profiler."""
        described = None if self.has("GENERIC_EVENT_DATA") else json.dumps({"Name": name, "TimeSource": "SessionNs"})
        self.add(
            "GENERIC_EVENT_SOURCES", sourceId=source_id, nameId=self.intern(name), timeSourceId=0, sourceGroupId=0,
            data=described,
        )  # fmt: skip

    def generic_type(self, type_id: int, source_id: int, name: str, fields: Sequence[str]) -> None:
        """Declare a type of generic events with its fields; before schema 3.13 that is JSON."""
        described = None
        if self.has("GENERIC_EVENT_DATA"):
            self.rows("GENERIC_EVENT_TYPE_FIELDS").extend(
                (type_id, index, self.intern(field), 8 * index, 8, 0) for index, field in enumerate(fields)
            )
        else:
            described = json.dumps({"Fields": [{"Name": field} for field in fields], "Name": name})
        self.add("GENERIC_EVENT_TYPES", typeId=type_id, sourceId=source_id, nameId=self.intern(name), data=described)

    def generic_event(
        self, time: int, type_id: int, values: Mapping[str, int | float | str], *, with_json: bool = False
    ) -> None:
        """One generic event: its ``values`` by field, in the order in which the type has them.

        Before schema 3.13, and ``with_json``, they are JSON with texts for numbers; from 3.13 on numbers have rows of
        their own, and texts none.
        """
        as_json = json.dumps({name: str(value) for name, value in values.items()}, indent=4)
        if not self.has("GENERIC_EVENT_DATA"):
            self.add("GENERIC_EVENTS", rawTimestamp=time, timestamp=time, typeId=type_id, data=as_json)
            return
        self._generic_events += 1
        event, data = self._generic_events, as_json if with_json else None
        self.rows("GENERIC_EVENTS").append((event, time, time, type_id, None, data))
        self.rows("GENERIC_EVENT_DATA").extend(
            (event, index, None, value, None, None)
            if isinstance(value, int)
            else (event, index, None, None, None, value)
            for index, value in enumerate(values.values())
            if not isinstance(value, str)
        )

    def diagnostic(self, time: int, text: str, *, severity: int = INFO, process: Process | None = None) -> None:
        """A message of the profiler itself. Schemas before 3.13 have no table for them: nothing is written."""
        if self.has("DIAGNOSTIC_EVENT"):
            where = None if process is None else process.global_id
            self.rows("DIAGNOSTIC_EVENT").append((time, 1, 1, severity, text, where))

    def profiler_overhead(self, thread: Thread, start: int, end: int, name: str, *, kind: int = 3) -> None:
        """Time taken by the profiler; `kind` is an id of ``ENUM_CUPTI_OVERHEAD_TYPE`` (3: buffer flush)."""
        self.rows("PROFILER_OVERHEAD").append((start, end, thread.global_id, self.intern(name), 0, kind))
