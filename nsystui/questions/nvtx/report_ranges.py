"""The NVTX ranges of one report, nested and projected: what is expensive of the tree, kept beside the report's pack.

All times are on the report's own clock. Shapes are ``(n,)`` for n ranges by start, unless said otherwise:

* ``lane``: index into ``threads`` (shape ``(threads,)``, NVIDIA's globalTid, ascending), ``name``: into ``names``
  (JSON, in order of first appearance); int32, as are ``parent``, ``level`` and ``op_count``
* ``row``, ``start``, ``length`` (ns), ``is_push_pop``, ``is_open``, ``is_whole`` (ended on the thread it began on)
* ``parent``, ``level``, ``self_time``: see `nesting.Nesting`; of push/pop ranges, and -1, 0 and 0 for start/end ranges
* the projection: ``op_count``, ``op_time``, ``gpu_delay`` (from the start of the range to that of the projected one)
  and ``gpu_length``; see `projection.Projection`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.selection import Selection
from nsystui.questions.derived import of_each_report
from nsystui.questions.event_kinds import KIND_TABLES, EventKind
from nsystui.questions.nesting import NO_PARENT, nest
from nsystui.questions.nvtx.launches import has_launches, launch_calls
from nsystui.questions.projection import project
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.results import json_array
from nsystui.store.session import Session

if TYPE_CHECKING:
    from nsystui.store.results import Arrays


UNKNOWN = -1
"""In ``op_count``: nothing can say what the range launched."""

LABEL = KIND_TABLES[EventKind.NVTX].name
"""The name of a range in SQL as nsys writes it: ``domain:text``, and the bare text in the default domain."""

FOLDED_LABEL = sa.func.regexp_replace(LABEL, ", (seq|op_id|sizes) =.*", "", "s", type_=sa.Text)
"""The same without PyTorch's suffix: what `names.fold_suffix` does, for a million names at once."""

PUSH_POP_TYPES = (59, 70)
START_END_TYPES = (60, 71)


def ranges_of(session: Session, report: Report) -> Arrays:
    """The ranges of ``report`` and how they nest."""

    def compute(part: Session, reports: list[Report]) -> dict[int, Arrays]:
        return {one.index: _nested(_read(part, one)) for one in reports}

    return of_each_report(session, [report], "nvtx", compute)[report.index]


def projection_of(session: Session, report: Report, ranges: Arrays, selection: Selection) -> Arrays:
    """What the ranges of ``ranges_of`` launched, on the selected devices and streams; kept where these are all."""

    def compute(part: Session, reports: list[Report]) -> dict[int, Arrays]:
        return {one.index: _projected(part, one, ranges, selection) for one in reports}

    if selection.devices is not None or selection.streams is not None:
        return compute(session.part([report.index]), [report])[report.index]
    return of_each_report(session, [report], "nvtx-gpu", compute)[report.index]


def _read(session: Session, report: Report) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """The ranges in order of start and row, and the names that ``name`` is the place in, by first appearance.

    A text is only in memory once, however many ranges have it: ranges are read a batch at a time.
    """
    columns = tables.nvtx_ranges.c
    thread = sa.func.coalesce(columns.thread, 0)
    last = report.packed.last_event or 0
    query = sa.select(
        columns.start,
        sa.func.greatest(columns.start, sa.func.coalesce(columns.end, last)).label("end"),
        columns.end.is_(None).label("is_open"),
        thread.label("thread"),
        (sa.func.coalesce(columns.end_thread, thread) == thread).label("is_whole"),
        columns.event_type.in_(PUSH_POP_TYPES).label("is_push_pop"),
        columns.row,
        sa.func.coalesce(FOLDED_LABEL, "").label("name"),
    ).where(columns.report == report.index, columns.start.is_not(None))
    codes: dict[str, int] = {}
    batches = [{**batch, "name": _coded(batch["name"], codes)} for batch in session.array_batches(query)]
    if not batches:
        return {key: np.empty(0, kind) for key, kind in _READ.items()}, []
    read = {key: np.concatenate([batch.pop(key) for batch in batches]) for key in _READ}
    order = np.lexsort((read["row"], read["start"]))
    if not bool((np.diff(order) > 0).all()):
        read = {key: values[order] for key, values in read.items()}
    texts = list(codes)
    read["name"], firsts = _by_appearance(read["name"])
    return read, [texts[code] for code in firsts.tolist()]


_READ: dict[str, type[np.generic]] = {
    "start": np.int64,
    "end": np.int64,
    "is_open": np.bool_,
    "thread": np.int64,
    "is_whole": np.bool_,
    "is_push_pop": np.bool_,
    "row": np.int64,
    "name": np.int32,
}


def _coded(names: NDArray[Any], codes: dict[str, int]) -> NDArray[np.int32]:
    """Names as numbers; those not in ``codes`` yet are added."""
    import pandas as pd

    place, different = pd.factorize(names)
    numbers = np.array([codes.setdefault(str(name), len(codes)) for name in different], np.int32)
    return np.asarray(numbers[place], np.int32)


def _by_appearance(codes: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Numbers counted up in order of first appearance, and which number each of these was before."""
    import pandas as pd

    place, firsts = pd.factorize(codes)
    return np.asarray(place, np.int32), np.asarray(firsts, np.int32)


def _nested(found: tuple[dict[str, NDArray[Any]], list[str]]) -> Arrays:
    import pandas as pd

    read, names = found
    start, end, thread, is_whole = read["start"], read["end"], read["thread"], read["is_whole"]
    lane, threads = pd.factorize(thread, sort=True)
    return {
        "threads": threads,
        "names": json_array(names),
        "lane": lane.astype(np.int32),
        "name": read["name"],
        "row": read["row"],
        "start": start,
        "length": end - start,
        "is_push_pop": read["is_push_pop"],
        "is_open": read["is_open"],
        "is_whole": is_whole,
        **_nesting(start, end, thread, read["is_push_pop"] & is_whole),
    }


def _nesting(
    start: NDArray[np.int64], end: NDArray[np.int64], thread: NDArray[np.int64], is_nested: NDArray[np.bool_]
) -> Arrays:
    """Parent, level and self time of push/pop ranges (``is_nested``); a start/end range stands alone."""
    nesting = nest(start[is_nested], end[is_nested], thread[is_nested])
    parent, level = np.full(len(start), NO_PARENT, np.int32), np.zeros(len(start), np.int32)
    self_time, place = np.zeros(len(start), np.int64), np.flatnonzero(is_nested)
    parent[is_nested] = np.where(nesting.parent >= 0, place[nesting.parent], NO_PARENT)
    level[is_nested], self_time[is_nested] = nesting.level, nesting.self_time
    return {"parent": parent, "level": level, "self_time": self_time}


def _projected(session: Session, report: Report, ranges: Arrays, selection: Selection) -> Arrays:
    start, is_whole = ranges["start"], ranges["is_whole"]
    count = np.full(len(start), UNKNOWN, np.int32)
    delay, length, op_time = (np.zeros(len(start), np.int64) for _ in range(3))
    if has_launches(report):
        begin = start[is_whole]
        thread = ranges["threads"][ranges["lane"][is_whole]]
        calls = launch_calls(session, report, selection)
        found = project(begin, begin + ranges["length"][is_whole], thread, calls)
        count[is_whole], op_time[is_whole] = found.op_count, found.op_time
        delay[is_whole] = np.where(found.op_count > 0, found.start - begin, 0)
        length[is_whole] = found.end - found.start
    return {"op_count": count, "op_time": op_time, "gpu_delay": delay, "gpu_length": length}
