"""Questions about sampled GPU metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsystui.questions.queries.question import OVER_TIME, Option, Question, ShownRows, Values, View, read_bins

if TYPE_CHECKING:
    from nsystui.base.answer import Answer
    from nsystui.base.drawing import Drawing as Shapes
    from nsystui.base.selection import Selection
    from nsystui.questions.job.job import OpenJob

_SUBJECTS = ("kernel", "range", "step", "collective")


def _ask(job: OpenJob, selection: Selection, options: Values) -> Answer:
    from nsystui.questions.counters.metric_means import metric_means
    from nsystui.questions.counters.metric_tables import metric_statistics, metrics_over_time

    if options["over_time"]:
        return metrics_over_time(job, selection, options["bins"])
    return metric_means(job, selection, options["by"]) if options["by"] else metric_statistics(job, selection)


def _draw(job: OpenJob, selection: Selection, options: Values) -> Shapes | None:
    from nsystui.questions.report.drawings import metric_lanes

    return metric_lanes(job, selection, options["bins"])


QUESTIONS = (
    Question(
        "metrics",
        "GPU metrics: every sampled counter, over time, or its mean over kernels, ranges, steps, collectives",
        _ask,
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
                choices=_SUBJECTS,
                one_of="table",
            ),
        ),
        read=read_bins,
        drawing=_draw,
        reads=("whole", "times", "reports"),
        rows=ShownRows("device", "gpu", "GPU metrics"),
        views=(View("metrics", screen="metrics"),),
    ),
)
