"""Two sides side by side: two jobs, or two ranks, groups of ranks or spans of time of one."""

from __future__ import annotations

from nsystui.analysis.comparison.labels import job_labels
from nsystui.analysis.comparison.pairs import Compared
from nsystui.analysis.comparison.side import Side
from nsystui.analysis.comparison.summary import summary, worded
from nsystui.analysis.comparison.tables import TABLES, Options

__all__ = ["TABLES", "Compared", "Options", "Side", "job_labels", "summary", "worded"]
