"""The command line of ``nsys profile`` that records what a question needs: made, never run.

Options by version as NVIDIA's user guides and release notes have them; where a version is not known, the newest form.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nsystui.base.errors import UsageError

Version = tuple[int, int]
NEWEST: Version = (9999, 0)
"""The version that is assumed where none is known."""


class Goal(NamedTuple):
    """A question that one wants answered, with what nsys must record for it.

    ``traces`` are words of ``-t``, ``options`` further options; each may begin with the first version that has it, or
    the last (``<``): see `_of_version`. ``cost`` says what it adds to the run or the report.
    """

    flag: str
    help: str
    traces: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    exports: tuple[str, ...] = ()
    cost: str = ""


GOALS = (
    Goal(
        "why-idle",
        "why the GPUs are idle: OS calls, CPU samples with their stacks, when threads run",
        ("osrt",),
        ("--sample=process-tree", "--backtrace=dwarf", "--cpuctxsw=process-tree"),
        cost="samples with stacks cost a CPU some percent; --small-overhead takes them without stacks",
    ),
    Goal(
        "nccl-sizes",
        "message sizes and bandwidth of NCCL",
        ("nvtx",),
        exports=("2024.1 --include-json=true", "2026.1 --include-blobs=true"),
    ),
    Goal("memory", "allocations of GPU memory over time", options=("--cuda-memory-usage=true",)),
    Goal(
        "gpu-metrics",
        "SM, tensor core, DRAM, PCIe and NVLink activity",
        options=("2024.4 --gpu-metrics-devices=cuda-visible", "<2024.4 --gpu-metrics-device=all"),
        cost="needs the right to read counters (NVreg_RestrictProfilingToAdminUsers=0)",
    ),
    Goal("network", "what the network adapters move", options=("--nic-metrics=true",)),
    Goal(
        "efa",
        "what EFA adapters of AWS move",
        options=("2024.5 --enable=efa_metrics",),
        cost="the plugin is part of nsys's installation",
    ),
    Goal(
        "python",
        "which Python function runs, and who has the GIL",
        ("2023.1 python-gil",),
        ("2023.1 --python-sampling=true",),
        ("2026.1 --include-blobs=true",),
        cost="CPython 3.9 or later",
    ),
    Goal("files", "which files are read and written", ("osrt",), ("2024.4 --osrt-file-access=true",)),
    Goal("graphs", "kernels inside of CUDA graphs", options=("--cuda-graph-trace=node",), cost="slows graphs down"),
    Goal("events", "what a wait for a CUDA event waits for", options=("2025.2 --cuda-event-trace=true",)),
    Goal("mpi", "MPI calls", ("mpi",)),
    Goal("ucx", "UCX calls", ("ucx",)),
    Goal("libraries", "cuBLAS and cuDNN calls", ("cublas", "cudnn"), cost="many calls: reports grow"),
)

LAUNCHERS = {
    "slurm": ("SLURM_PROCID", "srun"),
    "openmpi": ("OMPI_COMM_WORLD_RANK", "mpirun"),
    "mpich": ("PMI_RANK", "mpiexec"),
    "pals": ("PALS_RANKID", "mpiexec"),
    "mvapich": ("MV2_COMM_WORLD_RANK", "mpiexec"),
    "flux": ("FLUX_TASK_RANK", "flux run"),
    "jsrun": ("JSM_NAMESPACE_RANK", "jsrun"),
    "torchrun": ("RANK", "torchrun --nproc-per-node=gpu --no-python"),
}
"""The variable with the rank, and what starts the ranks; ``torchrun``, once a node, sets it in what it starts."""


def launcher_of(ranks: Sequence[tuple[int, Mapping[str, str]]]) -> str | None:
    """Return the launcher whose variable held the rank in each of these captured environments, ``None`` where none did.

    Scripts export RANK under any launcher, and a batch script of one process sees the number 0 of the allocation: so
    torchrun gives way to another launcher where a rank above 0 tells, and is taken before them where none does.
    """
    found = [
        name
        for name, (variable, _) in LAUNCHERS.items()
        if ranks and all(environment.get(variable) == str(rank) for rank, environment in ranks)
    ]
    is_told = any(rank for rank, _ in ranks)
    return min(found, key=lambda name: (name == "torchrun") == is_told, default=None)


class Capture(NamedTuple):
    """Which part of the run is recorded; all of it where nothing is said."""

    nvtx_range: str = ""
    profiler_api: bool = False
    delay: str = ""
    duration: str = ""

    @property
    def options(self) -> list[str]:
        """The options of ``nsys profile``. Raises UsageError for parts that exclude each other."""
        if bool(self.nvtx_range) + self.profiler_api + bool(self.delay or self.duration) > 1:
            raise UsageError("--nvtx-range, --profiler-api, and --delay with --duration exclude each other")
        if self.nvtx_range:
            return [
                "--capture-range=nvtx",
                f"--nvtx-capture={self.nvtx_range}",
                "--capture-range-end=stop",
                "-e",
                "NSYS_NVTX_PROFILER_REGISTER_ONLY=0",
            ]
        if self.profiler_api:
            return ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
        given = (("--delay", self.delay), ("--duration", self.duration))
        return [f"{flag}={value}" for flag, value in given if value]


def parse_version(text: str) -> Version | None:
    """Parse ``2024.5.1`` as ``(2024, 5)``, or what ``nsys --version`` prints; ``None`` where there is none."""
    found = re.search(r"\b(20\d\d)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def profile_options(
    goals: Sequence[Goal], capture: Capture, version: Version, small_overhead: bool = False
) -> list[str]:
    """Return the options of ``nsys profile``, without output and program.

    The rate of samples stays nsys's own: ``--sampling-period`` has other limits on each machine, and nsys 2023.4 and
    2024.5 refuse ``--sampling-frequency``.
    """
    traces = ["cuda", "nvtx"]
    options: list[str] = []
    for goal in goals:
        traces += [word for word in _of_version(goal.traces, version) if word not in traces]
        options += [word for word in _of_version(goal.options, version) if word not in options]
    if not any(one.startswith("--sample") for one in options):
        options += ["--sample=none", "--cpuctxsw=none"]
    elif small_overhead:
        options = [one for one in options if not one.startswith("--backtrace")]
        options += ["--backtrace=none"]
    return ["-t", ",".join(traces), *options, *capture.options]


def export_options(goals: Sequence[Goal], version: Version) -> list[str]:
    """Return the options of ``nsys export``; NCCL's sizes are always worth having."""
    by_flag = {goal.flag: goal for goal in GOALS}
    wanted = dict.fromkeys([*by_flag["nccl-sizes"].exports, *(word for goal in goals for word in goal.exports)])
    return ["-t", "sqlite", *_of_version(tuple(wanted), version)]


