"""Tables that are trees: rows that open and close. A screen of one gives the tree, and the row of a node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from nsystui.ui.screens.table import TableScreen

if TYPE_CHECKING:
    from nsystui.base.answer import Row
    from nsystui.base.columns import Column

PAGE = 500


class TreeNode(Protocol):
    """A node; ``id`` is its own in one tree."""

    @property
    def id(self) -> int: ...

    @property
    def child_count(self) -> int: ...


AnyNode = TypeVar("AnyNode", bound=TreeNode)


class Tree(Protocol[AnyNode]):
    """Nodes, of which those inside of one are asked for when it is opened."""

    def roots(self, order: Any) -> Sequence[AnyNode]:
        """The outermost nodes."""

    def node(self, number: int) -> AnyNode:
        """The node of an id."""

    def children(self, node: AnyNode, offset: int, limit: int, order: Any) -> Sequence[AnyNode]:
        """The nodes right inside of one, from ``offset`` on, at most ``limit``."""

    def ancestors(self, node: AnyNode) -> Sequence[int]:
        """The ids from the root down to the node around one."""


@dataclass(frozen=True)
class Line(Generic[AnyNode]):
    """A row: a node, or (``rest``) the place to open more of the children of a node, from ``offset`` on.

    ``indent`` is how far right it stands: not all levels need move a row.
    """

    node: AnyNode
    depth: int
    indent: int
    rest: int = 0
    offset: int = 0


@dataclass(frozen=True)
class Layout(Generic[AnyNode]):
    """How the nodes of a kind of tree are shown: the values of a row by ``columns``, the orders by their keys.

    ``rest`` words the row that stands for so many more children of a node. ``moves``: whether the rows inside of a
    node stand further right than it.
    """

    name: str
    columns: tuple[Column, ...]
    values: Callable[[AnyNode], Row]
    orders: Mapping[str, Any]
    rest: Callable[[AnyNode, int], str] = lambda _, count: f"… {count:,} more"
    moves: Callable[[AnyNode], bool] = lambda _: True


@dataclass
class Outline(Generic[AnyNode]):
    """The visible rows of a tree; an ``Answer``. Children are fetched when a node is opened, 500 at a time."""

    tree: Tree[AnyNode]
    layout: Layout[AnyNode]
    order: Any
    notes: tuple[str, ...] = ()
    opened: set[int] = field(default_factory=set)
    lines: list[Line[AnyNode]] = field(default_factory=list)
    total: int | None = None

    def __post_init__(self) -> None:
        if not self.lines:
            self.rebuild()

    @property
    def name(self) -> str:
        return self.layout.name

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.layout.columns

    def __len__(self) -> int:
        return len(self.lines)

    def rebuild(self) -> None:
        """Flattens the tree anew with what is open; no recursion, however deep it is."""
        lines: list[Line[AnyNode]] = []
        pending = [Line(node, 0, 0) for node in reversed(self.tree.roots(self.order))]
        while pending:
            line = pending.pop()
            lines.append(line)
            if not line.rest and line.node.id in self.opened:
                pending += reversed(self._inside(line))
        self.lines = lines

    def _inside(self, line: Line[AnyNode]) -> list[Line[AnyNode]]:
        """The rows right inside of a node."""
        return self._children(line.node, line.depth + 1, line.indent + int(self.layout.moves(line.node)), 0)

    def _children(self, node: AnyNode, depth: int, indent: int, offset: int) -> list[Line[AnyNode]]:
        found = [Line(child, depth, indent) for child in self.tree.children(node, offset, PAGE, self.order)]
        shown = offset + len(found)
        if shown < node.child_count:
            found.append(Line(node, depth, indent, node.child_count - shown, shown))
        return found

    def page(self, offset: int, limit: int) -> Sequence[Row]:
        return [self._row(line) for line in self.lines[offset : offset + limit]]

    def _row(self, line: Line[AnyNode]) -> Row:
        if not line.rest:
            return self.layout.values(line.node)
        return (self.layout.rest(line.node, line.rest), *[None] * (len(self.columns) - 1))

    def prefix(self, index: int) -> str:
        """Indentation and the mark of a row that can be opened."""
        line = self.lines[index] if index < len(self.lines) else None
        if line is None:
            return ""
        mark = "  "
        if not line.rest and line.node.child_count:
            mark = "▼ " if line.node.id in self.opened else "▶ "
        return "  " * line.indent + mark

    def open(self, index: int) -> bool:
        """Opens a row, or fetches more of its siblings; ``False`` where there is nothing inside."""
        line = self.lines[index]
        if line.rest:
            self.lines[index : index + 1] = self._children(line.node, line.depth, line.indent, line.offset)
            return True
        if not line.node.child_count or line.node.id in self.opened:
            return False
        self.opened.add(line.node.id)
        self.lines[index + 1 : index + 1] = self._inside(line)
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

    def sorted_by(self, key: str, descending: bool) -> Outline[AnyNode]:
        """Siblings in the order of a column (names and times ascending, amounts descending)."""
        return Outline(self.tree, self.layout, self.layout.orders[key], self.notes, set(self.opened))


class OutlineScreen(TableScreen, Generic[AnyNode]):
    """A tree in a table: Enter and → open, ← closes. A subclass shows an answer with `show_outline`."""

    STATE: ClassVar[tuple[str, ...]] = ("_order_key",)
    ASCENDING: ClassVar[Collection[str]] = ()
    """The columns that are sorted from the least."""

    def __init__(self, *crumbs: str) -> None:
        super().__init__(*crumbs)
        self.outline: Outline[AnyNode] | None = None
        self._order_key = "total"

    def free_keys(self) -> frozenset[str]:
        return frozenset({"left", "right", "h", "l", "<", ">"})

    def show_outline(self, outline: Outline[AnyNode], same_place: bool) -> None:
        """Shows a tree; its notes stand below, or in place of rows."""
        self.outline = outline
        self.table.prefix = outline.prefix
        self.table.set_answer(outline, keep_cursor=same_place)
        self._mark_order()
        self.notes.show_notes(outline.notes if len(outline) else ())
        if not len(outline):
            self.pane.show([])
        self.show_count()

    def _mark_order(self) -> None:
        self.table.mark_sorted(self._order_key, self._order_key not in self.ASCENDING)

    def node(self) -> AnyNode | None:
        """The node under the cursor."""
        outline, row = self.outline, self.table.cursor_row
        return outline.lines[row].node if outline is not None and row < len(outline) else None

    def open_row(self) -> None:
        if self.outline is None or not len(self.outline):
            return
        row = self.table.cursor_row
        if self.outline.open(row):
            self.rows_changed(row)
        elif self.outline.lines[row].node.id in self.outline.opened:
            self.rows_changed(self.outline.close(row))
        else:
            self.open_leaf()

    def open_leaf(self) -> None:
        """Enter on a row with nothing inside."""
        self.say("there is nothing inside")

    def action_expand(self) -> None:
        if self.outline is not None and len(self.outline) and self.outline.open(self.table.cursor_row):
            self.rows_changed(self.table.cursor_row)

    def action_collapse(self) -> None:
        if self.outline is not None and len(self.outline):
            self.rows_changed(self.outline.close(self.table.cursor_row))

    def rows_changed(self, row: int) -> None:
        """Shows the rows after some were opened or closed, with the cursor on ``row``."""
        assert self.outline is not None
        self.table.set_answer(self.outline, keep_cursor=True)
        self.table.move_to(row)
        self.show_count()

    def around_row(self) -> Sequence[str]:
        node, outline = self.node(), self.outline
        if node is None or outline is None:
            return ()
        above = [self.label_of(outline.tree.node(number)) for number in outline.tree.ancestors(node)]
        return (f"in {' › '.join(above)}",) if above else ()

    def label_of(self, node: AnyNode) -> str:
        """The name of a node."""
        raise NotImplementedError

    def sort_rows(self, key: str, descending: bool) -> None:
        if self.outline is None:
            return
        self._order_key = key
        self.outline = self.outline.sorted_by(key, descending)
        self.table.prefix = self.outline.prefix
        self.table.set_answer(self.outline)
        self._mark_order()
