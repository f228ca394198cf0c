"""Tables that are trees: rows that open and close. A screen of one gives the tree, and the row of a node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar

from nsystui.ui.screens.table import TableScreen

if TYPE_CHECKING:
    from nsystui.base.answer import Column, Row

PAGE = 500


class TreeNode(Protocol):
    """A node; ``id`` is its own in one tree."""

    @property
    def id(self) -> int:
        """The number of the node in its tree."""

    @property
    def child_count(self) -> int:
        """How many nodes are right inside."""


AnyNode = TypeVar("AnyNode", bound=TreeNode)


class OutlineTree(Protocol[AnyNode]):
    """Nodes, of which those inside of one are asked for when it is opened."""

    def roots(self, order: Any) -> Sequence[AnyNode]:
        """The outermost nodes."""

    def node(self, number: int) -> AnyNode:
        """The node of an id."""

    def children(self, node: AnyNode, offset: int, limit: int, order: Any) -> Sequence[AnyNode]:
        """The nodes right inside of one, from ``offset`` on, at most ``limit``."""

    def ancestors(self, node: AnyNode) -> Sequence[int]:
        """The ids from the root down to the node around one."""

    def find_all(self, before: Any, numbers: Iterable[int]) -> set[int]:
        """The ids of the nodes that are the same as some of a tree before, of those that this tree has."""


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
class OutlineLayout(Generic[AnyNode]):
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

    tree: OutlineTree[AnyNode]
    layout: OutlineLayout[AnyNode]
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
        """The name of the answer, for files."""
        return self.layout.name

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of a row."""
        return self.layout.columns

    def __len__(self) -> int:
        return len(self.lines)

    def rebuild(self) -> None:
        """Flattens the tree anew with what is open."""
        self.lines = self._flattened([Line(node, 0, 0) for node in self.tree.roots(self.order)])

    def _flattened(self, lines: Sequence[Line[AnyNode]]) -> list[Line[AnyNode]]:
        """The lines with what is open inside them; no recursion, however deep it is."""
        found: list[Line[AnyNode]] = []
        pending = list(reversed(lines))
        while pending:
            line = pending.pop()
            found.append(line)
            if not line.rest and line.node.id in self.opened:
                pending += reversed(self._inside(line))
        return found

    def _inside(self, line: Line[AnyNode]) -> list[Line[AnyNode]]:
        """The first rows inside a row."""
        indent = line.indent + int(self.layout.moves(line.node))
        return self._fetched(Line(line.node, line.depth + 1, indent, line.node.child_count))

    def _fetched(self, rest: Line[AnyNode], skip: int = 0) -> list[Line[AnyNode]]:
        """A page of the rows that ``rest`` stands for, ``skip`` of them and then those behind the page left out."""
        offset = rest.offset + skip
        found = self.tree.children(rest.node, offset, min(PAGE, rest.rest - skip), self.order)
        lines = [replace(rest, rest=skip)] if skip else []
        lines += [Line(child, rest.depth, rest.indent) for child in found]
        behind = rest.rest - skip - len(found)
        return [*lines, replace(rest, rest=behind, offset=offset + len(found))] if behind and found else lines

    def row_of(self, number: int) -> int | None:
        """The row of the node of an id, if that is among the visible ones."""
        return next((row for row, line in enumerate(self.lines) if not line.rest and line.node.id == number), None)

    def page(self, offset: int, limit: int) -> Sequence[Row]:
        """The values of the visible rows from ``offset`` on."""
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
            self.lines[index : index + 1] = self._flattened(self._fetched(line))
            return True
        if not line.node.child_count or line.node.id in self.opened:
            return False
        self.opened.add(line.node.id)
        self.lines[index + 1 : index + 1] = self._flattened(self._inside(line))
        return True

    def close(self, index: int) -> int:
        """Closes a row, or goes to the row around it; the row to stand on afterwards."""
        line = self.lines[index]
        if line.rest or line.node.id not in self.opened:
            return next((row for row in range(index - 1, -1, -1) if self.lines[row].depth < line.depth), index)
        self.opened.discard(line.node.id)
        end = index + 1
        while end < len(self.lines) and self.lines[end].depth > line.depth:
            end += 1
        del self.lines[index + 1 : end]
        return index

    @property
    def order_key(self) -> str:
        """The key of the column that the rows are sorted by."""
        return next(key for key, order in self.layout.orders.items() if order == self.order)

    def sorted_by(self, key: str, descending: bool) -> Self:
        """Siblings in the order of a column (names and times ascending, amounts descending)."""
        return replace(self, order=self.layout.orders[key], opened=set(self.opened), lines=[])


