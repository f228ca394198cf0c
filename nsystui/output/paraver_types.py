"""Types and values of the events of a Paraver trace, with the numbers of BSC's nsys2prv 0.5.8, and the ``.pcf``.

NVTX marks, OS runtime calls, UCX, OpenMP, CUDA synchronisations and the message size of NCCL calls have no number in
nsys2prv; their numbers are nsystui's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

from nsystui.base.text import safe_text
from nsystui.questions.events.kinds import EventKind
from nsystui.questions.trace.layout import NCCL_DOMAIN
from nsystui.questions.trace.trace import Trace

_TYPES = {
    EventKind.KERNEL.value: (63000006, "CUDA kernel"), EventKind.NCCL.value: (63000007, "NCCL kernel"),
    EventKind.MEMORY.value: (63000001, "CUDA memory operation"),
    EventKind.GRAPH.value: (63000008, "CUDA graph, traced whole"),
    EventKind.HOST_FUNCTION.value: (9315, "host function of a stream"),
    EventKind.API.value: (63000000, "CUDA API call"), EventKind.OS.value: (9310, "OS runtime call"),
    EventKind.UCX.value: (9311, "UCX call"), EventKind.OPENMP.value: (9312, "OpenMP event"),
    EventKind.OVERHEAD.value: (9314, "CUDA overhead"), EventKind.SYNC.value: (9313, "CUDA synchronisation"),
    EventKind.MARK.value: (9005, "NVTX mark"),
}  # fmt: skip
_NCCL_CALL, _START_END, _PUSH_POP, _FIRST_DOMAIN, _DOMAIN_STEP = 9500, 9004, 9600, 9700, 100
_DOMAINS = {"neSmiK": 81000}
_P2P, _COLLECTIVE, _OTHER, _ONE_SIDED, _IO = range(50000001, 50000006)
_MPI = {
    _P2P: "MPI point-to-point call", _COLLECTIVE: "MPI collective call", _OTHER: "other MPI call",
    _ONE_SIDED: "MPI one-sided call", _IO: "MPI file call",
}  # fmt: skip
_ONE_SIDED_NAMES = ("MPI_Win_", "MPI_Get", "MPI_Rget", "MPI_Put", "MPI_Rput", "MPI_Accumulate", "MPI_Raccumulate")
_MPI_CALLS = Path(__file__).with_name("mpi_calls.txt").read_text(encoding="utf-8").split()
_MPI_VALUES = {name: value for value, name in enumerate(_MPI_CALLS, 1)}
"""The values of MPI calls, the same in every trace: line numbers of ``mpi_calls.txt``; other calls follow."""

_OPENACC = {"DATA": 1, "LAUNCH": 2}
_CONSTRUCT, _SOURCE, _FUNCTION, _OPENACC_BYTES = 66000000, 66100000, 66200000, 66300001
_CONSTRUCTS = (
    *("invalid", "device init", "device shutdown", "runtime shutdown", "enqueue launch", "enqueue upload"),
    *("enqueue download", "wait", "implicit wait", "compute construct", "update", "enter data", "exit data"),
    *("create", "delete", "alloc", "free"),
)
"""CUPTI's kinds of OpenACC events from 0; their values begin at 1."""

_LAUNCH = {
    "grid_x": 9101, "grid_y": 9102, "grid_z": 9103, "block_x": 9104, "block_y": 9105, "block_z": 9106,
    "static_shared_memory": 9107, "dynamic_shared_memory": 9108, "local_memory_total": 9109,
    "registers_per_thread": 9110,
}  # fmt: skip
_CORRELATION = {"correlation_id": 9200}
_NODE = {"graph_node_id": 63000102}
DETAILS: dict[int, dict[str, int]] = {
    63000000: _CORRELATION,
    63000001: {"bytes": 63000002, **_CORRELATION, **_NODE},
    63000006: {**_LAUNCH, **_CORRELATION, **_NODE},
    63000007: {**_LAUNCH, **_CORRELATION, **_NODE},
    63000008: {"graph_id": 63000100, "graph_exec_id": 63000101, **_CORRELATION},
    _COLLECTIVE: {"send_bytes": 50100001, "recv_bytes": 50100002},
    _NCCL_CALL: {"bytes": 9501},
    **{
        _SOURCE + part: {"event_kind": _CONSTRUCT + part, "function": _FUNCTION + part} | size
        for part, size in ((0, {}), (1, {"bytes": _OPENACC_BYTES}), (2, {}))
    },
}
"""Types of further values in an event's record, by the event's type and field."""

