"""The rows of the NVTX tree that are in sight: what is open, flattened, as an answer for the one table there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from nsystui.base.answer import Row
from nsystui.base.columns import START, Column, Unit
from nsystui.questions.nvtx.paths import NodeKind
from nsystui.questions.nvtx.tree import Node, NvtxTree, Order

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
        """Flattens the tree anew with what is open; no recursion, however deep it is."""
        lines: list[Line] = []
        pending = [Line(node, 0) for node in reversed(self.tree.roots(self.order))]
        while pending:
            line = pending.pop()
            lines.append(line)
            if not line.rest and line.node.id in self.opened:
                pending += reversed(self._children(line.node, line.depth + 1, 0))
        self.lines = lines

    def _children(self, node: Node, depth: int, offset: int) -> list[Line]:
        found = [Line(child, depth) for child in self.tree.children(node, offset, PAGE, self.order)]
        shown = offset + len(found)
        if shown < node.child_count:
            found.append(Line(node, depth, node.child_count - shown, shown))
        return found

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
        """Opens a row, or fetches more of its siblings; ``False`` where there is nothing inside."""
        line = self.lines[index]
        if line.rest:
            self.lines[index : index + 1] = self._children(line.node, line.depth, line.offset)
            return True
        if not line.node.has_children or line.node.id in self.opened:
            return False
        self.opened.add(line.node.id)
        self.lines[index + 1 : index + 1] = self._children(line.node, line.depth + 1, 0)
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

    def reveal(self, number: int) -> int | None:
        """Opens what lies above the node of an id; its row, ``None`` if it is among the unfetched."""
        self.opened |= set(self.tree.ancestors(self.tree.node(number)))
        self.rebuild()
        return next((i for i, line in enumerate(self.lines) if not line.rest and line.node.id == number), None)

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
