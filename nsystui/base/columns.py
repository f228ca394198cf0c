"""Columns: what a value measures, what a column is called, and the columns that many tables share."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from enum import Enum

FILES_ONLY = 9
"""The importance of a column that only files get: it identifies a row, and is not shown on a screen."""


class Unit(Enum):
    """The quantity of a value: it decides the alignment and the words on a screen. Files always get the plain value."""

    TIME = "time"  # ns: a point in time
    DURATION = "duration"  # ns
    CHANGE = "change"  # ns more, or fewer, than something else: a screen shows the sign
    MICROSECONDS = "us"  # a time or duration of a report of `nsystui stats` with --timeunit
    MILLISECONDS = "ms"
    SECONDS = "s"
    BYTES = "bytes"
    MEGABYTES = "megabytes"  # of 10⁶ bytes: in the reports of `nsystui stats` alone, as nsys has them
    MEGABYTE_RATE = "megabyte rate"  # 10⁶ bytes per second: there as well
    PERCENT = "percent"
    COUNT = "count"
    RATIO = "ratio"  # one number over another
    NUMBER = "number"  # a number that is not a count: an id, a grid size
    RATE = "rate"  # bytes per second
    FREQUENCY = "frequency"  # Hz
    TICK_RATE = "tick rate"  # ticks per millisecond: how long a network adapter waits to send
    TEXT = "text"


_SUFFIXES = {
    Unit.TIME: "ns",
    Unit.DURATION: "ns",
    Unit.CHANGE: "ns",
    Unit.MICROSECONDS: "us",
    Unit.MILLISECONDS: "ms",
    Unit.SECONDS: "s",
    Unit.BYTES: "bytes",
    Unit.MEGABYTES: "mb",
    Unit.MEGABYTE_RATE: "mb_per_s",
    Unit.PERCENT: "percent",
    Unit.RATE: "bytes_per_s",
    Unit.FREQUENCY: "hz",
    Unit.TICK_RATE: "ticks_per_ms",
}
"""The unit of the numbers in files, as a key ends in it; other quantities have none."""


@dataclass(frozen=True)
class Column:
    """One column of an answer.

    ``key`` is its name in code, ``file_key`` the one in JSON, Parquet and frames, ``header`` its name in CSV and
    Markdown (with the unit, as nsys writes it), ``label`` its heading on a screen. ``decimals`` is how many a file gets
    (``None``: an integer or text as it is). ``importance`` decides which columns leave first on a narrow screen: 0
    stays, higher numbers leave earlier, and ``FILES_ONLY`` is never shown. ``has_bar``: a screen draws the value as a
    bar, too.
    """

    key: str
    _: KW_ONLY
    header: str
    label: str
    unit: Unit = Unit.TEXT
    decimals: int | None = None
    importance: int = 0
    has_bar: bool = False

    @property
    def file_key(self) -> str:
        """The key with the unit of the values at its end: ``total_ns``.

        A name that an export gives, such as ``SMs Active [Throughput %]``, may end in a unit of its own.
        """
        suffix = _SUFFIXES.get(self.unit)
        if suffix is None or f"_{self.key}".endswith((f"_{suffix}", "]")):
            return self.key
        return f"{self.key}_{suffix}"

    def with_importance(self, importance: int) -> Column:
        """The same column, which leaves a narrow screen earlier or later."""
        return replace(self, importance=importance)


RANK = Column("rank", header="Rank", label="rank", unit=Unit.NUMBER)
HOST = Column("host", header="Host", label="host")
DEVICE = Column("device", header="Device", label="dev", unit=Unit.NUMBER)
STREAM = Column("stream", header="Strm", label="strm", unit=Unit.NUMBER)
STEP = Column("step", header="Step", label="step", unit=Unit.NUMBER)
NAME = Column("name", header="Name", label="name")
COLLECTIVE = Column("collective", header="Collective", label="collective")
START = Column("start", header="Start (ns)", label="start", unit=Unit.TIME)
END = Column("end", header="End (ns)", label="end", unit=Unit.TIME)
DURATION = Column("duration", header="Duration (ns)", label="duration", unit=Unit.DURATION)
COUNT = Column("count", header="Count", label="count", unit=Unit.COUNT)
BYTES = Column("bytes", header="Bytes", label="bytes", unit=Unit.BYTES)
PID = Column("pid", header="PID", label="pid", unit=Unit.NUMBER)
TID = Column("tid", header="TID", label="tid", unit=Unit.NUMBER)
REPORT_ID = Column("report", header="Report", label="report", unit=Unit.NUMBER, importance=FILES_ONLY)
PROCESS_ID = Column("process", header="Process", label="process", unit=Unit.NUMBER, importance=FILES_ONLY)
ROW_ID = Column("row", header="Row", label="row", unit=Unit.NUMBER, importance=FILES_ONLY)
"""The number of the native row: report, process and row number identify a row of a table."""