NCCL_TYPES = (63000007, _NCCL_CALL, 9501)

_DETAIL_LABELS = {
    **{number: f"Kernel {field.replace('_', ' ')}" for field, number in _LAUNCH.items()},
    9200: "Correlation ID",
    9501: "Bytes of the NCCL call's message",
    63000002: "Bytes of the CUDA memory operation",
    63000100: "CUDA graph ID",
    63000101: "CUDA graph exec ID",
    63000102: "CUDA graph node ID",
    50100001: "Bytes that the MPI collective call sends",
    50100002: "Bytes that the MPI collective call receives",
    _OPENACC_BYTES: "Bytes of the OpenACC data event",
}
_OPENACC_WORDS = ("other", "data", "launch")
_DISJOINT = (
    (63000000, 63000006, 63000001, 63000007, 63000008),
    (_SOURCE + 1, _SOURCE + 2, _SOURCE),
    (_FUNCTION + 1, _FUNCTION + 2, _FUNCTION),
)
"""Groups of types: the values of a group's types are disjoint."""

_FIRST_METRIC, _AFTER_METRICS = 9400, 9500
LAUNCHES, COPIES = 55001, 55002
"""Tags of communications from a call to a kernel or graph, and to a memory operation."""

STATES = {
    0: ("Idle", (117, 195, 255)),
    1: ("Running a kernel", (0, 0, 255)),
    13: ("Running an NCCL kernel", (255, 144, 26)),
    15: ("In a CUDA API call", (172, 174, 41)),
    17: ("Memory operation", (255, 0, 96)),
}

_HEAD = Path(__file__).with_name("paraver_head.pcf").read_text(encoding="utf-8")

EventClass = tuple[str, str, str, int]
"""Kind, group, domain and is_loose of an event (`trace.NAME_FIELDS`)."""


@dataclass(frozen=True)
class EventTypes:
    """The types and values of a trace. Values are numbered by name; 0 ends an event.

    MPI calls and OpenACC constructs have fixed values. ``types`` has the event type of each class, or ``None`` for MPI,
    whose type depends on the name. ``metrics`` has the types of GPU metrics.
    """

    labels: dict[int, str]
    values: dict[int, dict[str, int]]
    types: dict[EventClass, int | None]
    metrics: dict[str, int]

    @classmethod
    def of(cls, trace: Trace) -> EventTypes:
        """Number all names in a trace. The same names get the same numbers, whatever their order."""
        names: dict[EventClass, set[str]] = {}
        for kind, group, domain, is_loose, name in chain.from_iterable(trace.name_values()):
            names.setdefault((kind, group or "", domain or "", is_loose or 0), set()).add(name)
        types = _types_of(names)
        names_by_type: dict[int, set[str]] = {}
        labels: dict[int, str] = {}
        for (kind, group, domain, is_loose), event_names in names.items():
            class_type = types[kind, group, domain, is_loose]
            for name in event_names:
                number = _mpi_type(group, name) if class_type is None else class_type
                names_by_type.setdefault(number, set()).add(name)
                labels[number] = _label(number, kind, domain, is_loose)
        for group, function in trace.functions():
            names_by_type.setdefault(_FUNCTION + _OPENACC.get(group, 0), set()).add(function)
        values = _values(names_by_type)
        for number in tuple(labels):
            labels |= {detail: _detail_label(detail) for detail in DETAILS.get(number, {}).values()}
        constructs = {label: value for value, label in enumerate(_CONSTRUCTS, 1)}
        values |= {number: constructs for number in range(_CONSTRUCT, _CONSTRUCT + 3) if number in labels}
        metrics = _metrics(trace)
        labels |= {number: name or "(no name)" for name, number in metrics.items()}
        return cls(labels, values, types, metrics)

    def of_event(self, kind: str, group: str, domain: str, is_loose: int, name: str) -> tuple[int, int]:
        number = self.types[kind, group, domain, is_loose]
        if number is None:
            number = _mpi_type(group, name)
        return number, self.values[number][name]

    def pcf(self) -> str:
        parts = [_HEAD, "STATES\n", *(f"{number}    {label}\n" for number, (label, _) in STATES.items())]
        parts += [
            "\n\nSTATES_COLOR\n",
            *(f"{number}    {{{r},{g},{b}}}\n" for number, (_, (r, g, b)) in STATES.items()),
        ]
        counters = set(self.metrics.values())
        for number in sorted(self.labels):
            gradient = 7 if number in counters else 0
            parts.append(f"\n\nEVENT_TYPE\n{gradient}    {number}    {safe_text(self.labels[number])}\n")
            if number in self.values:
                parts.append("VALUES\n0      End\n")
                parts += [
                    f"{value}      {safe_text(name) or '(no name)'}\n" for name, value in self.values[number].items()
                ]
        return "".join(parts)


