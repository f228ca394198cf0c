"""Trees in tables: rows that open and close. A screen provides the tree and the cells."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from nsystui.base.answer import Column, Row
from nsystui.ui.screens.table import TableScreen

PAGE = 500


class TreeNode(Protocol):
    """A node; its ``id`` is unique in its tree."""

    @property
    def id(self) -> int:
        """The number of the node in its tree."""

    @property
    def child_count(self) -> int:
        """The number of nodes directly inside."""


AnyNode = TypeVar("AnyNode", bound=TreeNode)


class OutlineTree(Protocol[AnyNode]):
    """Nodes whose children are fetched when they are opened."""

    def roots(self, order: Any) -> Sequence[AnyNode]:
        """Return the outermost nodes."""

    def node(self, number: int) -> AnyNode:
        """Return the node with an id."""

    def children(self, node: AnyNode, offset: int, limit: int, order: Any) -> Sequence[AnyNode]:
        """Return at most ``limit`` nodes directly inside a node, from ``offset`` on."""

    def ancestors(self, node: AnyNode) -> Sequence[int]:
        """Return the ids from the root to the parent of a node."""

    def find_all(self, before: Any, numbers: Iterable[int]) -> set[int]:
        """Return this tree's ids of the nodes of ``before``, an earlier tree, without missing nodes."""


@dataclass(frozen=True)
class _Line(Generic[AnyNode]):
    """A row: a node, or (``rest`` > 0) a row that fetches ``rest`` more children of a node, from ``offset`` on.

    ``indent`` can be less than ``depth``: some levels do not indent their rows.
    """

    node: AnyNode
    depth: int
    indent: int
    rest: int = 0
    offset: int = 0


@dataclass(frozen=True)
class OutlineLayout(Generic[AnyNode]):
    """A kind of tree: columns, the cells of a node, and the orders by column key.

    ``rest``: the label of a row for more children. ``indents``: whether the rows inside a node are indented.
    """

    name: str
    columns: tuple[Column, ...]
    values: Callable[[AnyNode], Row]
    orders: Mapping[str, Any]
    rest: Callable[[AnyNode, int], str] = lambda _, count: f"… {count:,} more"
    indents: Callable[[AnyNode], bool] = lambda _: True


@dataclass
class Outline(Generic[AnyNode]):
    """The visible rows of a tree; an ``Answer``. An opened node fetches its children, 500 at a time."""

    tree: OutlineTree[AnyNode]
    layout: OutlineLayout[AnyNode]
    order: Any
    total: int
    """The number of nodes or ranges that rows may show."""
    notes: tuple[str, ...] = ()
    opened: set[int] = field(default_factory=set)
    lines: list[_Line[AnyNode]] = field(default_factory=list)

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
        """Flatten the tree again, with the opened nodes."""
        self.lines = self._flatten([_Line(node, 0, 0) for node in self.tree.roots(self.order)])

    def _flatten(self, lines: Sequence[_Line[AnyNode]]) -> list[_Line[AnyNode]]:
        """Insert opened rows, without recursion: trees may be deep."""
        flattened: list[_Line[AnyNode]] = []
        pending = list(reversed(lines))
        while pending:
            line = pending.pop()
            flattened.append(line)
            if not line.rest and line.node.id in self.opened:
                pending += reversed(self._children(line))
        return flattened

    def _children(self, line: _Line[AnyNode]) -> list[_Line[AnyNode]]:
        indent = line.indent + int(self.layout.indents(line.node))
        return self._fetch(_Line(line.node, line.depth + 1, indent, line.node.child_count))

    def _fetch(self, rest: _Line[AnyNode], skip: int = 0) -> list[_Line[AnyNode]]:
        """Fetch a page of ``rest``'s children after ``skip``; rows around it fetch the other children."""
        offset = rest.offset + skip
        nodes = self.tree.children(rest.node, offset, min(PAGE, rest.rest - skip), self.order)
        lines = [replace(rest, rest=skip)] if skip else []
        lines += [_Line(child, rest.depth, rest.indent) for child in nodes]
        after = rest.rest - skip - len(nodes)
        return [*lines, replace(rest, rest=after, offset=offset + len(nodes))] if after and nodes else lines

    def row_of(self, number: int) -> int | None:
        """Return the row of the node with an id, if it is visible."""
        return next((row for row, line in enumerate(self.lines) if not line.rest and line.node.id == number), None)

    def page(self, offset: int, limit: int) -> Sequence[Row]:
        return [self._row(line) for line in self.lines[offset : offset + limit]]

    def _row(self, line: _Line[AnyNode]) -> Row:
        if not line.rest:
            return self.layout.values(line.node)
        return (self.layout.rest(line.node, line.rest), *[None] * (len(self.columns) - 1))

    def prefix(self, index: int) -> str:
        """Return the indentation of a row, and a mark if it can be opened."""
        line = self.lines[index] if index < len(self.lines) else None
        if line is None:
            return ""
        mark = "  "
        if not line.rest and line.node.child_count:
            mark = "▼ " if line.node.id in self.opened else "▶ "
        return "  " * line.indent + mark

    def open(self, index: int) -> bool:
        """Open a row, or fetch more of its siblings; return whether rows were added."""
        line = self.lines[index]
        if line.rest:
            self.lines[index : index + 1] = self._flatten(self._fetch(line))
            return True
        if not line.node.child_count or line.node.id in self.opened:
            return False
        self.opened.add(line.node.id)
        self.lines[index + 1 : index + 1] = self._flatten(self._children(line))
        return True

    def close(self, index: int) -> int:
        """Close a row, or find the row around it; return the row for the cursor."""
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
        """Sort siblings by a column (names and times ascending, amounts descending)."""
        return replace(self, order=self.layout.orders[key], opened=set(self.opened), lines=[])


