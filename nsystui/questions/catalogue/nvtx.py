"""NVTX ranges as a tree, with their GPU time, or by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsystui.questions.queries.question import Option, Question, ShownRows, Values, View

if TYPE_CHECKING:
    from nsystui.base.answer import Answer
    from nsystui.base.selection import Selection
    from nsystui.questions.job.job import OpenJob


def _ask(job: OpenJob, selection: Selection, options: Values) -> Answer:
    from nsystui.questions.nvtx.listing import nvtx_names, nvtx_tree_table
    from nsystui.questions.nvtx.paths import Folding

    if options["summary"]:
        return nvtx_names(job, selection, Folding(options["fold"]))
    return nvtx_tree_table(job.nvtx_tree(selection, options["by"], options["fold"]), options["depth"])


QUESTIONS = (
    Question(
        "nvtx",
        "NVTX ranges as a tree, with their GPU time",
        _ask,
        description="""\
NVTX ranges by path: push/pop ranges nested as they ran on each thread, with instances, wall time, self
time (in which no nested range runs; DurNonChild of nsys) and the GPU time projected from what was launched inside them.
Start/end ranges may overlap anything, so they are not in the tree and have no self time. With --summary, one row for
each name, without the arguments that PyTorch appends (`aten::item, op_id = 557`); `stats -r nvtx_sum` keeps them.
`{'Module': 'layers.3.mlp', 'Inputs': …}` (vLLM) is layers.3.mlp; with --fold all, layers.*.mlp is one row.""",
        examples="""  nsystui nvtx rank0.sqlite --depth 3
  nsystui nvtx rank*.sqlite --by all --filter step
  nsystui nvtx rank0.sqlite --fold all
  nsystui nvtx rank0.sqlite --summary --format csv""",
        order=100,
        options=(
            Option("depth", "only the outermost N levels", metavar="N", kind=int),
            Option(
                "by",
                "what has its own rows (all: nothing)",
                choices=("rank-thread", "rank", "role", "all"),
                default="all",
            ),
            Option(
                "fold",
                "which numbered names share a row (steps: only those that number steps, not layers within each step; "
                "all: also a module of all layers)",
                choices=("steps", "all", "none"),
                default="steps",
            ),
            Option("summary", "by name instead of by path"),
        ),
        reads=("whole", "reports"),
        rows=ShownRows("range", "nvtx", "NVTX ranges"),
        views=(View("nvtx", tables=("nvtx_ranges",), label="tree"),),
    ),
)
