"""The numbers in a Paraver trace and what they are called: event types, values and states, and the ``.pcf`` of them.

Types of CUDA work and calls have the numbers of BSC's nsys2prv, and states those of Extrae, so that configurations made
for these fit. NVTX push/pop ranges and MPI calls have other numbers than there.
"""

from __future__ import annotations

from dataclasses import dataclass

from nsystui.base.text import safe_text
from nsystui.questions.event_kinds import EventKind
from nsystui.questions.trace.layout import NCCL_DOMAIN
from nsystui.questions.trace.trace import Trace

MEMORY_SIZE, NCCL_SIZE = 63000002, 9501
_PUSH_POP, _START_END, _NCCL_CALL, _FIRST_DOMAIN = 9003, 9004, 9500, 9600
_TYPES = {
    EventKind.KERNEL.value: (63000006, "CUDA kernel"),
    EventKind.NCCL.value: (63000007, "NCCL kernel"),
    EventKind.MEMORY.value: (63000001, "CUDA memory operation"),
    EventKind.GRAPH.value: (63000008, "CUDA graph, traced whole"),
    EventKind.API.value: (63000000, "CUDA API call"),
    EventKind.MPI.value: (9300, "MPI call"),
    EventKind.OS.value: (9310, "OS runtime call"),
    EventKind.MARK.value: (9005, "NVTX mark"),
}
_STATES = {
    0: ("Idle", (117, 195, 255)),
    1: ("Running a kernel", (0, 0, 255)),
    13: ("Running an NCCL kernel", (255, 144, 26)),
    15: ("In a CUDA API call", (172, 174, 41)),
    17: ("Memory operation", (255, 0, 96)),
}
STATE_OF = {
    EventKind.KERNEL.value: 1,
    EventKind.GRAPH.value: 1,
    EventKind.NCCL.value: 13,
    EventKind.API.value: 15,
    EventKind.MEMORY.value: 17,
}
"""The state that a row is in during an event of a kind; other kinds make none."""

_HEAD = """DEFAULT_OPTIONS

LEVEL               THREAD
UNITS               NANOSEC
LOOK_BACK           100
SPEED               1
FLAG_ICONS          ENABLED
NUM_OF_STATE_COLORS 1000
YMAX_SCALE          37


DEFAULT_SEMANTIC

THREAD_FUNC         State As Is

"""


@dataclass(frozen=True)
class EventTypes:
    """The types and values of a trace. Values of a type count from 1, in the order of their names; 0 is nothing."""

    labels: dict[int, str]
    values: dict[int, dict[str, int]]
    domains: dict[str, int]

    @classmethod
    def of(cls, trace: Trace) -> EventTypes:
        """For every name that occurs in a trace: the same names have the same numbers, whatever their order."""
        names = trace.name_values()
        domains = sorted({domain for _, domain, loose, _ in names if domain not in ("", NCCL_DOMAIN) and not loose})
        found = cls({}, {}, {domain: _FIRST_DOMAIN + number for number, domain in enumerate(domains)})
        by_type: dict[int, set[str]] = {}
        for kind, domain, loose, name in names:
            number = found.type_of(kind, domain, loose)
            by_type.setdefault(number, set()).add(name)
            found.labels[number] = _TYPES[kind][1] if kind in _TYPES else _nvtx_label(domain, loose)
        for number, values in by_type.items():
            found.values[number] = {name: value for value, name in enumerate(sorted(values), 1)}
        kinds = {kind for kind, *_ in names}
        if EventKind.MEMORY.value in kinds:
            found.labels[MEMORY_SIZE] = "Bytes of the CUDA memory operation"
        if _NCCL_CALL in by_type:
            found.labels[NCCL_SIZE] = "Bytes of the NCCL call's message"
        return found

    def type_of(self, kind: str, domain: str, loose: int) -> int:
        """The type of an event: that of its kind; of an NVTX range that of its domain, start/end ranges apart."""
        if kind in _TYPES:
            return _TYPES[kind][0]
        if loose:
            return _START_END
        if domain == NCCL_DOMAIN:
            return _NCCL_CALL
        return self.domains[domain] if domain else _PUSH_POP

    def size_type(self, kind: str, domain: str) -> int:
        """The type whose value is the bytes of such an event."""
        return MEMORY_SIZE if kind == EventKind.MEMORY.value else NCCL_SIZE if domain == NCCL_DOMAIN else 0

    def pcf(self) -> str:
        """The ``.pcf``."""
        parts = [_HEAD, "STATES\n", *(f"{number}    {label}\n" for number, (label, _) in _STATES.items())]
        parts += [
            "\n\nSTATES_COLOR\n",
            *(f"{number}    {{{r},{g},{b}}}\n" for number, (_, (r, g, b)) in _STATES.items()),
        ]
        for number in sorted(self.labels):
            parts.append(f"\n\nEVENT_TYPE\n0    {number}    {safe_text(self.labels[number])}\n")
            if number in self.values:
                parts.append("VALUES\n0      End\n")
                parts += [
                    f"{value}      {safe_text(name) or '(no name)'}\n" for name, value in self.values[number].items()
                ]
        return "".join(parts)


def _nvtx_label(domain: str, loose: int) -> str:
    if loose:
        return "NVTX start/end range"
    return "NCCL call" if domain == NCCL_DOMAIN else f"NVTX range {domain}".rstrip()
