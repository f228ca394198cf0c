"""Which names the events of a kind have: what need not be searched for a name that none of them has.

Kernels and calls have a few hundred names, whatever their number; those of each report are kept beside its pack. NVTX
ranges may each have a name of their own: of these nothing is known before they are searched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import sqlalchemy as sa

from nsystui.base.selection import NameFilter
from nsystui.questions.derived import of_each_report
from nsystui.questions.event_kinds import KIND_TABLES, EventKind
from nsystui.questions.where import matches
from nsystui.store.report import Report
from nsystui.store.results import json_array, json_of
from nsystui.store.session import Session

if TYPE_CHECKING:
    from nsystui.store.results import Arrays

_OF_FEW_NAMES = frozenset({EventKind.API, EventKind.KERNEL, EventKind.NCCL, EventKind.MEMORY, EventKind.OS})
_MANY = 1_000_000  # events, below which they are searched as fast as their names are found


def kinds_with_name(session: Session, kinds: Sequence[EventKind], wanted: NameFilter) -> tuple[EventKind, ...]:
    """Those of ``kinds`` that may have an event whose name passes."""
    if any(session.results(report).directory is None for report in session.reports):
        return tuple(kinds)  # to find the names each time would take as long as the search
    known = {kind: _names(session, kind) for kind in kinds if _is_known(session, kind)}
    every = sorted(set().union(*known.values()))
    passing = _passing(session, every, wanted) if every else frozenset()
    return tuple(kind for kind in kinds if kind not in known or known[kind] & passing)


def _is_known(session: Session, kind: EventKind) -> bool:
    return kind in _OF_FEW_NAMES and session.count(KIND_TABLES[kind].table) >= _MANY


def _names(session: Session, kind: EventKind) -> frozenset[str]:
    """The names of the events of a kind in all reports; of one without a name it is empty."""
    source = KIND_TABLES[kind]
    report = source.table.c.report

    def compute(part: Session, reports: list[Report]) -> dict[int, Arrays]:
        query = sa.select(report, sa.func.coalesce(source.name, "")).distinct()
        query = query.where(report.in_([one.index for one in reports]))
        rows = part.rows(query if source.condition is None else query.where(source.condition))
        return {
            one.index: {"names": json_array([name for index, name in rows if index == one.index])} for one in reports
        }

    having = [one for one in session.reports if one.count(source.table)]
    kept = of_each_report(session, having, f"names-{kind.value}", compute, by=source.table)
    return frozenset(name for arrays in kept.values() for name in json_of(arrays["names"]))


def _passing(session: Session, names: Sequence[str], wanted: NameFilter) -> frozenset[str]:
    """Those of ``names`` that pass, as the same SQL finds that searches the events."""
    name = sa.func.unnest(sa.literal(list(names), sa.ARRAY(sa.Text)), type_=sa.Text).label("name")
    rows = sa.select(name).subquery()
    return frozenset(found for (found,) in session.rows(sa.select(rows.c.name).where(matches(rows.c.name, wanted))))
