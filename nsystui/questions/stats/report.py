"""The options of a report of ``nsys stats``, and its filters by window or NVTX range."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy as sa

from nsystui.base.answer import Answer
from nsystui.base.errors import UsageError
from nsystui.base.selection import Selection, Window
from nsystui.base.text import whole_number
from nsystui.base.units import parse_duration
from nsystui.questions.kernels.summary import Names
from nsystui.questions.queries.conditions import job_end, job_start
from nsystui.store import tables
from nsystui.store.session import Session


@dataclass(frozen=True)
class ReportOptions:
    """The options after a report's name, as in ``cuda_gpu_kern_sum:nvtx-name:base``.

    ``names``: ``:base`` or ``:mangled``. ``nvtx_name``: put the innermost NVTX range of the launch call before a
    kernel's name. ``rows``: limit of ``um_sum``. ``ticks_threshold``: ``network_congestion`` lists rates above it,
    ticks/ms.
    """

    names: Names = Names.FULL
    nvtx_name: bool = False
    rows: int = 10
    ticks_threshold: int = 10_000


AskReport = Callable[[Session, Selection, ReportOptions], Answer]
"""The function of a report; each module of this folder has its functions by report name in ``ASK``."""


_LAST = (1 << 62) - 1


def filter_time(text: str) -> Window:
    """Parse ``START/END`` as a window; either may be left out. Raises UsageError."""
    start, slash, end = text.partition("/")
    if not slash:
        raise UsageError(f"time {text!r}: write START/END, such as 1.2s/1.5s")
    first = parse_duration(start, text) if start.strip() else -_LAST
    return Window(first, parse_duration(end, text) if end.strip() else _LAST)


@dataclass(frozen=True)
class RangeName:
    """An NVTX range: text, domain (``""``: the default domain, ``None``: any), and index among the matching ranges."""

    text: str
    domain: str | None = ""
    index: int = 0


def range_name(text: str) -> RangeName:
    """Parse ``RANGE[@DOMAIN][/INDEX]``; ``@*`` is any domain, a backslash keeps ``@`` and ``/``. Raises UsageError."""
    words = re.split(r"(?<!\\)([@/])", text)
    parts = {"": words[0]}
    for mark, word in zip(words[1::2], words[2::2], strict=True):
        if mark in parts or (mark == "@" and "/" in parts):
            raise UsageError(f"NVTX range {text!r}: write RANGE[@DOMAIN][/INDEX], with \\@ and \\/ inside of names")
        parts[mark] = word
    index = whole_number(parts.get("/", "0"))
    if index is None:
        raise UsageError(f"NVTX range {text!r}: {parts['/']!r} is not a number (write \\/ for a slash in a name)")
    domain = _plain(parts["@"]) if "@" in parts else ""
    return RangeName(_plain(parts[""]), None if domain == "*" else domain, index)


def _plain(word: str) -> str:
    return re.sub(r"\\([@/\\])", r"\1", word)


def filter_nvtx(session: Session, name: RangeName) -> tuple[tuple[int, Window], ...]:
    """Return the window of the range in each report that has it, by the report's index; job time, ns.

    A range that was never closed extends to the end. Raises UsageError if no report has the range.
    """
    spans = ((report.index, _span(session.part([report.index]), report.index, name)) for report in session.reports)
    windows = tuple((index, span) for index, span in spans if span is not None)
    if not windows:
        domain = "any domain" if name.domain is None else f"domain {name.domain!r}" if name.domain else "no domain"
        raise UsageError(f"no NVTX range {name.text!r} in {domain} with index {name.index} in these exports")
    return windows


def _span(session: Session, report: int, name: RangeName) -> Window | None:
    columns = tables.nvtx_ranges.c
    conditions = [columns.report == report, columns.name == name.text, columns.start.is_not(None)]
    if name.domain is not None:
        conditions.append(sa.func.coalesce(columns.domain, "") == name.domain)
    query = sa.select(job_start(tables.nvtx_ranges), job_end(tables.nvtx_ranges)).where(*conditions)
    for start, end in session.rows(query.order_by(columns.start, columns.row).offset(name.index).limit(1)):
        # A range without length still contains events at that moment.
        return Window(start, max(end, start + 1) if end is not None else _LAST)
    return None
