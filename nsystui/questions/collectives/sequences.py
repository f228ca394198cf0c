"""The NCCL kernels of each communicator of each rank, in order: what can be matched across ranks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from nsystui.base.selection import Task
from nsystui.questions.derived import of_each_report, runs_of
from nsystui.questions.intervals import Times
from nsystui.questions.nccl.names import collective_of_kernel
from nsystui.questions.nccl.pairing import NcclPairing
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.results import json_array, json_of
from nsystui.store.session import Session

if TYPE_CHECKING:
    import pandas as pd

    from nsystui.store.results import Arrays

UNKNOWN = -1
"""A message size that is not known."""

_MOST_TO_ALIGN = 1 << 12
"""Collectives of a stream that tell enough of a clock."""
_NUMBERS = ("process", "device", "stream", "row", "start", "end")
_TEXTS = ("collective", "communicator")


@dataclass(frozen=True, order=True)
class Member:
    """Who takes part in a collective: a GPU of a task, ``device`` being its CUDA ordinal."""

    task: Task
    device: int


@dataclass(frozen=True, eq=False)
class KernelSequence:
    """The n NCCL kernels of a member on one communicator (or one stream, where that is not known), by start.

    Arrays have the shape ``(n,)``; times are job time, ns. ``row`` identifies a kernel in its report, ``size`` is its
    message size in bytes (``UNKNOWN`` where the export does not say).
    """

    member: Member
    communicator: str
    stream: int
    collective: NDArray[np.object_]
    size: Times
    row: Times
    start: Times
    end: Times
    whole: int = -1
    """How many kernels there were, where only some of them are here."""

    def __len__(self) -> int:
        return len(self.start)

    @property
    def count(self) -> int:
        """How many kernels the member ran."""
        return len(self) if self.whole < 0 else self.whole


def sequences(session: Session, reports: Sequence[Report]) -> list[KernelSequence]:
    """The sequences of every member of these reports, on the clock that these have.

    ``communicator`` is empty where no payload tells it. What is read is kept beside the packs.
    """
    with_kernels = [report for report in reports if report.count(tables.kernels)]

    def compute(part: Session, missing: list[Report]) -> dict[int, Arrays]:
        indices = {report.index for report in missing}
        return _computed(part, [report for report in part.reports if report.index in indices])

    kept = of_each_report(session, with_kernels, "collectives", compute, by=tables.kernels, doing="collectives")
    return [one for report in with_kernels for one in _split(report, kept[report.index])]


def stream_sequences(session: Session, reports: Sequence[Report]) -> list[KernelSequence]:
    """The sequences as kernels alone tell them: by stream, named by the kernels, without sizes, ``row`` all 0.

    Of very many kernels some are given, the same ones of sequences of one length. For this few columns of one table are
    read (``STREAM_COLUMNS``). Kept as above.
    """
    with_kernels = [report for report in reports if report.count(tables.kernels)]

    def compute(part: Session, missing: list[Report]) -> dict[int, Arrays]:
        return _streams(part, {report.index for report in missing})

    found: list[KernelSequence] = []
    for run in runs_of(with_kernels, tables.kernels):
        kept = of_each_report(session, run, "nccl-streams", compute)
        found += [_thinned(one) for report in run for one in _split(report, kept[report.index])]
    return found


def _thinned(whole: KernelSequence) -> KernelSequence:
    count = len(whole)
    if count <= _MOST_TO_ALIGN:
        return whole
    rows = np.linspace(0, count - 1, _MOST_TO_ALIGN).astype(np.int64)
    arrays = {name: getattr(whole, name)[rows] for name in ("collective", "size", "row", "start", "end")}
    return replace(whole, **arrays, whole=count)


STREAM_COLUMNS = ("process", "device", "stream", "start", "end", "short_name", "is_nccl")
"""What ``stream_sequences`` reads of the kernels."""


def _streams(session: Session, reports: Collection[int]) -> dict[int, Arrays]:
    """What is kept for ``stream_sequences``, on the reports' own clocks."""
    columns = tables.kernels.c
    chosen = [columns[name] for name in STREAM_COLUMNS[:-1]]
    is_whole = (columns.start.is_not(None), columns.end.is_not(None))
    query = sa.select(columns.report, *chosen).where(
        columns.is_nccl == 1, columns.report.in_(sorted(reports)), *is_whole
    )
    frame = session.frame(query)
    names, distinct = frame["short_name"].factorize()
    of_name = np.array([*(collective_of_kernel(str(name)) for name in distinct), None], object)
    frame = frame.assign(collective=of_name[names], communicator="", message_size=UNKNOWN, row=0)
    rows = frame["report"].to_numpy(np.int64)
    return {index: _plain_arrays(frame[rows == index], clock_offset=0) for index in reports}


def _computed(session: Session, reports: Sequence[Report]) -> dict[int, Arrays]:
    frame = NcclPairing.load(session, reports=[report.index for report in reports]).kernels
    frame = frame.dropna(subset=["start", "end"])
    rows = frame["report"].to_numpy(np.int64)
    return {report.index: _plain_arrays(frame[rows == report.index], report.clock_offset) for report in reports}


def _plain_arrays(frame: pd.DataFrame, clock_offset: int) -> Arrays:
    """What is kept of NCCL kernels, on their report's own clock; ``clock_offset`` is in the times of the frame."""
    found: dict[str, Any] = {name: frame[name].to_numpy(np.int64) for name in _NUMBERS}
    found["start"] = found["start"] - clock_offset
    found["end"] = found["end"] - clock_offset
    found["size"] = frame["message_size"].astype("Int64").fillna(UNKNOWN).to_numpy(np.int64)
    for name in _TEXTS:
        found[name], found[f"{name}_texts"] = _coded(frame[name])
    return found


def _coded(texts: pd.Series[Any]) -> tuple[Times, NDArray[Any]]:
    """Each text as its place in the list of texts; an empty one where it is missing."""
    codes, distinct = texts.astype(object).where(texts.notna(), "").factorize()
    return codes.astype(np.int64), json_array([str(text) for text in distinct])


def _split(report: Report, arrays: Arrays) -> Iterator[KernelSequence]:
    """The kernels of a report by member and communicator."""
    collectives = np.array([*json_of(arrays["collective_texts"]), ""], object)
    communicators = json_of(arrays["communicator_texts"])
    is_known = np.array([bool(text) for text in communicators] + [False])[arrays["communicator"]]
    # A communicator's kernels may run on several streams, but a stream without one has only itself.
    stream = np.where(is_known, 0, arrays["stream"])
    keys = np.column_stack([arrays["process"], arrays["device"], arrays["communicator"], stream]).astype(np.int64)
    _, places = np.unique(keys, axis=0, return_inverse=True)
    places = places.reshape(-1)
    order = np.lexsort((arrays["row"], arrays["start"], places))
    firsts = np.flatnonzero(np.diff(places[order], prepend=UNKNOWN))
    for rows in np.split(order, firsts[1:]) if len(order) else ():
        first = rows[0]
        yield KernelSequence(
            Member(Task(report.index, int(arrays["process"][first])), int(arrays["device"][first])),
            communicators[arrays["communicator"][first]],
            int(arrays["stream"][first]),
            collectives[arrays["collective"][rows]],
            arrays["size"][rows],
            arrays["row"][rows],
            arrays["start"][rows] + report.clock_offset,
            arrays["end"][rows] + report.clock_offset,
        )
