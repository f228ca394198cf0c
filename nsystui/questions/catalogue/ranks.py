"""A job's ranks compared: how busy they were, their steps, and waits for each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsystui.questions.queries.question import STEPS, Expected, Option, Question, ShownRows, Values, View

if TYPE_CHECKING:
    from nsystui.base.answer import Answer
    from nsystui.base.selection import Selection
    from nsystui.questions.job.job import OpenJob


def _overview_columns(values: Values) -> Expected:
    from nsystui.questions.gpu.utilisation import columns_read
    from nsystui.questions.ranks.overview import TALLIED

    return columns_read(of_streams=bool(values["streams"])), TALLIED


def _ask_overview(job: OpenJob, selection: Selection, _: object) -> Answer:
    from nsystui.questions.capture.launch_account import with_lost_work
    from nsystui.questions.ranks.overview import task_table

    return with_lost_work(job, selection, task_table(job.session, selection, job.ranks, job.busy(selection)))


def _ask_ranks(job: OpenJob, selection: Selection, options: Values) -> Answer:
    from nsystui.questions.capture.launch_account import with_lost_work
    from nsystui.questions.collectives.waiting import collective_kinds, collective_operations
    from nsystui.questions.ranks.partings import noted
    from nsystui.questions.ranks.table import rank_table

    for option, table in (("collectives", collective_operations), ("kinds", collective_kinds)):
        if options[option]:
            answer = noted(job, table(selection, job.ranks, job.collectives()), options["step_range"])
            return with_lost_work(job, selection, answer)
    facts = job.rank_facts(selection, options["step_range"])
    return with_lost_work(job, selection, rank_table(job.session, selection, job.ranks, facts))


QUESTIONS = (
    Question(
        "overview",
        "one row per rank: GPU busy, NCCL, memory, idle",
        _ask_overview,
        description="""One row per rank: how busy its GPUs were and with what, and how much it did.
Compute is kernels that do not communicate, `exposed` NCCL that no compute hides; `kernels` counts both.
Percentages are of the selected time, or of the time from the job's first event to its last, the same for every rank.
This is the table that `e` exports on the Overview screen.""",
        examples="""  nsystui overview rank*.sqlite
  nsystui overview rank*.sqlite --time 1.2s:1.5s --sort idle_percent --top 5
  nsystui overview results/ --format csv -o ranks.csv""",
        order=20,
        expected=_overview_columns,
        reads=("times", "reports"),
        rows=ShownRows("rank", "overview", "overview"),
    ),
    Question(
        "ranks",
        "the ranks compared: busy time, steps, late arrivals, waiting, outliers",
        _ask_ranks,
        description="""\
One row per rank: busy, compute, NCCL, exposed NCCL and idle time, step time, how often it came last to a collective,
how long it waited for other ranks and they for it, and which of these figures stand out.
Compute is kernels that do not communicate; `wait caused` is how long a typical other rank waited for this one, hidden
by compute or not (the finding `straggler` counts only the exposed part). Collectives are matched across ranks by
communicator and order. The rank with the shortest kernel came last, independent of the clocks.""",
        examples="""  nsystui ranks rank*.sqlite
  nsystui ranks rank*.sqlite --sort wait_caused_ns --top 5
  nsystui ranks rank*.sqlite --collectives --sort late_by_ns --top 20
  nsystui ranks rank*.sqlite --kinds
  nsystui ranks node*.sqlite --ranks 'node\\d+_r(\\d+)' --format csv -o ranks.csv
  nsystui ranks --dask tcp://node1:8786 packed -o ranks.csv""",
        topic="ranks",
        order=50,
        options=(
            Option(
                "collectives",
                "a row for each collective that several ranks have in common: who came last, and by how much",
                one_of="table",
            ),
            Option(
                "kinds",
                "a row for each kind of collective: transfer, waiting, and the rank that is mostly last",
                one_of="table",
            ),
            *STEPS,
        ),
        reads=("whole", "times", "reports"),
        rows=ShownRows("rank", "ranks", "the ranks"),
        views=(
            View("ranks", counted="ranks"),
            View(
                "collective kinds", "kinds of collectives", "kinds", {"kinds": True}, ("waiting", True), label="kinds"
            ),
            View("collectives", "every collective", "collectives", {"collectives": True}, ("start", False)),
        ),
    ),
)
