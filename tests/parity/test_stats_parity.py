"""The output of ``stats`` against NVIDIA's ``nsys stats`` for the same files, byte for byte."""

import io

import pytest
from support import LARGE, SAME_KIND, nsys_tables

from nsystui.base.selection import Selection
from nsystui.output.formats import write
from nsystui.questions.stats import all_reports, report_of

OPTIONS = ("_base", "_mangled", "_nvtx-name")


def report_text(stem: str) -> str:
    """Return the name with options, as ``cuda_gpu_kern_sum:base`` for ``cuda_gpu_kern_sum_base``."""
    for suffix in OPTIONS:
        if stem.endswith(suffix):
            return f"{stem.removesuffix(suffix)}:{suffix[1:]}"
    return stem


TABLES = {(path.parent.name, report_text(path.stem)): path for path in nsys_tables()}
CASES = [
    pytest.param(*pair, marks=[pytest.mark.campaign] * (pair[0] in LARGE + SAME_KIND)) for pair in TABLES or [("", "")]
]


@pytest.mark.skipif(not TABLES, reason="NVIDIA's reference tables are not on this machine")
@pytest.mark.parametrize(("export", "report"), CASES)
def test_stats_prints_what_nsys_prints(job_of, export, report):
    asked, options = report_of(report)
    printed = io.StringIO()
    write(asked.ask(job_of(export), Selection(), options), "csv", printed)
    assert printed.getvalue() == TABLES[export, report].read_text(encoding="utf-8")


def test_every_report_of_the_reference_is_there():
    assert {report.split(":")[0] for _, report in TABLES} <= {report.name for report in all_reports()}
