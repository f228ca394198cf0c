"""Measures nsystui and writes RESULTS.md beside this file: ``python tests/bench/run.py --help``.

No test reads a time: this is for people, who compare figures of one run on one machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sqlite3
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from application import application
from columns import packing, phases, queries
from measuring import export_of
from ranks import cluster, ranks
from reads import reads
from startup import startup
from summary import heavy, stats, summary
from table import Setting, Table, short

SIZES = (100_000, 1_000_000, 10_000_000)
STATS_SIZES = (100_000, 1_000_000)
RANKS = 64
QUICK_SIZE, QUICK_RANKS = 100_000, 4
_TOPICS = (startup, summary, phases, packing, queries, heavy, ranks, cluster, application, reads, stats)
TOPICS: Mapping[str, Callable[[Setting], Iterator[Table]]] = {topic.__name__: topic for topic in _TOPICS}
WHY = """## Why targets are missed

- Two cores of a shared machine whose speed changes by a third from hour to hour: compare the ratios within one run. By
  that measure `window` (CPU) and the sample after it, `--help`, opening a million kernels or more, the NVTX tree of a
  million and 64 ranks cold lie at their targets, on either side of them.
- Window: see "Where the window's time goes". The imports of Textual and Rich alone are more than half of what is
  allowed: Textual's application, its command palette and style sheets, and of Rich what those use; nothing of the
  program's own is imported for a later screen.
- Kernel summary, cold, 1 million: see "Where the time goes". A quarter are imports (SQLAlchemy and DuckDB), the
  rest is SQLite itself and making columns of the rows. The figure of nsys is from another machine.
- Opening 100 thousand kernels: 0.3 s of CPU for every file, whatever is in it (a connection, the lookups and up to 25
  tables).
- Instances, sorted by duration: columns of all rows are read to know which are the longest, and these lie in as many
  row groups, whose API calls are looked up for 512 of them; the pages after it come with it.
- Summaries of a part of 10 million rows: the exact median holds all durations of a name at once, half of the time and
  120 MB. Those of all rows, and the index of the event list, are made in the background after everything is opened.
- Memory beyond the first screens, 10 million: the GPU and NCCL screens merge the intervals of all kernels.
"""
LIBRARIES = ("duckdb", "textual", "pandas", "sqlalchemy")


def main() -> None:
    chosen = _arguments()
    # A user's Python compiles a module once; without its bytecode every start would compile all.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    chosen.directory.mkdir(parents=True, exist_ok=True)
    setting = _setting(chosen)
    sections = [_machine(setting)]
    failed = False
    for topic in chosen.only:
        for table in TOPICS[topic](setting):
            print(f"-- {table.title}", file=sys.stderr)
            rows: list[list[str]] = []
            try:
                rows.extend(_told(table.rows))
            except Exception:  # what was measured in an hour must not go for it
                traceback.print_exc()
                failed = True
                rows.append(["not measured", *[""] * (len(table.headings) - 1)])
            sections.append(table.markdown(rows))
            chosen.output.write_text("\n".join([*sections, WHY]), encoding="utf-8")
    sys.exit(1 if failed else 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, required=True, help="where the generated exports are kept")
    parser.add_argument("--kernels", type=int, nargs="+", help="sizes of the exports")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each figure; the median is written")
    parser.add_argument("--only", type=_topics, default=tuple(TOPICS), metavar="TOPIC,…", help=", ".join(TOPICS))
    parser.add_argument("--quick", action="store_true", help="100 thousand kernels, 4 ranks and one run of each figure")
    parser.add_argument("--nsys-ai", default=shutil.which("nsys-ai"), help="PyPI's nsys-ai (default: on the PATH)")
    parser.add_argument("--older", help="the Python of an older version, to compare with in the topic heavy")
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).with_name("RESULTS.md"))
    return parser.parse_args()


def _topics(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in TOPICS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is no topic: they are {', '.join(TOPICS)}")
    return names


def _setting(chosen: argparse.Namespace) -> Setting:
    sizes, stats_sizes = chosen.kernels or SIZES, chosen.kernels or STATS_SIZES
    repeats, count = chosen.repeats, RANKS
    if chosen.quick:
        sizes, stats_sizes, repeats, count = (QUICK_SIZE,), (QUICK_SIZE,), 1, QUICK_RANKS
    sorted_sizes = tuple(sorted(sizes)), tuple(sorted(stats_sizes))
    return Setting(chosen.directory, *sorted_sizes, repeats, count, chosen.nsys_ai, chosen.older)


def _told(rows: Iterable[Iterable[str]]) -> Iterator[list[str]]:
    """The rows, each printed when it is there."""
    for row in rows:
        cells = list(row)
        print(*cells, sep="  ", file=sys.stderr)
        yield cells


def _machine(setting: Setting) -> str:
    runs = "one run of each figure" if setting.repeats == 1 else f"medians of {setting.repeats} runs"
    if setting.repeats > 1 and any(setting.runs(size) == 1 for size in setting.sizes):
        runs += " (one run of exports this large: 5 million kernels and more)"
    arrow = "with pyarrow" if find_spec("pyarrow") else "no pyarrow, as users have it"
    versions = ", ".join([*(f"{name} {version(name)}" for name in LIBRARIES), arrow])
    lines = [
        "# Measured",
        "",
        f"Written by `python tests/bench/run.py`: {runs},",
        "files in the page cache, exports from the demo writer.",
        "MB and kB are of 1000; CPU seconds are those of all threads, user and system. Each measurement has a cache of",
        "its own; cold is with an empty one. `reached` tells by which factor a target is missed.",
        "",
        f"- {datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, {os.cpu_count()} CPUs, {_processor()}",
        f"- load average at the start: {os.getloadavg()[0]:.1f}; what else runs makes wall times longer than CPU times",
        f"- {versions}, SQLite {sqlite3.sqlite_version}",
    ]
    for size in sorted({*setting.sizes, *setting.stats_sizes}):
        path = export_of(setting.directory, size)
        with open(path, "rb", buffering=0) as stream:
            while stream.read(1 << 20):  # brings it into the page cache, so that the first run is like the others
                pass
        lines.append(f"- {short(size)} kernels: {path.stat().st_size / 1e6:,.0f} MB")
    return "\n".join(lines) + "\n"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


if __name__ == "__main__":
    main()
