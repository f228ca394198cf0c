"""The columns of the NVTX ranges of a report: each is computed once, kept next to the report's own and read alone.

Of millions of ranges the columns together are hundreds of megabytes, and what is on a screen is made of a few of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nsystui.base.resources import give_back
from nsystui.base.selection import Selection
from nsystui.questions.algebra.nesting import NO_PARENT, tree_of
from nsystui.questions.algebra.projection import project_parts
from nsystui.questions.nvtx.chains import OPEN, PUSH_POP, UNKNOWN, WHOLE, Chains, Totals, added_up, chained, narrow
from nsystui.questions.nvtx.loading import (
    FOLDED_LABEL,
    Ints,
    LaunchCallColumns,
    Texts,
    has_launches,
    launch_parts,
    range_parts,
)
from nsystui.questions.queries.derived import in_runs
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.results import as_arrays, json_array, json_of, version_of
from nsystui.store.session import Session

if TYPE_CHECKING:
    from nsystui.store.results import Arrays


@dataclass(frozen=True, eq=False)
class RangeColumns:
    """The columns of the n ranges of ``report``, by start and row. Integers are as narrow as they can be; ``(n,)``.

    Times are on the report's own clock. ``selection`` says which devices and streams the ranges are projected onto;
    what depends on that is kept where it is all of them.

    * ``lane``: index into ``threads``, ``name``: into ``names``
    * ``row``: nsys's ``RangeId``. ``start``, ``length``: ns; a range that never ended has no length and no operations.
      ``flags``: see `chains`
    * ``parent``, ``level``, ``self_time``: see `nesting.Nesting`; of push/pop ranges, and -1, 0 and 0 for start/end
      ranges
    * ``op_count``, ``op_time``, ``gpu_length`` (ns), ``gpu_delay`` (from the start of the range to that of the
      projected one, ns): see `projection.Projection`; the count is ``UNKNOWN`` where nothing can tell
    * ``by_chain``: the ranges chain by chain, and ``gpu_by_chain`` their projected lengths, -1 for none
    """

    session: Session
    report: Report
    selection: Selection = field(default_factory=Selection)
    _held: dict[str, Arrays] = field(default_factory=dict, repr=False)
    """What is not kept in files, or was computed elsewhere."""

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.arrays(name)[name]

    @property
    def names(self) -> list[str]:
        """The different names, in order of first appearance, without PyTorch's suffix."""
        names: list[str] = json_of(self["names"])
        return names

    @property
    def threads(self) -> Ints:
        """NVIDIA's globalTid of each lane, ascending."""
        return self["threads"].astype(np.int64)

    def chains(self) -> Chains:
        """Return the chains of the ranges."""
        found = {key: values.astype(np.int64) for key, values in self.arrays("chains").items()}
        totals = {key.removeprefix(_SUM): found.pop(key) for key in list(found) if key.startswith(_SUM)}
        return Chains(**found, totals=Totals(**totals))

    def arrays(self, question: str) -> Arrays:
        """Return a column, or the ``chains``, which are several; where there is none, compute what comes with it."""
        found = self._found(question)
        if found is None:
            made = _MAKERS[question](self)
            self._keep(made)
            found = made[question]
            del made
            give_back()
        return found

    def is_made(self, question: str) -> bool:
        """Tell whether a column need not be computed."""
        return self._found(question) is not None

    def hold(self, made: Mapping[str, Arrays]) -> None:
        """Take in what was computed elsewhere."""
        self._held.update(made)

    def _found(self, question: str) -> Arrays | None:
        found = self._held.get(question)
        if found is None and self._is_kept(question):
            results = self.session.results(self.report)
            found = results.load(self._file_of(question), version_of(_read), as_arrays)
            if found is not None and self._is_small:
                made: dict[str, dict[str, NDArray[Any]]] = {}
                for key, array in found.items():
                    column, _, name = key.partition(" ")  # see `_keep`
                    made.setdefault(column, {})[name] = array
                self.hold(made)
                found = made.get(question)
        return found

    @property
    def _is_small(self) -> bool:
        return self.report.count(tables.nvtx_ranges) <= _SMALL

    def _file_of(self, question: str) -> str:
        """Of a small report one file has all that is computed together: a job of a thousand ranks has enough files."""
        return f"nvtx-{_MAKERS[question].__name__.strip('_')}" if self._is_small else f"nvtx-{question}"

    def _is_kept(self, question: str) -> bool:
        is_everything = self.selection.devices is None and self.selection.streams is None
        return is_everything or _MAKERS[question] not in _OF_DEVICES

    def _keep(self, made: Mapping[str, Arrays]) -> None:
        """Keeps what one maker made."""
        # What could not be read whole was left out meanwhile.
        is_open = any(report.index == self.report.index for report in self.session.reports)
        results, version = self.session.results(self.report), version_of(_read)
        if self._is_small:
            self.hold(made)
            question = next(iter(made))
            if is_open and self._is_kept(question):
                together = {f"{column} {name}": array for column, own in made.items() for name, array in own.items()}
                results.save(self._file_of(question), together, version)
            return
        for question, arrays in made.items():
            is_saved = is_open and self._is_kept(question)
            if not (is_saved and results.save(self._file_of(question), arrays, version)):
                self._held[question] = arrays


