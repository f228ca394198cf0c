"""The reports of ``nsys stats``: rows, needed data, and options.

`nsystui.questions.stats` computes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsystui.base.text import whole_number
from nsystui.questions.queries.question import Option, Question, RowKind, ShownRows, Values, View

if TYPE_CHECKING:
    from nsystui.base.answer import Answer
    from nsystui.base.selection import Selection
    from nsystui.questions.job.job import OpenJob
    from nsystui.questions.stats.report import ReportOptions

FAMILY = "stats"


def _number(text: str) -> int:
    number = whole_number(text)
    if number is None:
        raise ValueError(text)
    return number


_BASE = Option("base", "kernels by their short names", one_of="names")
_MANGLED = Option("mangled", "kernels by their mangled names", one_of="names")
_NVTX_NAME = Option("nvtx-name", "the innermost NVTX range of the launch before a kernel's name")
_ROWS = Option("rows", "maximum number of rows", metavar="N", kind=_number)
_TICKS = Option("ticks_threshold", "the least rate that is congestion, in ticks/ms", metavar="N", kind=_number)
_NAMES = (_BASE, _MANGLED)
_KERNEL_NAMES = (_NVTX_NAME, *_NAMES)

_CLUSTER_REPORTS = frozenset(
    (
        *("cuda_api_gpu_sum", "cuda_api_sum", "cuda_gpu_kern_gb_sum", "cuda_gpu_kern_sum", "cuda_gpu_mem_size_sum"),
        *("cuda_gpu_mem_time_sum", "cuda_gpu_sum", "cuda_kern_exec_sum", "mpi_event_sum", "nvtx_pushpop_sum"),
        *("nvtx_startend_sum", "nvtx_sum", "openacc_sum", "openmp_sum", "osrt_sum"),
    )
)
"""Reports that a cluster's workers compute: not reports of single rows, or of ranges' GPU work."""


def _options(values: Values) -> ReportOptions:
    from nsystui.questions.kernels.summary import Names
    from nsystui.questions.stats.report import ReportOptions

    given: dict[str, Any] = {key: value for key, value in values.items() if value is not None and value is not False}
    for key, names in (("base", Names.SHORT), ("mangled", Names.MANGLED)):
        if given.pop(key, None):
            given["names"] = names
    return ReportOptions(**given)


def _report(
    name: str, rows: str, needs: tuple[tuple[str, ...], ...], options: tuple[Option, ...] = (), row: RowKind = "other"
) -> Question:
    def ask(job: OpenJob, selection: Selection, given: ReportOptions) -> Answer:
        from nsystui.questions.stats import cuda_sums, cuda_traces, host, nvtx_projected, nvtx_ranges, unified_memory

        reports = {**cuda_sums.ASK, **cuda_traces.ASK, **host.ASK, **nvtx_projected.ASK, **nvtx_ranges.ASK}
        return {**reports, **unified_memory.ASK}[name](job.session, selection, given)

    reads: Any = ("reports",) * (name in _CLUSTER_REPORTS)
    return Question(
        name, rows, ask, FAMILY, options=options, needs=needs, read=_options, reads=reads, rows=ShownRows(row, "")
    )


def _on_screen(report: Question, title: str, order: int) -> Question:
    view = View(report.name, title, "names", sort=("total", True), order=order, label=title, screen="nvtx names")
    return report._replace(rows=report.rows._replace(home="nvtx"), views=(view,))


_KERNELS, _MEMORY, _CALLS, _NVTX = "kernels", "memory_ops", "api_calls", "nvtx_ranges"
_LAUNCHED = ((_NVTX,), (_CALLS,), (_KERNELS, _MEMORY))
_EXECUTED = ((_KERNELS,), (_CALLS,))
_UNIFIED = ((_MEMORY,), ("cpu_page_faults",), ("gpu_page_faults",))

QUESTIONS = (
    _report(
        "cuda_api_gpu_sum",
        "CUDA API calls, kernels and memory operations",
        ((_CALLS, _KERNELS, _MEMORY),),
        _KERNEL_NAMES,
    ),
    _report("cuda_api_sum", "CUDA API calls", ((_CALLS,),), row="api"),
    _report("cuda_api_trace", "each CUDA API call", ((_CALLS,),), row="event"),
    _report("cuda_gpu_kern_gb_sum", "kernels by name, grid and block", ((_KERNELS,),), _KERNEL_NAMES, "kernel"),
    _report("cuda_gpu_kern_sum", "kernels by name", ((_KERNELS,),), _KERNEL_NAMES, "kernel"),
    _report("cuda_gpu_mem_size_sum", "bytes of memory copies and memsets", ((_MEMORY,),), row="memory"),
    _report("cuda_gpu_mem_time_sum", "time of memory copies and memsets", ((_MEMORY,),), row="memory"),
    _report("cuda_gpu_sum", "kernels and memory operations", ((_KERNELS, _MEMORY),), _KERNEL_NAMES),
    _report("cuda_gpu_trace", "each kernel, memory copy and memset", ((_KERNELS, _MEMORY),), _KERNEL_NAMES, "event"),
    _report("cuda_kern_exec_sum", "kernels with their calls and queues", _EXECUTED, _KERNEL_NAMES, "kernel"),
    _report("cuda_kern_exec_trace", "each kernel with its call and queue", _EXECUTED, _KERNEL_NAMES, "event"),
    _report("mpi_event_sum", "MPI calls by name", (("mpi_calls",),), row="mpi"),
    _report("mpi_event_trace", "every MPI call", (("mpi_calls",),), row="event"),
    _report("network_congestion", "times when the network made senders wait", (("nic_metrics",),), (_TICKS,), "time"),
    _on_screen(
        _report("nvtx_gpu_proj_sum", "NVTX ranges by name, from first to last GPU operation", _LAUNCHED, row="range"),
        "by name, projected",
        102,
    ),
    _report("nvtx_gpu_proj_trace", "NVTX ranges one by one, from first to last GPU operation", _LAUNCHED, row="range"),
    _report("nvtx_kern_sum", "kernels by NVTX range and name", ((_NVTX,), (_CALLS,), (_KERNELS,)), _NAMES),
    _report("nvtx_pushpop_sum", "NVTX push/pop ranges by name", ((_NVTX,),), row="range"),
    _report("nvtx_pushpop_trace", "NVTX push/pop ranges one by one, with what is in them", ((_NVTX,),), row="range"),
    _report("nvtx_startend_sum", "NVTX start/end ranges by name", ((_NVTX,),), row="range"),
    _on_screen(_report("nvtx_sum", "NVTX ranges by name", ((_NVTX,),), row="range"), "by name", 101),
    _report("openacc_sum", "OpenACC events by name", (("openacc_events",),)),
    _report("openmp_sum", "OpenMP events by name", (("openmp_events",),)),
    _report("osrt_sum", "OS runtime calls", (("os_calls",),), row="os"),
    _report("um_cpu_page_faults_sum", "CPU page faults of unified memory by instruction", (_UNIFIED[1],)),
    _report("um_sum", "unified memory by address", _UNIFIED, (_ROWS,)),
    _report("um_total_sum", "unified memory in total", _UNIFIED),
)
