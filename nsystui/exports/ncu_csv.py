"""Nsight Compute's measurements of single launches, from ``ncu --csv``: the pages ``raw`` and ``details``.

``raw`` has a row for each launch, below a row of units; ``details`` has a row for each metric of a launch. Lines of ncu
(``==PROF== …``) and of the program may precede the table.
"""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

from nsystui.base.errors import ExportError
from nsystui.base.files import opened
from nsystui.base.text import shell_word

LIMITS = ("registers", "shared memory", "warps", "blocks")
"""Limits on the blocks of a kernel in a multiprocessor, as keys of `NcuLaunch.values`."""

_KEYS = {
    **dict.fromkeys(("gpu__time_duration.sum", "gpu__time_duration.avg"), "duration"),
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "compute",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": "memory",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "dram",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "dram",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "achieved",
    "sm__maximum_warps_per_active_cycle_pct": "theoretical",
    "launch__occupancy_limit_registers": "registers", "launch__occupancy_limit_shared_mem": "shared memory",
    "launch__occupancy_limit_warps": "warps", "launch__occupancy_limit_blocks": "blocks",
    # Names of the page `details`:
    "Duration": "duration", "Compute (SM) Throughput": "compute", "Memory Throughput": "memory",
    "DRAM Throughput": "dram", "Achieved Occupancy": "achieved", "Theoretical Occupancy": "theoretical",
    "Block Limit Registers": "registers", "Block Limit Shared Mem": "shared memory", "Block Limit Warps": "warps",
    "Block Limit SM": "blocks",
}  # fmt: skip
_NANOSECONDS = {
    **dict.fromkeys(("ns", "nsecond"), 1.0),
    **dict.fromkeys(("us", "usecond"), 1e3),
    **dict.fromkeys(("ms", "msecond"), 1e6),
    **dict.fromkeys(("s", "second"), 1e9),
}
_ENGLISH = re.compile(r"[+-]?(?:\d+|\d{1,3}(?:,\d{3})+)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_CONTINENTAL = re.compile(r"[+-]?(?:\d+|\d{1,3}(?:\.\d{3})+)(?:,\d+)?(?:[eE][+-]?\d+)?")
_MAX_DIGITS = 100
_REPORT_ENDING = ".ncu-rep"

Size = tuple[int, int, int]


@dataclass(frozen=True)
class NcuLaunch:
    """One profiled launch, without values that ncu did not measure.

    ``values``: ``duration`` in ns; ``compute``, ``memory`` and ``dram`` throughput in percent of the peak; ``achieved``
    and ``theoretical`` occupancy in percent; the maximum blocks of a multiprocessor by each of `LIMITS`.
    """

    kernel: str
    grid: Size | None
    block: Size | None
    values: dict[str, float]


@dataclass
class _LaunchTexts:
    """A launch being read: numbers remain texts until the file's notation is known."""

    kernel: str
    grid: Size | None
    block: Size | None
    texts: dict[str, tuple[str, float]] = field(default_factory=dict)

    def take(self, name: str, unit: str | None, text: str) -> None:
        """Keep a known metric under its first name; ``unit`` is ``None`` if not given."""
        key = _KEYS.get(name)
        if key is None or key in self.texts:
            return
        scale = 1.0
        if key == "duration":
            if unit not in _NANOSECONDS:
                return
            scale = _NANOSECONDS[unit]
        elif key in ("compute", "memory", "dram", "achieved", "theoretical") and unit not in ("%", None):
            return  # the memory throughput in byte/s has the same name
        text = text.strip().rstrip("%").strip()
        if _ENGLISH.fullmatch(text) or _CONTINENTAL.fullmatch(text):  # ncu writes n/a for missing values
            self.texts[key] = (text, scale)


def read_ncu_csv(path: Path) -> list[NcuLaunch]:
    """Return the profiled launches in order. Raises ExportError if the file is damaged or not a table of ncu."""
    try:
        with opened(path) as file:
            if b"\0" in file.peek(4096) or path.name.endswith(_REPORT_ENDING):
                cause = "is a report of Nsight Compute" if path.name.endswith(_REPORT_ENDING) else "is no text"
                raise ExportError(str(path), f"{cause}; nsystui reads the CSV that ncu makes of it", _advice(path))
            with TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="") as text:
                launches = _launches(path, text)
    except OSError as error:
        raise ExportError(str(path), f"cannot be read: {error.strerror or error}") from None
    if not launches:
        raise ExportError(str(path), "contains no profiled launches", _advice(path))
    return _with_numbers(path, launches)


