"""Every recipe: what it answers, what it needs, and where NVIDIA's own goes wrong. Loads nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass

from nsystui.base.errors import UsageError, meant

BY_RANK, NAME, NAMES, BINS = "by-rank", "name", "names", "bins"
GAP, THRESHOLD, CHUNKS = "gap", "threshold", "chunks"


@dataclass(frozen=True)
class Recipe:
    """One recipe.

    ``what``: what it answers, in a line. ``module``: where it is computed, in this folder; empty for `diff`, which is a
    command of its own. ``needs``: of each group of canonical tables the exports must have one. ``takes``: the options
    that it knows. ``differs``: what NVIDIA's recipe of that name gets wrong and this one does not, or counts otherwise.
    """

    name: str
    what: str
    module: str
    needs: tuple[tuple[str, ...], ...] = ()
    takes: frozenset[str] = frozenset()
    differs: tuple[str, ...] = ()
    is_map: bool = False


RANKS_DIFFER = (
    "NVIDIA's recipes number ranks by the sorted file names, so that rank10 comes before rank2; here a rank is that of "
    "the job (MPI, NCCL, environment, file name), and two processes of one report are two ranks"
)
"""Where every recipe differs."""

_STATISTICS = (
    "NVIDIA's statistics over ranks are put together from those of the ranks: median of medians, least Q1, largest Q3; "
    "here they are those of all rows of all ranks together"
)
_DESCRIBED = (
    "NVIDIA's statistics over ranks are put together from those of the ranks: median of medians, least Q1, largest Q3, "
    "mean of the standard deviations; here they are those of all rows of all ranks together"
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
    "NVIDIA's counts whole CUDA graph launches as idle, for their kernels are in no table; here they are busy time"
)
_FIRST_DELTA = (
    "NVIDIA's delta of the first one is its start, as if something had ended when the session began; here it is missing"
)

_KERNELS, _MEMORY, _CALLS, _GRAPH = "kernels", "memory_ops", "api_calls", "graph_launches"
_NVTX, _NCCL = "nvtx_ranges", "nccl_calls"
_WORK = (_KERNELS, _MEMORY, _GRAPH)
_SUM = frozenset({BY_RANK})
_MAP = frozenset({BINS})
_PACE = frozenset({BY_RANK, NAME})

RECIPES: tuple[Recipe, ...] = (
    Recipe(
        "cuda_api_sum",
        "how long CUDA API calls took, by name",
        "sums",
        ((_CALLS,),),
        _SUM,
        (_STATISTICS, "NVIDIA's counts a call of a capture with --cudabacktrace twice, for it has two rows; here once"),
    ),
    Recipe(
        "cuda_api_sync",
        "every cudaDeviceSynchronize and cudaStreamSynchronize, longest first",
        "rules",
        ((_CALLS,),),
        differs=("nsys's rule lists 50 calls unless told otherwise; here all (--top N)",),
    ),
    Recipe(
        "cuda_gpu_kern_hist",
        "how the durations of each kernel are spread",
        "kernels",
        ((_KERNELS,),),
        frozenset({BY_RANK, NAME, NAMES}),
    ),
    Recipe(
        "cuda_gpu_kern_pace",
        "how one kernel paces: its n-th launch across ranks, and the time since the one before",
        "pace",
        ((_KERNELS,),),
        _PACE | {NAMES},
        (_FIRST_DELTA,),
    ),
    Recipe(
        "cuda_gpu_kern_sum",
        "how long GPU kernels took, by name, and on which rank the extremes are",
        "sums",
        ((_KERNELS,),),
        _SUM | {NAMES},
        (_STATISTICS,),
    ),
    Recipe(
        "cuda_gpu_mem_size_sum",
        "how many bytes memory copies and memsets moved, by kind",
        "sums",
        ((_MEMORY,),),
        _SUM,
        (_STATISTICS,),
    ),
    Recipe(
        "cuda_gpu_mem_time_sum",
        "how long memory copies and memsets took, by kind",
        "sums",
        ((_MEMORY,),),
        _SUM,
        (_STATISTICS,),
    ),
    Recipe(
        "cuda_gpu_time_util_map",
        "when each GPU was busy",
        "busy_maps",
        (_WORK,),
        _MAP,
        (
            "NVIDIA's counts kernels only; here `busy` has copies, memsets and graphs too, `kernels` alone",
            _GRAPHS,
            _HEAT,
        ),
        is_map=True,
    ),
    Recipe(
        "cuda_memcpy_async",
        "asynchronous copies from or to pageable memory, longest first",
        "rules",
        ((_MEMORY,), (_CALLS,)),
        differs=(_BY_PROCESS,),
    ),
    Recipe(
        "cuda_memcpy_sync",
        "copies by synchronous calls, longest first",
        "rules",
        ((_MEMORY,), (_CALLS,)),
        differs=(_BY_PROCESS,),
    ),
    Recipe(
        "cuda_memset_sync",
        "memsets of pinned or managed memory by synchronous calls, longest first",
        "rules",
        ((_MEMORY,), (_CALLS,)),
        differs=(_BY_PROCESS,),
    ),
    Recipe(
        "diff",
        "what changed between two jobs, ranks or spans of time: A… -- B…, as `nsystui diff`",
        "",
        differs=(
            "NVIDIA's pairs files by the order of their names and subtracts tables, and leaves out what is below a "
            "tolerance; here jobs are compared by names, which are marked as new or gone, per rank where ranks differ",
        ),
    ),
    Recipe(
        "gpu_gaps",
        "when a GPU was idle for long (--gap, 500 ms), longest first",
        "rules",
        (_WORK,),
        frozenset({GAP}),
        (
            _GRAPHS,
            "NVIDIA's takes some of the profiler's own work for the GPU's, by its name, and cuts gaps at it; here a "
            "gap is whole, with the part of it in which the profiler worked, and at what",
        ),
    ),
    Recipe(
        "gpu_metric_util_map",
        "how much of each GPU's SMs and tensor cores was used, as sampled",
        "metric_maps",
        (("gpu_metrics",),),
        _MAP,
        (
            "NVIDIA's (2023.4) reads the samples of generic events; here those of the table of GPU metrics",
            "the counters glitch: values below 0 count as 0 and above 100 as 100",
            _HEAT,
        ),
        is_map=True,
    ),
    Recipe(
        "gpu_time_util",
        "parts of each GPU's time (--chunks, 30) with low utilisation (--threshold, 50 %), lowest first",
        "rules",
        (_WORK,),
        frozenset({THRESHOLD, CHUNKS}),
        (
            "NVIDIA's adds up operations that run side by side: a part may be in use for more than 100 %, and is not "
            "listed although the GPU was idle in most of it; here every moment counts once",
            _GRAPHS,
        ),
    ),
    Recipe(
        "mpi_gpu_time_util_map",
        "when each rank was in MPI, in kernels, and in both",
        "busy_maps",
        (("mpi_calls",), _WORK),
        _MAP,
        ("calls that never returned last to the end of the session", _HEAT),
        is_map=True,
    ),
    Recipe(
        "mpi_sum",
        "how long MPI calls took, by name",
        "sums",
        (("mpi_calls",),),
        _SUM,
        (_DESCRIBED, "calls that nsys 2022 and older wrote as NVTX ranges of the domain MPI count too"),
    ),
    Recipe(
        "nccl_gpu_overlap_trace",
        "how much of each kernel's time NCCL ran beside it, and of NCCL's the kernels",
        "kernels",
        ((_KERNELS,),),
        _SUM,
    ),
    Recipe(
        "nccl_gpu_proj_sum",
        "how long NCCL operations took on the GPU, by collective",
        "sums",
        ((_KERNELS,),),
        _SUM,
        (
            "NVIDIA's gives all GPU time of grouped calls to ncclGroupEnd, where they are launched, and none to "
            "ncclAllReduce and the others; here a kernel belongs to the calls of its group",
            _DESCRIBED,
        ),
    ),
    Recipe(
        "nccl_gpu_time_util_map",
        "when each GPU ran NCCL, and when other kernels",
        "busy_maps",
        ((_KERNELS,),),
        _MAP,
        (
            "NVIDIA's (2023.4) takes a kernel for NCCL's only where its start and end are those of a projected range: "
            "several kernels of a group count as compute; here the kernel's name tells, as in newer ones",
            _HEAT,
        ),
        is_map=True,
    ),
    Recipe(
        "nccl_sum",
        "how long NCCL calls took on the CPU, by name",
        "sums",
        ((_NCCL,),),
        _SUM,
        (_DESCRIBED, "NVIDIA's leaves out calls of no measurable length; here they count"),
    ),
    Recipe(
        "network_traffic_map",
        "what network adapters received and sent, and how long senders waited",
        "metric_maps",
        (("nic_metrics", "efa_samples"),),
        _MAP,
        (
            "NVIDIA's (2023.4) swaps received and sent",
            "here what was not sampled is missing, and a bin is the mean over its sampled part",
            "counters of AWS's EFA plugin (of NVIDIA's network_map_aws) that say bytes are here, under the names they "
            "were recorded with; NVIDIA documents neither these nor their units; what never falls is taken as a total",
            _HEAT,
        ),
        is_map=True,
    ),
    Recipe(
        "nvtx_gpu_proj_pace",
        "how one NVTX range paces on the GPU: its n-th instance across ranks",
        "pace",
        ((_NVTX,), (_CALLS,), _WORK),
        _PACE,
        (_FIRST_DELTA,),
    ),
    Recipe(
        "nvtx_gpu_proj_sum",
        "from first to last GPU operation of NVTX ranges, by name",
        "sums",
        ((_NVTX,), (_CALLS,), (_KERNELS, _MEMORY)),
        _SUM,
        (_DESCRIBED,),
    ),
    Recipe(
        "nvtx_gpu_proj_trace",
        "from first to last GPU operation of every NVTX range",
        "sums",
        ((_NVTX,), (_CALLS,), (_KERNELS, _MEMORY)),
    ),
    Recipe(
        "nvtx_pace",
        "how one NVTX range paces: its n-th instance across ranks, and the time since the one before",
        "pace",
        ((_NVTX,),),
        _PACE,
        (_FIRST_DELTA,),
    ),
    Recipe("nvtx_sum", "how long NVTX ranges took, by name", "sums", ((_NVTX,),), _SUM, (_DESCRIBED,)),
    Recipe(
        "osrt_sum",
        "how long OS runtime library calls took, by name",
        "sums",
        (("os_calls",),),
        _SUM,
        (_STATISTICS,),
    ),
    Recipe(
        "ucx_gpu_time_util_map",
        "when each rank was in UCX, in kernels, and in both",
        "busy_maps",
        (("ucx_calls",), _WORK),
        _MAP,
        ("calls that never returned last to the end of the session", _HEAT),
        is_map=True,
    ),
)
"""All of them, in alphabetical order."""


def recipe_named(name: str) -> Recipe:
    """The recipe of that name; raises UsageError, with the one that may be meant."""
    known = {recipe.name: recipe for recipe in RECIPES}
    if name not in known:
        raise UsageError(f"no recipe {name!r}: {meant(name, known, '`nsystui recipe` lists them')}")
    return known[name]
