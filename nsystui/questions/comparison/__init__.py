"""Two sides side by side: two jobs, or two ranks, groups of ranks or spans of time of one."""

from __future__ import annotations

from nsystui.questions.comparison.labels import job_labels
from nsystui.questions.comparison.pairs import Compared
from nsystui.questions.comparison.side import Side
from nsystui.questions.comparison.summary import summary, worded
from nsystui.questions.comparison.tables import TABLES, Options

__all__ = ["TABLES", "Compared", "Options", "Side", "job_labels", "summary", "worded"]
