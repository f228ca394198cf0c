"""Columns of a report's NVTX ranges, each computed and saved once, and read separately.

Columns of millions of ranges take hundreds of megabytes; a screen needs few.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from nsystui.base.resources import give_back
from nsystui.base.selection import Selection
from nsystui.base.types import Array, Ints
from nsystui.questions.algebra.nesting import NO_PARENT, tree_of
from nsystui.questions.algebra.projection import LaunchCalls, project_parts
from nsystui.questions.nvtx import loading
from nsystui.questions.nvtx.chains import OPEN, PUSH_POP, UNKNOWN, WHOLE, Chains, Totals, added_up, chained, narrow
from nsystui.questions.queries.captures import replays_of
from nsystui.questions.queries.derived import in_runs
from nsystui.store import tables
from nsystui.store.remember import Arrays, as_arrays, json_array, json_of, version_of
from nsystui.store.report import Report
from nsystui.store.session import Session


@dataclass(frozen=True, eq=False)
class RangeColumns:
    """Columns of the n ranges of ``report``, by start and row; narrow integers, shape ``(n,)``, the report's own clock.

    ``selection``: the devices and streams for projections; columns that depend on it are saved only if it has all of
    them.

    * ``lane``: index into ``threads``, ``name``: into ``names``
    * ``row``: nsys's ``RangeId``. ``start``, ``length``: ns; a range that never ended has no length and no operations.
      ``flags``: see `chains`
    * ``parent``, ``level``, ``self_time``: see `nesting.Nesting`; -1, 0 and 0 for start/end ranges
    * ``op_count``, ``op_time``, ``gpu_length`` (ns), ``gpu_delay`` (from the start of the range to the start of its
      projection, ns): see `projection.Projection`; the count may be ``UNKNOWN``
    * ``replayed``: the time of the operations of CUDA graphs that were captured in the range, ns
    * ``by_chain``: the ranges chain by chain, and ``gpu_by_chain`` their projected lengths, -1 without a projection
    """

    session: Session
    report: Report
    selection: Selection = field(default_factory=Selection)
    _held: dict[str, Arrays] = field(default_factory=dict, repr=False)
    """Arrays that are not in files, or that a worker computed."""

    def __getitem__(self, name: str) -> Array:
        return self.arrays(name)[name]

    @property
    def names(self) -> list[str]:
        """The different names (`FOLDED_LABEL`: without arguments and shapes), in order of appearance."""
        names: list[str] = json_of(self["names"])
        return names

    @property
    def threads(self) -> Ints:
        """NVIDIA's globalTid of each lane, ascending."""
        return self["threads"].astype(np.int64)

    def chains(self) -> Chains:
        """Return the chains of the ranges."""
        arrays = {key: values.astype(np.int64) for key, values in self.arrays("chains").items()}
        totals = {key.removeprefix(_SUM): arrays.pop(key) for key in list(arrays) if key.startswith(_SUM)}
        return Chains(**arrays, totals=Totals(**totals))

    def arrays(self, question: str) -> Arrays:
        """Return a column, or the columns of ``chains``, computed and saved if missing."""
        arrays = self._loaded(question)
        if arrays is None:
            computed = _MAKERS[question](self)
            self._save(computed)
            arrays = computed[question]
            del computed
            give_back()
        return arrays

    def is_made(self, question: str) -> bool:
        """Return whether a column is already computed."""
        return self._loaded(question) is not None

    def hold(self, computed: Mapping[str, Arrays]) -> None:
        """Keep arrays computed elsewhere."""
        self._held.update(computed)

    def _loaded(self, question: str) -> Arrays | None:
        arrays = self._held.get(question)
        if arrays is None and self._is_saved(question):
            arrays = self.session.results(self.report).load(self._file_of(question), version_of(_read), as_arrays)
            if arrays is not None and self._is_small:
                columns: dict[str, dict[str, Array]] = {}
                for key, array in arrays.items():
                    column, _, name = key.partition(" ")  # see `_save`
                    columns.setdefault(column, {})[name] = array
                self.hold(columns)
                arrays = columns.get(question)
        return arrays

    @property
    def _is_small(self) -> bool:
        return self.report.count(tables.nvtx_ranges) <= _SMALL

    def _file_of(self, question: str) -> str:
        """Return the file's name; small reports have one per maker, because large jobs have many reports."""
        return f"nvtx-{_MAKERS[question].__name__.strip('_')}" if self._is_small else f"nvtx-{question}"

    def _is_saved(self, question: str) -> bool:
        is_everything = self.selection.devices is None and self.selection.streams is None
        return is_everything or _MAKERS[question] not in _DEVICE_MAKERS

    def _save(self, made: Mapping[str, Arrays]) -> None:
        # A report that could not be read completely was removed meanwhile.
        is_open = any(report.index == self.report.index for report in self.session.reports)
        results, version = self.session.results(self.report), version_of(_read)
        if self._is_small:
            self.hold(made)
            question = next(iter(made))
            if is_open and self._is_saved(question):
                flat = {f"{column} {name}": array for column, arrays in made.items() for name, array in arrays.items()}
                results.save(self._file_of(question), flat, version)
            return
        for question, arrays in made.items():
            may_save = is_open and self._is_saved(question)
            if not (may_save and results.save(self._file_of(question), arrays, version)):
                self._held[question] = arrays