def _types_of(classes: Iterable[EventClass]) -> dict[EventClass, int | None]:
    """Return each class's type: by kind, or by domain for NVTX ranges; start/end ranges share a type."""
    domains = sorted({domain for _, _, domain, is_loose in classes if not is_loose} - {"", NCCL_DOMAIN, *_DOMAINS})
    by_domain = {"": _PUSH_POP, NCCL_DOMAIN: _NCCL_CALL, **_DOMAINS}
    by_domain |= {domain: _FIRST_DOMAIN + _DOMAIN_STEP * index for index, domain in enumerate(domains)}

    def type_of(kind: str, group: str, domain: str, is_loose: int) -> int | None:
        if kind in _TYPES:
            return _TYPES[kind][0]
        if kind == EventKind.MPI.value:
            return None
        if kind == EventKind.OPENACC.value:
            return _SOURCE + _OPENACC.get(group, 0)
        return _START_END if is_loose else by_domain[domain]

    return {event_class: type_of(*event_class) for event_class in classes}


def _mpi_type(group: str, name: str) -> int:
    """Return nsys2prv's type of a call, except that calls like MPI_Get_count are not one-sided communication."""
    if name.startswith("MPI_File_"):
        return _IO
    if group in ("p2p", "wait"):
        return _P2P
    if group == "collective":
        return _COLLECTIVE
    is_one_sided = name.startswith(_ONE_SIDED_NAMES) and not name.startswith(("MPI_Get_", "MPI_Win_get_"))
    return _ONE_SIDED if is_one_sided or name == "MPI_Get_accumulate" else _OTHER


def _label(number: int, kind: str, domain: str, is_loose: int) -> str:
    if kind in _TYPES:
        return _TYPES[kind][1]
    if kind == EventKind.MPI.value:
        return _MPI[number]
    if kind == EventKind.OPENACC.value:
        return f"OpenACC {_OPENACC_WORDS[number - _SOURCE]} event"
    if is_loose:
        return "NVTX start/end range"
    return "NCCL call" if domain == NCCL_DOMAIN else f"NVTX range {domain}".rstrip()


def _detail_label(number: int) -> str:
    if number in _DETAIL_LABELS:
        return _DETAIL_LABELS[number]
    noun = "construct" if number < _SOURCE else "function"
    return f"OpenACC {_OPENACC_WORDS[number % 100]} {noun}"


def _values(names_by_type: dict[int, set[str]]) -> dict[int, dict[str, int]]:
    first = dict.fromkeys(names_by_type, 1)
    for types in _DISJOINT:
        next_value = 1
        for number in types:
            first[number] = next_value
            next_value += len(names_by_type.get(number, ()))
    other_mpi_names = sorted(set().union(*(names_by_type.get(number, set()) for number in _MPI)) - _MPI_VALUES.keys())
    mpi = _MPI_VALUES | {name: value for value, name in enumerate(other_mpi_names, len(_MPI_VALUES) + 1)}
    return {
        number: {
            name: mpi[name] if number in _MPI else value for value, name in enumerate(sorted(names), first[number])
        }
        for number, names in names_by_type.items()
    }


def _metrics(trace: Trace) -> dict[str, int]:
    """Return 9400 plus NVIDIA's number for each metric, or a free number if another metric has that number."""
    numbers: dict[str, int] = {}
    free_numbers = chain(range(_FIRST_METRIC, _AFTER_METRICS), count(10 * _FIRST_METRIC))
    pairs = {(number, name or "") for _, _, number, name in trace.metrics()}
    metrics = sorted((_AFTER_METRICS if number is None else number, name) for number, name in pairs)
    for number, name in metrics:
        preferred = _FIRST_METRIC + number
        if name not in numbers and preferred < _AFTER_METRICS and preferred not in numbers.values():
            numbers[name] = preferred
    for _, name in metrics:
        if name not in numbers:
            numbers[name] = next(number for number in free_numbers if number not in numbers.values())
    return numbers
