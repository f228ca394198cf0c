"""Causes of idle time, their words, and the merging of small causes."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from nsystui.base.answer import Column

SYNCHRONISING = "in synchronising CUDA calls"
COPYING = "in calls that copy or set memory"
ALLOCATING = "in calls that allocate or free memory"
LAUNCHING = "launching"
OTHER_CALLS = "in other CUDA calls"
IN_OVERHEAD = "in CUDA overhead"
IN_HOST_FUNCTION = "in a host function on a stream"
IN_MPI = "in MPI"
GIL = "waiting for the GIL"
IN_OS = "in OS runtime calls"
RUNNING_CODE = "running code outside of calls"
PREEMPTED = "not scheduled"
WAITING = "waiting for another thread"
OFF_CPU = "off the CPU"
NOTHING = "in no CUDA or MPI call"
PROFILER = "the profiler's own work"
IN_GRAPH = "inside a CUDA graph"
KINDS = (
    ALLOCATING, SYNCHRONISING, COPYING, IN_MPI, IN_OVERHEAD, LAUNCHING, OTHER_CALLS, GIL, IN_OS, RUNNING_CODE,
    PREEMPTED, WAITING, OFF_CPU, NOTHING, PROFILER, IN_GRAPH, IN_HOST_FUNCTION,
)  # fmt: skip
"""If two threads make calls at once, the earlier kind wins. `NOTHING`: nothing else is recorded."""

ALLOCATIONS = ("Malloc", "Free", "MemAlloc", "MemCreate", "MemMap", "HostAlloc", "HostRegister")
"""Words in the names of CUDA calls that allocate or free memory."""
FILE_READS = ("pread", "pread64", "preadv", "preadv2", "fread", "fread_unlocked")
"""OS runtime calls that only read files; ``read`` also reads pipes between processes."""
READS = re.compile(r"(?:p?read(?:v|64|v64|v2)?|fread(?:_unlocked)?|fgets|open(?:at|64)?|fopen(?:64)?)")
"""OS runtime calls that read or open files, perhaps pipes."""

FILE = Column("file", header="Files", label="files", importance=2)
"""Shown only if file accesses were recorded."""
CAUSE_COLUMNS = (
    Column("cause", header="Cause", label="cause"),
    Column("what", header="What", label="call or function"),
    Column("thread", header="Other Thread", label="other thread", importance=1),
    Column("caller", header="Caller", label="caller", importance=2),
    FILE,
)


def kind_of(name: str) -> str:
    """Return the kind of a CUDA call from its name."""
    if "Synchronize" in name:
        return SYNCHRONISING
    if "Launch" in name:
        return LAUNCHING
    if "Memcpy" in name or "Memset" in name or "cuMemset" in name:
        return COPYING
    if any(word in name for word in ALLOCATIONS):
        return ALLOCATING
    return OTHER_CALLS


@dataclass(frozen=True)
class Cause:
    """A cause of idle time: its kind, the call or function, and the thread, if it is not the launching thread.

    ``caller``: the calling function; for OS runtime calls, if the call stack is recorded. ``file``: the files that
    calls of the kind read or wrote, if recorded.
    """

    kind: str
    what: str = ""
    thread: str = ""
    caller: str = ""
    file: str = ""

    @property
    def cells(self) -> tuple[str | None, ...]:
        """The cells of `CAUSE_COLUMNS`."""
        return tuple(cell or None for cell in (self.kind, self.what, self.thread, self.caller, self.file))

    @property
    def reads(self) -> bool:
        """Whether the launching thread, or a thread that it waits for, reads a file."""
        if self.kind == WAITING:
            return self.what in FILE_READS
        return self.kind == IN_OS and bool(READS.fullmatch(self.what))

    @property
    def words(self) -> str:
        """``cudaMalloc``, ``native::copy_ on pt_data_worker 41063``, ``not scheduled (python 4711 ran)``."""
        if self.kind == PREEMPTED:
            return f"{self.kind} ({self.what} ran)" if self.what else self.kind
        if self.kind == GIL:
            where = f" in {self.what}" if self.what else ""
            return f"{self.kind} (held by {self.thread}{where})" if self.thread else self.kind
        what = self.what or {NOTHING: "", RUNNING_CODE: "CPU work", WAITING: "CPU work"}.get(self.kind, self.kind)
        return f"{what} on {self.thread}" if self.thread else what


MANY = "many functions (each below 10 %)"
"""Shown for functions that each take less than `_LEAST_SHARE` of a thread's running time."""
_LEAST_SHARE = 0.1


def folded(times: Mapping[Cause, int]) -> dict[Cause, Cause]:
    """Map each cause to the cause shown: itself, or `MANY` for several small functions of a thread."""
    threads: dict[tuple[str, str], list[Cause]] = {}
    for cause in times:
        if cause.kind in (RUNNING_CODE, WAITING, GIL) and not cause.reads:
            threads.setdefault((cause.kind, cause.thread), []).append(cause)
    shown = {cause: cause for cause in times}
    for causes in threads.values():
        min_time = _LEAST_SHARE * sum(times[cause] for cause in causes)
        small = [cause for cause in causes if cause.what and times[cause] < min_time]
        if len({cause.what for cause in small}) > 1:
            shown |= dict.fromkeys(small, Cause(small[0].kind, MANY, small[0].thread))
    return shown


def shown_times(times: Mapping[Cause, int], shown: Mapping[Cause, Cause] | None = None) -> Counter[Cause]:
    """Sum the times of causes (ns) by the causes shown: ``shown``, or the result of `folded`."""
    shown = folded(times) if shown is None else shown
    sums: Counter[Cause] = Counter()
    for cause, time in times.items():
        sums[shown[cause]] += time
    return sums
