"""5 NVTX: the ranges as a tree, with the GPU time of their work."""

from asyncio import to_thread
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import numpy as np
from textual.widget import Widget

from nsystui.base.answer import START, Answer, Column, Record, Row, TableAnswer, Unit
from nsystui.base.selection import NameFilter, Selection, Window
from nsystui.base.units import format_value
from nsystui.exports.metadata import tid_of
from nsystui.questions.events.kinds import EventKind
from nsystui.questions.events.listing import EventKey
from nsystui.questions.job.job import OpenJob
from nsystui.questions.nvtx.listing import REPLAYED, kernels_of, nvtx_names, tree_columns
from nsystui.questions.nvtx.paths import Folding, NodeKind, TreeGrouping
from nsystui.questions.nvtx.tree import Node, NvtxTree, Order
from nsystui.questions.queries.question import View
from nsystui.ui.screens.kernels import EventRowsScreen, RangeInstancesScreen
from nsystui.ui.screens.outline import PAGE, Outline, OutlineLayout, OutlineScreen
from nsystui.ui.screens.table import ViewsScreen
from nsystui.ui.widgets.frame import Choice
from nsystui.ui.widgets.plots import step_axis
from nsystui.ui.widgets.repainting import in_background
from nsystui.ui.widgets.stacks import bar_stack
from nsystui.ui.widgets.strip_chart import Lane, StillChart

OUTLINE_COLUMNS = (
    Column("name", header="Range", label="range"),
    START.with_importance(6),
    Column("count", header="Instances", label="count", unit=Unit.COUNT, importance=2),
    Column("total", header="Total Time (ns)", label="wall total", unit=Unit.DURATION),
    Column("average", header="Avg (ns)", label="avg", unit=Unit.DURATION, decimals=1, importance=4),
    Column("self", header="Self Time (ns)", label="self", unit=Unit.DURATION, compared="total", importance=3),
    Column("gpu", header="GPU Projected (ns)", label="GPU total", unit=Unit.DURATION, compared="total", has_bar=True),
    Column(
        "gpu-median",
        header="GPU Projected Med (ns)",
        label="GPU med",
        unit=Unit.DURATION,
        compared="average",
        decimals=1,
        importance=3,
    ),
    Column("ops", header="GPU Ops", label="ops", unit=Unit.COUNT, importance=2),
)
ORDERS = {
    "name": Order.NAME, "start": Order.TIME, "count": Order.COUNT, "total": Order.TOTAL, "average": Order.AVERAGE,
    "self": Order.SELF, "gpu": Order.GPU, "gpu-median": Order.GPU_MEDIAN, "ops": Order.OPS, "replayed": Order.GPU,
}  # fmt: skip


_GROUPS = (NodeKind.RANK, NodeKind.ROLE, NodeKind.THREAD)


def _label(node: Node) -> str:
    if node.kind is NodeKind.RANK:
        return f"rank {node.rank}"
    if node.kind is NodeKind.RANGES:
        return f"{node.count:,} single ranges"
    text = node.label
    if node.open_count:
        text += " (never ended)" if node.count == 1 else f" ({node.open_count:,} never ended)"
    return text


class NvtxNamesScreen(ViewsScreen):
    """Summaries by name of durations on the CPU and of GPU projections; Enter lists the ranges of a name."""

    SCREEN = "nvtx names"
    MODE_KEY = "5"
    PLACES = ("nvtx names", "table", "everywhere")
    ELASTIC = "name"
    BACKGROUND = True

    def ask(self, job: OpenJob, selection: Selection) -> tuple[View, Answer]:
        """Answer as nsys's report does, without ranges that never ended; a PyTorch operator's calls share a row."""
        view = self.view
        if view.name != "nvtx_sum":
            return super().ask(job, selection)
        return view, nvtx_names(job, selection, Folding.STEPS)

    def open_row(self) -> None:
        name = self.values().get("name")
        if isinstance(name, str):
            self.lay_over(RangeInstancesScreen(name))


class RangeWorkScreen(EventRowsScreen):
    """The kernels, memory operations and graphs launched in a range or by a call."""

    COUNTED = "operations"

    def __init__(self, name: str, question: Callable[[OpenJob], Answer], mode_key: str = "5") -> None:
        super().__init__(name, "GPU work")
        self._question, self.MODE_KEY = question, mode_key

    def ask(self, job: OpenJob, selection: Selection) -> Answer:
        return self._question(job)

    def row_category(self, values: Record) -> str | None:
        return {"kernel": "compute", "nccl": "nccl", "memory": "memory", "graph": "graph"}.get(str(values["kind"]))


def _row(node: Node) -> Row:
    start = node.window.start if node.kind is NodeKind.RANGE or node.count == 1 else None
    times = (node.total, node.average) if node.ended else (None, None)
    gpu = (node.gpu_total, node.gpu_median, node.gpu_ops, node.replayed)
    return (_label(node), start, node.ended, *times, node.self_total, *gpu)


