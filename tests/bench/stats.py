"""How long the reports of ``nsystui stats`` take, cold and warm, beside ``nsys stats`` where it is on the PATH."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from inputs import export_of, rows_of, short
from measure import CacheDirectory, Run, measure, measure_computed, median, nsystui
from table import Setting, Table

REPORTS = ("cuda_gpu_kern_sum,nvtx_sum,cuda_api_sum", "nvtx_gpu_proj_sum")


_TEXT = """Nearly every NVTX range of these exports has a name of its own, as PyTorch's `emit_nvtx` gives them: at a
million kernels `nvtx_sum` and `nvtx_gpu_proj_sum` print 471,000 rows, and most of the time and memory goes into writing
those."""


@dataclass(frozen=True)
class Figure:
    """One row of the table: a program on a report and an export of so many kernels and event rows."""

    kernels: int
    report: str
    program: str
    rows: int
    run: Run

    def cells(self) -> Sequence[str]:
        rate = f"{self.rows / self.run.wall / 1e6:.2f}"
        seconds = (f"{self.run.wall:.2f}", f"{self.run.cpu:.2f}")
        return (short(self.kernels), self.report, self.program, *seconds, rate, f"{self.run.peak / 1e6:.0f}")


HEADINGS = ("kernels", "reports", "program", "wall s", "CPU s", "million rows/s", "peak MB")


def tables(setting: Setting) -> Iterator[Table]:
    """The one table of this topic."""
    rows = (figure.cells() for figure in figures(setting.directory, setting.stats_sizes, setting.repeats))
    yield Table("Reports", HEADINGS, rows, _TEXT)


def figures(directory: Path, sizes: Sequence[int], repeats: int) -> Iterator[Figure]:
    """Every figure: medians of ``repeats`` runs; a cold run begins with an empty cache, a warm one computes too."""
    for kernels in sizes:
        path = export_of(directory, kernels)
        rows = rows_of(path)
        for report in REPORTS:
            for program, run in _programs(path, report, repeats):
                yield Figure(kernels, report.replace(",", ", "), program, rows, run)


def _programs(path: Path, report: str, repeats: int) -> Iterator[tuple[str, Run]]:
    command = nsystui("stats", "-r", report, "--format", "csv", str(path))
    with CacheDirectory() as cache:
        runs = []
        for _ in range(repeats):
            cache.clear()
            runs.append(measure(command, cache.environ))
        yield "nsystui, cold", median(runs)
        yield "nsystui, warm", measure_computed(command, cache, repeats)
        if nsys := shutil.which("nsys"):
            theirs = [nsys, "stats", "-q", "--format", "csv", "-r", report, str(path)]
            yield "nsys stats", median(measure(theirs, cache.environ) for _ in range(repeats))
