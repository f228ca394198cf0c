"""The rows in sight of a long list, the pages of an answer that a table keeps, and the same row in another answer."""

from __future__ import annotations

from asyncio import to_thread
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from textual.widget import Widget

from nsystui.base.answer import FILES_ONLY, PLACES, Answer, Row, TableAnswer, Unit


@dataclass
class RowWindow:
    """``height`` lines that show ``count`` rows from ``top`` on."""

    count: int = 0
    height: int = 1
    top: int = 0

    def rows(self) -> range:
        """Return the rows in sight."""
        return range(self.top, min(self.top + self.height, self.count))

    def thumb(self) -> range:
        """Return the lines of a scrollbar's thumb, if the rows do not all fit."""
        size = max(1, self.height * self.height // self.count)
        first = self.top * (self.height - size) // (self.count - self.height)
        return range(first, first + size)

    def clamp(self, row: int) -> int:
        """Return the nearest existing row (0 if there are no rows)."""
        return max(0, min(row, self.count - 1))

    def reveal(self, row: int) -> bool:
        """Scroll so that ``row`` is in sight; return whether the window moved.

        A step over the edge scrolls by a third of the window, because each scroll sends every line: a held key would
        send a screenful per row.
        """
        slack = self.height // 3
        if not self.top - self.height <= row < self.top + 2 * self.height:  # after a jump, to the middle
            return self._scroll_to(row - self.height // 2)
        if row < self.top:
            return self._scroll_to(row - slack)
        if row >= self.top + self.height:
            return self._scroll_to(row - self.height + 1 + slack)
        return self._scroll_to(self.top)  # clamp the top: rows or height may have changed

    def scroll(self, rows: int) -> int:
        """Move the window by ``rows``, less at an end; return the actual movement."""
        before = self.top
        self._scroll_to(self.top + rows)
        return self.top - before

    def _scroll_to(self, top: int) -> bool:
        before, self.top = self.top, max(0, min(top, self.count - self.height))
        return self.top != before


class PageCache:
    """The pages of an answer, numbered from 0; the least recently used are evicted."""

    def __init__(self, answer: Answer, page_rows: int = 200, max_pages: int = 32) -> None:
        self.answer = answer
        self.page_rows = page_rows
        self._max_pages = max_pages
        self._pages: OrderedDict[int, Sequence[Row]] = OrderedDict()
        self._row_count = len(answer)
        self._is_reading = False
        self.failure: Exception | None = None
        """A page's error, after which no page is read, because each would fail again."""

    def __len__(self) -> int:
        return self._row_count

    def row(self, index: int) -> Row | None:
        """Return a row, or ``None`` if its page is not loaded."""
        page = self._pages.get(index // self.page_rows)
        if page is None:
            return None
        self._pages.move_to_end(index // self.page_rows)
        within = index % self.page_rows
        return page[within] if within < len(page) else None

    def missing(self, first: int, count: int) -> list[int]:
        """Return the pages of rows ``first`` to ``first + count`` that are not loaded."""
        last = min(first + count, self._row_count) - 1
        if last < first or self.failure is not None:
            return []
        pages = range(first // self.page_rows, last // self.page_rows + 1)
        return [page for page in pages if page not in self._pages]

    def read(self, numbers: Sequence[int]) -> None:
        """Read pages and keep them."""
        try:
            for number in numbers:
                self._keep({number: self._page(number)})
        except Exception as error:  # of any type: the table shows it
            self.failure = error

    def read_in_thread(
        self, widget: Widget, numbers: Sequence[int], then: Callable[[PageCache, Collection[int]], object]
    ) -> None:
        """Read pages in a thread; ``then`` is called in ``widget`` with the pages that arrived.

        Nothing is queued: afterwards, the window asks for the pages that it still lacks.
        """

        async def ask() -> None:
            pages: dict[int, Sequence[Row]] = {}
            try:
                pages = await to_thread(lambda: {number: self._page(number) for number in numbers})
            except Exception as error:
                self.failure = error
            self._is_reading = False
            self._keep(pages)
            widget.call_later(then, self, pages)

        if not self._is_reading:
            self._is_reading = True
            widget.run_worker(ask, group="pages")  # type: ignore[arg-type]

    def _page(self, number: int) -> Sequence[Row]:
        return self.answer.page(number * self.page_rows, self.page_rows)

    def _keep(self, pages: dict[int, Sequence[Row]]) -> None:
        for number, rows in pages.items():
            self._pages[number] = rows
            self._pages.move_to_end(number)
        while len(self._pages) > self._max_pages:
            self._pages.popitem(last=False)


_MAX_COMPARED = 100_000  # rows among which the same row is searched
_IDENTIFYING = (Unit.NUMBER, *PLACES, Unit.TEXT, Unit.TIME)
"""Units of columns that identify a row, most distinctive first: numbers of ranks and streams, names, times."""


def same_row(before: Answer | None, number: int, after: Answer) -> int | None:
    """Return the index in ``after`` of the row with the same subject as row ``number`` of ``before``, or ``None``.

    Columns are compared until they distinguish the row from all others of ``before``. Both answers must be in memory.
    """
    if not isinstance(before, TableAnswer) or not isinstance(after, TableAnswer) or number >= len(before):
        return None
    if max(len(before), len(after)) > _MAX_COMPARED:
        return None

    def rank(index: int) -> int:
        column = before.columns[index]
        identifies = column.unit in _IDENTIFYING and column.importance < FILES_ONLY
        return _IDENTIFYING.index(column.unit) if identifies else len(_IDENTIFYING)

    new_indices = {column.key: index for index, column in enumerate(after.columns)}
    shared = [index for index, column in enumerate(before.columns) if column.key in new_indices]
    row = before.rows[number]
    other_rows = [other_row for index, other_row in enumerate(before.rows) if index != number]
    candidates = list(enumerate(after.rows))
    for index in sorted(shared, key=rank):
        new_index = new_indices[before.columns[index].key]
        candidates = [(at, other) for at, other in candidates if other[new_index] == row[index]]
        other_rows = [other_row for other_row in other_rows if other_row[index] == row[index]]
        if not other_rows:
            break
    return candidates[0][0] if candidates else None
