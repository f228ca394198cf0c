"""Measures nsystui and writes RESULTS.md beside this file: ``python tests/bench/run.py --help``.

No test reads a time: this is for people, who compare figures of one run on one machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import stats
from inputs import export_of, short

SIZES = (100_000, 1_000_000, 5_000_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, required=True, help="where the generated exports are kept")
    parser.add_argument("--kernels", type=int, nargs="+", default=SIZES, help="sizes of the exports")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each figure; the median is written")
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).with_name("RESULTS.md"))
    chosen = parser.parse_args()
    chosen.directory.mkdir(parents=True, exist_ok=True)
    sections = [_machine(chosen.directory, chosen.kernels)]
    rows = []
    for figure in stats.figures(chosen.directory, chosen.kernels, chosen.repeats):
        rows.append(figure.cells())
        print(*figure.cells(), sep="  ", file=sys.stderr)
    sections.append("## Reports\n\n" + _table(stats.HEADINGS, rows))
    chosen.output.write_text("\n".join(sections), encoding="utf-8")


def _machine(directory: Path, sizes: Iterable[int]) -> str:
    lines = [
        "# Measured",
        "",
        "Written by `python tests/bench/run.py`; medians, files in the page cache, exports from the demo writer.",
        "",
        f"- {datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, {os.cpu_count()} CPUs, {_processor()}",
    ]
    lines += [f"- {short(size)} kernels: {export_of(directory, size).stat().st_size / 1e6:,.0f} MB" for size in sizes]
    return "\n".join(lines) + "\n"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    main()
