"""Questions about memory allocated through CUDA."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsystui.questions.queries.question import OVER_TIME, Option, Question, ShownRows, Values, View, read_bins

if TYPE_CHECKING:
    from nsystui.base.answer import Answer
    from nsystui.base.drawing import Drawing as Shapes
    from nsystui.base.selection import Selection
    from nsystui.questions.job.job import OpenJob


def _ask(job: OpenJob, selection: Selection, options: Values) -> Answer:
    from nsystui.questions.memory.gpu_allocations import allocation_table
    from nsystui.questions.memory.gpu_memory import memory_over_time, memory_table

    if options["over_time"]:
        return memory_over_time(job, selection, options["bins"])
    if options["allocations"]:
        return allocation_table(job, selection, options["allocations"])
    return memory_table(job, selection)


def _draw(job: OpenJob, selection: Selection, options: Values) -> Shapes | None:
    from nsystui.questions.report.drawings import memory_lanes

    return memory_lanes(job, selection, options["bins"])


QUESTIONS = (
    Question(
        "gpu-memory",
        "memory allocated through CUDA: peak, what is never freed, the curve over time",
        _ask,
        description="""\
The memory that was allocated through CUDA, one row for each rank, device and kind of memory: the most that was in use
and when, allocations and frees, what is never freed, and the time in the calls that did it. With --over-time the curve,
with --allocations the single allocations, the largest first, with their NVTX ranges and call stacks (recorded with
--cudabacktrace=memory). Recorded with `nsys profile --cuda-memory-usage=true`.""",
        examples="""  nsystui gpu-memory rank*.sqlite
  nsystui gpu-memory rank0.sqlite --allocations at-peak --top 20
  nsystui gpu-memory rank*.sqlite --over-time --bins 1000 --format csv -o memory.csv""",
        order=145,
        options=(
            *OVER_TIME,
            Option(
                "allocations",
                "the single allocations: all, those in use at the peak, or those never freed (default: all)",
                choices=("all", "at-peak", "never-freed"),
                without_value="all",
                lists=True,
                one_of="table",
            ),
        ),
        read=read_bins,
        drawing=_draw,
        reads=("times",),
        rows=ShownRows("device", "gpu", "GPU memory"),
        views=(View("GPU memory", tables=("gpu_memory",), label="memory", screen="GPU memory"),),
    ),
)
