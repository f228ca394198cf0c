"""The pages of an answer that a table lacks: fetched while it is drawn, or in a thread."""

from __future__ import annotations

from collections.abc import Sequence

from textual.message import Message
from textual.reactive import reactive

from nsystui.base.answer import Row
from nsystui.ui.widgets.pages import PageCache
from nsystui.ui.widgets.table_messages import PagesArrived
from nsystui.ui.widgets.table_sorting import SortedTable
from nsystui.ui.widgets.window import Window


class PagedTable(SortedTable):
    """What ``WindowTable`` knows of pages; a class of its own only to keep either short."""

    background: bool = False
    cursor_row: reactive[int]
    _window: Window
    _cache: PageCache | None = None
    _failure: Exception | None = None
    _fetching = False

    def page_failed(self, error: Exception) -> Message:
        """What the screen is told."""
        raise NotImplementedError

    def _redraw(self) -> None:
        """Draw the window, whose rows changed."""
        raise NotImplementedError

    def _announce(self) -> None:
        """Tell the screen which row the cursor is on."""
        raise NotImplementedError

    def row_at(self, index: int) -> Row | None:
        """Row ``index``; ``None`` if there is none, or (``background``) if its page has not arrived."""
        if self._cache is None or not 0 <= index < len(self._cache):
            return None
        row = self._cache.row(index)
        if row is None and not self.background and self._failure is None:
            self._fetch_now(self._cache.missing(index, 1))
            row = self._cache.row(index)
        return row

    def _missing(self) -> list[int]:
        """The pages that the window lacks (none once one failed: not to ask again and again)."""
        if self._cache is None or self._failure is not None:
            return []
        return self._cache.missing(self._window.top, self._window.height)

    def _fetch_now(self, numbers: Sequence[int]) -> None:
        """Fetch pages and wait for them."""
        assert self._cache is not None
        for number in numbers:
            try:
                self._cache.put(number, self._cache.fetch(number))
            except Exception as error:  # whatever a query can raise: the table says it, the program lives on
                self._fail(error)
                return

    def _fetch_in_thread(self, numbers: Sequence[int]) -> None:
        """Fetch pages in a thread, one request at a time.

        While one runs nothing is queued: when it is back, the window as it is by then asks for what it lacks.
        """
        cache = self._cache
        assert cache is not None
        if self._fetching:
            return
        self._fetching = True

        def work() -> None:
            try:
                pages = {number: cache.fetch(number) for number in numbers}
            except Exception as error:  # as above; it reaches the user through the message
                self.post_message(PagesArrived(cache, {}, error))
            else:
                self.post_message(PagesArrived(cache, pages))

        self.run_worker(work, thread=True, exit_on_error=False, group="pages")

    def on_window_table_pages_arrived(self, message: PagesArrived) -> None:
        message.stop()
        self._fetching = False
        if message.cache is self._cache:
            cursor_was_missing = self._cache.row(self.cursor_row) is None
            for number, rows in message.pages.items():
                self._cache.put(number, rows)
            if message.error is not None:
                self._fail(message.error)
            if cursor_was_missing and self._cache.row(self.cursor_row) is not None:
                self._announce()
        self._redraw()

    def _fail(self, error: Exception) -> None:
        self._failure = error
        # Not posted here: this may be a repaint, where Textual takes the screen for the sender and does not tell it.
        self.call_next(lambda: self.post_message(self.page_failed(error)))
