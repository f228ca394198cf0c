"""The reports of ``nsys stats`` by their names: same columns, same rows, same order, same rounding.

See docs/numbers.md#nsys-stats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

from nsystui.base.errors import UsageError, meant
from nsystui.base.text import whole_number
from nsystui.questions.kernels import Names
from nsystui.questions.stats.report import Options, Report

__all__ = ["NAMES", "Options", "Report", "all_reports", "options_of", "report_named", "report_of"]

# Only the module of the report that was asked for is imported.
_IN_MODULE = {
    "cuda_sums": (
        "cuda_api_gpu_sum",
        "cuda_api_sum",
        "cuda_gpu_kern_gb_sum",
        "cuda_gpu_kern_sum",
        "cuda_gpu_mem_size_sum",
        "cuda_gpu_mem_time_sum",
        "cuda_gpu_sum",
    ),
    "cuda_traces": ("cuda_api_trace", "cuda_gpu_trace", "cuda_kern_exec_sum", "cuda_kern_exec_trace"),
    "host": ("mpi_event_sum", "mpi_event_trace", "network_congestion", "openacc_sum", "openmp_sum", "osrt_sum"),
    "nvtx_projected": ("nvtx_gpu_proj_sum", "nvtx_gpu_proj_trace", "nvtx_kern_sum"),
    "nvtx_ranges": ("nvtx_pushpop_sum", "nvtx_pushpop_trace", "nvtx_startend_sum", "nvtx_sum"),
    "unified_memory": ("um_cpu_page_faults_sum", "um_sum", "um_total_sum"),
}
_MODULE_OF = {name: module for module, names in _IN_MODULE.items() for name in names}
NAMES = tuple(sorted(_MODULE_OF))
"""Every report, in alphabetical order."""


def report_named(name: str) -> Report:
    """The report of that name; raises KeyError for a name that none has."""
    reports: tuple[Report, ...] = import_module(f"{__name__}.{_MODULE_OF[name]}").REPORTS
    return next(report for report in reports if report.name == name)


def all_reports() -> list[Report]:
    """Every report, in alphabetical order."""
    return [report_named(name) for name in NAMES]


# How nsys called them until 2022.
_OLD_NAMES = {
    "apigpusum": "cuda_api_gpu_sum",
    "cudaapisum": "cuda_api_sum",
    "cudaapitrace": "cuda_api_trace",
    "gpukerngbsum": "cuda_gpu_kern_gb_sum",
    "gpukernsum": "cuda_gpu_kern_sum",
    "gpumemsizesum": "cuda_gpu_mem_size_sum",
    "gpumemtimesum": "cuda_gpu_mem_time_sum",
    "gpusum": "cuda_gpu_sum",
    "gputrace": "cuda_gpu_trace",
    "kernexecsum": "cuda_kern_exec_sum",
    "kernexectrace": "cuda_kern_exec_trace",
    "nvtxgpuproj": "nvtx_gpu_proj_trace",
    "nvtxkernsum": "nvtx_kern_sum",
    "nvtxppsum": "nvtx_pushpop_sum",
    "nvtxpptrace": "nvtx_pushpop_trace",
    "nvtxsesum": "nvtx_startend_sum",
    "nvtxsssum": "nvtx_startend_sum",
    "nvtxsum": "nvtx_sum",
    "openaccsum": "openacc_sum",
    "openmpevtsum": "openmp_sum",
    "osrtsum": "osrt_sum",
    "umcpupagefaults": "um_cpu_page_faults_sum",
    "unifiedmemory": "um_sum",
    "unifiedmemorytotals": "um_total_sum",
}

_OPTIONS: dict[str, Callable[[Options, str], Options]] = {
    "base": lambda options, _: replace(options, names=Names.SHORT),
    "mangled": lambda options, _: replace(options, names=Names.MANGLED),
    "nvtx-name": lambda options, _: replace(options, nvtx_name=True),
    "rows": lambda options, value: replace(options, rows=_number(value)),
    "ticks_threshold": lambda options, value: replace(options, ticks_threshold=_number(value)),
}
_WITH_NUMBER = frozenset({"rows", "ticks_threshold"})


def report_of(text: str) -> tuple[Report, Options]:
    """``cuda_gpu_kern_sum:nvtx-name:base`` as a report and its options; raises UsageError for what there is not."""
    name, *words = text.split(":")
    try:
        report = report_named(_OLD_NAMES.get(name, name))
    except KeyError:
        hint = f"{meant(name, NAMES, '')} --list-reports prints those there are".lstrip()
        raise UsageError(f"no report {name!r}: {hint}") from None
    options = Options()
    for word in words:
        key, sign, value = word.partition("=")
        if key not in report.takes or bool(sign) != (key in _WITH_NUMBER):
            raise UsageError(f"report {report.name} has no option {word!r}: {options_of(report) or 'it has none'}")
        try:
            options = _OPTIONS[key](options, value)
        except ValueError:
            raise UsageError(f"report {report.name}: {key}={value}: not a number") from None
    return report, options


def _number(text: str) -> int:
    number = whole_number(text)
    if number is None:
        raise ValueError(text)
    return number


def options_of(report: Report) -> str:
    """The options of a report as they are written after its name: ``[:nvtx-name][:base|:mangled]``."""
    one_of = "|".join(f":{key}" for key in ("base", "mangled") if key in report.takes)
    words = [":nvtx-name"] if "nvtx-name" in report.takes else []
    words += [one_of] if one_of else []
    words += [f":{key}=N" for key in sorted(report.takes & _WITH_NUMBER)]
    return "".join(f"[{word}]" for word in words)