def missing(goal: Goal, version: Version) -> str:
    """Return what this version of nsys lacks to record for a goal; empty where it lacks nothing."""
    words = (*goal.traces, *goal.options)
    if not words or _of_version(words, version):
        return ""
    since = next(word.partition(" ")[0] for word in words if word[0].isdigit())
    return f"not recorded, nsys {since} or later is needed"


def _of_version(words: Sequence[str], version: Version) -> list[str]:
    """The words that a version knows: ``2024.4 --x`` from 2024.4 on, ``<2024.4 --y`` before."""
    found = []
    for word in words:
        limit, _, rest = word.partition(" ")
        known = parse_version(limit)
        if known is None:
            found.append(word)
        elif (version < known) == limit.startswith("<"):
            found.append(rest)
    return found


class Recording(NamedTuple):
    """Everything that the printed lines depend on."""

    goals: tuple[Goal, ...]
    capture: Capture
    version: Version
    launcher: str
    directory: str
    program: tuple[str, ...]
    ranks: frozenset[int] | None = None
    scratch: str = ""
    small_overhead: bool = False


def script(one: Recording) -> list[str]:
    """Write the lines of a shell script: record, export, triage."""
    variable, start = LAUNCHERS[one.launcher]
    options = profile_options(one.goals, one.capture, one.version, one.small_overhead)
    # The shell puts $RUN in, nsys the rank: each process has its own.
    profile = f'nsys profile {shlex.join(options)} -o "$RUN/rank%q{{{variable}}}"'
    if one.ranks is not None:
        chosen = "|".join(map(str, sorted(one.ranks)))
        wrapper = f'case ${variable} in {chosen}) exec {profile} "$@";; *) exec "$@";; esac'
        profile = f"bash -c {shlex.quote(wrapper)} -"
    lines = [f'export RUN={shlex.quote(one.directory)}; mkdir -p "$RUN"']
    if one.scratch:
        lines.append(f"export TMPDIR={shlex.quote(one.scratch)}   # nsys writes there while it records, then to $RUN")
    lines += [f"{start} {profile} \\", f"    {shlex.join(one.program)}"]
    export = shlex.join(["nsys", "export", *export_options(one.goals, one.version)])
    lines.append(f'for report in "$RUN"/*.nsys-rep; do {export} "$report"; done')
    lines.append('nsystui triage "$RUN"/*.sqlite')
    return lines
