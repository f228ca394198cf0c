"""An answer with a column more: the smart names of the kernels among its rows; their full ones are for files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from nsystui.base.answer import Answer, Row, row_batches
from nsystui.base.columns import FILES_ONLY, Column

SMART_NAME = Column("smart", header="Smart Name", label="what")


@dataclass(frozen=True)
class SmartNamed:
    """``answer``, with what ``names`` has for its column ``name``; other rows show their name itself."""

    answer: Answer
    names: Mapping[str, str]

    @property
    def name(self) -> str:
        return self.answer.name

    @property
    def columns(self) -> tuple[Column, ...]:
        columns = self.answer.columns
        return (*(replace(one, importance=FILES_ONLY) if one.key == "name" else one for one in columns), SMART_NAME)

    @property
    def total(self) -> int | None:
        return self.answer.total

    @property
    def notes(self) -> tuple[str, ...]:
        return self.answer.notes

    def __len__(self) -> int:
        return len(self.answer)

    def page(self, offset: int, limit: int) -> Sequence[Row]:
        return self._named(self.answer.page(offset, limit))

    def stream(self, size: int) -> Iterator[Sequence[Row]]:
        """All rows in order, ``size`` at a time."""
        return map(self._named, row_batches(self.answer, size))

    def sorted_by(self, key: str, descending: bool) -> SmartNamed:
        return replace(self, answer=self.answer.sorted_by("name" if key == SMART_NAME.key else key, descending))

    def _named(self, rows: Sequence[Row]) -> Sequence[Row]:
        place = [column.key for column in self.answer.columns].index("name")
        return [(*row, self.names.get(str(row[place]), row[place])) for row in rows]