class NvtxOutline(Outline[Node]):
    """The rows of a tree of ranges."""

    tree: NvtxTree

    def reveal(self, number: int) -> int:
        """Open the nodes around a node, fetch its page if necessary, and return its row."""
        path = (*self.tree.ancestors(self.tree.node(number)), number)
        self.opened |= set(path[:-1])
        self.rebuild()
        for parent, child in pairwise(path):
            if self.row_of(child) is not None:
                continue
            position = self.tree.sibling_index(child, self.order)
            for index, line in enumerate(self.lines):
                if line.node.id == parent and line.offset <= position < line.offset + line.rest:
                    skip = (position - line.offset) // PAGE * PAGE
                    self.lines[index : index + 1] = self._flatten(self._fetch(line, skip))
                    break
        row = self.row_of(number)
        assert row is not None
        return row

    def table(self) -> TableAnswer:
        """Return the opened rows for a file, with their paths and the starts of single ranges.

        As on the screen, ranks and threads are rows, but without a level.
        """
        rows: list[Row] = []
        parents: list[tuple[int, str]] = []  # the depths and paths of the rows around
        for line in self.lines:
            node = line.node
            if line.rest:
                continue
            while parents and parents[-1][0] >= line.depth:
                parents.pop()
            label = _label(node)
            is_group = node.kind in _GROUPS
            if not is_group:
                label = f"{parents[-1][1]} › {label}" if parents else label
                parents.append((line.depth, label))
            gpu = (node.gpu_total, node.gpu_median, node.gpu_ops)
            owner = node.role if self.tree.by is TreeGrouping.ROLE else node.rank
            thread_cells = (owner, None if node.thread is None else tid_of(node.thread))
            sums = (node.count, node.total, node.average, node.self_total)
            last = (node.window.start if node.index is not None else None, *[node.replayed] * self.tree.has_replays)
            rows.append((label, None if is_group else len(parents) - 1, *sums, *gpu, *thread_cells, *last))
        columns = (*tree_columns(self.tree.by), START, *[REPLAYED] * self.tree.has_replays)
        return TableAnswer("nvtx-rows", columns, rows, len(rows), self.notes)


