"""Questions about the steps of a job: times, budgets, and the critical path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsystui.questions.queries.question import STEPS, Option, Question, ShownRows, Values, View

if TYPE_CHECKING:
    from nsystui.base.answer import Answer
    from nsystui.base.drawing import Drawing as Shapes
    from nsystui.base.selection import Selection
    from nsystui.questions.job.job import OpenJob


def _time(text: str) -> int:
    from nsystui.base.errors import UsageError
    from nsystui.base.units import parse_duration

    time = parse_duration(text)
    if time <= 0:
        raise UsageError(f"{text}: a time above 0 is needed")
    return time


def _ask_steps(job: OpenJob, selection: Selection, options: Values) -> Answer:
    from dataclasses import replace

    from nsystui.questions.capture.launch_account import lost_work_notes
    from nsystui.questions.queries.data_notes import unrecorded_notes
    from nsystui.questions.queries.tasks import selected_ranks
    from nsystui.questions.ranks.steps import every_step, steps_across_ranks, steps_by_rank

    if options["budget"]:
        from nsystui.questions.blocking.budget import budget_of_each_step

        return budget_of_each_step(job, selection, options["step_range"])
    if options["phases"]:
        from nsystui.questions.blocking.phase_table import budget_of_phases

        return budget_of_phases(job, selection, options["step_range"])
    if options["operations"]:
        from nsystui.questions.blocking.operations import operations_of_steps

        return operations_of_steps(job, selection, options["step_range"])
    steps = job.steps(options["step_range"])
    ranks = selected_ranks(job.ranks, selection)
    table = steps_across_ranks if options["across"] else every_step if options["every"] else steps_by_rank
    answer = table(ranks, steps, selection.window)
    notes = [*answer.notes, *unrecorded_notes(job.session, ranks), *lost_work_notes(job.session, selection)]
    if options["unprofiled"] is not None:
        from nsystui.questions.blocking.budget import unprofiled_note

        notes.append(unprofiled_note(job, selection, options["unprofiled"], options["step_range"]))
    return replace(answer, notes=tuple(filter(None, notes)))


def _draw_steps(job: OpenJob, selection: Selection, options: Values) -> Shapes | None:
    """Draw the times of all steps, whichever table is asked for."""
    from nsystui.questions.report.drawings import step_lanes

    tables = dict.fromkeys(("across", "budget", "phases", "operations"), False)
    return step_lanes(_ask_steps(job, selection, {**options, **tables, "every": True}))


def _ask_path(job: OpenJob, selection: Selection, options: Values) -> Answer:
    from nsystui.questions.blocking.path import path_table

    return path_table(job, selection, options["by"], options["step"], options["step_range"])


QUESTIONS = (
    Question(
        "steps",
        "training steps by rank, across ranks, or one by one",
        _ask_steps,
        description="""\
How long the training steps took on the GPU: a row per rank with median, p5, p95, CV and slow steps.
Steps are NVTX ranges (`step 7`, `train_step`) that repeat and launch most of the GPU's work.
Without them, steps are found by repetition in the GPU's work: the optimizer's kernels, collectives, one CUDA
graph, any operation.

With --budget, what the time of each step went to, and what blocked the GPU; with --phases, the same of the prefill and
decode steps of an inference server: see `nsystui help path`.""",
        examples="""  nsystui steps rank*.sqlite
  nsystui steps rank*.sqlite --across --sort spread_ns --top 10
  nsystui steps rank0.sqlite --every --format csv -o steps.csv
  nsystui steps rank*.sqlite --step-range '^iteration (\\d+)'
  nsystui steps rank*.sqlite --steps-by optimizer
  nsystui steps server.sqlite --phases""",
        topic="ranks",
        order=60,
        options=(
            Option(
                "across", "a row for each step number: its time over the ranks, and the slowest rank", one_of="table"
            ),
            Option("every", "a row for each step of each rank", one_of="table"),
            Option(
                "budget",
                "a row for each step of each GPU, with what its time went to and what blocked it",
                one_of="table",
            ),
            Option(
                "phases",
                "a row for each phase of inference (prefill, decode, mixed): its steps, what their time went to, and "
                "whether the host bounds them",
                one_of="table",
            ),
            Option(
                "operations",
                "a row for each NVTX range name: its time on the GPU and the CPU in a step",
                one_of="table",
            ),
            Option(
                "unprofiled",
                "the time of a step without the profiler, such as 29.1ms: a note compares it with the steps here",
                metavar="TIME",
                kind=_time,
                group="",
            ),
            *STEPS,
        ),
        drawing=_draw_steps,
        reads=("whole", "times", "reports"),
        rows=ShownRows("step", "steps", "steps"),
        views=(
            View("steps", counted="steps", values={"budget": True}),
            View("steps by rank", "steps by rank", label="by rank"),
            View("steps across", "steps across ranks", "steps", {"across": True}, ("step", False), label="across"),
            View("operations", "operations of a step", "ranges", {"operations": True}, order=65),
            View("steps by phase", "steps by phase", "phases", {"phases": True}, order=71, label="phases"),
        ),
    ),
    Question(
        "path",
        "the critical path of a step: what its time went to, and what each part waited for",
        _ask_path,
        description="""\
What the time of one step went to, walked back from its end: from an operation of the GPU to the operation that it
waited for, or to the call that launched it; from a CPU call to what its thread did before, or to the operation
that the thread waited for; out of a collective to the rank that came last. The pieces add up to the step exactly.
Without --step it is the step whose time is nearest to the median; with --time, that time.""",
        examples="""  nsystui path rank*.sqlite
  nsystui path rank*.sqlite --by range
  nsystui path rank0.sqlite --step 5 --by piece --format csv -o path.csv""",
        topic="path",
        order=62,
        options=(
            Option(
                "by",
                "a row for each kernel, call or copy (default), kind, NVTX range, rank, or piece in order",
                choices=("name", "kind", "range", "rank", "role", "piece"),
                default="name",
            ),
            Option("step", "the step with this number", metavar="N", kind=int),
            *STEPS,
        ),
        reads=("whole", "times"),
        rows=ShownRows("event", "steps", "critical path"),
    ),
)
