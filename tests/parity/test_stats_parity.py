"""The output of ``stats`` against that of NVIDIA's own ``nsys stats`` for the same files, byte for byte."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from nsystui.base.selection import Selection
from nsystui.output.formats import write
from nsystui.questions.stats import all_reports, report_of

REFERENCE = Path(__file__).parents[3] / "shared/data/nsys-stats"
OPTIONS = ("_base", "_mangled", "_nvtx-name")
EXCEPTIONS: dict[tuple[str, str], str] = {}
"""(export, report) that are not to be equal, with the reason."""


def report_text(stem: str) -> str:
    """``cuda_gpu_kern_sum_base`` as ``cuda_gpu_kern_sum:base``."""
    for suffix in OPTIONS:
        if stem.endswith(suffix):
            return f"{stem.removesuffix(suffix)}:{suffix[1:]}"
    return stem


PAIRS = [(table.parent.name, report_text(table.stem)) for table in sorted(REFERENCE.glob("*/*.csv"))]
CASES = [
    # One with an exception must differ, or the exception is to go.
    pytest.param(*pair, marks=[pytest.mark.xfail(reason=EXCEPTIONS[pair], strict=True)] if pair in EXCEPTIONS else [])
    for pair in PAIRS or [("", "")]
]


@pytest.mark.skipif(not REFERENCE.is_dir(), reason="NVIDIA's reference tables are not on this machine")
@pytest.mark.parametrize(("export", "report"), CASES)
def test_stats_prints_what_nsys_prints(job_of, export, report):
    asked, options = report_of(report)
    printed = io.StringIO()
    write(asked.ask(job_of(export), Selection(), options), "csv", printed)
    expected = (REFERENCE / export / f"{report.replace(':', '_')}.csv").read_text(encoding="utf-8")
    assert printed.getvalue() == expected


def test_every_report_of_the_reference_is_there():
    assert {report.split(":")[0] for _, report in PAIRS} <= {report.name for report in all_reports()}