class NvtxScreen(OutlineScreen[Node]):
    """The tree of ranges."""

    PARAMETERS = ("by", "fold")
    COUNTED = "ranges"
    MODE_KEY = "5"
    SCREEN = "nvtx"
    BAR_CATEGORY = "compute"
    PLACES = ("nvtx", "table", "everywhere")
    ASCENDING = ("name", "start")

    by = TreeGrouping.ALL
    fold = _opened_fold = Folding.STEPS
    nvtx_tree: NvtxTree | None = None
    outline: NvtxOutline | None = None
    _order_key = ""  # empty: the tree's natural order
    _target: EventKey | None = None

    def body(self) -> Iterable[Widget]:
        """Compose the tree with bars of GPU time, above the durations of a path's ranges."""
        tree, notes = super().body()

        def axis(_: int, count: int, width: int) -> str:
            return step_axis(range(1, count + 1, -(-count // width) or 1), width)

        self.chart = StillChart(label_width=24, value_width=10, axis=axis, id="chart")
        yield from (tree, self.chart, notes)

    def show_event(self, key: EventKey) -> None:
        """Open the nodes around a range, and move the cursor to it."""
        self._target = key
        self.ask_with(_jump=object())

    def ask(self, job: OpenJob, selection: Selection) -> tuple[NvtxTree, int | None]:
        tree, target = job.nvtx_tree(selection, self.by.value, self.fold.value), self._target
        return tree, None if target is None else tree.number_of(target.report, target.row)

    def show(self, result: Any, same_place: bool) -> None:
        tree, number = result
        order = ORDERS[self._order_key] if self._order_key else tree.natural_order
        self.nvtx_tree = tree
        opened = self.opened_in(tree)
        if not opened or self._opened_fold is not self.fold:  # modules of all layers are other rows than layers
            opened = opened | _first_opened(tree, order)
        self._opened_fold = self.fold
        self.table.empty_text = "\n".join(tree.ranges.notes) or "no NVTX range in the selection: Esc goes back"
        columns = (*OUTLINE_COLUMNS, *[REPLAYED] * tree.has_replays)
        layout = OutlineLayout[Node]("nvtx", columns, lambda node: _row(node)[: len(columns)], ORDERS)
        outline = NvtxOutline(tree, layout, order, len(tree.ranges), tree.ranges.notes, opened)
        self.show_outline(outline)
        self.chart.display &= len(outline) > 0
        if self._target is not None:
            self._target = None
            if number is None:
                self.say("that range is outside the selection: Esc returns, T and Enter select all time")
            else:
                self.rows_changed(outline.reveal(number))

    @in_background("chart")
    async def cursor_rests(self) -> None:
        """Draw the durations of the cursor's path, if the tree leaves room."""
        super().cursor_rests()
        tree, node = self.nvtx_tree, self.node()
        if tree is None or node is None:
            return
        rows, columns = self.chart.fit_lines(self.free_lines), self.chart.chart_width
        if not rows:
            return
        name, durations, is_gpu = await to_thread(tree.durations, node)
        count = len(durations)
        firsts = range(0, count, -(-count // columns) or 1)
        means = (np.add.reduceat(durations, firsts) / np.diff(firsts, append=count)).tolist()
        words, category = ("GPU time", "compute") if is_gpu else ("wall time", "nvtx")
        notes = [(category, f"{words} of {count:,}")]
        if firsts.step > 1:
            notes.append((category, f"a bar: mean of {firsts.step:,}"))
        longest, stack = max(means, default=0), bar_stack([{category: mean} for mean in means], columns)
        lane = Lane(name, (), format_value(Unit.DURATION, longest), stack=stack, height=rows, notes=tuple(notes))
        self.chart.set_lanes([lane] if count > 1 else [], 0, count if count > 1 else 0)

    def row_category(self, values: Record) -> str | None:
        """Return a dim colour for ranges without GPU work."""
        return "idle" if values["gpu"] is None and values.get("replayed") is None else None

    def answer_to_export(self) -> Answer | None:
        """Return the opened rows; ``nsystui nvtx`` prints the whole tree."""
        return None if self.outline is None else self.outline.table()

    def label_of(self, node: Node) -> str:
        """Return the name of a node, without its number of ranges."""
        return node.label

    def open_leaf(self) -> None:
        """Open a single range in the list of events."""
        if (key := self.event_here()) is None:
            super().open_leaf()
        else:
            self.go_to_event(key)

    def event_here(self) -> EventKey | None:
        node = self.node()
        if node is None or node.index is None or self.nvtx_tree is None:
            return None
        ranges = self.nvtx_tree.ranges
        lane = ranges.lane_of(node.index)
        row, start = ranges.value("row", node.index), ranges.value("start", node.index)
        return EventKey(lane.report, EventKind.NVTX, row, start)

    def action_nvtx_range(self) -> None:
        self.say("this is the tree of the NVTX ranges")

    def row_window(self) -> Window | None:
        node = self.node()
        return None if node is None else node.selection_window

    def action_partner(self) -> None:
        node = self.node()
        if node is None or self.nvtx_tree is None:
            return
        if node.index is None:
            self.say("several ranges: open a single one, or select their time with t")
            return
        ranges, index = self.nvtx_tree.ranges, node.index
        self.lay_over(RangeWorkScreen(node.label, lambda job: kernels_of(ranges, index, job.ranks)))

    def choices(self) -> tuple[Choice, ...]:
        groupings = dict(zip(TreeGrouping, ("rank and thread", "rank", "role", "all ranks together"), strict=True))
        return (*super().choices(), Choice.among("by", groupings, self.by, lambda group: self.ask_with(by=group)))

    def action_fold(self) -> None:
        """Fold only steps (rows of layers), then all numbered names (rows of modules), then no numbered names."""
        next_folding = {Folding.STEPS: Folding.ALL, Folding.ALL: Folding.NONE, Folding.NONE: Folding.STEPS}[self.fold]
        self.say(_FOLDING_WORDS[next_folding])
        self.ask_with(fold=next_folding)

    def action_match(self, direction: int) -> None:
        name_filter: NameFilter | None = self.selection.name
        outline = self.outline
        if name_filter is None or outline is None:
            self.say("set a filter with / first: n and N then go to the matches")
            return
        cursor_row = self.table.cursor_row
        shown = {line.node.id: row for row, line in enumerate(outline.lines) if not line.rest}
        matches = list(outline.tree.search(name_filter, outline.order)) if len(outline) else []
        if not matches:
            self.say(f'no range matches "{name_filter.text}"')
            return
        rows = outline.tree.rows_around(shown, matches)
        order = range(len(matches)) if direction > 0 else range(len(matches) - 1, -1, -1)
        candidates = (i for i in order if (rows[i] - cursor_row) * direction > 0 or matches[i] not in shown)
        self.rows_changed(outline.reveal(matches[next(candidates, order[0])]))


_OPEN_LEVELS = 3  # at most, at first
_FOLDING_WORDS = {
    Folding.STEPS: "steps in one row, layers apart",
    Folding.NONE: "numbered names one by one",
    Folding.ALL: "modules of all layers in one row",
}


def _first_opened(tree: NvtxTree, order: Order) -> set[int]:
    """Return the nodes open at first: up to four ranks or threads, else busy paths to the busiest layer."""
    roots = tree.roots(order)
    if len(roots) <= 4 and all(node.kind in _GROUPS for node in roots):
        return {node.id for node in roots}

    def time(node: Node) -> int:
        return (node.gpu_total or 0) + (node.replayed or 0) if order is Order.GPU else node.total

    opened: set[int] = set()
    nodes = [node for node in roots if node.kind is NodeKind.PATH]
    total = sum(map(time, nodes))
    for _ in range(_OPEN_LEVELS):
        if not nodes or not time(nodes[0]) or 4 * time(nodes[0]) < total:
            break
        first, total = nodes[0], time(nodes[0])
        nodes = [node for node in tree.children(first, order=order) if node.kind is NodeKind.PATH]
        if nodes:  # single ranges do not show where time is spent
            opened.add(first.id)
    return opened


OPENED = {"GPU work": RangeWorkScreen}
