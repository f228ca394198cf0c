"""Command lines of ``nsys profile`` that record the data for a question: printed, never run.

The options of each version are from NVIDIA's user guides and release notes; for an unknown version, the newest form.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nsystui.base.errors import UsageError

Version = tuple[int, int]
NEWEST: Version = (9999, 0)
"""The version assumed if unknown."""


class Goal(NamedTuple):
    """A question, and the data that nsys must record to answer it.

    ``traces`` are words of ``-t``, ``options`` further options. Each may begin with the first version that has it, or
    with ``<`` and the first version that lacks it (`_of_version`). ``cost``: the added run time or report size.
    """

    flag: str
    help: str
    traces: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    exports: tuple[str, ...] = ()
    cost: str = ""


GOALS = (
    Goal("why-idle", "why the GPUs are idle: OS calls, CPU samples with their stacks, when threads run", ("osrt",),
        ("--sample=process-tree", "--backtrace=dwarf", "--cpuctxsw=process-tree"),
        cost="samples with stacks cost a CPU some percent; --small-overhead takes them without stacks"),
    Goal("nccl-sizes", "message sizes and bandwidth of NCCL", ("nvtx",),
        exports=("2024.1 --include-json=true", "2026.1 --include-blobs=true")),
    Goal("memory", "allocations of GPU memory over time", options=("--cuda-memory-usage=true",)),
    Goal("gpu-metrics", "SM, tensor core, DRAM, PCIe and NVLink activity",
        options=("2024.4 --gpu-metrics-devices=cuda-visible", "<2024.4 --gpu-metrics-device=all"),
        cost="needs permission to read counters (NVreg_RestrictProfilingToAdminUsers=0)"),
    Goal("network", "what the network adapters move", options=("--nic-metrics=true",)),
    Goal("efa", "what EFA adapters of AWS move", options=("2024.5 --enable=efa_metrics",),
        cost="the plugin is part of nsys's installation"),
    Goal("python", "which Python function runs, and who has the GIL", ("2023.1 python-gil",),
        ("2023.1 --python-sampling=true",), ("2026.1 --include-blobs=true",), cost="CPython 3.9 or later"),
    Goal("files", "which files are read and written", ("osrt",), ("2024.4 --osrt-file-access=true",)),
    Goal("graphs", "kernels inside of CUDA graphs", options=("--cuda-graph-trace=node",), cost="slows graphs down"),
    Goal("events", "what a wait for a CUDA event waits for", options=("2025.2 --cuda-event-trace=true",)),
    Goal("mpi", "MPI calls", ("mpi",)),
    Goal("ucx", "UCX calls", ("ucx",)),
    Goal("libraries", "cuBLAS and cuDNN calls", ("cublas", "cudnn"), cost="many calls: reports grow"),
)  # fmt: skip

LAUNCHERS = {
    "slurm": ("SLURM_PROCID", "srun"), "openmpi": ("OMPI_COMM_WORLD_RANK", "mpirun"), "mpich": ("PMI_RANK", "mpiexec"),
    "pals": ("PALS_RANKID", "mpiexec"), "mvapich": ("MV2_COMM_WORLD_RANK", "mpiexec"),
    "flux": ("FLUX_TASK_RANK", "flux run"), "jsrun": ("JSM_NAMESPACE_RANK", "jsrun"),
    "torchrun": ("RANK", "torchrun --nproc-per-node=gpu --no-python"),
}  # fmt: skip
"""The variable with the rank, and the command that starts the ranks; ``torchrun`` runs once per node and sets it."""


def launcher_of(ranks: Sequence[tuple[int, Mapping[str, str]]]) -> str | None:
    """Return the launcher whose variable held the rank in all of these captured environments, if any.

    Scripts export RANK under any launcher, and a batch script of one process has rank 0 of the allocation: so torchrun
    follows other launchers if a rank is above 0, and precedes them if only rank 0 is known.
    """
    launchers = [
        name
        for name, (variable, _) in LAUNCHERS.items()
        if ranks and all(environment.get(variable) == str(rank) for rank, environment in ranks)
    ]
    has_high_rank = any(rank for rank, _ in ranks)
    return min(launchers, key=lambda name: (name == "torchrun") == has_high_rank, default=None)


class Capture(NamedTuple):
    """The part of the run to record, by default all of it."""

    nvtx_range: str = ""
    profiler_api: bool = False
    delay: str = ""
    duration: str = ""

    @property
    def options(self) -> list[str]:
        """The options of ``nsys profile``. Raises UsageError if the parts exclude each other."""
        if bool(self.nvtx_range) + self.profiler_api + bool(self.delay or self.duration) > 1:
            raise UsageError("--nvtx-range, --profiler-api, and --delay with --duration exclude each other")
        if self.nvtx_range:
            unregistered = ["-e", "NSYS_NVTX_PROFILER_REGISTER_ONLY=0"]
            name = f"--nvtx-capture={self.nvtx_range}"
            return ["--capture-range=nvtx", name, "--capture-range-end=stop", *unregistered]
        if self.profiler_api:
            return ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
        delays = (("--delay", self.delay), ("--duration", self.duration))
        return [f"{flag}={value}" for flag, value in delays if value]


def parse_version(text: str) -> Version | None:
    """Parse ``2024.5.1``, or the output of ``nsys --version``, as ``(2024, 5)``; ``None`` without a version."""
    match = re.search(r"\b(20\d\d)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def profile_options(
    goals: Sequence[Goal], capture: Capture, version: Version, small_overhead: bool = False
) -> list[str]:
    """Return the options of ``nsys profile``, without output and program.

    The sampling rate stays nsys's default: ``--sampling-period`` has other limits on each machine, and nsys 2023.4 and
    2024.5 refuse ``--sampling-frequency``.
    """
    traces = ["cuda", "nvtx"]
    options: list[str] = []
    for goal in goals:
        traces += [word for word in _of_version(goal.traces, version) if word not in traces]
        options += [word for word in _of_version(goal.options, version) if word not in options]
    if not any(option.startswith("--sample") for option in options):
        options += ["--sample=none", "--cpuctxsw=none"]
    elif small_overhead:
        options = [option for option in options if not option.startswith("--backtrace")]
        options += ["--backtrace=none"]
    return ["-t", ",".join(traces), *options, *capture.options]


def export_options(goals: Sequence[Goal], version: Version) -> list[str]:
    """Return the options of ``nsys export``; NCCL's sizes are always included."""
    goals_by_flag = {goal.flag: goal for goal in GOALS}
    exports = dict.fromkeys([*goals_by_flag["nccl-sizes"].exports, *(word for goal in goals for word in goal.exports)])
    return ["-t", "sqlite", *_of_version(tuple(exports), version)]


