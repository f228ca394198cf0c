"""What a ``WindowTable`` tells its screen. Handlers are named ``on_window_table_row_selected`` and so on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.message import Message

from nsystui.base.answer import Row
from nsystui.ui.widgets.pages import PageCache

if TYPE_CHECKING:
    from nsystui.ui.widgets.window_table import WindowTable


@dataclass
class TableMessage(Message, namespace="window_table"):
    """From ``table``; ``@on(WindowTable.RowSelected, "#kernels")`` selects by its id."""

    table: WindowTable

    @property
    def control(self) -> WindowTable:
        return self.table


@dataclass
class RowHighlighted(TableMessage, namespace="window_table"):
    """The cursor stands on ``row`` (also after ``set_answer``, and when that row's page has arrived)."""

    row: int

    def can_replace(self, message: Message) -> bool:
        """A held key leaves one message in the queue, the newest."""
        return isinstance(message, RowHighlighted) and message.table is self.table


@dataclass
class RowSelected(TableMessage, namespace="window_table"):
    """Enter on ``row``, or a click on the row that has the cursor."""

    row: int


@dataclass
class SortRequested(TableMessage, namespace="window_table"):
    """The user wants another order. The screen sorts, then calls ``set_answer`` and ``mark_sorted``."""

    key: str
    descending: bool


@dataclass
class PageFailed(TableMessage, namespace="window_table"):
    """A page could not be read; the table shows ``error`` in its body until the next ``set_answer``."""

    error: Exception


@dataclass
class PagesArrived(Message, namespace="window_table"):
    """From the table's thread to the table: pages by number, for the cache that lacked them."""

    cache: PageCache
    pages: dict[int, Sequence[Row]]
    error: Exception | None = None
