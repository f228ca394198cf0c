"""8 Host: CPU threads' activity, by thread, by function and as a call tree, and causes of gaps."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from textual.widget import Widget

from nsystui.base.answer import Answer, Record, Row
from nsystui.base.kernel_names import function_name
from nsystui.base.selection import Selection, Task
from nsystui.questions.host import causes
from nsystui.questions.host.calltree import CALL, COLUMNS, HOT, LEAST, CallTree, nodes_table, tree_of
from nsystui.questions.host.functions import (
    FULL_NAME,
    KERNEL_MODE,
    MODULE,
    PATH,
    CpuSamples,
    functions_table,
    mode_of,
    sampling_notes,
)
from nsystui.questions.host.gaps import parts_of_row
from nsystui.questions.host.threads import COLUMNS as THREAD_COLUMNS
from nsystui.questions.host.threads import thread_over_time
from nsystui.questions.job.job import OpenJob
from nsystui.ui.screens.outline import Outline, OutlineLayout, OutlineScreen
from nsystui.ui.screens.table import GroupedViewsScreen, TableScreen
from nsystui.ui.widgets.frame import Choice
from nsystui.ui.widgets.panels import Details
from nsystui.ui.widgets.repainting import in_background
from nsystui.ui.widgets.strip_chart import Lane, StillChart

_VIEWS = ("functions", "call tree")
"""The views of a thread."""
_CATEGORIES = {
    **dict.fromkeys((causes.SYNCHRONISING, causes.COPYING, causes.ALLOCATING, causes.LAUNCHING), "api"),
    **dict.fromkeys((causes.OTHER_CALLS, causes.IN_OVERHEAD), "api"),
    **dict.fromkeys((causes.IN_MPI, causes.IN_OS), "os"),
    **dict.fromkeys((causes.RUNNING_CODE, causes.WAITING, causes.PREEMPTED), "cpu"),
    **dict.fromkeys((causes.GIL, causes.IN_HOST_FUNCTION), "cpu"),
    **dict.fromkeys((causes.OFF_CPU, causes.NOTHING), "idle"),
}
"""The categories of causes of idle time."""
_CELLS = {"running_percent": "cpu", "cuda_percent": "api", "os_percent": "os", "mpi_percent": "os"}
_LABELS = {column.key: column.label for column in THREAD_COLUMNS}
_IMPORTANCE = {"total_percent": 0, "total": 1, "own_percent": 2, "own": 3}
_BY: Mapping[str, tuple[tuple[str, Mapping[str, Any]], ...]] = {
    "functions": tuple((group, {"by": group}) for group in ("all", "rank", "role", "thread")),
    "gaps": (
        ("cause", {"by": "all"}),
        ("rank and cause", {"by": "rank"}),
        ("role and cause", {"by": "role"}),
        ("NVTX range", {"by": "range"}),
        ("gap", {"list": True}),
        ("length", {"by": "length"}),
        ("operations", {"by": "pair"}),
    ),
}
_GAP_LIST = [group for group, _ in _BY["gaps"]].index("gap")


@dataclass(frozen=True)
class SampledThreads:
    """A thread (by its system's number), or some tasks' threads, with CPU samples."""

    tasks: frozenset[Task]
    tid: int | None
    words: str

    @property
    def thread(self) -> str | None:
        """The value of the questions' option ``thread``."""
        return None if self.tid is None else str(self.tid)


class SampledScreen(TableScreen):
    """A table of functions."""

    BAR_CATEGORY = "cpu"

    def row_category(self, values: Record) -> str | None:
        """Return the category of functions in the operating system's kernel."""
        return "os" if values.get("mode") else None

    def row_details(self) -> Details:
        details, values = super().row_details(), self.values()
        name = values.get("full_name")
        if not isinstance(name, str) or not details:
            return details
        mode = ["in the kernel"] if values.get("mode") else []
        return [[name], [f"in {values['module_path']}", *mode], *details[1:]]

    def open_callers(self, threads: SampledThreads | None) -> None:
        name = self.values().get("full_name")
        if isinstance(name, str):
            self.lay_over(PartialCallTreeScreen(threads, name))


class HostScreen(SampledScreen, GroupedViewsScreen):
    """Threads, functions and gaps; the call tree has its own screen."""

    SCREEN = "host"
    MODE_KEY = "8"
    PLACES = ("host", "table", "everywhere")
    BY = _BY

    def show(self, result: Any, same_place: bool) -> None:
        view, answer = result
        self.table.elastic = {"thread": "thread", "function": "function", "time": "what"}.get(view.question.rows.kind)
        self.table.cell_styles = lambda values: {key: part for key, part in _CELLS.items() if values.get(key)}
        super().show(result, same_place)
        self.chart.display &= view.question.rows.kind == "thread" and len(answer) > 0

    def body(self) -> Iterable[Widget]:
        around, notes = super().body()
        self.chart = StillChart(label_width=24, value_width=0, id="chart")
        yield from (around, self.chart, notes)

    @in_background("chart")
    async def cursor_rests(self) -> None:
        """Draw the time of the thread under the cursor, if the table leaves enough lines."""
        super().cursor_rests()
        job, selection, threads, name = self.job, self.selection, self.threads(), str(self.values().get("thread"))
        if job is None or threads is None or threads.tid is None or self.answered.question.rows.kind != "thread":
            return
        rows, columns = self.chart.fit_lines(self.free_lines), self.chart.chart_width
        if not rows:
            return
        (task,) = threads.tasks
        window, parts = await to_thread(thread_over_time, job, selection, task, threads.tid, columns)
        shown = [part for part, shares in parts.items() if part != "unknown" and shares.any()]
        colours = {part: _CELLS.get(f"{part}_percent", "idle") for part in shown}
        stack = tuple((colour, parts[part].tolist()) for part, colour in colours.items())
        notes = tuple((colour, f"{_LABELS[part]} {100 * parts[part].mean():.1f} %") for part, colour in colours.items())
        lanes = [Lane(name, (), stack=stack, height=rows, notes=notes)] if shown else []
        self.chart.set_lanes(lanes, window.start, window.end if shown else window.start)

    def counted(self) -> str:
        return "gaps" if self._is_list else super().counted()

    @property
    def _is_list(self) -> bool:
        return self.view.name == "gaps" and self.grouping.get("gaps") == _GAP_LIST

    def row_category(self, values: Record) -> str | None:
        return _CATEGORIES.get(str(values.get("cause"))) or super().row_category(values)

    def threads(self) -> SampledThreads | None:
        """Return the thread or the rank of the cursor's row; ``None`` for a row of all ranks."""
        values, job = self.values(), self.job
        report, process, rank, tid = (values.get(key) for key in ("report", "process", "rank", "tid"))
        if isinstance(report, int) and isinstance(process, int):
            tasks = frozenset({Task(report, process)})
        elif isinstance(rank, int) and job is not None:
            tasks = job.tasks_of_ranks(frozenset({rank}))
        else:
            return None
        words = ([f"rank {rank}"] if rank is not None else []) + ([f"{values['thread']} {tid}"] if tid else [])
        return SampledThreads(tasks, tid if isinstance(tid, int) else None, " ".join(words))

    def open_row(self) -> None:
        """Open a function's callers, a thread's functions, a gap on the timeline, or the list of gaps."""
        if not self.values():
            return
        row = self.answered.question.rows.kind
        if row == "function":
            self.open_callers(self.threads())
        elif row == "thread":
            threads = self.threads()
            if threads is not None and self.values().get("samples"):
                self.lay_over(ThreadFunctionsScreen(threads))
            elif threads is not None:
                self.say("no CPU sample of this thread: record with `nsys profile --sample=process-tree`")
        elif self._is_list:
            self.app.call_later(self._show_gap)
        elif row == "time":
            self.explorer.remember()
            self.group_by(_GAP_LIST)

    async def _show_gap(self) -> None:
        rank = self.values().get("rank")
        await self.action_timeline()
        if isinstance(rank, int):
            self.explorer.screen.open_rank(rank)  # type: ignore[attr-defined]

    def open_call_tree(self, task: Task, tid: int) -> None:
        """Open the call tree of a thread, from another screen."""
        self.lay_over(PartialCallTreeScreen(SampledThreads(frozenset({task}), tid, f"thread {tid}")))

    def row_details(self) -> Details:
        details, values = super().row_details(), self.values()
        cause, what, thread = (values.get(key) for key in ("cause", "what", "thread"))
        if not isinstance(cause, str) or not details:
            return details
        words = f"{cause}: {what}" if what else cause
        if values.get("range") and not self._is_list:
            words = f"{values['range']} · {words}"
        return [[f"{words} on {thread}" if thread else words], *details[1:]]

    def details_question(self) -> Callable[[OpenJob], Details] | None:
        if self.view.name != "gaps" or self._is_list or "cause" not in (values := self.values()):
            return None
        details, selection = self.row_details(), self.selection
        return lambda job: [details[0], *filter(any, [[parts_of_row(job, selection, values)]]), *details[1:]]


class ThreadFunctionsScreen(SampledScreen):
    """The functions of a thread."""

    COUNTED = "functions"
    MODE_KEY = "8"
    PLACES = ("host", "table", "everywhere")
    ELASTIC = "function"

    def __init__(self, threads: SampledThreads) -> None:
        super().__init__(threads.words, "functions")
        self.threads = threads

    def ask(self, job: OpenJob, selection: Selection) -> Answer:
        return functions_table(job, selection.with_tasks(self.threads.tasks), "all", self.threads.thread)

    def open_row(self) -> None:
        self.open_callers(self.threads)

    def choices(self) -> tuple[Choice, ...]:
        return (Choice("view", _VIEWS, 0, lambda _: self.app.switch_screen(PartialCallTreeScreen(self.threads))),)


@dataclass(frozen=True)
class CallNode:
    """A node of a call tree, with its number there and its number of children."""

    id: int
    child_count: int


@dataclass(frozen=True, eq=False)
class CallNodes:
    """A call tree as nodes that open; children with few samples follow only on request."""

    calls: CallTree
    hot: frozenset[int]
    is_bottom_up: bool

    def __len__(self) -> int:
        return self.calls.nodes

    def node(self, number: int) -> CallNode:
        return CallNode(number, len(self.calls.below(number)))

    def roots(self, order: str) -> Sequence[CallNode]:
        return [self.node(number) for number in self._sorted(0, order)]

    def children(self, node: CallNode, offset: int, limit: int, order: str) -> Sequence[CallNode]:
        """Return the children of a node, with small nodes last."""
        sorted_children = self._sorted(node.id, order)
        if not offset:
            limit = min(limit, self.large_children(node.id) or limit)
        return [self.node(number) for number in sorted_children[offset : offset + limit]]

    def large_children(self, number: int) -> int:
        """Count the children of a node that are not small."""
        return sum(not self._is_small(child) for child in self.calls.below(number))

    def ancestors(self, node: CallNode) -> Sequence[int]:
        return self.calls.above(node.id)

    def find_all(self, before: CallNodes, numbers: Iterable[int]) -> set[int]:
        """Find nodes of a previous tree by functions and callers, if both trees have the same direction."""
        return self.calls.find_all(before.calls, numbers) if before.is_bottom_up == self.is_bottom_up else set()

    def _is_small(self, number: int) -> bool:
        return bool(100 * self.calls.total[number] < LEAST * self.calls.samples)

    def _sorted(self, number: int, order: str) -> list[int]:
        """Sort a node's children, names ascending, small nodes last."""

        def sort_key(node: int) -> tuple[bool, Any]:
            is_own = order in ("own", "own_percent")
            name = getattr(self.calls.function(node), _NAMES[order]) if order in _NAMES else 0
            # The tree sorts by total.
            return self._is_small(node), -int(self.calls.self_samples[node]) if is_own else name

        return sorted(self.calls.below(number), key=sort_key)

    def name(self, number: int) -> str:
        return function_name(self.calls.function(number).name)

    def row(self, node: CallNode) -> Row:
        """Return the values of a node: shares (%) and counts of samples, and its function."""
        calls, number = self.calls, node.id
        function, samples = calls.function(number), calls.samples
        total, self_samples = int(calls.total[number]), int(calls.self_samples[number])
        return (
            *(self.name(number), 100.0 * total / samples, total, 100.0 * self_samples / samples, self_samples),
            *("◂" if number in self.hot else "", function.library, mode_of(function), function.name, function.module),
        )


_NAMES = {"call": "name", "module": "library", "mode": "is_kernel"}
_BY_KEY = {column.key: column for column in COLUMNS}
_SHARES = (_BY_KEY[key].with_importance(rank) for key, rank in _IMPORTANCE.items())
TREE_COLUMNS = (CALL, *_SHARES, HOT.with_importance(2), MODULE, KERNEL_MODE.with_importance(3), FULL_NAME, PATH)


class CallTreeScreen(OutlineScreen[CallNode], SampledScreen):
    """The call tree of all samples in the selection."""

    PARAMETERS = ("is_bottom_up",)
    COUNTED = "nodes"
    MODE_KEY = "8"
    SCREEN = "call tree"
    PLACES = ("call tree", "table", "everywhere")
    ASCENDING = ("call", "module", "mode")
    ELASTIC = "call"
    WAYS = ("top-down", "bottom-up")

    threads: SampledThreads | None = None
    function: str | None = None
    is_bottom_up = False
    nodes: CallNodes | None = None
    _sampling: tuple[str, ...] = ()

    def ask(self, job: OpenJob, selection: Selection) -> tuple[CallNodes, CpuSamples, tuple[str, ...]]:
        thread = None if self.threads is None else self.threads.thread
        selected = selection if self.threads is None else selection.with_tasks(self.threads.tasks)
        samples, calls = tree_of(job, selected, self.is_bottom_up, thread, self.function)
        nodes = CallNodes(calls, frozenset(calls.hot_path()), self.is_bottom_up)
        return nodes, samples, sampling_notes(job.session, samples)

    def show(self, result: Any, same_place: bool) -> None:
        """Show the tree with the previously open nodes, or the path of most samples."""
        self.nodes, samples, self._sampling = result
        no_function = "no sample in the selection has such a function: Esc goes back"
        self.table.empty_text = no_function if len(samples) else "\n".join(self._sampling)
        nodes = self.nodes
        layout = OutlineLayout(
            "calltree",
            TREE_COLUMNS,
            nodes.row,
            {column.key: column.key for column in TREE_COLUMNS},
            lambda node, count: f"… {count:,} more below {nodes.name(node.id)}",
            lambda node: nodes.large_children(node.id) != 1,  # a chain of calls, which may be deep, has one indent
        )
        opened = self.opened_in(nodes) or set(nodes.hot)
        self.show_outline(Outline(nodes, layout, self._order_key, len(nodes), self._sampling, opened))

    def row_category(self, values: Record) -> str | None:
        """Return the category of the path of most samples."""
        return super().row_category(values) or ("cpu" if values.get("hot") else None)

    def label_of(self, node: CallNode) -> str:
        return self.nodes.name(node.id) if self.nodes is not None else ""

    def answer_to_export(self) -> Answer | None:
        """Return the tree as ``nsystui calltree`` prints it: all nodes except the smallest, open or not."""
        return None if self.nodes is None else nodes_table(self.nodes.calls, self._sampling)

    def choices(self) -> tuple[Choice, ...]:
        by = Choice("by", self.WAYS, int(self.is_bottom_up), lambda index: self.ask_with(is_bottom_up=bool(index)))
        return (*super().choices(), by)

    def action_callers(self) -> None:
        self.open_callers(self.threads)


class PartialCallTreeScreen(CallTreeScreen):
    """The call tree of a thread, a rank, or a function (its callers or callees)."""

    SCREEN = ""

    def __init__(self, threads: SampledThreads | None, function: str | None = None) -> None:
        words = [] if threads is None else [threads.words]
        super().__init__(*words, "call tree" if function is None else function_name(function))
        self.threads, self.function, self.is_bottom_up = threads, function, function is not None
        if function is not None:
            self.WAYS = ("callees", "callers")

    def choices(self) -> tuple[Choice, ...]:
        threads, choices = self.threads, super().choices()
        if threads is None or self.function is not None:
            return choices
        return (Choice("view", _VIEWS, 1, lambda _: self.app.switch_screen(ThreadFunctionsScreen(threads))), *choices)
