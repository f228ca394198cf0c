"""Questions about GPU time, memory and metrics, streams, the network, the timeline and the list of events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsystui.base.errors import UsageError
from nsystui.questions.queries.question import OVER_TIME, STEPS, Option, Question, ShownRows, Values, View, read_bins

if TYPE_CHECKING:
    from nsystui.base.answer import Answer
    from nsystui.base.drawing import Drawing as Shapes
    from nsystui.base.selection import Selection
    from nsystui.questions.job.job import OpenJob
    from nsystui.questions.queries.question import Expected, TextDrawing


def _gpu_columns(values: Values) -> Expected:
    from nsystui.questions.gpu.utilisation import columns_read

    return columns_read(of_streams=bool(values["streams"])), ()


def _ask_gpu(job: OpenJob, selection: Selection, options: Values) -> Answer:
    from nsystui.questions.capture.launch_account import with_lost_work
    from nsystui.questions.gpu.utilisation import utilisation_over_time, utilisation_table

    busy, window = job.busy(selection), job.extent(selection)
    if not options["over_time"]:
        return with_lost_work(job, selection, utilisation_table(busy, window))
    from nsystui.questions.counters.metric_tables import with_metrics

    answer = with_lost_work(job, selection, utilisation_over_time(busy, window, options["bins"]))
    return with_metrics(answer, job, selection, options["bins"])


def _draw_gpu(job: OpenJob, selection: Selection, options: Values) -> Shapes | None:
    from nsystui.questions.report.drawings import utilisation_lanes

    return utilisation_lanes(job, selection, options["bins"] if options["over_time"] else None)


def _ask_budget(job: OpenJob, selection: Selection, options: Values) -> Answer:
    if options["by"] == "step":
        from nsystui.questions.blocking.budget import budget_by_step

        return budget_by_step(job, selection, options["step_range"])
    from nsystui.questions.host.time_budget import budget_with_causes

    return budget_with_causes(job, selection, options["step_range"])


def _draw_budget(job: OpenJob, selection: Selection, options: Values) -> Shapes | None:
    from nsystui.questions.blocking.budget import iterations
    from nsystui.questions.host.time_budget import device_budgets
    from nsystui.questions.report.drawings import device_bars, iteration_bars

    if options["by"] == "step":
        return iteration_bars(iterations(job, selection, options["step_range"]))
    return device_bars(device_budgets(job, selection, options["step_range"]))


def _ask_timeline(job: OpenJob, selection: Selection, options: Values) -> Answer:
    from nsystui.questions.timeline.picture import lanes_as_table

    return lanes_as_table(job, selection, options["width"], options["all_lanes"])


def _draw_timeline(job: OpenJob, selection: Selection, options: Values) -> TextDrawing | None:
    from nsystui.questions.timeline.picture import lanes_as_text

    return lanes_as_text(job, selection, options["width"], options["all_lanes"])


def _timeline_shapes(job: OpenJob, selection: Selection, options: Values) -> Shapes | None:
    from nsystui.questions.report.drawings import LANE_COLUMNS, timeline_lanes
    from nsystui.questions.timeline.picture import pictures_of

    pictures, _ = pictures_of(job, selection, options["width"] or LANE_COLUMNS, options["all_lanes"])
    return timeline_lanes(pictures)


def _read_timeline(values: Values) -> dict[str, Any]:
    if values["width"] is not None and not 1 <= values["width"] <= 1_000_000:
        raise UsageError(f"--width {values['width']}: from 1 to 1000000")
    return dict(values)


def _ask_network(job: OpenJob, selection: Selection, options: Values) -> Answer:
    from nsystui.questions.counters.network import network_by_collective, network_table

    return (network_by_collective if options["by"] == "collective" else network_table)(job, selection)


def _ask_events(job: OpenJob, selection: Selection, kinds: Any) -> Answer:
    from nsystui.questions.events.kinds import EventKind
    from nsystui.questions.events.listing import EventList
    from nsystui.questions.queries.paged import smart_named

    events = EventList.build(job.session, selection, job.ranks, kinds)
    has_kernels = not {EventKind.KERNEL, EventKind.NCCL}.isdisjoint(events.kinds)
    return smart_named(events, job.smart_names() if has_kernels else {})


def _read_events(values: Values) -> Any:
    from nsystui.questions.events.kinds import kinds_of

    return kinds_of(values["kinds"])


def _event_columns(values: Values) -> Expected:
    from nsystui.base.selection import Selection
    from nsystui.questions.events.kinds import DEFAULT_KINDS, events_query
    from nsystui.store.views import used_columns

    columns: dict[str, frozenset[str]] = {"devices": frozenset()}
    for kind in _read_events(values) or DEFAULT_KINDS:
        columns |= used_columns(events_query(kind, Selection(), ()))
    return columns, () if values["time"] else None


def _ask_streams(job: OpenJob, selection: Selection, options: Values) -> Answer:
    from nsystui.questions.timeline.streams import queues_over_time, stream_table

    return queues_over_time(job, selection, options["bins"]) if options["over_time"] else stream_table(job, selection)


def _draw_queues(job: OpenJob, selection: Selection, options: Values) -> Shapes | None:
    from nsystui.questions.report.drawings import queue_lanes

    return queue_lanes(job, selection, options["bins"])


def _ask_metrics(job: OpenJob, selection: Selection, options: Values) -> Answer:
    from nsystui.questions.counters.metric_means import metric_means
    from nsystui.questions.counters.metric_tables import metric_statistics, metrics_over_time

    if options["over_time"]:
        return metrics_over_time(job, selection, options["bins"])
    return metric_means(job, selection, options["by"]) if options["by"] else metric_statistics(job, selection)


def _draw_metrics(job: OpenJob, selection: Selection, options: Values) -> Shapes | None:
    from nsystui.questions.report.drawings import metric_lanes

    return metric_lanes(job, selection, options["bins"])


def _ask_memory(job: OpenJob, selection: Selection, options: Values) -> Answer:
    from nsystui.questions.memory.gpu_allocations import allocation_table
    from nsystui.questions.memory.gpu_memory import memory_over_time, memory_table

    if options["over_time"]:
        return memory_over_time(job, selection, options["bins"])
    if options["allocations"]:
        return allocation_table(job, selection, options["allocations"])
    return memory_table(job, selection)


def _draw_memory(job: OpenJob, selection: Selection, options: Values) -> Shapes | None:
    from nsystui.questions.report.drawings import memory_lanes

    return memory_lanes(job, selection, options["bins"])


_EVENTS = ("graph_launches", "syncs", "nvtx_marks", "ucx_calls", "openacc_events", "openmp_events", "cuda_overhead")
_SAMPLED = ("nic_metrics", "efa_samples")
QUESTIONS = (
    Question(
        "streams",
        "the streams of each GPU: kind, NVTX range, queued launches",
        _ask_streams,
        description="""The streams of each GPU: whether they compute, communicate or copy, the NVTX range that is around
