"""A job: the open reports, their ranks, and results that several questions share, computed once.

Results in memory (pairings, busy intervals, NVTX ranges) are recomputed when a report joins or the anchor of steps
changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from nsystui.base.errors import UsageError
from nsystui.base.selection import Selection, Task, Window, parse_window, window_words
from nsystui.base.text import shell_word
from nsystui.questions.queries.tasks import RankedTask, ranked_tasks, used_devices, world_size
from nsystui.questions.queries.time_window import extent, shares_clock
from nsystui.store.remember import Memory, Results, remember
from nsystui.store.session import Session

if TYPE_CHECKING:
    from nsystui.base.kernel_families import Rules
    from nsystui.questions.algebra.intervals import Intervals
    from nsystui.questions.collectives.alignment import Alignment, ClockMode
    from nsystui.questions.collectives.matching import Matching
    from nsystui.questions.collectives.waiting import Lateness
    from nsystui.questions.gpu.device_time import DeviceIntervals
    from nsystui.questions.gpu.utilisation import BusyIntervals
    from nsystui.questions.nccl.from_log import LogSizes
    from nsystui.questions.nccl.grouping import NcclProperty
    from nsystui.questions.nccl.pairing import NcclPairing
    from nsystui.questions.nvtx.ranges import NvtxRanges
    from nsystui.questions.nvtx.tree import NvtxTree
    from nsystui.questions.queries.numbering import Numbering
    from nsystui.questions.ranks.model_parts import ModelParts
    from nsystui.questions.ranks.table import RankFacts
    from nsystui.questions.steps.times import Steps

T = TypeVar("T")
# Results of the last few selections stay in memory, so that returning to a selection is free.
_MAX_RESULTS = 21
_EVERYTHING = Selection()


@dataclass
class OpenJob:
    """The reports of a session as one job."""

    session: Session
    nccl_log: LogSizes | None = None
    """NCCL's debug log of the same run, with message sizes that the exports lack."""
    numbering: Numbering | None = None
    """The ranks given by the user, if any."""
    step_range: str | None = None
    """The user's pattern of the NVTX ranges that are steps, if any: see `steps`."""
    steps_by: str | None = None
    """The user's anchor for finding steps, if any: one of `base.anchors.ANCHORS`."""
    alignment: Alignment | None = None
    """The alignment of the reports' clocks, after `align`."""
    left_out: tuple[str, ...] = ()
    """The files that could not be opened, with reasons."""
    tell: Callable[[str], object] = lambda note: None
    """Receives the closing note about left-out rows."""
    _memory: Memory = field(default_factory=lambda: Memory(_MAX_RESULTS))
    _whole_busy: BusyIntervals | None = None

    def close(self) -> None:
        """Close the session, after a note on the rows that were left out of any answer."""
        from nsystui.questions.queries.data_notes import left_out_note

        if note := left_out_note(self.session.reports):
            self.tell(note)
        self.session.close()

    @property
    def families(self) -> Rules:
        """The user's rules for kernel families: see `base.kernel_families`."""
        return self.session.families

    @property
    def ranks(self) -> tuple[RankedTask, ...]:
        """The tasks by rank."""
        return self.once(("ranks",), lambda: ranked_tasks(self.session, self.numbering))

    def align(self, mode: ClockMode) -> None:
        """Put all reports on one clock; reports that join later use UTC until the next call."""
        from nsystui.questions.collectives.alignment import align

        self.alignment = align(self.session, mode)

    @property
    def devices(self) -> frozenset[int]:
        """The CUDA ordinals of the devices that any process used."""
        return frozenset(item.device for item in used_devices(self.session))

    def tasks_of_ranks(self, numbers: frozenset[int]) -> frozenset[Task]:
        """Return the tasks with these rank numbers. Raises UsageError if no task has a number."""
        task_of_rank = {item.rank: item.task for item in self.ranks}
        unknown = sorted(numbers - task_of_rank.keys())
        if unknown:
            ranks = f"{min(task_of_rank)} to {max(task_of_rank)}" if task_of_rank else "none"
            raise UsageError(f"rank {unknown[0]} is not open: the ranks are {ranks}")
        return frozenset(task_of_rank[number] for number in numbers)

    def extent(self, selection: Selection = _EVERYTHING) -> Window:
        """Return the selected window, or the span of events of the selected tasks' reports; job time."""
        return extent(self.session, selection)

    @property
    def several_runs(self) -> str:
        """A sentence on how to compare reports of different runs; empty for a single run."""
        if self.shares_clock:
            return ""
        paths = [str(report.path) for report in self.session.reports]
        if len(paths) != 2:
            return "these reports are of different runs: `nsystui A… -- B…` compares two of them"
        return f"these reports are of different runs: `nsystui {' -- '.join(map(shell_word, paths))}` compares them"

    def window(self, text: str) -> Window:
        """Parse ``A:B`` as a window of job time.

        Raises UsageError also for a window outside the sessions, because nothing was recorded in it.
        """
        window, full_extent = parse_window(text, self.extent()), extent(self.session, _EVERYTHING, fit=False)
        if full_extent.end > full_extent.start and (window.start > full_extent.end or window.end < full_extent.start):
            raise UsageError(f"nothing was recorded {window_words(window)}, only {window_words(full_extent)}")
        return window

    def busy(self, selection: Selection) -> BusyIntervals:
        """Return the busy intervals of all devices for a selection, ignoring its time window and name filter."""
        wide = selection.with_window(None).with_name(None)
        busy = self.once(("busy", wide), lambda: self._load_busy(wide))
        return busy if selection.name is None else busy.without_name_filter()

    def gpus(self, selection: Selection) -> tuple[DeviceIntervals, ...]:
        """Return the busy intervals of all GPUs, see `busy`; devices of processes that share a GPU are combined."""
        from nsystui.questions.gpu.utilisation import gpus_of

        wide = selection.with_window(None).with_name(None)
        return self.once(("gpus", wide), lambda: gpus_of(self.session, self.busy(wide).devices))

    def graph_gaps(self, selection: Selection) -> Mapping[tuple[Task, int], Intervals]:
        """Return the GPUs' idle time inside replays of CUDA graphs, see `gpu.graph_gaps`, for all windows and names."""
        from nsystui.questions.gpu.graph_gaps import graph_gaps

        wide = selection.with_window(None).with_name(None)
        return self.once(("graph-gaps", wide), lambda: graph_gaps(self.session, self.gpus(wide)))

    def _load_busy(self, wide: Selection) -> BusyIntervals:
        """Load busy intervals; reuse earlier reports' intervals, which use most memory of a job of many ranks."""
        from nsystui.questions.gpu.utilisation import BusyIntervals

        busy = BusyIntervals.load(self.session, wide, self.ranks, self._whole_busy)
        if wide == _EVERYTHING:
            self._whole_busy = busy
        return busy

    def pairing(self) -> NcclPairing:
        """Return the pairing of all NCCL calls and kernels, with each kernel's cost (`measured`)."""
        from nsystui.questions.collectives.waiting import Arrivals, late_ranks, transfer_times
        from nsystui.questions.nccl.bandwidth import measured
        from nsystui.questions.nccl.pairing import NcclPairing

        def make() -> NcclPairing:
            pairing = NcclPairing.load(self.session, self.ranks, log)
            # Any work of a device can hide communication, and is slow to read.
            costed = measured(pairing, self.busy(_EVERYTHING).devices if len(pairing.kernels) else ())
            if len(self.ranks) < 2 or not len(pairing.kernels):
                return costed
            transfers = transfer_times(costed.kernels, self.collectives(), self.ranks)
            arrivals = [*map(Arrivals.of, self.collectives().groups)]
            late = late_ranks(arrivals, {item.task: item.rank for item in self.ranks})
            return replace(costed, kernels=costed.kernels.assign(**transfers), together=late)

        log = self.nccl_log
        return self.once(("pairing", log is not None), make)

    def collectives(self) -> Matching:
        """Return all collectives that ranks of the same run have in common."""
        return self.once(("collectives",), self._match_collectives)

    def _match_collectives(self) -> Matching:
        from nsystui.questions.collectives.matching import Matching, match, sequences

        reports = self.session.reports
        if self.shares_clock:
            is_whole = len(self.ranks) == world_size(self.session)
            return replace(match(sequences(self.session, reports)), is_whole=is_whole)
        matchings = [match(sequences(self.session, [report])) for report in reports]
        groups = tuple(group for matching in matchings for group in matching.groups)
        return Matching(groups, tuple(member for matching in matchings for member in matching.unmatched))

    @property
    def shares_clock(self) -> bool:
        """Whether the open reports are of one run, as far as their clocks show."""
        return shares_clock(self.session.reports)

    def rank_facts(self, selection: Selection, step_name: str | None = None) -> RankFacts:
        """Return the figures of the ranks table; for ``step_name`` see `steps`."""
        from nsystui.questions.collectives.alignment import Alignment
        from nsystui.questions.ranks.steps import step_times
        from nsystui.questions.ranks.table import RankFacts

        steps = self.steps(step_name)
        times = step_times(steps, selection.window)
        parts, clocks = self.model_parts(step_name), self.alignment or Alignment()
        return RankFacts(self.busy(selection), times, self.lateness(selection), clocks, parts, steps.notes)

    def lateness(self, selection: Selection) -> Mapping[Task, Lateness]:
        """Return the lateness of each rank with synchronous collectives in the selection's window."""
        from nsystui.questions.collectives.waiting import Arrivals, lateness

        return lateness([Arrivals.of(group, selection.window) for group in self.collectives().groups])

    def model_parts(self, step_name: str | None = None) -> ModelParts:
        """Return which ranks run the same kernels in the whole job; for ``step_name`` see `steps`."""
        from nsystui.questions.ranks.model_parts import ModelParts

        steps = self.steps(step_name)
        return self.once(("model-parts", step_name), lambda: ModelParts.load(self.session, self.ranks, steps))

    def steps(self, name: str | None = None) -> Steps:
        """Return the training steps of all tasks.

        ``name`` is a regular expression for step ranges, by default ``step_range``; without either, steps are detected.
        """
        from nsystui.questions.steps.times import Steps

        name = self.step_range if name is None else name
        return self.once(("steps", name), lambda: Steps.load(self.session, self.ranks, name, self.steps_by))

    @property
    def version(self) -> Hashable:
        """The state that all answers depend on: the reports with their clocks, and the anchor of steps."""
        return self.session.version, self.steps_by

    def next_steps_by(self) -> str | None:
        """Set ``steps_by`` to the next anchor that any task has, or ``None`` (the default), and return it."""
        from nsystui.base.anchors import ANCHORS
        from nsystui.questions.steps.times import Steps

        load = partial(Steps.load, self.session, self.ranks, None)
        defaults = {steps.anchor for steps in load(None).of_task.values()}
        anchors = ANCHORS[ANCHORS.index(self.steps_by) + 1 :] if self.steps_by is not None else ANCHORS
        self.steps_by = next((anchor for anchor in anchors if anchor not in defaults and load(anchor).of_task), None)
        return self.steps_by

    def smart_names(self) -> Mapping[str, str]:
        """Return the smart name of each kernel by its full name."""
        from nsystui.questions.kernels.summary import smart_kernel_names

        return self.once(("smart-names",), lambda: smart_kernel_names(self.session))

    def pairing_by(self, groups: Collection[NcclProperty], step_range: str | None = None) -> NcclPairing:
        """Return the pairing, with steps and NVTX ranges of its rows if ``groups`` need them.

        Communicators need ranges for their roles.
        """
        from nsystui.questions.nccl.bandwidth import in_ranges, in_steps
        from nsystui.questions.nccl.grouping import NcclProperty

        pairing = self.pairing()
        if NcclProperty.ROLE in groups:
            roles = {item.rank: item.role for item in self.ranks}
            kernels, calls = (frame.assign(role=frame["rank"].map(roles)) for frame in (pairing.kernels, pairing.calls))
            pairing = replace(pairing, kernels=kernels, calls=calls)
        if NcclProperty.STEP in groups or step_range is not None:
            pairing = in_steps(pairing, self.steps(step_range))
        if {NcclProperty.RANGE, NcclProperty.COMMUNICATOR}.isdisjoint(groups):
            return pairing
        return in_ranges(pairing, self.nvtx_ranges(_EVERYTHING))

    def nvtx_ranges(self, selection: Selection) -> NvtxRanges:
        """Return the NVTX ranges of a selection, read once for all windows and names; of a step that begin in it."""
        from nsystui.questions.nvtx.ranges import NvtxRanges

        wide = selection.with_window(None).with_name(None)
        ranges = self.once(("nvtx-ranges", wide), lambda: NvtxRanges.load(self.session, wide, self.ranks))
        is_of_step = selection.window is not None and selection.window.step is not None
        return ranges.narrowed(selection, self.steps() if is_of_step else None)

    def nvtx_tree(self, selection: Selection, by: str, fold: str) -> NvtxTree:
        """Return a selection's NVTX ranges as a tree."""
        from nsystui.questions.nvtx.tree import NvtxTree

        def build() -> NvtxTree:
            # Loads the ranges here: else, a report that joins meanwhile could leave an old tree under a new version.
            return NvtxTree.build(self.nvtx_ranges(selection), by=by, fold=fold)

        return self.once(("nvtx-tree", selection, by, fold), build)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return ``make()``, or its earlier result for the same key and state of the session."""
        state = (str(self.version),)
        result = remember(Results(state, None, memory=self._memory), key, make)
        # Otherwise each state would keep its intervals while hundreds of reports join one by one.
        self._memory.forget_others(state)
        return result
