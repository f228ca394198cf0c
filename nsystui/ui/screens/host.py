"""8 Host: what the CPU threads did, by thread, by function and as a tree of calls."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from textual.widget import Widget

from nsystui.base.answer import Answer, Record, Row
from nsystui.base.kernel_names import function_name
from nsystui.base.selection import Selection, Task
from nsystui.questions.host.calltree import CALL, COLUMNS, HOT, LEAST, CallTree, nodes_table, tree_of
from nsystui.questions.host.causes import (
    ALLOCATING,
    COPYING,
    GIL,
    IN_MPI,
    IN_OS,
    LAUNCHING,
    NOTHING,
    OFF_CPU,
    OTHER_CALLS,
    PREEMPTED,
    RUNNING_CODE,
    SYNCHRONISING,
    WAITING,
)
from nsystui.questions.host.functions import (
    FULL_NAME,
    KERNEL_MODE,
    MODULE,
    PATH,
    CpuSamples,
    functions_table,
    mode_of,
    samples_of_job,
    samples_words,
    sampling_notes,
)
from nsystui.questions.host.gaps import parts_of_row
from nsystui.questions.host.threads import COLUMNS as THREAD_COLUMNS
from nsystui.questions.host.threads import thread_over_time
from nsystui.questions.job.job import OpenJob
from nsystui.ui.pictures.details import Details
from nsystui.ui.screens.outline import Outline, OutlineLayout, OutlineScreen
from nsystui.ui.screens.table import GroupedViewsScreen, TableScreen
from nsystui.ui.widgets.frame import Choice
from nsystui.ui.widgets.repainting import in_background
from nsystui.ui.widgets.strip_chart import Lane, StillChart

_OF_THREAD = ("functions", "call tree")
"""The views of one thread."""
_GAPS = 3
"""The place of the single gaps among their groupings."""
_CATEGORIES = {
    **dict.fromkeys((SYNCHRONISING, COPYING, ALLOCATING, LAUNCHING, OTHER_CALLS), "api"),
    **dict.fromkeys((IN_MPI, IN_OS), "os"),
    **dict.fromkeys((RUNNING_CODE, WAITING, PREEMPTED, GIL), "cpu"),
    **dict.fromkeys((OFF_CPU, NOTHING), "idle"),
}
"""The colours of causes of idle time."""
_CELLS = {"running_percent": "cpu", "cuda_percent": "api", "os_percent": "os", "mpi_percent": "os"}
_LABELS = {column.key: column.label for column in THREAD_COLUMNS}
_IMPORTANCE = {"total_percent": 0, "total": 1, "own_percent": 2, "own": 3}
_BY: Mapping[str, tuple[tuple[str, Mapping[str, Any]], ...]] = {
    "functions": (("all", {"by": "all"}), ("rank", {"by": "rank"}), ("thread", {"by": "thread"})),
    "gaps": (
        ("cause", {"by": "all"}),
        ("rank and cause", {"by": "rank"}),
        ("NVTX range", {"by": "range"}),
        ("gap", {"list": True}),
        ("length", {"by": "length"}),
        ("operations", {"by": "pair"}),
    ),
}


@dataclass(frozen=True)
class Whose:
    """A thread (by its system's number) or all threads of some tasks, whose samples alone are shown."""

    tasks: frozenset[Task]
    tid: int | None
    words: str

    def selected(self, selection: Selection) -> Selection:
        """A selection without other processes."""
        return selection.with_tasks(self.tasks)

    @property
    def thread(self) -> str | None:
        """The value of the questions' option."""
        return None if self.tid is None else str(self.tid)


def _samples_count(samples: CpuSamples | None) -> str:
    """`` · 26,136 samples, every 0.10 ms``; empty without samples."""
    if samples is None or not len(samples):
        return ""
    period = samples.period
    every = "" if period is None else f", every {period / 1e6:.2f} ms"
    return f" · {len(samples):,} samples{every}"


class SampledScreen(TableScreen):
    """A table with the number of CPU samples and their period at the right of its count."""

    BAR_CATEGORY = "cpu"
    samples: CpuSamples | None = None

    def counted(self) -> str:
        """The word for the rows, and the number of samples."""
        return super().counted() + _samples_count(self.samples)

    def row_category(self, values: Record) -> str | None:
        """Functions of the operating system have its colour."""
        return "os" if values.get("mode") else None

    def shown_notes(self, notes: Sequence[str]) -> Sequence[str]:
        """The notes below the rows: the count of the samples is above them."""
        return notes if self.samples is None else [note for note in notes if note != samples_words(self.samples)]

    def row_details(self) -> Details:
        """Of a function its full name and its module first."""
        own, values = super().row_details(), self.values()
        name = values.get("full_name")
        if not isinstance(name, str) or not own:
            return own
        mode = ["in the kernel"] if values.get("mode") else []
        return [[name], [f"in {values['module_path']}", *mode], *own[1:]]

    def open_callers(self, whose: Whose | None) -> None:
        """Open the callers of the function under the cursor."""
        name = self.values().get("full_name")
        if isinstance(name, str):
            self.lay_over(PartialCallTreeScreen(whose, name))


class HostScreen(SampledScreen, GroupedViewsScreen):
    """Threads, functions and gaps; the call tree is a screen beside it."""

    HOME = SCREEN = "host"
    MODE_KEY = "8"
    PLACES = ("host", "table", "everywhere")
    BY = _BY

    def ask(self, job: OpenJob, selection: Selection) -> Any:
        """Answer the view's question, and count the samples where rows are of them."""
        samples = samples_of_job(job, selection) if self.view.question.row in ("thread", "function") else None
        return super().ask(job, selection), samples

    def show(self, result: Any, same_place: bool) -> None:
        """Show the view in its colours."""
        (view, answer), self.samples = result
        self.table.elastic = {"thread": "thread", "function": "function", "time": "what"}.get(view.question.row)
        self.table.cell_styles = lambda values: {key: part for key, part in _CELLS.items() if values.get(key)}
        super().show((view, answer), same_place)
        self.chart.display &= view.question.row == "thread" and len(answer) > 0
        if len(answer):
            self.notes.show_notes(self.shown_notes(answer.notes))

    def body(self) -> Iterable[Widget]:
        """Compose the time of one thread between the table and the notes."""
        around, notes = super().body()
        self.chart = StillChart(label_width=24, value_width=0, id="chart")
        yield from (around, self.chart, notes)

    @in_background("chart")
    async def cursor_rests(self) -> None:
        """Draw what the thread under the cursor did over time, where the table leaves room for that."""
        super().cursor_rests()
        job, selection, whose, name = self.job, self.selection, self.whose(), str(self.values().get("thread"))
        if job is None or whose is None or whose.tid is None or self.answered.question.row != "thread":
            return
        rows, columns = self.chart.fit_lines(self.free_lines), self.chart.chart_width
        if not rows:
            return
        (task,) = whose.tasks
        window, parts = await to_thread(thread_over_time, job, selection, task, whose.tid, columns)
        seen = [part for part, shares in parts.items() if part != "unknown" and shares.any()]
        colours = {part: _CELLS.get(f"{part}_percent", "idle") for part in seen}
        stack = tuple((colour, parts[part].tolist()) for part, colour in colours.items())
        notes = tuple((own, f"{_LABELS[part]} {100 * parts[part].mean():.1f} %") for part, own in colours.items())
        lanes = [Lane(name, (), stack=stack, height=rows, notes=notes)] if seen else []
        self.chart.set_lanes(lanes, window.start, window.end if seen else window.start)

    def counted(self) -> str:
        """The word for the rows: single gaps, or those of the view."""
        return "gaps" if self._is_list else super().counted()

    @property
    def _is_list(self) -> bool:
        return self.view.name == "gaps" and self.grouping.get("gaps") == _GAPS

    def row_category(self, values: Record) -> str | None:
        """The colour of a cause of idle time."""
        return _CATEGORIES.get(str(values.get("cause"))) or super().row_category(values)

    def whose(self) -> Whose | None:
        """The thread or the rank of the cursor's row; ``None`` of a row of all."""
        values, job = self.values(), self.job
        report, process, rank, tid = (values.get(key) for key in ("report", "process", "rank", "tid"))
        if isinstance(report, int) and isinstance(process, int):
            tasks = frozenset({Task(report, process)})
        elif isinstance(rank, int) and job is not None:
            tasks = job.tasks_of_ranks(frozenset({rank}))
        else:
            return None
        words = ([f"rank {rank}"] if rank is not None else []) + ([f"{values['thread']} {tid}"] if tid else [])
        return Whose(tasks, tid if isinstance(tid, int) else None, " ".join(words))

    def open_row(self) -> None:
        """Open callers, functions of a thread, a gap, or the rows of the next grouping."""
        if not self.values():
            return
        row = self.answered.question.row
        if row == "function":
            self.open_callers(self.whose())
        elif row == "thread":
            whose = self.whose()
            if whose is not None and self.values().get("samples"):
                self.lay_over(ThreadFunctionsScreen(whose))
            elif whose is not None:
                self.say("no CPU sample of this thread: record with `nsys profile --sample=process-tree`")
        elif self._is_list:
            self.app.call_later(self._show_gap)
        elif row == "time":
            self.explorer.remember()
            self.group_by(_GAPS)

    async def _show_gap(self) -> None:
        """Shows the gap under the cursor on the timeline, its rank opened."""
        rank = self.values().get("rank")
        await self.action_timeline()
        if isinstance(rank, int):
            self.explorer.screen.open_rank(rank)  # type: ignore[attr-defined]

    def open_call_tree(self, task: Task, tid: int) -> None:
        """Opens the call tree of a thread, from another screen."""
        self.lay_over(PartialCallTreeScreen(Whose(frozenset({task}), tid, f"thread {tid}")))

    def row_details(self) -> Details:
        """Of a cause of idle time all of its words first."""
        own, values = super().row_details(), self.values()
        cause, what, thread = (values.get(key) for key in ("cause", "what", "thread"))
        if not isinstance(cause, str) or not own:
            return own
        words = f"{cause}: {what}" if what else cause
        if values.get("range") and not self._is_list:
            words = f"{values['range']} · {words}"
        return [[f"{words} on {thread}" if thread else words], *own[1:]]

    def details_question(self) -> Callable[[OpenJob], Details] | None:
        """Of a cause of idle time its NVTX ranges, of a range its causes."""
        if self.view.name != "gaps" or self._is_list or "cause" not in (values := self.values()):
            return None
        own, selection = self.row_details(), self.selection
        return lambda job: [own[0], *filter(any, [[parts_of_row(job, selection, values)]]), *own[1:]]


class ThreadFunctionsScreen(SampledScreen):
    """The functions of one thread."""

    COUNTED = "functions"
    MODE_KEY = "8"
    PLACES = ("host", "table", "everywhere")
    ELASTIC = "function"

    def __init__(self, whose: Whose) -> None:
        super().__init__(whose.words, "functions")
        self.whose = whose

    def ask(self, job: OpenJob, selection: Selection) -> Answer:
        """Count the samples of the thread by function."""
        own = self.whose.selected(selection)
        self.samples = samples_of_job(job, own)
        return functions_table(job, own, "all", self.whose.thread)

    def show(self, result: Any, same_place: bool) -> None:
        """Show the functions, the count of samples above them."""
        super().show(result, same_place)
        self.notes.show_notes(self.shown_notes(result.notes))

    def open_row(self) -> None:
        """Open the callers of the function in this thread."""
        self.open_callers(self.whose)

    def choices(self) -> tuple[Choice, ...]:
        """Offer the call tree of the thread in place of its functions."""
        return (Choice("view", _OF_THREAD, 0, lambda _: self.app.switch_screen(PartialCallTreeScreen(self.whose))),)


@dataclass(frozen=True)
class CallNode:
    """A node of a call tree: its number there, and how many functions are right below it."""

    id: int
    child_count: int


@dataclass(frozen=True, eq=False)
class CallNodes:
    """A call tree as nodes that open. Of those below a node the ones with so few samples follow when asked for."""

    calls: CallTree
    hot: frozenset[int]
    is_bottom_up: bool

    def __len__(self) -> int:
        """The number of nodes that have samples."""
        return self.calls.nodes

    def node(self, number: int) -> CallNode:
        """A node by its number."""
        return CallNode(number, len(self.calls.below(number)))

    def roots(self, order: str) -> Sequence[CallNode]:
        """The outermost functions, in an order."""
        return [self.node(number) for number in self._sorted(0, order)]

    def children(self, node: CallNode, offset: int, limit: int, order: str) -> Sequence[CallNode]:
        """The functions right below one, those of hardly any samples last."""
        below = self._sorted(node.id, order)
        if not offset:
            limit = min(limit, self.many(node.id) or limit)
        return [self.node(number) for number in below[offset : offset + limit]]

    def many(self, number: int) -> int:
        """How many right below a node are no small change."""
        return sum(not self._is_small(below) for below in self.calls.below(number))

    def ancestors(self, node: CallNode) -> Sequence[int]:
        """The numbers of the nodes above one."""
        return self.calls.above(node.id)

    def find_all(self, before: CallNodes, numbers: Iterable[int]) -> set[int]:
        """The nodes with the same functions and callers as some of a tree before, which goes in the same direction."""
        return self.calls.find_all(before.calls, numbers) if before.is_bottom_up == self.is_bottom_up else set()

    def _is_small(self, number: int) -> bool:
        return bool(100 * self.calls.total[number] < LEAST * self.calls.samples)

    def _sorted(self, number: int, order: str) -> list[int]:
        """The nodes below one by a column, names ascending; small ones behind the others."""

        def place(below: int) -> tuple[bool, Any]:
            if order in ("own", "own_percent"):
                return self._is_small(below), -int(self.calls.own[below])
            if order in _NAMES:
                return self._is_small(below), getattr(self.calls.function(below), _NAMES[order])
            return self._is_small(below), 0  # they come by total

        return sorted(self.calls.below(number), key=place)

    def name(self, number: int) -> str:
        return function_name(self.calls.function(number).name)

    def row(self, node: CallNode) -> Row:
        """The values of a node: shares (%) and counts of samples, and its function."""
        calls, number = self.calls, node.id
        function, whole = calls.function(number), calls.samples
        total, own = int(calls.total[number]), int(calls.own[number])
        return (
            *(self.name(number), 100.0 * total / whole, total, 100.0 * own / whole, own),
            *("◂" if number in self.hot else "", function.library, mode_of(function), function.name, function.module),
        )


_NAMES = {"call": "name", "module": "library", "mode": "is_kernel"}
_BY_KEY = {column.key: column for column in COLUMNS}
TREE_COLUMNS = (
    CALL,
    *(_BY_KEY[key].with_importance(rank) for key, rank in _IMPORTANCE.items()),
    HOT.with_importance(2),
    MODULE,
    KERNEL_MODE.with_importance(3),
    FULL_NAME,
    PATH,
)


class CallTreeScreen(OutlineScreen[CallNode], SampledScreen):
    """The call tree of all samples in the selection."""

    PARAMETERS = ("is_bottom_up",)
    COUNTED = "nodes"
    MODE_KEY = "8"
    SCREEN = "call tree"
    PLACES = ("call tree", "table", "everywhere")
    STATE = (*OutlineScreen.STATE, "is_bottom_up")
    ASCENDING = ("call", "module", "mode")
    ELASTIC = "call"
    WAYS = ("top-down", "bottom-up")

    def __init__(self, *crumbs: str) -> None:
        super().__init__(*crumbs)
        self.whose: Whose | None = None
        self.function: str | None = None
        self.is_bottom_up = False
        self.nodes: CallNodes | None = None
        self._sampling: tuple[str, ...] = ()

    def ask(self, job: OpenJob, selection: Selection) -> tuple[CallNodes, CpuSamples, tuple[str, ...]]:
        """Build the tree from the samples of the selection."""
        thread = None if self.whose is None else self.whose.thread
        own = selection if self.whose is None else self.whose.selected(selection)
        samples, calls = tree_of(job, own, self.is_bottom_up, thread, self.function)
        nodes = CallNodes(calls, frozenset(calls.hot_path()), self.is_bottom_up)
        return nodes, samples, sampling_notes(job.session, samples)

    def show(self, result: Any, same_place: bool) -> None:
        """Show the tree with what stood open, else the path of most samples."""
        self.nodes, self.samples, self._sampling = result
        notes = self._sampling
        none = "no sample in the selection has such a function: Esc goes back"
        self.table.empty_text = "\n".join(notes) if self.samples is None or not len(self.samples) else none
        nodes = self.nodes
        layout = OutlineLayout(
            "calltree",
            TREE_COLUMNS,
            nodes.row,
            {column.key: column.key for column in TREE_COLUMNS},
            lambda node, count: f"… {count:,} more below {nodes.name(node.id)}",
            lambda node: nodes.many(node.id) != 1,  # a chain of calls, which may be deep, stands at one indent
        )
        opened = self.opened_in(nodes) or set(nodes.hot)
        self.show_outline(Outline(nodes, layout, self._order_key, tuple(self.shown_notes(notes)), opened))

    def show_count(self) -> None:
        """Count the rows that stand open, the nodes and the samples."""
        if self.outline is not None and self.nodes is not None:
            shown = f"{len(self.outline):,} rows of {len(self.nodes):,} nodes"
            self.show_title(right=shown + _samples_count(self.samples))

    def row_category(self, values: Record) -> str | None:
        """The path of most samples has a colour."""
        return super().row_category(values) or ("cpu" if values.get("hot") else None)

    def label_of(self, node: CallNode) -> str:
        return self.nodes.name(node.id) if self.nodes is not None else ""

    def answer_to_export(self) -> Answer | None:
        """The whole tree but for its smallest nodes, as ``nsystui calltree`` prints it, not only the open ones."""
        return None if self.nodes is None else nodes_table(self.nodes.calls, self._sampling)

    def choices(self) -> tuple[Choice, ...]:
        """Offer both directions of the tree."""
        by = Choice("by", self.WAYS, int(self.is_bottom_up), lambda way: self.ask_with(is_bottom_up=bool(way)))
        return (*super().choices(), by)

    def action_callers(self) -> None:
        """Open the callers of the function under the cursor."""
        self.open_callers(self.whose)


class PartialCallTreeScreen(CallTreeScreen):
    """The call tree of one thread or rank, or of one function: its callers or callees."""

    SCREEN = ""

    def __init__(self, whose: Whose | None, function: str | None = None) -> None:
        words = [] if whose is None else [whose.words]
        super().__init__(*words, "call tree" if function is None else function_name(function))
        self.whose, self.function, self.is_bottom_up = whose, function, function is not None
        if function is not None:
            self.WAYS = ("callees", "callers")

    def choices(self) -> tuple[Choice, ...]:
        """Offer the functions of a thread in place of its call tree."""
        whose, own = self.whose, super().choices()
        if whose is None or self.function is not None:
            return own
        return (Choice("view", _OF_THREAD, 1, lambda _: self.app.switch_screen(ThreadFunctionsScreen(whose))), *own)