def columns_of_each(session: Session, reports: Sequence[Report], selection: Selection) -> Iterator[RangeColumns]:
    """Yield the columns of reports; their chains are made by the session's workers where there are any."""
    every = [RangeColumns(session, report, selection) for report in reports]
    if session.workers is not None:
        missing = {own.report.index: own for own in every if not own.is_made("chains")}
        run = [own.report for own in missing.values()]
        for found in in_runs(session, run, partial(_chains_of_each, selection), tables.nvtx_ranges):
            for index, arrays in found.items():
                missing[index].hold(arrays)
    yield from every


def _chains_of_each(selection: Selection, session: Session, reports: list[Report]) -> dict[int, dict[str, Arrays]]:
    """Runs on a worker, which has the ranges where they lie: they are more than their chains."""
    every = [RangeColumns(session, report, selection) for report in reports]
    return {own.report.index: {name: own.arrays(name) for name in ("chains", "names", "threads")} for own in every}


_SUM = "sum_"
Made = dict[str, "Arrays"]


_SMALL = 1 << 16
"""The most ranges of a report whose columns are read together."""


def _made(**columns: NDArray[Any]) -> Made:
    """Each of the columns by itself, in as few bytes as hold it."""
    return {name: {name: narrow(columns.pop(name))} for name in list(columns)}


def _read(own: RangeColumns) -> Made:
    """What the export says of the ranges."""
    texts, threads = Texts(), _Numbers()
    slices: dict[str, list[NDArray[Any]]] = {key: [] for key in ("name", "lane", "row", "start", "length", "flags")}
    for part in range_parts(own.session, own.report, texts, FOLDED_LABEL):
        flags = part.is_push_pop * PUSH_POP + part.is_open * OPEN + part.is_whole * WHOLE
        of_part = (part.name, threads.of(part.thread), part.row, part.start, part.end - part.start, flags)
        for values, column in zip(slices.values(), of_part, strict=True):
            values.append(narrow(column))
    columns = {key: np.concatenate(slices.pop(key)) for key in list(slices)}
    order = np.lexsort((columns["row"], columns["start"]))
    if not bool((order[1:] > order[:-1]).all()):
        for key in list(columns):
            columns[key] = columns[key][order]
    del order
    lanes = np.argsort(threads.values())
    columns["lane"] = np.argsort(lanes)[columns["lane"]] if len(lanes) > 1 else columns["lane"]
    used, names = by_appearance(columns["name"], len(texts.numbers)), texts.texts
    place = np.empty(len(names), np.int32)
    place[used] = np.arange(len(used))
    columns["name"] = place[columns["name"]]
    kept = json_array([names[number] for number in used.tolist()])
    return {"names": {"names": kept}, **_made(threads=threads.values()[lanes], **columns)}


_AT_ONCE = 1 << 18