all of their launches, and how many launches wait for how long. With --over-time, how many wait in each of --bins
equal spans of the selected time.""",
        examples="""  nsystui streams rank0.sqlite
  nsystui streams rank*.sqlite --ranks 0 --format csv
  nsystui streams rank0.sqlite --over-time --bins 1000 -o queues.csv
  nsystui streams rank0.sqlite -o queues.svg""",
        order=135,
        options=(*OVER_TIME,),
        read=read_bins,
        drawing=_draw_queues,
        reads=("times", "reports"),
        rows=ShownRows("stream", "kernels", "streams"),
        views=(View("streams", counted="streams", tables=("kernels", "memory_ops"), order=165),),
    ),
    Question(
        "gpu",
        "GPU utilisation per rank and device, or over time",
        _ask_gpu,
        description="""\
How busy each GPU was: one row per rank and device, with compute (kernels that do not communicate), NCCL, memory
operations and whole CUDA graphs as unions of time. They overlap, so that together they may exceed `busy`; `exposed` is
NCCL that no compute hides. With --over-time, one row for each device and each of --bins equal spans of the selected
time, with every GPU metric that was sampled. On the screen 4 GPU, `e` exports the table without --over-time.""",
        examples="""  nsystui gpu rank*.sqlite
  nsystui gpu rank0.sqlite --time 1.2s:1.5s --format json
  nsystui gpu rank*.sqlite --over-time --bins 1000 --format csv -o busy.csv
  nsystui gpu rank*.sqlite -o busy.svg""",
        order=80,
        options=(*OVER_TIME,),
        read=read_bins,
        drawing=_draw_gpu,
        expected=_gpu_columns,
        reads=("times", "reports"),
        rows=ShownRows("device", "gpu", "GPU utilisation"),
        views=(View("gpu", tables=("gpu_metrics",), label="lanes"),),
    ),
    Question(
        "budget",
        "where the time of each GPU went, in parts that add up to 100 %",
        _ask_budget,
        description="""\
