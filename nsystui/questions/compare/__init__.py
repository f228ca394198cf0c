"""Comparison of two jobs, or of two ranks, groups of ranks or time windows of a job."""

from nsystui.questions.compare.pairs import Compared
from nsystui.questions.compare.side import Side, job_labels
from nsystui.questions.compare.summary import TABLES, ComparisonOptions, ComparisonSummary, summary, worded
from nsystui.questions.compare.verdict import Verdict

__all__ = [
    "TABLES", "Compared", "ComparisonOptions", "ComparisonSummary", "Side", "Verdict", "job_labels", "summary",
    "worded",
]  # fmt: skip
