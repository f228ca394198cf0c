"""Summaries by name, and single events: kernels, memory operations, NVTX ranges, and calls of the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from nsystui.questions.queries.question import Ask, Option, Question, RowKind, ShownRows, Values, View, steps_in

if TYPE_CHECKING:
    from nsystui.base.answer import Answer, TableAnswer
    from nsystui.base.selection import Selection
    from nsystui.exports.ncu_csv import NcuLaunch
    from nsystui.questions.job.job import OpenJob
    from nsystui.questions.kernels.summary import GroupBy, Names


class _Kernels(NamedTuple):
    names: Names
    groups: tuple[GroupBy, ...]
    instances: str | None
    only: str
    step_range: str | None
    ncu: list[NcuLaunch]


def _read_kernels(values: Values) -> _Kernels:
    from nsystui.questions.kernels.summary import Names, group_by_of, kind_of_kernels

    only = kind_of_kernels(values["only"]) if values["only"] else ""
    groups = group_by_of(values["by"])
    launches = _read_ncu(values["ncu"], groups, values["instances"]) if values["ncu"] else []
    return _Kernels(Names(values["names"]), groups, values["instances"], only, values["step_range"], launches)


def _read_ncu(files: list[str], groups: tuple[GroupBy, ...], instances: str | None) -> list[NcuLaunch]:
    """Return the launches of all files; a file named twice counts once."""
    from pathlib import Path

    from nsystui.base.errors import UsageError
    from nsystui.exports.ncu_csv import read_ncu_csv
    from nsystui.questions.kernels.summary import GroupBy

    if instances or any(group is not GroupBy.SHAPE for group in groups):
        raise UsageError("--ncu works by kernel name, or with --by shape: ncu does not record ranks and streams")
    paths = {path.resolve(): path for path in map(Path, files)}
    return [launch for path in paths.values() for launch in read_ncu_csv(path)]


def _ask_kernels(job: OpenJob, selection: Selection, options: _Kernels) -> Answer:
    from nsystui.questions.capture.launch_account import with_lost_work
    from nsystui.questions.kernels.summary import kernel_instances

    if options.instances:
        return kernel_instances(job.session, selection, options.instances, options.names, job.ranks)
    return with_lost_work(job, selection, _kernel_table(job, selection, options), kept=True)


def _kernel_table(job: OpenJob, selection: Selection, options: _Kernels) -> TableAnswer:
    from nsystui.questions.kernels.summary import GroupBy, kernel_summary

    arguments: dict[str, Any] = {
        "names": options.names,
        "group_by": options.groups,
        "ranks": job.ranks if {GroupBy.RANK, GroupBy.ROLE, GroupBy.GRAPH} & {*options.groups} else (),
        "families": job.families,
        "only": options.only,
    }
    steps = job.steps(options.step_range) if GroupBy.STEP in options.groups else None
    if GroupBy.RANGE in options.groups:
        from nsystui.questions.host.naming import kernels_in_ranges

        return kernels_in_ranges(job, selection, steps, **arguments)
    if steps is not None:
        from nsystui.questions.steps.kernels_in_steps import kernels_in_steps

        return kernels_in_steps(job, selection, steps, **arguments)
    answer = kernel_summary(job.session, selection, **arguments)
    if options.groups == (GroupBy.FAMILY,):
        from nsystui.questions.kernels.families import with_union_times

        return with_union_times(answer, job.session, selection, job.families)
    if options.ncu:
        from nsystui.questions.kernels.ncu_metrics import with_ncu

        return with_ncu(answer, job.session, options.names, options.ncu, GroupBy.SHAPE in options.groups)
    return answer


def _work(name: str) -> Ask:
    """Return a function that summarises a kind of work (see `kernels.activities`) or lists its events."""

    def ask(job: OpenJob, selection: Selection, options: Values) -> Answer:
        from nsystui.questions.kernels import activities
        from nsystui.questions.memory.host_copies import memory_rates

        work = {**activities.WORKS, activities.OVERHEAD.name: activities.OVERHEAD}.get(name, activities.LIBRARIES)
        if options["instances"]:
            return activities.work_instances(job.session, selection, work, options["instances"], job.ranks)
        if options.get("sizes"):
            return activities.memory_sizes(job.session, selection)
        if options.get("rates"):
            return memory_rates(job.session, selection)
        return activities.work_summary(job.session, selection, work)

    return ask


def _examples(name: str) -> str:
    return f"  nsystui {name} rank0.sqlite\n  nsystui {name} rank*.sqlite --ranks 0-3 --time 1s:2s --format json"


_INSTANCES = Option("instances", "the single operations or calls of this name", metavar="NAME", lists=True)


def _view(name: str, *tables: str) -> View:
    return View(name, counted="names", sort=("total", True), tables=tables)


def _calls(
    name: str, subject: str, description: str, order: int, row: RowKind | None = None, label: str = "", **texts: str
) -> Question:
    """Return the question about calls; with ``row``, it also has a table on the screen of kernels."""
    title = texts.get("title", subject)
    return Question(
        name,
        subject,
        _work(row or name),
        description=description,
        examples=texts.get("examples", _examples(name)),
        order=order,
        options=(_INSTANCES,),
        reads=("reports",),
        rows=ShownRows(title=title) if row is None else ShownRows(row, "kernels", title),
        views=() if row is None else (_view(row, f"{row}_calls")._replace(label=label),),
    )


def _ask_nvtx(job: OpenJob, selection: Selection, options: Values) -> Answer:
    from nsystui.questions.nvtx.listing import nvtx_names, nvtx_tree_table
    from nsystui.questions.nvtx.paths import Folding

    if options["summary"]:
        return nvtx_names(job, selection, Folding(options["fold"]))
    return nvtx_tree_table(job.nvtx_tree(selection, options["by"], options["fold"]), options["depth"])


QUESTIONS = (
    Question(
        "kernels",
        "kernel summary, or the launches of one kernel",
        _ask_kernels,
        description="""The kernel summary: the columns and values of `nsys stats -r cuda_gpu_kern_sum`, over all files.