Where the time of each GPU went, in parts that do not overlap and add up to 100 %: compute, NCCL that no compute hides,
memory operations and whole graphs that nothing else hides, and idle time: start-up (before the first step that is not
slow, or before the GPU first is half as busy as on average), gaps of 1 ms or more, shorter gaps, and the tail after the
last operation. Time that was not recorded is not idle time. Notes name the causes of start-up and long gaps: what the
CPU did meanwhile.

With --by step, a row for each part of an iteration: compute, and of the time without compute what the next compute
kernel waited for: its launch (late launches), NCCL, a copy or a memset, or neither (stalled): see
`nsystui help path`.""",
        examples="""  nsystui budget rank*.sqlite
  nsystui budget rank*.sqlite --by step
  nsystui budget rank0.sqlite --time 1.2s:1.5s --format json
  nsystui budget rank*.sqlite -o budget.svg""",
        order=85,
        options=(
            Option(
                "by",
                "a row for each GPU (default), or for each part of an iteration",
                choices=("gpu", "step"),
                default="gpu",
            ),
            *STEPS,
        ),
        drawing=_draw_budget,
        reads=("whole", "times", "reports"),
        rows=ShownRows("device", "steps", "budget of time"),
        views=(View("budget", values={"by": "step"}, order=61),),
    ),
    Question(
        "network",
        "what each network adapter sent and received, and traffic during collectives",
        _ask_network,
        description="""\
What each network adapter and switch sent and received: mean rates over its sampled part of the selected time, peaks,
and send waits. An adapter counts once by host and GUID, however many reports saw it. With --by collective, one row
for each NCCL collective, size and kind of link: what the adapters of a host moved while its kernels of the group ran,
and the send waits during all of them and during the slowest tenth.""",
        examples="""  nsystui network rank*.sqlite
  nsystui network rank*.sqlite --by collective --filter AllReduce
  nsystui network rank0.sqlite --time 1.2s:1.5s --format json""",
        order=95,
        options=(
            Option(
                "by",
                "by adapter (default), or what moved while NCCL collectives of a size ran",
                choices=("adapter", "collective"),
                default="adapter",
            ),
        ),
        needs=(_SAMPLED,),
        reads=("whole", "times"),
        rows=ShownRows(home="gpu", title="network"),
        views=(View("network", tables=(*_SAMPLED, "nic_devices"), screen="network", needs=_SAMPLED),),
    ),
    Question(
        "timeline",
        "lanes of ranks, streams and NVTX threads over time, as text or as a table",
        _ask_timeline,
        description="""The timeline as text: a lane for each GPU of each rank, with --all-lanes also for each stream and
