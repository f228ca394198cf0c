"""5 NVTX: the ranges as a tree, with the GPU time of the work launched in each."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from nsystui.base.answer import Answer, Record, Row, TableAnswer
from nsystui.base.columns import START, Column, Unit
from nsystui.base.selection import NameFilter, Selection, Window
from nsystui.exports.identifiers import tid_of
from nsystui.questions.events.kinds import EventKind
from nsystui.questions.events.listing import EventKey
from nsystui.questions.job import Job
from nsystui.questions.nvtx.listing import TREE_COLUMNS, kernels_of, nvtx_tree_table
from nsystui.questions.nvtx.paths import By, NodeKind
from nsystui.questions.nvtx.tree import Node, NvtxTree, Order
from nsystui.ui import keys
from nsystui.ui.doors import show_event
from nsystui.ui.screens.instances import EventRowsScreen, RangeInstancesScreen
from nsystui.ui.screens.table import TableScreen, ViewsScreen
from nsystui.ui.widgets.lines import Choice
from nsystui.ui.widgets.prompt import one_of

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
PAGE = 500


@dataclass(frozen=True)
class Line:
    """A row: a node, or (``rest``) the place to open more of the children of a node, from ``offset`` on."""

    node: Node
    depth: int
    rest: int = 0
    offset: int = 0


@dataclass
class Outline:
    """The visible rows of a tree; an ``Answer``. Children are fetched when a node is opened, 500 at a time."""

    tree: NvtxTree
    order: Order = Order.TOTAL
    opened: set[int] = field(default_factory=set)
    lines: list[Line] = field(default_factory=list)
    name: str = "nvtx"
    columns: tuple[Column, ...] = OUTLINE_COLUMNS
    total: int | None = None

    def __post_init__(self) -> None:
        if not self.lines:
            self.rebuild()

    @property
    def notes(self) -> tuple[str, ...]:
        return self.tree.ranges.notes

    def __len__(self) -> int:
        return len(self.lines)

    def rebuild(self) -> None:
        """Flattens the tree anew with what is open."""
        self.lines = self._flattened([Line(node, 0) for node in self.tree.roots(self.order)])

    def _flattened(self, lines: Sequence[Line]) -> list[Line]:
        """The lines with what is open inside them; no recursion, however deep it is."""
        found: list[Line] = []
        pending = list(reversed(lines))
        while pending:
            line = pending.pop()
            found.append(line)
            if not line.rest and line.node.id in self.opened:
                pending += reversed(self._inside(line))
        return found

    def _inside(self, line: Line) -> list[Line]:
        """The first rows inside a row."""
        return self._fetched(Line(line.node, line.depth + 1, line.node.child_count, 0))

    def _fetched(self, rest: Line, skip: int = 0) -> list[Line]:
        """A page of the rows that ``rest`` stands for, ``skip`` of them and then those behind the page left out."""
        offset = rest.offset + skip
        found = self.tree.children(rest.node, offset, min(PAGE, rest.rest - skip), self.order)
        lines = [replace(rest, rest=skip)] if skip else []
        lines += [Line(child, rest.depth) for child in found]
        behind = rest.rest - skip - len(found)
        return [*lines, replace(rest, rest=behind, offset=offset + len(found))] if behind and found else lines

    def page(self, offset: int, limit: int) -> Sequence[Row]:
        return [self._row(line) for line in self.lines[offset : offset + limit]]

    def _row(self, line: Line) -> Row:
        node = line.node
        if line.rest:
            return (f"… {line.rest:,} more", None, None, None, None, None, None, None, None)
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

    def table(self) -> TableAnswer:
        """The rows as they stand open, for a file: with their paths, and what single ranges have, a start.

        Ranks and threads are rows here, as on the screen, without a level.
        """
        rows: list[Row] = []
        above: list[tuple[int, str]] = []  # by depth, the paths around
        for line in self.lines:
            node = line.node
            if line.rest:
                continue
            while above and above[-1][0] >= line.depth:
                above.pop()
            label = _label(node)
            is_group = node.kind in (NodeKind.RANK, NodeKind.THREAD)
            if not is_group:
                label = f"{above[-1][1]} › {label}" if above else label
                above.append((line.depth, label))
            gpu = (node.gpu_total, node.gpu_median, node.gpu_ops)
            place = (node.rank, None if node.thread is None else tid_of(node.thread))
            sums = (node.count, node.total, node.average, node.self_total)
            start = node.window.start if node.index is not None else None
            rows.append((label, None if is_group else len(above) - 1, *sums, *gpu, *place, start))
        return TableAnswer("nvtx-rows", (*TREE_COLUMNS, START), rows, len(rows), self.notes)

    def prefix(self, index: int) -> str:
        """Indentation and the mark of a row that can be opened."""
        line = self.lines[index] if index < len(self.lines) else None
        if line is None:
            return ""
        mark = "  "
        if not line.rest and line.node.has_children:
            mark = "▼ " if line.node.id in self.opened else "▶ "
        return "  " * line.depth + mark

    def open(self, index: int) -> bool:
        """Opens a row, or fetches more of its siblings; ``False`` where there is nothing to open here."""
        line = self.lines[index]
        if line.rest:
            self.lines[index : index + 1] = self._flattened(self._fetched(line))
            return True
        if not line.node.has_children or line.node.id in self.opened:
            return False
        self.opened.add(line.node.id)
        self.lines[index + 1 : index + 1] = self._flattened(self._inside(line))
        return True

    def close(self, index: int) -> int:
        """Closes a row, or goes to the row around it; the row to stand on afterwards."""
        line = self.lines[index]
        if line.rest or line.node.id not in self.opened:
            return self._above(index)
        self.opened.discard(line.node.id)
        end = index + 1
        while end < len(self.lines) and self.lines[end].depth > line.depth:
            end += 1
        del self.lines[index + 1 : end]
        return index

    def _above(self, index: int) -> int:
        depth = self.lines[index].depth
        return next((i for i in range(index - 1, -1, -1) if self.lines[i].depth < depth), index)

    def reveal(self, number: int) -> int:
        """Opens what lies above the node of an id, and fetches it where it is among the many; its row."""
        way = (*self.tree.ancestors(self.tree.node(number)), number)
        self.opened |= set(way[:-1])
        self.rebuild()
        for above, inside in pairwise(way):
            if self._row_of_node(inside) is None:
                self._fetch(above, self.tree.place_of(inside, self.order))
        row = self._row_of_node(number)
        assert row is not None
        return row

    def _row_of_node(self, number: int) -> int | None:
        return next((i for i, line in enumerate(self.lines) if not line.rest and line.node.id == number), None)

    def _fetch(self, above: int, place: int) -> None:
        """Fetches the page of the rows inside a node that has the one at ``place``."""
        for index, line in enumerate(self.lines):
            if line.node.id == above and line.offset <= place < line.offset + line.rest:
                skip = (place - line.offset) // PAGE * PAGE
                self.lines[index : index + 1] = self._flattened(self._fetched(line, skip))
                return

    def sorted_by(self, key: str, descending: bool) -> Outline:
        """Siblings in the order of a column (names and times ascending, amounts descending)."""
        return Outline(self.tree, ORDERS[key], set(self.opened))


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
_KEY_OF_ORDER = {order: key for key, order in ORDERS.items()}


class NvtxScreen(TableScreen):
    """The tree; Enter and → open, ← closes."""

    MODE_KEY = "5"
    SCREEN = "nvtx"
    STATE = ("by", "fold_numbers", "_order")
    PLACES = ("nvtx", "table", "everywhere")
    BINDINGS = [*keys.bindings("nvtx", "table", "everywhere")]

    def __init__(self) -> None:
        super().__init__("5 NVTX")
        self.by = By.ALL
        self.fold_numbers = True
        self.outline: Outline | None = None
        self._order: Order | None = None
        self._target: EventKey | None = None
        self._jumps = 0
        self._exported = "rows"

    def free_keys(self) -> frozenset[str]:
        return frozenset({"left", "right", "h", "l", "<", ">"})

    def parameters(self) -> tuple[Hashable, ...]:
        return (self.by, self.fold_numbers, self._jumps)

    def show_range(self, key: EventKey) -> None:
        """Opens what is around a single range, and puts the cursor on that."""
        self._target = key
        self._jumps += 1
        self.job_changed()

    def ask(self, job: Job, selection: Selection) -> tuple[NvtxTree, int | None]:
        tree, wanted = job.nvtx_tree(selection, self.by.value, self.fold_numbers), self._target
        return tree, None if wanted is None else tree.number_of(wanted.report, wanted.row)

    def show(self, result: Any, same_place: bool) -> None:
        tree, number = result
        before, order = self.outline, self._order or tree.natural_order
        opened = set() if before is None else tree.find_all(before.tree, before.opened)
        self.outline = Outline(tree, order, opened or _first_opened(tree, order))
        self.table.prefix = self.outline.prefix
        self.table.empty_text = "\n".join(tree.ranges.notes) or "no NVTX range in the selection: Esc goes back"
        self.table.set_answer(self.outline, keep_cursor=same_place)
        self.table.mark_sorted(_KEY_OF_ORDER[order], order not in (Order.NAME, Order.TIME))
        self.notes.show_notes(tree.ranges.notes if len(self.outline) else ())
        self.show_count()
        if self._target is not None:
            self._target = None
            if number is None:
                self.say("the selection leaves that range out: Esc goes back, T and an empty line select all time")
            else:
                self._changed(self.outline.reveal(number))

    def show_count(self) -> None:
        if self.outline is not None:
            ranges = len(self.outline.tree.ranges)
            self.show_title(right=f"{len(self.outline):,} rows of {ranges:,} ranges")

    def row_category(self, values: Record) -> str | None:
        return "idle" if values["gpu"] is None else None

    def answer_to_export(self) -> Answer | None:
        """The rows that stand open, or the whole tree as ``nsystui nvtx`` prints it."""
        if self.outline is None:
            return None
        if self._exported == "rows":
            return self.outline.table()
        table: TableAnswer = nvtx_tree_table(self.outline.tree, None, self.outline.order)
        return table

    def action_export(self) -> None:
        if self.outline is None or not len(self.outline):
            super().action_export()
            return

        def chosen(what: str) -> None:
            self._exported = what
            TableScreen.action_export(self)

        self.prompt.ask("export the opened rows or the whole tree?", "rows", one_of("rows", "tree"), chosen)

    def action_copy_table(self) -> None:
        self._exported = "rows"
        super().action_copy_table()

    def node(self) -> Node | None:
        """The node under the cursor."""
        outline, row = self.outline, self.table.cursor_row
        return outline.lines[row].node if outline is not None and row < len(outline) else None

    # -- opening --------------------------------------------------------------------------------------------------

    def open_row(self) -> None:
        if self.outline is None or not len(self.outline):
            return
        row = self.table.cursor_row
        if self.outline.open(row):
            self._changed(row)
        elif self.outline.lines[row].node.id in self.outline.opened:
            self._changed(self.outline.close(row))
        else:
            self._open_event()

    def action_expand(self) -> None:
        if self.outline is not None and len(self.outline) and self.outline.open(self.table.cursor_row):
            self._changed(self.table.cursor_row)

    def action_collapse(self) -> None:
        if self.outline is not None and len(self.outline):
            self._changed(self.outline.close(self.table.cursor_row))

    def _changed(self, row: int) -> None:
        assert self.outline is not None
        self.table.set_answer(self.outline, keep_cursor=True)
        self.table.move_to(row)
        self.show_count()

    def _open_event(self) -> None:
        key = self.event_here()
        if key is None:
            self.say("there is nothing to open here")
            return
        show_event(self.explorer, key)

    def event_here(self) -> EventKey | None:
        node = self.node()
        return None if node is None else self._event_of(node)

    def action_nvtx_range(self) -> None:
        self.say("this is the tree of the NVTX ranges")

    def _event_of(self, node: Node) -> EventKey | None:
        if node.index is None or self.outline is None:
            return None
        ranges = self.outline.tree.ranges
        lane = ranges.lane_of(node.index)
        return EventKey(lane.report, EventKind.NVTX, int(ranges.row[node.index]), int(ranges.start[node.index]))

    def around_row(self) -> Sequence[str]:
        node, outline = self.node(), self.outline
        if node is None or outline is None:
            return ()
        above = [outline.tree.node(number).label for number in outline.tree.ancestors(node)]
        return (f"in {' › '.join(above)}",) if above else ()

    def row_window(self) -> Window | None:
        node = self.node()
        return None if node is None else node.selection_window

    def action_work(self) -> None:
        """The GPU work of a single range."""
        node = self.node()
        if node is None or self.outline is None:
            return
        if node.index is None:
            self.say("several ranges: open a single one, or select their time with t")
            return
        ranges, index = self.outline.tree.ranges, node.index
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

    def sort_rows(self, key: str, descending: bool) -> None:
        if self.outline is None:
            return
        self._order = ORDERS[key]
        self.outline = self.outline.sorted_by(key, descending)
        self.table.prefix = self.outline.prefix
        self.table.set_answer(self.outline)
        self.table.mark_sorted(key, key not in ("name", "start"))

    def action_next_match(self, direction: int) -> None:
        """The next node, below or above the cursor, whose name passes the filter."""
        wanted: NameFilter | None = self.selection.name
        outline = self.outline
        if wanted is None or outline is None:
            self.say("set a filter with / first: n and N then go to the matches")
            return
        here = self.table.cursor_row
        shown = {line.node.id: row for row, line in enumerate(outline.lines) if not line.rest}
        matches = list(outline.tree.search(wanted, outline.order)) if len(outline) else []
        if not matches:
            self.say(f'no range matches "{wanted.text}"')
            return
        places = outline.tree.rows_around(shown, matches)
        order = range(len(matches)) if direction > 0 else range(len(matches) - 1, -1, -1)
        beyond = (i for i in order if (places[i] - here) * direction > 0 or matches[i] not in shown)
        chosen = next(beyond, order[0])
        self._changed(outline.reveal(matches[chosen]))


def _first_opened(tree: NvtxTree, order: Order) -> set[int]:
    """Ranks and threads stand open at first where they are few, so that ranges are in sight."""
    roots = tree.roots(order)
    if len(roots) > 4 or any(node.kind not in (NodeKind.RANK, NodeKind.THREAD) for node in roots):
        return set()
    return {node.id for node in roots}
