"""The pages of an answer that a table keeps, however long the answer is."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from nsystui.base.answer import Answer, Row

PAGE_ROWS = 200
"""Rows asked for at a time: several screens' worth, and still one short query."""

MAX_PAGES = 32
"""Pages kept (6,400 rows): paging back and forth asks nothing again, and memory stays small."""


class PageCache:
    """The pages of one answer, the least recently used given up first. Pages are numbered from 0."""

    def __init__(self, answer: Answer, page_rows: int = PAGE_ROWS, max_pages: int = MAX_PAGES) -> None:
        self.answer = answer
        self.page_rows = page_rows
        self._max_pages = max_pages
        self._pages: OrderedDict[int, Sequence[Row]] = OrderedDict()
        self._row_count = len(answer)

    def __len__(self) -> int:
        """How many rows the answer has (asked once: counting may be a query)."""
        return self._row_count

    def row(self, index: int) -> Row | None:
        """Row ``index`` if its page is here, else ``None``."""
        page = self._pages.get(index // self.page_rows)
        if page is None:
            return None
        self._pages.move_to_end(index // self.page_rows)
        within = index % self.page_rows
        return page[within] if within < len(page) else None

    def missing(self, first: int, count: int) -> list[int]:
        """The pages that rows ``first`` to ``first + count`` need and that are not here."""
        last = min(first + count, self._row_count) - 1
        if last < first:
            return []
        wanted = range(first // self.page_rows, last // self.page_rows + 1)
        return [number for number in wanted if number not in self._pages]

    def fetch(self, number: int) -> Sequence[Row]:
        """Ask the answer for page ``number``. Safe in a thread: nothing is kept until ``put``."""
        return self.answer.page(number * self.page_rows, self.page_rows)

    def put(self, number: int, rows: Sequence[Row]) -> None:
        """Keep ``rows`` as page ``number``."""
        self._pages[number] = rows
        self._pages.move_to_end(number)
        while len(self._pages) > self._max_pages:
            self._pages.popitem(last=False)
