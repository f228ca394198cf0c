"""A job: the open reports, who is which rank, and what several questions share, computed once.

The results in its memory (pairings, busy intervals, NVTX ranges) belong to one state of the job: when another report
joins, or steps are found by something else, they are computed anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from nsystui.base.errors import UsageError
from nsystui.base.selection import Selection, Task, Window, parse_window, window_words
from nsystui.base.text import shell_word
from nsystui.questions.queries.tasks import RankedTask, ranked_tasks
from nsystui.store.results import Memory, ResultKey
from nsystui.store.session import Session

if TYPE_CHECKING:
    from nsystui.base.kernel_families import Rules
    from nsystui.questions.collectives.alignment import Alignment, ClockMode
    from nsystui.questions.collectives.matching import Matching
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
# The results of the last few selections stay in memory, so that going back a crumb costs nothing.
_MOST_RESULTS = 20
_EVERYTHING = Selection()


@dataclass
class OpenJob:
    """The reports of a session as one job."""

    session: Session
    nccl_log: LogSizes | None = None
    """NCCL's debug log of the same run, which tells message sizes that the exports do not."""
    numbering: Numbering | None = None
    """Who is which rank, where the user says it."""
    step_range: str | None = None
    """Which NVTX ranges are steps, where the user says it for the whole job: see `steps`."""
    steps_by: str | None = None
    """What steps are found by, where the user says it: one of `base.anchors.ANCHORS`."""
    alignment: Alignment | None = None
    """How the clocks of the reports were made one, once `align` was asked for."""
    left_out: tuple[str, ...] = ()
    """The files that could not be opened, each with the reason."""
    tell: Callable[[str], object] = lambda note: None
    """Takes what is to be said of all that was asked, in the end."""
    _memory: Memory = field(default_factory=lambda: Memory(_MOST_RESULTS))
    _whole_busy: BusyIntervals | None = None
    _smart_names: tuple[int, Mapping[str, str]] | None = None

    def close(self) -> None:
        """Lets go of the session, after it was told which rows were left out of whatever was asked."""
        from nsystui.questions.queries.data_notes import left_out_note

        if note := left_out_note(self.session.reports):
            self.tell(note)
        self.session.close()

    @property
    def families(self) -> Rules:
        """The user's own rules for families of kernels: see `base.kernel_families`."""
        return self.session.families

    @property
    def ranks(self) -> tuple[RankedTask, ...]:
        """The tasks by rank."""
        return self.once(("ranks",), lambda: ranked_tasks(self.session, self.numbering))

    def align(self, mode: ClockMode) -> None:
        """Puts all reports on one clock; those that join later go by UTC until this is asked again."""
        from nsystui.questions.collectives.alignment import align

        self.alignment = align(self.session, mode)

    @property
    def devices(self) -> frozenset[int]:
        """The CUDA ordinals of the devices that any process used."""
        from nsystui.questions.queries.tasks import used_devices

        return frozenset(one.device for one in used_devices(self.session))

    def tasks_of_ranks(self, numbers: frozenset[int]) -> frozenset[Task]:
        """The tasks with these rank numbers; raises UsageError for a number that no task has."""
        found = {item.rank: item.task for item in self.ranks}
        unknown = sorted(numbers - found.keys())
        if unknown:
            there = f"{min(found)} to {max(found)}" if found else "none"
            raise UsageError(f"rank {unknown[0]} is not open: the ranks are {there}")
        return frozenset(found[number] for number in numbers)

    def extent(self, selection: Selection = _EVERYTHING) -> Window:
        """From the first to the last event of the selected tasks (or the selected window), in job time."""
        from nsystui.questions.queries.time_window import extent

        return extent(self.session, selection)

    @property
    def several_runs(self) -> str:
        """How to compare reports of different runs, in a sentence; empty for those of one."""
        if self.shares_clock:
            return ""
        paths = [str(report.path) for report in self.session.reports]
        if len(paths) != 2:
            return "these reports are of different runs: `nsystui A… -- B…` compares two of them"
        return f"these reports are of different runs: `nsystui {' -- '.join(map(shell_word, paths))}` compares them"

    def window(self, text: str) -> Window:
        """``A:B`` as a window of job time.

        Raises UsageError, also for one before or after the sessions, in which nothing can have been recorded.
        """
        from nsystui.questions.queries.time_window import extent

        window, whole = parse_window(text, self.extent()), extent(self.session, _EVERYTHING, fit=False)
        if whole.end > whole.start and (window.start > whole.end or window.end < whole.start):
            raise UsageError(f"nothing was recorded {window_words(window)}, only {window_words(whole)}")
        return window

    def busy(self, selection: Selection) -> BusyIntervals:
        """The busy intervals of every device for a selection, whatever its time window and name filter."""
        wide = selection.with_window(None).with_name(None)
        busy = self.once(("busy", wide), lambda: self._load_busy(wide))
        return busy if selection.name is None else busy.without_name_filter()

    def gpus(self, selection: Selection) -> tuple[DeviceIntervals, ...]:
        """The busy intervals of every GPU, see `busy`: the devices of processes that share one together."""
        from nsystui.questions.gpu.utilisation import gpus_of

        wide = selection.with_window(None).with_name(None)
        return self.once(("gpus", wide), lambda: gpus_of(self.session, self.busy(wide).devices))

    def _load_busy(self, wide: Selection) -> BusyIntervals:
        """Of reports that were there before, the intervals are: they are most of what a job of many ranks keeps."""
        from nsystui.questions.gpu.utilisation import BusyIntervals

        busy = BusyIntervals.load(self.session, wide, self.ranks, self._whole_busy)
        if wide == _EVERYTHING:
            self._whole_busy = busy
        return busy

    def pairing(self) -> NcclPairing:
        """Which NCCL call launched which NCCL kernel, over everything, and what each kernel cost (see `measured`)."""
        from nsystui.questions.collectives.waiting import transfer_times
        from nsystui.questions.nccl.bandwidth import measured
        from nsystui.questions.nccl.pairing import NcclPairing

        def make() -> NcclPairing:
            pairing = NcclPairing.load(self.session, self.ranks, log)
            # What hides communication depends on all work of a device, and takes its time to read.
            whole = measured(pairing, self.busy(_EVERYTHING).devices if len(pairing.kernels) else ())
            if len(self.ranks) < 2 or not len(pairing.kernels):
                return whole
            return replace(
                whole, kernels=whole.kernels.assign(transfer=transfer_times(whole.kernels, self.collectives()))
            )

        log = self.nccl_log
        return self.once(("pairing", log is not None), make)

    def collectives(self) -> Matching:
        """The collectives that several ranks have in common, over everything; those of different runs have none."""
        return self.once(("collectives",), self._match_collectives)

    def _match_collectives(self) -> Matching:
        from nsystui.questions.collectives.matching import Matching, match, sequences

        reports = self.session.reports
        if self.shares_clock:
            return match(sequences(self.session, reports))
        apart = [match(sequences(self.session, [report])) for report in reports]
        groups = tuple(group for one in apart for group in one.groups)
        return Matching(groups, tuple(member for one in apart for member in one.unmatched))

    @property
    def shares_clock(self) -> bool:
        """Whether the open reports are of one run, as far as their clocks tell."""
        from nsystui.questions.queries.time_window import shares_clock

        return shares_clock(self.session.reports)

    def rank_facts(self, selection: Selection, step_name: str | None = None) -> RankFacts:
        """The figures of the table of ranks; ``step_name`` as in `steps`."""
        from nsystui.questions.collectives.alignment import Alignment
        from nsystui.questions.collectives.waiting import Arrivals, lateness
        from nsystui.questions.ranks.steps import step_times
        from nsystui.questions.ranks.table import RankFacts

        steps = self.steps(step_name)
        arrivals = [Arrivals.of(group, selection.window) for group in self.collectives().groups]
        times = step_times(steps, selection.window)
        parts, clocks = self.model_parts(step_name), self.alignment or Alignment()
        return RankFacts(self.busy(selection), times, lateness(arrivals), clocks, parts, steps.notes)

    def model_parts(self, step_name: str | None = None) -> ModelParts:
        """Which ranks run the same kernels, over everything; ``step_name`` as in `steps`."""
        from nsystui.questions.ranks.model_parts import ModelParts

        steps = self.steps(step_name)
        return self.once(("model-parts", step_name), lambda: ModelParts.load(self.session, self.ranks, steps))

    def steps(self, name: str | None = None) -> Steps:
        """The training steps of every task.

        ``name`` is a regular expression for the NVTX ranges that are steps, else ``step_range``, else they are found.
        """
        from nsystui.questions.steps.times import Steps

        name = self.step_range if name is None else name
        return self.once(("steps", name), lambda: Steps.load(self.session, self.ranks, name, self.steps_by))

    @property
    def version(self) -> Hashable:
        """What every answer depends on: the reports with their clocks, and what steps are found by."""
        return self.session.version, self.steps_by

    def next_steps_by(self) -> str | None:
        """Find steps by the next anchor that any task has, ``None`` for the usual; return it."""
        from nsystui.base.anchors import ANCHORS
        from nsystui.questions.steps.times import Steps

        load = partial(Steps.load, self.session, self.ranks, None)
        usual = {one.anchor for one in load(None).of_task.values()}
        rest = ANCHORS[ANCHORS.index(self.steps_by) + 1 :] if self.steps_by is not None else ANCHORS
        self.steps_by = next((one for one in rest if one not in usual and load(one).of_task), None)
        return self.steps_by

    def smart_names(self) -> Mapping[str, str]:
        """The smart name of every kernel of the job by its full name."""
        from nsystui.questions.kernels.summary import smart_kernel_names

        version = self.session.version
        if self._smart_names is None or self._smart_names[0] != version:
            self._smart_names = version, smart_kernel_names(self.session)
        return self._smart_names[1]

    def pairing_by(self, groups: Collection[NcclProperty], step_range: str | None = None) -> NcclPairing:
        """The pairing, with the steps of its rows, and the NVTX ranges, where ``groups`` need them.

        Communicators need the ranges for their roles.
        """
        from nsystui.questions.nccl.bandwidth import in_ranges, in_steps
        from nsystui.questions.nccl.grouping import NcclProperty

        pairing = self.pairing()
        if NcclProperty.STEP in groups or step_range is not None:
            pairing = in_steps(pairing, self.steps(step_range))
        if {NcclProperty.RANGE, NcclProperty.COMMUNICATOR}.isdisjoint(groups):
            return pairing
        return in_ranges(pairing, self.nvtx_ranges(_EVERYTHING))

    def nvtx_ranges(self, selection: Selection) -> NvtxRanges:
        """The NVTX ranges of a selection; those of every window and name are read once."""
        from nsystui.questions.nvtx.ranges import NvtxRanges

        wide = selection.with_window(None).with_name(None)
        ranges = self.once(("nvtx-ranges", wide), lambda: NvtxRanges.load(self.session, wide, self.ranks))
        return ranges.narrowed(selection)

    def nvtx_tree(self, selection: Selection, by: str, fold: str) -> NvtxTree:
        """The NVTX ranges of a selection as a tree."""
        from nsystui.questions.nvtx.tree import NvtxTree

        def build() -> NvtxTree:
            # Asked for in here, so that a report that joins meanwhile cannot leave an old tree under a new version.
            return NvtxTree.build(self.nvtx_ranges(selection), by=by, fold=fold)

        return self.once(("nvtx-tree", selection, by, fold), build)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """``make()``, or what it gave for the same key and the same state of the session."""
        state = (str(self.version),)
        made = self._memory.once(ResultKey(state, key), make)
        # Else each state of hundreds of reports that join one by one would hold the intervals of all before it.
        self._memory.forget_others(state)
        return made
