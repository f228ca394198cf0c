"""Questions about CPUs: threads, sampled functions, the call tree, causes of idle GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsystui.base.errors import UsageError
from nsystui.questions.queries.question import STEPS, Option, Question, ShownRows, Values, View

if TYPE_CHECKING:
    from nsystui.base.answer import Answer
    from nsystui.base.selection import Selection
    from nsystui.questions.job.job import OpenJob


def _read_tree(values: Values) -> dict[str, Any]:
    if values["depth"] is not None and values["depth"] < 1:
        raise UsageError(f"--depth {values['depth']}: at least one level is needed")
    if not 0 <= values["least"] <= 100:
        raise UsageError(f"--least {values['least']:g}: a percentage from 0 to 100")
    return dict(values)


def _read_gaps(values: Values) -> dict[str, Any]:
    if values["least"] is not None and not values["list"]:
        raise UsageError("--least goes with --list")
    return dict(values)


def _ask_gaps(job: OpenJob, selection: Selection, options: Values) -> Answer:
    from nsystui.questions.host.gaps import gaps_list, gaps_table

    if options["list"]:
        min_ms = 1.0 if options["least"] is None else options["least"]
        return gaps_list(job, selection, round(min_ms * 1e6), options["step_range"])
    return gaps_table(job, selection, options["by"], options["step_range"])


def _ask_threads(job: OpenJob, selection: Selection, options: Values) -> Answer:
    from nsystui.questions.host.threads import threads_table

    return threads_table(job, selection)


def _ask_functions(job: OpenJob, selection: Selection, options: Values) -> Answer:
    from nsystui.questions.host.functions import functions_table

    return functions_table(job, selection, options["by"], options["thread"])


def _ask_call_tree(job: OpenJob, selection: Selection, options: Values) -> Answer:
    from nsystui.questions.host.calltree import call_tree_table

    tree = job, selection, options["bottom_up"], options["thread"]
    return call_tree_table(*tree, options["depth"], options["least"], options["hot"])


_THREAD = Option("thread", "only threads with this number, or with this in their name", metavar="TID|NAME", group="")

QUESTIONS = (
    Question(
        "threads",
        "what each CPU thread did, in parts that add up to 100 %",
        _ask_threads,
        description="""\
Where the time of each thread went, in parts that do not overlap and add up to the window: in MPI, CUDA and OS runtime
calls; outside of calls running on a CPU, runnable, or waiting (off CPU, if the export does not say why a thread left
its CPU); not recorded. Also its whole time on CPUs, context switches, migrations, and what it did while the GPUs of its
process were idle. Needs `nsys profile --cpuctxsw=process-tree`; --filter selects threads by name.""",
        examples="""  nsystui threads rank*.sqlite
  nsystui threads rank0.sqlite --time 1.2s:1.5s --format csv""",
        order=172,
        reads=("whole", "times"),
        rows=ShownRows("thread", "host", "threads"),
        views=(View("threads", counted="threads", tables=("sched_events",)),),
    ),
    Question(
        "functions",
        "CPU samples by function and module",
        _ask_functions,
        description="""\
Functions by the CPU samples in the selection: self (the function ran), total (it ran or was a caller). Addresses that
nsys could not resolve count for their module, [libcuda.so.1]; functions of the kernel are marked. Needs
`nsys profile --sample=process-tree`; --filter selects functions by name.""",
        examples="""  nsystui functions rank0.sqlite --time 1.2s:1.5s
  nsystui functions rank*.sqlite --by thread --top 20
  nsystui functions rank0.sqlite --thread pin_memory --sort total""",
        order=174,
        options=(
            Option("by", "what has its own rows (all)", choices=("all", "rank", "role", "thread"), default="all"),
            _THREAD,
        ),
        reads=("whole", "times"),
        needs=(("host_samples",),),
        rows=ShownRows("function", "host", "functions by samples"),
        views=(View("functions", counted="functions", tables=("host_samples",)),),
    ),
    Question(
        "calltree",
        "CPU samples as a tree of calls, top-down or bottom-up",
        _ask_call_tree,
        description="""\
The call tree of the CPU samples in the selection, top-down from the outermost callers, or with --bottom-up from the
functions that ran to their callers. With --filter it begins at the functions with that name: what they call, or with
--bottom-up who calls them. Rows are in tree order, the largest first; the hot path is marked.""",
        examples="""  nsystui calltree rank0.sqlite --depth 12
  nsystui calltree rank0.sqlite --bottom-up --thread pin_memory
  nsystui calltree rank*.sqlite --filter pin_memory --format csv""",
        order=176,
        options=(
            Option("bottom-up", "from the functions that ran to their callers", group=""),
            _THREAD,
            Option("depth", "only the first N levels", metavar="N", kind=int),
            Option(
                "least",
                "leave out what has less than this share of the samples (0.5)",
                metavar="PERCENT",
                kind=float,
                default=0.5,
            ),
            Option("hot", "the hot path alone: from each function to the one with most of its samples"),
        ),
        read=_read_tree,
        reads=("whole", "times"),
        needs=(("host_samples",),),
        rows=ShownRows("function", "host", "call tree"),
        views=(View("call tree", tables=("call_chains", "stack_frames"), screen="call tree"),),
    ),
    Question(
        "gaps",
        "why the GPUs were idle: what the thread that launches did meanwhile",
        _ask_gaps,
        description="""\
All idle time of the GPUs in the selection by cause; the causes add up to the idle time. A cause is what the launching
thread did meanwhile: it was in a CUDA, MPI or OS runtime call, it ran a function (by the nearest CPU sample), another
thread had its CPU, or it waited while another thread of its process ran. Time that was not recorded has its own row.
With --by range, the same time by the innermost NVTX range of the launching thread, each range with its largest cause.
With --by length, a histogram of the idle spans; with --by pair, the idle spans by the operations before and after them.
With --list, each long idle span with its largest cause.""",
        examples="""  nsystui gaps rank*.sqlite --top 20
  nsystui gaps rank0.sqlite --list --time 1.2s:1.5s
  nsystui gaps rank*.sqlite --by rank --format csv
  nsystui gaps rank0.sqlite --by range
  nsystui gaps rank0.sqlite --by length
  nsystui gaps rank0.sqlite --by pair --top 10""",
        order=86,
        options=(
            Option(
                "by",
                "causes of all, causes by rank or role, NVTX ranges of the launching thread, idle spans by length, or "
                "by the operations before and after (all)",
                choices=("all", "rank", "role", "range", "length", "pair"),
                default="all",
            ),
            Option("list", "the single spans", lists=True),
            Option("least", "with --list: spans of at least so many ms (1)", metavar="MS", kind=float),
            *STEPS,
        ),
        read=_read_gaps,
        reads=("whole", "times", "reports"),
        needs=(("kernels", "memory_ops", "graph_launches"),),
        rows=ShownRows("time", "host", "why the GPUs were idle"),
        views=(View("gaps", counted="causes", order=178),),
    ),
)
