"""Which rows of an export are read next: chunks of rowids, band by band through the file.

The pages of all tables alternate through an export in the order in which its rows were written. Reading one table
after the other would read the file once for each, which a slow network feels; so the chunks of all tables are taken in
the order in which they lie in the file.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nsystui.exports.sources import Source

# Of a table with so many columns a chunk has the rows it is said to have; kernels have about as many.
_COLUMNS = 22
# Of a narrower table it has more, which makes fewer files to look into, but not endlessly many.
_MOST = 4


@dataclass(frozen=True)
class Chunk:
    """The rows ``first`` to ``last`` of a native table, by rowid; they end at about ``part`` (0 … 1) of the file."""

    source: Source
    first: int
    last: int
    part: float = 0.0


class Chunks:
    """Hands out the chunks of ``sources``, each once; may be asked by several threads.

    ``last_rowid`` says how far the rowids of each native table go, ``rows`` how many a chunk of kernels has at most;
    chunks of other tables have about as many values.
    """

    def __init__(self, sources: Sequence[Source], last_rowid: Mapping[str, int], rows: int) -> None:
        self._sources = sources
        self._last = [last_rowid[source.table] for source in sources]
        self._next = [0] * len(sources)  # some keys of nsys begin at 0
        self._rows = [rows * min(max(_COLUMNS // max(len(source.columns), 1), 1), _MOST) for source in sources]
        self._lock = threading.Lock()

    def take(self) -> Chunk | None:
        """The next chunk; ``None`` when all are taken."""
        with self._lock:
            places = [
                (first / max(last, 1), number)
                for number, (first, last) in enumerate(zip(self._next, self._last, strict=True))
                if first <= last
            ]
            if not places:
                return None
            _, number = min(places)
            first = self._next[number]
            last = min(first + self._rows[number] - 1, self._last[number])
            self._next[number] = last + 1
            return Chunk(self._sources[number], first, last, last / max(self._last[number], 1))

    def skip_to(self, source: Source, row: int) -> None:
        """Leaves out the rows of a source before ``row``: a key that is not counted up leaves gaps of any width."""
        with self._lock:
            number = self._sources.index(source)
            self._next[number] = max(self._next[number], row)

    @property
    def total(self) -> int:
        """About how many rows there are, counted by rowid."""
        return sum(max(last, 0) for last in self._last)

    def stop(self) -> None:
        """Hands out no more."""
        with self._lock:
            self._next = [last + 1 for last in self._last]

    def done(self) -> int:
        """How many rows have been handed out, counted by rowid."""
        with self._lock:
            return sum(max(next_row - 1, 0) for next_row in self._next)
