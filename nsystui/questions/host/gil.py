"""When threads hold Python's GIL and wait for it: NVTX ranges of nsys's own (docs/exports.md#python)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa

from nsystui.base.selection import Selection, Task
from nsystui.questions.algebra.intervals import Intervals
from nsystui.questions.host.segments import Thread, calls_of
from nsystui.store import tables
from nsystui.store.session import Session

DOMAIN = "GIL Trace"
RECORD = "record with `nsys profile --trace=cuda,nvtx,osrt,python-gil`"
_HELD, _WAITED = "Holding GIL", "Waiting for GIL"


@dataclass(frozen=True)
class Gil:
    """When each thread holds the GIL of its process, and when it waits for it, job time."""

    held: Mapping[Thread, Intervals] = field(default_factory=dict)
    waited: Mapping[Thread, Intervals] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.held or self.waited)


def gil_of(session: Session, selection: Selection, spans: Sequence[tuple[Task, int, int]] | None = None) -> Gil:
    """The GIL in a selection, with ``spans`` of tasks as in `calls_of`; empty where it is not recorded."""
    table = tables.nvtx_ranges
    if not session.count(table):
        return Gil()
    # The row that names the domain may be missing.
    is_own = sa.or_(table.c.domain == DOMAIN, table.c.domain.is_(None)), table.c.name.in_((_HELD, _WAITED))
    found = calls_of(session, sa.select(table).where(*is_own).subquery("gil"), selection, spans)
    parts: dict[str, dict[Thread, Intervals]] = {_HELD: {}, _WAITED: {}}
    for thread, segments in found.threads.items():
        for number, name in enumerate(found.names):
            parts[name][thread] = segments.labelled(number)
    return Gil(parts[_HELD], parts[_WAITED])