def missing(goal: Goal, version: Version) -> str:
    """Return why this version of nsys cannot record the data of a goal; empty if it can."""
    words = (*goal.traces, *goal.options)
    if not words or _of_version(words, version):
        return ""
    first_version = next(word.partition(" ")[0] for word in words if word[0].isdigit())
    return f"not recorded, nsys {first_version} or later is needed"


def _of_version(words: Sequence[str], version: Version) -> list[str]:
    """Return the words of a version: ``2024.4 --x`` from 2024.4 on, ``<2024.4 --y`` before."""
    accepted = []
    for word in words:
        limit, _, option = word.partition(" ")
        first_version = parse_version(limit)
        if first_version is None:
            accepted.append(word)
        elif (version < first_version) == limit.startswith("<"):
            accepted.append(option)
    return accepted


class Recording(NamedTuple):
    """All values that determine the printed lines."""

    goals: tuple[Goal, ...]
    capture: Capture
    version: Version
    launcher: str
    directory: str
    program: tuple[str, ...]
    ranks: frozenset[int] | None = None
    scratch: str = ""
    small_overhead: bool = False


def script(recording: Recording) -> list[str]:
    """Return the lines of a shell script: record, export, triage."""
    variable, launch = LAUNCHERS[recording.launcher]
    options = profile_options(recording.goals, recording.capture, recording.version, recording.small_overhead)
    # The shell replaces $RUN, and nsys the rank, which differs by process.
    profile = f'nsys profile {shlex.join(options)} -o "$RUN/rank%q{{{variable}}}"'
    if recording.ranks is not None:
        ranks = "|".join(map(str, sorted(recording.ranks)))
        wrapper = f'case ${variable} in {ranks}) exec {profile} "$@";; *) exec "$@";; esac'
        profile = f"bash -c {shlex.quote(wrapper)} -"
    lines = [f'export RUN={shlex.quote(recording.directory)}; mkdir -p "$RUN"']
    if recording.scratch:
        scratch = shlex.quote(recording.scratch)
        lines.append(f"export TMPDIR={scratch}   # nsys writes there while it records, then to $RUN")
    lines += [f"{launch} {profile} \\", f"    {shlex.join(recording.program)}"]
    export = shlex.join(["nsys", "export", *export_options(recording.goals, recording.version)])
    lines.append(f'for report in "$RUN"/*.nsys-rep; do {export} "$report"; done')
    lines.append('nsystui triage "$RUN"/*.sqlite')
    return lines
