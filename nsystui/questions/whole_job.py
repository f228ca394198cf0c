"""Rows that tell of all that the open exports hold: computed once, then found in the cache.

Only those of many rows are kept: of few they are computed as fast as they are found.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import sqlalchemy as sa

from nsystui import __version__
from nsystui.base.answer import Row
from nsystui.base.selection import Selection
from nsystui.store import trimming
from nsystui.store.answers import Answers
from nsystui.store.cache import Cache
from nsystui.store.report import most_rows
from nsystui.store.session import Session

_VERSION = 1  # raised whenever the same question gets other rows
_MANY = 1_000_000


def whole_job_rows(
    session: Session, selection: Selection, table: sa.Table, question: str, compute: Callable[[], list[Row]]
) -> list[Row]:
    """What ``compute`` gives, kept as the answer to ``question`` where everything of ``table`` is selected.

    It must depend on nothing but the open exports, whatever their clocks, and be of texts, numbers and None.
    """
    packs = [session.kept(report).identity for report in session.reports]
    is_worth_it = selection.is_everything and most_rows(session.reports, table) >= _MANY
    if not is_worth_it or session.cache is None or not all(packs):
        return compute()
    with session.large_questions:
        return _kept_rows(session.cache, packs, question, compute)


def _kept_rows(cache: Cache, packs: Sequence[str | None], question: str, compute: Callable[[], list[Row]]) -> list[Row]:
    answers = Answers(cache.directory / trimming.ANSWERS)
    key = json.dumps(["rows", __version__, _VERSION, question, packs])
    kept = answers.load(key)
    if isinstance(kept, list) and all(isinstance(row, list) for row in kept):
        return [tuple(row) for row in kept]
    rows = compute()
    answers.save(key, rows)
    return rows