def by_appearance(codes: NDArray[Any], most: int) -> Ints:
    """Return the different codes, all of which are below ``most``, in order of first appearance."""
    first = np.full(most, len(codes))
    for start in range(0, len(codes), _AT_ONCE)[::-1]:
        some = codes[start : start + _AT_ONCE]
        first[some[::-1]] = np.arange(start, start + len(some))[::-1]
    return np.argsort(first, kind="stable")[: int(np.count_nonzero(first < len(codes)))]


@dataclass
class _Numbers:
    """Numbers for the few different values of long arrays."""

    known: dict[int, int] = field(default_factory=dict)

    def of(self, values: Ints) -> Ints:
        different, places = np.unique(values, return_inverse=True)
        return np.array([self.known.setdefault(value, len(self.known)) for value in different.tolist()])[places]

    def values(self) -> Ints:
        return np.array(list(self.known), np.int64)


def _nest(own: RangeColumns) -> Made:
    """The nesting of push/pop ranges; a start/end range stands alone."""
    start = own["start"].astype(np.int64, copy=False)
    end, lane = start + own["length"], own["lane"]
    is_nested = (own["flags"] & (PUSH_POP | WHOLE)) == PUSH_POP | WHOLE
    if is_nested.all():
        parent, level, self_time = tree_of(start, end, lane)
        return _made(parent=parent, level=level, self_time=self_time)
    nested = np.flatnonzero(is_nested)
    around, levels, times = tree_of(start[nested], end[nested], lane[nested])
    parent, level = np.full(len(start), NO_PARENT, np.int32), np.zeros(len(start), np.int32)
    parent[nested] = np.where(around >= 0, nested[around], NO_PARENT)
    level[nested] = levels
    self_time = np.zeros(len(start), np.int64)
    self_time[nested] = times
    return _made(parent=parent, level=level, self_time=self_time)


def _project(own: RangeColumns) -> Made:
    """Project the ranges onto the GPU, except ranges that ended on another thread or never."""
    start, is_whole = own["start"].astype(np.int64, copy=False), (own["flags"] & (WHOLE | OPEN)) == WHOLE
    if not has_launches(own.report):
        nothing = np.zeros(len(start), np.int8)
        return _made(op_count=nothing + UNKNOWN, op_time=nothing, gpu_delay=nothing, gpu_length=nothing)
    threads = own.threads
    calls = launch_parts(own.session.part([own.report.index]), own.report, own.selection, threads)
    lane = np.where(is_whole, own["lane"], -1)

    def on_lanes() -> Iterator[LaunchCallColumns]:
        for part in calls:
            yield part.on_lanes(threads)
            give_back()  # before the next: else arrays of all parts lie scattered in memory

    found = project_parts(start, own["length"], lane, on_lanes())
    op_count = np.where(is_whole, found.op_count, UNKNOWN)
    return _made(op_count=op_count, op_time=found.op_time, gpu_delay=found.delay, gpu_length=found.length)


def _chain(own: RangeColumns) -> Made:
    chains, order = chained(own["lane"], own["name"], own["parent"], own["level"])
    return {**_made(by_chain=order), "unsummed": chains}


def _add_up(own: RangeColumns) -> Made:
    """The chains with their totals."""
    chains = dict(own.arrays("unsummed"))
    totals, gpu_by_chain = added_up(own.__getitem__, own["by_chain"], chains.pop("count").astype(np.int64))
    sums = {_SUM + key: narrow(values) for key, values in vars(totals).items()}
    return {**_made(gpu_by_chain=gpu_by_chain), "chains": {**chains, **sums}}


_MAKERS: dict[str, Callable[[RangeColumns], Made]] = {
    **dict.fromkeys(("names", "threads", "name", "lane", "row", "start", "length", "flags"), _read),
    **dict.fromkeys(("parent", "level", "self_time"), _nest),
    **dict.fromkeys(("op_count", "op_time", "gpu_delay", "gpu_length"), _project),
    **dict.fromkeys(("by_chain", "unsummed"), _chain),
    **dict.fromkeys(("gpu_by_chain", "chains"), _add_up),
}
"""What computes each column, with others."""
_OF_DEVICES = (_project, _add_up)
