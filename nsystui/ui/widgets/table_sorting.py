"""The order of a table's rows as its user sees and asks for it: the table asks, the screen sorts."""

from __future__ import annotations

from nsystui.base.answer import Answer
from nsystui.base.columns import FILES_ONLY, Unit
from nsystui.ui.widgets.quiet import QuietFocus


class SortedTable(QuietFocus):
    """What ``WindowTable`` knows of order; a class of its own only to keep either short."""

    _answer: Answer | None = None
    _sorted: tuple[str, bool] | None = None
    _asked: tuple[str, bool] | None = None  # the order last asked for; the screen may still be sorting

    def refresh_rows(self) -> None:
        """Draw everything again."""
        raise NotImplementedError

    def post_sort(self, key: str, descending: bool) -> None:
        """Tell the screen."""
        raise NotImplementedError

    @property
    def sorted_by(self) -> tuple[str, bool] | None:
        """Column key and whether descending, as last marked."""
        return self._sorted

    def mark_sorted(self, key: str | None, descending: bool = True) -> None:
        """Mark the heading of the column that the rows are sorted by (``None``: no column)."""
        self._sorted = self._asked = None if key is None else (key, descending)
        self.refresh_rows()

    def sort_next_column(self, step: int = 1) -> None:
        """Ask for the order of the next column (``step=-1``: the previous), those too narrow to show included."""
        columns = [] if self._answer is None else [c for c in self._answer.columns if c.importance < FILES_ONLY]
        if not columns:
            return
        keys = [column.key for column in columns]
        here = keys.index(self._asked[0]) if self._asked and self._asked[0] in keys else (-1 if step > 0 else 0)
        self.sort_by(columns[(here + step) % len(columns)].key)

    def sort_by(self, key: str) -> None:
        """Ask for the order of column ``key``: names and times from the first on, amounts from the largest on."""
        if self._answer is None:
            return
        unit = next(column.unit for column in self._answer.columns if column.key == key)
        self._ask_sort(key, descending=unit not in (Unit.TEXT, Unit.TIME))

    def reverse_sort(self) -> None:
        """Ask for the opposite of the present order."""
        if self._asked is not None:
            self._ask_sort(self._asked[0], not self._asked[1])

    def _ask_sort(self, key: str, descending: bool) -> None:
        self._asked = (key, descending)
        self.post_sort(key, descending)
