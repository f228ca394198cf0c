"""The options of a report of ``nsys stats``, and its time filters: a span, or the span of an NVTX range."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy as sa

from nsystui.base.answer import Answer
from nsystui.base.errors import UsageError
from nsystui.base.kernel_families import Rules
from nsystui.base.selection import Selection, Window
from nsystui.base.text import whole_number
from nsystui.base.units import parse_duration
from nsystui.questions.kernels.summary import Names
from nsystui.questions.queries.conditions import job_end, job_start
from nsystui.store import tables
from nsystui.store.session import Session


@dataclass(frozen=True)
class ReportOptions:
    """The words behind the name of a report, as in ``cuda_gpu_kern_sum:nvtx-name:base``.

    ``names``: ``:base`` or ``:mangled``. ``families``: ``:family``, the families of kernels in place of their names,
    with the user's own rules. ``nvtx_name``: the innermost NVTX range of the launch call stands before a
    kernel's name. ``rows``: how many rows ``um_sum`` has at most. ``ticks_threshold``: from which rate on, in ticks/ms,
    ``network_congestion`` takes a sample for congestion.
    """

    names: Names = Names.FULL
    families: Rules | None = None
    nvtx_name: bool = False
    rows: int = 10
    ticks_threshold: int = 10_000


Ask = Callable[[Session, Selection, ReportOptions], Answer]
"""Each module of this folder has the functions of its reports, by their names, in ``ASK``."""


_LAST = (1 << 62) - 1


def filter_time(text: str) -> Window:
    """``START/END`` as a window; either may be left out. Raises UsageError."""
    start, slash, end = text.partition("/")
    if not slash:
        raise UsageError(f"time {text!r}: write START/END, such as 1.2s/1.5s")
    first = parse_duration(start, text) if start.strip() else -_LAST
    return Window(first, parse_duration(end, text) if end.strip() else _LAST)


@dataclass(frozen=True)
class RangeName:
    """An NVTX range by its text, its domain (``""`` the default one, ``None`` any) and its index among those."""

    text: str
    domain: str | None = ""
    index: int = 0


def range_name(text: str) -> RangeName:
    """``RANGE[@DOMAIN][/INDEX]``, where ``@*`` is any domain and a backslash keeps ``@`` and ``/``. UsageError."""
    words = re.split(r"(?<!\\)([@/])", text)
    parts = {"": words[0]}
    for mark, word in zip(words[1::2], words[2::2], strict=True):
        if mark in parts or (mark == "@" and "/" in parts):
            raise UsageError(f"NVTX range {text!r}: write RANGE[@DOMAIN][/INDEX], with \\@ and \\/ inside of names")
        parts[mark] = word
    index = whole_number(parts.get("/", "0"))
    if index is None:
        raise UsageError(f"NVTX range {text!r}: {parts['/']!r} is no number (write \\/ for a slash inside of a name)")
    domain = _plain(parts["@"]) if "@" in parts else ""
    return RangeName(_plain(parts[""]), None if domain == "*" else domain, index)


def _plain(word: str) -> str:
    return re.sub(r"\\([@/\\])", r"\1", word)


def filter_nvtx(session: Session, wanted: RangeName) -> tuple[tuple[int, Window], ...]:
    """The window of the range in each report that has it, by the index of the report; in job time, ns.

    A range that was never closed reaches to the end. Raises UsageError where no report has the range.
    """
    found = []
    for report in session.reports:
        span = _span(session.part([report.index]), report.index, wanted)
        if span is not None:
            found.append((report.index, span))
    if not found:
        where = "any domain" if wanted.domain is None else f"domain {wanted.domain!r}" if wanted.domain else "no domain"
        raise UsageError(f"no NVTX range {wanted.text!r} in {where} with index {wanted.index} in these exports")
    return tuple(found)


def _span(session: Session, report: int, wanted: RangeName) -> Window | None:
    columns = tables.nvtx_ranges.c
    conditions = [columns.report == report, columns.name == wanted.text, columns.start.is_not(None)]
    if wanted.domain is not None:
        conditions.append(sa.func.coalesce(columns.domain, "") == wanted.domain)
    query = (
        sa.select(job_start(tables.nvtx_ranges), job_end(tables.nvtx_ranges))
        .where(*conditions)
        .order_by(columns.start, columns.row)
        .offset(wanted.index)
        .limit(1)
    )
    rows = session.rows(query)
    if not rows:
        return None
    start, end = rows[0]
    # A range without length still holds what goes on at that moment.
    return Window(start, max(end, start + 1) if end is not None else _LAST)
