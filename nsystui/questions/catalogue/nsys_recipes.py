"""The recipes of ``nsys recipe``: subjects, needed data, and how NVIDIA's versions differ.

`nsystui.questions.recipes` computes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsystui.base.errors import UsageError
from nsystui.questions.queries.question import COMPARISON, Option, Question, RowKind, ShownRows, Values

if TYPE_CHECKING:
    from nsystui.base.answer import Answer
    from nsystui.base.selection import Selection
    from nsystui.questions.job.job import OpenJob
    from nsystui.questions.recipes.recipe import RecipeMap, RecipeOptions

FAMILY = "recipe"

BY_RANK = Option("by-rank", "each rank by itself, with a column for it")
NAME = Option(
    "name",
    "the kernel (full, short or mangled name) or NVTX range (name with or without its domain); * stands for numbers, "
    "as in 'step *' (default: the kernel with most time, the training steps; kern_hist: all kernels)",
    metavar="TEXT",
    group=FAMILY,
)
NAMES = Option("names", "which kernel names (full)", choices=("full", "short", "mangled"), group=FAMILY)
BINS = Option("bins", "spans of a map (30; of a drawing its width)", metavar="N", kind=int, group=FAMILY)
WIDTH = Option("width", "width of a drawing (the terminal's)", metavar="N", kind=int, group=FAMILY)
GAP = Option("gap", "gaps longer than this (500)", metavar="MS", kind=float, group=FAMILY)
THRESHOLD = Option("threshold", "utilisation below this (50)", metavar="PERCENT", kind=float, group=FAMILY)
CHUNKS = Option("chunks", "parts of a GPU's time (30)", metavar="N", kind=int, group=FAMILY)

_MIN_BINS, _MAX_BINS = 1, 1_000_000


def _options(values: Values) -> RecipeOptions:
    from nsystui.questions.kernels.summary import Names
    from nsystui.questions.recipes.recipe import MILLISECOND, RecipeOptions

    given = {name: value for name, value in values.items() if value is not None}
    for flag in ("bins", "chunks", "width"):
        if not _MIN_BINS <= given.get(flag, _MIN_BINS) <= _MAX_BINS:
            raise UsageError(f"--{flag} {given[flag]}: from {_MIN_BINS} to {_MAX_BINS}")
    if not 0 <= given.get("gap", 0) < 1e12:
        raise UsageError(f"--gap {given['gap']:g}: milliseconds, not below 0")
    if not 0 <= given.get("threshold", 0) <= 100:
        raise UsageError(f"--threshold {given['threshold']:g}: percent, from 0 to 100")
    if "names" in given:
        given["names"] = Names(given["names"])
    if "gap" in given:
        given["gap"] = round(given["gap"] * MILLISECOND)
    return RecipeOptions(**{name: given[name] for name in RecipeOptions.__dataclass_fields__ if name in given})


def _recipe(
    name: str,
    answers: str,
    needs: tuple[tuple[str, ...], ...] = (),
    options: tuple[Option, ...] = (),
    differs: tuple[str, ...] = (),
    row: RowKind = "other",
    **facts: Any,
) -> Question:
    facts |= {"options": options, "needs": needs, "differs": differs, "read": _options, "rows": ShownRows(row)}

    def ask(job: OpenJob, selection: Selection, given: RecipeOptions) -> Answer:
        from nsystui.questions.recipes import kernels, pace, rules, sums

        return {**kernels.ASK, **pace.ASK, **rules.ASK, **sums.ASK}[name](job, selection, given)

    return Question(name, answers, ask, FAMILY, **facts)


def _map(name: str, answers: str, needs: tuple[tuple[str, ...], ...], differs: tuple[str, ...] = ()) -> Question:
    def make(job: OpenJob, selection: Selection, options: RecipeOptions) -> RecipeMap:
        from nsystui.questions.recipes import busy_maps, metric_maps

        return {**busy_maps.MAPS, **metric_maps.MAPS}[name](job, selection, options)

    def ask(job: OpenJob, selection: Selection, options: RecipeOptions) -> Answer:
        from nsystui.questions.recipes.recipe import map_table

        return map_table(make(job, selection, options))

    facts: dict[str, Any] = {"options": (BINS, WIDTH), "needs": needs, "differs": differs, "rows": ShownRows("time")}
    return Question(name, answers, ask, FAMILY, read=_options, map=make, reads=("times",), **facts)


def _one_side(*_: object) -> Answer:
    raise UsageError("diff compares two sides: nsystui diff A… -- B…")


RANKS_DIFFER = (
    "NVIDIA's recipes number ranks by the sorted file names, so that rank10 comes before rank2; here a rank is that of "
    "the job (MPI, NCCL, environment, file name), and two processes of one report are two ranks"
)
"""A difference of every recipe."""

_STATISTICS = (
    "NVIDIA computes statistics over ranks from those of each rank: median of medians, minimum Q1, maximum Q3; "
    "here they are computed over all rows of all ranks"
)
_DESCRIBED = (
    "NVIDIA computes statistics over ranks from those of each rank: median of medians, minimum Q1, maximum Q3, "
    "mean of the standard deviations; here they are computed over all rows of all ranks"
)
_BY_PROCESS = (
    "NVIDIA's rule joins operations and calls by correlation id alone, so that the calls of another process of the "
    "report match too; here by (report, process, correlation id)"
)
_HEAT = (
    "NVIDIA's map spans whole sessions, however long nothing happened in them; here from the first to the last event, "
    "or --time"
)
_GRAPHS = (
    "NVIDIA's counts whole CUDA graph launches as idle because their kernels are in no table; here they are busy time"
)
_FIRST_DELTA = (
    "NVIDIA's delta of the first range is its start, as if a range had ended at the session's start; here it is missing"
)

_KERNELS, _MEMORY, _CALLS, _GRAPH = "kernels", "memory_ops", "api_calls", "graph_launches"
_NVTX, _NCCL = "nvtx_ranges", "nccl_calls"
_WORK = (_KERNELS, _MEMORY, _GRAPH)

QUESTIONS = (
    _recipe(
        "cuda_api_sum",
        "how long CUDA API calls took, by name",
        ((_CALLS,),),
        (BY_RANK,),
        (_STATISTICS, "NVIDIA's counts a call with --cudabacktrace twice because it has two rows; here once"),
        row="api",
    ),
    _recipe(
        "cuda_api_sync",
        "every cudaDeviceSynchronize and cudaStreamSynchronize, longest first",
        ((_CALLS,),),
        differs=("nsys's rule lists 50 calls by default; here all are listed (--top N)",),
        reads=("times",),
    ),
    _recipe(
        "cuda_gpu_kern_hist",
        "how the durations of each kernel are spread",
        ((_KERNELS,),),
        (BY_RANK, NAME, NAMES),
        row="kernel",
    ),
    _recipe(
        "cuda_gpu_kern_pace",
        "how one kernel paces: its n-th launch across ranks, and the time since the one before",
        ((_KERNELS,),),
        (BY_RANK, NAME, NAMES),
        (_FIRST_DELTA,),
        reads=("whole", "times"),
    ),
    _recipe(
        "cuda_gpu_kern_sum",
        "how long GPU kernels took, by name, and on which rank the extremes are",
        ((_KERNELS,),),
        (BY_RANK, NAMES),
        (_STATISTICS,),
        row="kernel",
    ),
    *(
        _recipe(name, answers, ((_MEMORY,),), (BY_RANK,), (_STATISTICS,), row="memory")
        for name, answers in (
            ("cuda_gpu_mem_size_sum", "how many bytes memory copies and memsets moved, by kind"),
            ("cuda_gpu_mem_time_sum", "how long memory copies and memsets took, by kind"),
        )
    ),
    _map(
        "cuda_gpu_time_util_map",
        "when each GPU was busy",
        (_WORK,),
        (
            "NVIDIA's counts kernels only; here `busy` has copies, memsets and graphs too, `kernels` alone",
            _GRAPHS,
            _HEAT,
        ),
    ),
    *(
        _recipe(name, answers, ((_MEMORY,), (_CALLS,)), differs=(_BY_PROCESS,), reads=("times",))
        for name, answers in (
            ("cuda_memcpy_async", "asynchronous copies from or to pageable memory, longest first"),
            ("cuda_memcpy_sync", "copies by synchronous calls, longest first"),
            ("cuda_memset_sync", "memsets of pinned or managed memory by synchronous calls, longest first"),
        )
    ),
    Question(
        "diff",
        "what changed between two jobs, ranks or spans of time: A… -- B…, as `nsystui diff`",
        _one_side,
        FAMILY,
        differs=(
            "NVIDIA's pairs files by the order of their names, subtracts tables and leaves out differences below a "
            "tolerance; here rows are paired by name, marked as new or gone, and per rank where ranks differ",
        ),
        rows=ShownRows(home=COMPARISON, title="compare two jobs or groups"),
    ),
    _recipe(
        "gpu_gaps",
        "when a GPU was idle for long (--gap, 500 ms), longest first",
        (_WORK,),
        (GAP,),
        (
            _GRAPHS,
            "NVIDIA's counts some of the profiler's own work as GPU work and cuts gaps there; here a gap is whole",
        ),
        reads=("times",),
    ),
    _map(
        "gpu_metric_util_map",
        "how much of each GPU's SMs and tensor cores was used, as sampled",
        (("gpu_metrics",),),
        (
            "NVIDIA's (2023.4) reads the samples of generic events; here those of the table of GPU metrics",
            "the counters glitch: values below 0 count as 0 and above 100 as 100",
            _HEAT,
        ),
    ),
    _recipe(
        "gpu_time_util",
        "parts of each GPU's time (--chunks, 30) with low utilisation (--threshold, 50 %), lowest first",
        (_WORK,),
        (THRESHOLD, CHUNKS),
        (
            "NVIDIA's adds up operations that run at the same time: a part of the time may be more than 100 % in use "
            "and is then not listed, even if the GPU was idle for most of it; here every moment counts once",
            _GRAPHS,
        ),
        reads=("times",),
    ),
    _map(
        "mpi_gpu_time_util_map",
        "when each rank was in MPI, in kernels, and in both",
        (("mpi_calls",), _WORK),
        ("calls that never returned last to the end of the session", _HEAT),
    ),
    _recipe(
        "mpi_sum",
        "how long MPI calls took, by name",
        (("mpi_calls",),),
        (BY_RANK,),
        (_DESCRIBED, "calls that nsys 2022 and older wrote as NVTX ranges of the domain MPI count too"),
        row="mpi",
    ),
    _recipe(
        "nccl_gpu_overlap_trace",
        "how much of each kernel's time overlaps NCCL, and how much of NCCL's time overlaps kernels",
        ((_KERNELS,),),
        (BY_RANK,),
        row="kernel",
        reads=("whole",),
    ),
    _recipe(
        "nccl_gpu_proj_sum",
        "how long NCCL operations took on the GPU, by collective",
        ((_KERNELS,),),
        (BY_RANK,),
        (
            "NVIDIA's gives all GPU time of grouped calls to ncclGroupEnd, where they are launched, and none to "
            "ncclAllReduce and the others; here a kernel belongs to the calls of its group",
            _DESCRIBED,
        ),
        reads=("whole",),
    ),
    _map(
        "nccl_gpu_time_util_map",
        "when each GPU ran NCCL, and when other kernels",
        ((_KERNELS,),),
        (
            "NVIDIA's (2023.4) counts a kernel as NCCL's only where its start and end are those of a projected range: "
            "several kernels of a group count as compute; here the kernel's name decides, as in newer versions",
            _HEAT,
        ),
    ),
    _recipe(
        "nccl_sum",
        "how long NCCL calls took on the CPU, by name",
        ((_NCCL,),),
        (BY_RANK,),
        (_DESCRIBED, "NVIDIA's leaves out calls of no measurable length; here they count"),
    ),
    _map(
        "network_traffic_map",
        "what network adapters received and sent, and how long senders waited",
        (("nic_metrics", "efa_samples"),),
        (
            "NVIDIA's (2023.4) swaps received and sent",
            "NVIDIA's counts an adapter once per report that saw it; here it counts once by host and GUID, in bytes/s",
            "here what was not sampled is missing, and a bin is the mean over its sampled part",
            "counters of AWS's EFA plugin (of NVIDIA's network_map_aws) with bytes in their names are here by name; "
            "NVIDIA documents neither names nor units; a counter that never falls is taken as a total",
            _HEAT,
        ),
    ),
    _recipe(
        "nvtx_gpu_proj_pace",
        "how one NVTX range paces on the GPU: its n-th instance across ranks",
        ((_NVTX,), (_CALLS,), _WORK),
        (BY_RANK, NAME),
        (_FIRST_DELTA,),
        reads=("whole", "times"),
    ),
    _recipe(
        "nvtx_gpu_proj_sum",
        "from first to last GPU operation of NVTX ranges, by name",
        ((_NVTX,), (_CALLS,), (_KERNELS, _MEMORY)),
        (BY_RANK,),
        (_DESCRIBED,),
        row="range",
    ),
    _recipe(
        "nvtx_gpu_proj_trace",
        "from first to last GPU operation of every NVTX range",
        ((_NVTX,), (_CALLS,), (_KERNELS, _MEMORY)),
        row="range",
        reads=("times",),
    ),
    _recipe(
        "nvtx_pace",
        "how one NVTX range paces: its n-th instance across ranks, and the time since the one before",
        ((_NVTX,),),
        (BY_RANK, NAME),
        (_FIRST_DELTA,),
        reads=("whole", "times"),
    ),
    _recipe("nvtx_sum", "how long NVTX ranges took, by name", ((_NVTX,),), (BY_RANK,), (_DESCRIBED,), row="range"),
    _recipe(
        "osrt_sum",
        "how long OS runtime library calls took, by name",
        (("os_calls",),),
        (BY_RANK,),
        (_STATISTICS,),
        row="os",
    ),
    _map(
        "ucx_gpu_time_util_map",
        "when each rank was in UCX, in kernels, and in both",
        (("ucx_calls",), _WORK),
        ("calls that never returned last to the end of the session", _HEAT),
    ),
)