NVTX thread. Each column shows the category that took most of its time: K compute (no communication), N NCCL, M memory
operations, G whole CUDA graphs; a small letter if it was busy for less than half of the time, nothing if it
was idle, · if nothing was recorded. Wide events have their names. With --format (or -o, --sort, --top) it is a table,
one row for each lane and column.""",
        examples="""  nsystui timeline rank*.sqlite
  nsystui timeline rank0.sqlite --all-lanes --time 1.2s:1.21s --width 160
  nsystui timeline rank*.sqlite --time 1s:2s --width 1000 --format csv -o lanes.csv
  nsystui timeline rank0.sqlite --all-lanes --time 1.2s:1.21s -o step.svg""",
        topic="screens",
        order=110,
        options=(
            Option("all-lanes", "a lane for each stream and NVTX thread, too", group=""),
            Option(
                "width",
                "width of the drawing, or columns of the table (default: the terminal's)",
                metavar="N",
                kind=int,
                group="",
            ),
        ),
        read=_read_timeline,
        draw=_draw_timeline,
        drawing=_timeline_shapes,
        reads=("whole", "times"),
        rows=ShownRows("time", "timeline", "timeline"),
    ),
    Question(
        "events",
        "everything that happened, in time order",
        _ask_events,
        description="""\
Everything that happened in the selection, in time order: API calls, kernels, memory operations, whole
graph launches, synchronisations, NVTX ranges and marks, calls of MPI and UCX, events of OpenACC and
OpenMP, CUDA's overhead; OS runtime calls when asked for.""",
        examples="""  nsystui events rank0.sqlite --time 1.200s:1.201s
  nsystui events rank0.sqlite --kinds kernel,nccl,memory --format csv -o gpu.csv
  nsystui events rank0.sqlite --filter cudaMalloc --sort duration_ns --top 20""",
        topic="screens",
        order=120,
        options=(
            Option(
                "kinds",
                "api, kernel, nccl, memory, graph, sync, nvtx, mark, mpi, ucx, openacc, openmp, overhead, os; "
                "separate by commas",
                metavar="LIST",
                default="",
                group="",
            ),
        ),
        read=_read_events,
        expected=_event_columns,
        reads=("times",),
        rows=ShownRows("event", "events", "events"),
        views=(View("events", tables=_EVENTS),),
    ),
    Question(
        "metrics",
        "GPU metrics: every sampled counter, over time, or its mean over kernels, ranges, steps, collectives",
        _ask_metrics,
        description="""\
Every GPU metric that was sampled, under its recorded name: one row for each rank, device and metric; with --over-time
also for each span of the selected time. With --by, the mean of every metric over the kernels of a name, NVTX
ranges (their GPU time), steps or collectives: each sample is weighted by the overlap of its period. `busiest` is the
unit nearest to its peak; `bound` names it if it reaches 60 % of its peak. Recorded with
`nsys profile --gpu-metrics-devices=all`.""",
        examples="""  nsystui metrics rank*.sqlite
  nsystui metrics rank0.sqlite --by kernel --sort of_peak_percent --top 10
  nsystui metrics rank*.sqlite --by step --format csv
  nsystui metrics rank*.sqlite --over-time --bins 1000 --format csv -o metrics.csv""",
        order=82,
        options=(
            *OVER_TIME,
            Option(
                "by",
                "means over kernels of a name, NVTX ranges of a name, steps, or collectives by size",
                choices=("kernel", "range", "step", "collective"),
                one_of="table",
            ),
        ),
        read=read_bins,
        drawing=_draw_metrics,
        reads=("whole", "times", "reports"),
        rows=ShownRows("device", "gpu", "GPU metrics"),
        views=(View("metrics", screen="metrics"),),
    ),
    Question(
        "gpu-memory",
        "memory allocated through CUDA: peak, what is never freed, the curve over time",
        _ask_memory,
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
        drawing=_draw_memory,
        reads=("times",),
        rows=ShownRows("device", "gpu", "GPU memory"),
        views=(View("GPU memory", tables=("gpu_memory",), label="memory", screen="GPU memory"),),
    ),
)
