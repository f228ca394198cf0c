"""5 NVTX: the ranges as a tree, with the GPU time of the work launched in each."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from nsystui.base.answer import Answer, Record, Row, TableAnswer
from nsystui.base.columns import START, Column, Unit
from nsystui.base.selection import NameFilter, Selection, Window
from nsystui.questions.events.kinds import EventKind
from nsystui.questions.events.listing import EventKey
from nsystui.questions.job import Job
from nsystui.questions.nvtx.listing import kernels_of, nvtx_tree_table
from nsystui.questions.nvtx.paths import By, NodeKind
from nsystui.questions.nvtx.tree import Node, NvtxTree, Order
from nsystui.ui import keys
from nsystui.ui.doors import show_event
from nsystui.ui.screens.instances import EventRowsScreen, RangeInstancesScreen
from nsystui.ui.screens.outline import Layout, Outline, OutlineScreen
from nsystui.ui.screens.table import ViewsScreen
from nsystui.ui.widgets.lines import Choice

OUTLINE_COLUMNS = (
    Column("name", header="Range", label="range"),
    START.with_importance(6),
    Column("count", header="Instances", label="count", unit=Unit.COUNT, importance=2),
    Column("total", header="Total Time (ns)", label="wall total", unit=Unit.DURATION),
    Column("average", header="Avg (ns)", label="avg", unit=Unit.DURATION, decimals=1, importance=4),
    Column("self", header="Self Time (ns)", label="self", unit=Unit.DURATION, importance=3),
    Column("gpu", header="GPU Projected (ns)", label="GPU total", unit=Unit.DURATION),
    Column(
        "gpu-median", header="GPU Projected Med (ns)", label="GPU med", unit=Unit.DURATION, decimals=1, importance=3
    ),
    Column("ops", header="GPU Ops", label="ops", unit=Unit.COUNT, importance=2),
)
ORDERS = {
    "name": Order.NAME,
    "start": Order.TIME,
    "count": Order.COUNT,
    "total": Order.TOTAL,
    "average": Order.AVERAGE,
    "self": Order.SELF,
    "gpu": Order.GPU,
    "gpu-median": Order.GPU_MEDIAN,
    "ops": Order.OPS,
}


def _label(node: Node) -> str:
    if node.kind is NodeKind.RANK:
        return f"rank {node.rank}"
    if node.kind is NodeKind.RANGES:
        return f"{node.count:,} single ranges"
    text = node.label
    if node.open_count:
        text += " (never closed)" if node.count == 1 else f" ({node.open_count:,} never closed)"
    return text


class NvtxNamesScreen(ViewsScreen):
    """The two summaries, of durations on the CPU and of projected ones; Enter lists the single ranges of a name."""

    HOME = SCREEN = "nvtx names"
    MODE_KEY = "5"
    PLACES = ("nvtx names", "table", "everywhere")
    BINDINGS = keys.bindings("nvtx names", "table", "everywhere")
    BACKGROUND = True

    def __init__(self) -> None:
        super().__init__("5 NVTX")

    def open_row(self) -> None:
        name = self.values().get("name")
        if isinstance(name, str):
            self.lay_over(RangeInstancesScreen(name))


class RangeWorkScreen(EventRowsScreen):
    """The kernels, memory operations and graphs that were launched in a range."""

    MODE_KEY = "5"

    def __init__(self, name: str, question: Callable[[Job], Answer]) -> None:
        super().__init__("5 NVTX", name, "GPU work")
        self._question = question

    def ask(self, job: Job, selection: Selection) -> Answer:
        return self._question(job)

    def counted(self) -> str:
        return "operations"

    def row_category(self, values: Record) -> str | None:
        return {"kernel": "compute", "nccl": "nccl", "memory": "memory", "graph": "graph"}.get(str(values["kind"]))


_BY_WORDS = {By.THREAD: "rank and thread", By.RANK: "rank", By.ALL: "all ranks together"}


def _row(node: Node) -> Row:
    single = node.kind is NodeKind.RANGE
    return (
        _label(node),
        node.window.start if single or node.count == 1 else None,
        node.count,
        node.total,
        node.average,
        node.self_total,
        node.gpu_total,
        node.gpu_median,
        node.gpu_ops,
    )


LAYOUT = Layout("nvtx", OUTLINE_COLUMNS, _row, ORDERS)


class NvtxScreen(OutlineScreen[Node]):
    """The tree of ranges."""

    MODE_KEY = "5"
    SCREEN = "nvtx"
    STATE = (*OutlineScreen.STATE, "by", "fold_numbers")
    PLACES = ("nvtx", "table", "everywhere")
    BINDINGS = [*keys.bindings("nvtx", "table", "everywhere")]
    ASCENDING = ("name", "start")

    def __init__(self) -> None:
        super().__init__("5 NVTX")
        self.by = By.THREAD
        self.fold_numbers = True
        self.nvtx_tree: NvtxTree | None = None

    @property
    def _order(self) -> Order:
        return ORDERS[self._order_key]

    def parameters(self) -> tuple[Hashable, ...]:
        return (self.by, self.fold_numbers)

    def ask(self, job: Job, selection: Selection) -> NvtxTree:
        return job.nvtx_tree(selection, self.by.value, self.fold_numbers)

    def show(self, result: Any, same_place: bool) -> None:
        tree: NvtxTree = result
        before, opened = self.nvtx_tree, set() if self.outline is None else self.outline.opened
        self.nvtx_tree = tree
        opened = set() if before is None else tree.find_all(before, opened)
        opened = opened or _first_opened(tree, self._order)
        self.table.empty_text = "\n".join(tree.ranges.notes) or "no NVTX range in the selection: Esc goes back"
        self.show_outline(Outline(tree, LAYOUT, self._order, tree.ranges.notes, opened), same_place)

    def show_count(self) -> None:
        if self.outline is not None and self.nvtx_tree is not None:
            self.show_title(right=f"{len(self.outline):,} rows of {len(self.nvtx_tree.ranges):,} ranges")

    def row_category(self, values: Record) -> str | None:
        return "idle" if values["gpu"] is None else None

    def answer_to_export(self) -> Answer | None:
        """The whole tree, as ``nsystui nvtx`` prints it, and not only the open nodes."""
        if self.nvtx_tree is None:
            return None
        table: TableAnswer = nvtx_tree_table(self.nvtx_tree, None, self._order)
        return table

    def label_of(self, node: Node) -> str:
        return node.label

    # -- opening --------------------------------------------------------------------------------------------------

    def open_leaf(self) -> None:
        node = self.node()
        key = None if node is None else self._event_of(node)
        if key is None:
            self.say("there is nothing inside")
            return
        show_event(self.explorer, key)

    def _event_of(self, node: Node) -> EventKey | None:
        if node.index is None or self.nvtx_tree is None:
            return None
        ranges = self.nvtx_tree.ranges
        lane = ranges.lane_of(node.index)
        return EventKey(lane.report, EventKind.NVTX, int(ranges.row[node.index]), int(ranges.start[node.index]))

    def row_window(self) -> Window | None:
        node = self.node()
        return None if node is None else node.selection_window

    def action_work(self) -> None:
        """The GPU work of a single range."""
        node = self.node()
        if node is None or self.nvtx_tree is None:
            return
        if node.index is None:
            self.say("many ranges: open a single one, or t selects their time for every screen")
            return
        ranges, index = self.nvtx_tree.ranges, node.index
        self.lay_over(RangeWorkScreen(node.label, lambda job: kernels_of(ranges, index, job.ranks)))

    # -- arranging ------------------------------------------------------------------------------------------------

    def choices(self) -> tuple[Choice, ...]:
        kinds = list(By)

        def choose(place: int) -> None:
            self.by = kinds[place]
            self.job_changed()

        words = tuple(_BY_WORDS[kind] for kind in kinds)
        return (*super().choices(), Choice("by", words, kinds.index(self.by), choose))

    def action_fold(self) -> None:
        self.fold_numbers = not self.fold_numbers
        self.say("numbered names in one row" if self.fold_numbers else "numbered names one by one")
        self.job_changed()

    def action_next_match(self, direction: int) -> None:
        """The next node, below or above the cursor, whose name passes the filter."""
        wanted: NameFilter | None = self.selection.name
        outline, tree = self.outline, self.nvtx_tree
        if wanted is None or outline is None or tree is None or not len(outline):
            self.say("/ sets a filter first; n and N go from match to match")
            return
        here = self.table.cursor_row
        shown = {line.node.id: row for row, line in enumerate(outline.lines) if not line.rest}
        matches = list(tree.search(wanted, self._order))
        if not matches:
            self.say(f'no range matches "{wanted.text}"')
            return
        places = tree.rows_around(shown, matches)
        order = range(len(matches)) if direction > 0 else range(len(matches) - 1, -1, -1)
        beyond = (i for i in order if (places[i] - here) * direction > 0 or matches[i] not in shown)
        chosen = next(beyond, order[0])
        row = outline.reveal(matches[chosen])
        if row is not None:
            self.rows_changed(row)


def _first_opened(tree: NvtxTree, order: Order) -> set[int]:
    """Ranks and threads stand open at first where they are few, so that ranges are in sight."""
    roots = tree.roots(order)
    if len(roots) > 4 or any(node.kind not in (NodeKind.RANK, NodeKind.THREAD) for node in roots):
        return set()
    return {node.id for node in roots}