class OutlineScreen(TableScreen, Generic[AnyNode]):
    """A tree in a table: Enter and → open, ← closes. A subclass shows an answer with `show_outline`."""

    STATE: ClassVar[tuple[str, ...]] = ("_order_key",)
    ASCENDING: ClassVar[Collection[str]] = ()
    """The columns that are sorted from the minimum."""

    def __init__(self, *crumbs: str) -> None:
        super().__init__(*crumbs)
        self.outline: Outline[AnyNode] | None = None
        self._order_key = "total"

    def free_keys(self) -> frozenset[str]:
        """The arrows open and close rows here."""
        return frozenset({"left", "right", "h", "l", "<", ">"})

    def opened_in(self, tree: OutlineTree[AnyNode]) -> set[int]:
        """The nodes of a new tree that stood open in the one before."""
        return set() if self.outline is None else tree.find_all(self.outline.tree, self.outline.opened)

    def show_outline(self, outline: Outline[AnyNode]) -> None:
        """Shows a tree with the cursor on the node that it was on; its notes stand below, or in place of rows."""
        node, before, row = self.node(), self.outline, 0
        if self.table.is_placed and node is not None and before is not None:
            # The node under the cursor in another tree, else the innermost node around it there.
            way = (node.id, *reversed(before.tree.ancestors(node)))
            found = (outline.row_of(number) for old in way for number in outline.tree.find_all(before.tree, (old,)))
            row = next((place for place in found if place is not None), 0)
        self.outline = outline
        self.table.prefix = outline.prefix
        self.table.set_answer(outline, keep_cursor=True)
        self.table.move_to(row)
        self.table.mark_sorted(outline.order_key, outline.order_key not in self.ASCENDING)
        self.notes.show_notes(outline.notes if len(outline) else ())
        if not len(outline):
            self.pane.show([])
        self.show_count()

    def node(self) -> AnyNode | None:
        """The node under the cursor."""
        outline, row = self.outline, self.table.cursor_row
        return outline.lines[row].node if outline is not None and row < len(outline) else None

    def open_row(self) -> None:
        """Open or close the row, or what it stands for where nothing is inside."""
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
        self.say("there is nothing to open here")

    def action_expand(self) -> None:
        """Open the row under the cursor."""
        if self.outline is not None and len(self.outline) and self.outline.open(self.table.cursor_row):
            self.rows_changed(self.table.cursor_row)

    def action_collapse(self) -> None:
        """Close the row under the cursor, or go to the one around it."""
        if self.outline is not None and len(self.outline):
            self.rows_changed(self.outline.close(self.table.cursor_row))

    def rows_changed(self, row: int) -> None:
        """Shows the rows after some were opened or closed, with the cursor on ``row``."""
        assert self.outline is not None
        self.table.set_answer(self.outline, keep_cursor=True)
        self.table.move_to(row)
        self.show_count()

    def around_row(self) -> Sequence[str]:
        """The names of the nodes around the row, outermost first."""
        node, outline = self.node(), self.outline
        if node is None or outline is None:
            return ()
        above = [self.label_of(outline.tree.node(number)) for number in outline.tree.ancestors(node)]
        return (f"in {' › '.join(above)}",) if above else ()

    def label_of(self, node: AnyNode) -> str:
        """The name of a node."""
        raise NotImplementedError

    def sort_rows(self, key: str, descending: bool) -> None:
        """Sort siblings; the tree stays."""
        if self.outline is None:
            return
        self._order_key = key
        self.show_outline(self.outline.sorted_by(key, descending))