def columns_of_each(session: Session, reports: Sequence[Report], selection: Selection) -> Iterator[RangeColumns]:
    """Yield the columns of reports; workers, if any, compute their chains."""
    columns = [RangeColumns(session, report, selection) for report in reports]
    if session.workers is not None:
        missing = {item.report.index: item for item in columns if not item.is_made("chains")}
        run = [item.report for item in missing.values()]
        for chains_by_index in in_runs(session, run, partial(_chains_of_each, selection), tables.nvtx_ranges):
            for index, arrays in chains_by_index.items():
                missing[index].hold(arrays)
    yield from columns


def _chains_of_each(selection: Selection, session: Session, reports: list[Report]) -> dict[int, dict[str, Arrays]]:
    """Compute chains on the worker that reads the ranges, because chains are smaller to transfer."""
    columns = [RangeColumns(session, report, selection) for report in reports]
    return {item.report.index: {name: item.arrays(name) for name in ("chains", "names", "threads")} for item in columns}


_SUM = "sum_"
Made = dict[str, "Arrays"]


_SMALL = 1 << 16
"""The most ranges of a report whose columns are saved and read together."""


def _made(**columns: Array) -> Made:
    return {name: {name: narrow(columns.pop(name))} for name in list(columns)}


def _read(ranges: RangeColumns) -> Made:
    texts, threads = loading.Texts(), loading.Numbers()
    slices: dict[str, list[Array]] = {key: [] for key in ("name", "lane", "row", "start", "length", "flags")}
    for part in loading.range_parts(ranges.session, ranges.report, texts, loading.FOLDED_LABEL):
        flags = part.is_push_pop * PUSH_POP + part.is_open * OPEN + part.is_whole * WHOLE
        part_columns = (part.name, threads.coded(part.thread), part.row, part.start, part.end - part.start, flags)
        for values, column in zip(slices.values(), part_columns, strict=True):
            values.append(narrow(column))
    columns = {key: np.concatenate(slices.pop(key)) for key in list(slices)}
    order = np.lexsort((columns["row"], columns["start"]))
    if not bool((order[1:] > order[:-1]).all()):
        for key in list(columns):
            columns[key] = columns[key][order]
    del order
    thread_ids = np.array(list(threads.numbers), np.int64)
    thread_order = np.argsort(thread_ids)
    columns["lane"] = np.argsort(thread_order)[columns["lane"]] if len(thread_order) > 1 else columns["lane"]
    codes, names = loading.by_appearance(columns["name"], len(texts.numbers)), texts.texts
    new_codes = np.empty(len(names), np.int32)
    new_codes[codes] = np.arange(len(codes))
    columns["name"] = new_codes[columns["name"]]
    names_array = json_array([names[number] for number in codes.tolist()])
    return {"names": {"names": names_array}, **_made(threads=thread_ids[thread_order], **columns)}