With --instances, every launch of one kernel.""",
        examples="""  nsystui kernels rank0.sqlite
  nsystui kernels rank*.sqlite --names short --by rank --top 20
  nsystui kernels rank*.sqlite --by family,rank
  nsystui kernels rank*.sqlite --by step,family --format csv
  nsystui kernels rank*.sqlite --only attention
  nsystui kernels server.sqlite --by graph
  nsystui kernels server.sqlite --by range
  nsystui kernels server.sqlite --only eager
  nsystui kernels rank*.sqlite --filter '!nccl' --time 1.2s:1.5s --format csv
  nsystui kernels rank0.sqlite --ncu report.csv
  nsystui kernels rank0.sqlite --names short --instances ampere_sgemm_128x64_nn --sort duration_ns --top 10""",
        order=30,
        options=(
            Option(
                "names",
                "which kernel names: smart names keep what distinguishes kernels (files get the full name, too)",
                choices=("smart", "full", "short", "mangled"),
                default="smart",
            ),
            Option(
                "by",
                "also group by rank, device, stream, step, shape (grid and block), separated by commas; with family or "
                "precision, a row has all kernels of it; with graph, all kernels of a CUDA graph, or those launched "
                "one by one (eager); with range, all kernels whose graph was captured, or else that were launched, in "
                "an NVTX range; with step, shares are of each step's kernel time",
                metavar="LIST",
                default="",
            ),
            Option(
                "only",
                "only the kernels of this family or precision, or `replayed` by CUDA graphs, or `eager`",
                metavar="WORD",
                default="",
            ),
            Option("instances", "the launches of the kernel of this name", metavar="NAME", alias="kernel", lists=True),
            *steps_in("table"),
            Option(
                "ncu",
                "after FILE: what Nsight Compute measured of the kernels, from `ncu --import REPORT.ncu-rep --csv "
                "--page raw > FILE.csv` (several files are added up)",
                metavar="CSV",
                has_several=True,
            ),
        ),
        read=_read_kernels,
        reads=("reports",),
        rows=ShownRows("kernel", "kernels", "kernels"),
        views=(
            _view("kernels", "kernels"),
            View(
                "kernels by step",
                values={"by": "step,family"},
                sort=("step", False),
                order=70,
                label="kernels",
                home="steps",
            ),
        ),
    ),
    Question(
        "memory",
        "memory copies and memsets",
        _work("memory"),
        description="""Memory copies and memsets by operation: time, or with --sizes bytes
(as `nsys stats -r cuda_gpu_mem_time_sum`, `cuda_gpu_mem_size_sum`; in bytes where nsys has MB of 1,000,000),
or with --rates bytes per second by the kinds of memory.""",
        examples=f"{_examples('memory')}\n  nsystui memory rank0.sqlite --sizes --format csv\n"
        "  nsystui memory rank0.sqlite --rates",
        order=140,
        options=(
            _INSTANCES,
            Option("sizes", "bytes instead of time", group=""),
            Option("rates", "bytes per second, by the kinds of memory that are copied from and to", group=""),
        ),
        reads=("reports",),
        rows=ShownRows("memory", "kernels", "memory operations"),
        views=(
            _view("memory", "memory_ops"),
            _view("memory sizes")._replace(title="memory sizes", label="sizes", values={"sizes": True}),
            _view("memory rates")._replace(title="memory rates", label="rates", values={"rates": True}),
        ),
    ),
    _calls(
        "api",
        "CUDA API calls",
        """CUDA runtime and driver calls by name, as `nsys stats -r cuda_api_sum`; a call that
--cudabacktrace wrote twice counts once.""",
        150,
        row="api",
        label="API",
        title="API calls",
    ),
    _calls(
        "osrt",
        "OS runtime calls",
        "OS runtime calls by name, as `nsys stats -r osrt_sum`.",
        160,
        row="os",
        label="OS runtime",
    ),
    _calls("mpi", "MPI calls", "MPI calls by name (traced with `nsys profile -t mpi`).", 170, row="mpi", label="MPI"),
    _calls(
        "overhead",
        "the profiler's own work",
        "The profiler's own work in the processes, by activity: time that is not the program's.",
        172,
        title="profiler overhead",
        examples="  nsystui overhead rank0.sqlite",
    ),
    _calls(
        "libraries",
        "cuBLAS and cuDNN calls",
        "cuBLAS and cuDNN calls by name (traced with `nsys profile -t cublas,cudnn`).",
        175,
        title="library calls",
    ),
    Question(
        "nvtx",
        "NVTX ranges as a tree, with their GPU time",
        _ask_nvtx,
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
