"""Many small NCCL programs side by side in one export, which is read once: each is a process of its own."""

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from nccl_program import Program

REDUCE = "AllReduce"


class Process(Program):
    """A program among others in one export; the same times, ids and communicators may occur in each.

    A fact about a communicator in one program holds in the others, too.
    """

    def __init__(self, first: Program, number: int) -> None:
        self.export, self.layout = first.export, first.layout
        pid = 6000 + 100 * number
        self.process = self.export.process(pid, "python")
        self.main, self.helper = self.thread(pid), self.thread(pid + 1)
        self.now, self.correlation = 1_000_000, count(1)
        self.export.nvtx_domain(self.main, 0, 1, "NCCL")

    def reduce(self, size: int, **told: Any) -> None:
        """Write an AllReduce, by default with its kernel."""
        self.call("ncclAllReduce", size=size, **{"launches": 1, "kernel": REDUCE} | told)

    def graph_kernel(self) -> None:
        """Write an AllReduce kernel of a CUDA graph that is launched now."""
        self.export.api(self.main, self.now, self.now + 1_000, "cudaGraphLaunch_v10000", 99)
        times, name = (self.now + 5_000, self.now + 9_000), "ncclDevKernel_AllReduce(int)"
        self.export.kernel(self.process, 0, 20, *times, name=name, correlation_id=99, graph_node_id=7)


def names_of(programs: type[Process]) -> list[str]:
    """Return the names of a class's programs, in order."""
    return [name for name in vars(programs) if not name.startswith("_")]


def written(programs: type[Process], path: Path) -> tuple[Program, Mapping[str, tuple[Process, Any]]]:
    """Yield an export of all ``programs``, still open, and the result of each program's method by its name."""
    first = Program(path)
    processes = {name: programs(first, number) for number, name in enumerate(names_of(programs))}
    return first, {name: (process, getattr(process, name)()) for name, process in processes.items()}
