"""Answers for the tests of the output: a few rows, and any number of rows."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from nsystui.base.answer import Column, Row, Unit

COLUMNS = (
    Column("share", header="Time (%)", label="share", unit=Unit.PERCENT, decimals=1),
    Column("total", header="Total Time (ns)", label="total", unit=Unit.DURATION),
    Column("count", header="Instances", label="count", unit=Unit.COUNT),
    Column("mean", header="Avg (ns)", label="mean", unit=Unit.DURATION, decimals=1),
    Column("name", header="Name", label="kernel"),
)


@dataclass
class Rows:
    """An answer from a list of rows."""

    rows: Sequence[Row]
    columns: tuple[Column, ...] = COLUMNS
    name: str = "kernels"
    total: int | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def page(self, offset: int, limit: int) -> Sequence[Row]:
        return self.rows[offset : offset + limit]

    def sorted_by(self, key: str, descending: bool) -> "Rows":
        raise NotImplementedError


@dataclass
class Many(Rows):
    """An answer of ``length`` rows that are made on request; remembers the requested pages."""

    rows: Sequence[Row] = ()
    length: int = 25_000
    asked: list[tuple[int, int]] = field(default_factory=list)

    def __len__(self) -> int:
        return self.length

    def page(self, offset: int, limit: int) -> Sequence[Row]:
        self.asked.append((offset, limit))
        return [(0.5, n, n % 7, n / 4, f"kernel_{n % 10}") for n in range(offset, min(offset + limit, self.length))]


FEW = Rows([
    (14.6, 292_789_300, 472, 620_316.30, "ncclKernel_AllReduce(ncclDevComm *, unsigned long)"),
    (None, 12, None, 12.0, 'say "hi"\r\n=1+1\x1b[31m'), (0.04, 5_000_000_000, 1, float("nan"), "µ|<float>"),
])  # fmt: skip
