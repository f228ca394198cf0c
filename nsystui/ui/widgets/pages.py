"""The pages of an answer that a table keeps, however long it is, and the row of another that is about the same."""

from __future__ import annotations

from asyncio import to_thread
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence

from textual.widget import Widget

from nsystui.base.answer import FILES_ONLY, PLACES, Answer, Row, TableAnswer, Unit

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
        self._is_reading = False
        self.failure: Exception | None = None
        """Why a page could not be read. No other one is asked for then: that would fail again and again."""

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
        if last < first or self.failure is not None:
            return []
        wanted = range(first // self.page_rows, last // self.page_rows + 1)
        return [number for number in wanted if number not in self._pages]

    def read(self, numbers: Sequence[int]) -> None:
        """Ask the answer for pages, and keep them."""
        try:
            for number in numbers:
                self._keep({number: self._page(number)})
        except Exception as error:  # whatever a query can raise: the table says it, the program lives on
            self.failure = error

    def read_in_thread(
        self, widget: Widget, numbers: Sequence[int], then: Callable[[PageCache, Collection[int]], object]
    ) -> None:
        """Ask for pages in a thread, one request at a time; ``then`` hears in ``widget`` which of them are here.

        While one runs nothing is queued: when it is back, the window as it is by then asks for what it lacks.
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


_MOST_COMPARED = 100_000
"""Rows among which the same one is looked for."""
_TELLING = (Unit.NUMBER, *PLACES, Unit.TEXT, Unit.TIME)
"""The units of what a row is about, the most telling first: numbers of ranks and streams, names, moments."""


def same_row(before: Answer | None, number: int, after: Answer) -> int | None:
    """Return the number of the row of ``after`` that is about the same as the row ``number`` of ``before``.

    It is the same in as many columns as it takes to tell that row from all others of ``before``. ``None`` where there
    is none, or where one of the two is not in memory.
    """
    if not isinstance(before, TableAnswer) or not isinstance(after, TableAnswer) or number >= len(before):
        return None
    if max(len(before), len(after)) > _MOST_COMPARED:
        return None

    def rank(place: int) -> int:
        column = before.columns[place]
        is_telling = column.unit in _TELLING and column.importance < FILES_ONLY
        return _TELLING.index(column.unit) if is_telling else len(_TELLING)

    there = {column.key: place for place, column in enumerate(after.columns)}
    shared = [place for place, column in enumerate(before.columns) if column.key in there]
    row = before.rows[number]
    others = [other for place, other in enumerate(before.rows) if place != number]
    alike = list(enumerate(after.rows))
    for place in sorted(shared, key=rank):
        now = there[before.columns[place].key]
        alike = [(new, other) for new, other in alike if other[now] == row[place]]
        others = [other for other in others if other[place] == row[place]]
        if not others:
            break
    return alike[0][0] if alike else None