def _advice(path: Path) -> str:
    is_report = path.name.endswith(_REPORT_ENDING)
    report = shell_word(str(path)) if is_report else "report.ncu-rep"
    target = shell_word(str(path.with_suffix(".csv"))) if is_report else "FILE.csv"
    return f"ncu --import {report} --csv --page raw > {target}"


def _launches(path: Path, text: TextIO) -> list[_LaunchTexts]:
    """Return the launches of every table in the file: several may have been appended."""
    header: list[str] = []
    units: list[str | None] = []
    min_cells, is_long = 0, False
    launches: list[_LaunchTexts] = []
    number: str | None = None  # of the last launch, which more rows may follow
    try:
        for row in csv.reader(_table_lines(text), strict=True):
            if "Kernel Name" in row:
                number, header, units = None, row, [None] * len(row)
                is_long = "Metric Name" in header and "Metric Value" in header
                needed_columns = ("Kernel Name", "Metric Name", "Metric Value")
                min_cells = max(map(header.index, needed_columns)) + 1 if is_long else len(header)
                continue
            if len(row) < min_cells or (len(row) > len(header) and not is_long):
                raise _damaged(path, f"a row of {len(row)} values, not {min_cells}")
            cells = dict(zip(header, row, strict=False))
            if not cells["Kernel Name"]:
                units = list(row)
                continue
            if number != cells.get("ID", "") or not is_long:
                number = cells.get("ID", "")
                grid, block = _size(cells, "Grid Size"), _size(cells, "Block Size")
                launches.append(_LaunchTexts(cells["Kernel Name"], grid, block))
            if is_long:
                launches[-1].take(cells["Metric Name"], cells.get("Metric Unit", ""), cells["Metric Value"])
            else:
                for name, unit, value in zip(header, units, row, strict=True):
                    launches[-1].take(name, unit, value)
    except csv.Error as error:
        raise _damaged(path, str(error)) from None
    return launches


def _table_lines(text: TextIO) -> Iterator[str]:
    is_table = False
    for line in text:
        is_table = is_table or ("Kernel Name" in line and "," in line)
        if is_table and not line.startswith("==") and line.strip():
            yield line


def _damaged(path: Path, cause: str) -> ExportError:
    return ExportError(str(path), f"is incomplete or was edited: {cause}", f"write it anew: {_advice(path)}")


def _size(cells: dict[str, str], name: str) -> Size | None:
    """Return ``(16, 288, 1)`` as numbers, or ``None``, also for more than 10 digits (CUDA's limit is 2^31 - 1)."""
    numbers = re.findall(r"\d+", cells.get(name, ""))
    if len(numbers) != 3 or any(len(number) > 10 for number in numbers):
        return None
    return int(numbers[0]), int(numbers[1]), int(numbers[2])


def _with_numbers(path: Path, launches: Sequence[_LaunchTexts]) -> list[NcuLaunch]:
    """Return launches with numbers, all in one notation: 1,234.5 or, by locale, 1.234,5."""
    texts = [text for launch in launches for text, _ in launch.texts.values()]
    english = next((text for text in texts if not _CONTINENTAL.fullmatch(text)), None)
    continental = next((text for text in texts if not _ENGLISH.fullmatch(text)), None)
    if english is not None and continental is not None:
        raise _damaged(path, f"{english} and {continental} cannot both be numbers")
    group, point = (",", ".") if continental is None else (".", ",")
    if too_long := next((text for text in texts if len(text) > _MAX_DIGITS), ""):
        raise _damaged(path, f"a number of {len(too_long):,} digits")
    return [
        NcuLaunch(
            launch.kernel,
            launch.grid,
            launch.block,
            {
                key: float(text.replace(group, "").replace(point, ".")) * scale
                for key, (text, scale) in launch.texts.items()
            },
        )
        for launch in launches
    ]
