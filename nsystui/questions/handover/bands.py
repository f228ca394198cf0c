"""Bands of time: the events of a selection a few hundred thousand at a time, which is as many as are sorted at once.

An export of millions is so handed over in the memory of one band, in the order of time from band to band.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nsystui.base.selection import Selection
from nsystui.questions.event_kinds import EventKind
from nsystui.questions.events import ByTable, EventList
from nsystui.questions.job import Job

BAND = 400_000  # events


def bands(job: Job, selection: Selection, kinds: Sequence[EventKind], most: int = BAND) -> tuple[ByTable, ...]:
    """Conditions, for any event table, that choose the events of one band after the other by their starts.

    A band has ``most`` events, or a few more where many start at once; none where nothing is selected.
    """
    if not kinds:
        return ()
    events = EventList.build(job.session, selection, job.ranks, kinds)
    found, edge, last = [], 0, len(events.counts) - 1
    while edge < last and len(events):
        further = int(np.searchsorted(events.counts, events.counts[edge] + most, "right")) - 1
        further = min(max(further, edge + 1), last)
        found.append(events.bins(edge, further))
        edge = further
    return tuple(found)