class OutlineScreen(TableScreen, Generic[AnyNode]):
    """A tree in a table: Enter and → open, ← closes. A subclass shows an answer with `show_outline`."""

    STATE: ClassVar[tuple[str, ...]] = ("_order_key",)
    ASCENDING: ClassVar[Collection[str]] = ()
    """The columns sorted in ascending order."""
    FREE_KEYS = ("left", "right", "less_than_sign", "greater_than_sign")

    label_of: Callable[[AnyNode], str]
    outline: Outline[AnyNode] | None = None
    _order_key = "total"

    def opened_in(self, tree: OutlineTree[AnyNode]) -> set[int]:
        """Return the nodes of a new tree that were open in the previous tree."""
        return set() if self.outline is None else tree.find_all(self.outline.tree, self.outline.opened)

    def show_outline(self, outline: Outline[AnyNode]) -> None:
        """Show a tree with the cursor on the same node, above notes if it has rows."""
        node, previous, row = self.node(), self.outline, 0
        if self.table.is_placed and node is not None and previous is not None:
            # The same node in the new tree, else the innermost node around it there.
            path = (node.id, *reversed(previous.tree.ancestors(node)))
            rows = (outline.row_of(number) for old in path for number in outline.tree.find_all(previous.tree, (old,)))
            row = next((match for match in rows if match is not None), 0)
        self.outline = outline
        self.table.prefix = outline.prefix
        self.table.set_answer(outline, keep_cursor=True)
        self.table.cursor_row = row
        self.table.mark_sorted(outline.order_key, outline.order_key not in self.ASCENDING)
        self.notes.show_notes(outline.notes if len(outline) else ())
        if not len(outline):
            self.pane.show([])
        self.show_count()

    def show_count(self) -> None:
        if self.outline is not None:
            self.show_title(right=f"{len(self.outline):,} rows of {self.outline.total:,} {self.COUNTED}")

    def node(self) -> AnyNode | None:
        outline, row = self.outline, self.table.cursor_row
        return outline.lines[row].node if outline is not None and row < len(outline) else None

    def open_row(self) -> None:
        """Open or close the row; if it has no children, call `open_leaf`."""
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
        """Open a row without children."""
        self.say("there is nothing to open here")

    def action_expand(self) -> None:
        if self.outline is not None and len(self.outline) and self.outline.open(self.table.cursor_row):
            self.rows_changed(self.table.cursor_row)

    def action_collapse(self) -> None:
        """Close the row under the cursor, or move to the row around it."""
        if self.outline is not None and len(self.outline):
            self.rows_changed(self.outline.close(self.table.cursor_row))

    def rows_changed(self, row: int) -> None:
        """Show the rows after some were opened or closed, with the cursor on ``row``."""
        assert self.outline is not None
        self.table.set_answer(self.outline, keep_cursor=True)
        self.table.cursor_row = row
        self.show_count()

    def around_row(self) -> Sequence[str]:
        node, outline = self.node(), self.outline
        if node is None or outline is None:
            return ()
        names = [self.label_of(outline.tree.node(number)) for number in outline.tree.ancestors(node)]
        return (f"in {' › '.join(names)}",) if names else ()

    def sort_rows(self, key: str, descending: bool) -> None:
        if self.outline is None:
            return
        self._order_key = key
        self.show_outline(self.outline.sorted_by(key, descending))