def _nest(ranges: RangeColumns) -> Made:
    """Nest push/pop ranges; a start/end range has no parent."""
    start = ranges["start"].astype(np.int64, copy=False)
    end, lane = start + ranges["length"], ranges["lane"]
    is_nested = (ranges["flags"] & (PUSH_POP | WHOLE)) == PUSH_POP | WHOLE
    if is_nested.all():
        parent, level, self_time = tree_of(start, end, lane)
        return _made(parent=parent, level=level, self_time=self_time)
    nested = np.flatnonzero(is_nested)
    parents, levels, self_times = tree_of(start[nested], end[nested], lane[nested])
    parent, level = np.full(len(start), NO_PARENT, np.int32), np.zeros(len(start), np.int32)
    parent[nested] = np.where(parents >= 0, nested[parents], NO_PARENT)
    level[nested] = levels
    self_time = np.zeros(len(start), np.int64)
    self_time[nested] = self_times
    return _made(parent=parent, level=level, self_time=self_time)


def _project(ranges: RangeColumns) -> Made:
    """Project the ranges onto the GPU, except ranges that ended on another thread or never."""
    start, is_whole = ranges["start"].astype(np.int64, copy=False), (ranges["flags"] & (WHOLE | OPEN)) == WHOLE
    if not loading.has_launches(ranges.report):
        zeros = np.zeros(len(start), np.int8)
        return _made(op_count=zeros + UNKNOWN, op_time=zeros, gpu_delay=zeros, gpu_length=zeros)
    threads = ranges.threads
    calls = loading.launch_parts(ranges.session.part([ranges.report.index]), ranges.report, ranges.selection, threads)
    lane = np.where(is_whole, ranges["lane"], -1)

    def on_lanes() -> Iterator[loading.LaunchCallColumns]:
        for part in calls:
            yield part.on_lanes(threads)
            give_back()  # otherwise, arrays of all parts are scattered in memory

    result = project_parts(start, ranges["length"], lane, on_lanes())
    op_count = np.where(is_whole, result.op_count, UNKNOWN)
    return _made(op_count=op_count, op_time=result.op_time, gpu_delay=result.delay, gpu_length=result.length)


def _replay(ranges: RangeColumns) -> Made:
    start, is_whole = ranges["start"].astype(np.int64, copy=False), (ranges["flags"] & (WHOLE | OPEN)) == WHOLE
    if not ranges.report.count(tables.graph_nodes):
        return _made(replayed=np.zeros(len(start), np.int8))
    thread, time, _, total = replays_of(ranges.session, ranges.report, ranges.selection)
    lane = np.where(np.isin(thread, ranges.threads), np.searchsorted(ranges.threads, thread), len(ranges.threads))
    calls = LaunchCalls(time, time, lane, time, time, total)
    result = project_parts(start, ranges["length"], np.where(is_whole, ranges["lane"], -1), [calls])
    return _made(replayed=result.op_time)


def _chain(ranges: RangeColumns) -> Made:
    chains, order = chained(ranges["lane"], ranges["name"], ranges["parent"], ranges["level"])
    return {**_made(by_chain=order), "unsummed": chains}


def _add_up(ranges: RangeColumns) -> Made:
    chains = dict(ranges.arrays("unsummed"))
    totals, gpu_by_chain = added_up(ranges.__getitem__, ranges["by_chain"], chains.pop("count").astype(np.int64))
    sums = {_SUM + key: narrow(values) for key, values in vars(totals).items()}
    return {**_made(gpu_by_chain=gpu_by_chain), "chains": {**chains, **sums}}


_MAKERS: dict[str, Callable[[RangeColumns], Made]] = {
    **dict.fromkeys(("names", "threads", "name", "lane", "row", "start", "length", "flags"), _read),
    **dict.fromkeys(("parent", "level", "self_time"), _nest),
    **dict.fromkeys(("op_count", "op_time", "gpu_delay", "gpu_length"), _project),
    "replayed": _replay,
    **dict.fromkeys(("by_chain", "unsummed"), _chain),
    **dict.fromkeys(("gpu_by_chain", "chains"), _add_up),
}
"""The function that computes each column, usually with others."""
_DEVICE_MAKERS = (_project, _replay, _add_up)
