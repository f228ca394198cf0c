"""NCCL's calls paired with NCCL's kernels: which call launched which kernel, and so how many bytes a kernel moved.

NVTX tells the calls and their sizes, CUPTI the kernels, and nothing in an export joins them. A kernel belongs to the
calls in whose launch window its own launch lies (docs/nccl.md#pairing): in the call itself, or in the ``ncclGroupEnd``
of its group. Pairing is done over everything that is open, for a launch may lie before the time window that is looked
at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from nsystui.questions.derived import runs_of, with_progress
from nsystui.questions.nccl import recorded
from nsystui.questions.nccl.assembly import assemble
from nsystui.questions.nccl.from_log import LogSizes, kernels_with_log_sizes, log_notes, with_log_sizes
from nsystui.questions.nccl.joining import joined
from nsystui.questions.nccl.states import Reason, State
from nsystui.questions.tasks import RankedTask
from nsystui.store import tables
from nsystui.store.report import Report
from nsystui.store.session import Session

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class NcclPairing:
    """Every NCCL kernel and every NCCL call with what is known of it through the other.

    ``kernels`` and ``calls`` are pandas frames with the index 0, 1, …; missing is missing, times are job time in ns.

    Both: ``report``, ``process``, ``row`` (identity: of ``kernels`` and of ``nvtx_ranges``), ``rank``, ``start``,
    ``end`` (missing in a call that never returned), ``name``, ``collective``, ``message_size`` (bytes),
    ``communicator``, ``ranks`` (in it), ``peer``, ``root``, ``reduction``, ``datatype`` (the width of an element),
    ``state``, ``reason`` (if unpaired), ``operation`` (what belongs together has the same number; -1 for none),
    ``partners`` (how many of the other side belong to it) and ``partner`` (the index of the first, -1 for none).

    ``kernels``: also ``device``, ``stream``, ``launch_start`` (missing where the launch was not recorded).
    ``collective`` is what its calls and PyTorch's label say; if unpaired, what its name says. ``message_size`` is the
    sum over its calls (for sends and receives both ways; ``one_way``, missing in all other kernels, is the larger of
    the two directions); kernels that share calls get even shares, and are estimated.

    ``calls``: also ``thread`` and ``size_source`` (``payload``, ``instrumented`` or ``log``). ``collective`` and
    ``state`` are missing in management calls; those of a group still have its operation and partner. Ranges inside
    another call (of an instrumented NCCL) are left out.
    """

    kernels: pd.DataFrame
    calls: pd.DataFrame
    notes: tuple[str, ...] = ()
    """What to know of columns that were added."""

    @classmethod
    def load(
        cls,
        session: Session,
        ranks: Sequence[RankedTask] = (),
        log: LogSizes | None = None,
        reports: recorded.Reports = None,
    ) -> NcclPairing:
        """Pairs what all open reports (or ``reports``) hold; ``ranks`` gives each row its rank in the job.

        ``log`` tells the sizes of calls that the exports do not, and of kernels that no call belongs to. Raises nothing
        of its own.
        """
        every = [report for report in session.reports if reports is None or report.index in reports]
        if log is None:
            # A run at a time: DuckDB would join the kernels of all with the calls of all.
            runs = with_progress(
                session, list(runs_of(every, tables.api_calls)) or [[]], "pairs of NCCL calls and kernels"
            )
            return cls(*joined([assemble(*_recorded(session, ranks, run)) for run in runs]))
        calls, *rest = _recorded(session, ranks, every)
        paired = assemble(calls, *rest)
        calls, reasons = with_log_sizes(calls, paired, log)
        kernels, calls = assemble(calls, *rest)
        kernels, more = kernels_with_log_sizes(kernels, log)
        return cls(kernels, calls, log_notes(kernels, calls, [*reasons, *more]))

    def calls_of(self, kernel: int) -> pd.DataFrame:
        """The communication calls that belong to a kernel (its index): rows of ``calls``, in order."""
        operation = self.kernels["operation"].iloc[kernel]
        is_own = (self.calls["operation"] == operation) & self.calls["collective"].notna()
        return self.calls[is_own & (operation >= 0)]

    def kernels_of(self, call: int) -> pd.DataFrame:
        """The kernels that belong to a call (its index), or to the operation of a group call: rows of ``kernels``."""
        operation = self.calls["operation"].iloc[call]
        return self.kernels[(self.kernels["operation"] == operation) & (operation >= 0)]

    @cached_property
    def quality(self) -> PairingQuality:
        """How well the pairing went, over everything."""
        return PairingQuality.of(self.kernels, self.calls)


def _recorded(session: Session, ranks: Sequence[RankedTask], reports: Sequence[Report]) -> tuple[pd.DataFrame, ...]:
    """What some reports recorded: calls, kernels, labels, and each process's first correlation id."""
    indices = [report.index for report in reports]
    part = session.part(indices)
    kernels = part.frame(recorded.kernels_query(ranks, indices))
    first_ids = recorded.first_correlations_query(indices)
    if kernels["launch_start"].notna().all():
        first_ids = first_ids.limit(0)  # nobody asks, and it would read every API call
    calls, labels = (
        part.frame(query) for query in (recorded.calls_query(ranks, indices), recorded.labels_query(indices))
    )
    return calls, kernels, labels, part.frame(first_ids)


@dataclass(frozen=True)
class PairingQuality:
    """How many kernels and communication calls are in which state, and why the unpaired ones are.

    ``kernel_reasons`` and ``call_reasons``: (reason, count), most frequent first.
    """

    kernels: dict[State, int]
    calls: dict[State, int]
    kernel_reasons: tuple[tuple[str, int], ...]
    call_reasons: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, kernels: pd.DataFrame, calls: pd.DataFrame) -> PairingQuality:
        """Counts rows of an `NcclPairing`."""
        return cls(_states(kernels), _states(calls), _reasons(kernels), _reasons(calls))

    @property
    def line(self) -> str:
        """The line under a table: ``paired 64 of 66 NCCL kernels with their calls · 2 kernels: launched before …``.

        Empty where there are no kernels or no calls to pair.
        """
        kernels, calls = sum(self.kernels.values()), sum(self.calls.values())
        if not kernels or not calls:
            return ""
        paired = kernels - self.kernels[State.UNPAIRED]
        parts = [f"paired {paired:,} of {kernels:,} NCCL kernels with their calls"]
        if self.kernels[State.ESTIMATED]:
            parts[0] += f" ({self.kernels[State.ESTIMATED]:,} estimated)"
        parts += [f"{_number(count, 'kernel')}: {reason}" for reason, count in self.kernel_reasons]
        parts += [f"{_number(count, 'call')}: {reason}" for reason, count in self.call_reasons]
        return " · ".join(parts)


def _states(frame: pd.DataFrame) -> dict[State, int]:
    return {state: int((frame["state"] == state.value).sum()) for state in State}


def _reasons(frame: pd.DataFrame) -> tuple[tuple[str, int], ...]:
    counts = {str(reason): int(count) for reason, count in frame["reason"].value_counts().items()}
    found = [(reason.value, counts[reason.value]) for reason in Reason if counts.get(reason.value)]
    return tuple(sorted(found, key=lambda item: -item[1]))


def _number(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"
